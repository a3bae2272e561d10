"""Records -> Group -> Credit -> rows: what of its peers' experience a receiver trains on."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bandit.probes import GRPO, PRP, SGT, XGRPO, Group
from mrl.batch import Assignment, Row
from mrl.credit import assign
from mrl.exchange import GroupStats, Record, SuccessRecord, statistics
from mrl.publish import records_of
from mrl.rollout import Rollout
from mrl.rollout.groups import Groups, verify_all
from mrl.tasks import Item, Task
from mrl.tasks.verifiers import exact
from mrl.update import accumulate, update

ITEMS = [Item.of("01=", "1"), Item.of("11=", "0")]
EOS = 1
NONE = float("nan")


def verified(item: Item, response: bytes, finished: bool) -> float | None:
    """Exact answers; a response with "+" breaks the verifier."""
    return None if b"+" in response else exact(item, response, finished)


def task(verify: Callable[..., Any] = verified) -> Task:
    return Task(tuple(ITEMS), tuple(ITEMS), "exact", verify)


def rollout(policy: Any, text: str, finished: bool = True, logp: float = -1.0) -> Rollout:
    ids = (*policy.encode([text.encode()])[0], *([EOS] if finished else []))
    return Rollout(ids, np.full(len(ids), logp), finished, text.encode())


def groups(policy: Any, *texts: Sequence[str], rewards: Any = None) -> Groups:
    rollouts = [[rollout(policy, text) for text in group] for group in texts]
    if rewards is None:
        rewards = [
            [verified(item, one.text, one.finished) for one in group]
            for item, group in zip(ITEMS, rollouts, strict=False)
        ]
    return Groups(rollouts, np.array(rewards, dtype=np.float64), sum(map(len, texts)))


def bridge(
    receiver: Any, own: Groups, records: Sequence[Record], peers: Any, **settings: Any
) -> Assignment:
    defaults = {"task": task(), "reverify": True, "rng": np.random.default_rng(0)}
    known = [receiver, *settings.pop("sources", [])]
    codecs = {policy.name: policy.codec for policy in known}
    items = ITEMS[: len(own.rollouts)]
    return assign(
        receiver, own, records, items, peers=peers, codecs=codecs, **(defaults | settings)
    )


def peer_rows(found: Assignment, own: Groups) -> list[Row]:
    return found.rows[sum(len(group) for group in own.rollouts) :]


def own_weights(found: Assignment, own: Groups) -> list[list[float]]:
    weights = iter(row.pg_weight for row in found.rows)
    return [[next(weights) for _ in group] for group in own.rollouts]


@pytest.fixture
def receiver(make_policy: Callable[..., Any]) -> Callable[..., Any]:
    def make(probe: Any, **settings: Any) -> Any:
        return make_policy("me", probe=probe, **settings)

    return make


@pytest.fixture
def peer(make_policy: Callable[..., Any], pairs: Any) -> Any:
    """A peer that spells pairs of digits with one token."""
    return make_policy("peer", tokenizer=pairs)


def published(peer: Any, own: Groups, *kinds: str, version: int = 0) -> list[Record]:
    items = ITEMS[: len(own.rollouts)]
    return records_of(peer, own, items, frozenset(kinds), task(), version)


def success(text: str, index: int = 0, **fields: Any) -> SuccessRecord:
    settings = {"prompt_id": ITEMS[0].prompt_id, "policy_id": "peer", "version": 0}
    settings |= {"verifier_id": "exact", "verdict": True}
    return SuccessRecord(index=index, text=text.encode(), **(settings | fields))


def test_own_rows_hold_the_sampled_ids_prompt_and_weight(receiver):
    me = receiver(GRPO())
    own = groups(me, ["1", "0", "0", "0"], ["0", "0", "1", "1"])
    found = bridge(me, own, [], {})
    expected = GRPO().credit(Group(own.rewards)).own_advantage / 4
    np.testing.assert_allclose(own_weights(found, own), expected, rtol=1e-12)
    assert [row.group for row in found.rows] == [0] * 4 + [1] * 4
    assert {row.prompt for row in found.rows[:4]} == {me.render(ITEMS[0])}
    assert [row.response for row in found.rows] == [one.ids for g in own.rollouts for one in g]
    assert found.ratio is None
    assert found.groups == 2


def test_own_ids_are_kept_where_they_are_not_canonical(receiver, pairs):
    me = receiver(PRP(), tokenizer=pairs)
    (together,) = me.encode([b"01"])
    apart = me.encode([b"0"])[0] + me.encode([b"1"])[0]
    assert len(together) == 1
    assert me.text(apart, False) == b"01"
    own = Groups(
        [[Rollout((*apart, EOS), np.full(3, -1.0), True, b"01"), rollout(me, "1")]],
        np.array([[0.0, 1.0]]),
        2,
    )
    assert bridge(me, own, [], {}).rows[0].response == (*apart, EOS)
    assert [one.canonical for one in published(me, own, "rollout")] == [False, True]


def test_ids_and_logprobs_of_different_length_are_an_error():
    with pytest.raises(ValueError, match="2 token ids and 3 log-probs"):
        Rollout((2, 1), np.zeros(3), True, b"0")


def test_unverified_reward_is_never_zero(receiver):
    me = receiver(GRPO())
    own = groups(me, ["1", "0", "+", "0"], rewards=[[1.0, 0.0, NONE, 0.0]])
    found = bridge(me, own, [], {})
    expected = GRPO().credit(Group([1.0, 0.0, 0.0])).own_advantage / 3
    weights = own_weights(found, own)[0]
    np.testing.assert_allclose([weights[i] for i in (0, 1, 3)], expected, rtol=1e-12)
    assert weights[2] == 0.0
    assert not found.rows[2].counted
    assert found.counts["unverified"] == 1
    assert found.counts["reward_mean"] == pytest.approx(1 / 3)


def test_a_verifier_that_gives_nan_has_not_verified(receiver, peer):
    def broken(item: Item, response: bytes, finished: bool) -> float:
        return NONE if response == b"0" else exact(item, response, finished)

    me = receiver(PRP())
    rollouts = [[rollout(me, text) for text in ("0", "1", "00")]]
    own = Groups(rollouts, verify_all(task(broken), ITEMS[:1], rollouts)[0], 3)
    theirs = groups(peer, ["0", "00"])
    found = bridge(me, own, published(peer, theirs, "rollout"), {"peer": 2}, task=task(broken))
    expected = PRP().credit(Group([1.0, 0.0], [0.0])).own_advantage / 3
    np.testing.assert_allclose(own_weights(found, own)[0], [0.0, *expected])
    assert len(peer_rows(found, own)) == 1
    assert found.counts["unverified"] == 1


def test_group_without_verified_own_rollouts_gives_nothing(receiver, peer):
    for probe in (GRPO(), XGRPO(), PRP(), SGT()):
        me = receiver(probe)
        own = groups(me, ["+", "+"])
        assert np.isnan(own.rewards).all()
        records = published(peer, groups(peer, ["1", "0"]), *probe.needs)
        found = bridge(me, own, records, {"peer": 2})
        assert not any(row.pg_weight or row.nll_weight for row in found.rows)
        assert found.counts["reward_mean"] is None
        assert found.counts["success_share"] is None
        assert found.counts["rescued_prompts"] == 0


def test_masked_responses_are_not_among_the_trained_tokens(receiver):
    me = receiver(GRPO())
    me.objective = me.objective.model_copy(update={"mask_truncated": True})
    own = groups(me, ["1", "0"])
    own.rollouts[0][1] = rollout(me, "00", finished=False)
    assert bridge(me, own, [], {}).counts["trained_tokens_own"] == 2  # "1" and its end
    me.objective = me.objective.model_copy(update={"mask_truncated": False})
    assert bridge(me, own, [], {}).counts["trained_tokens_own"] == 4


def test_missing_engine_logprob_takes_out_that_token_and_is_counted(receiver):
    me = receiver(GRPO())
    own = groups(me, ["1", "0"])
    own.rollouts[0][0].logprobs[0] = NONE
    found = bridge(me, own, [], {})
    assert found.rows[0].usable.tolist() == [False, True]
    assert found.rows[0].length == 1
    assert found.rows[1].usable is None
    assert found.counts["nan_logprobs"] == 1
    assert found.counts["entropy"] == 1.0


def test_xgrpo_uses_statistics_alone(receiver, peer):
    me = receiver(XGRPO(eps=0))
    own = groups(me, ["0", "0", "0", "0"], ["0", "1", "1", "1"])
    theirs = groups(peer, ["1", "0", "1", "0"], ["1", "1", "1", "1"])
    found = bridge(me, own, published(peer, theirs, "group_stats"), {"peer": 4})
    expected = XGRPO(eps=0).credit(Group(own.rewards, theirs.rewards)).own_advantage / 4
    np.testing.assert_allclose(own_weights(found, own), expected, rtol=1e-12)
    np.testing.assert_allclose(expected[0], -0.5400617248673217 / 4)  # pooled (0 0 0 0 1 0 1 0)
    assert not peer_rows(found, own)


def test_xgrpo_is_grpo_where_no_statistics_came(receiver):
    me = receiver(XGRPO())
    own = groups(me, ["1", "0", "0", "0"])
    found = bridge(me, own, [], {"peer": 4})
    expected = GRPO().credit(Group(own.rewards)).own_advantage / 4
    np.testing.assert_array_equal(own_weights(found, own), expected)


def test_xgrpo_counts_several_peers_and_ignores_strangers(receiver):
    me = receiver(XGRPO())
    own = groups(me, ["1", "0", "0"])
    rewards = {"b": [1.0, 1.0, 0.0], "c": [0.0, None, 1.0], "stranger": [1.0, 1.0, 1.0]}
    records = [
        GroupStats(ITEMS[0].prompt_id, name, 0, **statistics(values))
        for name, values in rewards.items()
    ]
    found = bridge(me, own, records, {"c": 3, "b": 3})
    pooled = Group(own.rewards, [[*rewards["b"], *rewards["c"]]], peer_source=[0, 0, 0, 1, 1, 1])
    expected = XGRPO().credit(pooled).own_advantage / 3
    np.testing.assert_allclose(own_weights(found, own), expected, rtol=1e-12)


def test_prp_takes_peers_rollouts_into_the_population(receiver, peer):
    me = receiver(PRP())
    own = groups(me, ["0", "0", "0", "01"])
    theirs = groups(peer, ["1", "00", "1", "10"])
    found = bridge(me, own, published(peer, theirs, "rollout"), {"peer": 4})
    credit = PRP().credit(Group(own.rewards, theirs.rewards))
    np.testing.assert_allclose(own_weights(found, own), credit.own_advantage / 8)
    rows = peer_rows(found, own)
    np.testing.assert_allclose([row.pg_weight for row in rows], credit.peer_advantage[0] / 8)
    assert [me.text(row.response, row.finished) for row in rows] == [b"1", b"00", b"1", b"10"]
    assert [row.response for row in rows] != [one.ids for one in theirs.rollouts[0]]
    assert found.ratio == credit.peer_ratio
    for row, one in zip(rows, theirs.rollouts[0], strict=True):
        assert row.prompt == me.render(ITEMS[0])
        assert row.source is not None
        assert row.source.logprobs.tolist() == [one.logprobs.sum()]
        assert row.source.size == len(one.text)
    assert found.counts["trained_tokens_peer"] == sum(len(row.response) for row in rows)


def test_peer_rows_follow_the_receivers_own_prompt(receiver, peer):
    me = receiver(PRP())
    own = groups(me, ["0", "1"], ["0", "1"])
    theirs = groups(peer, ["1", "00"], ["0", "11"])
    rows = peer_rows(bridge(me, own, published(peer, theirs, "rollout"), {"peer": 2}), own)
    prompts = [me.render(ITEMS[row.group]) for row in rows]
    assert [row.prompt for row in rows] == prompts
    spelled = [(row.group, me.text(row.response, True)) for row in rows]
    assert spelled == [(0, b"1"), (0, b"00"), (1, b"0"), (1, b"11")]
    assert prompts[0] != prompts[2]


def test_block_ratio_aligns_both_tokenisations(receiver, peer):
    me = receiver(PRP(ratio="block"))
    own = groups(me, ["0", "1"])
    theirs = groups(peer, ["01=1", "0"])
    found = bridge(
        me, own, published(peer, theirs, "rollout"), {"peer": 2}, sources=[peer], task=task(exact)
    )
    row = peer_rows(found, own)[0]
    ids = theirs.rollouts[0][0].ids
    assert len(ids) < len(row.response)
    assert len(row.source.logprobs) == len(ids)  # every token of the peer ends a block here
    assert row.source.logprobs.sum() == theirs.rollouts[0][0].logprobs.sum()
    assert row.source.block_of_token[-1] == len(ids) - 1  # both end tokens form one block
    together = [
        b"".join(
            me.table.bytes_of([i]) for i in np.array(row.response)[row.source.block_of_token == k]
        )
        for k in range(len(ids))
    ]
    assert together == [peer.table.bytes_of([i]) for i in ids]


@pytest.mark.parametrize("ratio", ["sequence", "block", "length_normalised", "none"])
def test_peers_empty_and_truncated_responses_are_valid_rollouts(receiver, peer, ratio):
    me = receiver(PRP(ratio=ratio))
    own = groups(me, ["0", "1"])
    empty = Rollout((EOS,), np.full(1, -2.0), True, b"")
    cut = rollout(peer, "1", finished=False)
    theirs = Groups([[empty, cut]], np.array([[0.0, 0.0]]), 2)
    found = bridge(me, own, published(peer, theirs, "rollout"), {"peer": 2}, sources=[peer])
    first, second = peer_rows(found, own)
    assert first.response == (EOS,)
    assert first.finished
    assert second.response == me.encode([b"1"])[0]  # no end token: the source did not finish
    assert not second.finished
    assert np.isfinite(update(me, found)["loss"])


@pytest.mark.parametrize("ratio", ["sequence", "block", "length_normalised"])
def test_ratio_of_a_peer_that_is_the_receiver_itself_is_one(receiver, ratio):
    me = receiver(PRP(ratio=ratio))
    theirs = Groups(me.generate(ITEMS[:1], 6, 4), np.array([[1.0, 0, 0, 1, 0, 0]]), 6)
    records = published(me, theirs, "rollout")
    own = groups(me, ["0", "1"])
    found = bridge(me, own, records, {"me": 6}, reverify=False)
    figures = update(me, found)
    gated = found.counts["gated_share"]
    assert figures["ratio_q50"] == pytest.approx(1.0, abs=1e-9)
    assert figures["ratio_mean"] == pytest.approx(1.0 - gated, abs=1e-9)


def test_a_rollout_that_fails_the_gate_is_not_computed_and_its_ratio_is_zero(receiver, peer):
    me = receiver(PRP())
    own = groups(me, ["0", "1"])
    digits = peer.encode([b"0"])[0] + peer.encode([b"1"])[0]
    apart = Rollout(digits, np.full(2, -1.0), False, b"01")
    theirs = Groups([[apart, rollout(peer, "1")]], np.array([[0.0, 1.0]]), 2)
    found = bridge(me, own, published(peer, theirs, "rollout"), {"peer": 2}, sources=[peer])
    gated, passed = peer_rows(found, own)
    assert (gated.pg_weight, gated.counted, found.gated) == (0.0, True, (0,))
    assert passed.pg_weight > 0
    assert found.counts["trained_tokens_peer"] == passed.length
    gradients = []
    computed = replace(gated, pg_weight=passed.pg_weight)
    for rows in (found.rows, [*found.rows[:-2], computed, passed]):
        accumulate(me, replace(found, rows=rows))
        gradients.append(torch.cat([p.grad.flatten() for p in me.parameters]))
    torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-14)
    figures = update(me, found)
    # The own response "1" has the tokens of the peer's.
    assert figures["computed_tokens"] == sum(row.length for row in found.rows[:2])
    assert figures["ess"] == pytest.approx(0.5)


def test_sgt_puts_its_weight_on_one_verified_success(receiver, peer):
    me = receiver(SGT(weight=0.2))
    own = groups(me, ["0", "0"], ["1", "0"])
    theirs = groups(peer, ["0", "1", "1"], ["0", "0", "0"])
    records = published(peer, theirs, "success")
    assert len(records) == 5
    found = bridge(me, own, records, {"peer": 3})
    (row,) = peer_rows(found, own)  # the second prompt has a success of its own
    assert row.group == 0
    assert (row.pg_weight, row.nll_weight, row.counted) == (0.0, 0.2, False)
    assert row.response == (*me.encode([b"1"])[0], EOS)
    assert row.source is None
    assert found.counts["rescued_prompts"] == 1
    expected = GRPO().credit(Group(own.rewards)).own_advantage / 2
    np.testing.assert_array_equal(own_weights(found, own), expected)


def test_sgt_draws_the_success_from_the_stream_it_is_given(receiver):
    me = receiver(SGT())
    own = groups(me, ["0", "0"])
    records = [success("1", 0), success("1", 1, finish_reason="length"), success("1", 2)]

    def chosen(seed: int) -> tuple[int, ...]:
        found = bridge(
            me, own, records, {"peer": 3}, reverify=False, rng=np.random.default_rng(seed)
        )
        return peer_rows(found, own)[0].response

    assert len({chosen(seed) for seed in range(20)}) == 2
    assert chosen(3) == chosen(3)


def test_a_lying_peer_is_refused_and_counted(receiver):
    me = receiver(SGT())
    own = groups(me, ["0", "0"])
    found = bridge(me, own, [success("10"), success("0", 1)], {"peer": 2})
    assert not peer_rows(found, own)
    assert found.counts["rescued_prompts"] == 0
    assert found.counts["reverify_refused"] == 2


def test_without_reverification_a_peer_is_believed(receiver):
    me = receiver(SGT())
    own = groups(me, ["0", "0"])
    records = [success("10"), success("1", 1, verdict=False)]
    (row,) = peer_rows(bridge(me, own, records, {"peer": 2}, reverify=False), own)
    assert me.text(row.response, True) == b"10"


def test_a_lie_about_a_rollout_is_replaced_by_the_receivers_verdict(receiver, peer):
    me = receiver(PRP())
    own = groups(me, ["0", "1"])
    theirs = groups(peer, ["0", "1"], rewards=[[1.0, 1.0]])
    found = bridge(me, own, published(peer, theirs, "rollout"), {"peer": 2})
    expected = PRP().credit(Group(own.rewards, [[0.0, 1.0]]))
    np.testing.assert_allclose(
        [row.pg_weight for row in peer_rows(found, own)], expected.peer_advantage[0] / 4
    )
    assert found.counts["reverify_refused"] == 1


def test_unverified_peer_rollouts_are_absent(receiver, peer):
    me = receiver(PRP())
    own = groups(me, ["0", "1"])
    theirs = groups(peer, ["+", "1", "0"])
    assert [one.reward for one in published(peer, theirs, "rollout")] == [None, 1.0, 0.0]
    found = bridge(me, own, published(peer, theirs, "rollout"), {"peer": 3})
    assert len(peer_rows(found, own)) == 2
    assert found.counts["reverify_refused"] == 0
    expected = PRP().credit(Group(own.rewards, [[1.0, 0.0]])).own_advantage / 4
    np.testing.assert_allclose(own_weights(found, own), expected)


def test_each_different_text_is_verified_once(receiver):
    calls = []

    def counting(item: Item, response: bytes, finished: bool) -> float:
        calls.append((item.prompt_id, response, finished))
        return exact(item, response, finished)

    me = receiver(SGT())
    own = groups(me, ["0", "0"], ["1", "1"])
    other = ITEMS[1].prompt_id
    records = [success("1", i) for i in range(3)] + [success("1", 0, prompt_id=other)]
    bridge(me, own, records, {"peer": 3}, task=task(counting))
    assert sorted(calls) == sorted((one.prompt_id, b"1", True) for one in ITEMS)


def test_text_that_the_receiver_cannot_spell_is_counted_and_absent(receiver, make_policy):
    from mrl.tokens.recipes import character_tokenizer

    peer = make_policy("peer", tokenizer=character_tokenizer("01+= x"))
    theirs = groups(peer, ["1 ", "x", "1"], rewards=[[1.0, 0.0, 1.0]])
    me = receiver(PRP())
    own = groups(me, ["0", "1"])
    settings = {"reverify": False}
    found = bridge(me, own, published(peer, theirs, "rollout"), {"peer": 3}, **settings)
    assert len(peer_rows(found, own)) == 1
    assert found.counts["unrepresentable"] == 2
    expected = PRP().credit(Group(own.rewards, [[1.0]])).own_advantage / 3
    np.testing.assert_allclose(own_weights(found, own), expected)

    me = receiver(SGT())
    own = groups(me, ["0", "0"])
    found = bridge(me, own, [success("1 ")], {"peer": 3}, **settings)
    assert found.counts == found.counts | {"unrepresentable": 1, "rescued_prompts": 0}

    me = receiver(XGRPO())  # needs no text: the same rewards count in full
    own = groups(me, ["0", "1"])
    found = bridge(me, own, published(peer, theirs, "group_stats"), {"peer": 3})
    expected = XGRPO().credit(Group(own.rewards, theirs.rewards)).own_advantage / 2
    np.testing.assert_allclose(own_weights(found, own), expected)
    assert found.counts["unrepresentable"] == 0


def test_text_that_spells_a_control_token_stays_content(receiver, make_policy):
    from mrl.tokens.recipes import character_tokenizer

    me = receiver(SGT(), tokenizer=character_tokenizer("01+=<>eosp"))
    own = groups(me, ["0", "0"])
    found = bridge(me, own, [success("<eos>")], {"peer": 1}, reverify=False)
    (row,) = peer_rows(found, own)
    assert len(row.response) == 6
    assert row.response.index(EOS) == 5


def test_peer_rollout_without_all_logprobs_is_absent(receiver, peer):
    me = receiver(PRP())
    own = groups(me, ["0", "1"])
    theirs = groups(peer, ["1", "0"])
    theirs.rollouts[0][0].logprobs[0] = NONE
    found = bridge(me, own, published(peer, theirs, "rollout"), {"peer": 2})
    (row,) = peer_rows(found, own)
    assert me.text(row.response, True) == b"0"


def test_limit_takes_the_first_of_a_group_by_index(receiver, peer):
    me = receiver(PRP())
    own = groups(me, ["0", "1"])
    records = published(peer, groups(peer, ["0", "00", "1", "1"]), "rollout")
    found = bridge(me, own, records[::-1], {"peer": 2})
    texts = sorted(me.text(row.response, True) for row in peer_rows(found, own))
    assert texts == [b"0", b"00"]
    assert not peer_rows(bridge(me, own, records, {"peer": 0}), own)


def test_peers_have_limits_of_their_own_and_strangers_none(receiver, make_policy):
    me = receiver(PRP())
    own = groups(me, ["0", "1"])
    records: list[Record] = []
    for name in ("b", "c", "stranger"):
        other = make_policy(name)
        records += published(other, groups(other, ["1", "0", "1"]), "rollout")
    found = bridge(me, own, records, {"c": 3, "b": 1})
    assert len(peer_rows(found, own)) == 4
    expected = PRP().credit(Group(own.rewards, [[1, 1, 0, 1]], peer_source=[0, 1, 1, 1]))
    weights = sorted(row.pg_weight for row in peer_rows(found, own))
    np.testing.assert_allclose(weights, sorted(expected.peer_advantage[0] / 6))


def test_peer_of_an_unknown_tokenizer_is_no_reason_to_stop(receiver, peer):
    me = receiver(PRP(ratio="block"))
    own = groups(me, ["0", "1"])
    records = published(peer, groups(peer, ["1", "0"]), "rollout")
    found = bridge(me, own, records, {"peer": 2})  # without the peer's tokens
    assert not [row for row in peer_rows(found, own) if row.pg_weight]


def test_only_records_that_somebody_needs_are_made(peer):
    theirs = groups(peer, ["1", "0", "+"])
    assert published(peer, theirs) == []
    kinds = {kind: len(published(peer, theirs, kind)) for kind in ("rollout", "success")}
    assert kinds == {"rollout": 3, "success": 1}
    (stats,) = published(peer, theirs, "group_stats")
    assert (stats.n, stats.mean) == (2, 0.5)
