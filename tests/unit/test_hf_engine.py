"""The transformers sampling engine against plain unpadded forward passes of the same model."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from mrl.rollout.hf import Sampled, positions, sample

PROMPTS = [(2, 3, 5), (3,), (2, 2, 3, 3, 5)]
EOS, PAD = 1, 0


@pytest.fixture
def draw(make_policy: Callable[..., Any]) -> Callable[..., Any]:
    def make(model: Any, /, prompts: Sequence[Sequence[int]] = PROMPTS, **settings: Any) -> Any:
        seed = settings.pop("seed", 0)
        defaults = {"n": 4, "max_tokens": 6, "temperature": 1.0, "eos_id": EOS, "pad_id": PAD}
        generator = torch.Generator().manual_seed(seed)
        return sample(model, prompts, **(defaults | settings), generator=generator)

    return make


def forward(model: Any, prompt: Sequence[int], response: Sequence[int], temperature: float) -> Any:
    """Log-probs of a response in one pass over one sequence, without padding or cache."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
    logp = torch.log_softmax(logits / temperature, dim=-1)[len(prompt) - 1 : -1]
    return logp.gather(-1, torch.tensor(response)[:, None])[:, 0].numpy()


def everything(groups: Sequence[Sequence[Sampled]]) -> list[tuple[Any, ...]]:
    return [(one.ids, one.finished, one.logprobs.tolist()) for group in groups for one in group]


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
            expected = forward(model, prompt, one.ids, temperature)
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


def test_responses_end_at_the_first_end_token(make_policy, draw):
    groups = draw(make_policy().model, n=20, max_tokens=8)
    ones = [one for group in groups for one in group]
    assert {one.finished for one in ones} == {True, False}
    for one in ones:
        assert len(one.ids) == len(one.logprobs)
        assert one.ids.count(EOS) == one.finished
        assert one.ids[-1] == EOS if one.finished else len(one.ids) == 8


def test_without_an_end_token_every_response_has_full_length(make_policy, draw):
    groups = draw(make_policy().model, eos_id=None, max_tokens=5)
    assert {(len(one.ids), one.finished) for group in groups for one in group} == {(5, False)}


@pytest.mark.parametrize("length", [1, 2])
def test_no_response_is_longer_than_allowed(make_policy, draw, length):
    groups = draw(make_policy().model, n=16, max_tokens=length)
    assert [len(group) for group in groups] == [16] * len(PROMPTS)
    assert max(len(one.ids) for group in groups for one in group) == length


def test_the_seed_fixes_every_sample(make_policy, draw):
    model = make_policy().model
    first = everything(draw(model, n=8, seed=5))
    assert everything(draw(model, n=8, seed=5)) == first
    assert everything(draw(model, n=8, seed=6)) != first
    assert len(set(map(str, first))) > 8  # the n responses to a prompt are separate draws


def test_sampling_leaves_the_global_stream_and_the_mode_alone(make_policy, draw):
    model = make_policy().model
    before = torch.get_rng_state()
    draw(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("batch", [1, 4, 9])
def test_batch_size_bounds_rows_and_keeps_every_prompt(make_policy, draw, batch):
    model = make_policy().model
    seen = []
    handle = model.register_forward_pre_hook(
        lambda _, __, inputs: seen.append(len(inputs["input_ids"])), with_kwargs=True
    )
    groups = draw(model, n=4, batch=batch)
    handle.remove()
    assert max(seen) <= max(batch, 4)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        assert len(group) == 4
        for one in group:
            np.testing.assert_allclose(one.logprobs, forward(model, prompt, one.ids, 1.0))


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


def test_new_weights_are_used_at_once(make_policy, draw):
    model = make_policy().model
    before = draw(model, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    after = draw(model, seed=1)
    for prompt, old, new in zip(PROMPTS, before, after, strict=True):
        for one in new:
            np.testing.assert_allclose(one.logprobs, forward(model, prompt, one.ids, 1.0))
        assert old[0].logprobs[0] != new[0].logprobs[0]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_single_tokens_follow_the_softmax(make_policy, draw, temperature):
    model = make_policy().model
    (group,) = draw(model, PROMPTS[:1], n=4000, max_tokens=1, temperature=temperature, seed=11)
    counts = np.bincount([one.ids[0] for one in group], minlength=6)
    expected = [np.exp(forward(model, PROMPTS[0], (t,), temperature)[0]) for t in range(6)]
    assert max(expected) > 2 / 6  # a distribution that uniform draws would fail
    assert chisquare(counts, 4000 * np.array(expected)).pvalue > 1e-3


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
