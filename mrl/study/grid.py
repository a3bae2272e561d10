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
FORMAT = 2


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
        ``mu``, ``sigma``, ``drop`` and ``gate``; of a measured residual its means, for the tables.
    measured : Residual or None
        What was measured for the receiver, in place of these four.
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
    measured: Residual | None = None

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
                **({} if self.measured is None else {"measured": digest(self.measured)}),
            }
        )[:32]

    @property
    def sizes(self) -> dict[str, Any]:
        """The arguments that all of the theory's functions take."""
        residual = Residual(**self.residual) if self.measured is None else self.measured
        return {"own": self.own, "peers": self.peers, "residual": residual}

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
                    at = _residual(world, receiver, residual)
                    yield Cell(task, world, rule, own, peers, receiver, at[0], settings, at[1])
            if analysis.controls:
                at = _residual(world, receiver, residual)
                yield Cell("controls", world, None, own, peers, receiver, at[0], exact, at[1])


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
            at = _residual(world, receiver, residual)
            yield Cell("recommendation", world, None, own, peers, receiver, at[0], settings, at[1])


def _residual(
    world: Point[World], receiver: int, given: dict[str, float], /
) -> tuple[dict[str, float], Residual | None]:
    """The residual of a place, and what was measured if it stands for that."""
    if not world.residuals:
        return given, None
    measured = world.residuals[receiver]
    return _means(world.value, receiver, measured), measured


def _means(world: World, receiver: int, measured: Residual, /) -> dict[str, float]:
    """What a measured residual is on average over peers' rollouts."""
    peers = [j for j in range(world.n_policies) if j != receiver]
    if not peers:
        return dict.fromkeys(("mu", "sigma", "drop", "gate"), 0.0)
    delta = np.concatenate([measured.samples[j] for j in peers])
    weight = world.weights[:, None] * world.probs[peers] / len(peers)
    return {
        "mu": float(delta.mean()),
        "sigma": float(delta.std()),
        "drop": float((weight * np.stack([measured.drop[j] for j in peers])).sum()),
        "gate": float((weight * np.stack([measured.gate[j] for j in peers])).sum()),
    }


def digest(thing: World | Residual, /) -> str:
    """Hash of all that a world or a residual holds."""
    found = hashlib.sha256()
    for field in fields(thing):
        found.update(field.name.encode())
        _feed(found, getattr(thing, field.name))
    return found.hexdigest()


def _feed(found: Any, value: Any, /) -> None:
    if isinstance(value, dict):
        _feed(found, sorted(value.items()))
    elif isinstance(value, tuple | list):
        for one in value:
            _feed(found, one)
    elif isinstance(value, np.ndarray):
        found.update(f"{value.dtype}{value.shape}".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    else:
        found.update(repr(value).encode())
