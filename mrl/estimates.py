"""What samples say of policies: pass@k, intervals, overlap, and what only peers solve.

Solved sets grow with the number of samples and are compared at equal numbers only.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

# Numbers that the bootstrap draws at a time.
RESAMPLED = 2**18


def pass_at_k(successes: ArrayLike, samples: ArrayLike, k: int, /) -> Array:
    """Estimate without bias the probability that one of `k` samples is a success.

    With c successes among n samples it is the share of k-subsets that hold a success,
    ``1 - C(n-c, k) / C(n, k)``; computed in integers and rounded once.

    Parameters
    ----------
    successes : array_like of int, shape (items,)
        Successes c of each item, 0 <= c <= n.
    samples : array_like of int, shape (items,) or ()
        Samples n of each item, n >= k.
    k : int
        Size of the subsets, >= 1.

    Returns
    -------
    ndarray, shape (items,)
        Estimates in [0, 1].

    Raises
    ------
    ValueError
        If an argument is out of its range or not whole.

    Notes
    -----
    Source: Chen et al. 2021, arXiv 2107.03374, equation 1.
    """
    hits, totals = np.broadcast_arrays(np.asarray(successes), np.asarray(samples))
    for name, values in (("successes", hits), ("samples", totals), ("k", np.asarray(k))):
        if values.dtype.kind not in "iu":
            raise ValueError(f"{name} has dtype {values.dtype}; expected whole numbers")
    if k < 1 or np.any(totals < k):
        raise ValueError(
            f"k={k} with samples={totals.tolist()}; expected 1 <= k <= samples for every item: "
            "leave out items with fewer samples"
        )
    if np.any((hits < 0) | (hits > totals)):
        raise ValueError(
            f"successes={hits.tolist()} of samples={totals.tolist()}; "
            "expected 0 <= successes <= samples"
        )
    counts = zip(hits.ravel().tolist(), totals.ravel().tolist(), strict=True)
    subsets = [(math.comb(n, k), math.comb(n - c, k)) for c, n in counts]
    shares = [(every - failing) / every for every, failing in subsets]
    return np.array(shares, dtype=np.float64).reshape(hits.shape)


def bootstrap_interval(
    values: ArrayLike, seed: int, level: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean.

    Parameters
    ----------
    values : array_like, shape (items,)
        One finite number an item; items are drawn with replacement.
    seed : int
        Seeds the draws.
    level : float
        Coverage aimed at, in (0, 1).
    resamples : int
        Draws of all items, >= 1.

    Returns
    -------
    (float, float)
        Lower and upper bound. They speak for the drawing of items, not for the drawing of
        samples, and coincide where all values are equal: 0 of 20 items says little about the
        next 20, and this interval does not show it.

    Raises
    ------
    ValueError
        If there is no value, one is not finite, or a setting is out of range.

    Notes
    -----
    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0 or not np.isfinite(data).all():
        raise ValueError(
            f"values has shape {data.shape}, {int(np.isfinite(data).sum())} of them finite; "
            "expected one finite number an item, at least one"
        )
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(
            f"level={level}, resamples={resamples}; expected 0 < level < 1 and resamples >= 1"
        )
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    # Some resamples at a time: memory does not grow with their number.
    rows = max(RESAMPLED // data.size, 1)
    for start in range(0, resamples, rows):
        part = means[start : start + rows]
        part[:] = data[rng.integers(data.size, size=(part.size, data.size))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def overlap(solved: ArrayLike, /) -> Array:
    """Jaccard index of the policies' solved sets: shared items over items either solves.

    Parameters
    ----------
    solved : array_like of bool, shape (policies, items)
        Which items each policy solves.

    Returns
    -------
    ndarray, shape (policies, policies)
        Symmetric, in [0, 1]; NaN where neither policy solves anything.
    """
    sets = np.asarray(solved, dtype=bool)
    both = (sets[:, None] & sets[None]).sum(-1)
    either = (sets[:, None] | sets[None]).sum(-1)
    return np.divide(both, either, out=np.full(both.shape, np.nan), where=either > 0)


def rescue_sets(
    success_counts: ArrayLike, /, *, verified_counts: ArrayLike | None = None
) -> NDArray[np.bool_]:
    """Items that a policy never solves and some peer does.

    Parameters
    ----------
    success_counts : array_like of int, shape (policies, items)
        Successes of each policy on each item.
    verified_counts : array_like of int, shape (policies, items), optional
        Verified samples. Where a policy has none it is not known to fail, and the item is in
        none of its rescue sets. Default: all have some.

    Returns
    -------
    ndarray of bool, shape (policies, items)
        Membership in each policy's rescue set; their sums are the sets' sizes.
    """
    solved = np.asarray(success_counts) > 0
    failed = ~solved if verified_counts is None else ~solved & (np.asarray(verified_counts) > 0)
    return failed & solved.any(axis=0)
