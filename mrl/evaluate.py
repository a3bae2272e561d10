"""Evaluation on held-out items: pass@k, overlap of solved sets, and what only peers solve.

A sample is a *success* when its reward is verified and reaches `Group.success_threshold`. An item
is *solved* by a policy when at least one of its samples is a success; solved sets therefore grow
with the number of samples and are compared at equal numbers only. A sample that could not be
verified is left out of every mean and count, never treated as a failure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bandit.probes import Group
from mrl.config import EvaluationConfig
from mrl.estimates import Array, bootstrap_interval, overlap, pass_at_k, rescue_sets
from mrl.rollout.groups import Generator, count_reasons, first_details, verify_all
from mrl.seeds import derive
from mrl.tasks import Item, Task

# Items whose responses are kept: the first ones, the same at every evaluation.
KEPT_ITEMS = 50


@dataclass(frozen=True)
class Evaluation:
    """What one evaluation found, in plain JSON types.

    Parameters
    ----------
    rows : list of dict
        For the metrics: one ``evaluation`` row a policy and one a policy and tag, then one
        ``overlap`` row a pair of policies. A figure that does not exist is None.
    samples : list of dict
        Responses with their rewards, one row a policy and item.
    """

    rows: list[dict[str, Any]]
    samples: list[dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Answers:
    """One policy's verified responses to held-out items.

    Attributes
    ----------
    policy : str
        Its name.
    texts : list of list of bytes
        Responses to the first items, as far as they are kept.
    rewards : ndarray, shape (items, samples)
        NaN where not verified.
    reasons : ndarray of str, shape (items, samples)
        Why it is not; empty where it is.
    details : ndarray of str, shape (items, samples)
        The same in words.
    """

    policy: str
    texts: list[list[bytes]]
    rewards: Array
    reasons: NDArray[np.object_]
    details: NDArray[np.object_]

    @property
    def successes(self) -> NDArray[np.int64]:
        """Successes of each item, shape (items,)."""
        return (self.rewards >= Group.success_threshold).sum(-1)

    @property
    def verified(self) -> NDArray[np.int64]:
        """Verified samples of each item, shape (items,)."""
        return (~np.isnan(self.rewards)).sum(-1)


def answer(
    policy: Generator, task: Task, items: Sequence[Item], samples: int, seed: int, /
) -> Answers:
    """Sample a policy's responses to `items` and score them.

    Parameters
    ----------
    policy : Generator
        Samples with a seed derived from `seed` and its name.
    task : Task
        Its verifier scores.
    items : sequence of Item
        Held-out items.
    samples : int
        Responses an item.
    seed : int
        Seed of this evaluation.

    Raises
    ------
    ValueError
        If there is no item, or the policy returns another number of responses than it was asked
        for.
    """
    if not items:
        raise ValueError("got 0 held-out items; expected at least one")
    groups = policy.generate(items, samples, derive(seed, "sample", policy.name))
    if [len(group) for group in groups] != [samples] * len(items):
        raise ValueError(
            f"policy {policy.name!r} returned groups of {[len(group) for group in groups]} "
            f"responses; expected {samples} for each of {len(items)} items"
        )
    texts = [[rollout.text for rollout in group] for group in groups[:KEPT_ITEMS]]
    return Answers(policy.name, texts, *verify_all(task, items, groups))


def evaluate(
    policies: Sequence[Generator],
    task: Task,
    config: EvaluationConfig,
    *,
    round: int,
    seed: int,
) -> Evaluation:
    """Evaluate every policy on the first held-out items; see `answer` and `assess`."""
    items = task.heldout[: config.items]
    answers = [answer(policy, task, items, config.samples, seed) for policy in policies]
    return assess(answers, items, config, round=round, seed=seed)


def assess(
    answers: Sequence[Answers],
    items: Sequence[Item],
    config: EvaluationConfig,
    *,
    round: int,
    seed: int,
) -> Evaluation:
    """What the policies' answers show.

    The result is a function of the policies and the arguments. Each policy samples with a seed
    of its own: leaving one out changes nothing for the others but overlap and rescue sets.

    Parameters
    ----------
    answers : sequence of Answers
        Of policies with different names.
    items : sequence of Item
        What they answered.
    config : EvaluationConfig
        Items, samples and the k of pass@k; pass@1 is always among them.
    round : int
        Rounds completed, for the rows.
    seed : int
        Seed of this evaluation.

    Returns
    -------
    Evaluation
        ``evaluation`` rows hold for each k the mean of pass@k over the items with at least k
        verified samples and its 95% bootstrap interval over these items (``pass@k``,
        ``pass@k_low``, ``pass@k_high``); ``reward``, the mean verified reward; ``rescue_items``
        and ``rescue_share``, the size of the policy's rescue set and its share of the items; and
        ``unverified``, the samples without a reward, ``unverified_by_reason``, and what was said of
        the first by reason, ``unverified_said``. Their ``tag`` is None for all items. ``samples``
        hold the first 50 items' responses.

    Raises
    ------
    ValueError
        If two policies share a name.
    """
    names = [one.policy for one in answers]
    if len(set(names)) < len(names):
        raise ValueError(f"got policies named {names}; expected different names")
    rows = _evaluation_rows(answers, items, config, round, derive(seed, "bootstrap"))
    samples = [
        _sample_row(one, i, items[i], texts, round)
        for one in answers
        for i, texts in enumerate(one.texts)
    ]
    return Evaluation(rows + _overlap_rows(answers, round), samples)


def _evaluation_rows(
    outcomes: Sequence[Answers],
    items: Sequence[Item],
    config: EvaluationConfig,
    round: int,
    seed: int,
    /,
) -> list[dict[str, Any]]:
    tags = np.array([item.tag for item in items], dtype=object)
    known = sorted({item.tag for item in items if item.tag is not None})
    chosen = [(None, np.full(len(items), True)), *((tag, tags == tag) for tag in known)]
    rescued = rescue_sets(
        np.array([outcome.successes for outcome in outcomes]),
        verified_counts=np.array([outcome.verified for outcome in outcomes]),
    )
    return [
        {
            "event": "evaluation",
            "round": round,
            "policy": outcome.policy,
            "tag": tag,
            "items": int(mask.sum()),
            "samples": config.samples,
            **_pass_figures(outcome.successes[mask], outcome.verified[mask], config.ks, seed),
            "reward": _verified_mean(outcome.rewards[mask]),
            "rescue_items": int(rescue[mask].sum()),
            "rescue_share": float(rescue[mask].mean()),
            "unverified": int(np.isnan(outcome.rewards[mask]).sum()),
            "unverified_by_reason": count_reasons(outcome.reasons[mask]),
            "unverified_said": first_details(outcome.reasons[mask], outcome.details[mask]),
        }
        for outcome, rescue in zip(outcomes, rescued, strict=True)
        for tag, mask in chosen
    ]


def _pass_figures(
    successes: NDArray[np.int64],
    verified: NDArray[np.int64],
    ks: Sequence[int],
    seed: int,
    /,
) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for k in sorted({1, *ks}):
        enough = verified >= k
        values = pass_at_k(successes[enough], verified[enough], k)
        mean, low, high = None, None, None
        if values.size:
            mean = float(values.mean())
            low, high = bootstrap_interval(values, seed)
        figures |= {f"pass@{k}": mean, f"pass@{k}_low": low, f"pass@{k}_high": high}
    return figures


def _overlap_rows(outcomes: Sequence[Answers], round: int, /) -> list[dict[str, Any]]:
    jaccard = overlap(np.array([outcome.successes > 0 for outcome in outcomes]))
    return [
        {
            "event": "overlap",
            "round": round,
            "policy": outcome.policy,
            "peer": peer.policy,
            "jaccard": _number(jaccard[i, j]),
        }
        for i, outcome in enumerate(outcomes)
        for j, peer in enumerate(outcomes)
        if i < j
    ]


def _sample_row(
    outcome: Answers, index: int, item: Item, texts: Sequence[bytes], round: int, /
) -> dict[str, Any]:
    return {
        "round": round,
        "policy": outcome.policy,
        "prompt_id": item.prompt_id,
        "question": item.question,
        "answer": item.answer,
        "tag": item.tag,
        # Bytes that are not UTF-8 stay readable.
        "responses": [text.decode("utf-8", "backslashreplace") for text in texts],
        "rewards": [_number(reward) for reward in outcome.rewards[index]],
    }


def _verified_mean(rewards: Array, /) -> float | None:
    verified = rewards[~np.isnan(rewards)]
    return float(verified.mean()) if verified.size else None


def _number(value: float, /) -> float | None:
    """JSON has no NaN: what does not exist is null."""
    return None if math.isnan(value) else float(value)
