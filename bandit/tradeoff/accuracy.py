"""How far an estimate is from the true gradient at its best learning rate.

Source: docs/theory.md, section 4.
"""

import numpy as np
from numpy.typing import ArrayLike

from bandit.moments import Moments
from bandit.probes.group import Array


def scale_free_error(inner: ArrayLike, true_square: ArrayLike, second: ArrayLike, /) -> Array:
    """Relative squared error of an estimate at its best learning rate.

    ``min over a >= 0 of E|a g - g*|^2 / |g*|^2 = 1 - max(<E g, g*>, 0)^2 / (|g*|^2 E|g|^2)``:
    the learning rate absorbs the scale of an estimate, so the scale is not held against it. It
    lies in [0, 1]; at 1 the estimate is worth as much as none.

    Parameters
    ----------
    inner, true_square, second : array_like, shape (...)
        ``<E g, g*>``, ``|g*|^2`` and ``E|g|^2 = |E g|^2 + tr Cov(g)``.

    Returns
    -------
    ndarray, shape (...)
        1 for an estimate that is always 0 or not uphill; NaN where g* is 0.
    """
    return 1.0 - _accuracy(inner, true_square, second)


def context_accuracy(moments: Moments, /) -> Array:
    """``1 - error`` of each context, shape (X,); NaN where g* is 0."""
    mean, true = moments.mean, moments.true_gradient
    second = np.square(mean).sum(-1) + moments.covariance_trace
    return _accuracy((mean * true).sum(-1), np.square(true).sum(-1), second)


def population_accuracy(moments: Moments, /) -> float:
    """``1 - error`` of the weighted population, one draw of every context."""
    mean, true = moments.population_mean, moments.population_true_gradient
    second = np.square(mean).sum() + moments.population_covariance_trace
    return float(_accuracy((mean * true).sum(), np.square(true).sum(), second))


def _accuracy(inner: ArrayLike, true_square: ArrayLike, second: ArrayLike, /) -> Array:
    """Form ``1 - error`` without the cancellation, as it may be 1e-9 where successes are rare."""
    uphill, true, square = np.broadcast_arrays(np.maximum(inner, 0.0), true_square, second)
    # one quotient at a time: both squares may underflow together
    fit = np.divide(uphill, true, out=np.full(uphill.shape, np.nan), where=true > 0)
    pull = np.divide(uphill, square, out=np.zeros(uphill.shape), where=square > 0)
    return np.minimum(fit * pull, 1.0)
