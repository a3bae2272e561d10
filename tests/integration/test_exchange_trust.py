"""A lying peer changes counters and nothing else: the others' weights stay the same, bit for bit.

Policy a lies, b and c are honest. Every run is held against one in which a publishes nothing.
"""

from dataclasses import replace

import pytest

from mrl.errors import InputError
from mrl.exchange import GroupStats, RolloutRecord, SuccessRecord
from mrl.exchange.opening import open_exchange
from mrl.policy import build_policies
from mrl.runtime.local import LocalTeam
from mrl.schedule import prompts_of
from mrl.tasks import load_task
from mrl.train import play

ROUNDS, QUOTA, GROUP = 3, 40, 6
WRONG = b"+="  # no number, so no verifier takes it for an answer
KINDS = {"sgt": SuccessRecord, "prp": RolloutRecord, "xgrpo": GroupStats}


def record(kind, prompt, version, index=0, policy="a"):
    """A record that claims a success for a wrong text."""
    if kind is SuccessRecord:
        return SuccessRecord(prompt, policy, version, index, WRONG, "numeric", True)
    if kind is GroupStats:
        return GroupStats(prompt, policy, version, n=6, mean=1.0, M2=0.0, min=1.0, max=1.0)
    ids, logprobs = [0, 1], [-9.0, -9.0]
    return RolloutRecord(
        prompt, policy, version, index, WRONG, ids, logprobs, True, 1.0, "length", "f"
    )


def garbage(kind, prompts, round):
    good = record(kind, prompts[0], round).encode()
    flipped = bytes([*good[:-1], good[-1] ^ 1])
    return [b"", b"junk", good[:-1], good + b"x", flipped, good[:3] + b"\x63" + good[4:]]


def wrong_prompts(kind, prompts, round):
    return [record(kind, f"no prompt {i}", round).encode() for i in range(3)]


def other_versions(kind, prompts, round):
    versions = [version for version in (round - 2, round - 1, round + 1, 2**62) if version >= 0]
    return [record(kind, prompt, version).encode() for prompt in prompts for version in versions]


def others_names(kind, prompts, round):
    return [
        record(kind, prompt, round, index, name).encode()
        for prompt in prompts
        for index in range(GROUP)
        for name in ("b", "c", "nobody")
    ]


def flood(kind, prompts, round):
    if kind is GroupStats:  # only one position there is: the rest is on prompts that there are not
        return [record(kind, f"flood {i}", round).encode() for i in range(500)]
    return [record(kind, prompts[0], round, GROUP + i).encode() for i in range(500)]


def false_successes(kind, prompts, round):
    return [
        record(kind, prompt, round, index).encode() for prompt in prompts for index in range(GROUP)
    ]


LOST = ()  # a peer that publishes nothing and does not close its rounds either
SENT = [garbage, wrong_prompts, other_versions, others_names, flood]


class Liar:
    """An exchange in which policy a publishes what `lies` says, before the others publish."""

    def __init__(self, inner, kind, lies):
        self.inner, self.kind, self.lies = inner, kind, lies
        self.prompts = []

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def publish(self, records):
        return self.inner.publish([one for one in records if one.policy_id != "a"])

    def close_round(self, policy, round):
        if policy == "a" and self.lies is LOST:
            return
        if policy == "a":
            for lie in self.lies:
                self.inner.publish_encoded(lie(self.kind, self.prompts, round), sender="a")
        self.inner.close_round(policy, round)


@pytest.fixture
def run(configure, tmp_path):
    """Train three policies; returns the honest ones' weights, the rows and the refusals."""

    def train(probe, lies, honest=False, store="memory", **section):
        config = configure(
            3,
            probe={"kind": probe},
            rounds=ROUNDS,
            group={"own": GROUP, "peers": GROUP},
            exchange={"store": store, "quota": QUOTA} | section,
        )
        rows, policies = [], build_policies(config)
        task = load_task(config.task, config.seed)
        with (
            task,
            open_exchange(config, task, tmp_path) as exchange,
            LocalTeam(config, policies) as team,
        ):
            liar = exchange if honest else Liar(exchange, KINDS[probe], lies)
            team.join(task, liar)
            for round in range(ROUNDS):
                items = prompts_of(task.train, config.prompts, config.seed, round)
                liar.prompts = [item.prompt_id for item in items]
                rows += [turn.row for turn in play(round, items, team, config)]
            refused = exchange.refused()
        weights = [
            {name: value.clone() for name, value in policy.model.state_dict().items()}
            for policy in policies[1:]
        ]
        return weights, rows, refused

    return train


def same(one, other):
    return all(
        a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)
        for a, b in zip(one, other, strict=True)
    )


@pytest.mark.parametrize(
    ("probe", "store"),
    [("sgt", "memory"), ("sgt", "sqlite"), ("prp", "memory"), ("xgrpo", "memory")],
)
def test_lies_change_counters_and_not_one_bit_of_the_others_weights(run, probe, store):
    silent, silent_rows, none = run(probe, [])
    lies = [*([false_successes] if probe == "sgt" else []), *SENT]
    found, rows, refused = run(probe, lies, store=store)
    assert same(found, silent)
    assert none == {}
    assert set(refused) == {"a"}
    counted = {"truncated", "trailing", "checksum", "schema", "prompt", "policy", "sender"}
    quota = set() if probe == "xgrpo" else {"quota"}
    assert set(refused["a"]) == counted | {"expired", "future"} | quota
    assert rows[-1]["refused"] == dict(sorted(refused["a"].items()))
    counters = {"refused", "records_in", "bytes_in", "reverify_refused"}
    for row, other in zip(rows, silent_rows, strict=True):
        if row["policy"] != "a":
            differ = {name for name in row if row[name] != other.get(name)}
            assert differ <= counters | {"unrepresentable", "unrepresentable_by_reason"}


def test_a_false_success_is_found_out_by_the_receivers_own_verifier(run):
    silent, _, _ = run("sgt", [])
    found, rows, _ = run("sgt", [false_successes])
    believed, _, _ = run("sgt", [false_successes], reverify=False)
    assert same(found, silent)
    assert sum(row["reverify_refused"] for row in rows) > 0
    assert not same(believed, silent)


def test_a_false_reward_is_replaced_by_the_receivers_own(run):
    """What PRP uses of a rollout is its text and log-probs: a claimed reward changes nothing."""

    def modest(kind, prompts, round):
        groups = [record(kind, p, round, i) for p in prompts for i in range(GROUP)]
        return [replace(one, reward=0.0).encode() for one in groups]

    boastful, rows, _ = run("prp", [false_successes])
    assert same(boastful, run("prp", [modest])[0])
    assert sum(row["reverify_refused"] for row in rows) > 0


def test_an_honest_peer_does_change_the_others(run):
    """Otherwise nothing would follow from the runs above."""
    silent, _, _ = run("sgt", [])
    assert not same(run("sgt", [], honest=True)[0], silent)


def test_one_process_waits_for_nobody(run):
    rows = run("sgt", [], honest=True, barrier_timeout=600.0)[1]
    assert all(row["absent_peers"] == [] for row in rows)


def test_rounds_go_on_without_a_lost_peer_and_name_it(run):
    silent, _, _ = run("sgt", [])
    found, rows, _ = run("sgt", LOST, barrier_timeout=0.05)
    assert same(found, silent)
    assert len(rows) == 3 * ROUNDS
    assert all(row["absent_peers"] == ["a"] for row in rows)


@pytest.mark.parametrize("quota", [{"d": 5}, -1, {"a": -1}, 1.5])
def test_a_quota_that_cannot_be_is_refused_before_anything_runs(configure, quota):
    with pytest.raises(InputError, match="quota"):
        configure(2, exchange={"quota": quota})
