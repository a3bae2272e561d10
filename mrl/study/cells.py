"""What one cell of a study computes."""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd

from bandit import dynamics, exact, sampling, tradeoff
from bandit.moments import Moments
from bandit.probes import Probe, probe_from_config, probe_to_config
from mrl.errors import InputError
from mrl.study.grid import Cell

# Columns that only simulation fills with other than 0.
STANDARD_ERRORS = ("stability_cost_se", "support_gain_se")
# Columns that hold text or nothing.
TEXT = dict.fromkeys(("rule", "probe", "reason"), "str")


def compute(cell: Cell, /) -> pd.DataFrame:
    """Rows of one cell, without its coordinates.

    Returns
    -------
    DataFrame
        For ``dynamics`` as `bandit.dynamics.run` returns it. For ``recommendation`` one row:
        ``rule`` (none if nothing can be recommended), ``probe`` (JSON), the group sizes
        ``use_own`` and ``use_peers``, and ``reason``. Otherwise as `bandit.tradeoff.plane` does,
        with ``method`` (``exact`` or ``sampled``) and the standard errors of `STANDARD_ERRORS`;
        ``label`` tells controls apart.

    Raises
    ------
    InputError
        If the theory refuses the settings, naming the cell.
    """
    try:
        if cell.task == "dynamics":
            return _learning(cell)
        if cell.task == "recommendation":
            return _recommended(cell)
        if cell.task == "sampled":
            return _sampled(cell)
        if cell.task == "sampled_if_too_large":
            return _exact_or_sampled(cell)
        return _exact(cell)
    except ValueError as error:
        raise InputError(f"{cell}: {error}{_way_out(cell)}") from None


def _way_out(cell: Cell, /) -> str:
    if cell.task == "controls":
        return "; controls are always exact, and analysis.controls=false leaves them out"
    if cell.task == "exact":
        return "; analysis.method=sampled_if_too_large simulates what the closed forms refuse"
    return ""


def _exact(cell: Cell, /) -> pd.DataFrame:
    rows = _placed(cell, exact.moments)
    return rows.assign(method="exact", **dict.fromkeys(STANDARD_ERRORS, 0.0))


def _exact_or_sampled(cell: Cell, /) -> pd.DataFrame:
    """Simulate what the closed forms refuse; what simulation refuses as well is an error."""
    try:
        return _exact(cell)
    except ValueError:
        return _sampled(cell)


def _sampled(cell: Cell, /) -> pd.DataFrame:
    """The plane by simulation; GRPO, the reference, sees the same own rollouts."""
    settings = cell.settings
    draw = partial(sampling.moments, n=settings["draws"], seed=settings["seed"])
    return _placed(cell, draw).assign(method="sampled")


def _placed(cell: Cell, moments: Callable[..., Moments], /) -> pd.DataFrame:
    return tradeoff.plane(
        cell.world.value,
        {} if cell.rule is None else {cell.rule.value.kind: cell.rule.value},
        receiver=cell.receiver,
        controls=cell.rule is None,
        rare=cell.settings["rare"],
        moments=moments,
        **cell.sizes,
    )


def _learning(cell: Cell, /) -> pd.DataFrame:
    return dynamics.run(cell.world.value, _probe(cell), **cell.settings, **cell.sizes)


def _recommended(cell: Cell, /) -> pd.DataFrame:
    """What to use; where nothing fits, the theory's own reason says why."""
    rules = {label: probe_from_config(rule) for label, rule in cell.settings["rules"].items()}
    bound = cell.settings["max_stability_cost"]
    row: dict[str, Any] = {"rule": None, "probe": None, "use_own": 0, "use_peers": 0}
    try:
        found = tradeoff.recommend(
            cell.world.value,
            bound,
            rules,
            receiver=cell.receiver,
            min_cosine=cell.settings["min_cosine"],
            **cell.sizes,
        )
    except ValueError as refusal:
        return pd.DataFrame([{**row, "reason": str(refusal)}]).astype(TEXT)
    row = {
        "rule": found.label,
        "probe": json.dumps(probe_to_config(found.probe), sort_keys=True),
        "use_own": found.own,
        "use_peers": found.peers,
        "reason": found.reason,
    }
    return pd.DataFrame([row]).astype(TEXT)


def _probe(cell: Cell, /) -> Probe:
    if cell.rule is None:
        raise TypeError("the controls of a study are neither simulated nor trained")
    return cell.rule.value
