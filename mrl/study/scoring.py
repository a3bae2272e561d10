"""Responses of a run's policies, sampled and scored by all of them; needs torch.

Shapes: N policies, X prompts, K arms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from mrl.batch import Row
from mrl.config import RunConfig
from mrl.exchange.fields import Segment
from mrl.exchange.records import FinishReason
from mrl.policy import Policy
from mrl.rollout import Rollout
from mrl.run_world import RunWorld
from mrl.schedule import prompts_of
from mrl.seeds import derive
from mrl.tasks import Item, Task
from mrl.tokens import Unrepresentable
from mrl.tokens.segments import SegmentEncoder

# A response is its text and whether it ended by itself.
Response = tuple[bytes, FinishReason]


@dataclass(frozen=True, eq=False)
class _Seen:
    """The different responses to one prompt, in the order in which they were seen.

    Attributes
    ----------
    segments : dict of {Response: (Segments, str)}
        Structural segments of each, as the policy named there spells them.
    rewards : dict of {Response: float}
        Verdicts; a response without one is in none of these.
    """

    segments: dict[Response, tuple[Sequence[Segment], str]]
    rewards: dict[Response, float]


def sampled_world(
    config: RunConfig,
    policies: Sequence[Policy],
    task: Task,
    done: int,
    prompts: int,
    samples: int,
    /,
) -> RunWorld:
    """The world of policies that are in memory; see `world_of_run`."""
    items = prompts_of(task.train, min(prompts, len(task.train)), config.seed, 0)
    groups = {
        policy.name: policy.generate(
            items, samples, derive(config.seed, "world", done, policy.name)
        )
        for policy in policies
    }
    seen = [
        _seen(task, item, {name: group[x] for name, group in groups.items()})
        for x, item in enumerate(items)
    ]
    codecs = {policy.name: policy.codec for policy in policies}
    tables = [_Table.of(policy, items, seen, groups[policy.name], codecs) for policy in policies]
    rewards = np.zeros((len(items), tables[0].probs.shape[1]))
    for x, one in enumerate(seen):
        rewards[x, : len(one.rewards)] = list(one.rewards.values())
    return RunWorld(
        probs_NXK=np.stack([table.probs for table in tables]),
        canonical_NXK=np.stack([table.canonical for table in tables]),
        representable_NXK=np.stack([table.representable for table in tables]),
        rewards_XK=rewards,
        counts_NXK=np.stack([table.counts for table in tables]),
        canonical_counts_NXK=np.stack([table.canonical_counts for table in tables]),
        policies=tuple(groups),
        prompt_ids=tuple(item.prompt_id for item in items),
        questions=tuple(item.question for item in items),
        texts=tuple(tuple(_shown(*response) for response in one.rewards) for one in seen),
        run=config.name,
        round=done,
        prompts=prompts,
        samples=samples,
        excess=max(table.excess for table in tables),
    )


@dataclass(frozen=True, eq=False)
class _Table:
    """What `RunWorld` holds of one policy; arrays of shape (X, K)."""

    probs: NDArray[np.float64]
    canonical: NDArray[np.float64]
    representable: NDArray[np.bool_]
    counts: NDArray[np.int64]
    canonical_counts: NDArray[np.int64]
    excess: float

    @classmethod
    def of(
        cls,
        policy: Policy,
        items: Sequence[Item],
        seen: Sequence[_Seen],
        groups: Sequence[list[Rollout]],
        codecs: Mapping[str, SegmentEncoder],
        /,
    ) -> Self:
        """Score every response that was seen, and count the policy's own."""
        rest = max(len(one.rewards) for one in seen)
        probs, canonical = np.zeros((2, len(items), rest + 1))
        counts, canonical_counts = np.zeros((2, *probs.shape), np.int64)
        representable = np.ones(probs.shape, np.bool_)
        scored = _scored(policy, items, seen, groups, codecs)
        for x, (one, group) in enumerate(zip(seen, groups, strict=True)):
            place = {response: k for k, response in enumerate(one.rewards)}
            for response, k in place.items():
                probs[x, k], canonical[x, k], representable[x, k] = scored[x][response]
            for rollout, usual in zip(group, policy.canonical(group), strict=True):
                k = place.get((rollout.text, rollout.finish_reason), rest)
                counts[x, k] += 1
                canonical_counts[x, k] += usual and k < rest
        total = probs.sum(-1, keepdims=True)
        probs, canonical = probs / np.maximum(total, 1.0), canonical / np.maximum(total, 1.0)
        probs[:, -1] = canonical[:, -1] = np.maximum(1.0 - total[:, 0], 0.0)
        excess = float(max(total.max() - 1.0, 0.0))
        return cls(probs, canonical, representable, counts, canonical_counts, excess)


def _shown(text: bytes, finish_reason: str, /) -> str:
    return text.decode("utf-8", "backslashreplace") + ("" if finish_reason == "eos" else "...")


def _seen(task: Task, item: Item, groups: Mapping[str, list[Rollout]], /) -> _Seen:
    """Every different response of all policies to one prompt, with its verdict."""
    segments: dict[Response, tuple[Sequence[Segment], str]] = {}
    rewards: dict[Response, float] = {}
    for name, group in groups.items():
        for rollout in group:
            response = (rollout.text, rollout.finish_reason)
            if response in segments:
                continue
            segments[response] = (rollout.segments, name)
            reward = task.verify(item, rollout.text, rollout.finished)
            if reward is not None:
                rewards[response] = reward
    return _Seen(segments, rewards)


def _scored(
    policy: Policy,
    items: Sequence[Item],
    seen: Sequence[_Seen],
    groups: Sequence[Sequence[Rollout]],
    codecs: Mapping[str, SegmentEncoder],
    /,
) -> list[dict[Response, tuple[float, float, bool]]]:
    """Of each response: its probability, the canonical part of it, and whether it can be spelt.

    Different token sequences that end by themselves, or that fill the whole length, exclude each
    other: the sum over all that are known is a lower bound, and over all responses at most 1.
    """
    found: list[dict[Response, tuple[float, float, bool]]] = []
    rows: list[Row] = []
    owner: list[tuple[int, Response, bool]] = []
    for x, (item, one, group) in enumerate(zip(items, seen, groups, strict=True)):
        usual = _canonical(policy, one, codecs)
        found.append({response: (0.0, 0.0, ids is not None) for response, ids in usual.items()})
        known = {response: {ids} for response, ids in usual.items() if ids is not None}
        for rollout in group:
            response = (rollout.text, rollout.finish_reason)
            if response in usual:
                known.setdefault(response, set()).add(rollout.ids)
        for response, several in known.items():
            for ids in sorted(several):
                if _reachable(policy, ids, response):
                    rows.append(Row(x, policy.render(item), ids, 0.0))
                    owner.append((x, response, ids == usual[response]))
    for (x, response, is_usual), values in zip(owner, policy.score(rows), strict=True):
        probability = float(np.exp(values.sum()))
        whole, own, spelt = found[x][response]
        found[x][response] = (whole + probability, own + is_usual * probability, spelt)
    return found


def _canonical(
    policy: Policy, one: _Seen, codecs: Mapping[str, SegmentEncoder], /
) -> dict[Response, tuple[int, ...] | None]:
    """The policy's canonical tokens of each response; None where it cannot spell it."""
    responses = list(one.rewards)
    marks = []
    for response in responses:
        segments, source = one.segments[response]
        marks.append(policy.codec.accept(response[0], segments, codecs[source].structure))
    encoded = policy.encode([text for text, _ in responses], marks)
    return {
        response: None if isinstance(ids, Unrepresentable) else policy.ended(ids, response[1])
        for response, ids in zip(responses, encoded, strict=True)
    }


def _reachable(policy: Policy, ids: tuple[int, ...], response: Response, /) -> bool:
    """Whether the policy can come to these tokens within its length limit, ending as it did."""
    limit = policy.sampling.max_tokens
    if response[1] == "length":
        return len(ids) == limit
    return policy.eos_id is not None and len(ids) <= limit
