"""What policies may do differently: adapters, precision, sampling, schedules, group sizes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mrl.batch import Assignment, Row, collate
from mrl.config import LoraConfig, OptimizerConfig, PolicyConfig, parse
from mrl.errors import InputError, RunError
from mrl.memory import memory_for
from mrl.optimizers import rate
from mrl.update import accumulate, update

ROWS = [
    Row(0, (2, 3), (4, 5, 1), 0.7),
    Row(0, (2, 3), (5,), -0.4),
    Row(1, (4,), (2, 2, 3, 1), 0.2, nll_weight=0.1),
]


@pytest.fixture
def build(settings: Callable[..., dict[str, Any]], one_thread: None) -> Callable[..., Any]:
    """A policy from a configuration in which it has some settings of its own."""
    from mrl.policy import build_policy

    def make(**own: Any) -> Any:
        values = settings(1)
        values["policies"][0] |= own
        run = parse(values)
        return build_policy(run.policies[0], run, seed=0)

    return make


def gradients(policy: Any) -> list[torch.Tensor]:
    accumulate(policy, Assignment(ROWS, 2))
    return [parameter.grad.clone() for parameter in policy.parameters]


class TestAdapters:
    def test_they_change_nothing_at_first_and_alone_are_trained(self, build):
        plain, adapted = build(), build(lora={"rank": 2})
        for mine, other in zip(adapted.score(ROWS), plain.score(ROWS), strict=True):
            np.testing.assert_array_equal(mine, other)
        before = {name: tensor.clone() for name, tensor in adapted.model.state_dict().items()}
        assert update(adapted, Assignment(ROWS, 2))["grad_norm"] > 0
        after = adapted.model.state_dict()
        moved = {name for name in before if not before[name].equal(after[name])}
        assert moved
        assert all("lora_" in name for name in moved)

    def test_without_them_the_policy_is_what_it_was(self, build):
        policy = build(lora={"rank": 2}, objective={"kl": 0.1})
        batch = collate([[row] for row in ROWS], [1.0] * len(ROWS), policy.pad_id, policy.device)
        before = policy.logprobs(batch)[1].detach()
        update(policy, Assignment(ROWS, 2))
        assert policy.reference is None  # no copy of the weights
        assert not torch.equal(policy.logprobs(batch)[1], before)
        assert torch.equal(policy.reference_logprobs(batch), before)

    def test_a_policy_without_any_has_no_such_reference(self, build):
        policy = build()
        batch = collate([[row] for row in ROWS], [1.0] * len(ROWS), policy.pad_id, policy.device)
        with pytest.raises(ValueError, match="no adapters"):
            policy.reference_logprobs(batch)

    def test_scores_have_no_dropout(self, build):
        policy = build(lora={"rank": 2, "dropout": 0.5})
        update(policy, Assignment(ROWS, 2))
        first, second = policy.score(ROWS), policy.score(ROWS)
        for one, other in zip(first, second, strict=True):
            np.testing.assert_array_equal(one, other)
        assert policy.model.training

    def test_unknown_target_modules_are_refused_with_those_there_are(self, build):
        with pytest.raises(InputError, match=r"'a'.*attention.*q_proj"):
            build(lora={"target_modules": ["attention"]})

    def test_float16_parameters_may_only_lie_under_them(self, build):
        model = {"kind": "init", "params": {"hidden_size": 16}, "dtype": "float16"}
        with pytest.raises(InputError, match="'lora' section"):
            build(model=model)
        config = PolicyConfig.model_validate(
            {"name": "a", "model": model, "tokenizer": {"kind": "characters", "alphabet": "01"}}
            | {"lora": LoraConfig()}
        )
        assert config.model.dtype == "float16"


@pytest.mark.parametrize("own", [{}, {"lora": {"rank": 2}}], ids=["full", "adapters"])
def test_activation_checkpointing_changes_no_gradient(build, own):
    kept, again = (build(activation_checkpointing=flag, **own) for flag in (False, True))
    assert again.model.is_activation_checkpointing
    for mine, other in zip(gradients(again), gradients(kept), strict=True):
        assert mine.equal(other)
    assert any(gradient.any() for gradient in gradients(kept))


class TestPrecision:
    def test_bfloat16_computes_low_and_keeps_float32_parameters(self, build):
        low, full = build(precision="bfloat16"), build(precision="full")
        update(low, Assignment(ROWS, 2))
        assert {p.dtype for p in low.parameters} == {p.grad.dtype for p in low.parameters}
        assert {p.dtype for p in low.parameters} == {torch.float32}
        low = build(precision="bfloat16")
        for mine, other in zip(low.score(ROWS), full.score(ROWS), strict=True):
            assert (mine != other).any()
            np.testing.assert_allclose(mine, other, atol=0.05)

    def test_sampling_and_scoring_agree(self, build, one_item):
        policy = build(precision="bfloat16", sampling={"max_tokens": 8})
        (group,) = policy.generate([one_item], 16, 0)
        prompt = policy.render(one_item)
        scores = policy.score([Row(0, prompt, one.ids, 1.0) for one in group])
        for score, one in zip(scores, group, strict=True):
            np.testing.assert_allclose(score, one.logprobs, atol=0.05)

    def test_it_wants_float32_parameters(self, build):
        model = {"kind": "init", "params": {"hidden_size": 16}, "dtype": "bfloat16"}
        with pytest.raises(InputError, match="precision bfloat16 over bfloat16"):
            build(model=model, precision="bfloat16")


@pytest.fixture
def one_item() -> Any:
    from mrl.tasks import Item

    return Item.of("01=", "1")


class TestSampling:
    def test_each_side_of_a_ratio_has_its_own_temperature(self, build, one_item):
        """A source samples at 2, the receiver scores at 0.5: neither sees the other's setting."""
        source = build(sampling={"temperature": 2.0, "max_tokens": 3})
        receiver = build(sampling={"temperature": 0.5, "max_tokens": 3})
        (group,) = source.generate([one_item], 8, 0)
        rows = [Row(0, source.render(one_item), one.ids, 1.0) for one in group]
        for one, at_source, at_receiver in zip(
            group, source.score(rows), receiver.score(rows), strict=True
        ):
            np.testing.assert_allclose(one.logprobs, at_source, atol=1e-5)
            assert np.abs(at_receiver - at_source).max() > 0.01

    def test_responses_do_not_depend_on_what_else_is_sampled_in_other_parts(self, build, one_item):
        from mrl.tasks import Item

        policy = build(sampling={"max_tokens": 4, "batch": 4})
        items = [one_item, Item.of("10=", "1"), Item.of("11=", "0")]
        every = policy.generate(items, 4, 7)
        assert [one.ids for one in every[0]] == [
            one.ids for one in policy.generate(items[:1], 4, 7)[0]
        ]


class TestSchedules:
    def test_rates_rise_then_fall_to_zero_at_the_end(self):
        linear = OptimizerConfig(schedule="linear", warmup_rounds=2, decay_rounds=6)
        found = [rate(linear, done) for done in range(8)]
        assert found == pytest.approx([1 / 3, 2 / 3, 1, 0.75, 0.5, 0.25, 0, 0])
        cosine = OptimizerConfig(schedule="cosine", decay_rounds=4)
        found = [rate(cosine, done) for done in range(5)]
        assert found == pytest.approx([1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0])

    def test_without_an_end_of_its_own_it_is_the_runs(self, build):
        assert rate(OptimizerConfig(schedule="linear"), 5, 10) == 0.5
        policy = build(optimizer={"lr": 1.0, "schedule": "linear"})  # the run has 2 rounds
        rates = [update(policy, Assignment([], 1))["lr"] for _ in range(3)]
        assert rates == [1.0, 0.5, 0.0]

    def test_an_end_before_the_warm_up_or_of_a_constant_rate_is_refused(self):
        for wrong in ({"decay_rounds": 3}, {"schedule": "linear", "warmup_rounds": 3}):
            with pytest.raises(ValueError, match="decay_rounds"):
                OptimizerConfig.model_validate({"decay_rounds": 3} | wrong)

    @pytest.mark.parametrize("schedule", ["linear", "cosine"])
    def test_a_warm_up_that_outlasts_a_run_that_cannot_grow_is_refused(self, settings, schedule):
        def run(rounds: int, **more):
            values = settings(2, rounds=rounds)
            values["policies"][1]["optimizer"] = {"schedule": schedule, "warmup_rounds": 3, **more}
            return parse(values)

        assert run(4).rounds == 4
        for rounds in (2, 3):
            with pytest.raises(InputError) as caught:
                run(rounds)
            for words in ("policy 'b'", "warmup_rounds=3", f"rounds={rounds}", "decay_rounds"):
                assert words in str(caught.value)
        # these may grow: the warm-up goes on where the run does
        assert run(2, decay_rounds=8).rounds == 2
        assert run(2, schedule="constant").rounds == 2


class TestInheritance:
    def test_what_a_policy_leaves_out_is_as_in_the_run(self, settings):
        values = settings(2, sampling={"max_tokens": 5, "top_p": 0.9}, objective={"clip_low": 0.1})
        values["policies"][0] |= {
            "sampling": {"temperature": 0.5},
            "objective": {"updates": 2},
            "group": {"own": 4},
        }
        run = parse(values)
        a, b = run.policies
        sampling = run.sampling_of(a)
        assert (sampling.temperature, sampling.max_tokens, sampling.top_p) == (0.5, 5, 0.9)
        assert (run.objective_of(a).updates, run.objective_of(a).clip_low) == (2, 0.1)
        assert (run.group_of(a).own, run.group_of(a).peers) == (4, 6)
        assert run.group_of(b) == run.group
        assert parse(run.model_dump()) == run

    def test_a_receiver_cannot_ask_for_more_than_its_peer_draws(self, settings):
        values = settings(2, probe={"kind": "prp"})
        values["policies"][0] |= {"group": {"own": 4}}
        with pytest.raises(InputError, match=r"'b' for 6 rollouts of 'a', which has group.own=4"):
            parse(values)
        values["policies"][1] |= {"group": {"peers": {"a": 4}}}
        assert parse(values).peers_of("b") == {"a": 4}

    @pytest.mark.parametrize("best", ["pass@3", "loss"])
    def test_the_best_checkpoint_is_chosen_by_a_figure_of_the_evaluation(self, settings, best):
        with pytest.raises(InputError, match=r"checkpoint.best.*pass@1.*pass@2"):
            parse(settings(1, checkpoint={"best": best}))

    def test_the_best_checkpoint_needs_scheduled_evaluations(self, settings):
        values = settings(1, rounds=2, checkpoint={"best": "pass@1"}, evaluation={"every": 0})
        with pytest.raises(InputError, match="evaluation.every=0; expected"):
            parse(values)

    def test_a_trial_shorter_than_its_schedule_of_evaluations_is_allowed(self, settings):
        values = settings(1, rounds=2, checkpoint={"best": "pass@1"}, evaluation={"every": 3})
        assert parse(values).checkpoint.best == "pass@1"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_want_of_memory_names_the_way_out(error):
    message = "while a samples.*lower sampling.batch.*--resume"
    with (
        pytest.raises(RunError, match=message),
        memory_for("while a samples", "lower sampling.batch"),
    ):
        raise error


def test_other_errors_pass_as_they_are():
    with pytest.raises(RuntimeError, match="shapes"), memory_for("", ""):
        raise RuntimeError("shapes cannot be multiplied")


@pytest.mark.parametrize("key", ["lr", "weight_decay"])
def test_infinite_settings_are_refused(key):
    with pytest.raises(ValueError, match="finite"):
        OptimizerConfig.model_validate({key: float("inf")})
