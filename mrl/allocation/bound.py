"""What no placement undercuts, of each phase by itself.

If a phase is over within a time t, every policy runs it on enough devices to end by t, and all
device-seconds, weighted by any prices of kinds, are no more than the devices have in t. The least
t for which that can hold is a bound, whatever is shared with whom.
"""

import numpy as np

from mrl.allocation.tables import NEVER, Floats, Ints, Tables, least_within

PRECISION = 2e-3
MOST_PRICES = 16


def least_phases(tables: Tables, /) -> tuple[float, float]:
    """Lower bounds of generation and of training, in seconds."""
    everyone = np.eye(tables.policies, dtype=bool)
    no_one = np.zeros_like(everyone)
    return (
        _least(tables, tables.generation, tables.least_for_memory(everyone, no_one)),
        _least(tables, tables.training, tables.least_for_memory(no_one, everyone)),
    )


def _least(tables: Tables, times: Floats, for_memory: Ints, /) -> float:
    """Bound of one phase with times (P, K, N), of which a policy needs `for_memory` (P, K)."""
    device_seconds = times * np.arange(1, times.shape[-1] + 1)
    # Entry n - 1: the fewest of all slices of at least n devices.
    fewest = np.minimum.accumulate(device_seconds[..., ::-1], axis=-1)[..., ::-1]
    prices = _prices(fewest[..., 0])

    def possible(limit: float, price: Floats) -> bool:
        by_time = least_within(times, tables.devices, np.array([limit]))[..., 0]
        n = np.maximum(by_time, for_memory)
        place = np.minimum(n, times.shape[-1])[..., None] - 1
        spent = np.take_along_axis(fewest, place, axis=-1)[..., 0]
        cheapest = np.where(n < NEVER, spent * price, np.inf).min(axis=1).sum()
        return bool(cheapest <= limit * (tables.devices @ price))

    # A policy alone on all devices is no faster; from there the largest impossible limit.
    bound = float(times.min(axis=(1, 2)).max())
    for price in prices:
        if possible(bound * (1 + PRECISION), price):
            continue
        high = 2 * bound
        while not possible(high, price):
            bound, high = high, 2 * high
        while high > bound * (1 + PRECISION):
            middle = float(np.sqrt(bound * high))
            bound, high = (bound, middle) if possible(middle, price) else (middle, high)
    return bound


def _prices(spent: Floats, /) -> Floats:
    """Prices of kinds at which some policy is indifferent between them; any give a bound."""
    runs = spent[np.isfinite(spent).all(axis=1) & (spent.min(axis=1) > 0)]
    indifferent = runs.min(axis=1, keepdims=True) / runs
    found = np.unique(np.vstack([np.ones(spent.shape[1]), indifferent]), axis=0)
    spread = np.linspace(0, len(found) - 1, min(len(found), MOST_PRICES)).round().astype(int)
    return found[spread]
