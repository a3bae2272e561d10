"""The page: tables and figures of runs put into one HTML file."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from bandit import plots
from bandit.probes import Group
from mrl.errors import InputError
from mrl.report import figures, tables, text, theory
from mrl.report.cohorts import Cohort, cohorts, settings_table
from mrl.report.runs import Run, load_run
from mrl.report.samples import Change, changes, transitions
from mrl.run_world import RunWorld, stored_worlds
from mrl.study.pictures import drawable

LADDER = ("estimators", "tokenised", "parity", "dynamics")
EXAMPLES = 3
RESPONSES = 6
CHARACTERS = 2000
# What sharing adds to a round beside training itself.
EXCHANGE_PHASES = ("publish", "collect", "credit")
DIAGNOSTICS = {
    "entropy": "entropy (nats a token)",
    "grad_norm": "gradient norm",
    "clip_share": "share of clipped tokens",
    "kl": "divergence from the initial weights (nats a token)",
    "engine_weight_mean": "mean weight of own tokens for the engine",
    "engine_capped_share": "share of those weights at the cap",
    "ess": "effective sample size",
    "gated_share": "share of peers' rollouts gated out",
    "canonical_share": "canonical share of own rollouts",
    "residual_q50": "residual, 50% quantile (nats)",
    "residual_q75": "residual, 75% quantile (nats)",
    "residual_q90": "residual, 90% quantile (nats)",
    "residual_q99": "residual, 99% quantile (nats)",
    "residual_above_5_nats": "share of residuals above 5 nats",
    "truncated_share": "share of truncated responses",
    "response_tokens": "response tokens",
}


@dataclass(frozen=True)
class Picture:
    """A figure on the page.

    Attributes
    ----------
    source : str
        The image as a ``data:`` address.
    alt : str
        What it shows, in words.
    caption : str
        How to read it.
    """

    source: str
    alt: str
    caption: str


@dataclass(frozen=True)
class Examples:
    """Sample prompts of one policy and tag."""

    policy: str
    tag: str
    total: int
    shown: tuple[Change, ...]


def write_report(
    runs: Sequence[str | Path], output: str | Path, /, *, title: str | None = None
) -> Path:
    """Write one self-contained HTML page about one or several runs.

    Parameters
    ----------
    runs : sequence of str or Path
        Folders of runs; see `load_run`. Runs that differ in the seed only are averaged.
    output : str or Path
        The page's file. Its folder is made where needed; an old page is replaced.
    title : str, optional
        Default: the run's name, or the number of runs.

    Returns
    -------
    Path
        `output`.

    Raises
    ------
    InputError
        If no run is given, two are the same, a file of a run is missing or damaged (the message
        names file and line), or the page cannot be written.
    """
    if not runs:
        raise InputError("got no run to report on; expected at least one folder of a run")
    loaded = [load_run(path) for path in runs]
    heading = title or (loaded[0].name if len(loaded) == 1 else f"{len(loaded)} runs compared")
    page = render(cohorts(loaded), text.visible(heading))
    output = Path(output)
    if output.is_dir():
        raise InputError(f"{output} is a folder; expected the name of an HTML file to write")
    beside = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        try:
            beside.write_text(page, encoding="utf-8")
            beside.replace(output)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"cannot write {output}: {error.strerror}") from None
    return output


def render(groups: Sequence[Cohort], title: str, /) -> str:
    """Return the page about `groups` as HTML."""
    environment = Environment(
        loader=PackageLoader("mrl.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters = (text.number, text.percent, text.proportion, text.visible, text.interval, text.error)
    environment.filters |= {function.__name__: function for function in filters}
    environment.filters["clipped"] = clipped
    runs = [run for group in groups for run in group.runs]
    template = environment.get_template("page.html.j2")
    return template.render(
        title=title,
        groups=groups,
        runs=runs,
        single=len(groups) == 1,
        notes=list(_notes(groups)),
        versions=_versions(runs),
        settings=settings_table(groups),
        certificates=[(group.label, *_certificate(group)) for group in groups],
        learning=list(_learning(groups)),
        **_results(groups),
        **_costs(groups),
        **_rollouts(groups),
        theory=[_theory(group) for group in groups],
    )


def clipped(response: str, /) -> str:
    """Cut a long text and say how much was cut."""
    rest = len(response) - CHARACTERS
    shown = text.visible(response[:CHARACTERS])
    return f"{shown} … ({rest:,} more characters)" if rest > 0 else shown


def _picture(figure: figures.Figure, alt: str, caption: str = "", /) -> Picture:
    return Picture(figures.to_data_uri(figure), alt, caption)


def _notes(groups: Sequence[Cohort], /) -> Iterator[str]:
    unfinished = [str(r.path) for group in groups for r in group.runs if r.status == "running"]
    if unfinished:
        yield f"Still running or killed, and shown as far as it came: {', '.join(unfinished)}."
    for group in groups:
        for run in group.runs:
            yield from run.notes
        done = sorted({run.rounds_done for run in group.runs})
        if len(done) > 1:
            yield (
                f"The seeds of {group.label!r} have done different numbers of rounds ({done}): "
                "its curves end where its shortest run ends."
            )
        if len(group.runs) > 1 and len({str(run.versions) for run in group.runs}) > 1:
            yield f"The seeds of {group.label!r} ran with different package versions."


def _versions(runs: Sequence[Run], /) -> dict[str, list[str]]:
    """Package to the different versions in use."""
    names = sorted({name for run in runs for name in run.versions})
    return {
        name: sorted({run.versions.get(name, "not recorded") for run in runs}) for name in names
    }


def _certificate(group: Cohort, /) -> tuple[Mapping[str, Any] | None, list[dict[str, Any]]]:
    """Return the certificate of a cohort and its rungs in a form that can be shown whole."""
    certificate = group.runs[0].config.certificate
    rungs = certificate.get("rungs") if certificate else None
    if not isinstance(rungs, Mapping):
        return certificate, []
    shown = []
    place = {name: i for i, name in enumerate(LADDER)}
    for name, rung in sorted(rungs.items(), key=lambda item: place.get(item[0], len(place))):
        values = rung if isinstance(rung, Mapping) else {"value": rung}
        checks = values.get("checks")
        checks = checks if isinstance(checks, list) else []
        rest = {k: v for k, v in values.items() if k not in ("passed", "checks")}
        shown.append(
            {
                "name": str(name),
                "passed": values.get("passed"),
                "checks": [check for check in checks if isinstance(check, Mapping)],
                "figures": text.flatten(rest) if rest else {},
            }
        )
    return certificate, shown


def _learning(groups: Sequence[Cohort], /) -> Iterator[Picture]:
    width = tables.window(groups)
    smooth = f"Each point is the mean over {width} rounds. " if width > 1 else ""
    seeds = "Bands: 95% Student t interval over seeds, where a run has at least two seeds. "
    frame = tables.training_curves(groups, "reward_mean")
    if not frame.empty:
        figure = figures.curves(frame, ylabel="mean training reward")
        yield _picture(figure, "Training reward over rounds.", "Training reward. " + smooth + seeds)
    k = tables.smallest_k(groups)
    frame = pd.DataFrame() if k is None else tables.heldout_curves(groups, k)
    if not frame.empty:
        figure = figures.curves(frame, ylabel=f"held-out pass@{k}", unit=True)
        caption = (
            f"Held-out pass@{k} by tag. Bands: 95% Student t interval over seeds with at least two "
            "seeds (cut to [0, 1]), else the bootstrap over items recorded in the run."
        )
        yield _picture(figure, f"Held-out pass@{k} over rounds.", caption)


def _results(groups: Sequence[Cohort], /) -> dict[str, Any]:
    comparison = tables.comparison(groups)
    k = tables.smallest_k(groups)
    picture = None
    if len(groups) > 1 and not comparison.empty:
        rows = comparison[comparison["k"] == k]
        rows = rows.assign(facet=rows["policy"] + " · " + rows["tag"])
        figure = figures.intervals(rows, xlabel=f"held-out pass@{k}")
        picture = _picture(figure, f"Held-out pass@{k} before and after, by setting.")
    frame = tables.overlap_curves(groups)
    overlap = None
    if not frame.empty:
        figure = figures.curves(frame, ylabel="Jaccard overlap", unit=True)
        overlap = _picture(figure, "Overlap of the policies' solved sets over rounds.")
    return {
        "comparison": _records(comparison[comparison["k"] == k]),
        "comparison_more": _records(comparison[comparison["k"] != k]),
        "comparison_picture": picture,
        "no_comparison": tables.no_comparison(groups) if comparison.empty else "",
        "rescue_set": _records(tables.rescue_set(groups)),
        "overlap": overlap,
    }


def _costs(groups: Sequence[Cohort], /) -> dict[str, Any]:
    dead = tables.training_curves(groups, "dead_share")
    rescued = tables.training_curves(groups, "rescued_prompts")
    sharing = []
    if not dead.empty:
        figure = figures.curves(dead, ylabel="share of dead groups", unit=True)
        sharing.append(_picture(figure, "Share of groups without reward variance, over rounds."))
    if not rescued.empty:
        figure = figures.curves(rescued, ylabel="rescued prompts a round")
        sharing.append(_picture(figure, "Rescue events a round, over rounds."))
    volume = tables.sharing_volume(groups)
    if volume["bytes"].fillna(0).sum() > 0:
        rows = _with_row(volume, groups)
        figure = figures.stacked(rows, part="kind", value="bytes", xlabel="bytes received a round")
        sharing.append(_picture(figure, "Bytes received a round, by record type."))
    diagnostics = []
    for measure, label in DIAGNOSTICS.items():
        frame = tables.training_curves(groups, measure)
        if not frame.empty:
            diagnostics.append(_picture(figures.curves(frame, ylabel=label), f"{label}, by round."))
    return {
        "sharing": sharing,
        "volume": _records(volume),
        "counters": _records(tables.counters(groups)),
        "diagnostics": diagnostics,
        **_times(groups),
    }


def _times(groups: Sequence[Cohort], /) -> dict[str, Any]:
    times = tables.phase_times(groups)
    if times.empty:
        return {"phases": [], "phase_names": [], "phase_picture": None}
    names = list(dict.fromkeys(times["phase"]))
    rows = times.assign(row=times["policy"] if len(groups) == 1 else times["cohort"])
    rows["percent"] = 100 * rows["share"]
    figure = figures.stacked(rows, part="phase", value="percent", xlabel="share of a round (%)")
    if len(groups) == 1:
        caption = "Share of a round's recorded time, by policy; shared phases on their own."
    else:
        caption = "Share of a round's recorded time; phases of all policies together."
    phases = []
    for group in groups:
        part = times[times["cohort"] == group.label]
        exchange = part[part["phase"].isin(EXCHANGE_PHASES)]
        phases.append(
            {
                "cohort": group.label,
                "seconds": part.groupby("phase")["seconds"].sum().to_dict(),
                "share": part.groupby("phase")["share"].sum().to_dict(),
                "total": part["seconds"].sum(),
                "exchange": exchange["share"].sum(),
            }
        )
    picture = _picture(figure, "Time of each phase as a share of a round.", caption)
    return {"phases": phases, "phase_names": names, "phase_picture": picture}


def _rollouts(groups: Sequence[Cohort], /) -> dict[str, Any]:
    """Examples of the first seed of each cohort, in the order recorded: nobody chose them."""
    samples, rescued = [], []
    for group in groups:
        run = group.runs[0]
        pairs = changes(run)
        samples.append((group.label, run, list(_examples(pairs))))
        rescued.append((group.label, run, list(_examples([c for c in pairs if c.rescued]))))
    return {
        "samples": samples,
        "rescued": rescued,
        "transitions": _records(transitions(groups)),
        "responses_shown": RESPONSES,
        "threshold": Group.success_threshold,
    }


def _theory(group: Cohort, /) -> dict[str, Any]:
    """What theory says of the world of a cohort's first seed, as far as it was measured."""
    run = group.runs[0]
    worlds = stored_worlds(run.path)
    entry: dict[str, Any] = {"cohort": group.label, "run": run, "rounds": [w.round for w in worlds]}
    if not worlds:
        return entry
    around = theory.ends(worlds)
    looked = around[0] if around else worlds[-1]
    rows = theory.probes(looked, run.config)
    planes = [
        _picture(
            plots.plane(rows[rows["receiver"] == policy.name], title=f"receiver {policy.name}"),
            f"Stability cost and support gain of each rule for {policy.name}.",
        )
        for policy in run.config.policies
        if drawable(rows[rows["receiver"] == policy.name])
    ]
    entry |= {
        "world": looked,
        "about": _about(looked),
        "probes": _records(rows),
        "draws": theory.DRAWS,
        "most_ways": theory.MOST_WAYS,
        "simulated": list(dict.fromkeys(rows["label"][rows["stability_cost_se"].notna()])),
        "planes": planes,
        "agreement": [],
    }
    if around:
        frame = theory.changes(*around, run.config)
        figure = figures.agreement(
            frame.assign(facet=frame["policy"]),
            xlabel="predicted change of success probability, scaled",
            ylabel="measured change",
        )
        entry["agreement"] = _records(theory.agreement(frame))
        entry["end"] = around[1]
        entry["predicted_se"] = frame["predicted_se"].max()
        entry["changes"] = _picture(figure, "Measured against predicted change, by prompt.")
    return entry


def _about(world: RunWorld, /) -> list[dict[str, Any]]:
    """One row a policy: what the world knows of it."""
    return [
        {
            "policy": name,
            "success": world.world.success_probability[i].mean(),
            "sampled": world.successes_NX[i].sum() / max(world.verified_NX[i].sum(), 1),
            "seen": world.seen_NX[i].mean(),
        }
        for i, name in enumerate(world.policies)
    ]


def _examples(pairs: Sequence[Change], /) -> Iterator[Examples]:
    def key(change: Change) -> tuple[str, str]:
        return change.before.policy, change.tag

    for (policy, tag), members in groupby(sorted(pairs, key=key), key=key):
        found = tuple(members)
        yield Examples(policy, tag, len(found), found[:EXAMPLES])


def _with_row(frame: pd.DataFrame, groups: Sequence[Cohort], /) -> pd.DataFrame:
    """Add the name of a bar: the policy, with its cohort where there are several."""
    if len(groups) == 1:
        return frame.assign(row=frame["policy"])
    return frame.assign(row=frame["cohort"] + " · " + frame["policy"])


def _records(frame: pd.DataFrame, /) -> list[dict[str, Any]]:
    return [{str(key): value for key, value in row.items()} for row in frame.to_dict("records")]
