"""The rules of delivery, held by every exchange."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from mrl.exchange import (
    Exchange,
    ExchangeError,
    GroupStats,
    MemoryExchange,
    RolloutRecord,
    SQLiteExchange,
    SuccessRecord,
    TrafficRow,
    decode,
)
from mrl.exchange.framing import seal


@pytest.fixture(params=["memory", "sqlite"])
def exchange(request, tmp_path):
    made = MemoryExchange() if request.param == "memory" else SQLiteExchange(tmp_path / "x.db")
    with made:
        yield made


def rollout(policy="b", version=0, index=0, prompt="p", reward=0.0, text=b"text"):
    return RolloutRecord(
        prompt, policy, version, index, text, [1, 2], [-0.1, -0.2], True, reward, "eos", "f"
    )


def success(policy="b", version=0, index=0, prompt="p"):
    return SuccessRecord(prompt, policy, version, index, b"text", "exact", True)


def stats(policy="b", version=0, prompt="p"):
    return GroupStats(prompt, policy, version, n=1, mean=1.0, M2=0.0, min=1.0, max=1.0)


def ask(exchange: Exchange, receiver="a", prompts=("p",), needs=("rollout",), round=0, **options):
    return exchange.collect(receiver, prompts, frozenset(needs), round=round, **options)


def test_a_receiver_gets_what_its_peers_published(exchange):
    theirs = [rollout("b", index=0), rollout("c", index=0), rollout("b", index=1)]
    assert exchange.publish([*theirs, rollout("a")]) == 4
    assert ask(exchange) == [theirs[0], theirs[2], theirs[1]]


def test_only_the_kinds_and_prompts_asked_for_are_delivered(exchange):
    exchange.publish([rollout(), stats(), success(), stats(prompt="q")])
    assert ask(exchange, needs=("group_stats",)) == [stats()]
    assert ask(exchange, needs=()) == []
    assert ask(exchange, prompts=("r",)) == []
    assert ask(exchange, needs=("rollout", "success")) == [rollout(), success()]


def test_records_come_in_the_order_of_the_prompts_asked_for(exchange):
    exchange.publish([rollout(prompt=prompt) for prompt in "pqr"])
    delivered = ask(exchange, prompts=["r", "p", "q", "r"])
    assert [record.prompt_id for record in delivered] == ["r", "p", "q"]


def test_records_of_a_group_come_by_position_before_kind(exchange):
    group = [stats(), rollout(index=0), success(index=0), rollout(index=1), success(index=1)]
    exchange.publish(reversed(group))
    assert ask(exchange, needs=("rollout", "success", "group_stats")) == group


def test_a_record_is_delivered_once_a_round(exchange):
    exchange.publish([rollout(index=0)])
    assert len(ask(exchange)) == 1
    assert ask(exchange) == []
    exchange.publish([rollout(index=1)])
    assert ask(exchange) == [rollout(index=1)]
    assert len(ask(exchange, receiver="c")) == 2
    assert len(ask(exchange, round=1, max_staleness=1)) == 2


def test_publishing_again_changes_nothing(exchange):
    assert exchange.publish([rollout(), rollout()]) == 1
    assert exchange.publish([rollout()]) == 0
    assert ask(exchange) == [rollout()]
    assert exchange.traffic()[-1].records == 1
    assert exchange.refused() == {}


def test_the_first_of_two_conflicting_records_wins(exchange):
    assert exchange.publish([rollout(text=b"first"), rollout(text=b"second")]) == 1
    exchange.publish([rollout(text=b"third")])
    assert [record.text for record in ask(exchange)] == [b"first"]
    assert exchange.refused() == {"b": {"conflict": 2}}


def test_only_the_newest_version_of_a_peer_within_the_bound_is_delivered(exchange):
    exchange.publish([rollout("b", version) for version in (0, 1, 4)])
    exchange.publish([rollout("c", 2)])
    assert ask(exchange, round=3) == []
    assert ask(exchange, round=3, max_staleness=1) == [rollout("c", 2)]
    assert ask(exchange, "d", round=3, max_staleness=2) == [rollout("b", 1), rollout("c", 2)]


def test_an_older_version_never_stands_in_once_the_newest_was_delivered(exchange):
    exchange.publish([rollout(version=0), rollout(version=1)])
    assert ask(exchange, round=1, max_staleness=1) == [rollout(version=1)]
    assert ask(exchange, round=1, max_staleness=1) == []


def test_a_limit_opens_the_first_positions_whatever_their_rewards(exchange):
    exchange.publish([rollout(index=i, reward=float(i)) for i in (3, 1, 0, 2)])
    assert [record.index for record in ask(exchange, limit=2)] == [0, 1]


def test_a_limit_holds_for_successes_by_their_position_in_the_group(exchange):
    exchange.publish([success(index=1), success(index=5), stats()])
    assert ask(exchange, needs=("success",), limit=2) == [success(index=1)]
    assert ask(exchange, needs=("group_stats",), limit=1) == [stats()]


def test_a_limit_does_not_bring_back_an_older_version(exchange):
    exchange.publish([success(version=0, index=0), success(version=1, index=5)])
    assert ask(exchange, needs=("success",), round=1, max_staleness=1, limit=2) == []


def test_limits_can_differ_by_peer(exchange):
    for peer in "bcd":
        exchange.publish([rollout(peer, index=i) for i in range(3)] + [stats(peer)])
    delivered = ask(exchange, needs=("rollout", "group_stats"), limit={"b": 1, "c": 0})
    assert [record.policy_id for record in delivered] == ["b", "b", "d", "d", "d", "d"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": "p"}, "one string"),
        ({"needs": ["advice"]}, "advice"),
        ({"limit": -1}, "limit=-1"),
        ({"limit": {"b": 1.5}}, "limit=1.5"),
        ({"max_staleness": -1}, "max_staleness=-1"),
        ({"round": -1}, "round=-1"),
        ({"round": 2**63}, "round"),
        ({"receiver": ""}, "receiver"),
    ],
)
def test_a_wrong_request_says_what_is_wrong(exchange, options, message):
    with pytest.raises(ValueError, match=message):
        ask(exchange, **options)


def test_publishing_bytes_as_records_is_an_error_of_the_caller(exchange):
    with pytest.raises(TypeError, match="publish_encoded"):
        exchange.publish([rollout(), rollout(index=1).encode()])
    assert ask(exchange) == []


def test_bad_bytes_are_counted_by_reason_and_the_rest_is_stored(exchange):
    good = rollout().encode()
    assert exchange.publish_encoded([good[:-1], b"", good, good + b"x", b"x" * 50]) == 1
    assert exchange.refused() == {"": {"magic": 1, "trailing": 1, "truncated": 2}}
    assert ask(exchange) == [rollout()]


def test_dropped_versions_are_gone_and_their_latecomers_refused(exchange):
    exchange.publish([rollout(version=0), rollout(version=1)])
    exchange.drop_before(1)
    assert ask(exchange, round=0, max_staleness=0) == []
    assert exchange.publish([rollout(version=0, index=1)]) == 0
    assert exchange.refused() == {"b": {"expired": 1}}
    assert ask(exchange, round=1, max_staleness=1) == [rollout(version=1)]


def test_dropping_less_than_before_opens_nothing(exchange):
    exchange.drop_before(2)
    exchange.drop_before(1)
    assert exchange.publish([rollout(version=1)]) == 0


def test_rolling_back_forgets_the_rounds_that_are_run_again(exchange):
    for version in range(3):
        exchange.publish([rollout(version=version)])
        ask(exchange, round=version)
    before = exchange.traffic(0)
    exchange.drop_before(2)
    exchange.rollback(1)
    assert exchange.traffic() == before
    assert exchange.publish([rollout(version=1, text=b"again")]) == 1
    assert [record.text for record in ask(exchange, round=1)] == [b"again"]
    assert exchange.refused() == {}


def test_a_round_that_is_run_again_delivers_again(exchange):
    exchange.publish([rollout(version=0), rollout(version=1)])
    ask(exchange, round=0)
    ask(exchange, round=1)
    exchange.rollback(1)
    exchange.publish([rollout(version=1)])
    assert ask(exchange, round=0) == []
    assert ask(exchange, round=1) == [rollout(version=1)]


def test_traffic_counts_records_and_encoded_bytes_of_each_round(exchange):
    first, second = rollout(), rollout(index=1, text=b"longer text")
    size = len(first.encode()) + len(second.encode())
    exchange.publish([first, second, stats(version=1)])
    ask(exchange, "a")
    ask(exchange, "c", limit=1)
    ask(exchange, "a")
    assert exchange.traffic(0) == [
        TrafficRow(0, "b", "", "rollout", 2, size),
        TrafficRow(0, "b", "a", "rollout", 2, size),
        TrafficRow(0, "b", "c", "rollout", 1, len(first.encode())),
    ]
    assert exchange.traffic(1) == [
        TrafficRow(1, "b", "", "group_stats", 1, len(stats(version=1).encode()))
    ]
    assert exchange.traffic() == exchange.traffic(0) + exchange.traffic(1)


def test_threads_share_an_exchange_without_losing_or_repeating_a_record(exchange):
    def publish(index):
        return exchange.publish([rollout(index=index, prompt=prompt) for prompt in "pq"])

    def collect(_):
        return ask(exchange, prompts=["p", "q"])

    with ThreadPoolExecutor(4) as pool:
        stored = pool.map(publish, range(20))
        delivered = pool.map(collect, range(20))
        keys = [record.key for records in delivered for record in records]
    keys += [record.key for record in ask(exchange, prompts=["p", "q"])]
    assert sum(stored) == 40
    assert len(keys) == len(set(keys)) == 40


def test_bytes_are_collected_as_records_are(exchange):
    group = [rollout(index=0), success(index=0), rollout(index=1), stats(prompt="q")]
    exchange.publish(group)
    needs = {"rollout", "success", "group_stats"}
    encoded = exchange.collect_encoded("a", ["p", "q"], needs, 1, round=0)
    assert list(map(decode, encoded)) == [group[0], group[1], group[3]]
    assert [row.records for row in exchange.traffic() if row.receiver == "a"] == [1, 1, 1]
    assert ask(exchange, needs=needs) == [group[2]]
    assert exchange.collect_encoded("a", ["p", "q"], needs, round=0) == []


def test_another_encoding_of_a_record_is_that_record(exchange):
    fields = [rollout().KIND, *rollout()._wire()]
    fields[9] = 0  # the reward, as an integer
    other = seal(fields)
    assert other != rollout().encode()
    assert exchange.publish_encoded([other, rollout().encode()]) == 1
    assert exchange.publish([rollout()]) == 0
    assert exchange.refused() == {}
    assert [row.bytes for row in exchange.traffic()] == [len(other)]
    restored = exchange.snapshot()
    exchange.restore(restored)
    assert exchange.collect_encoded("a", ["p"], {"rollout"}, round=0) == [other]
    assert exchange.collect("c", ["p"], {"rollout"}, round=0) == [rollout()]


def test_resuming_runs_the_round_as_if_nothing_had_happened(exchange):
    exchange.publish([rollout(version=0)])
    ask(exchange, round=0)
    snapshot, traffic = exchange.snapshot(), exchange.traffic()
    exchange.publish([rollout(version=1, text=b"lost")])
    ask(exchange, round=1)
    exchange.restore(snapshot)
    exchange.rollback(1)
    assert exchange.traffic() == traffic
    assert ask(exchange, round=0) == []
    exchange.publish([rollout(version=1)])
    assert ask(exchange, round=1) == [rollout(version=1)]


def test_a_snapshot_of_another_exchange_is_refused_and_changes_nothing(exchange, tmp_path):
    exchange.publish([rollout()])
    with SQLiteExchange(tmp_path / "other.db") as sqlite, MemoryExchange() as memory:
        memory.publish([rollout("c")])
        foreign = [sqlite.snapshot(), b"", b"\xc1", b"\x93\x01\x02\x03", exchange.snapshot()[:-1]]
        if isinstance(exchange, SQLiteExchange):
            foreign.append(memory.snapshot())
    for snapshot in foreign:
        with pytest.raises(ExchangeError, match="snapshot"):
            exchange.restore(snapshot)
    assert ask(exchange) == [rollout()]
