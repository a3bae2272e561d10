"""The transformers engine: the contract of all engines, and how it batches."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from engine_contract import EOS, PAD, PROMPTS, VOCABULARY, EngineContract, forward

from mrl.config import HFEngineConfig
from mrl.rollout import Decoding
from mrl.rollout.hf import HFEngine, positions, sample


class TestHFEngine(EngineContract):
    config = HFEngineConfig()
    tolerance = 1e-5


@pytest.fixture
def draw(make_policy: Callable[..., Any]) -> Callable[..., Any]:
    def make(model: Any, /, prompts: Sequence[Sequence[int]] = PROMPTS, **settings: Any) -> Any:
        seed = settings.pop("seed", 0)
        defaults = {"n": 4, "max_tokens": 6, "temperature": 1.0, "eos_id": EOS, "pad_id": PAD}
        generator = torch.Generator().manual_seed(seed)
        return sample(model, prompts, **(defaults | settings), generator=generator)

    return make


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("pad", [PAD, EOS], ids=["pad", "pad-is-eos"])
def test_sampled_logprobs_are_those_of_scoring(
    make_policy, draw, dtype, tolerance, temperature, pad
):
    model = make_policy(dtype=dtype, num_hidden_layers=2).model
    groups = draw(model, temperature=temperature, pad_id=pad)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for one in group:
            expected = forward(model, prompt, one.ids, temperature=temperature)
            np.testing.assert_allclose(one.logprobs, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_policy_scores_its_own_rollouts_as_it_sampled_them(make_policy, temperature):
    from mrl.batch import Row
    from mrl.tasks import Item

    policy = make_policy(dtype="float32", sampling={"temperature": temperature})
    items = [Item.of("01=", "1"), Item.of("1+1+1=", "1")]
    groups = policy.generate(items, 5, 3)
    rows = [
        Row(0, policy.render(item), one.ids, 1.0)
        for item, group in zip(items, groups, strict=True)
        for one in group
    ]
    sampled = [one.logprobs for group in groups for one in group]
    for scored, expected in zip(policy.score(rows), sampled, strict=True):
        np.testing.assert_allclose(scored, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("batch", [1, 4, 9])
def test_batch_size_bounds_rows_and_keeps_every_prompt(make_policy, batch):
    model = make_policy().model
    seen = []
    handle = model.register_forward_pre_hook(
        lambda _, __, inputs: seen.append(len(inputs["input_ids"])), with_kwargs=True
    )
    decoding = Decoding(max_tokens=6, eos_id=EOS, pad_id=PAD, vocabulary=VOCABULARY, batch=batch)
    groups = HFEngine(model, decoding).generate(PROMPTS, 4, 0)
    handle.remove()
    assert max(seen) <= max(batch, 4)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        assert len(group) == 4
        for one in group:
            np.testing.assert_allclose(one.logprobs, forward(model, prompt, one.ids))


def test_finished_rows_leave_the_batch(make_policy, draw):
    model = make_policy().model
    rows = []
    handle = model.register_forward_pre_hook(
        lambda _, __, inputs: rows.append(len(inputs["input_ids"])), with_kwargs=True
    )
    groups = draw(model, n=20, max_tokens=8)
    handle.remove()
    lengths = np.array([len(one.ids) for group in groups for one in group])
    done = np.array([one.finished for group in groups for one in group])
    # Call t (after the prompt's) carries the rows that go on after t tokens.
    expected = [int(((lengths > t) | ((lengths == t) & ~done)).sum()) for t in range(1, 8)]
    assert rows[1:] == [n for n in expected if n]


def test_positions_do_not_count_padding():
    mask = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])
    assert positions(mask).tolist() == [[0, 0, 0, 1], [0, 1, 2, 3]]


def test_logits_beyond_the_vocabulary_are_neither_sampled_nor_summed(make_policy):
    from mrl.batch import Row
    from mrl.tasks import Item

    policy = make_policy(vocab_size=40)
    (group,) = policy.generate([Item.of("01=", "1")], 50, 0)
    assert {token for one in group for token in one.ids} <= set(range(len(policy.tokenizer)))
    (score,) = policy.score([Row(0, (2,), (3,), 1.0)])
    logits = policy.model(input_ids=torch.tensor([[2]])).logits[0, 0, : len(policy.tokenizer)]
    assert score[0] == pytest.approx(torch.log_softmax(logits, -1)[3].item(), rel=1e-12)
