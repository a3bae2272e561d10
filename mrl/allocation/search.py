"""The shortest round: a search over limits on its two phases.

A round takes generation + training, each the time of its slowest slice. Given limits on both, an
oracle tells whether some placement keeps them. The least training limit falls as the generation
limit rises, so between two generation limits a < b no placement is shorter than
a + (least training limit at b): a branch-and-bound over intervals with a proven gap.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mrl.allocation.tables import Floats

# (G,) limits in seconds on generation, and on training -> (G,) truth values.
Oracle = Callable[[Floats, Floats], np.ndarray]


class Limits(NamedTuple):
    """Limits that a placement keeps, and what no placement undercuts, in seconds.

    Attributes
    ----------
    generation, training : float
    bound : float
        On the sum; as good as the oracle: where that misses placements, no bound.
    """

    generation: float
    training: float
    bound: float


def shortest(
    oracle: Oracle, least: tuple[float, float], /, *, tolerance: float, intervals: int
) -> Limits:
    """Find limits whose sum is within `tolerance` of the least that the oracle grants.

    Parameters
    ----------
    oracle : callable
        Monotone: what it grants it grants at higher limits. It grants infinite limits.
    least : tuple of float
        Lower bounds of generation and of training, positive.
    tolerance : float
        Relative.
    intervals : int
        Intervals at the start.
    """
    low_g, low_t = least
    scale = _smallest_scale(oracle, low_g, low_t)
    total = scale * (low_g + low_t)
    edges = np.geomspace(low_g, max(total - low_t, low_g * (1 + 1e-9)), intervals + 1)
    slack = tolerance / 4
    low, high = _least_training(oracle, edges, low_t, np.inf, total, slack)
    while True:
        best = int(np.argmin(edges + high))
        shortest_found = min(total, edges[best] + high[best])
        lower = edges[:-1] + low[1:]
        split = lower * (1 + tolerance) < shortest_found
        split &= edges[1:] > edges[:-1] * (1 + slack)
        if not split.any():
            break
        middle = np.sqrt(edges[:-1] * edges[1:])[split]
        new_low, new_high = _least_training(
            oracle, middle, low[1:][split], high[:-1][split], total, slack
        )
        places = np.flatnonzero(split) + 1
        edges = np.insert(edges, places, middle)
        low, high = np.insert(low, places, new_low), np.insert(high, places, new_high)
    bound = float(min(lower.min(), shortest_found))
    if edges[best] + high[best] > total:
        return Limits(scale * low_g, scale * low_t, bound)
    return Limits(float(edges[best]), float(high[best]), bound)


def _smallest_scale(oracle: Oracle, low_g: float, low_t: float, /) -> float:
    """A factor, within a per cent of the least, by which both bounds are granted."""

    def granted(factor: float) -> bool:
        return bool(oracle(np.array([factor * low_g]), np.array([factor * low_t]))[0])

    if granted(1.0):
        return 1.0
    low, high = 1.0, 1.1
    while not granted(high):
        low, high = high, high * high
    while high > low * 1.01:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if granted(middle) else (middle, high)
    return high


def _least_training(
    oracle: Oracle,
    generation: Floats,
    low: Floats | float,
    high: Floats | float,
    total: float,
    slack: float,
    /,
) -> tuple[Floats, Floats]:
    """Bracket the least training limit at each generation limit to a factor of 1 + slack.

    Only sums up to `total` matter: where none is granted the upper end is infinite, else it was
    granted.
    """
    low = np.broadcast_to(np.asarray(low, dtype=float), generation.shape).copy()
    most = np.minimum(high, np.maximum(total - generation, low))
    at_low = oracle(generation, low)
    found = np.where(at_low, low, np.inf)
    if (unknown := ~at_low).any():
        # Also where a neighbour's limit must do: an oracle that misses placements may refuse it.
        granted = oracle(generation[unknown], most[unknown])
        found[unknown] = np.where(granted, most[unknown], np.inf)
        low[unknown] = np.where(granted, low[unknown], most[unknown])
    high = found
    while (open_ := np.isfinite(high) & (high > low * (1 + slack))).any():
        middle = np.sqrt(low * high)[open_]
        granted = oracle(generation[open_], middle)
        high[open_] = np.where(granted, middle, high[open_])
        low[open_] = np.where(granted, low[open_], middle)
    return low, high
