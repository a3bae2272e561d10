"""How a gradient becomes a step."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bandit.policies import fisher_matrix, natural_gradient
from bandit.probes.group import Array

OptimizerKind = Literal["sgd", "adam", "natural"]

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
DAMPING = 1e-3


@dataclass(frozen=True, eq=False)
class Optimizer:
    """Turns the gradients of one policy's many runs into directions.

    Attributes
    ----------
    kind : {"sgd", "adam", "natural"}
        ``sgd``: the gradient. ``adam``: betas `BETA1` and `BETA2`, `EPS`, bias-corrected.
        ``natural``: preconditioned by the Fisher matrix of the weighted population, with
        `DAMPING`; in a tabular world, in each context.
    max_norm : float or None
        Bound on the norm of the policy's whole gradient, applied first.
    weights : ndarray, shape (X,)
        Context weights, which the gradients carry.
    features : ndarray, shape (X, K, D), or None
        The policy's features; None: a table of logits.
    averages : ndarray, shape (2, R, X, K) or (2, R, D)
        Adam's moving averages of gradient and square; updated in place.
    """

    kind: OptimizerKind
    max_norm: float | None
    weights: Array
    features: Array | None
    averages: Array

    @classmethod
    def start(
        cls,
        kind: OptimizerKind,
        max_norm: float | None,
        weights: Array,
        features: Array | None,
        like: Array,
        /,
    ) -> "Optimizer":
        """Start from rest, for gradients shaped as `like`."""
        return cls(kind, max_norm, weights, features, np.zeros((2, *like.shape)))

    def direction(self, gradient: Array, probs: Array, step: int, /) -> tuple[Array, Array]:
        """Turn a gradient of the weighted population into a direction.

        Parameters
        ----------
        gradient : ndarray, shape (R, X, K) or (R, D)
            Of each run, in the logits or in the parameters of the features.
        probs : ndarray, shape (R, X, K)
            The policy of each run.
        step : int
            1 for the first step.

        Returns
        -------
        direction : ndarray, shape (R, X, K) or (R, D)
            To be scaled by the learning rate and added to the parameters.
        norms : ndarray, shape (R,)
            Norm of each gradient before clipping.
        """
        norms = np.linalg.norm(gradient.reshape(len(gradient), -1), axis=-1)
        if self.max_norm is not None:
            shrink = self.max_norm / np.maximum(norms, self.max_norm)
            gradient = gradient * shrink.reshape(-1, *[1] * (gradient.ndim - 1))
        if self.kind == "adam":
            return self._adam(gradient, step), norms
        if self.kind == "natural":
            return self._natural(gradient, probs), norms
        return gradient, norms

    def _natural(self, gradient: Array, probs: Array, /) -> Array:
        if self.features is None:
            # the population's Fisher matrix carries the context weights as its gradient does
            weights = self.weights[:, None]
            by_context = np.divide(
                gradient, weights, out=np.zeros_like(gradient), where=weights > 0
            )
            return natural_gradient(by_context, probs, damping=DAMPING)
        fisher = fisher_matrix(probs, self.features)
        total = np.einsum("x,rxde->rde", self.weights, fisher)
        total += DAMPING * np.eye(total.shape[-1])
        step: Array = np.linalg.solve(total, gradient[..., None])[..., 0]
        return step

    def _adam(self, gradient: Array, step: int, /) -> Array:
        first, second = self.averages
        first += (1 - BETA1) * (gradient - first)
        second += (1 - BETA2) * (np.square(gradient) - second)
        scale = np.sqrt(second / (1 - BETA2**step)) + EPS
        return first / (1 - BETA1**step) / scale
