"""Which prompts a round trains on, and what is due after it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from mrl.config import RunConfig
from mrl.errors import InputError, PromptTooLong
from mrl.replay import check_coverage
from mrl.seeds import generator
from mrl.tasks import Item, Task

TooLong = Callable[[Sequence[Item]], Iterable[Mapping[str, str]]]


def prompts_of(items: Sequence[Item], size: int, seed: int, round: int, /) -> list[Item]:
    """The `size` prompts of a round; each epoch is a fresh permutation, its remainder left out.

    Raises
    ------
    InputError
        If there are fewer items than that.
    """
    if size > len(items):
        raise InputError(f"prompts={size} a round, but the task has {len(items)} training items")
    epoch, position = divmod(round, len(items) // size)
    order = generator(seed, "order", epoch).permutation(len(items))
    return [items[i] for i in np.sort(order[position * size : (position + 1) * size])]


def check_prompts(config: RunConfig, task: Task, too_long: TooLong, /) -> Task:
    """Render every prompt that the run can come to, so that it does not stop at one later.

    Parameters
    ----------
    config : RunConfig
        The run.
    task : Task
        As it was loaded.
    too_long : callable
        `Policy.too_long` of every policy, for the items it is given.

    Returns
    -------
    Task
        The task; where ``task.too_long`` is ``skip``, without the items whose prompt some policy
        cannot take, and with a note of how many they are.

    Raises
    ------
    InputError
        If there are fewer training items than `prompts`, none held out, a policy cannot take a
        prompt, or a replayed run does not cover them.
    """
    skip = config.task.too_long == "skip"
    heldout = task.heldout if skip else task.heldout[: config.evaluation.items]
    found = too_long((*task.train, *heldout))
    problems = {name: why for one in found for name, why in one.items()}
    if problems and not skip:
        raise PromptTooLong(next(iter(problems.values())))
    task = _without(task, problems) if problems else task
    prompts_of(task.train, config.prompts, config.seed, 0)
    check_coverage(config, task)
    return task


def _without(task: Task, problems: Mapping[str, str], /) -> Task:
    train, heldout = (
        tuple(item for item in items if item.prompt_id not in problems)
        for items in (task.train, task.heldout)
    )
    first = next(iter(problems.values()))
    if not heldout:
        raise InputError(f"every held-out prompt is too long; the first: {first}")
    note = f"{len(problems)} item(s) left out whose prompts are too long; the first: {first}"
    return replace(task, train=train, heldout=heldout, notes=(*task.notes, note))


def due(done: int, every: int, /) -> bool:
    """Whether something scheduled every so many rounds (0: never) is due."""
    return every > 0 and done % every == 0
