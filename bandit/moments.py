"""Mean, covariance and support gain of a gradient estimator, and what follows from them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bandit.policies import natural_flow
from bandit.probes.group import Array, Mask
from bandit.world import World


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of one receiver's gradient estimate, by context, in its D parameters.

    Attributes
    ----------
    world, receiver
        Whose estimate in which world. In a tabular world the parameters are a context's K logits;
        with linear features all contexts share them.
    mean : ndarray, shape (X, D)
        ``E[g]``.
    covariance_trace : ndarray, shape (X,)
        ``tr Cov(g)``, the stability cost.
    mean_without_success : ndarray, shape (X, D)
        ``E[g; no own success]``, the expectation restricted to that event.
    full_covariance : callable
        What `covariance` calls.

    Notes
    -----
    Per-context figures are unweighted. Source: docs/theory.md, sections 3 and 4.
    """

    world: World
    receiver: int
    mean: Array
    covariance_trace: Array
    mean_without_success: Array
    full_covariance: Callable[[], Array] = field(repr=False)

    def covariance(self) -> Array:
        """``Cov(g)`` of each context, shape (X, D, D); computed at each call."""
        return self.full_covariance()

    @property
    def probs(self) -> Array:
        """The receiver's policy, shape (X, K)."""
        return self.world.probs[self.receiver]

    @property
    def success(self) -> Mask:
        """Success arms, shape (X, K)."""
        return self.world.success

    @property
    def weights(self) -> Array:
        """Context weights, shape (X,)."""
        return self.world.weights

    @cached_property
    def true_gradient(self) -> Array:
        """``g*`` of each context, shape (X, D)."""
        return self.world.true_gradient(self.receiver)

    @cached_property
    def support_gain(self) -> Array:
        """``U = <grad log p, E[g; no own success]>``, shape (X,); NaN where p = 0."""
        uphill = self.world.log_success_gradient(self.receiver)
        return (uphill * self.mean_without_success).sum(-1)

    @property
    def bias_cosine(self) -> Array:
        """``cos(E g, g*)`` of each context, shape (X,); NaN where one of them is 0."""
        return cosine(self.mean, self.true_gradient)

    @property
    def kappa(self) -> Array:
        """``<E g, g*> / |g*|^2`` of each context, shape (X,); NaN where g* is 0.

        How far a step goes along the true gradient. Where the bias cosine is 1 it says all:
        ``E g = kappa g*``.
        """
        square = np.square(self.true_gradient).sum(-1)
        inner = (self.mean * self.true_gradient).sum(-1)
        return np.divide(inner, square, out=np.full_like(inner, np.nan), where=square > 0)

    @cached_property
    def flow(self) -> Array:
        """Change of each arm's probability by a natural-gradient step, shape (X, K).

        The step is ``E[g; no own success]``, preconditioned in each context by its Fisher matrix;
        in a tabular world the flow is that expectation itself.
        """
        features = self.world.features_of(self.receiver)
        return natural_flow(self.mean_without_success, self.probs, features)

    @property
    def fisher_gain(self) -> Array:
        """The support gain in the Fisher geometry, shape (X,); NaN where p = 0.

        The flow into success arms divided by p.
        """
        p = np.where(self.success, self.probs, 0.0).sum(-1)
        flow = np.where(self.success, self.flow, 0.0).sum(-1)
        return np.divide(flow, p, out=np.full_like(p, np.nan), where=p > 0)

    def open_flow(self, rare: float = 0.01, /) -> Array:
        """Flow into success arms that the receiver plays with probability < `rare`, shape (X,).

        The support gain weighs arms by ``pi / p``, so it can be small or negative exactly when a
        rare arm is opened; this sum is not weighted.
        """
        opened = self.success & (self.probs < rare)
        return np.where(opened, self.flow, 0.0).sum(-1)

    @property
    def population_mean(self) -> Array:
        """Expected gradient of the weighted population in all parameters.

        ``w_x E g_x`` by context, shape (X, K), where each context has its own logits;
        ``sum_x w_x E g_x``, shape (D,), where contexts share parameters.
        """
        return self._population(self.mean)

    @property
    def population_true_gradient(self) -> Array:
        """The same of ``g*``."""
        return self._population(self.true_gradient)

    @property
    def population_covariance_trace(self) -> float:
        """``sum_x w_x^2 tr Cov_x``, for one draw of every context."""
        return float(np.square(self.weights) @ self.covariance_trace)

    @property
    def population_support_gain(self) -> Array:
        """Support gain of a step on the whole population, by context, shape (X,); NaN where p = 0.

        ``U_x = <grad log p_x, sum_x' w_x' E[g_x'; no own success in x']>``. Where contexts share
        parameters, what is learned in one moves the others; otherwise this is ``w_x`` times
        `support_gain`.
        """
        uphill = self.world.log_success_gradient(self.receiver)
        return (uphill * self._population(self.mean_without_success)).sum(-1)

    def _population(self, gradient: Array, /) -> Array:
        weighted = self.weights[:, None] * gradient
        return weighted if self.world.features is None else weighted.sum(0)


def cosine(a: Array, b: Array, /) -> Array:
    """Cosine between vectors along the last axis; NaN where one of them is 0."""
    scale = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    inner = (a * b).sum(-1)
    return np.divide(inner, scale, out=np.full_like(inner, np.nan), where=scale > 0)
