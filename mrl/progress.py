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
    policy's effective sample size is low, or none of its responses has a verdict, that is said in
    a line of its own.
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
    warned: set[tuple[Callable[[dict[str, Any]], str], str]] = set()

    def advance(done: int, rows: Sequence[dict[str, Any]], /) -> None:
        progress.start()
        figures = "  ".join(f"{row['policy']} {_reward(row)}" for row in rows)
        progress.update(task, completed=done, figures=f"reward: {figures}")
        for row in rows:
            for sign, warning in ((row.get("ess_low"), _low_ess), (_reward(row) == "-", _blind)):
                if sign and (warning, row["policy"]) not in warned:
                    warned.add((warning, row["policy"]))
                    progress.console.print(warning(row), markup=False, soft_wrap=True)

    try:
        yield advance
    finally:
        if progress.live.is_started:
            progress.stop()


def _reward(row: dict[str, Any], /) -> str:
    reward = row["reward_mean"]
    return "-" if reward is None else f"{reward:.2f}"


def _blind(row: dict[str, Any], /) -> str:
    reasons = ", ".join(
        f"{n} {reason}, the first: {row['unverified_said'][reason]}"
        for reason, n in row["unverified_by_reason"].items()
    )
    return (
        f"warning: policy {row['policy']!r}, round {row['round']}: none of its responses has a "
        f"verdict ({reasons}), so it learns nothing from them; see what the verifier does with one "
        "of them. Later rounds: 'unverified_said' in metrics.jsonl"
    )


def _low_ess(row: dict[str, Any], /) -> str:
    return (
        f"warning: policy {row['policy']!r}, round {row['round']}: the importance weights of its "
        f"peers' rollouts have an effective sample size of {row['ess']:.1%} of their number, so a "
        "few rollouts carry the whole term; cap the ratio, or bring the policies closer. Later "
        "rounds: 'ess' in metrics.jsonl"
    )
