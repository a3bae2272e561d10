"""Search for where a sequence first reaches a mark."""

import math
from collections.abc import Callable

TOLERANCE = 1e-9


def where_reached(value: Callable[[int], float], mark: float, /, *, most: int) -> float:
    """Where a sequence ``value(0), value(1), ...`` first reaches a mark, linear in between.

    Parameters
    ----------
    value : callable
        Rises, or rises to one peak and falls. It is asked about at most some
        ``4 log2(most)`` numbers, about some of them again.
    mark : float
        What is to be reached, to rounding.
    most : int
        Where to stop looking; >= 1.

    Returns
    -------
    float
        A number in ``(m - 1, m]`` for the smallest whole m in 0..most with ``value(m) >= mark``;
        inf if there is none, NaN for a mark that is NaN.
    """
    if math.isnan(mark):
        return math.nan

    def reached(m: int) -> bool:
        return value(m) >= mark - TOLERANCE * abs(mark)

    if reached(0):
        return 0.0
    low, short, m = 0, 0, 1
    while not reached(m):
        if m == most or value(m) < value(short):  # a peak that counts lies after `low`
            top = _peak(value, low, m)
            return _between(value, mark, _first(reached, low, top)) if reached(top) else math.inf
        low, short, m = short, m, min(2 * m, most)
    return _between(value, mark, _first(reached, short, m))


def _between(value: Callable[[int], float], mark: float, m: int, /) -> float:
    """Where the line from ``m - 1`` to m is at the mark."""
    below = value(m - 1)
    return m - 1 + min((mark - below) / (value(m) - below), 1.0)


def _first(reached: Callable[[int], bool], low: int, high: int, /) -> int:
    """Bisect for the first m reached, `low` being short of it and `high` not."""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _peak(value: Callable[[int], float], low: int, high: int, /) -> int:
    """Where a sequence that rises and then falls is largest, between `low` and `high`."""
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if value(middle) < value(middle + 1) else (low, middle)
    return low
