"""A progress line for long runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from mrl.config import RunConfig


@contextmanager
def bar(
    run: RunConfig, console: Console, /
) -> Iterator[Callable[[int, Sequence[dict[str, Any]]], None]]:
    """A line with rounds done, time left and each policy's reward; yields its callback.

    The line begins with the first round: before, input may turn out to be wrong. The first time a
    policy's effective sample size is low, that is said in a line of its own.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    progress = Progress(*columns, console=console)
    task = progress.add_task(run.name, total=run.rounds, figures="")
    warned: set[str] = set()

    def advance(done: int, rows: Sequence[dict[str, Any]], /) -> None:
        progress.start()
        figures = "  ".join(f"{row['policy']} {row['reward_mean']:.2f}" for row in rows)
        progress.update(task, completed=done, figures=f"reward: {figures}")
        for row in rows:
            if row.get("ess_low") and row["policy"] not in warned:
                warned.add(row["policy"])
                progress.console.print(_low_ess(row), markup=False, soft_wrap=True)

    try:
        yield advance
    finally:
        if progress.live.is_started:
            progress.stop()


def _low_ess(row: dict[str, Any], /) -> str:
    return (
        f"warning: policy {row['policy']!r}, round {row['round']}: the importance weights of its "
        f"peers' rollouts have an effective sample size of {row['ess']:.1%} of their number, so a "
        "few rollouts carry the whole term; cap the ratio, or bring the policies closer. Later "
        "rounds: 'ess' in metrics.jsonl"
    )
