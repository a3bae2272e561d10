"""A problem as arrays: every time and memory need by policy, kind and number of devices.

All of them fall, or stay, as devices are added, so that "how many devices meet this limit" is a
bisection. Legend: P policies, K kinds, N the largest number of devices of a kind; entry n - 1 is
for n devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mrl.allocation.problem import Demand, Inventory, Phase

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# More devices than any inventory has; two of them still add up.
NEVER = 1 << 40


@dataclass(frozen=True, eq=False)
class Tables:
    """Times in seconds, memory in bytes.

    Attributes
    ----------
    generation, training : (P, K, N)
        Seconds of each phase; infinite where a kind has fewer devices or cannot run it.
    working_generation, working_training : (P, N)
        Bytes on each device while the phase runs.
    state_generation, state_training, shared : (P,)
        Bytes that stay; what both phases hold once on the same devices.
    devices : (K,)
    memory : (K,)
        Usable bytes of a device.
    sharding : bool
    """

    generation: Floats
    training: Floats
    working_generation: Floats
    working_training: Floats
    state_generation: Floats
    state_training: Floats
    shared: Floats
    devices: Ints
    memory: Floats
    sharding: bool

    @classmethod
    def of(cls, inventory: Inventory, demands: Sequence[Demand], /) -> "Tables":
        """The tables of a problem."""
        devices = np.array([inventory.count(kind.name) for kind in inventory.kinds])
        names = [kind.name for kind in inventory.kinds]
        generation = [demand.generation for demand in demands]
        training = [demand.training for demand in demands]
        n = np.arange(1, devices.max() + 1)
        beyond = n > devices[:, None]
        return cls(
            generation=np.where(beyond, np.inf, _seconds(generation, names, n)),
            training=np.where(beyond, np.inf, _seconds(training, names, n)),
            working_generation=_working(generation, n),
            working_training=_working(training, n),
            state_generation=np.array([phase.state for phase in generation]),
            state_training=np.array([phase.state for phase in training]),
            shared=np.array([demand.shared for demand in demands]),
            devices=devices,
            memory=np.array([kind.memory for kind in inventory.kinds]),
            sharding=inventory.sharding,
        )

    @property
    def policies(self) -> int:
        """Number of policies."""
        return len(self.shared)

    def least_for_memory(self, generates: NDArray[np.bool_], trains: NDArray[np.bool_], /) -> Ints:
        """Fewest devices of each kind that hold each of several sets of phases.

        Parameters
        ----------
        generates, trains : (B, P)
            Which policies generate and train in each set.

        Returns
        -------
        (B, K)
            `NEVER` where even all devices of the kind do not hold the set.
        """
        state = (
            generates @ self.state_generation
            + trains @ self.state_training
            - (generates & trains) @ self.shared
        )
        found = np.empty((len(generates), len(self.devices)), dtype=np.int64)
        for k, (most, memory) in enumerate(zip(self.devices, self.memory, strict=True)):
            low = np.zeros(len(generates), dtype=np.int64)
            high = np.full(len(generates), most)
            fits = self._needed(state, generates, trains, high) <= memory
            for _ in range(int(most).bit_length()):
                middle = np.maximum((low + high) // 2, 1)
                enough = self._needed(state, generates, trains, middle) <= memory
                low, high = np.where(enough, low, middle), np.where(enough, middle, high)
            found[:, k] = np.where(fits, high, NEVER)
        return found

    def _needed(
        self, state: Floats, generates: NDArray[np.bool_], trains: NDArray[np.bool_], n: Ints, /
    ) -> Floats:
        """Bytes on each device of slices of n (B,) devices."""
        working = np.maximum(
            np.where(generates, self.working_generation[:, n - 1].T, 0).max(axis=1, initial=0),
            np.where(trains, self.working_training[:, n - 1].T, 0).max(axis=1, initial=0),
        )
        return state / (n if self.sharding else 1) + working


def _seconds(phases: Sequence[Phase], kinds: Sequence[str], n: Ints, /) -> Floats:
    """`Phase.seconds` for all kinds and numbers of devices."""
    times = np.full((len(phases), len(kinds), len(n)), np.inf)
    for phase, of_kinds in zip(phases, times, strict=True):
        rows = -(-phase.rows // n)
        for kind, row in zip(kinds, of_kinds, strict=True):
            if kind in phase.costs:
                cost = phase.costs[kind]
                row[:] = cost.once + cost.batch * -(-rows // phase.batch) + cost.row * rows
    return times


def _working(phases: Sequence[Phase], n: Ints, /) -> Floats:
    """`Phase.working` for all numbers of devices."""
    return np.array([one.row_bytes * np.minimum(one.batch, -(-one.rows // n)) for one in phases])


def least_within(times: Floats, most: Ints, limits: Floats, /) -> Ints:
    """Fewest devices whose time is within each limit.

    Parameters
    ----------
    times : (..., R, N)
        They fall, or stay, with the number of devices, up to `most`.
    most : (R,)
        Devices that there are.
    limits : (G,)

    Returns
    -------
    (..., R, G)
        `NEVER` where no number of devices is enough.
    """
    flat = times.reshape(-1, times.shape[-1])
    rows = np.arange(len(flat))[:, None]
    high = np.broadcast_to(most - 1, times.shape[:-1]).reshape(-1, 1)
    high = np.broadcast_to(high, (len(flat), len(limits))).copy()
    last = flat[rows, high]
    enough = np.isfinite(last) & (last <= limits)
    low = np.full_like(high, -1)
    for _ in range(int(most.max()).bit_length()):
        middle = np.maximum((low + high) // 2, 0)
        within = flat[rows, middle] <= limits
        low, high = np.where(within, low, middle), np.where(within, middle, high)
    return np.where(enough, high + 1, NEVER).reshape(*times.shape[:-1], len(limits))
