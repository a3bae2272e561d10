"""Runs in, tidy frames out: what the page's figures and tables show."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

from mrl.report.cohorts import Cohort, over_seeds
from mrl.report.runs import PASS, TAGLESS, VOLUMES, Run

CURVE = ["facet", "series", "x", "value", "low", "high"]
MAX_POINTS = 100
SHARED = "shared"
COUNTERS = (
    "rescued_prompts", "unverified", "unrepresentable", "reverify_refused",
    "trained_tokens_own", "trained_tokens_peer",
)  # fmt: skip


def window(groups: Sequence[Cohort], /) -> int:
    """Choose how many rounds a point of a curve averages, so that no curve has too many."""
    longest = max(
        (run.rounds["round"].max() for run in _runs(groups) if len(run.rounds)), default=0
    )
    return max(1, math.ceil((longest + 1) / MAX_POINTS))


def training_curves(groups: Sequence[Cohort], measure: str, /) -> pd.DataFrame:
    """One measure of the training rounds, over rounds.

    Returns
    -------
    DataFrame
        Columns facet, series, x (rounds completed when the round began, mean of the window),
        value, low, high. One cohort: a series a policy. Several: a facet a policy, a series a
        cohort.
    """
    width = window(groups)
    frames = []
    for group, run in _members(groups):
        rounds = run.rounds
        if measure not in rounds:
            continue
        rounds = rounds[np.isfinite(rounds[measure].astype(float))]
        binned = rounds.assign(bin=rounds["round"] // width).groupby(["policy", "bin"], sort=False)
        points = binned.agg(x=("round", "mean"), value=(measure, "mean")).reset_index()
        frames.append(points.assign(cohort=group.label))
    if not frames or all(frame.empty for frame in frames):
        return pd.DataFrame(columns=CURVE)
    frame = _complete(pd.concat(frames), ["cohort", "policy"])
    facet, series = ("", "policy") if len(groups) == 1 else ("policy", "cohort")
    return _curve(over_seeds(frame, ["cohort", "policy", "x"]), facet, series)


def smallest_k(groups: Sequence[Cohort], /) -> int | None:
    """Find the smallest k for which some run has pass@k."""
    return min((k for run in _runs(groups) for k in _ks(run.evaluations)), default=None)


def heldout(groups: Sequence[Cohort], /) -> pd.DataFrame:
    """Every held-out pass@k of every run.

    Returns
    -------
    DataFrame
        Columns cohort, seed, round, policy, tag, k, value, low, high; empty without evaluations.
    """
    columns = ["cohort", "seed", "round", "policy", "tag", "k", "value", "low", "high"]
    frames = []
    for group, run in _members(groups):
        for k in _ks(run.evaluations):
            name = f"pass@{k}"
            part = run.evaluations[["round", "policy", "tag"]].assign(
                cohort=group.label, seed=run.config.seed, k=k, value=run.evaluations[name]
            )
            for bound in ("low", "high"):
                part[bound] = run.evaluations.get(f"{name}_{bound}", np.nan)
            frames.append(part[columns])
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=columns)


def heldout_curves(groups: Sequence[Cohort], k: int, /) -> pd.DataFrame:
    """Held-out pass@k over rounds; columns as in `training_curves`."""
    frame = heldout(groups)
    frame = _complete(frame[frame["k"] == k].rename(columns={"round": "x"}), ["cohort", "policy"])
    summary = over_seeds(frame, ["cohort", "policy", "tag", "x"])
    if len(groups) == 1:
        return _curve(summary, "policy", "tag", bounded=True)
    summary["panel"] = summary["policy"] + " · " + summary["tag"]
    return _curve(summary, "panel", "cohort", bounded=True)


def comparison(groups: Sequence[Cohort], /) -> pd.DataFrame:
    """Held-out pass@k before and after training, at rounds that all seeds of a cohort have.

    Returns
    -------
    DataFrame
        One row a cohort, policy, tag and k, the cohorts next to each other: start, value, low,
        high, seeds, method and the rounds ``first`` and ``last`` at which they were measured. A
        cohort without a common evaluation has no row.
    """
    frame = heldout(groups)
    keys = ["cohort", "policy", "tag", "k"]
    parts = []
    for group in groups:
        rows = frame[frame["cohort"] == group.label]
        rounds = [set(rows.loc[rows["seed"] == seed, "round"]) for seed in group.seeds]
        common = set.intersection(*rounds)
        if not common:
            continue
        start = over_seeds(rows[rows["round"] == min(common)], keys)
        end = over_seeds(rows[rows["round"] == max(common)], keys)
        start = start[[*keys, "value"]].rename(columns={"value": "start"})
        merged = end.merge(start, on=keys, how="left")
        parts.append(merged.assign(first=min(common), last=max(common)))
    columns = [*keys, "value", "low", "high", "seeds", "method", "start", "first", "last"]
    if not parts:
        return pd.DataFrame(columns=columns)
    result = pd.concat(parts, ignore_index=True)
    result[["low", "high"]] = result[["low", "high"]].clip(0, 1)
    order = pd.factorize(pd.MultiIndex.from_frame(result[["policy", "tag"]]))[0]
    return result.assign(order=order).sort_values(["k", "order"], kind="stable")[columns]


def no_comparison(groups: Sequence[Cohort], /) -> str:
    """Why `comparison` has no row, in words."""
    evaluations = [run.evaluations for run in _runs(groups) if len(run.evaluations)]
    if not evaluations:
        return "No evaluation was recorded"
    values = heldout(groups)
    if values["value"].isna().all():
        whole = pd.concat(evaluations)
        lost = whole[whole["tag"] == TAGLESS]["unverified"].sum()
        return (
            f"No response of the evaluations has a verdict ({lost:,.0f} were not verified; "
            "unverified_said in metrics.jsonl says why)"
        )
    shared = [
        set.intersection(*(set(run.evaluations["round"]) for run in group.runs)) for group in groups
    ]
    if not any(shared):
        return "No evaluation was recorded at a round that the seeds have in common"
    return "No response of the last evaluation has a verdict"


def rescue_set(groups: Sequence[Cohort], /) -> pd.DataFrame:
    """Size and solved share of the rescue set at the first and last evaluation of each run.

    Returns
    -------
    DataFrame
        Columns cohort, policy, tag, and means over seeds of ``items_first``, ``items_last``,
        ``share_first`` and ``share_last``.
    """
    parts = []
    for group, run in _members(groups):
        rows = run.evaluations.dropna(subset=["rescue_items"])
        if rows.empty:
            continue
        ordered = rows.sort_values("round").groupby(["policy", "tag"], sort=False)
        ends = ordered.agg(
            items_first=("rescue_items", "first"),
            items_last=("rescue_items", "last"),
            share_first=("rescue_share", lambda values: values.iloc[0]),
            share_last=("rescue_share", lambda values: values.iloc[-1]),
        )
        parts.append(ends.reset_index().assign(cohort=group.label))
    if not parts:
        return pd.DataFrame()
    keys = ["cohort", "policy", "tag"]
    return pd.concat(parts).groupby(keys, sort=False).mean().reset_index()


def overlap_curves(groups: Sequence[Cohort], /) -> pd.DataFrame:
    """Jaccard overlap of two policies' solved sets over rounds; columns as in `training_curves`."""
    frames = []
    for group, run in _members(groups):
        if run.overlaps.empty:
            continue
        names = np.sort(run.overlaps[["policy", "peer"]].to_numpy(dtype=str), axis=1)
        pair = [" and ".join(row) for row in names]
        rows = pd.DataFrame(
            {"pair": pair, "x": run.overlaps["round"], "value": run.overlaps["jaccard"]}
        )
        # A symmetric measure that may have been recorded from both sides.
        rows = rows.groupby(["pair", "x"], sort=False)["value"].mean().reset_index()
        frames.append(rows.dropna(subset="value").assign(cohort=group.label))
    if not frames or all(frame.empty for frame in frames):
        return pd.DataFrame(columns=CURVE)
    frame = _complete(pd.concat(frames), ["cohort", "pair"])
    facet, series = ("", "pair") if len(groups) == 1 else ("pair", "cohort")
    return _curve(over_seeds(frame, ["cohort", "pair", "x"]), facet, series, bounded=True)


def sharing_volume(groups: Sequence[Cohort], /) -> pd.DataFrame:
    """Experience received by record type, a round: means over rounds and seeds.

    Returns
    -------
    DataFrame
        Columns cohort, policy, kind, records, bytes.
    """
    parts = []
    for group, run in _members(groups):
        columns = [c for c in map(str, run.rounds) if c.split(".")[0] in VOLUMES and "." in c]
        # A kind absent from a round's row was not received in it.
        means = run.rounds[["policy", *columns]].fillna(0).groupby("policy", sort=False).mean()
        for column in columns:
            volume, kind = column.split(".", 1)
            part = means[column].rename("value").reset_index()
            parts.append(part.assign(cohort=group.label, kind=kind, volume=volume))
    if not parts:
        return pd.DataFrame(columns=["cohort", "policy", "kind", "records", "bytes"])
    keys = ["cohort", "policy", "kind"]
    table = pd.concat(parts).pivot_table(
        index=keys, columns="volume", values="value", aggfunc="mean", sort=False
    )
    table = table.reindex(columns=list(VOLUMES)).rename(
        columns={"records_in": "records", "bytes_in": "bytes"}
    )
    return table.reset_index()


def counters(groups: Sequence[Cohort], /) -> pd.DataFrame:
    """Dead-group share (mean over rounds) and event totals of a run, means over seeds.

    Returns
    -------
    DataFrame
        Columns cohort, policy, dead_share, and each of `COUNTERS`; NaN where never recorded.
    """
    parts = []
    for group, run in _members(groups):
        if run.rounds.empty:
            continue
        grouped = run.rounds.groupby("policy", sort=False)
        totals = grouped[list(COUNTERS)].sum(min_count=1)
        totals.insert(0, "dead_share", grouped["dead_share"].mean())
        parts.append(totals.reset_index().assign(cohort=group.label))
    if not parts:
        return pd.DataFrame(columns=["cohort", "policy", "dead_share", *COUNTERS])
    return pd.concat(parts).groupby(["cohort", "policy"], sort=False).mean().reset_index()


def phase_times(groups: Sequence[Cohort], /) -> pd.DataFrame:
    """Seconds of each phase, a round: means over rounds and seeds.

    Returns
    -------
    DataFrame
        Columns cohort, policy (``"shared"`` for shared phases), phase, seconds, share (of the
        cohort's whole round).
    """
    parts = []
    for group, run in _members(groups):
        if run.timing.empty:
            continue
        timing = run.timing.assign(policy=run.timing["policy"].fillna(SHARED))
        total = timing.groupby(["policy", "phase"], sort=False)["seconds"].sum()
        mean = total / run.rounds["round"].nunique()
        parts.append(mean.reset_index().assign(cohort=group.label))
    if not parts:
        return pd.DataFrame(columns=["cohort", "policy", "phase", "seconds", "share"])
    keys = ["cohort", "policy", "phase"]
    frame = pd.concat(parts).groupby(keys, sort=False)["seconds"].mean().reset_index()
    whole = frame.groupby("cohort")["seconds"].transform("sum")
    frame["share"] = frame["seconds"] / whole.where(whole > 0)
    return frame


def _runs(groups: Sequence[Cohort], /) -> list[Run]:
    return [run for group in groups for run in group.runs]


def _members(groups: Sequence[Cohort], /) -> list[tuple[Cohort, Run]]:
    return [(group, run) for group in groups for run in group.runs]


def _ks(evaluations: pd.DataFrame, /) -> list[int]:
    matches = [PASS.fullmatch(str(column)) for column in evaluations.columns]
    return sorted(int(match[1]) for match in matches if match)


def _complete(frame: pd.DataFrame, owner: list[str], /) -> pd.DataFrame:
    """Keep the points that every seed has: a mean over fewer seeds would be another mean."""
    rest = [c for c in ("tag",) if c in frame]
    count = frame.groupby([*owner, *rest, "x"])["value"].transform("count")
    return frame[count == count.groupby([frame[c] for c in owner]).transform("max")]


def _curve(
    summary: pd.DataFrame, facet: str, series: str, *, bounded: bool = False
) -> pd.DataFrame:
    curve = summary.assign(facet=summary[facet] if facet else "", series=summary[series])[CURVE]
    if bounded:
        curve[["low", "high"]] = curve[["low", "high"]].clip(0, 1)
    return curve
