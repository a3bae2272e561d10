"""Records are valid by construction, and their bytes are the record and nothing else."""

import struct
import subprocess
import sys
import zlib
from contextlib import contextmanager
from dataclasses import replace

import msgpack
import numpy as np
import pytest

from bandit.probes import XGRPO, Group
from mrl.exchange import (
    GroupStats,
    RecordError,
    RolloutRecord,
    Segment,
    SuccessRecord,
    decode,
    statistics,
    statistics_batch,
)
from mrl.exchange.fields import MAX_SEGMENTS, MAX_TEXT_BYTES, MAX_TOKENS
from mrl.exchange.framing import MAX_RECORD_BYTES, seal

ROLLOUT = RolloutRecord(
    prompt_id="p",
    policy_id="a",
    version=3,
    index=1,
    text="<think>naïve</think>bca".encode(),
    source_ids=[5, 0, 70000],
    source_logprobs=[-0.5, float("nan"), -1e-9],
    canonical=True,
    reward=1.0,
    finish_reason="eos",
    fingerprint="f00d",
    segments=(Segment("think_open", 0, 7), Segment("think_close", 13, 21)),
)
STATS = GroupStats("p", "a", 3, n=2, mean=0.5, M2=0.5, min=0.0, max=1.0)
SUCCESS = SuccessRecord("p", "a", 3, index=1, text=b"bca", verifier_id="exact", verdict=True)
RECORDS = [ROLLOUT, STATS, SUCCESS]


@contextmanager
def refused(reason):
    with pytest.raises(RecordError) as caught:
        yield
    assert caught.value.reason == reason
    assert str(caught.value)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.KIND)
def test_decoding_gives_the_record_back(record):
    again = decode(record.encode())
    assert type(again) is type(record)
    assert again == record
    assert type(record).decode(record.encode()) == record
    assert hash(again) == hash(record)


def test_arrays_keep_their_bits_and_cannot_be_changed():
    again = RolloutRecord.decode(ROLLOUT.encode())
    for array in (ROLLOUT.source_logprobs, again.source_logprobs):
        assert array.tobytes() == np.array([-0.5, np.nan, -1e-9]).tobytes()
        assert not array.flags.writeable
    assert again.source_ids.dtype == np.int64
    assert again.source_ids.tolist() == [5, 0, 70000]


def test_a_record_does_not_follow_later_changes_of_its_inputs():
    ids, logprobs = np.arange(3), np.zeros(3)
    record = replace(ROLLOUT, source_ids=ids, source_logprobs=logprobs)
    ids[0], logprobs[0] = 9, 9.0
    assert record.source_ids[0] == 0
    assert record.source_logprobs[0] == 0.0


def test_not_verified_is_none_and_stays_apart_from_zero():
    assert decode(replace(ROLLOUT, reward=None).encode()).reward is None
    assert decode(replace(ROLLOUT, reward=0).encode()).reward == 0.0


def test_numpy_scalars_are_taken_as_the_numbers_they_are():
    record = replace(
        ROLLOUT,
        version=np.int64(3),
        index=np.int32(1),
        canonical=np.True_,
        reward=np.float32(1.0),
    )
    assert record == ROLLOUT


def test_an_empty_response_is_a_record():
    record = replace(ROLLOUT, text=b"", source_ids=[], source_logprobs=[], segments=())
    assert decode(record.encode()) == record


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"prompt_id": ""}, "size"),
        ({"prompt_id": "x" * 1025}, "size"),
        ({"prompt_id": 7}, "type"),
        ({"policy_id": "\ud800"}, "type"),
        ({"version": -1}, "range"),
        ({"version": 2**63}, "range"),
        ({"version": True}, "type"),
        ({"version": 1.0}, "type"),
        ({"index": -1}, "range"),
        ({"text": "text"}, "type"),
        ({"text": b"x" * (MAX_TEXT_BYTES + 1)}, "size"),
        ({"source_ids": [1.0, 2.0, 3.0]}, "type"),
        ({"source_ids": [1, 2, -3]}, "range"),
        ({"source_ids": [1, 2, 2**31]}, "range"),
        ({"source_ids": np.array([1, 2, 2**64 - 1], np.uint64)}, "range"),
        ({"source_ids": [[1, 2, 3]]}, "type"),
        ({"source_ids": [[1], [2, 3]]}, "type"),
        ({"source_ids": np.zeros(MAX_TOKENS + 1, int)}, "size"),
        ({"source_ids": [1, 2]}, "length"),
        ({"source_logprobs": [-1.0, -1.0]}, "length"),
        ({"source_logprobs": ["-1", "-1", "-1"]}, "type"),
        ({"source_logprobs": [-1.0, -np.inf, np.nan]}, "nonfinite"),
        ({"source_logprobs": [-1.0, np.inf, -1.0]}, "nonfinite"),
        ({"canonical": 1}, "type"),
        ({"reward": float("nan")}, "nonfinite"),
        ({"reward": float("inf")}, "nonfinite"),
        ({"reward": 1e101}, "range"),
        ({"reward": 10**400}, "range"),
        ({"reward": True}, "type"),
        ({"reward": "1"}, "type"),
        ({"finish_reason": "stop"}, "range"),
        ({"fingerprint": None}, "type"),
        ({"segments": "think"}, "type"),
        ({"segments": [("think", 0)]}, "type"),
        ({"segments": [("think", 0, 0)]}, "range"),
        ({"segments": [("think", 5, 99)]}, "range"),
        ({"segments": [("a", 3, 5), ("b", 4, 6)]}, "range"),
        ({"segments": [("a", 0, 1)] * (MAX_SEGMENTS + 1)}, "size"),
    ],
)
def test_an_invalid_rollout_cannot_be_built(change, reason):
    with refused(reason):
        replace(ROLLOUT, **change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"n": -1}, "range"),
        ({"n": 2.0}, "type"),
        ({"mean": float("nan")}, "nonfinite"),
        ({"M2": float("inf")}, "nonfinite"),
        ({"M2": -0.1}, "inconsistent"),
        ({"M2": 9.0}, "inconsistent"),
        ({"mean": 2.0}, "inconsistent"),
        ({"min": 1.5}, "inconsistent"),
        ({"n": 0}, "inconsistent"),
    ],
)
def test_statistics_that_no_rewards_have_cannot_be_built(change, reason):
    with refused(reason):
        replace(STATS, **change)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"verdict": 1}, "type"),
        ({"verifier_id": ""}, "size"),
        ({"text": None}, "type"),
        ({"index": -1}, "range"),
        ({"finish_reason": "stop"}, "range"),
    ],
)
def test_an_invalid_success_cannot_be_built(change, reason):
    with refused(reason):
        replace(SUCCESS, **change)


def framed(body: bytes, magic: bytes = b"MRL", schema: int = 2) -> bytes:
    return struct.pack("<3sBII", magic, schema, len(body), zlib.crc32(body)) + body


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "truncated"),
        (SUCCESS.encode()[:-1], "truncated"),
        (SUCCESS.encode() + b"\0", "trailing"),
        (b"PK" + SUCCESS.encode(), "magic"),
        (framed(b"\x90", schema=1), "schema"),
        (framed(b"\x90"), "malformed"),
        (framed(b"\xc1"), "malformed"),
        (framed(b"\xdd\xff\xff\xff\xff"), "malformed"),
        (framed(b"\x91" * 5000 + b"\x01"), "malformed"),
        (framed(msgpack.packb({"kind": "success"})), "malformed"),
        (seal(["advice", "p", "a", 3]), "kind"),
        (seal([["rollout"], "p", "a", 3]), "kind"),
        (seal(["success", "p", "a", 3]), "fields"),
        (seal(["success", "p", "a", -3, 1, b"bca", "exact", True, "eos", []]), "range"),
        (seal(["success", "p", "a", 3, 1, "bca", "exact", True, "eos", []]), "type"),
        (
            seal(["success", "p", "a", msgpack.Timestamp(0), 1, b"", "exact", True, "eos", []]),
            "type",
        ),
        (b"x" * (MAX_RECORD_BYTES + 1), "size"),
        ("text", "type"),
    ],
)
def test_bytes_that_are_no_record_are_refused_with_their_reason(data, reason):
    with refused(reason):
        decode(data)


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [(5, [1, 2], "type"), (5, b"\0" * 5, "length"), (6, b"\0" * 9, "length"), (6, b"", "length")],
)
def test_packed_arrays_of_a_wrong_form_are_refused(place, value, reason):
    fields = [
        *("p", "a", 3, 1, b"bca", b"\0" * 4, b"\0" * 8),
        *(True, 1.0, "eos", "f00d", []),
    ]
    assert decode(seal(["rollout", *fields])).source_ids.tolist() == [0]
    fields[place] = value
    with refused(reason):
        decode(seal(["rollout", *fields]))


def test_a_damaged_byte_is_noticed_by_the_checksum():
    data = bytearray(SUCCESS.encode())
    data[data.index(b"bca")] ^= 1
    with refused("checksum"):
        decode(bytes(data))


def test_a_record_of_another_type_is_refused_by_name():
    with pytest.raises(RecordError, match="success record; expected RolloutRecord"):
        RolloutRecord.decode(SUCCESS.encode())


@pytest.mark.parametrize("size", [1, 4, 8, 16, 33])
def test_statistics_give_xgrpo_the_bits_that_the_rewards_give(size):
    rng = np.random.default_rng(size)
    own = rng.random(8)
    peers = [rng.random(size), rng.random(size)]
    rows = [GroupStats("p", name, 0, **statistics(r)) for name, r in zip("ab", peers, strict=True)]
    from_rewards = Group(own, np.concatenate(peers), peer_source=np.repeat([0, 1], size))
    stats = [[row.n, row.mean, row.M2, row.min, row.max] for row in rows]
    from_stats = Group(own, peer_stats=stats)
    credit = XGRPO()
    assert np.array_equal(
        credit.credit(from_stats).own_advantage, credit.credit(from_rewards).own_advantage
    )


def test_statistics_leave_out_what_was_not_verified():
    assert statistics([1.0, None, float("nan"), 0.0]) == statistics([1.0, 0.0])
    assert statistics([None]) == {"n": 0, "mean": 0.0, "M2": 0.0, "min": 0.0, "max": 0.0}
    assert GroupStats("p", "a", 0, **statistics([None])).n == 0


def test_statistics_of_groups_are_those_of_each_alone():
    rewards = np.random.default_rng(0).random((5, 8))
    rewards[0, 2:5], rewards[1] = np.nan, np.nan
    assert statistics_batch(rewards) == [statistics(group) for group in rewards]


def test_statistics_of_equal_rewards_are_accepted_and_show_no_variance():
    stats = GroupStats("p", "a", 0, **statistics([0.1] * 6))
    assert stats.min == stats.max


def test_records_need_no_deep_learning_library():
    code = "import sys, mrl.exchange; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
