"""Placements of few policies: dynamic programming over all ways to put phases together.

A policy has two items, its generation and its training. A slice runs a set of items; `need` is the
fewest devices of a kind on which a set keeps the limits and fits into memory. The fewest devices
of a kind for a set of items, in any number of slices, is a minimum over its parts (3^(2P) of
them), and kinds are added one at a time.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from mrl.allocation.tables import NEVER, Floats, Ints, Tables, least_within

# 3^(2P) parts: at five policies a check takes milliseconds, at six a second.
MOST_POLICIES = 5


class Block(NamedTuple):
    """A slice before it has devices: policies by number, in turns."""

    kind: int
    generation: tuple[int, ...]
    training: tuple[int, ...]


class Parts(NamedTuple):
    """All pairs of a set and a part of it, sets in order of size and each set's pairs together.

    Attributes
    ----------
    part, rest : (n,)
        Bit sets that are the set when put together.
    starts : (2^items - 1,)
        Where each set's pairs begin.
    sets : (2^items - 1,)
    sizes : (2^items - 1,)
        Number of items.
    """

    part: Ints
    rest: Ints
    starts: Ints
    sets: Ints
    sizes: Ints


@lru_cache(maxsize=4)
def parts_of(items: int, /, *, with_first: bool) -> Parts:
    """Every set of items with its parts: those that hold its first item, or all with the empty."""
    part: list[int] = []
    rest: list[int] = []
    starts: list[int] = []
    sets = sorted(range(1, 1 << items), key=lambda whole: (whole.bit_count(), whole))
    for whole in sets:
        starts.append(len(part))
        first = whole & -whole if with_first else 0
        others = sub = whole ^ first
        while True:
            part.append(sub | first)
            rest.append(others ^ sub)
            if not sub:
                break
            sub = (sub - 1) & others
    sizes = [whole.bit_count() for whole in sets]
    return Parts(*(np.array(values) for values in (part, rest, starts, sets, sizes)))


class Exact:
    """Tells whether any placement keeps limits, and which one does."""

    def __init__(self, tables: Tables, /) -> None:
        self.tables = tables
        self.items = 2 * tables.policies
        subsets = _members(np.arange(1 << tables.policies), tables.policies)
        # (2^P, K, N): phases of several policies in turns.
        self.generation = _sums(subsets, tables.generation)
        self.training = _sums(subsets, tables.training)
        blocks = np.arange(1 << self.items)
        self.generates = blocks & ((1 << tables.policies) - 1)
        self.trains = blocks >> tables.policies
        self.for_memory = tables.least_for_memory(subsets[self.generates], subsets[self.trains])

    def __call__(self, generation: Floats, training: Floats, /) -> np.ndarray:
        """Whether each pair of limits, in seconds, can be kept."""
        least = self._least(self._need(generation, training))
        everything = (1 << self.items) - 1
        return self._reached(least)[-1][everything]

    def blocks(self, generation: float, training: float, /) -> list[Block]:
        """Slices that keep limits which can be kept."""
        need = self._need(np.array([generation]), np.array([training]))
        least = self._least(need)
        reached = self._reached(least)
        left, found = (1 << self.items) - 1, []
        pairs = parts_of(self.items, with_first=False)
        for k in range(len(self.tables.devices) - 1, -1, -1):
            taken = left
            if k:
                part, rest = _pairs(pairs, left)
                fits = (least[part, k, 0] <= self.tables.devices[k]) & reached[k - 1][rest, 0]
                taken = int(part[np.argmin(np.where(fits, least[part, k, 0], NEVER))])
            found += self._cut(k, taken, need[:, k, 0], least[:, k, 0])
            left ^= taken
        return found

    def _cut(self, kind: int, items: int, need: Ints, least: Ints, /) -> list[Block]:
        """Slices of one kind that serve a set of items with the fewest devices."""
        found = []
        pairs = parts_of(self.items, with_first=True)
        policies = range(self.tables.policies)
        while items:
            part, rest = _pairs(pairs, items)
            best = np.argmin(need[part] + least[rest])
            block, items = int(part[best]), int(rest[best])
            generates, trains = int(self.generates[block]), int(self.trains[block])
            found.append(
                Block(
                    kind,
                    tuple(p for p in policies if generates >> p & 1),
                    tuple(p for p in policies if trains >> p & 1),
                )
            )
        return found

    def _need(self, generation: Floats, training: Floats, /) -> Ints:
        """Fewest devices (2^items, K, G) for all items of a set in one slice."""
        by_time = np.maximum(
            least_within(self.generation, self.tables.devices, generation)[self.generates],
            least_within(self.training, self.tables.devices, training)[self.trains],
        )
        return np.maximum(by_time, self.for_memory[..., None])

    def _least(self, need: Ints, /) -> Ints:
        """Fewest devices (2^items, K, G) of a kind for a set of items in any slices."""
        pairs = parts_of(self.items, with_first=True)
        least = np.zeros_like(need)
        ends = np.append(pairs.starts, len(pairs.part))
        for size in range(1, self.items + 1):
            of_size = np.flatnonzero(pairs.sizes == size)
            span = slice(ends[of_size[0]], ends[of_size[-1] + 1])
            devices = need[pairs.part[span]] + least[pairs.rest[span]]
            starts = pairs.starts[of_size] - span.start
            best = np.minimum.reduceat(devices, starts, axis=0)
            least[pairs.sets[of_size]] = np.minimum(best, NEVER)
        return least

    def _reached(self, least: Ints, /) -> list[np.ndarray]:
        """By kind: which sets (2^items, G) it and the kinds before it serve."""
        enough = least <= self.tables.devices[:, None]
        reached = [enough[:, 0]]
        pairs = parts_of(self.items, with_first=False)
        for k in range(1, len(self.tables.devices)):
            together = enough[pairs.part, k] & reached[-1][pairs.rest]
            sets = np.ones_like(reached[-1])
            sets[pairs.sets] = np.logical_or.reduceat(together, pairs.starts, axis=0)
            reached.append(sets)
        return reached


class Counts:
    """Tells whether given slices can keep limits, and with how many devices each."""

    def __init__(self, tables: Tables, blocks: Sequence[Block], /) -> None:
        self.tables = tables
        self.kinds = np.array([block.kind for block in blocks])
        policies = tables.policies
        generates, trains = (
            np.array([[p in chosen for p in range(policies)] for chosen in phase])
            for phase in ([b.generation for b in blocks], [b.training for b in blocks])
        )
        rows = np.arange(len(blocks))
        self.for_memory = tables.least_for_memory(generates, trains)[rows, self.kinds]
        self.generation, self.training = (
            np.array(
                [
                    table[list(chosen), block.kind].sum(axis=0)
                    for block, chosen in zip(blocks, phase, strict=True)
                ]
            )
            for table, phase in (
                (tables.generation, [b.generation for b in blocks]),
                (tables.training, [b.training for b in blocks]),
            )
        )

    def need(self, generation: Floats, training: Floats, /) -> Ints:
        """Devices (slices, G) with which each slice keeps the limits."""
        most = self.tables.devices[self.kinds]
        by_time = np.maximum(
            least_within(self.generation, most, generation),
            least_within(self.training, most, training),
        )
        return np.maximum(by_time, self.for_memory[:, None])

    def __call__(self, generation: Floats, training: Floats, /) -> np.ndarray:
        """Whether each pair of limits, in seconds, can be kept."""
        need = self.need(generation, training)
        enough = [
            need[self.kinds == k].sum(axis=0) <= devices
            for k, devices in enumerate(self.tables.devices)
        ]
        return np.logical_and.reduce(enough)


def plainer(
    tables: Tables, blocks: Sequence[Block], generation: float, training: float, /
) -> tuple[list[Block], list[int]]:
    """Give policies slices of their own where devices are left, within the same limits.

    Returns
    -------
    blocks : list of Block
    devices : list of int
        What each needs.
    """
    limits = np.array([generation]), np.array([training])
    blocks = list(blocks)
    devices = Counts(tables, blocks).need(*limits)[:, 0].tolist()
    alone = _alone(tables, *limits)
    for p in range(tables.policies):
        mine = [i for i, block in enumerate(blocks) if p in block.generation + block.training]
        if len(mine) == 1 and blocks[mine[0]][1:] == ((p,), (p,)):
            continue
        kept = [i for i in range(len(blocks)) if i not in mine]
        rest = [block for i in mine if (block := _without(blocks[i], p)) is not None]
        used = _by_kind(tables, [blocks[i] for i in kept], [devices[i] for i in kept])
        room = [k for k, most in enumerate(tables.devices) if used[k] + alone[p, k] <= most]
        if not room:
            continue
        need = Counts(tables, rest).need(*limits)[:, 0].tolist() if rest else []
        used += _by_kind(tables, rest, need)
        for k in room:
            taken = used.copy()
            taken[k] += alone[p, k]
            if (taken <= tables.devices).all():
                blocks = [*(blocks[i] for i in kept), *rest, Block(k, (p,), (p,))]
                devices = [*(devices[i] for i in kept), *need, int(alone[p, k])]
                break
    return blocks, devices


def _alone(tables: Tables, generation: Floats, training: Floats, /) -> Ints:
    """Fewest devices (P, K) on which both phases of each policy keep the limits (1,)."""
    everyone = np.eye(tables.policies, dtype=bool)
    by_time = np.maximum(
        least_within(tables.generation, tables.devices, generation),
        least_within(tables.training, tables.devices, training),
    )
    return np.maximum(by_time[..., 0], tables.least_for_memory(everyone, everyone))


def _without(block: Block, policy: int, /) -> Block | None:
    """The block without a policy; None where nothing is left."""
    generation, training = (tuple(p for p in phase if p != policy) for phase in block[1:])
    return Block(block.kind, generation, training) if generation or training else None


def _by_kind(tables: Tables, blocks: Sequence[Block], devices: Sequence[int], /) -> Ints:
    """Devices taken of each kind."""
    taken = np.zeros_like(tables.devices)
    for block, count in zip(blocks, devices, strict=True):
        taken[block.kind] += count
    return taken


def _pairs(pairs: Parts, whole: int, /) -> tuple[Ints, Ints]:
    """The parts of one set, and what each leaves; of the empty set the empty part."""
    if not whole:
        return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64)
    place = int(np.flatnonzero(pairs.sets == whole)[0])
    ends = np.append(pairs.starts, len(pairs.part))
    span = slice(ends[place], ends[place + 1])
    return pairs.part[span], pairs.rest[span]


def _members(sets: Ints, policies: int, /) -> np.ndarray:
    """Bit sets as rows of truth values."""
    return (sets[:, None] >> np.arange(policies) & 1).astype(bool)


def _sums(subsets: np.ndarray, times: Floats, /) -> Floats:
    """Times of sets of policies in turns; 0 for the empty set, also where one cannot run."""
    return np.array([times[members].sum(axis=0) for members in subsets])
