"""Prompts, their right answers and their verifiers; importable without torch."""

from typing import TYPE_CHECKING

from mrl.tasks.task import Item, Task
from mrl.tasks.verdicts import Verdict, Verify

if TYPE_CHECKING:
    from mrl.config import TaskConfig

__all__ = ["Item", "Task", "Verdict", "Verify", "load_task"]


def load_task(config: "TaskConfig", seed: int) -> Task:
    """Load the items of a task and fix its held-out split.

    Parameters
    ----------
    config : JsonlTask, DatasetTask or ReasoningGymTask
        The ``task`` section of a run's configuration.
    seed : int
        Fixes the split (jsonl, dataset), the items themselves (reasoning_gym) and the held-out
        order.

    Returns
    -------
    Task
        At least one training and one held-out item, no question in both. Its worker processes
        start when they are first needed; use it as a context manager to end them.

    Raises
    ------
    InputError
        If a file, an item, a setting or a verifier cannot be right; the message names it.
    """
    # Here and not above: worker processes import this package, and need none of it.
    from mrl.tasks.loading import load

    return load(config, seed)
