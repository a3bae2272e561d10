"""What the objective adds to the surrogate, and steps that cannot be taken."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from bandit.probes import PRP, RatioRule
from mrl.batch import Assignment, Row, Source, collate
from mrl.config import ObjectiveConfig
from mrl.credit import assign
from mrl.errors import RunError
from mrl.loss import engine_weights, token_loss
from mrl.rollout import Rollout
from mrl.rollout.groups import Groups
from mrl.tasks import Item, Task
from mrl.update import accumulate, update

PROMPT = (2, 3)
SHORT = Row(0, PROMPT, (2, 1), 1.0)
ITEMS = [Item.of("01=", "1"), Item.of("0=", "0")]
TASK = Task(tuple(ITEMS), tuple(ITEMS), "none", lambda *_: 0.0)
# The model normalises in float32, also where its parameters are float64.
ROUNDING = 1e-6
BROKEN = replace(SHORT, pg_weight=float("inf"))


def gradient(policy: Any, *rows: Row, ratio: RatioRule | None = None) -> np.ndarray:
    accumulate(policy, Assignment(list(rows), 1, ratio))
    return torch.cat([p.grad.flatten() for p in policy.parameters]).numpy()


def assigned(policy: Any, rollouts: list[list[Rollout]], rewards: list[list[float]]) -> Assignment:
    """What a policy that learns alone makes of its rollouts."""
    own = Groups(rollouts, np.array(rewards), sum(map(len, rollouts)))
    settings = {"peers": {}, "task": TASK, "reverify": True, "codecs": {}}
    return assign(policy, own, [], ITEMS[: len(rollouts)], rng=np.random.default_rng(0), **settings)


def move(policy: Any) -> None:
    with torch.no_grad():
        for parameter in policy.parameters:
            parameter += 0.2 * torch.randn(
                parameter.shape,
                generator=torch.Generator().manual_seed(parameter.numel()),
                dtype=parameter.dtype,
            )


def next_token(policy: Any, model: Any) -> torch.Tensor:
    """Log-probabilities of the token after PROMPT, at the sampling temperature."""
    logits = model(input_ids=torch.tensor([PROMPT])).logits[0, -1, : len(policy.table)]
    return torch.log_softmax(logits / policy.sampling.temperature, -1)


@pytest.fixture
def every_token() -> Callable[..., list[Row]]:
    """Each one-token response once, weighted so that sums over rows are expectations."""

    def make(probs: np.ndarray, **weights: np.ndarray) -> list[Row]:
        return [
            Row(
                0,
                PROMPT,
                (token,),
                **{"pg_weight": 0.0} | {k: w[token] for k, w in weights.items()},
            )
            for token in range(len(probs))
        ]

    return make


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_divergence_and_its_gradient_are_those_of_kl(make_policy, every_token, temperature):
    policy = make_policy(objective={"kl": 0.5}, sampling={"temperature": temperature})
    move(policy)
    logp, reference = next_token(policy, policy.model), next_token(policy, policy.reference)
    kl = (logp.exp() * (logp - reference.detach())).sum()
    (0.5 * kl).backward()
    expected = torch.cat([p.grad.flatten() for p in policy.parameters]).numpy().copy()
    probs = logp.detach().exp().numpy()
    rows = every_token(probs, kl_weight=probs)
    found = gradient(policy, *rows)
    assert np.abs(expected).max() > 1e-2
    np.testing.assert_allclose(found, expected, rtol=0, atol=ROUNDING * np.abs(expected).max())
    assert accumulate(policy, Assignment(rows, 1))[0] == pytest.approx(0.5 * kl.item(), rel=1e-9)


def test_bare_k3_has_the_value_of_kl_and_another_gradient(make_policy, every_token):
    policies = [make_policy(objective={"kl": 0.5, "kl_unbiased": on}) for on in (True, False)]
    for policy in policies:
        move(policy)
    probs = next_token(policies[0], policies[0].model).detach().exp().numpy()
    rows = every_token(probs, kl_weight=probs)
    unbiased, bare = (accumulate(policy, Assignment(rows, 1))[0] for policy in policies)
    assert bare == pytest.approx(unbiased, rel=1e-12)
    unbiased_gradient, bare_gradient = (gradient(policy, *rows) for policy in policies)
    assert np.abs(unbiased_gradient - bare_gradient).max() > 1e-2


def test_divergence_is_a_mean_over_verified_own_responses_dead_groups_too(make_policy):
    policy = make_policy(objective={"kl": 0.1})
    groups = policy.generate(ITEMS, 4, 0)
    found = assigned(policy, groups, [[1.0, 1.0, 1.0, 1.0], [1.0, 0.0, np.nan, 0.0]])
    weights = np.array([row.kl_weight for row in found.rows]).reshape(2, 4)
    np.testing.assert_allclose(weights, [[1 / 4] * 4, [1 / 3, 1 / 3, 0, 1 / 3]])
    move(policy)
    dead = replace(found, rows=found.rows[:4])
    assert not any(row.pg_weight for row in dead.rows)
    assert accumulate(policy, dead)[0] > 0


def test_what_peers_sampled_has_no_divergence(configure):
    from mrl.train import train

    sizes = {"own": 4, "peers": 4}
    config = configure(2, probe={"kind": "prp"}, group=sizes, objective={"kl": 0.1}, rounds=1)
    seen: list[Row] = []

    def watch(policy: Any, assignment: Assignment) -> dict[str, Any]:
        seen.extend(assignment.rows)
        return update(policy, assignment)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mrl.member.update", watch)
        train(config, unvalidated=True)
    peers = [row for row in seen if row.engine is None]
    assert any(row.pg_weight for row in peers)
    assert {row.kl_weight for row in peers} == {0.0}
    assert PRP.needs == {"rollout"}


def test_divergence_is_logged_per_token_and_counts_equal_responses_as_often_as_they_came(
    make_policy,
):
    policy = make_policy(objective={"kl": 0.1}, optimizer={"kind": "sgd", "lr": 1e-12})
    twice = [replace(SHORT, kl_weight=0.5), replace(SHORT, kl_weight=0.5)]
    other = Row(0, PROMPT, (3, 4, 5, 1), 0.0, kl_weight=0.5)
    assert update(policy, Assignment([*twice, other], 1))["kl"] == 0.0
    move(policy)
    alone = [update(policy, Assignment([row], 1))["kl"] for row in (twice[0], other)]
    found = update(policy, Assignment([*twice, other], 1))["kl"]
    assert found == pytest.approx((4 * alone[0] + 4 * alone[1]) / 8, rel=1e-6)
    assert found > 0


def test_without_divergence_no_reference_is_kept_and_none_is_logged(make_policy):
    policy = make_policy()
    assert policy.reference is None
    assert "kl" not in update(policy, Assignment([replace(SHORT, kl_weight=1.0)], 1))


def test_divergence_without_the_references_logprobs_is_an_error():
    cpu = torch.device("cpu")
    batch = collate([[replace(SHORT, kl_weight=1.0)]], [1.0], 0, cpu, kl=0.1)
    logp = torch.full(batch.mask_NR.shape, -0.5)
    with pytest.raises(ValueError, match="expected the reference"):
        token_loss(logp, batch, None, clip_low=0.2, clip_high=0.28)


@pytest.mark.parametrize("cap", [2.0, 1.0])
def test_engine_weights_are_truncated_ratios(cap):
    trainer = np.log([0.5, 0.3, 0.9, 0.5])
    engine = np.log([0.4, 0.4, 0.01, np.nan])
    expected = [min(1.25, cap), 0.75, cap, 1.0]
    np.testing.assert_allclose(engine_weights(engine, trainer, cap), expected, rtol=1e-12)


def test_correction_gives_an_engines_samples_the_trainers_expectation(make_policy, every_token):
    policy = make_policy(objective={"engine_correction": 1e9})
    probs = next_token(policy, policy.model).detach().exp().numpy()
    engine = np.roll(probs, 1)
    worth = np.linspace(-1, 1, len(probs))
    drawn = every_token(probs, pg_weight=engine * worth)
    rows = [replace(row, engine=np.log(engine[list(row.response)])) for row in drawn]
    expected = gradient(make_policy(), *every_token(probs, pg_weight=probs * worth))
    np.testing.assert_allclose(gradient(policy, *rows), expected, rtol=1e-10, atol=1e-14)
    assert np.abs(gradient(make_policy(), *rows) - expected).max() > 1e-2


def test_correction_is_formed_once_a_round_and_leaves_peers_and_likelihood_alone(make_policy):
    anchor = np.log([0.5, 0.2])
    source = Source(np.array([-2.0]), np.array([0, 0]), True, 3)
    others = [
        replace(SHORT, pg_weight=0.3, anchor=anchor, source=source),
        replace(SHORT, pg_weight=0.0, nll_weight=0.2, anchor=anchor, engine=np.log([0.1, 0.1])),
    ]
    own = replace(SHORT, anchor=anchor, engine=np.log([0.4, 0.4]))
    rule = RatioRule("sequence")
    plain = make_policy(objective={"aggregation": "sum", "clip_high": 99.0, "clip_low": 0.99})
    corrected = make_policy(objective=plain.objective.model_dump() | {"engine_correction": 2.0})
    np.testing.assert_array_equal(
        gradient(corrected, *others, ratio=rule), gradient(plain, *others, ratio=rule)
    )
    # From the anchors: 0.5 / 0.4 and 0.2 / 0.4, whatever the weights have become since.
    by_token = [
        gradient(plain, replace(own, usable=np.array(keep)))
        for keep in ([True, False], [False, True])
    ]
    expected = 1.25 * by_token[0] + 0.5 * by_token[1]
    np.testing.assert_allclose(
        gradient(corrected, own), expected, rtol=0, atol=ROUNDING * np.abs(expected).max()
    )


def test_the_transformers_engine_needs_no_correction(make_policy):
    policy = make_policy(objective={"engine_correction": 2.0}, sampling={"temperature": 0.7})
    groups = policy.generate(ITEMS, 8, 0)
    found = assigned(policy, groups, [[1.0, 0.0] * 4] * 2)
    figures = update(policy, found)
    assert figures["engine_weight_mean"] == pytest.approx(1.0, abs=1e-12)
    assert figures["engine_capped_share"] == 0.0


def test_share_of_capped_tokens_counts_only_tokens_that_count(make_policy):
    policy = make_policy(objective={"engine_correction": 2.0})
    engine = np.array([-60.0, np.nan])
    rows = [
        replace(SHORT, engine=engine, usable=np.array([True, False])),
        replace(SHORT, engine=np.array([-1e-9, -1e-9])),
    ]
    figures = update(policy, Assignment(rows, 1))
    assert figures["engine_capped_share"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("name", ["constant", "dr_grpo"])
def test_constant_divides_by_its_length(make_policy, name):
    rows = [SHORT, Row(0, PROMPT, (3, 3, 2, 1), -0.5)]
    found = gradient(make_policy(objective={"aggregation": name, "length": 4}), *rows)
    expected = gradient(make_policy(objective={"aggregation": "sum"}), *rows) / 4
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-16)


@pytest.mark.parametrize("settings", [{"aggregation": "dr_grpo"}, {"length": 5}], ids=str)
def test_constant_and_its_length_come_together(settings):
    with pytest.raises(ValidationError, match="expected a length"):
        ObjectiveConfig(**settings)


def test_steps_that_cannot_be_taken_are_left_out_and_counted(make_policy):
    policy = make_policy(objective={"skip_nonfinite": 2})
    update(policy, Assignment([SHORT], 1))
    before = [p.detach().clone() for p in policy.parameters]
    moments = [s["exp_avg"].clone() for s in policy.optim.state.values()]
    figures = update(policy, Assignment([BROKEN], 1))
    assert (figures["skipped_steps"], figures["loss"], figures["grad_norm"]) == (1, None, None)
    assert all(map(torch.equal, before, policy.parameters))
    now = [s["exp_avg"] for s in policy.optim.state.values()]
    assert all(map(torch.equal, moments, now))
    figures = update(policy, Assignment([SHORT], 1))
    assert figures["skipped_steps"] == 0
    assert np.isfinite(figures["loss"])
    assert not all(map(torch.equal, before, policy.parameters))


def test_too_many_in_a_row_end_the_run_also_after_a_resume(make_policy):
    policy = make_policy("quick", objective={"skip_nonfinite": 2})
    for row in (BROKEN, SHORT, BROKEN, BROKEN):  # a step that is taken starts the count anew
        update(policy, Assignment([row], 1))
    resumed = make_policy("quick", objective={"skip_nonfinite": 2})
    resumed.optim.load_state_dict(policy.optim.state_dict())
    for one in (policy, resumed):
        with pytest.raises(RunError, match="'quick'.*not finite.*3 in a row.*skip_nonfinite=2"):
            update(one, Assignment([BROKEN], 1))


def ask_for_everything(*_: Any) -> Any:
    return torch.empty(1 << 55)


def cuda_full(*_: Any) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


def python_full(*_: Any) -> Any:
    raise MemoryError


@pytest.mark.parametrize("updates", [1, 2])
@pytest.mark.parametrize("full", [ask_for_everything, cuda_full, python_full])
def test_out_of_memory_names_the_way_out(make_policy, monkeypatch, full, updates):
    policy = make_policy("big", objective={"batch_tokens": 77, "updates": updates})
    monkeypatch.setattr(policy, "logprobs", full)
    with pytest.raises(RunError, match=r"out of memory.*'big'.*batch_tokens"):
        update(policy, Assignment([SHORT], 1))


def test_other_errors_are_not_called_out_of_memory(make_policy, monkeypatch):
    policy = make_policy()
    monkeypatch.setattr(policy, "logprobs", lambda batch: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):
        update(policy, Assignment([SHORT], 1))
