"""What is not let in is refused, counted for who sent it, and changes nothing else."""

import pytest

from mrl.exchange import Admission, MemoryExchange, RolloutRecord, SQLiteExchange, SuccessRecord
from mrl.exchange.framing import seal

BOUNDS = Admission(
    policies=frozenset({"a", "b", "c"}), prompts=frozenset({"p", "q"}), quota={"c": 3}, ahead=1
)


@pytest.fixture(params=["memory", "sqlite"])
def opened(request, tmp_path):
    """Open an exchange with the given bounds."""
    made = []

    def make(admission):
        memory = request.param == "memory"
        made.append(
            MemoryExchange(admission)
            if memory
            else SQLiteExchange(tmp_path / f"{len(made)}.db", admission)
        )
        return made[-1]

    yield make
    for exchange in made:
        exchange.close()


def rollout(policy="b", version=0, index=0, prompt="p", text=b"text"):
    return RolloutRecord(
        prompt, policy, version, index, text, [1, 2], [-0.1, -0.2], True, 1.0, "eos", "f"
    )


def collect(exchange, receiver="a", round=0):
    return exchange.collect(receiver, ["p", "q"], {"rollout", "success"}, round=round)


@pytest.mark.parametrize(
    ("record", "sender", "counted"),
    [
        (rollout("d"), None, {"": {"policy": 1}}),
        (rollout("d"), "c", {"c": {"policy": 1}}),
        (rollout("b"), "c", {"c": {"sender": 1}}),
        (rollout("b"), "stranger", {"": {"sender": 1}}),
        (rollout("b", prompt="r"), None, {"b": {"prompt": 1}}),
        (rollout("b", version=2), None, {"b": {"future": 1}}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_record_out_of_bounds_is_refused_with_its_reason(opened, record, sender, counted):
    exchange = opened(BOUNDS)
    assert exchange.publish_encoded([record.encode()], sender=sender) == 0
    assert exchange.refused() == counted
    assert collect(exchange) == []
    assert [row for row in exchange.traffic() if row.records] == []


def test_bytes_that_are_no_record_are_counted_for_their_sender(opened):
    exchange = opened(BOUNDS)
    huge = seal(["success", "p", "c", 0, 0, b"x" * (1 << 20) + b"x", "exact", True, "eos", []])
    infinite = seal(
        ["rollout", "p", "c", 0, 0, b"t", b"\0" * 4, b"\0" * 8, True, 1e400, "eos", "f", []]
    )
    newer = bytearray(rollout("c").encode())
    newer[3] += 1
    flood = [b"junk", huge, infinite, bytes(newer), rollout("c").encode()[:-1]]
    assert exchange.publish_encoded(flood, sender="c") == 0
    reasons = {"nonfinite": 1, "schema": 1, "size": 1, "truncated": 2}
    assert exchange.refused() == {"c": reasons}


def test_none_can_take_the_place_of_anothers_record_by_its_name(opened):
    exchange = opened(BOUNDS)
    exchange.publish_encoded([rollout("b", text=b"forged").encode()], sender="c")
    assert exchange.publish([rollout("b", text=b"true")]) == 1
    assert [record.text for record in collect(exchange)] == [b"true"]


def test_a_quota_bounds_a_round_of_each_policy_by_itself(opened):
    exchange = opened(BOUNDS)
    flood = [rollout("c", index=i, prompt="pq"[i % 2]) for i in range(9)]
    assert exchange.publish(flood[:2]) == 2
    assert exchange.publish(flood) == 1
    assert exchange.refused() == {"c": {"quota": 6}}
    assert exchange.publish([rollout("b", index=i) for i in range(9)]) == 9
    assert exchange.publish([rollout("c", version=1, index=i) for i in range(9)]) == 3


def test_one_number_is_the_quota_of_every_policy(opened):
    exchange = opened(Admission(quota=2))
    for policy in "bc":
        assert exchange.publish([rollout(policy, index=i) for i in range(5)]) == 2


def test_at_the_quota_known_records_are_known_and_others_still_conflict(opened):
    exchange = opened(Admission(quota=1))
    exchange.publish([rollout()])
    assert exchange.publish([rollout(), rollout(text=b"other"), rollout(index=1)]) == 0
    assert exchange.refused() == {"b": {"conflict": 1, "quota": 1}}


def test_all_kinds_count_towards_the_quota(opened):
    exchange = opened(Admission(quota=2))
    success = SuccessRecord("p", "b", 0, 0, b"text", "exact", True)
    assert exchange.publish([rollout(), success, rollout(index=1)]) == 2


def test_a_flood_of_versions_is_bounded(opened):
    exchange = opened(Admission(quota=2, ahead=1))
    flood = [rollout(version=v, index=i) for v in range(50) for i in range(50)]
    assert exchange.publish(flood) == 4
    exchange.drop_before(1)
    assert exchange.publish(flood) == 2


def test_rolling_back_gives_the_quota_of_the_round_back(opened):
    exchange = opened(Admission(quota=1))
    exchange.publish([rollout()])
    exchange.rollback(0)
    assert exchange.publish([rollout(index=1)]) == 1


def test_a_snapshot_restores_what_was_refused_until_then(opened):
    exchange = opened(BOUNDS)
    exchange.publish_encoded([b"junk"], sender="c")
    snapshot, before = exchange.snapshot(), exchange.refused()
    exchange.publish_encoded([b"junk", rollout("b").encode()], sender="c")
    exchange.restore(snapshot)
    exchange.rollback(0)
    assert exchange.refused() == before == {"c": {"truncated": 1}}
