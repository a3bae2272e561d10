"""Rows -> padded micro-batches -> token loss: what counts, by how much, and what never does."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from bandit.probes import RatioRule
from mrl.batch import Assignment, Batch, Row, Source, micro_batches
from mrl.config import ObjectiveConfig
from mrl.loss import LossResult, ratio_weights, token_loss
from mrl.update import accumulate, update

CPU = torch.device("cpu")
CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def assignment(rows: Sequence[Row], ratio: RatioRule | None = None) -> Assignment:
    return Assignment(list(rows), max(row.group for row in rows) + 1, ratio)


def one_batch(rows: Sequence[Row], ratio: RatioRule | None = None, **objective: Any) -> Batch:
    (batch,) = micro_batches(assignment(rows, ratio), ObjectiveConfig(**objective), 0, CPU)
    return batch


def differentiate(
    batch: Batch, ratio: RatioRule | None = None, logp: Any = None
) -> tuple[LossResult, np.ndarray]:
    """The loss of a batch and its gradient by the log-prob of each response token."""
    if logp is None:
        logp = torch.full(batch.mask_NR.shape, -0.5, dtype=torch.float64)
    logp = logp.clone().requires_grad_()
    result = token_loss(logp, batch, ratio, **CLIP)
    result.loss.backward()
    return result, logp.grad.numpy()


def gradients(policy: Any, work: Assignment) -> np.ndarray:
    accumulate(policy, work)
    return torch.cat([p.grad.flatten() for p in policy.parameters]).numpy()


# Two prompts; responses of 2 and 4 tokens, so their mean length is 3.
SHORT = Row(0, (2, 3), (2, 1), 1.0)
LONG = Row(1, (3,), (3, 3, 2, 1), -0.5)


@pytest.fixture
def mixed() -> list[Row]:
    """Own rows, a peer row under a ratio, a likelihood row, one without weight, of two prompts."""
    source = Source(np.array([-2.0, -1.0]), np.array([0, 0, 1]), True, 3)
    return [
        SHORT,
        LONG,
        Row(0, (2, 3), (4, 5, 2, 2, 3), 0.0),
        Row(0, (2, 3), (5, 4, 1), 0.7, source=source),
        Row(1, (3,), (2,), 0.0, nll_weight=0.3, counted=False),
        Row(1, (3,), (2, 2), -0.2, finished=False),
    ]


@pytest.mark.parametrize("aggregation", ["token", "sequence", "sum"])
@pytest.mark.parametrize("kl", [0.0, 0.3])
@pytest.mark.parametrize("batch_tokens", [1, 9, 14, 23])
def test_any_split_into_micro_batches_gives_the_same_gradient(
    make_policy: Callable[..., Any], mixed, aggregation, kl, batch_tokens
):
    own = [row if row.source else replace(row, kl_weight=0.25) for row in mixed]
    work = assignment(own, RatioRule("block"))
    whole = make_policy(objective={"aggregation": aggregation, "kl": kl})
    split = make_policy(
        objective={"aggregation": aggregation, "kl": kl, "batch_tokens": batch_tokens}
    )
    for policy in (whole, split):
        torch.nn.init.constant_(policy.model.lm_head.weight[0], 0.5)  # away from the reference
    count = sum(1 for _ in micro_batches(work, split.objective, 0, CPU))
    assert count > 1
    expected = gradients(whole, work)
    assert np.abs(expected).max() > 1e-3
    np.testing.assert_allclose(gradients(split, work), expected, rtol=1e-12, atol=1e-15)
    assert accumulate(split, work)[0] == pytest.approx(accumulate(whole, work)[0], rel=1e-12)


def test_micro_batches_hold_each_weighted_row_once_and_stay_in_bounds(mixed):
    objective = ObjectiveConfig(batch_tokens=16)
    batches = list(micro_batches(assignment(mixed), objective, 0, CPU))
    kept = [id(row) for batch in batches for row in batch.rows]
    weighted = [id(row) for row in mixed if row.pg_weight or row.nll_weight]
    assert sorted(kept) == sorted(weighted)
    assert max(batch.ids_NT.numel() for batch in batches) <= 16


@pytest.mark.parametrize("shift", [-0.5, 0.0, 0.5])
def test_equal_responses_are_computed_once_and_count_as_often_as_they_came(shift):
    # Equal tokens, weights of both signs, a ratio and a likelihood weight; rho is exp(-shift).
    anchor = np.full(2, -0.5 + shift)
    source = Source(np.array([-2.0]), np.array([0, 0]), True, 3)
    rows = [
        replace(SHORT, anchor=anchor),
        replace(SHORT, anchor=anchor, pg_weight=-0.4),
        replace(SHORT, anchor=anchor, pg_weight=0.3),
        replace(SHORT, anchor=anchor, pg_weight=0.7, source=source),
        replace(SHORT, anchor=anchor, pg_weight=-0.6, source=source),
        replace(SHORT, anchor=anchor, pg_weight=0.0, nll_weight=0.2),
    ]
    rule = RatioRule("sequence")
    batch = one_batch(rows, rule, aggregation="sum")
    assert batch.ids_NT.shape[0] == 1
    assert len(batch.rows) == len(rows)
    result, grad = differentiate(batch, rule)
    parts = [differentiate(one_batch([row], rule, aggregation="sum"), rule) for row in rows]
    np.testing.assert_allclose(grad, sum(part for _, part in parts), rtol=1e-12)
    assert result.loss.item() == pytest.approx(sum(one.loss.item() for one, _ in parts), rel=1e-12)


def test_a_response_with_a_dropped_token_is_not_the_same_response():
    dropped = replace(SHORT, usable=np.array([True, False]))
    assert one_batch([SHORT, dropped]).ids_NT.shape[0] == 2


@pytest.mark.parametrize(
    ("aggregation", "short", "long"),
    [("sum", -1 / 2, 1 / 4), ("sequence", -1 / 4, 1 / 16), ("token", -1 / 6, 1 / 12)],
)
def test_aggregations_divide_by_what_they_say(aggregation, short, long):
    # Weights 1 and -1/2, averaged over 2 prompts, over 1, the own length (2, 4), or the mean (3).
    batch = one_batch([SHORT, LONG], aggregation=aggregation)
    result, grad = differentiate(batch)
    np.testing.assert_allclose(grad, [[short, short, 0, 0], [long] * 4], rtol=1e-12)
    assert result.loss.item() == pytest.approx(2 * short + 4 * long, rel=1e-12)


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("dapo", "token"),
        ("bnpo", "token"),
        ("grpo", "sequence"),
        ("token-mean", "token"),
        ("seq-mean-token-sum", "sum"),
    ],
)
def test_other_trainers_names_of_aggregations_mean_the_same(alias, name):
    assert ObjectiveConfig(aggregation=alias) == ObjectiveConfig(aggregation=name)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -1e30])
def test_padding_never_counts(garbage):
    batch = one_batch([SHORT, LONG])
    clean, grad = differentiate(batch)
    logp = torch.full((2, 4), -0.5, dtype=torch.float64)
    logp[0, 2:] = garbage
    dirty, same = differentiate(batch, logp=logp)
    assert dirty.loss.item() == clean.loss.item()
    assert same.tolist() == grad.tolist()
    assert same[0, 2:].tolist() == [0, 0]
    assert dirty.pg_tokens == 6


def test_padding_may_be_the_end_token(make_policy, mixed):
    policy = make_policy()
    work = assignment(mixed, RatioRule("sequence"))
    expected = gradients(policy, work)
    policy.pad_id = policy.eos_id
    np.testing.assert_allclose(gradients(policy, work), expected, rtol=1e-12, atol=1e-15)


def test_gradient_is_that_of_single_sequences_without_padding(make_policy):
    policy = make_policy(objective={"aggregation": "sum"})
    found = gradients(policy, assignment([SHORT, LONG]))
    policy.optim.zero_grad()
    for row in (SHORT, LONG):
        ids = torch.tensor([[*row.prompt, *row.response]])
        logp = torch.log_softmax(policy.model(input_ids=ids).logits[0], -1)[len(row.prompt) - 1 :]
        target = torch.tensor(row.response)
        total = logp[:-1].gather(-1, target[:, None]).sum()
        (-row.pg_weight / 2 * total).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters]).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)


def test_fully_masked_batch_has_no_loss_and_training_goes_on(make_policy):
    policy = make_policy(objective={"mask_truncated": True}, optimizer={"weight_decay": 0.0})
    before = {k: v.clone() for k, v in policy.model.state_dict().items()}
    figures = update(policy, assignment([replace(SHORT, finished=False)]))
    assert figures["loss"] == 0.0
    assert figures["grad_norm"] == 0.0
    assert figures["clip_share"] is None
    assert all(torch.equal(v, before[k]) for k, v in policy.model.state_dict().items())
    assert update(policy, assignment([SHORT]))["grad_norm"] > 0
    assert any(not torch.equal(v, before[k]) for k, v in policy.model.state_dict().items())


def test_masked_out_gradients_do_not_linger_from_the_step_before(make_policy):
    policy = make_policy(objective={"mask_truncated": True})
    assert np.abs(gradients(policy, assignment([SHORT]))).max() > 0
    assert not gradients(policy, assignment([replace(SHORT, finished=False)])).any()


def test_unusable_token_leaves_loss_and_normaliser():
    usable = np.array([True, False, True, True])
    batch = one_batch([SHORT, replace(LONG, usable=usable)], aggregation="token")
    logp = torch.full((2, 4), -0.5, dtype=torch.float64)
    logp[1, 1] = float("nan")
    result, grad = differentiate(batch, logp=logp)
    # Lengths are 2 and 3 now: mean 5/2.
    expected = [[-1 / 5, -1 / 5, 0, 0], [1 / 10, 0, 1 / 10, 1 / 10]]
    np.testing.assert_allclose(grad, expected, rtol=1e-12)
    assert result.loss.item() == pytest.approx(-0.1, rel=1e-12)


def test_response_without_usable_tokens_is_left_out():
    batch = one_batch([SHORT, replace(LONG, usable=np.zeros(4, np.bool_))])
    assert batch.rows == [SHORT]
    _, grad = differentiate(batch)
    np.testing.assert_allclose(grad, [[-1 / 2, -1 / 2]])  # 2 tokens in 2 responses: mean length 1


def test_truncated_responses_leave_loss_and_length():
    rows = [SHORT, replace(LONG, finished=False)]
    masked = one_batch(rows, mask_truncated=True)
    assert masked.rows == [SHORT]
    _, grad = differentiate(masked)
    np.testing.assert_allclose(grad, [[-1 / 2, -1 / 2]])  # mean length 1, not 3
    _, kept = differentiate(one_batch(rows, mask_truncated=False))
    np.testing.assert_allclose(kept[0, :2], [-1 / 6, -1 / 6])


@pytest.mark.parametrize(("counted", "length"), [(True, 4), (False, 3)])
def test_row_without_weight_counts_in_the_mean_length_alone(counted, length):
    idle = Row(0, (2,), (2, 3, 2, 3, 2, 1), 0.0, counted=counted)
    batch = one_batch([SHORT, LONG, idle])
    assert idle not in batch.rows
    _, grad = differentiate(batch)
    np.testing.assert_allclose(grad[0, :2], [-1 / (2 * length)] * 2, rtol=1e-12)


def test_round_without_weights_has_no_batches():
    assert not list(
        micro_batches(assignment([replace(SHORT, pg_weight=0.0)]), ObjectiveConfig(), 0, CPU)
    )


@pytest.mark.parametrize(
    ("rho", "weight", "slope"),
    [
        (1.5, 1.0, 0.0),  # above 1 + 0.28 and still rising: clipped
        (1.5, -1.0, 1.5),
        (1.25, 1.0, -1.25),  # above 1 + 0.2 and within 1 + 0.28: the clip is not symmetric
        (0.5, 1.0, -0.5),
        (0.5, -1.0, 0.0),  # below 1 - 0.2 and still falling: clipped
        (0.75, -1.0, 0.0),  # within 1 - 0.28
    ],
)
def test_clip_stops_what_has_moved_far_enough(rho, weight, slope):
    anchor = np.full(2, -0.5 - np.log(rho))
    row = replace(SHORT, pg_weight=weight, anchor=anchor)
    result, grad = differentiate(one_batch([row], aggregation="sum"))
    np.testing.assert_allclose(grad, [[slope, slope]], rtol=1e-12)
    assert result.pg_tokens == 2
    assert result.clipped_tokens == (2 if slope == 0 else 0)


def test_first_update_of_a_round_starts_at_ratio_one(make_policy, mixed):
    # With clips of 0 anything but a ratio of exactly 1 would show.
    policy = make_policy(objective={"clip_low": 0.0, "clip_high": 0.0})
    work = assignment(mixed, RatioRule("sequence"))
    expected = gradients(policy, work)
    rows = [replace(r, anchor=a) for r, a in zip(mixed, policy.score(mixed), strict=True)]
    loose = make_policy()
    found = gradients(loose, replace(work, rows=rows))
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-14)
    _, results = accumulate(loose, replace(work, rows=rows))
    assert sum(result.clipped_tokens for result in results) == 0


def test_second_update_is_clipped_against_the_first(make_policy):
    rows = [SHORT, LONG]
    small = make_policy(objective={"updates": 2}, optimizer={"kind": "sgd", "lr": 1e-6})
    large = make_policy(
        objective={"updates": 2}, optimizer={"kind": "sgd", "lr": 30.0, "max_grad_norm": None}
    )
    assert update(small, assignment(rows))["clip_share"] == 0.0
    assert update(large, assignment(rows))["clip_share"] > 0.0


def test_two_updates_take_half_of_the_prompts_each(make_policy):
    twice = make_policy(objective={"updates": 2}, optimizer={"kind": "sgd", "max_grad_norm": None})
    once = make_policy(optimizer={"kind": "sgd", "max_grad_norm": None})
    update(twice, assignment([SHORT, LONG]))
    update(once, assignment([SHORT]))
    # The first step moves every log-prob of the second by less than the clip: rho is near 1.
    anchor = make_policy().score([LONG])[0]
    update(once, assignment([replace(LONG, group=0, anchor=anchor)]))
    for mine, expected in zip(twice.parameters, once.parameters, strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 9])
def test_split_covers_each_prompt_once(parts):
    rows = [Row(group, (2,), (1,), 1.0) for group in range(5) for _ in range(2)]
    whole = Assignment(rows, 5)
    split = list(whole.split(parts))
    assert len(split) == min(parts, 5)
    assert [row for part in split for row in part.rows] == rows
    assert sum(part.groups for part in split) == 5
    sizes = [part.groups for part in split]
    assert max(sizes) - min(sizes) <= 1


def test_likelihood_route_raises_log_probability_and_is_never_clipped():
    row = Row(1, (2, 3), (3, 1), 0.0, nll_weight=0.1, counted=False, anchor=np.full(2, -9.0))
    own = replace(SHORT, anchor=np.full(2, -0.5))
    result, grad = differentiate(one_batch([own, row], aggregation="token"))
    # Averaged over 2 prompts; the mean length 2 is the own row's alone.
    np.testing.assert_allclose(grad[1], [-0.1 / 4] * 2, rtol=1e-12)
    assert result.pg_tokens == 2
    assert result.clipped_tokens == 0


def peer(blocks: Sequence[float], of_token: Sequence[int], **source: Any) -> Row:
    settings = {"canonical": True, "size": 3} | source
    response = tuple(range(2, 2 + len(of_token)))
    return Row(
        0, (2,), response, 1.0, source=Source(np.array(blocks), np.array(of_token), **settings)
    )


LOGP = np.array([-0.5, -1.5, -0.25, -1.0])


def test_block_ratios_multiply_to_the_sequence_ratio():
    blocks = ratio_weights(RatioRule("block"), peer([-1.0, -2.5], [0, 0, 1, 1]), LOGP)
    np.testing.assert_allclose(blocks, np.exp([-1.0, -1.0, 1.25, 1.25]), rtol=1e-12)
    whole = ratio_weights(RatioRule("sequence"), peer([-3.5], [0, 0, 0, 0]), LOGP)
    np.testing.assert_allclose(whole, np.full(4, np.exp(0.25)), rtol=1e-12)
    assert blocks[0] * blocks[2] == pytest.approx(whole[0], rel=1e-12)


def test_length_normalised_ratio_divides_by_bytes():
    row = peer([-3.5], [0, 0, 0, 0], size=5)
    found = ratio_weights(RatioRule("length_normalised"), row, LOGP)
    np.testing.assert_allclose(found, np.full(4, np.exp(0.25 / 5)), rtol=1e-12)
    empty = ratio_weights(RatioRule("length_normalised"), peer([-1.0], [0], size=0), LOGP[:1])
    np.testing.assert_allclose(empty, [np.exp(0.5)])


def test_cap_bounds_each_ratio_that_is_formed():
    rule = RatioRule("block", cap=2.0)
    found = ratio_weights(rule, peer([-1.0, -2.5], [0, 0, 1, 1]), LOGP)
    np.testing.assert_allclose(found, [np.exp(-1), np.exp(-1), 2.0, 2.0], rtol=1e-12)
    whole = ratio_weights(RatioRule("sequence", cap=1.1), peer([-3.5], [0] * 4), LOGP)
    assert whole.tolist() == [1.1] * 4


def test_gate_takes_out_what_was_not_sampled_canonically():
    row = peer([-3.5], [0] * 4, canonical=False)
    assert not ratio_weights(RatioRule("sequence"), row, LOGP).any()
    assert ratio_weights(RatioRule("sequence", gated=False), row, LOGP).all()


def test_ratio_none_weighs_a_peer_as_an_own_response():
    row = peer([-3.5], [0] * 4)
    assert ratio_weights(RatioRule("none"), row, LOGP).tolist() == [1.0] * 4
    rows = [SHORT, Row(1, (2,), (4, 5, 1), 1.0)]
    plain, without = (differentiate(one_batch(rows), rule) for rule in (RatioRule("none"), None))
    assert plain[1].tolist() == without[1].tolist()
    assert plain[0].ratios == []


@pytest.mark.parametrize("kind", ["sequence", "block", "length_normalised"])
def test_ratio_multiplies_the_gradient_of_peers_alone(kind):
    row = peer([-1.0, -2.5], [0, 0, 1, 1]) if kind == "block" else peer([-3.5], [0] * 4)
    rule = RatioRule(kind)
    batch = one_batch([row, replace(SHORT, group=0)], aggregation="sum")
    logp = torch.full((2, 4), -9.0, dtype=torch.float64)
    place = next(i for i, r in enumerate(batch.rows) if r.source is not None)
    logp[place] = torch.from_numpy(LOGP)
    result, grad = differentiate(batch, rule, logp)
    np.testing.assert_allclose(grad[place], -ratio_weights(rule, row, LOGP), rtol=1e-12)
    np.testing.assert_allclose(grad[1 - place], [-1, -1, 0, 0])
    assert result.ratios == [(0, pytest.approx(ratio_weights(rule, row, LOGP).mean()))]


def test_peer_ratio_is_formed_once_a_round():
    row = replace(peer([-3.5], [0] * 4), anchor=LOGP)
    batch = one_batch([row], aggregation="sum")
    moved = torch.from_numpy(LOGP[None] + 0.1)
    _, grad = differentiate(batch, RatioRule("sequence"), moved)
    # exp(0.25) from the anchors, times rho of the later update.
    np.testing.assert_allclose(grad, np.full((1, 4), -np.exp(0.25) * np.exp(0.1)), rtol=1e-12)


def test_scores_do_not_depend_on_the_rows_beside(make_policy, mixed):
    policy = make_policy(sampling={"batch": 2})
    alone = [make_policy().score([row])[0] for row in mixed]
    for found, expected in zip(policy.score(mixed), alone, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


def test_responses_without_tokens_have_empty_scores(make_policy):
    scores = make_policy().score([Row(0, (2, 3), (), 1.0)])
    assert [score.tolist() for score in scores] == [[]]


def test_gradient_that_is_not_finite_stops_before_the_step(make_policy):
    from mrl.errors import RunError

    policy = make_policy("quick")
    before = [p.detach().clone() for p in policy.parameters]
    with pytest.raises(RunError, match="'quick'.*not finite.*learning rate"):
        update(policy, assignment([replace(SHORT, pg_weight=float("inf"))]))
    assert all(torch.equal(a, b) for a, b in zip(before, policy.parameters, strict=True))


def test_learning_rate_warms_up_over_rounds(make_policy):
    policy = make_policy(optimizer={"lr": 0.3, "warmup_rounds": 2})
    rates = [update(policy, assignment([SHORT]))["lr"] for _ in range(4)]
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.3])
