"""The stability-support plane of a configuration's regime: what each rule would cost and give.

``mrl study CONFIG`` places the run's own sharing rule among the standard ones and the controls
that sharing must beat, in the gate's world, for each policy as receiver. Needs no torch.
Source: docs/theory.md, section 4.
"""

from pathlib import Path

import pandas as pd
from rich.console import Console
from rich.table import Table

from bandit import World, plots, tradeoff
from bandit.probes import GRPO, PRP, SGT, XGRPO, Probe, UngatedNLL
from mrl.config import PolicyConfig, RunConfig
from mrl.errors import InputError
from mrl.gate.worlds import gate_world, peers_by_index

STANDARD: dict[str, Probe] = {
    "GRPO": GRPO(),
    "XGRPO": XGRPO(),
    "PRP, cap 10": PRP(cap=10.0),
    "PRP, no ratio": PRP(ratio="none"),
    "SGT": SGT(),
}
# Marks the label of the run's own rule.
OWN = " (this run)"
FIGURES = ("png", "svg")
COLUMNS = {
    "stability_cost": "tr Cov, mean over prompts",
    "relative_cost": "relative to GRPO",
    "support_gain": "support gain",
    "bias_cosine": "cosine to g*",
    "ess": "ESS of peers",
    "rescue_probability": "rescue probability",
}


def study(run: RunConfig, output: Path, /, *, console: Console | None = None) -> pd.DataFrame:
    """Compute the planes, print them, and write tables and figures.

    Parameters
    ----------
    run : RunConfig
        Sharing rules, group sizes and the gate's world.
    output : Path
        Folder; gets ``plane.csv`` (each context), ``population.csv`` (weighted contexts) and for
        each policy ``plane-NAME.png`` and ``.svg``.
    console : rich.console.Console, optional
        Where the tables are printed; default: nowhere.

    Returns
    -------
    DataFrame
        The rows of ``population.csv``: one for each receiver and label.

    Raises
    ------
    InputError
        If the gate's settings do not fit the run or leave a receiver without a support gain, or
        `output` cannot be written.
    """
    world = gate_world(run)
    _make(output)
    planes, populations = [], []
    for policy in run.policies:
        plane = receiver_plane(run, world, policy)
        population = tradeoff.aggregate(plane)
        if population["support_gain"].isna().all():
            raise InputError(
                f"policy {policy.name!r} has no support gain: it never succeeds in the gate's "
                "world; set gate.success above 0 on some kind of prompt"
            )
        for frame in (plane, population):
            frame.insert(0, "receiver", policy.name)
        planes.append(plane)
        populations.append(population)
    every = pd.concat(populations, ignore_index=True)
    _write(run, pd.concat(planes, ignore_index=True), every, output)
    _show(run, every, output, console or Console(quiet=True))
    return every


def probes_of(run: RunConfig, policy: PolicyConfig, /) -> dict[str, Probe]:
    """The standard rules by label, and the policy's own marked or added."""
    own = run.probe_of(policy)
    if own in STANDARD.values():
        return {
            f"{label}{OWN}" if probe == own else label: probe for label, probe in STANDARD.items()
        }
    return {**STANDARD, f"{own.kind.upper()}{OWN}": own}


def like(own: Probe, /) -> str:
    """Label of the standard rule or control that a rule is a variant of."""
    if isinstance(own, UngatedNLL):
        return tradeoff.CONTROLS[2]
    kinds = [label for label, probe in STANDARD.items() if probe.kind == own.kind]
    weightless = isinstance(own, PRP) and own.ratio == "none"
    return kinds[-1] if weightless else kinds[0]


def receiver_plane(run: RunConfig, world: World, policy: PolicyConfig, /) -> pd.DataFrame:
    """`bandit.tradeoff.plane` of one policy as receiver, controls included."""
    try:
        return tradeoff.plane(
            world,
            probes_of(run, policy),
            receiver=run.policies.index(policy),
            own=run.group_of(policy).own,
            peers=peers_by_index(run, policy.name),
            controls=True,
        )
    except ValueError as error:
        raise InputError(
            f"policy {policy.name!r} cannot be placed on the plane with group.own="
            f"{run.group_of(policy).own} and peers {run.peers_of(policy.name)}: {error}"
        ) from None


def _make(output: Path, /) -> None:
    """Make the folder before the work, not after it."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        probe = output / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(
            f"cannot write to {output}: {error.strerror}; give a folder with -o"
        ) from None


def _write(run: RunConfig, planes: pd.DataFrame, every: pd.DataFrame, output: Path, /) -> None:
    planes.to_csv(output / "plane.csv", index=False)
    every.to_csv(output / "population.csv", index=False)
    for policy in run.policies:
        mine = every[every["receiver"] == policy.name]
        own = run.probe_of(policy)
        if own not in STANDARD.values():
            # A figure can tell eight rules apart: the run's own stands in for its like.
            mine = mine[mine["label"] != like(own)]
        figure = plots.plane(mine, title=_title(run, policy.name))
        for kind in FIGURES:
            figure.savefig(output / f"plane-{policy.name}.{kind}", dpi=200)


def _title(run: RunConfig, name: str, /) -> str:
    seen = sum(run.peers_of(name).values())
    return f"receiver {name}, G = {run.group_of(run.policy(name)).own}, M = {seen}"


def _show(run: RunConfig, every: pd.DataFrame, output: Path, console: Console, /) -> None:
    for policy in run.policies:
        table = Table("rule", title=_title(run, policy.name))
        for heading in COLUMNS.values():
            table.add_column(heading, justify="right")
        for _, row in every[every["receiver"] == policy.name].iterrows():
            cells = ("-" if pd.isna(row[name]) else f"{row[name]:.3g}" for name in COLUMNS)
            table.add_row(row["label"], *cells)
        console.print(table)
    console.print(f"tables and figures written to {output}", soft_wrap=True)
