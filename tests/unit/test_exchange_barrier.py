"""Rounds are closed by all, or go on without those that are lost."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from mrl.exchange import Admission, MemoryExchange, SQLiteExchange

LONG, SHORT = 60.0, 0.05


@pytest.fixture(params=["memory", "sqlite"])
def exchange(request, tmp_path):
    admission = Admission(policies=frozenset("abc"))
    path = tmp_path / "x.db"
    memory = request.param == "memory"
    with MemoryExchange(admission) if memory else SQLiteExchange(path, admission) as made:
        yield made


def test_all_policies_wait_for_the_last(exchange):
    order = []

    def play(policy, pause):
        time.sleep(pause)
        order.append(policy)
        exchange.close_round(policy, 0)
        absent = exchange.wait_round(0, "abc", LONG)
        return absent, list(order)

    with ThreadPoolExecutor(3) as pool:
        ends = list(pool.map(play, "abc", (0.0, 0.05, 0.2)))
    assert [absent for absent, _ in ends] == [frozenset()] * 3
    # whoever went on had seen everybody arrive
    assert all(sorted(seen) == ["a", "b", "c"] for _, seen in ends)


def test_rounds_follow_one_another_in_step(exchange):
    rounds, entered = 5, {policy: -1 for policy in "abc"}

    def play(policy):
        for round in range(rounds):
            entered[policy] = round
            exchange.close_round(policy, round)
            assert exchange.wait_round(round, "abc", LONG) == frozenset()
            assert min(entered.values()) >= round
        return True

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(play, "abc"))


def test_a_lost_peer_is_named_once_the_time_is_over(exchange):
    for policy in "ab":
        exchange.close_round(policy, 0)
    start = time.monotonic()
    assert exchange.wait_round(0, "abc", SHORT) == {"c"}
    assert time.monotonic() - start >= SHORT


def test_a_round_that_all_closed_is_not_waited_for(exchange):
    for policy in "abc":
        exchange.close_round(policy, 3)
    for round in range(4):
        assert exchange.wait_round(round, "abc", LONG) == frozenset()
    assert exchange.wait_round(4, "abc", 0) == {"a", "b", "c"}


def test_only_those_expected_are_waited_for(exchange):
    exchange.close_round("a", 0)
    assert exchange.wait_round(0, ["a"], LONG) == frozenset()
    assert exchange.wait_round(0, [], LONG) == frozenset()


def test_a_peer_that_comes_back_is_no_longer_absent(exchange):
    exchange.close_round("a", 0)
    assert exchange.wait_round(0, "ab", 0) == {"b"}
    exchange.close_round("b", 0)
    assert exchange.wait_round(0, "ab", 0) == frozenset()


def test_closing_an_earlier_round_takes_nothing_back(exchange):
    exchange.close_round("a", 2)
    exchange.close_round("a", 0)
    assert exchange.wait_round(2, "a", 0) == frozenset()


def test_a_round_that_is_run_again_is_open_again(exchange):
    exchange.close_round("a", 2)
    exchange.rollback(1)
    assert exchange.wait_round(0, "a", 0) == frozenset()
    assert exchange.wait_round(1, "a", 0) == {"a"}


def test_a_stranger_closes_nothing_and_is_counted(exchange):
    exchange.close_round("stranger", 0)
    assert exchange.wait_round(0, ["stranger"], 0) == {"stranger"}
    assert exchange.refused() == {"": {"policy": 1}}


def test_a_resume_knows_who_had_closed(exchange):
    exchange.close_round("a", 0)
    snapshot = exchange.snapshot()
    exchange.close_round("b", 0)
    exchange.restore(snapshot)
    exchange.rollback(1)
    assert exchange.wait_round(0, "a", 0) == frozenset()


@pytest.mark.parametrize("timeout", [-1.0, float("nan"), float("inf")])
def test_seconds_out_of_range_are_refused(exchange, timeout):
    with pytest.raises(ValueError, match="timeout"):
        exchange.wait_round(0, "a", timeout)


CLOSES = """
import sys, time
from mrl.exchange import SQLiteExchange
with SQLiteExchange(sys.argv[1]) as exchange:
    time.sleep(0.3)
    exchange.close_round("b", 0)
"""


def test_processes_that_share_a_file_wait_for_each_other(tmp_path):
    path = tmp_path / "x.db"
    with SQLiteExchange(path) as exchange:
        peer = subprocess.Popen([sys.executable, "-c", CLOSES, path])
        exchange.close_round("a", 0)
        assert exchange.wait_round(0, "ab", LONG) == frozenset()
        assert peer.wait() == 0
