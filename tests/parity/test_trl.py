"""Given the same rollouts and rewards, TRL's GRPOTrainer finds the same loss and gradient.

Both sides run their own code from rollouts on. TRL: `_generate_and_score_completions` (rewards,
advantages, masks, reference, engine correction), then `compute_loss`. Here: `assign`, then
`accumulate`. Three weights take part: the initial ones (the reference), those that sampled, and
those that learn, far enough from them that tokens are clipped.

TRL computes log-probabilities and advantages in float32, which bounds the agreement: 1e-6 of the
largest entry of the gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bandit.probes import GRPO
from mrl.credit import assign
from mrl.rollout.groups import Groups
from mrl.tasks import Item, Task
from mrl.update import accumulate

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*gradient_checkpointing.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:You are using 'rollout_func':UserWarning"),
]

BOUND = 1e-6
CONVENTION = {"ddof": 1, "eps": 1e-4}
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
PROMPTS = ["01=", "0=", "110+1="]
GENERATIONS, LONGEST, TEMPERATURE = 4, 6, 0.7
# TRL's `loss_type` and the objective that means the same.
LOSS_TYPES: dict[str, dict[str, Any]] = {
    "grpo": {"aggregation": "grpo"},
    "dapo": {"aggregation": "dapo"},
    "bnpo": {"aggregation": "bnpo"},
    "dr_grpo": {"aggregation": "dr_grpo", "length": LONGEST},
}
# TRL's `scale_rewards` and the scale of the sharing rule.
SCALES = {"group": "std", "none": "none"}


@dataclass(frozen=True)
class Weights:
    """Parameters by name, as `load_state_dict` takes them."""

    initial: dict[str, torch.Tensor]
    sampling: dict[str, torch.Tensor]
    learning: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Round:
    """What both trainers are given."""

    folder: Path
    """The initial model with its tokenizer."""
    weights: Weights
    items: list[Item]
    groups: Groups


def moved(state: dict[str, torch.Tensor], size: float, seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value + size * torch.randn(value.shape, generator=generator, dtype=value.dtype)
        for name, value in state.items()
    }


@pytest.fixture
def drawn(make_policy: Callable[..., Any], tmp_path: Path) -> Round:
    """Three groups: one without reward variance, equal and truncated responses among them."""
    policy = ours(make_policy, {}, "std")
    initial = {name: value.clone() for name, value in policy.model.state_dict().items()}
    sampling = moved(initial, 0.05, 1)
    policy.model.save_pretrained(tmp_path / "model")
    policy.tokenizer.save_pretrained(tmp_path / "model")
    policy.model.load_state_dict(sampling)
    items = [Item.of(prompt, "1") for prompt in PROMPTS]
    rollouts = policy.generate(items, GENERATIONS, 5)
    lengths = [len(one.ids) for group in rollouts for one in group]
    assert len(set(lengths)) > 3
    assert {one.finished for group in rollouts for one in group} == {True, False}
    rewards = np.array([[1.0, 0.0, 0.25, 0.0], [0.5, 0.5, 0.5, 0.5], [0.0, 1.0, 1.0, 0.75]])
    return Round(
        tmp_path / "model",
        Weights(initial, sampling, moved(sampling, 0.1, 2)),
        items,
        Groups(rollouts, rewards, len(lengths)),
    )


def ours(make_policy: Callable[..., Any], objective: dict[str, Any], scale: str) -> Any:
    return make_policy(
        probe=GRPO(scale=scale, **CONVENTION),
        sampling={"temperature": TEMPERATURE, "max_tokens": LONGEST},
        objective=CLIP | {"batch_tokens": 24} | objective,
    )


def our_gradient(policy: Any, given: Round) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradient by the trainer of this repository, in several micro-batches."""
    task = Task(tuple(given.items), tuple(given.items), "none", lambda *_: 0.0)
    work = assign(
        policy,
        given.groups,
        [],
        given.items,
        peers={},
        task=task,
        reverify=True,
        codecs={},
        rng=np.random.default_rng(0),
    )
    policy.model.load_state_dict(given.weights.sampling)
    anchors = policy.score(work.rows)
    rows = [replace(row, anchor=one) for row, one in zip(work.rows, anchors, strict=True)]
    policy.model.load_state_dict(given.weights.learning)
    loss, results = accumulate(policy, replace(work, rows=rows))
    assert len(results) > 1
    assert 0 < sum(one.clipped_tokens for one in results) < sum(one.pg_tokens for one in results)
    return loss, {name: p.grad.numpy() for name, p in policy.model.named_parameters()}


def their_gradient(
    given: Round, policy: Any, engine_cap: float | None = None, **settings: Any
) -> tuple[float, dict[str, np.ndarray]]:
    """Loss and gradient by TRL's GRPOTrainer."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    rollouts = [one for group in given.groups.rollouts for one in group]
    asked = [item.question for item in given.items for _ in range(GENERATIONS)]
    trainer = GRPOTrainer(
        model=str(given.folder),
        processing_class=policy.tokenizer,
        reward_funcs=lambda completions, **_: given.groups.rewards.flatten().tolist(),
        train_dataset=Dataset.from_dict({"prompt": asked}),
        rollout_func=lambda prompts, _: {
            "prompt_ids": [policy.render(item) for item in given.items for _ in range(GENERATIONS)],
            "completion_ids": [list(one.ids) for one in rollouts],
            "logprobs": [one.logprobs.tolist() for one in rollouts],
        },
        args=GRPOConfig(
            output_dir=str(given.folder.parent / "trl"),
            model_init_kwargs={"dtype": torch.float64},
            use_cpu=True,
            bf16=False,
            report_to="none",
            per_device_train_batch_size=len(rollouts),
            num_generations=GENERATIONS,
            max_completion_length=LONGEST,
            temperature=TEMPERATURE,
            epsilon=CLIP["clip_low"],
            epsilon_high=CLIP["clip_high"],
            vllm_importance_sampling_mode="token_truncate",
            vllm_importance_sampling_clip_max=engine_cap or 2.0,
            **settings,
        ),
    )
    # As if its vLLM engine had sampled: what the loss does with the log-probs needs no engine.
    trainer.use_vllm = engine_cap is not None
    trainer._last_loaded_step = trainer.state.global_step
    trainer.current_gradient_accumulation_steps = 1
    model = trainer.model.train()
    model.load_state_dict(given.weights.sampling)
    inputs = trainer._generate_and_score_completions([{"prompt": prompt} for prompt in asked])
    prompt_mask, completion_mask = inputs["prompt_mask"], inputs["completion_mask"]
    with torch.no_grad():
        inputs["old_per_token_logps"], _, _ = trainer._get_per_token_logps_and_entropies(
            model,
            torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
            torch.cat([prompt_mask, completion_mask], dim=1),
            completion_mask.shape[1],
        )
    model.load_state_dict(given.weights.learning)
    loss = trainer.compute_loss(model, inputs)
    loss.backward()
    return loss.item(), {name: p.grad.numpy() for name, p in model.named_parameters()}


def difference(found: tuple[float, Any], expected: tuple[float, Any]) -> float:
    """Largest difference of loss and gradient, relative to the gradient's largest entry."""
    (loss, gradient), (their_loss, their_gradients) = found, expected
    assert gradient.keys() == their_gradients.keys()
    largest = max(np.abs(one).max() for one in their_gradients.values())
    assert largest > 1e-3
    gaps = [np.abs(gradient[name] - one).max() for name, one in their_gradients.items()]
    return max(abs(loss - their_loss), *gaps) / largest


@pytest.mark.parametrize("beta", [0.0, 0.3])
@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_loss_and_gradient_are_those_of_trl(make_policy, drawn, loss_type, scale, beta):
    policy = ours(make_policy, LOSS_TYPES[loss_type] | {"kl": beta}, SCALES[scale])
    settings = {"loss_type": loss_type, "scale_rewards": scale, "beta": beta}
    expected = their_gradient(drawn, policy, **settings)
    assert difference(our_gradient(policy, drawn), expected) < BOUND


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_masked_truncated_responses_count_as_in_trl(make_policy, drawn, loss_type):
    objective = LOSS_TYPES[loss_type] | {"kl": 0.3, "mask_truncated": True}
    policy = ours(make_policy, objective, "std")
    settings = {"loss_type": loss_type, "beta": 0.3, "mask_truncated_completions": True}
    expected = their_gradient(drawn, policy, **settings)
    assert difference(our_gradient(policy, drawn), expected) < BOUND


def test_bare_k3_is_that_of_trl(make_policy, drawn):
    policy = ours(make_policy, {"aggregation": "dapo", "kl": 0.3, "kl_unbiased": False}, "std")
    settings = {"loss_type": "dapo", "beta": 0.3, "use_bias_correction_kl": False}
    expected = their_gradient(drawn, policy, **settings)
    assert difference(our_gradient(policy, drawn), expected) < BOUND


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_engine_correction_is_truncated_as_in_trl(make_policy, drawn, loss_type):
    noise = np.random.default_rng(0)
    apart = [
        [replace(one, logprobs=one.logprobs + noise.normal(0, 0.7, len(one.ids))) for one in group]
        for group in drawn.groups.rollouts
    ]
    given = replace(drawn, groups=replace(drawn.groups, rollouts=apart))
    cap = 1.5
    policy = ours(make_policy, LOSS_TYPES[loss_type] | {"kl": 0.3, "engine_correction": cap}, "std")
    expected = their_gradient(given, policy, cap, loss_type=loss_type, beta=0.3)
    assert difference(our_gradient(policy, given), expected) < BOUND


@pytest.mark.parametrize(
    ("objective", "scale"),
    [
        ({"aggregation": "grpo"}, "std"),
        ({"aggregation": "dapo"}, "none"),
        ({"aggregation": "dapo", "clip_high": 0.2}, "std"),
        ({"aggregation": "dapo", "kl": 0.01}, "std"),
        ({"aggregation": "dapo", "mask_truncated": True}, "std"),
    ],
    ids=str,
)
def test_other_conventions_do_not_pass(make_policy, drawn, objective, scale):
    policy = ours(make_policy, objective, scale)
    expected = their_gradient(drawn, policy, loss_type="dapo", beta=0.0)
    assert difference(our_gradient(policy, drawn), expected) > 1e-2


def test_our_default_epsilon_differs_from_trls_by_its_size(make_policy, drawn):
    policy = ours(make_policy, {"aggregation": "dapo"}, "std")
    expected = their_gradient(drawn, policy, loss_type="dapo", beta=0.0)
    policy.probe = GRPO()
    # Deviations are near 1/2: 1e-4 in 0.5.
    assert 1e-5 < difference(our_gradient(policy, drawn), expected) < 1e-3
