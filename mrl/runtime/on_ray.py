"""A run on a Ray cluster: its members in placement groups, and what happens when some are lost.

Whoever is lost, the run goes on from its last checkpoint with processes that are all started anew,
exactly as it would with ``--resume``: there is one way to recover, and results do not depend on
whether it was taken. Source: docs/cluster.md.
"""

from collections.abc import Callable
from pathlib import Path

from mrl.config import RunConfig
from mrl.runs import add_note, read_status
from mrl.runtime.connection import connected
from mrl.runtime.ray_team import RayRuntime, RayTeam
from mrl.runtime.waiting import WorkerLost
from mrl.train import Progress, train


def train_on_ray(
    config: RunConfig,
    runtime: RayRuntime,
    /,
    *,
    resume: bool = False,
    unvalidated: bool = False,
    progress: Progress = lambda done, rows: None,
    said: Callable[[str], None] = lambda words: None,
) -> Path:
    """Train all policies of a configuration on a cluster; returns the run's folder.

    Parameters
    ----------
    config, resume, unvalidated, progress
        As for `mrl.train.train`.
    runtime : RayRuntime
        The cluster.
    said : callable, optional
        Called with a sentence for each loss that the run recovers from.

    Raises
    ------
    InputError, RunError
        As `mrl.train.train`; `WorkerLost` where losses do not end.
    """
    losses, reached = 0, -1
    teams: list[RayTeam] = []

    def start(resolved: RunConfig) -> RayTeam:
        teams.append(RayTeam.start(resolved, runtime))
        for note in teams[-1].layout.notes:
            said(note)
        return teams[-1]

    with connected(runtime.address):
        while True:
            try:
                return train(
                    config, resume=resume, unvalidated=unvalidated, progress=progress, start=start
                )
            except WorkerLost as error:
                begun = bool(teams) and teams[-1].begun
                done = read_status(config.folder).get("rounds_done", 0) if begun else 0
                losses, reached = (0 if done > reached else losses) + 1, max(done, reached)
                if losses > runtime.restarts:
                    raise
                words = f"{error}; started again after {done} rounds"
                if begun:
                    add_note(config.folder, words)
                said(words)
                resume = resume or begun
