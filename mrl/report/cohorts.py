"""Runs that differ in nothing but the seed belong together."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from bandit.probes import Probe
from mrl.config import RunConfig
from mrl.errors import InputError
from mrl.report.runs import Run
from mrl.report.text import flatten, number

PER_RUN = ("seed", "name", "output")
MAX_LABEL_PARTS = 4
STUDENT = "Student t over seeds"
BOOTSTRAP = "bootstrap over items"
NO_INTERVAL = "none"


@dataclass(frozen=True, eq=False)
class Cohort:
    """Runs with the same settings and different seeds.

    Attributes
    ----------
    label : str
        What sets these runs apart from the others of the report.
    runs : tuple of Run
        In the order of their seeds.
    """

    label: str
    runs: tuple[Run, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seed of each run."""
        return tuple(run.config.seed for run in self.runs)


def settings(run: Run, /) -> dict[str, Any]:
    """Return a run's settings as dotted keys, policies by name, the certificate left out."""
    values = run.config.model_dump(exclude={"certificate", "policies"})
    policies = [policy.model_dump() for policy in run.config.policies]
    return flatten({**values, "policies": {policy.pop("name"): policy for policy in policies}})


def cohorts(runs: Sequence[Run], /) -> tuple[Cohort, ...]:
    """Group runs by everything but seed, name and folder, in the order given.

    Raises
    ------
    InputError
        If two runs have the same settings and the same seed: as two seeds they would count
        double.
    """
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        shared = {key: value for key, value in settings(run).items() if key not in PER_RUN}
        group = groups.setdefault(json.dumps(shared, sort_keys=True), {})
        other = group.setdefault(run.config.seed, run)
        if other is not run:
            raise InputError(
                f"{other.path} and {run.path} have the same settings and the same seed "
                f"{run.config.seed}; give one of them"
            )
    members = [tuple(group[seed] for seed in sorted(group)) for group in groups.values()]
    labels = _labels([runs[0] for runs in members])
    return tuple(Cohort(*pair) for pair in zip(labels, members, strict=True))


def settings_table(groups: Sequence[Cohort], /) -> pd.DataFrame:
    """Tabulate the settings of each cohort, the differing ones first.

    Returns
    -------
    DataFrame
        Index: dotted key; one column a cohort; and ``differs`` (bool). A setting that a cohort
        does not have is None.
    """
    columns = [settings(group.runs[0]) for group in groups]
    keys = list(dict.fromkeys(key for column in columns for key in column if key not in PER_RUN))
    differing = _differing(columns)
    table = pd.DataFrame(
        [[column.get(key) for column in columns] for key in keys],
        index=keys,
        columns=[group.label for group in groups],
        dtype=object,
    )
    table.insert(0, "differs", [key in differing for key in keys])
    return table.sort_values("differs", ascending=False, kind="stable")


def describe(probe: Probe, /) -> str:
    """Name a sharing rule by its kind and whatever is not at its default."""
    changed = [
        f"{field.name}={number(getattr(probe, field.name))}"
        for field in fields(probe)
        if getattr(probe, field.name) != field.default
    ]
    return probe.kind + (f"({', '.join(changed)})" if changed else "")


def rules(config: RunConfig, /) -> str:
    """Name the sharing rules that the policies of a run learn by, each once."""
    whose: dict[str, list[str]] = {}
    for policy in config.policies:
        whose.setdefault(describe(config.probe_of(policy)), []).append(policy.name)
    if len(whose) == 1:
        return next(iter(whose))
    return ", ".join(f"{rule} ({', '.join(names)})" for rule, names in whose.items())


def over_seeds(frame: pd.DataFrame, by: Sequence[str], /) -> pd.DataFrame:
    """Mean over seeds with a 95% interval.

    Parameters
    ----------
    frame : DataFrame
        One row a seed; column ``value`` and, where a run gives its own interval, ``low`` and
        ``high``.
    by : sequence of str
        Columns that say which rows belong together.

    Returns
    -------
    DataFrame
        Columns `by`, ``value``, ``low``, ``high``, ``seeds`` and ``method``. With at least two
        seeds the interval is Student's t over the seeds; with one it is the run's own.
    """
    frame = frame.assign(**{c: np.nan for c in ("low", "high") if c not in frame})
    grouped = frame.dropna(subset="value").groupby(list(by), sort=False)
    result = grouped["value"].agg(["mean", "std", "count"]).join(grouped[["low", "high"]].first())
    several = result["count"] >= 2
    freedom = (result["count"] - 1).clip(lower=1)
    half = stats.t.ppf(0.975, freedom) * result["std"] / np.sqrt(result["count"])
    result["low"] = result["low"].where(~several, result["mean"] - half)
    result["high"] = result["high"].where(~several, result["mean"] + half)
    own = np.where(result["low"].notna(), BOOTSTRAP, NO_INTERVAL)
    result["method"] = np.where(several, STUDENT, own)
    result = result.rename(columns={"mean": "value", "count": "seeds"}).drop(columns="std")
    return result.reset_index()


def _differing(columns: Sequence[dict[str, Any]], /) -> list[str]:
    keys = dict.fromkeys(key for column in columns for key in column if key not in PER_RUN)
    missing = object()
    return [
        key
        for key in keys
        if any(column.get(key, missing) != columns[0].get(key, missing) for column in columns)
    ]


def _labels(firsts: Sequence[Run], /) -> list[str]:
    """One label a cohort, from the first run of each."""
    if len(firsts) == 1:
        return [rules(firsts[0].config)]
    columns = [settings(run) for run in firsts]
    keys = _differing(columns)
    others = [key for key in keys if not key.startswith("probe.")]
    by_probe = len(others) < len(keys)
    if len(others) + by_probe > MAX_LABEL_PARTS:
        return _folder_labels([run.path for run in firsts])
    leaves = [key.split(".")[-1] for key in others]
    short = [
        leaf if leaves.count(leaf) == 1 else key for leaf, key in zip(leaves, others, strict=True)
    ]
    labels = []
    for run, column in zip(firsts, columns, strict=True):
        parts = [rules(run.config)] if by_probe else []
        parts += [
            f"{name}={number(column.get(key))}" for name, key in zip(short, others, strict=True)
        ]
        labels.append(", ".join(parts))
    return labels


def _folder_labels(paths: Sequence[Path], /) -> list[str]:
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]
