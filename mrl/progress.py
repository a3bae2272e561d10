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
    """A line with rounds done, time left and each policy's reward; yields its callback."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(run.name, total=run.rounds, figures="")

        def advance(done: int, rows: Sequence[dict[str, Any]], /) -> None:
            figures = "  ".join(f"{row['policy']} {row['reward_mean']:.2f}" for row in rows)
            progress.update(task, completed=done, figures=f"reward: {figures}")

        yield advance
