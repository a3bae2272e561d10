"""Softmax policies with a table of logits: probabilities, scores and their sums.

A response y of policy pi has the score ``s(y) = grad log pi(y)``, which for a table of logits is
``e_y - pi``. Linear features add nothing new: with ``f(y) = phi(y) . theta`` the score is
``Phi^T (e_y - pi)``, so each gradient here only needs to be multiplied by ``Phi^T``.
Source: docs/theory.md, section 1. All arrays may have any leading shape; K is the number of arms.
"""

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import entr

from bandit.probes.group import Array


def softmax(logits: ArrayLike, /) -> Array:
    """Probabilities of a table of logits.

    Parameters
    ----------
    logits : array_like, shape (..., K)
        ``-inf`` stands for an arm that the policy never plays.

    Returns
    -------
    ndarray, shape (..., K)
        Sums to 1 along the last axis.
    """
    logits = np.asarray(logits, dtype=np.float64)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def log_probabilities(probs: ArrayLike, /) -> Array:
    """Log-probabilities, which also serve as logits; ``-inf`` for an arm of probability 0."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(probs, dtype=np.float64))


def log_ratio(probs: Array, peer_probs: Array, /) -> Array:
    """``log pi(y) - log pi_peer(y)``, shape (..., K); 0 where the peer never plays the arm.

    Such an arm never reaches the receiver, so its value is immaterial.
    """
    drawn = peer_probs > 0
    difference = log_probabilities(probs) - np.log(np.where(drawn, peer_probs, 1.0))
    return np.where(drawn, difference, 0.0)


def entropy(probs: ArrayLike, /) -> Array:
    """Entropy in nats along the last axis."""
    return entr(np.asarray(probs, dtype=np.float64)).sum(-1)


def score_sum(arm_weights: Array, probs: Array, /) -> Array:
    """``sum_y a(y) s(y) = a - (sum_y a(y)) pi``.

    Parameters
    ----------
    arm_weights : ndarray, shape (..., K)
        The weight a(y) on the score of each arm.
    probs : ndarray, shape (..., K)
        The policy whose scores are summed.

    Returns
    -------
    ndarray, shape (..., K)
        A gradient with respect to the logits; sums to 0 along the last axis.
    """
    return arm_weights - arm_weights.sum(-1, keepdims=True) * probs


def squared_scores(probs: Array, /) -> Array:
    """``|s(y)|^2 = 1 - 2 pi(y) + |pi|^2`` of each arm, shape (..., K)."""
    return 1.0 - 2.0 * probs + np.square(probs).sum(-1, keepdims=True)


def natural_gradient(gradient: Array, probs: Array, /, *, damping: float = 0.0) -> Array:
    """Precondition a gradient with respect to the logits by the damped Fisher matrix.

    Solves ``(diag(pi) - pi pi^T + damping I) x = g`` for a gradient g that sums to 0. Without
    damping the matrix is singular and ``g / pi`` solves it, up to a constant that changes no
    probability; that is 0 here on arms of probability 0, which no step can open.

    Parameters
    ----------
    gradient, probs : ndarray, shape (..., K)
        A gradient in the logits and the policy it was taken at.
    damping : float
        >= 0. A sampled gradient need not vanish on an arm whose probability does, so that
        ``g / pi`` has no bound; with damping the solution is at most ``|g| / damping``.

    Returns
    -------
    ndarray, shape (..., K)
        The direction of steepest ascent in the Fisher geometry.
    """
    if damping == 0.0:
        return np.divide(gradient, probs, out=np.zeros_like(gradient), where=probs > 0)
    scaled = gradient / (probs + damping)
    shares = probs / (probs + damping)
    # Sherman-Morrison; 1 - sum pi^2 / (pi + d) is formed without cancellation
    rest = (damping * shares).sum(-1, keepdims=True)
    return scaled + shares * (probs * scaled).sum(-1, keepdims=True) / rest
