"""How a gradient becomes a step."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from bandit.policies import natural_gradient
from bandit.probes.group import Array

OptimizerKind = Literal["sgd", "adam", "natural"]

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8
DAMPING = 1e-3


@dataclass(frozen=True, eq=False)
class Optimizer:
    """Turns the gradients of many policies into directions, each policy on its own.

    Attributes
    ----------
    kind : {"sgd", "adam", "natural"}
        ``sgd``: the gradient. ``adam``: betas `BETA1` and `BETA2`, `EPS`, bias-corrected.
        ``natural``: preconditioned by the Fisher matrix of the weighted population, with
        `DAMPING` in each context.
    max_norm : float or None
        Bound on the norm of a policy's whole gradient, applied first.
    weights : ndarray, shape (X,)
        Context weights, which the gradients carry.
    averages : ndarray, shape (2, ..., X, K)
        Adam's moving averages of gradient and square; updated in place.
    """

    kind: OptimizerKind
    max_norm: float | None
    weights: Array
    averages: Array

    @classmethod
    def start(
        cls, kind: OptimizerKind, max_norm: float | None, weights: Array, like: Array, /
    ) -> "Optimizer":
        """Start from rest, for gradients shaped as `like`."""
        return cls(kind, max_norm, weights, np.zeros((2, *like.shape)))

    def direction(self, gradient: Array, probs: Array, step: int, /) -> tuple[Array, Array]:
        """Turn a gradient of the weighted population into a direction.

        Parameters
        ----------
        gradient, probs : ndarray, shape (..., X, K)
            Gradient and policy of each run.
        step : int
            1 for the first step.

        Returns
        -------
        direction : ndarray, shape (..., X, K)
            To be scaled by the learning rate and added to the logits.
        norms : ndarray, shape (...)
            Norm of each gradient before clipping.
        """
        norms = np.sqrt(np.square(gradient).sum((-2, -1)))
        if self.max_norm is not None:
            shrink = self.max_norm / np.maximum(norms, self.max_norm)
            gradient = gradient * shrink[..., None, None]
        if self.kind == "adam":
            return self._adam(gradient, step), norms
        if self.kind == "natural":
            # the population's Fisher matrix carries the context weights as its gradient does
            weights = self.weights[:, None]
            by_context = np.divide(
                gradient, weights, out=np.zeros_like(gradient), where=weights > 0
            )
            return natural_gradient(by_context, probs, damping=DAMPING), norms
        return gradient, norms

    def _adam(self, gradient: Array, step: int, /) -> Array:
        first, second = self.averages
        first += (1 - BETA1) * (gradient - first)
        second += (1 - BETA2) * (np.square(gradient) - second)
        scale = np.sqrt(second / (1 - BETA2**step)) + EPS
        return first / (1 - BETA1**step) / scale
