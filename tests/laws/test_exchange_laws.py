"""Laws of the exchange: what holds for all records and all sequences of calls."""

import struct
import tempfile
import zlib
from collections import Counter
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from mrl.exchange import (
    RECORD_TYPES,
    Admission,
    GroupStats,
    MemoryExchange,
    RecordError,
    RolloutRecord,
    SQLiteExchange,
    SuccessRecord,
    decode,
    statistics,
)
from mrl.exchange.batches import accept, decode_all
from mrl.exchange.framing import MAGIC, SCHEMA, seal

POLICIES, PROMPTS, ROUNDS = ("a", "b", "c"), ("p", "q"), 4

names = st.text(min_size=1, max_size=8).filter(lambda text: text.isprintable())
versions = st.integers(0, 2**63 - 1)
finish_reasons = st.sampled_from(["eos", "length"])
rewards = st.none() | st.floats(-1e100, 1e100)
logprobs = st.floats(allow_infinity=False, allow_nan=True)


@st.composite
def rollouts(draw):
    tokens = draw(st.lists(st.tuples(st.integers(0, 2**31 - 1), logprobs), max_size=6))
    text = draw(st.binary(max_size=12))
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
    spans = list(zip(cuts[::2], cuts[1::2], strict=False))
    return RolloutRecord(
        draw(names),
        draw(names),
        draw(versions),
        draw(versions),
        text,
        [token for token, _ in tokens],
        [logprob for _, logprob in tokens],
        draw(st.booleans()),
        draw(rewards),
        draw(finish_reasons),
        draw(names),
        tuple((draw(names), start, stop) for start, stop in spans),
    )


@st.composite
def group_stats(draw):
    values = draw(st.lists(st.none() | st.floats(-1e9, 1e9), max_size=9))
    return GroupStats(draw(names), draw(names), draw(versions), **statistics(values))


successes = st.builds(
    SuccessRecord,
    *(names, names, versions, versions),
    *(st.binary(max_size=12), names, st.booleans(), finish_reasons),
)
records = st.one_of(rollouts(), group_stats(), successes)


@given(records)
def test_decoding_an_encoding_gives_the_record_back(record):
    again = decode(record.encode())
    assert type(again) is type(record)
    assert again.key == record.key
    assert again.encode() == record.encode()


@st.composite
def damages(draw):
    """Bytes of a record after flips, a cut or an extension, and the undamaged ones."""
    good = draw(records).encode()
    kind = draw(st.sampled_from(["flip", "cut", "extend"]))
    if kind == "cut":
        return good[: draw(st.integers(0, len(good) - 1))], good
    if kind == "extend":
        return good + draw(st.binary(min_size=1, max_size=9)), good
    bad = bytearray(good)
    for place in draw(st.sets(st.integers(0, len(good) - 1), min_size=1, max_size=8)):
        bad[place] ^= draw(st.integers(1, 255))
    return bytes(bad), good


@settings(max_examples=500)
@given(damages())
def test_damaged_bytes_are_refused_and_counted_and_the_rest_is_stored(pair):
    bad, good = pair
    with pytest.raises(RecordError):
        decode(bad)
    with MemoryExchange() as exchange:
        assert exchange.publish_encoded([bad, good, bad]) == 1
        assert sum(exchange.refused()[""].values()) == 2


@settings(max_examples=500)
@given(st.binary(max_size=64))
def test_a_body_with_the_right_checksum_is_a_record_or_refused(body):
    """Flips that a forger repairs the checksum for reach msgpack, which must not crash either."""
    try:
        accepted = decode(struct.pack("<3sBII", MAGIC, SCHEMA, len(body), zlib.crc32(body)) + body)
    except RecordError:
        return
    assert decode(accepted.encode()) == accepted


@settings(max_examples=500)
@given(records, st.data())
def test_a_forged_flip_is_a_record_or_refused(record, data):
    body = bytearray(record.encode()[12:])
    for place in data.draw(st.sets(st.integers(0, len(body) - 1), min_size=1, max_size=4)):
        body[place] ^= data.draw(st.integers(1, 255))
    try:
        forged = struct.pack("<3sBII", MAGIC, SCHEMA, len(body), zlib.crc32(body)) + bytes(body)
        accepted = decode(forged)
    except RecordError:
        return
    assert decode(accepted.encode()) == accepted


@given(st.binary(max_size=64))
def test_arbitrary_bytes_are_refused_and_nothing_else(data):
    with pytest.raises(RecordError):
        decode(data)


leaves = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), names, st.binary()
)


@given(records, st.integers(0, 12), leaves | st.lists(leaves, max_size=3))
def test_a_well_framed_record_with_any_field_is_accepted_whole_or_refused(record, place, value):
    """A peer that computes the right checksum can still send no invalid record."""
    fields = [record.KIND, *record._wire()]
    fields[place % len(fields)] = value
    try:
        accepted = decode(seal(fields))
    except RecordError:
        return
    assert decode(accepted.encode()) == accepted


@st.composite
def sent(draw):
    """Bytes of a valid record, of one with a field that may be invalid, or of none."""
    record = draw(rollouts() | records)
    fields = [record.KIND, *record._wire()]
    for place in draw(st.sets(st.integers(0, 12), max_size=1)):
        fields[place % len(fields)] = draw(leaves | st.lists(leaves, max_size=3))
    return seal(fields)[: draw(st.none() | st.integers(0, 99))]


def exact(record):
    """Every field with its type, and of arrays whether they can be changed."""
    fields = [getattr(record, name) for name in type(record).__match_args__]
    arrays = [(one.dtype, one.flags.writeable) for one in fields if isinstance(one, np.ndarray)]
    return record.encode(), list(map(type, fields)), arrays


@settings(max_examples=500)
@given(st.lists(sent(), max_size=4))
def test_a_batch_gives_the_records_and_refusals_of_its_parts(batch):
    alone, refused = [], Counter()
    for data in batch:
        try:
            alone.append((exact(decode(data)), data))
        except RecordError as error:
            refused[error.reason] += 1
    accepted, together = accept(batch)
    assert [(exact(one.record), one.encoded) for one in accepted] == alone
    assert together == refused


@given(st.lists(rollouts(), max_size=5), st.lists(sent(), max_size=1))
def test_all_of_a_batch_are_decoded_or_the_first_damage_is_named(good, other):
    batch, expected, wrong = [record.encode() for record in good] + other, [], []
    for data in batch:
        try:
            expected.append(exact(decode(data)))
        except RecordError as error:
            wrong.append(error.args)
    if wrong:
        with pytest.raises(RecordError) as caught:
            decode_all(batch)
        assert caught.value.args == wrong[0]
    else:
        assert list(map(exact, decode_all(batch))) == expected


def small_record(kind, policy, version, prompt, index, variant=0):
    if kind == "rollout":
        text = b"text%d" % variant
        return RolloutRecord(
            prompt, policy, version, index, text, [1], [-0.5], True, 1.0, "eos", "f"
        )
    if kind == "success":
        return SuccessRecord(prompt, policy, version, index, b"text%d" % variant, "exact", True)
    return GroupStats(prompt, policy, version, **statistics([float(variant), 0.0]))


small_records = st.builds(
    small_record,
    st.sampled_from(sorted(RECORD_TYPES)),
    st.sampled_from(POLICIES),
    st.integers(0, ROUNDS),
    st.sampled_from(PROMPTS),
    st.integers(0, 3),
)
variants = st.builds(
    small_record,
    st.sampled_from(sorted(RECORD_TYPES)),
    st.sampled_from(POLICIES),
    st.integers(0, ROUNDS),
    st.sampled_from(PROMPTS),
    st.integers(0, 1),
    st.integers(0, 1),
)
limits = st.one_of(
    st.none(),
    st.integers(0, 4),
    st.dictionaries(st.sampled_from(POLICIES), st.integers(0, 4)),
)
requests = st.fixed_dictionaries(
    {
        "receiver": st.sampled_from(POLICIES),
        "prompt_ids": st.lists(st.sampled_from((*PROMPTS, "unknown")), max_size=4),
        "needs": st.frozensets(st.sampled_from(sorted(RECORD_TYPES))),
        "limit": limits,
        "max_staleness": st.integers(0, 2),
        "round": st.integers(0, ROUNDS),
    }
)


@given(st.lists(small_records, max_size=30), st.lists(requests, max_size=4), st.data())
def test_the_order_of_publishing_changes_nothing(published, calls, data):
    shuffled = data.draw(st.permutations(published))
    cut = data.draw(st.integers(0, len(published)))
    with MemoryExchange() as one, MemoryExchange() as other:
        one.publish(published)
        other.publish(shuffled[:cut])
        other.publish_encoded([record.encode() for record in shuffled[cut:]])
        for call in calls:
            assert one.collect(**call) == other.collect(**call)
        assert one.traffic() == other.traffic()


admissions = st.builds(
    Admission,
    policies=st.sampled_from([None, frozenset(POLICIES), frozenset("ab")]),
    prompts=st.sampled_from([None, frozenset(PROMPTS), frozenset("p")]),
    quota=st.sampled_from([None, 0, 3, {"a": 1, "b": 4}]),
    ahead=st.sampled_from([None, 1, 2]),
)


class SameBehaviour(RuleBasedStateMachine):
    """Memory, SQLite and SQLite with history answer every sequence of calls alike."""

    @initialize(admission=admissions)
    def set_up(self, admission):
        self.folder = tempfile.TemporaryDirectory()
        self.admission = admission
        self.memory = MemoryExchange(admission)
        self.stores = {keep: self.opened(keep) for keep in (False, True)}
        self.delivered = set()

    def opened(self, keep):
        path = Path(self.folder.name) / f"{keep}.db"
        return SQLiteExchange(path, self.admission, keep_history=keep)

    def all_say(self, call):
        answer = call(self.memory)
        for store in self.stores.values():
            assert call(store) == answer
        return answer

    @rule(batch=st.lists(variants, max_size=12))
    def publish(self, batch):
        self.all_say(lambda exchange: exchange.publish(batch))

    @rule(
        batch=st.lists(variants, max_size=3),
        junk=st.binary(max_size=20),
        sender=st.sampled_from([None, *POLICIES, "stranger"]),
    )
    def publish_encoded(self, batch, junk, sender):
        encoded = [*(record.encode() for record in batch), junk]
        self.all_say(lambda exchange: exchange.publish_encoded(encoded, sender=sender))

    @rule(policy=st.sampled_from([*POLICIES, "stranger"]), round=st.integers(0, ROUNDS))
    def close_round(self, policy, round):
        self.all_say(lambda exchange: exchange.close_round(policy, round))

    @rule(round=st.integers(0, ROUNDS))
    def look_who_is_absent(self, round):
        self.all_say(lambda exchange: exchange.wait_round(round, POLICIES, 0))

    @rule(call=requests)
    def collect(self, call):
        answer = self.all_say(lambda exchange: exchange.collect(**call))
        newest = {}
        for record in answer:
            peer, limit = record.policy_id, call["limit"]
            bound = limit.get(peer, 9) if isinstance(limit, dict) else limit
            assert peer != call["receiver"]
            assert record.KIND in call["needs"]
            assert 0 <= call["round"] - record.version <= call["max_staleness"]
            assert record.key.position < (9 if bound is None else bound)
            assert newest.setdefault((peer, record.prompt_id), record.version) == record.version
            delivery = (call["receiver"], call["round"], record.key)
            assert delivery not in self.delivered
            self.delivered.add(delivery)
        places = [
            (call["prompt_ids"].index(record.prompt_id), record.policy_id, record.key.position)
            for record in answer
        ]
        assert places == sorted(places)

    @rule(round=st.integers(0, ROUNDS))
    def drop_before(self, round):
        self.all_say(lambda exchange: exchange.drop_before(round))

    @rule(round=st.integers(0, ROUNDS))
    def rollback(self, round):
        self.all_say(lambda exchange: exchange.rollback(round))
        self.delivered = {entry for entry in self.delivered if entry[1] < round}

    @rule(keep=st.booleans())
    def restart(self, keep):
        self.stores[keep].close()
        self.stores[keep] = self.opened(keep)
        snapshot, self.memory = self.memory.snapshot(), MemoryExchange(self.admission)
        self.memory.restore(snapshot)

    @precondition(lambda self: hasattr(self, "memory"))
    @invariant()
    def counts_agree(self):
        self.all_say(lambda exchange: exchange.traffic())
        self.all_say(lambda exchange: exchange.refused())

    def teardown(self):
        if hasattr(self, "folder"):
            for store in self.stores.values():
                store.close()
            self.folder.cleanup()


TestSameBehaviour = SameBehaviour.TestCase
TestSameBehaviour.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def one_round(exchange, round, staleness, seed):
    """A round as the trainer runs it; returns what each policy collected."""
    rng = np.random.default_rng([seed, round])
    exchange.drop_before(max(0, round - staleness))
    for policy in POLICIES:
        if rng.random() < 0.7:
            count = int(rng.integers(1, 4))
            exchange.publish(
                small_record("rollout", policy, round, prompt, index)
                for prompt in PROMPTS
                for index in range(count)
            )
    return [
        exchange.collect(policy, PROMPTS, {"rollout"}, 2, staleness, round=round)
        for policy in POLICIES
    ]


@pytest.mark.parametrize("kind", ["memory", "sqlite", "history"])
@settings(max_examples=15, deadline=None)
@given(
    staleness=st.integers(0, 2),
    checkpoint=st.integers(0, 3),
    lost=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_a_resumed_run_collects_what_an_uninterrupted_one_does(
    kind, staleness, checkpoint, lost, seed
):
    if kind == "sqlite":
        staleness = 0  # without history a file no longer has what a stale round would need
    with tempfile.TemporaryDirectory() as folder, MemoryExchange() as straight:
        path = Path(folder) / "exchange.db"

        def opened():
            if kind == "memory":
                return MemoryExchange()
            return SQLiteExchange(path, keep_history=kind == "history")

        expected = [one_round(straight, round, staleness, seed) for round in range(7)]
        with opened() as exchange:
            for round in range(checkpoint):
                one_round(exchange, round, staleness, seed)
            snapshot = exchange.snapshot()
            for round in range(checkpoint, checkpoint + lost):
                one_round(exchange, round, staleness, seed + 1)
        with opened() as exchange:
            exchange.restore(snapshot)
            exchange.rollback(checkpoint)
            for round in range(checkpoint, 7):
                assert one_round(exchange, round, staleness, seed) == expected[round]
            assert exchange.traffic() == straight.traffic()
