"""Mutual reinforcement learning: several policies train at once and share typed experience.

Run it with ``mrl train CONFIG``. One round:

1. the same prompts for all policies;
2. every policy samples G responses a prompt, and its verifier scores them;
3. it publishes the records that the others' sharing rules need;
4. every policy collects what its own rule needs, turns it into credit and rows of tokens;
5. it takes its gradient steps, and its engine takes over the new weights;
6. metrics, evaluation and checkpoint on schedule.

Departure from the paper: rounds are synchronous. All records of a round are published before any
policy collects, whether the policies take turns in one process or are spread over a cluster.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mrl.bookkeeping import Bookkeeper
from mrl.config import RunConfig
from mrl.member import Member, Turn
from mrl.policy import build_policies
from mrl.replay import resolve
from mrl.runs import RunFolder
from mrl.runtime import Team
from mrl.runtime.local import LocalTeam
from mrl.schedule import check_prompts, prompts_of
from mrl.tasks import Item, load_task

Progress = Callable[[int, Sequence[dict[str, Any]]], None]
Start = Callable[[RunConfig], Team]


def in_this_process(config: RunConfig, /) -> Team:
    """The team of a run whose policies take turns here."""
    return LocalTeam(config, build_policies(config))


def train(
    config: RunConfig,
    /,
    *,
    resume: bool = False,
    unvalidated: bool = False,
    progress: Progress = lambda done, rows: None,
    start: Start = in_this_process,
) -> Path:
    """Train all policies of a configuration; returns the run's folder.

    Parameters
    ----------
    config : RunConfig
        The whole run; results are a function of it.
    resume : bool
        Continue from the last whole checkpoint.
    unvalidated : bool
        Recorded in the run's status: the probe was not validated by the gate.
    progress : callable, optional
        Called with the rounds done and their metric rows.
    start : callable, optional
        Starts the policies of a configuration somewhere. Default: in this process.

    Raises
    ------
    InputError, RunError
        For input that cannot be right, and for a run that cannot go on.
    """
    config = resolve(config)
    loaded = load_task(config.task, config.seed)
    with loaded, start(config) as team:
        task = check_prompts(config, loaded, lambda items: team.each(Member.too_long, items))
        opened = RunFolder.open(config, task.fingerprint, resume=resume, unvalidated=unvalidated)
        with opened as run:
            team.begin(task, run.path)
            books = Bookkeeper(run, team, task)
            for round in range(books.start, config.rounds):
                items = prompts_of(task.train, config.prompts, config.seed, round)
                turns = play(round, items, team, config)
                books.after(round, turns)
                progress(round + 1, [turn.row for turn in turns])
            books.end()
    return run.path


def play(round: int, items: Sequence[Item], team: Team, config: RunConfig, /) -> list[Turn]:
    """One round on `items`: rollouts -> exchange -> credit -> tokens -> loss; what it showed."""
    team.publish(round, items)
    absent = team.exchange.wait_round(round, team.names, 0)
    turns = team.each(Member.learn, round, items)
    for turn in turns:
        turn.row["absent_peers"] = sorted(absent)
    team.exchange.drop_before(max(0, round - config.exchange.max_staleness))
    return turns
