"""Groups of verified rollouts: generate, verify, and redraw groups without reward variance."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mrl.config import GroupConfig
from mrl.distributed import once
from mrl.rollout import Rollout
from mrl.seeds import derive
from mrl.tasks import Item, Task
from mrl.timing import Phases


class Generator(Protocol):
    """Whatever samples responses: a policy with its engine."""

    @property
    def name(self) -> str:
        """Name of the policy."""

    def generate(self, items: Sequence[Item], n: int, seed: int, /) -> list[list[Rollout]]:
        """Sample `n` responses for each item."""


@dataclass(frozen=True, eq=False)
class Groups:
    """One policy's rollouts of a round.

    Parameters
    ----------
    rollouts : list of list of Rollout
        B groups of G rollouts.
    rewards : ndarray, shape (B, G)
        Verifier rewards; NaN where not verified.
    generated : int
        Rollouts that were generated, redrawn ones included.
    unverified : mapping of str to int
        How many rewards are NaN, by reason.
    said : mapping of str to str
        What was said of the first of them, by reason.
    """

    rollouts: list[list[Rollout]]
    rewards: NDArray[np.float64]
    generated: int
    unverified: Mapping[str, int] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)


def verify_all(
    task: Task, items: Sequence[Item], rollouts: Sequence[Sequence[Rollout]], /
) -> tuple[NDArray[np.float64], NDArray[np.object_], NDArray[np.object_]]:
    """Score B groups of G rollouts.

    Returns
    -------
    rewards : ndarray, shape (B, G)
        NaN where there is no verdict.
    reasons : ndarray of str, shape (B, G)
        Why there is none, as in `mrl.tasks.Verdict`; empty where there is one.
    details : ndarray of str, shape (B, G)
        The same in words.
    """
    responses = [
        (item, rollout.text, rollout.finished)
        for item, group in zip(items, rollouts, strict=True)
        for rollout in group
    ]
    # Processes whose verdicts differ, by a time limit say, would part.
    verdicts = once(lambda: task.verdicts(responses))
    shape = len(items), -1
    rewards = np.array([one.reward for one in verdicts], np.float64).reshape(shape)
    reasons, details = (
        np.array(words, np.object_).reshape(shape)
        for words in ([one.reason for one in verdicts], [one.detail for one in verdicts])
    )
    return rewards, reasons, details


def count_reasons(reasons: NDArray[np.object_], /) -> dict[str, int]:
    """How many rollouts are not verified, by reason, in the order of the alphabet."""
    return dict(sorted(Counter(reasons[reasons != ""].tolist()).items()))


def first_details(reasons: NDArray[np.object_], details: NDArray[np.object_], /) -> dict[str, str]:
    """What was said of the first rollout that is not verified, by reason, in the same order."""
    first: dict[str, str] = {}
    for reason, detail in zip(reasons.ravel(), details.ravel(), strict=True):
        if reason:
            first.setdefault(reason, detail)
    return dict(sorted(first.items()))


def dead_groups(rewards: NDArray[np.float64], /) -> NDArray[np.bool_]:
    """Groups whose verified rewards are all equal (or that have none), shape (B,)."""
    valid = ~np.isnan(rewards)
    low = np.min(rewards, axis=-1, initial=np.inf, where=valid)
    high = np.max(rewards, axis=-1, initial=-np.inf, where=valid)
    return ~(high > low)


def draw_groups(
    policy: Generator,
    task: Task,
    items: Sequence[Item],
    group: GroupConfig,
    /,
    *,
    seed: int,
    phases: Phases,
) -> Groups:
    """Sample and verify a group for each item; redraw dead groups as often as `group` allows."""
    n = group.own
    rollouts: list[list[Rollout]] = [[] for _ in items]
    rewards = np.full((len(items), n), np.nan)
    reasons, details = np.full((2, len(items), n), "", object)
    todo = list(range(len(items)))
    generated = 0
    for attempt in range(group.redraws + 1):
        chosen = [items[i] for i in todo]
        with phases("generate"):
            fresh = policy.generate(chosen, n, derive(seed, attempt))
        with phases("verify"):
            rewards[todo], reasons[todo], details[todo] = verify_all(task, chosen, fresh)
        for i, drawn in zip(todo, fresh, strict=True):
            rollouts[i] = drawn
        generated += len(todo) * n
        todo = [i for i, dead in zip(todo, dead_groups(rewards[todo]), strict=True) if dead]
        if not todo:
            break
    said = first_details(reasons, details)
    return Groups(rollouts, rewards, generated, count_reasons(reasons), said)
