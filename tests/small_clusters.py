"""Small random planning problems, and their best placement by trying all."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np

from mrl.allocation import Cost, Demand, Inventory, Kind, Node, Phase
from mrl.allocation.placement import demanded_memory


def problem(
    rng: np.random.Generator,
    policies: int,
    devices: int,
    kinds: int = 1,
    memory: float = 100.0,
    rows: int = 1,
) -> tuple[Inventory, list[Demand]]:
    """A cluster of `devices` devices of each kind, and policies of very different sizes.

    Rollouts are from 8 to 1024, times `rows`.
    """
    of = [Kind(f"kind-{k}", float(rng.uniform(0.5, 1) * memory)) for k in range(kinds)]
    speed = {kind.name: float(rng.uniform(0.3, 1)) for kind in of}
    nodes = [
        Node(f"{kind.name}-node-{i}", kind.name, min(8, devices - 8 * i))
        for kind in of
        for i in range(-(-devices // 8))
    ]

    def phase(size: float, state: float, row: float) -> Phase:
        batch, count = int(rng.choice([4, 16, 512])), int(rng.choice([8, 16, 64, 256, 1024]))
        once, each, of_row = rng.uniform([0, 0, 0.01], [0.3, 2, row]) * size
        costs = {name: Cost(once / s, each, of_row / s) for name, s in speed.items()}
        return Phase(count * rows, batch, costs, state * size, size * rng.uniform(0, 0.1))

    demands = []
    for p in range(policies):
        size = float(rng.lognormal(0, 1))
        demands.append(Demand(f"p{p}", phase(size, 2, 0.1), phase(size, 8, 0.15), 2 * size))
    return Inventory(tuple(of), tuple(nodes), bool(rng.random() < 0.8)), demands


def best_round(inventory: Inventory, demands: Sequence[Demand], /) -> float:
    """The shortest round of all placements, in seconds; infinite where there is none."""
    counts = {kind.name: inventory.count(kind.name) for kind in inventory.kinds}
    by_name = {demand.name: demand for demand in demands}
    items = [(demand.name, phase) for demand in demands for phase in ("generation", "training")]
    known: dict[Any, list[tuple[str, int, float, float]]] = {}

    def options(block: tuple[tuple[str, str], ...]) -> list[tuple[str, int, float, float]]:
        """Kind, devices and both times of every slice that holds a block."""
        if block in known:
            return known[block]
        names = {phase: [n for n, p in block if p == phase] for phase in ("generation", "training")}
        members = [demand for demand in demands if demand.name in {name for name, _ in block}]
        known[block] = []
        for kind in inventory.kinds:
            for n in range(1, counts[kind.name] + 1):
                state, working = demanded_memory(members, names["generation"], names["training"], n)
                if state / (n if inventory.sharding else 1) + working <= kind.memory:
                    times = [
                        sum(getattr(by_name[name], phase).seconds(kind.name, n) for name in chosen)
                        for phase, chosen in names.items()
                    ]
                    known[block].append((kind.name, n, *times))
        return known[block]

    best = np.inf
    for blocks in _partitions(items):
        if len(blocks) > sum(counts.values()):
            continue
        for chosen in product(*(options(tuple(block)) for block in blocks)):
            round_ = max(one[2] for one in chosen) + max(one[3] for one in chosen)
            if round_ < best and all(
                sum(n for kind, n, *_ in chosen if kind == name) <= most
                for name, most in counts.items()
            ):
                best = round_
    return float(best)


def _partitions(items: Sequence[Any], /) -> Iterator[list[list[Any]]]:
    """All ways to put items into blocks."""
    if not items:
        yield []
        return
    first, *rest = items
    for blocks in _partitions(rest):
        yield [[first], *blocks]
        for i, block in enumerate(blocks):
            yield [*blocks[:i], [first, *block], *blocks[i + 1 :]]
