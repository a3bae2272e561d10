"""Nucleus sampling: the truncated distribution is the policy, on every side of every ratio."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from bandit.probes import PRP, RatioRule
from mrl.batch import Assignment, Row, Source, micro_batches
from mrl.config import ObjectiveConfig
from mrl.credit import assign
from mrl.loss import ratio_weights, response_logprobs, token_loss
from mrl.publish import records_of
from mrl.rollout.groups import Groups
from mrl.rollout.hf import nucleus, sample, scaled_logprobs
from mrl.tasks import Item, Task
from mrl.update import accumulate, update

ITEMS = [Item.of("01=", "1"), Item.of("1+1+1=", "1")]
TASK = Task(tuple(ITEMS), tuple(ITEMS), "any", lambda item, response, finished: 1.0)
CLIP = {"clip_low": 0.2, "clip_high": 0.28}


def logprobs(*probs: float) -> torch.Tensor:
    return torch.tensor(probs, dtype=torch.float64).log()


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.3, [0, 1, 0, 0]),
        (0.5, [0, 1, 0, 0]),  # the mass is reached exactly
        (0.6, [0, 0.625, 0, 0.375]),
        (0.85, [0.2, 0.5, 0, 0.3]),
        (1.0, [0.15, 0.5, 0.05, 0.3]),
    ],
)
def test_the_nucleus_is_the_smallest_set_of_enough_mass(top_p, kept):
    probs = {0.85: (0.2, 0.5, 0.0, 0.3)}.get(top_p, (0.15, 0.5, 0.05, 0.3))
    found = nucleus(logprobs(*probs), top_p).exp()
    np.testing.assert_allclose(found, kept, rtol=1e-12)


def test_of_equally_probable_tokens_the_first_are_kept():
    found = nucleus(logprobs(0.25, 0.25, 0.25, 0.25), 0.5).exp()
    assert found.tolist() == pytest.approx([0.5, 0.5, 0, 0])


@given(
    st.lists(st.floats(-8, 8), min_size=1, max_size=12),
    st.floats(0.01, 1.0, exclude_max=True),
)
def test_a_nucleus_keeps_the_most_probable_tokens_and_their_odds(logits, top_p):
    logp = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), -1)
    found = nucleus(logp, top_p)
    kept = torch.isfinite(found)
    assert kept.any()
    assert found.exp().sum().item() == pytest.approx(1.0)
    assert logp[kept].exp().sum().item() >= top_p - 1e-12
    if (~kept).any():
        assert logp[kept].min() >= logp[~kept].max()
    smallest = logp[kept].exp().sum() - logp[kept].exp().min()
    assert smallest.item() < top_p + 1e-12
    shift = (found - logp)[kept]
    np.testing.assert_allclose(shift, shift[0].item(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sampled_logprobs_are_those_that_the_policy_scores(make_policy, dtype, temperature):
    policy = make_policy(dtype=dtype, sampling={"top_p": 0.7, "temperature": temperature})
    groups = policy.generate(ITEMS, 12, 3)
    rows = [
        Row(0, policy.render(item), one.ids, 1.0)
        for item, group in zip(ITEMS, groups, strict=True)
        for one in group
    ]
    sampled = [one.logprobs for group in groups for one in group]
    whole = make_policy(dtype=dtype, sampling={"temperature": temperature}).score(rows)
    for scored, expected, full in zip(policy.score(rows), sampled, whole, strict=True):
        np.testing.assert_allclose(scored, expected, rtol=0, atol=1e-5)
        assert (expected >= full - 1e-5).all()  # what is left out goes to what is kept
    assert any((s > w + 1e-3).any() for s, w in zip(sampled, whole, strict=True))


def test_samples_follow_the_truncated_softmax(make_policy):
    model = make_policy().model
    prompt = (2, 3, 5)
    (group,) = sample(
        model,
        [prompt],
        n=4000,
        max_tokens=1,
        temperature=1.0,
        eos_id=1,
        pad_id=0,
        generator=torch.Generator().manual_seed(5),
        top_p=0.8,
    )
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
    expected = nucleus(scaled_logprobs(logits, 1.0), 0.8).exp().numpy()
    counts = np.bincount([one.ids[0] for one in group], minlength=len(expected))
    kept = expected > 0
    assert 1 < kept.sum() < len(expected)
    assert not counts[~kept].any()
    assert chisquare(counts[kept], 4000 * expected[kept]).pvalue > 1e-3


def peer_row(shares: float = -1.0, **settings: Any) -> Row:
    source = Source(np.array([shares]), np.array([0, 0]), True, 3)
    return Row(0, (2, 3), (2, 1), 1.0, source=source, **settings)


def test_a_response_outside_the_receivers_nucleus_has_weight_zero():
    row = peer_row()
    for kind in ("sequence", "length_normalised"):
        found = ratio_weights(RatioRule(kind), row, np.array([-np.inf, -0.5]))
        assert found.tolist() == [0.0, 0.0]
    source = Source(np.array([-1.0, -1.0]), np.array([0, 1]), True, 3)
    blocks = Row(0, (2, 3), (2, 1), 1.0, source=source)
    found = ratio_weights(RatioRule("block"), blocks, np.array([-np.inf, -0.5]))
    np.testing.assert_allclose(found, [0.0, np.exp(0.5)])


def loss_of(rows: list[Row], logp: Any, whole: Any, rule: RatioRule | None = None) -> Any:
    work = Assignment(rows, 1, rule)
    (batch,) = micro_batches(work, ObjectiveConfig(aggregation="sum"), 0, torch.device("cpu"))
    logp_NR = torch.tensor([logp], dtype=torch.float64, requires_grad=True)
    whole_NR = torch.tensor([whole], dtype=torch.float64, requires_grad=True)
    result = token_loss(logp_NR, batch, rule, **CLIP, whole_NR=whole_NR)
    result.loss.backward()
    zero = torch.zeros_like(logp_NR)
    grads = [zero if x.grad is None else x.grad for x in (logp_NR, whole_NR)]
    return result, *(grad[0].tolist() for grad in grads)


INF = float("inf")


def test_a_token_that_cannot_be_sampled_leaves_the_surrogate_and_is_counted():
    row = Row(0, (2, 3), (2, 1), 1.0)
    result, grad, whole = loss_of([row], [-INF, -0.5], [-4.0, -0.7])
    assert grad == [0.0, -1.0]
    assert whole == [0.0, 0.0]
    assert result.loss.item() == -1.0
    assert (result.unreachable_tokens, result.pg_tokens) == (1, 1)


def test_a_token_that_left_the_nucleus_since_the_round_began_has_no_gradient():
    row = Row(0, (2, 3), (2, 1), 1.0, anchor=np.array([-0.5, -0.5]))
    result, grad, _ = loss_of([row], [-INF, -0.5], [-4.0, -0.7])
    assert grad == [0.0, -1.0]
    assert np.isfinite(result.loss.item())
    back = Row(0, (2, 3), (2, 1), 1.0, anchor=np.array([-INF, -0.5]))
    result, grad, _ = loss_of([back], [-0.5, -0.5], [-4.0, -0.7])
    assert grad == [0.0, -1.0]
    assert result.unreachable_tokens == 1


def test_likelihood_terms_are_not_truncated():
    row = Row(0, (2, 3), (2, 1), 0.0, nll_weight=0.1)
    result, grad, whole = loss_of([row], [-INF, -0.5], [-4.0, -0.7])
    assert grad == [0.0, 0.0]
    assert whole == pytest.approx([-0.1, -0.1])
    assert result.loss.item() == pytest.approx(0.47)
    assert result.unreachable_tokens == 0


def test_an_unreachable_peer_response_gives_no_gradient_and_no_nan():
    result, grad, _ = loss_of(
        [peer_row()], [-INF, -0.5], [-4.0, -0.7], RatioRule("sequence", cap=2.0)
    )
    assert grad == [0.0, 0.0]
    assert result.loss.item() == 0.0
    assert result.ratios == [(0, 0.0)]


def test_the_gradient_is_that_of_the_truncated_policy(make_policy):
    policy = make_policy(objective={"aggregation": "sum"}, sampling={"top_p": 0.7})
    groups = policy.generate(ITEMS[:1], 6, 0)
    rows = [Row(0, policy.render(ITEMS[0]), one.ids, 0.5) for one in groups[0]]

    def value() -> float:
        return float(sum(0.5 * score.sum() for score in policy.score(rows)))

    accumulate(policy, Assignment(rows, 1))
    parameter = policy.model.lm_head.weight
    (index,) = (np.unravel_index(int(parameter.grad.abs().argmax()), parameter.shape),)
    analytic, step = float(parameter.grad[index]), 1e-6
    found = []
    for sign in (1, -1):
        with torch.no_grad():
            parameter[index] += sign * step
            found.append(value())
            parameter[index] -= sign * step
    assert analytic == pytest.approx(-(found[0] - found[1]) / (2 * step), rel=1e-4)
    assert abs(analytic) > 1e-2


@pytest.mark.parametrize("ratio", ["sequence", "block", "length_normalised"])
def test_the_ratio_of_a_policy_to_itself_is_one(make_policy, ratio):
    me = make_policy("me", probe=PRP(ratio=ratio), sampling={"top_p": 0.6})
    rewards = np.array([[1.0, 0, 0, 1, 0, 0]])
    theirs = Groups(me.generate(ITEMS[:1], 6, 4), rewards, 6)
    own = Groups(me.generate(ITEMS[:1], 2, 5), np.array([[1.0, 0.0]]), 2)
    records = records_of(me, theirs, ITEMS[:1], frozenset({"rollout"}), TASK, 0)
    found = assign(
        me,
        own,
        records,
        ITEMS[:1],
        peers={"me": 6},
        task=TASK,
        reverify=False,
        codecs={"me": me.codec},
        rng=np.random.default_rng(0),
    )
    figures = update(me, found)
    assert figures["ratio_q50"] == pytest.approx(1.0, abs=1e-9)
    assert figures["ratio_mean"] == pytest.approx(1.0 - found.counts["gated_share"], abs=1e-9)
    assert figures["unreachable_tokens"] == 0


def test_the_truncated_and_the_whole_logprobs_agree_up_to_the_mass_that_is_kept(make_policy):
    policy = make_policy()
    rows = [Row(0, (2, 3), (2, 3, 1), 1.0)]
    (batch,) = micro_batches(Assignment(rows, 1), ObjectiveConfig(), 0, torch.device("cpu"))
    size = len(policy.table)
    with torch.no_grad():
        kept, whole = response_logprobs(policy.model, batch, 1.0, size, 0.9)
        same, plain = response_logprobs(policy.model, batch, 1.0, size, 1.0)
    assert same is plain
    assert whole.tolist() == plain.tolist()
    reached = torch.isfinite(kept)
    assert reached.any()
    assert (kept[reached] >= whole[reached]).all()
    assert (kept - whole)[reached].max() <= -np.log(0.9) + 1e-12
