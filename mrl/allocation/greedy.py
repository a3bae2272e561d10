"""Placements of many policies: the largest first, each where it takes the fewest devices.

Given limits on both phases, a policy gets a slice of its own, joins a slice (which may grow for
it), or generates and trains on different slices. Devices of different kinds are compared by price.
Some placements are missed; how far a plan is from the best at most is in its bound.
"""

from collections.abc import Iterator
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
    """

    def __init__(self, tables: Tables, price: Floats, factors: Floats, /) -> None:
        self.tables, self.price, self.factors = tables, price, factors
        everyone = np.eye(tables.policies, dtype=bool)
        self.for_memory = {
            items: tables.least_for_memory(everyone & items[0], everyone & items[1])
            for items in (BOTH, GENERATION, TRAINING)
        }

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

    `times` (2, S, GROWTH) holds the seconds of both phases, `working` (S, GROWTH) bytes.
    """

    def __init__(self, tables: Tables, price: Floats, generation: float, training: float) -> None:
        self.tables, self.price = tables, price
        self.limits = (generation, training)
        self.free = tables.devices.copy()
        most = 2 * tables.policies
        self.kind, self.devices = np.zeros(most, dtype=int), np.zeros(most, dtype=int)
        self.times = np.zeros((2, most, GROWTH))
        self.working, self.state = np.zeros((most, GROWTH)), np.zeros(most)
        self.members: list[list[tuple[int, Items]]] = []

    def fill(self, need: dict[Items, Ints], factors: Floats, /) -> bool:
        """Place all policies, those that need most first; False where one finds no room."""
        cost = {items: (devices * self.price).min(axis=1) for items, devices in need.items()}
        size = np.minimum(cost[BOTH], cost[GENERATION] + cost[TRAINING])
        for policy in np.argsort(-size * factors, kind="stable"):
            p = int(policy)
            both = self._best(p, BOTH, need[BOTH][p])
            if both is not None and both.price <= cost[GENERATION][p] + cost[TRAINING][p]:
                self._take(p, BOTH, both)
                continue
            for items in (GENERATION, TRAINING):
                choice = self._best(p, items, need[items][p])
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

    def _best(self, policy: int, items: Items, need: Ints, /) -> Choice | None:
        """The cheapest place: of slices that are there the first, or else one of its own."""
        own = np.where(need <= self.free, need * self.price, np.inf)
        k = int(own.argmin())
        best = None
        if np.isfinite(own[k]):
            best = Choice(float(own[k]), len(self.members), k, int(need[k]))
        places = np.arange(len(self.members))
        if not len(places):
            return best
        kind, n = self.kind[places, None], self.devices[places, None] + WINDOW
        times, working, state = self._of(policy, items, kind, n)
        fits = self.free[kind] >= WINDOW
        fits &= self.times[0, places] + times[0] <= self.limits[0]
        fits &= self.times[1, places] + times[1] <= self.limits[1]
        held = (self.state[places, None] + state) / (n if self.tables.sharding else 1)
        fits &= held + np.maximum(self.working[places], working) <= self.tables.memory[kind]
        growth = np.where(fits.any(axis=1), fits.argmax(axis=1) * self.price[kind[:, 0]], np.inf)
        place = int(growth.argmin())
        if growth[place] < (best.price if best else np.inf):
            devices = int(n[place, fits[place].argmax()])
            best = Choice(float(growth[place]), place, int(kind[place, 0]), devices)
        return best

    def _of(
        self, policy: int, items: Items, kind: Ints, n: Ints, /
    ) -> tuple[list[Floats | float], Floats | float, float]:
        """Times, working bytes and state of a policy's items on slices of n devices of a kind."""
        tables, state = self.tables, 0.0
        n = np.minimum(n, tables.generation.shape[-1]) - 1
        times: list[Floats | float] = [0.0, 0.0]
        working: Floats | float = 0.0
        if items[0]:
            times[0] = tables.generation[policy][kind, n]
            working = tables.working_generation[policy][n]
            state += tables.state_generation[policy]
        if items[1]:
            times[1] = tables.training[policy][kind, n]
            working = np.maximum(working, tables.working_training[policy][n])
            state += tables.state_training[policy]
        if items == BOTH:
            state -= tables.shared[policy]
        return times, working, state

    def _take(self, policy: int, items: Items, choice: Choice, /) -> None:
        """Put items where they were chosen to go."""
        place = choice.place
        self.free[choice.kind] -= choice.devices - self.devices[place]
        if place == len(self.members):
            self.members.append([])
        self.members[place].append((policy, items))
        renewed = self.members[place][-1:]
        if choice.devices != self.devices[place]:
            renewed = self.members[place]
            self.kind[place], self.devices[place] = choice.kind, choice.devices
            self.times[:, place] = self.working[place] = self.state[place] = 0
        for member, their in renewed:
            times, working, state = self._of(
                member, their, self.kind[place], self.devices[place] + WINDOW
            )
            self.times[0, place] += times[0]
            self.times[1, place] += times[1]
            self.working[place] = np.maximum(self.working[place], working)
            self.state[place] += state


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
