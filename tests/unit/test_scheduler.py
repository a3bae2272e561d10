"""Gangs: all or nothing, in turn, none starved, whatever fails and returns."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_clusters import problem

from mrl.allocation import Faults, Gang, Outcome, Scheduler, Workload, simulate, workloads_of
from mrl.allocation.plan import plan

EXAMPLES = settings(max_examples=700, deadline=None, derandomize=True)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Workload], dict[str, dict[str, int]], int]:
    """Nodes of two pools, policies up to the size of the cluster (one needs all), a seed."""
    pools = draw(st.sampled_from([["a"], ["a", "b"]]))
    nodes = {
        f"n{i}": {pool: draw(st.integers(1, 4)) for pool in pools}
        for i in range(draw(st.integers(1, 6)))
    }
    total = Counter()
    for node in nodes.values():
        total.update(node)

    def parts(whole: bool) -> dict[str, int]:
        chosen = pools if whole else draw(st.sampled_from([pools[:1], pools[-1:], pools]))
        return {
            pool: total[pool] if whole else draw(st.integers(1, total[pool])) for pool in chosen
        }

    workloads = [
        Workload(
            f"p{i}",
            parts(i == 0),
            parts(draw(st.booleans()) and i == 0),
            draw(st.floats(0.5, 20)),
            draw(st.floats(0.5, 20)),
        )
        for i in range(draw(st.integers(1, 6)))
    ]
    return workloads, nodes, draw(st.integers(0, 2**32 - 1))


def replay(
    outcome: Outcome,
    workloads: list[Workload],
    nodes: dict[str, dict[str, int]],
    patience: int,
) -> None:
    """Check a log against the laws, with books of its own."""
    parts = {f"{w.name}/{p}": getattr(w, p) for w in workloads for p in ("generation", "training")}
    free = {(node, pool): n for node, of in nodes.items() for pool, n in of.items()}
    live, running, turns, passed = set(nodes), {}, {}, {}
    finished: Counter[str] = Counter()

    def could(name: str) -> bool:
        return all(
            sum(nodes[node].get(pool, 0) for node in live) >= n for pool, n in parts[name].items()
        )

    for number, event in enumerate(outcome.log):
        name = event.name
        if event.what == "submit":
            turns[name], passed[name] = number, 0
        elif event.what == "start":
            given = Counter()
            for (node, pool), n in event.devices.items():
                assert node in live
                free[node, pool] -= n
                assert free[node, pool] >= 0
                given[pool] += n
            assert given == parts[name], "a gang starts whole"
            running[name] = event
            del passed[name]
            for older in passed:
                if turns[older] < turns[name] and could(older):
                    passed[older] += 1
                    assert passed[older] <= patience
            policy, phase = name.split("/")
            if phase == "training":
                rounds = {finished[f"{w.name}/generation"] for w in workloads}
                assert rounds == {finished[name] + 1}, "all have generated before any trains"
        elif event.what == "finish":
            finished[name] += 1
            for place, n in running.pop(name).devices.items():
                free[place] += n
            del turns[name]
        elif event.what == "lost":
            started = running.pop(name)
            for place, n in started.devices.items():
                free[place] += n
            assert not {node for node, _ in started.devices} <= live
            passed[name] = 0
        elif event.what == "leave":
            live.remove(name)
        else:
            live.add(name)
        last = number + 1 == len(outcome.log) or outcome.log[number + 1].time > event.time
        waiting = [name for name in sorted(passed, key=turns.__getitem__) if could(name)]
        if last and waiting:
            idle = Counter()
            for (node, pool), n in free.items():
                idle[pool] += n if node in live else 0
            first = waiting[0]
            assert any(idle[p] < n for p, n in parts[first].items()), (
                "the oldest waits for a reason"
            )


@pytest.mark.slow
@EXAMPLES
@given(clusters(), st.integers(0, 5))
def test_gangs_start_whole_in_turn_and_all_rounds_end(cluster, patience):
    workloads, nodes, seed = cluster
    rng = np.random.default_rng(seed)
    outcome = simulate(workloads, nodes, rng, rounds=3, patience=patience)
    assert outcome.rounds == 3
    assert not outcome.parked
    assert 0 < outcome.utilisation <= 1 + 1e-9
    replay(outcome, workloads, nodes, patience)


@pytest.mark.slow
@EXAMPLES
@given(clusters(), st.integers(0, 5))
def test_a_gang_waits_no_longer_than_the_bound(cluster, patience):
    workloads, nodes, seed = cluster
    rng = np.random.default_rng(seed)
    outcome = simulate(workloads, nodes, rng, rounds=2, patience=patience)
    begun, longest = {}, 0.0
    for event in outcome.log:
        if event.what == "start":
            begun[event.name] = event.time
        elif event.what == "finish":
            longest = max(longest, event.time - begun[event.name])
    ahead = len(workloads) - 1
    assert outcome.longest_wait <= (ahead + 1) * (patience + 1) * longest * (1 + 1e-9)


@pytest.mark.slow
@EXAMPLES
@given(clusters(), st.integers(0, 3), st.sampled_from([0.3, 0.7, 1.0]))
def test_storms_and_returns_end_in_no_deadlock(cluster, patience, share):
    workloads, nodes, seed = cluster
    faults = Faults(between=60, repair=5, storms=15, storm_share=share, until=200)
    rng = np.random.default_rng(seed)
    outcome = simulate(workloads, nodes, rng, rounds=8, faults=faults, patience=patience)
    assert outcome.rounds == 8
    replay(outcome, workloads, nodes, patience)


def test_the_same_seed_gives_the_same_simulation():
    work = [
        Workload("a", {"x": 2}, {"x": 1}, 1.0, 2.0),
        Workload("b", {"x": 1}, {"x": 2}, 2.0, 1.0),
    ]
    nodes = {"n": {"x": 2}, "m": {"x": 1}}
    faults = Faults(between=5, repair=1, until=50)
    first, second = (
        simulate(work, nodes, np.random.default_rng(1), rounds=9, faults=faults) for _ in range(2)
    )
    assert first == second


def test_a_plan_without_faults_runs_as_long_as_it_says():
    inventory, demands = problem(np.random.default_rng(5), 4, 6)
    placement = plan(inventory, demands)
    workloads, nodes = workloads_of(placement)
    rng = np.random.default_rng(0)
    outcome = simulate(workloads, nodes, rng, rounds=3, spread=0.0)
    assert outcome.seconds == pytest.approx(3 * placement.round_seconds)


def test_a_gang_for_all_devices_is_not_starved_by_small_ones():
    scheduler = Scheduler({"n": {"x": 2}}, patience=1)
    assert [s.gang.name for s in scheduler.submit([Gang("a", {"x": 1})])] == ["a"]
    assert not scheduler.submit([Gang("all", {"x": 2})])
    assert [s.gang.name for s in scheduler.submit([Gang("b", {"x": 1})])] == ["b"]
    assert not scheduler.submit([Gang("c", {"x": 1})])
    assert not scheduler.finish("a")
    assert [s.gang.name for s in scheduler.finish("b")] == ["all"]
    assert scheduler.waiting == ("c",)


def test_a_gang_too_large_for_the_live_devices_is_parked_and_keeps_its_turn():
    scheduler = Scheduler({"n": {"x": 2}, "m": {"x": 2}}, patience=0)
    scheduler.submit([Gang("all", {"x": 4})])
    lost, starts = scheduler.lose("m")
    assert [gang.name for gang in lost] == ["all"]
    assert not starts
    assert scheduler.parked == ("all",)
    assert [s.gang.name for s in scheduler.submit([Gang("b", {"x": 2})])] == ["b"]
    assert not scheduler.submit([Gang("c", {"x": 2})])
    assert not scheduler.join("m", {"x": 2}), "it is its turn again, so c does not pass"
    assert [s.gang.name for s in scheduler.finish("b")] == ["all"]


def test_an_impossible_demand_ends_the_simulation_and_is_named():
    work = [Workload("a", {"x": 1}, {"x": 5}, 1.0, 1.0)]
    outcome = simulate(work, {"n": {"x": 2}}, np.random.default_rng(0), rounds=2)
    assert outcome.rounds == 0
    assert outcome.parked == ("a/training",)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: s.submit([Gang("a", {"x": 1})]), "waits or runs already"),
        (lambda s: s.submit([Gang("b", {"x": 1}), Gang("b", {"x": 1})]), "waits or runs already"),
        (lambda s: s.submit([Gang("b", {"x": 0})]), "at least one device"),
        (lambda s: s.submit([Gang("b", {})]), "at least one device"),
        (lambda s: s.finish("b"), "does not run"),
        (lambda s: s.lose("m"), "is not live"),
        (lambda s: s.join("n", {"x": 1}), "is live already"),
        (lambda s: Scheduler({}, patience=-1), "expected a number >= 0"),
    ],
)
def test_events_that_cannot_be_are_refused_and_change_nothing(call, message):
    scheduler = Scheduler({"n": {"x": 1}})
    scheduler.submit([Gang("a", {"x": 1})])
    with pytest.raises(ValueError, match=message):
        call(scheduler)
    assert scheduler.waiting == ()
    assert list(scheduler.running) == ["a"]
    assert scheduler.free == {"x": 0}
