"""Each input of trainer.json through the trainer: what it must make of it."""

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
import torch

from mrl.batch import Assignment, Row, micro_batches
from mrl.config import ObjectiveConfig
from mrl.credit import assign
from mrl.errors import InputError
from mrl.loss import token_loss
from mrl.rollout import Rollout
from mrl.rollout.groups import Groups, verify_all
from mrl.tasks import Item, Task
from mrl.tasks.verifiers import exact
from mrl.update import update

CASES = {
    case["id"]: case
    for case in json.loads(Path(__file__).with_name("trainer.json").read_text())["cases"]
}
ITEM = Item.of("01=", "1")
TASK = Task((ITEM,), (ITEM,), "exact", exact)


def own_rows(policy: Any, *rollouts: Rollout) -> tuple[Assignment, Groups]:
    """The rows of one group of a policy that learns alone."""
    groups = Groups([list(rollouts)], verify_all(TASK, [ITEM], [rollouts])[0], len(rollouts))
    settings = {"peers": {}, "task": TASK, "reverify": True, "codecs": {}}
    return assign(policy, groups, [], [ITEM], rng=np.random.default_rng(0), **settings), groups


def test_own_ids_are_kept(make_policy, pairs):
    policy = make_policy(tokenizer=pairs)
    (canonical,) = policy.encode([b"01"])
    sampled = tuple(policy.tokenizer.convert_tokens_to_ids(["0", "1"]))
    assert len(canonical) == 1
    assert policy.text(sampled, False) == b"01"
    one = Rollout(sampled, np.array([-1.0, -2.0]), False, b"01")
    assert policy.canonical([one]) == [False]
    found, _ = own_rows(policy, one, one)
    assert [row.response for row in found.rows] == [sampled, sampled]
    with pytest.raises(ValueError, match="2 token ids and 1 log-probs"):
        replace(one, logprobs=np.array([-1.0]))


def test_temperature_is_the_same_on_both_sides(make_policy):
    temperature = CASES["temperature"]["temperature"]
    policy = make_policy(
        dtype="float32",
        sampling={"temperature": temperature},
    )
    (group,) = policy.generate([ITEM], 16, 0)
    scored = policy.score([Row(0, policy.render(ITEM), one.ids, 1.0) for one in group])
    for one, again in zip(group, scored, strict=True):
        np.testing.assert_allclose(np.exp(again - one.logprobs), 1.0, rtol=0, atol=1e-5)


def test_missing_engine_logprob_leaves_loss_and_normaliser(make_policy):
    logprobs = np.array(CASES["nan-engine-logprob"]["logprobs"], dtype=np.float64)
    policy = make_policy()
    good = Rollout((3, 1), np.array([-1.0, -1.0]), True, b"1")
    found, _ = own_rows(policy, good, Rollout((2, 2, 1), logprobs, True, b"00"))
    assert found.counts["nan_logprobs"] == 1
    assert [row.length for row in found.rows] == [2, 2]
    (batch,) = micro_batches(found, ObjectiveConfig(), 0, torch.device("cpu"))
    logp = torch.full(batch.mask_NR.shape, -1.0, dtype=torch.float64, requires_grad=True)
    token_loss(logp, batch, None, clip_low=0.2, clip_high=0.28).loss.backward()
    # Advantages +-1/sqrt(2) over 2 rollouts, mean length 2; the token in the middle has no part.
    size = 1 / np.sqrt(2) / 2 / 2
    np.testing.assert_allclose(logp.grad, [[-size, -size, 0], [size, 0, size]], rtol=1e-5)


def test_fully_masked_batch_gives_loss_zero(make_policy):
    mask = np.array(CASES["all-masked"]["mask"], dtype=bool)
    policy = make_policy()
    rows = [Row(0, (2,), (token, 1), weight) for token, weight in ((3, 1.0), (2, -1.0))]
    masked = [replace(row, usable=usable) for row, usable in zip(rows, mask, strict=True)]
    before = [p.detach().clone() for p in policy.parameters]
    figures = update(policy, Assignment(masked, 1))
    assert (figures["loss"], figures["grad_norm"]) == (0.0, 0.0)
    assert all(map(torch.equal, before, policy.parameters))
    assert update(policy, Assignment(rows, 1))["grad_norm"] > 0


def test_engine_uses_new_weights_for_the_same_prompt(make_policy):
    policy = make_policy(sampling={"max_tokens": 1}, optimizer={"lr": 0.1})

    def first_token() -> dict[int, float]:
        (group,) = policy.generate([ITEM], 200, 0)
        return {one.ids[0]: one.logprobs[0] for one in group}

    before = first_token()
    best = max(before, key=lambda token: before[token])
    update(policy, Assignment([Row(0, policy.render(ITEM), (best,), -1.0)], 1))
    after = first_token()
    (scored,) = policy.score([Row(0, policy.render(ITEM), (best,), 1.0)])
    assert after[best] == pytest.approx(scored[0], rel=1e-12)
    assert after[best] < before[best]


def test_threads_may_share_one_policys_tokenizer(make_policy, pairs):
    policy = make_policy(tokenizer=pairs)
    texts = [f"{i:08b}".encode() for i in range(256)]
    expected = policy.encode(texts)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: policy.encode(texts), range(40)))
    assert all(one == expected for one in found)


def test_prompt_too_long_is_named_with_its_lengths(make_policy):
    policy = make_policy(max_position_embeddings=8, sampling={"max_tokens": 4})
    fits, long = Item.of("0" * 4, "1"), Item.of("0" * 5, "1")
    assert len(policy.render(fits)) == 4
    with pytest.raises(InputError, match=rf"{long.prompt_id} has 5 tokens.*max_tokens=4.* of 8"):
        policy.generate([fits, long], 2, 0)


def test_empty_response_is_a_valid_rollout(make_policy):
    policy = make_policy()
    empty = Rollout((1,), np.array([-1.0]), True, b"")
    right = Rollout((3, 1), np.array([-1.0, -1.0]), True, b"1")
    found, groups = own_rows(policy, empty, right)
    assert groups.rewards.tolist() == [[0.0, 1.0]]
    assert found.rows[0].counted
    assert found.rows[0].length == 1
    assert found.rows[0].pg_weight == -found.rows[1].pg_weight < 0
    assert update(policy, found)["grad_norm"] > 0


class Killed(BaseException):
    """Stands for the end of the process: no handler of the trainer's catches it."""


# What is called last, and whether it is still done.
MOMENTS = {
    "weights-written": ("mrl.checkpoint.save_weights", True),
    "before-the-manifest": ("mrl.checkpoint._checksums", False),
    "manifest-written": ("mrl.checkpoint._sync", False),
    "before-the-rename": ("pathlib.Path.rename", False),
    "renamed": ("pathlib.Path.rename", True),
    "before-the-old-one-goes": ("mrl.checkpoint._complete", False),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_at_any_moment_of_a_checkpoint_a_whole_one_loads(configure, monkeypatch, moment):
    from mrl.train import train

    settings = {"rounds": 3, "checkpoint": {"every": 1, "keep": 1}}
    whole = train(configure(1, name="whole", **settings))
    config = configure(1, **settings)

    def arm(done: int, _: Any) -> None:
        if done == 1:
            monkeypatch.setattr(name, dying)

    name, still_done = MOMENTS[moment]
    real = resolve_name(name)

    def dying(*arguments: Any, **keywords: Any) -> None:
        if still_done:
            real(*arguments, **keywords)
        raise Killed

    with pytest.raises(Killed):
        train(config, progress=arm)
    monkeypatch.undo()
    train(config, resume=True)
    for stream in ("metrics.jsonl", "samples.jsonl"):
        assert (config.folder / stream).read_bytes() == (whole / stream).read_bytes()
    assert [one.name for one in (config.folder / "checkpoints").iterdir()] == ["round-000003"]
