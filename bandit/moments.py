"""Mean, covariance and support gain of a gradient estimator, and what follows from them."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bandit.probes.group import Array, Mask
from bandit.worlds import World


@dataclass(frozen=True, eq=False)
class Moments:
    """Moments of one receiver's gradient estimate, by context, with respect to the logits.

    Attributes
    ----------
    mean : ndarray, shape (X, K)
        ``E[g]``.
    covariance_trace : ndarray, shape (X,)
        ``tr Cov(g)``, the stability cost.
    support_gain : ndarray, shape (X,)
        ``U = <grad log p, E[g; no own success]>``; NaN where p = 0.
    true_gradient : ndarray, shape (X, K)
        ``g*``.
    mean_without_success : ndarray, shape (X, K)
        ``E[g; no own success]``, the expectation restricted to that event.
    probs, success, weights
        The receiver's policy (X, K), success arms (X, K) and context weights (X,).
    full_covariance : callable
        What `covariance` calls.

    Notes
    -----
    Per-context figures are unweighted. Source: docs/theory.md, sections 3 and 4.
    """

    mean: Array
    covariance_trace: Array
    support_gain: Array
    true_gradient: Array
    mean_without_success: Array
    probs: Array
    success: Mask
    weights: Array
    full_covariance: Callable[[], Array] = field(repr=False)

    def covariance(self) -> Array:
        """``Cov(g)`` of each context, shape (X, K, K); computed at each call."""
        return self.full_covariance()

    @property
    def bias_cosine(self) -> Array:
        """``cos(E g, g*)`` of each context, shape (X,); NaN where one of them is 0."""
        return cosine(self.mean, self.true_gradient)

    @property
    def fisher_gain(self) -> Array:
        """The support gain in the Fisher geometry, shape (X,); NaN where p = 0.

        The natural gradient of log p is ``1[success] / p - 1``, so this is the flow into success
        arms divided by p.
        """
        p = np.where(self.success, self.probs, 0.0).sum(-1)
        flow = np.where(self.success, self.mean_without_success, 0.0).sum(-1)
        return np.divide(flow, p, out=np.full_like(p, np.nan), where=p > 0)

    def open_flow(self, rare: float = 0.01, /) -> Array:
        """Flow into success arms that the receiver plays with probability < `rare`, shape (X,).

        The support gain weighs arms by ``pi / p``, so it can be small or negative exactly when a
        rare arm is opened; this sum of ``E[g; no own success]`` is not weighted.
        """
        opened = self.success & (self.probs < rare)
        return np.where(opened, self.mean_without_success, 0.0).sum(-1)

    @property
    def population_mean(self) -> Array:
        """Expected gradient of the weighted population in all logits, shape (X, K)."""
        return self.weights[:, None] * self.mean

    @property
    def population_covariance_trace(self) -> float:
        """``sum_x w_x^2 tr Cov_x``, for one draw of every context."""
        return float(np.square(self.weights) @ self.covariance_trace)


def cosine(a: Array, b: Array, /) -> Array:
    """Cosine between vectors along the last axis; NaN where one of them is 0."""
    scale = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
    inner = (a * b).sum(-1)
    return np.divide(inner, scale, out=np.full_like(inner, np.nan), where=scale > 0)


def support_gain(world: World, receiver: int, mean_without_success: Array, /) -> Array:
    """``<grad log p, E[g; no own success]>`` of each context, shape (X,); NaN where p = 0."""
    return (world.log_success_gradient(receiver) * mean_without_success).sum(-1)
