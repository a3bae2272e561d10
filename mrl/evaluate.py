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
from numpy.typing import ArrayLike, NDArray

from bandit.probes import Group
from mrl.config import EvaluationConfig
from mrl.rollout.groups import Generator, count_reasons, first_details, verify_all
from mrl.seeds import derive
from mrl.tasks import Item, Task

Array = NDArray[np.float64]

# Numbers that the bootstrap draws at a time.
RESAMPLED = 2**18
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


def pass_at_k(successes: ArrayLike, samples: ArrayLike, k: int, /) -> Array:
    """Estimate without bias the probability that one of `k` samples is a success.

    With c successes among n samples it is the share of k-subsets that hold a success,
    ``1 - C(n-c, k) / C(n, k)``; computed in integers and rounded once.

    Parameters
    ----------
    successes : array_like of int, shape (items,)
        Successes c of each item, 0 <= c <= n.
    samples : array_like of int, shape (items,) or ()
        Samples n of each item, n >= k.
    k : int
        Size of the subsets, >= 1.

    Returns
    -------
    ndarray, shape (items,)
        Estimates in [0, 1].

    Raises
    ------
    ValueError
        If an argument is out of its range or not whole.

    Notes
    -----
    Source: Chen et al. 2021, arXiv 2107.03374, equation 1.
    """
    hits, totals = np.broadcast_arrays(np.asarray(successes), np.asarray(samples))
    for name, values in (("successes", hits), ("samples", totals), ("k", np.asarray(k))):
        if values.dtype.kind not in "iu":
            raise ValueError(f"{name} has dtype {values.dtype}; expected whole numbers")
    if k < 1 or np.any(totals < k):
        raise ValueError(
            f"k={k} with samples={totals.tolist()}; expected 1 <= k <= samples for every item: "
            "leave out items with fewer samples"
        )
    if np.any((hits < 0) | (hits > totals)):
        raise ValueError(
            f"successes={hits.tolist()} of samples={totals.tolist()}; "
            "expected 0 <= successes <= samples"
        )
    counts = zip(hits.ravel().tolist(), totals.ravel().tolist(), strict=True)
    subsets = [(math.comb(n, k), math.comb(n - c, k)) for c, n in counts]
    shares = [(every - failing) / every for every, failing in subsets]
    return np.array(shares, dtype=np.float64).reshape(hits.shape)


def bootstrap_interval(
    values: ArrayLike, seed: int, level: float = 0.95, resamples: int = 2000
) -> tuple[float, float]:
    """Percentile bootstrap interval of a mean.

    Parameters
    ----------
    values : array_like, shape (items,)
        One finite number an item; items are drawn with replacement.
    seed : int
        Seeds the draws.
    level : float
        Coverage aimed at, in (0, 1).
    resamples : int
        Draws of all items, >= 1.

    Returns
    -------
    (float, float)
        Lower and upper bound. They speak for the drawing of items, not for the drawing of
        samples, and coincide where all values are equal: 0 of 20 items says little about the
        next 20, and this interval does not show it.

    Raises
    ------
    ValueError
        If there is no value, one is not finite, or a setting is out of range.

    Notes
    -----
    Source: Efron and Tibshirani 1993, An Introduction to the Bootstrap, section 13.3.
    """
    data = np.asarray(values, dtype=np.float64)
    if data.ndim != 1 or data.size == 0 or not np.isfinite(data).all():
        raise ValueError(
            f"values has shape {data.shape}, {int(np.isfinite(data).sum())} of them finite; "
            "expected one finite number an item, at least one"
        )
    if not 0 < level < 1 or resamples < 1:
        raise ValueError(
            f"level={level}, resamples={resamples}; expected 0 < level < 1 and resamples >= 1"
        )
    rng = np.random.default_rng(seed)
    means = np.empty(resamples)
    # Some resamples at a time: memory does not grow with their number.
    rows = max(RESAMPLED // data.size, 1)
    for start in range(0, resamples, rows):
        part = means[start : start + rows]
        part[:] = data[rng.integers(data.size, size=(part.size, data.size))].mean(axis=1)
    low, high = np.quantile(means, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def overlap(solved: ArrayLike, /) -> Array:
    """Jaccard index of the policies' solved sets: shared items over items either solves.

    Parameters
    ----------
    solved : array_like of bool, shape (policies, items)
        Which items each policy solves.

    Returns
    -------
    ndarray, shape (policies, policies)
        Symmetric, in [0, 1]; NaN where neither policy solves anything.
    """
    sets = np.asarray(solved, dtype=bool)
    both = (sets[:, None] & sets[None]).sum(-1)
    either = (sets[:, None] | sets[None]).sum(-1)
    return np.divide(both, either, out=np.full(both.shape, np.nan), where=either > 0)


def rescue_sets(
    success_counts: ArrayLike, /, *, verified_counts: ArrayLike | None = None
) -> NDArray[np.bool_]:
    """Items that a policy never solves and some peer does.

    Parameters
    ----------
    success_counts : array_like of int, shape (policies, items)
        Successes of each policy on each item.
    verified_counts : array_like of int, shape (policies, items), optional
        Verified samples. Where a policy has none it is not known to fail, and the item is in
        none of its rescue sets. Default: all have some.

    Returns
    -------
    ndarray of bool, shape (policies, items)
        Membership in each policy's rescue set; their sums are the sets' sizes.
    """
    solved = np.asarray(success_counts) > 0
    failed = ~solved if verified_counts is None else ~solved & (np.asarray(verified_counts) > 0)
    return failed & solved.any(axis=0)


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
