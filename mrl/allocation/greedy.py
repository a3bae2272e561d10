"""Placements of many policies: the largest first, each where it takes the fewest devices.

Given limits on both phases, a policy gets a slice of its own, joins a slice (which may grow for
it), or generates and trains on different slices. Devices of different kinds are compared by price.
Some placements are missed; how far a plan is from the best at most is in its bound.
"""

import math
from collections.abc import Iterator, Mapping
from itertools import product
from typing import NamedTuple

import numpy as np

from mrl.allocation.exact import Block
from mrl.allocation.tables import Floats, Ints, Tables, least_within

# A slice may grow by fewer devices than this to take in one more policy; where a policy needs more,
# rounding to whole devices costs a slice of its own little.
GROWTH = 8
WINDOW = np.arange(GROWTH)
# Prices of a kind that are tried, relative to its speed.
PRICES = (1.0, 0.5, 2.0)
# Kinds whose prices are varied: all combinations are tried.
MOST_PRICED = 3

# Orders of policies that are tried beside the largest first; log-normal factors on their need.
ORDERS, ORDER_SPREAD = 8, 0.4

Items = tuple[bool, bool]  # generation, training
BOTH, GENERATION, TRAINING = (True, True), (True, False), (False, True)


class Choice(NamedTuple):
    """Where items may go: the price of the devices that this takes, and the slice then."""

    price: float
    place: int
    kind: int
    devices: int


class Greedy:
    """Tells whether it finds a placement that keeps limits, and which.

    Parameters
    ----------
    tables : Tables
    price : (K,)
        Of a device of each kind.
    factors : (P,)
        Policies are placed in order of need times factor.
    for_memory : mapping
        See `least_each`.
    """

    def __init__(
        self, tables: Tables, price: Floats, factors: Floats, for_memory: Mapping[Items, Ints], /
    ) -> None:
        self.tables, self.price, self.factors = tables, price, factors
        self.for_memory = for_memory

    def __call__(self, generation: Floats, training: Floats, /) -> np.ndarray:
        """Whether each pair of limits, in seconds, is kept."""
        pairs = zip(generation, training, strict=True)
        return np.array([self._filled(g, t) is not None for g, t in pairs])

    def blocks(self, generation: float, training: float, /) -> list[Block]:
        """Slices that keep limits which were granted."""
        found = self._filled(generation, training)
        if found is None:
            raise ValueError(f"limits {generation} s and {training} s are not kept")
        return found.blocks()

    def _filled(self, generation: float, training: float, /) -> "_Filling | None":
        """Slices with room for all policies."""
        by_generation, by_training = (
            least_within(times, self.tables.devices, np.array([limit]))[..., 0]
            for times, limit in (
                (self.tables.generation, generation),
                (self.tables.training, training),
            )
        )
        by_time = {
            BOTH: np.maximum(by_generation, by_training),
            GENERATION: by_generation,
            TRAINING: by_training,
        }
        need = {items: np.maximum(by_time[items], self.for_memory[items]) for items in by_time}
        filling = _Filling(self.tables, self.price, generation, training)
        return filling if filling.fill(need, self.factors) else None


class _Filling:
    """Slices while they are filled, S of them open; windows are of 0 to `GROWTH` - 1 more devices.

    `generation` and `training` (S, GROWTH) hold seconds, `working` (S, GROWTH) and `state` and
    `memory` (S, 1) bytes; `devices` (S, GROWTH) are numbers, and `place` (S, GROWTH) is where a
    policy's table has them; `room` (K, GROWTH) tells by how many devices a slice may grow.
    """

    def __init__(self, tables: Tables, price: Floats, generation: float, training: float) -> None:
        self.tables, self.price = tables, price
        self.limits = (generation, training)
        self.free = tables.devices.tolist()
        most = 2 * tables.policies
        self.room = tables.devices[:, None] >= WINDOW
        self.kind = np.zeros(most, dtype=int)
        self.state, self.memory = np.zeros((2, most, 1))
        self.devices, self.place = np.zeros((2, most, GROWTH), dtype=int)
        self.generation, self.training, self.working = np.zeros((3, most, GROWTH))
        self.members: list[list[tuple[int, Items]]] = []

    def fill(self, need: dict[Items, Ints], factors: Floats, /) -> bool:
        """Place all policies, those that need most first; False where one finds no room."""
        cost = {items: (devices * self.price).min(axis=1) for items, devices in need.items()}
        split = cost[GENERATION] + cost[TRAINING]
        size = np.minimum(cost[BOTH], split)
        wanted = {items: devices.tolist() for items, devices in need.items()}
        for p in np.argsort(-size * factors, kind="stable").tolist():
            both = self._best(p, BOTH, wanted[BOTH][p])
            if both is not None and both.price <= split[p]:
                self._take(p, BOTH, both)
                continue
            for items in (GENERATION, TRAINING):
                choice = self._best(p, items, wanted[items][p])
                if choice is None:
                    return False
                self._take(p, items, choice)
        return True

    def blocks(self) -> list[Block]:
        """The slices as filled."""
        return [
            Block(
                int(kind),
                tuple(sorted(p for p, items in members if items[0])),
                tuple(sorted(p for p, items in members if items[1])),
            )
            for kind, members in zip(self.kind, self.members, strict=False)
        ]

    def _best(self, policy: int, items: Items, need: list[int], /) -> Choice | None:
        """The cheapest place: of slices that are there the first, or else one of its own."""
        kinds = zip(need, self.free, self.price.tolist(), strict=True)
        prices = [n * each if n <= free else math.inf for n, free, each in kinds]
        price = min(prices)
        k = prices.index(price)
        best = None
        if price < math.inf:
            best = Choice(price, len(self.members), k, need[k])
        if not self.members:
            return best
        # row by row: a slice's least growth is its first
        slices, growths = self._fits(policy, items).nonzero()
        if not len(slices):
            return best
        growing = growths * self.price[self.kind[slices]]
        first = growing.argmin()
        if growing[first] < price:
            i, more = int(slices[first]), int(growths[first])
            best = Choice(float(growing[first]), i, int(self.kind[i]), int(self.devices[i, more]))
        return best

    def _fits(self, policy: int, items: Items, /) -> np.ndarray:
        """Whether a policy's items fit into each slice, as it is and grown: (S, GROWTH)."""
        opened = slice(len(self.members))
        generation, training, working, state = self._of(policy, items, self.place[opened])
        fits = self.room[self.kind[opened]]
        # What is there keeps the limits, and so it does with more devices.
        if items[0]:
            fits &= self.generation[opened] + generation <= self.limits[0]
        if items[1]:
            fits &= self.training[opened] + training <= self.limits[1]
        states = self.state[opened] + state
        if self.tables.sharding:
            states = states / self.devices[opened]
        fits &= states + np.maximum(self.working[opened], working) <= self.memory[opened]
        return fits

    def _of(
        self, policy: int, items: Items, place: Ints, /
    ) -> tuple[Floats | float, Floats | float, Floats | float, float]:
        """Seconds of both phases, working bytes and state of a policy's items at places."""
        tables, state = self.tables, 0.0
        # Working bytes are the same on all kinds: "wrap" leaves out the kind of a place.
        generation: Floats | float = 0.0
        training: Floats | float = 0.0
        working: Floats | float = 0.0
        if items[0]:
            generation = tables.generation[policy].take(place)
            working = tables.working_generation[policy].take(place, mode="wrap")
            state += tables.state_generation[policy]
        if items[1]:
            training = tables.training[policy].take(place)
            learning = tables.working_training[policy].take(place, mode="wrap")
            working = np.maximum(working, learning)
            state += tables.state_training[policy]
        if items == BOTH:
            state -= tables.shared[policy]
        return generation, training, working, state

    def _take(self, policy: int, items: Items, choice: Choice, /) -> None:
        """Put items where they were chosen to go."""
        i, most = choice.place, self.tables.generation.shape[-1]
        if i == len(self.members):
            self.members.append([])
        self.members[i].append((policy, items))
        renewed = self.members[i][-1:]
        if choice.devices != self.devices[i, 0]:
            renewed = self.members[i]
            self.free[choice.kind] -= choice.devices - int(self.devices[i, 0])
            self.room[choice.kind] = self.free[choice.kind] >= WINDOW
            self.memory[i] = self.tables.memory[choice.kind]
            self.kind[i], self.devices[i] = choice.kind, choice.devices + WINDOW
            self.place[i] = choice.kind * most + np.minimum(self.devices[i], most) - 1
            self.generation[i] = self.training[i] = self.working[i] = self.state[i] = 0
        for member, their in renewed:
            generation, training, working, state = self._of(member, their, self.place[i])
            self.generation[i] += generation
            self.training[i] += training
            self.working[i] = np.maximum(self.working[i], working)
            self.state[i] += state


def least_each(tables: Tables, /) -> dict[Items, Ints]:
    """Fewest devices (P, K) that hold both phases, or one, of each policy."""
    everyone = np.eye(tables.policies, dtype=bool)
    return {
        items: tables.least_for_memory(everyone & items[0], everyone & items[1])
        for items in (BOTH, GENERATION, TRAINING)
    }


def orders(policies: int, /) -> Iterator[Floats]:
    """Factors on the order of policies: the largest first, then `ORDERS` near to that."""
    yield np.ones(policies)
    rng = np.random.default_rng(0)
    for _ in range(ORDERS):
        yield rng.lognormal(0, ORDER_SPREAD, policies)


def prices(tables: Tables, /) -> Iterator[Floats]:
    """Prices of a device by kind: its speed, by the policies that can run on all kinds.

    Followed by other prices where there are several kinds.
    """
    alone = tables.generation[..., 0] + tables.training[..., 0]
    best = alone.min(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        relative = np.where(np.isfinite(alone), best / alone, 0)
    speed = np.maximum(relative.mean(axis=0), 1e-3)
    priced = min(len(speed), MOST_PRICED) if len(speed) > 1 else 0
    tried = set()
    for factors in product(PRICES, repeat=priced):
        relative = np.array([*factors, *[1.0] * (len(speed) - priced)])
        if (same := tuple(relative / relative.max())) not in tried:
            tried.add(same)
            yield speed * relative
