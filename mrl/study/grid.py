"""The cells of a study's grid: each is one job, known by what it computes.

A cell's key is a hash over everything its result depends on: the numbers of the world, the rule,
sizes, residual, analysis, and the version of this package. Labels are no part of it.
"""

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, Literal

import numpy as np

from bandit import Residual, World
from bandit.probes import Probe, probe_to_config
from mrl.config import StudyConfig
from mrl.config.study import Point
from mrl.gate.certificate import sha256
from mrl.runs import versions

Task = Literal["exact", "sampled", "sampled_if_too_large", "controls", "dynamics", "recommendation"]
# Part of every key: to be raised when the columns of parts change.
FORMAT = 1


@dataclass(frozen=True, eq=False)
class Cell:
    """One job of a study.

    Attributes
    ----------
    task : str
        What is computed: one of `Task`.
    world, rule : Point
        The world, and the sharing rule; ``controls`` and ``recommendation`` have none.
    own, peers : int
        Group sizes.
    receiver : int
        The policy that learns; -1 for ``dynamics``, in which all do.
    residual : {str: float}
        ``mu``, ``sigma``, ``drop`` and ``gate``.
    settings : {str: Any}
        Settings of the task.
    """

    task: Task
    world: Point[World]
    rule: Point[Probe] | None
    own: int
    peers: int
    receiver: int
    residual: Mapping[str, float]
    settings: Mapping[str, Any]

    @cached_property
    def key(self) -> str:
        """Hash of all that the result depends on: 32 hexadecimal digits."""
        return sha256(
            {
                "format": FORMAT,
                "version": versions()["mutual-rl"],
                "task": self.task,
                "world": digest(self.world.value),
                "rule": None if self.rule is None else probe_to_config(self.rule.value),
                "sizes": [self.own, self.peers, self.receiver],
                "residual": dict(self.residual),
                "settings": dict(self.settings),
            }
        )[:32]

    @property
    def sizes(self) -> dict[str, Any]:
        """The arguments that all of the theory's functions take."""
        return {"own": self.own, "peers": self.peers, "residual": Residual(**self.residual)}

    def coordinates(self) -> dict[str, Any]:
        """Where the cell lies in the grid: the first columns of the tables."""
        rule = self.rule
        return {
            "world": self.world.label,
            **{f"world_{name}": value for name, value in self.world.swept.items()},
            "own": self.own,
            "peers": self.peers,
            **self.residual,
            "receiver": self.receiver,
            "label": self.task if rule is None else rule.label,
            "kind": self.task if rule is None else rule.value.kind,
            **({} if rule is None else {f"rule_{k}": v for k, v in rule.swept.items()}),
        }

    def __str__(self) -> str:
        """Name the cell in a message."""
        rule = self.task if self.rule is None else self.rule.label
        receiver = "" if self.task == "dynamics" else f", receiver {self.receiver}"
        return f"{rule} in world {self.world.label!r} (G={self.own}, M={self.peers}{receiver})"


def cells_of(study: StudyConfig, /) -> list[Cell]:
    """Every cell of a study, in the order of its tables."""
    return [*_placed(study), *_learning(study), *_recommended(study)]


def _grid(study: StudyConfig, /) -> Iterator[tuple[Point[World], int, int, dict[str, float]]]:
    residual = study.residual
    for point in study.world_points():
        for own, peers in itertools.product(study.own, study.peers):
            for values in itertools.product(
                residual.mu, residual.sigma, residual.drop, residual.gate
            ):
                names = ("mu", "sigma", "drop", "gate")
                yield point, own, peers, dict(zip(names, values, strict=True))


def _placed(study: StudyConfig, /) -> Iterator[Cell]:
    """Cells of the plane: of each rule, and of the controls."""
    analysis = study.analysis
    exact: dict[str, Any] = {"rare": analysis.rare}
    sampled = {**exact, "draws": analysis.draws, "seed": study.seed}
    tasks: dict[str, dict[Task, dict[str, Any]]] = {
        "exact": {"exact": exact},
        "sampled": {"sampled": sampled},
        "both": {"exact": exact, "sampled": sampled},
        "sampled_if_too_large": {"sampled_if_too_large": sampled},
    }
    for world, own, peers, residual in _grid(study):
        for receiver in study.receivers_of(world.value):
            for rule in study.rule_points():
                for task, settings in tasks[analysis.method].items():
                    yield Cell(task, world, rule, own, peers, receiver, residual, settings)
            if analysis.controls:
                yield Cell("controls", world, None, own, peers, receiver, residual, exact)


def _learning(study: StudyConfig, /) -> Iterator[Cell]:
    """Cells of the learning curves, if asked for: all policies are receivers in each."""
    dynamics = study.analysis.dynamics
    if dynamics is None:
        return
    settings = {"seed": study.seed, **dynamics.model_dump()}
    for world, own, peers, residual in _grid(study):
        for rule in study.rule_points():
            yield Cell("dynamics", world, rule, own, peers, -1, residual, settings)


def _recommended(study: StudyConfig, /) -> Iterator[Cell]:
    """Cells of the recommendations, if asked for: each chooses among all rules."""
    if study.max_stability_cost is None:
        return
    rules = {label: probe_to_config(probe) for label, probe in study.probes.items()}
    settings = {
        "max_stability_cost": study.max_stability_cost,
        "min_cosine": study.min_cosine,
        "rules": rules,
    }
    for world, own, peers, residual in _grid(study):
        for receiver in study.receivers_of(world.value):
            yield Cell("recommendation", world, None, own, peers, receiver, residual, settings)


def digest(world: World, /) -> str:
    """Hash of all that a world holds."""
    found = hashlib.sha256()
    for field in fields(world):
        found.update(field.name.encode())
        _feed(found, getattr(world, field.name))
    return found.hexdigest()


def _feed(found: Any, value: Any, /) -> None:
    if isinstance(value, tuple | list):
        for one in value:
            _feed(found, one)
    elif isinstance(value, np.ndarray):
        found.update(f"{value.dtype}{value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    else:
        found.update(repr(value).encode())
