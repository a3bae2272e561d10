"""The demo's runs as tidy frames, and the table that sets them beside the prediction."""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rich import box
from rich.table import Table
from scipy import stats

from mrl.demo.plan import OWN_SKILL, POLICIES, Mode, Plan, Regime
from mrl.report import load_run
from mrl.runs import RunFolder

BASELINE = "grpo"


def collect(runs: Sequence[tuple[Mode, Regime, int, RunFolder]], /) -> pd.DataFrame:
    """Held-out pass@1 of every run, policy and skill, at the first and the last evaluation.

    Returns
    -------
    DataFrame
        Columns regime, mode, seed, policy, skill ("own" or "peer"), start, value, low, high (the
        bootstrap interval over items of `value`).
    """
    rows = []
    for mode, regime, seed, folder in runs:
        frame = load_run(folder.path).evaluations
        for policy in POLICIES:
            for tag in OWN_SKILL.values():
                part = frame[(frame["policy"] == policy) & (frame["tag"] == tag)]
                part = part.sort_values("round")
                last = part.iloc[-1]
                rows.append(
                    {
                        "regime": regime.key,
                        "mode": mode.key,
                        "seed": seed,
                        "policy": policy,
                        "skill": "own" if tag == OWN_SKILL[policy] else "peer",
                        "start": part.iloc[0]["pass@1"],
                        "value": last["pass@1"],
                        "low": last["pass@1_low"],
                        "high": last["pass@1_high"],
                    }
                )
    return pd.DataFrame(rows)


def summarise(results: pd.DataFrame, /, *, level: float = 0.95) -> pd.DataFrame:
    """Means over seeds and differences from GRPO, each with an interval.

    Differences are paired by seed (the same start, the same prompts) and have a Student-t
    interval over seeds; ``verdict`` is "tie" where it holds 0, "up" or "down" otherwise. With one
    seed the interval of the mean is the bootstrap over held-out items, and there is no verdict.

    Returns
    -------
    DataFrame
        One row for each regime, mode, policy and skill: mean, half (half-width), seeds, difference,
        difference_half, verdict.
    """
    keys = ["regime", "policy", "skill"]
    base = results[results["mode"] == BASELINE].rename(columns={"value": "baseline"})
    paired = results.merge(base[[*keys, "seed", "baseline"]], on=[*keys, "seed"])
    rows = []
    for labels, part in paired.groupby(["regime", "mode", "policy", "skill"], sort=False):
        regime, mode, policy, skill = labels
        values, gaps = part["value"], part["value"] - part["baseline"]
        one = len(values) == 1
        half = float((part["high"] - part["low"]).iloc[0] / 2) if one else _half(values, level)
        gap_half = float("nan") if one else _half(gaps, level)
        rows.append(
            {
                "regime": regime,
                "mode": mode,
                "policy": policy,
                "skill": skill,
                "start": float(part["start"].mean()),
                "mean": float(values.mean()),
                "half": half,
                "seeds": len(values),
                "difference": float(gaps.mean()),
                "difference_half": gap_half,
                "verdict": _verdict(float(gaps.mean()), gap_half),
            }
        )
    return pd.DataFrame(rows)


def table(
    summary: pd.DataFrame,
    prediction: pd.DataFrame,
    gate: dict[tuple[str, str], str],
    plan: Plan,
    regime: Regime,
    policy: str,
    /,
) -> Table:
    """One receiver's rows in one regime: measured skills beside what the bandit predicted."""
    seeds = len(plan.seeds)
    spread = "Student t over seeds" if seeds > 1 else "bootstrap over held-out items"
    out = Table(
        title=f"{policy}: held-out pass@1 ± 95% ({spread}, {seeds} seed{'s' * (seeds > 1)})\n"
        f"{regime.label}",
        caption="predicted: cost = tr Cov(g) relative to GRPO, U = support gain on the peer's\n"
        "skill; arrows: the paired difference from GRPO excludes 0",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    out.add_column("sharing rule", no_wrap=True)
    out.add_column("gate", no_wrap=True)
    for head in ("own skill", "peer's skill", "cost", "U"):
        out.add_column(head, justify="right", no_wrap=True)
    chosen = (summary["regime"] == regime.key) & (summary["policy"] == policy)
    measured = {(row["mode"], row["skill"]): row for row in summary[chosen].to_dict("records")}
    chosen = (prediction["regime"] == regime.key) & (prediction["policy"] == policy)
    placed = {row["mode"]: row for row in prediction[chosen].to_dict("records")}
    starts = [f"{measured[BASELINE, skill]['start']:.2f}" for skill in ("own", "peer")]
    out.add_row("start", "", *starts, "", "", end_section=True)
    for mode in plan.modes:
        cells = [_cell(measured[mode.key, skill]) for skill in ("own", "peer")]
        where = placed[mode.key]
        cells += [f"{where['relative_cost']:.2f}", f"{where['support_gain']:.2g}"]
        out.add_row(mode.label, gate[regime.key, mode.key], *cells)
    return out


def _half(values: pd.Series, level: float, /) -> float:
    data = np.asarray(values, dtype=np.float64)
    scale = data.std(ddof=1) / np.sqrt(len(data))
    return float(stats.t.ppf((1 + level) / 2, len(data) - 1) * scale)


def _verdict(gap: float, half: float, /) -> str:
    if np.isnan(half):
        return ""
    if abs(gap) <= half or gap == 0:
        return "tie"
    return "up" if gap > 0 else "down"


def _cell(row: dict[Hashable, Any], /) -> str:
    arrow = {"up": "↑", "down": "↓"}.get(row["verdict"], "")
    return f"{row['mean']:.2f} ± {row['half']:.2f}{arrow}"
