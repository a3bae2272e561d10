"""The planner: near the best of all placements, within memory, and clear about what is short."""

from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
from small_clusters import best_round, problem

from mrl.allocation import Cost, Demand, Inventory, Kind, Node, Phase, Placement, plan
from mrl.allocation.bound import least_phases
from mrl.allocation.plan import TOLERANCE, packed
from mrl.allocation.tables import Tables
from mrl.errors import InputError

GIB = 2**30


def one_kind(devices: int, memory: float = 100.0, per_node: int = 8) -> Inventory:
    nodes = [
        Node(f"node-{i}", "gpu", min(per_node, devices - per_node * i))
        for i in range(-(-devices // per_node))
    ]
    return Inventory((Kind("gpu", memory),), tuple(nodes))


def demand(name: str, generate: float, train: float, **changes: object) -> Demand:
    """Times that divide evenly over up to 1000 devices."""

    def phase(seconds: float) -> Phase:
        return Phase(1000, 1000, {"gpu": Cost(0.0, 0.0, seconds / 1000)}, 1.0, 0.0)

    return replace(Demand(name, phase(generate), phase(train), 1.0), **changes)


def check(found: Placement) -> None:
    """What holds for every plan."""
    devices = list(chain.from_iterable(part.devices for part in found.slices))
    assert len(set(devices)) == len(devices)
    existing = {node.name: node for node in found.inventory.nodes}
    for part in found.slices:
        assert {existing[name].kind for name, _ in part.devices} == {part.kind}
        assert all(0 <= number < existing[name].devices for name, number in part.devices)
        memory = found.inventory.kind(part.kind).memory
        assert found.memory(part) <= memory * (1 + 1e-12)
        assert found.sharded(part) == (found.memory(part, sharded=False) > memory)
    for phase in ("generation", "training"):
        served = list(chain.from_iterable(getattr(part, phase) for part in found.slices))
        assert sorted(served) == sorted(one.name for one in found.demands)
    assert found.bound <= found.round_seconds * (1 + 1e-9)
    assert 0 < found.utilisation <= 1 + 1e-9


@pytest.mark.parametrize("seed", range(120))
def test_a_plan_is_within_one_per_cent_of_the_best_placement(seed):
    rng = np.random.default_rng(seed)
    policies = int(rng.integers(1, 4))
    kinds = int(rng.integers(1, 3)) if policies < 3 else 1
    devices, memory = int(rng.integers(1, 6)), float(rng.choice([12, 30, 100]))
    inventory, demands = problem(rng, policies, devices, kinds, memory)
    best = best_round(inventory, demands)
    if np.isinf(best):
        with pytest.raises(InputError, match="fit"):
            plan(inventory, demands)
        return
    found = plan(inventory, demands)
    check(found)
    assert best * (1 - 1e-9) <= found.round_seconds <= best * (1 + TOLERANCE)
    assert found.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize(("policies", "devices", "kinds"), [(8, 16, 1), (12, 5, 2), (30, 40, 1)])
def test_many_policies_are_planned_within_memory(policies, devices, kinds):
    rng = np.random.default_rng(policies)
    inventory, demands = problem(rng, policies, devices, kinds, 400.0)
    found = plan(inventory, demands)
    check(found)
    assert found.round_seconds < 1.6 * found.bound


@pytest.mark.parametrize("seed", range(15))
def test_packing_finds_what_the_exact_search_finds_to_a_fifth(seed):
    # Packing serves more policies than the exact search can; here both can.
    rng = np.random.default_rng(seed)
    inventory, demands = problem(rng, 4, int(rng.integers(2, 13)), 1, 200.0)
    best = plan(inventory, demands)
    tables = Tables.of(inventory, demands)
    found = packed(tables, least_phases(tables))
    assert found is not None
    assert best.bound * (1 - 1e-9) <= sum(found.limits[:2]) < 1.2 * best.round_seconds


def test_plans_are_deterministic():
    inventory, demands = problem(np.random.default_rng(3), 7, 9, 2)
    assert plan(inventory, demands) == plan(inventory, demands)


def test_like_policies_get_like_slices_of_their_own():
    found = plan(one_kind(8), [demand("a", 10, 30), demand("b", 10, 30)])
    assert [found.mode(name) for name in "ab"] == ["colocated", "colocated"]
    assert [len(part.devices) for part in found.slices] == [4, 4]
    assert found.round_seconds == pytest.approx(10)
    assert found.utilisation == pytest.approx(1)


def test_policies_take_turns_where_devices_are_few():
    found = plan(one_kind(1), [demand(name, 1, 2) for name in "abc"])
    assert {found.mode(name) for name in "abc"} == {"time-shared"}
    assert found.round_seconds == pytest.approx(9)


def test_a_policy_is_split_where_one_kind_can_only_generate():
    small, large = Kind("small", 3.0), Kind("large", 20.0)
    inventory = Inventory((small, large), (Node("s", "small", 8), Node("l", "large", 1)), False)

    def phase(seconds: float, state: float) -> Phase:
        cost = Cost(0.0, 0.0, seconds)
        return Phase(8, 8, {"small": cost, "large": cost}, state, 0.0)

    found = plan(inventory, [Demand("a", phase(1, 2), phase(1, 10), 2)])
    assert found.mode("a") == "split"
    assert found.slice_of("a", "generation").kind == "small"
    assert found.slice_of("a", "training").kind == "large"
    assert found.round_seconds == pytest.approx(1 + 8)


def test_states_are_divided_only_where_they_do_not_fit_whole():
    phase = demand("a", 1, 1).training
    large = demand("a", 10, 10, training=replace(phase, state=150.0))
    for memory, sharded in ((100.0, True), (200.0, False)):
        found = plan(one_kind(4, memory=memory), [large])
        assert [found.sharded(part) for part in found.slices] == [sharded]


def test_a_slice_stays_in_one_node_where_one_has_room():
    found = plan(one_kind(16), [demand("a", 6, 6), demand("b", 2, 2), demand("c", 8, 8)])
    assert len(found.slices) > 1
    assert found.unused == 0
    assert all(len({device.node for device in part.devices}) == 1 for part in found.slices)


def test_a_policy_too_large_is_named_with_what_it_needs_and_what_there_is():
    phase = replace(demand("big", 1, 1).training, state=120.0 * GIB, row_bytes=GIB / 1000)
    with pytest.raises(InputError) as error:
        plan(
            one_kind(2, memory=40 * GIB),
            [demand("small", 1, 1), demand("big", 1, 1, training=phase)],
        )
    message = str(error.value)
    assert "policy 'big' does not fit: training needs 60.50 GiB on each device" in message
    assert "120.00 GiB of weights and optimizer state divided among all 2 devices" in message
    assert "the largest available is 40.00 GiB" in message
    assert "batch_tokens" in message


@pytest.mark.parametrize(("policies", "found"), [(3, "no placement holds"), (6, "was found")])
def test_policies_that_fit_only_alone_are_refused_together(policies, found):
    phase = replace(demand("", 1, 1).training, state=60.0 * GIB)
    demands = [demand(f"p{i}", 1, 1, training=phase) for i in range(policies)]
    with pytest.raises(InputError, match=found) as error:
        plan(one_kind(2, memory=80 * GIB), demands)
    assert f"need {60 * policies:.2f} GiB in all" in str(error.value)
    assert "the devices have 160.00 GiB" in str(error.value)


def test_a_kind_without_costs_is_not_used():
    other = Kind("other", 100.0)
    nodes = (Node("o", "other", 8), Node("g", "gpu", 1))
    inventory = Inventory((other, Kind("gpu", 100.0)), nodes)
    assert {part.kind for part in plan(inventory, [demand("a", 1, 1)]).slices} == {"gpu"}
    with pytest.raises(InputError, match="costs on none of the kinds"):
        plan(Inventory((other,), nodes[:1]), [demand("a", 1, 1)])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plan(one_kind(1), []), "at least one"),
        (lambda: plan(one_kind(1), [demand("a", 1, 1)] * 2), "different names"),
        (lambda: demand("a", 0, 1), "some positive"),
        (lambda: demand("a", -1, 1), "none negative"),
        (lambda: Phase(0, 1, {}, 0.0, 0.0), "rows=0"),
        (lambda: Inventory((Kind("gpu", 1.0),), ()), "at least one"),
        (lambda: Inventory((Kind("gpu", 1.0),), (Node("n", "cpu", 1),)), "\\['cpu'\\]"),
        (lambda: Inventory((Kind("gpu", 1.0),), (Node("n", "gpu", 0),)), "no devices"),
        (lambda: Inventory((Kind("gpu", 1.0),), (Node("n", "gpu", 1),) * 2), "different names"),
    ],
)
def test_problems_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
