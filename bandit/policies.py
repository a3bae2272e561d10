"""Softmax policies, tabular or with linear features: probabilities, scores and their sums.

A response y of policy pi has the score ``s(y) = grad log pi(y)``, which for a table of logits is
``e_y - pi``. With linear features, ``f(y) = phi(y) . theta``, it is ``Phi^T (e_y - pi)``: gradients
are formed in the logits and pulled back to the parameters by `pull_back`.
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


def pull_back(gradient: Array, features: Array | None, /, *, out: Array | None = None) -> Array:
    """Turn a gradient in the logits into one in the parameters, ``Phi^T g`` in each context.

    Parameters
    ----------
    gradient : ndarray, shape (..., X, K)
        With respect to the logits.
    features : ndarray, shape (X, K, D), or None
        None: the logits are the parameters, and the gradient is returned as it is.
    out : ndarray, shape (..., X, D), optional
        Where to write the product with features.

    Returns
    -------
    ndarray, shape (..., X, D)
    """
    if features is None:
        return gradient
    product: Array = np.einsum("...k,...kd->...d", gradient, features, out=out, optimize=True)
    return product


def squared_scores(probs: Array, features: Array | None = None, /) -> Array:
    """``|s(y)|^2`` of each arm, shape (..., K).

    ``1 - 2 pi(y) + |pi|^2`` for a table of logits, ``|phi(y) - E phi|^2`` with features (X, K, D)
    and probabilities (X, K).
    """
    if features is None:
        return 1.0 - 2.0 * probs + np.square(probs).sum(-1, keepdims=True)
    return np.square(features - probs[..., None, :] @ features).sum(-1)


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


def fisher_matrix(probs: Array, features: Array, /) -> Array:
    """``Phi^T (diag(pi) - pi pi^T) Phi`` in each context.

    Parameters
    ----------
    probs : ndarray, shape (..., X, K)
        The policy.
    features : ndarray, shape (X, K, D)
        Its features.

    Returns
    -------
    ndarray, shape (..., X, D, D)
    """
    mean = probs[..., None, :] @ features
    second = features.swapaxes(-1, -2) @ (probs[..., None] * features)
    fisher: Array = second - mean.swapaxes(-1, -2) @ mean
    return fisher


def natural_flow(gradient: Array, probs: Array, features: Array | None, /) -> Array:
    """Change of the arms' probabilities by a natural-gradient step, to first order.

    Parameters
    ----------
    gradient : ndarray, shape (X, D)
        A gradient in the parameters, by context.
    probs : ndarray, shape (X, K)
        The policy.
    features : ndarray, shape (X, K, D), or None
        None: a table of logits, where ``x = g / pi`` and the change is g itself.

    Returns
    -------
    ndarray, shape (X, K)
        ``pi (s(y) . F^+ g)`` with the context's own Fisher matrix F, pseudo-inverted.
    """
    if features is None:
        return gradient
    scores = features - probs[:, None, :] @ features
    fisher = fisher_matrix(probs, features)
    step = np.linalg.pinv(fisher, hermitian=True) @ gradient[..., None]
    flow: Array = probs * (scores @ step)[..., 0]
    return flow
