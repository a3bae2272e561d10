"""The planner: which devices serve generation, training or both for each policy.

`plan` is a pure function of inventory and demands. It minimises the time of a round, which all
policies generate before any trains: for up to five policies over all placements, to one per cent;
for more by a greedy packing. Every plan carries a bound that no placement undercuts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from mrl.allocation.bound import least_phases
from mrl.allocation.exact import MOST_POLICIES, Block, Counts, Exact, plainer
from mrl.allocation.greedy import Greedy, least_each, orders, prices
from mrl.allocation.placement import Placement, Slice
from mrl.allocation.problem import Demand, Device, Inventory
from mrl.allocation.search import Limits, Oracle, shortest
from mrl.allocation.shortage import check_each, explain_all
from mrl.allocation.tables import Floats, Tables

TOLERANCE = 0.01
COARSE = 0.03  # a packing takes longer to try, and is bettered afterwards
INTERVALS = 16


def plan(inventory: Inventory, demands: Sequence[Demand], /) -> Placement:
    """Place policies so that a round is as short as possible.

    Parameters
    ----------
    inventory : Inventory
    demands : sequence of Demand
        One a policy, of different names.

    Returns
    -------
    Placement
        With its `bound`: no placement has a shorter round. With up to five policies the round is
        within 1% of the shortest.

    Raises
    ------
    InputError
        If the policies do not fit, naming what is short; for more than five policies, also if
        none of the placements that are tried holds them.
    ValueError
        If there is no demand, or two of one name.
    """
    names = [demand.name for demand in demands]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"demands of {names}; expected at least one, of different names")
    tables = Tables.of(inventory, demands)
    check_each(inventory, demands, tables)
    search = exhaustive if len(demands) <= MOST_POLICIES else packed
    least = least_phases(tables)
    found = search(tables, least)
    if found is None:
        raise explain_all(inventory, demands, proven=search is exhaustive)
    # These slices with the best number of devices for each, then fewer that are shared.
    counts = Counts(tables, found.blocks)
    limits = shortest(counts, least, tolerance=TOLERANCE / 10, intervals=INTERVALS)
    blocks, devices = plainer(tables, found.blocks, limits.generation, limits.training)
    slices = _with_devices(inventory, demands, blocks, devices)
    return Placement(inventory, tuple(demands), slices, found.bound)


class Found(NamedTuple):
    """Slices that a search has found.

    Attributes
    ----------
    blocks : list of Block
    limits : Limits
        Which they keep.
    bound : float
        No placement has a round shorter than this, in seconds.
    """

    blocks: list[Block]
    limits: Limits
    bound: float


def exhaustive(tables: Tables, least: tuple[float, float], /) -> Found | None:
    """The best of all placements; None where there is none."""
    oracle = Exact(tables)
    if not _ever(oracle):
        return None
    limits = shortest(oracle, least, tolerance=TOLERANCE, intervals=INTERVALS)
    return Found(oracle.blocks(limits.generation, limits.training), limits, limits.bound)


def packed(tables: Tables, least: tuple[float, float], /) -> Found | None:
    """The best packing over prices, then orders; None where none has room for all.

    A price by which less of both limits is kept is searched in full; other orders are then asked
    for less of both, as long as they keep it.
    """
    first, *others = orders(tables.policies)
    for_memory = least_each(tables)
    best: tuple[Greedy, Floats] | None = None
    for price in prices(tables):
        oracle = Greedy(tables, price, first, for_memory)
        if _keeps(oracle, best[1]) if best else _ever(oracle):
            found = shortest(oracle, least, tolerance=COARSE, intervals=INTERVALS // 4)
            if best is None or sum(found[:2]) < best[1].sum():
                best = oracle, np.array(found[:2])
    if best is None:
        return None
    oracle, limits = best
    for factors in others:
        other = Greedy(tables, oracle.price, factors, for_memory)
        while _keeps(other, limits):
            oracle, limits = other, limits * (1 - TOLERANCE / 2)
    generation, training = limits.tolist()
    bound = sum(least)
    return Found(oracle.blocks(generation, training), Limits(generation, training, bound), bound)


def _keeps(oracle: Oracle, limits: Floats, /) -> bool:
    """Whether somewhat less than the limits of both phases is kept."""
    return bool(oracle(*np.split(limits * (1 - TOLERANCE / 2), 2))[0])


def _ever(oracle: Oracle, /) -> bool:
    """Whether all policies fit, however long a round takes."""
    return bool(oracle(np.array([np.inf]), np.array([np.inf]))[0])


def _with_devices(
    inventory: Inventory, demands: Sequence[Demand], blocks: Sequence[Block], counts: Sequence[int]
) -> tuple[Slice, ...]:
    """Name devices: large slices first, each in one node where one has room."""
    free = {node.name: list(range(node.devices)) for node in inventory.nodes}
    kinds = [kind.name for kind in inventory.kinds]
    slices: dict[int, Slice] = {}
    for i in sorted(range(len(blocks)), key=lambda i: (-counts[i], i)):
        kind = kinds[blocks[i].kind]
        nodes = [node.name for node in inventory.nodes if node.kind == kind]
        devices = tuple(_pick(free, nodes, counts[i]))
        generation, training = (
            tuple(demands[p].name for p in phase)
            for phase in (blocks[i].generation, blocks[i].training)
        )
        slices[i] = Slice(kind, devices, generation, training)
    order = sorted(slices, key=lambda i: min(blocks[i].generation + blocks[i].training))
    return tuple(slices[i] for i in order)


def _pick(free: dict[str, list[int]], nodes: Sequence[str], count: int, /) -> list[Device]:
    """Take devices from the node where fewest are left over, or else from the emptiest nodes."""
    whole = [name for name in nodes if len(free[name]) >= count]
    if whole:
        chosen = [min(whole, key=lambda name: len(free[name]))]
    else:
        chosen = sorted(nodes, key=lambda name: -len(free[name]))
    taken: list[Device] = []
    for name in chosen:
        part = free[name][: count - len(taken)]
        del free[name][: len(part)]
        taken += [Device(name, number) for number in part]
        if len(taken) == count:
            break
    return taken
