"""A set of learning curves in a few figures, with intervals.

Source: docs/theory.md, section 6.
"""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from bandit.probes.group import Array


def summary(
    frame: pd.DataFrame,
    /,
    *,
    rescued: float = 0.5,
    level: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> pd.DataFrame:
    """Sum up a set of runs by policy, with bootstrap intervals over replicas.

    Parameters
    ----------
    frame : DataFrame
        As returned by `bandit.dynamics.run`.
    rescued : float
        A run is rescued at the first step whose ``rescue_value`` reaches this.
    level : float
        Coverage of the percentile intervals.
    resamples, seed : int
        Bootstrap samples of the replicas, and their seed.

    Returns
    -------
    DataFrame
        Indexed by policy; means over replicas, each with the ends of its interval in ``_low`` and
        ``_high``: ``final_value``, ``rescue_value``, ``entropy`` and ``overlap`` at the last step;
        ``rescued_share`` and ``collapse_share``; ``gradient_norm_q0.5``, ``_q0.95`` and ``_q1``,
        quantiles over the steps of a run. ``time_to_rescue`` is the median over replicas, likewise
        with an interval; inf where half of them never get there. NaN where there is nothing to
        average, such as a rescue set.
    """
    if not 0 < level < 1:
        raise ValueError(f"level={level!r} is not allowed; expected a number between 0 and 1")
    rng = np.random.default_rng(seed)
    rows = {}
    for policy, runs in frame.groupby("policy"):
        last = runs[runs["step"] == runs["step"].max()].set_index("replica").sort_index()
        draws = rng.integers(len(last), size=(resamples, len(last)))
        there = runs[runs["rescue_value"] >= rescued].groupby("replica")["step"].min()
        when = there.reindex(last.index).fillna(np.inf).to_numpy(dtype=np.float64)
        possible = last["rescue_value"].notna().to_numpy()
        figures = {
            "final_value": last["value"].to_numpy(),
            "rescue_value": last["rescue_value"].to_numpy(),
            "rescued_share": np.where(possible, np.isfinite(when), np.nan),
            "collapse_share": last["collapsed"].to_numpy(dtype=np.float64),
            "entropy": last["entropy"].to_numpy(),
            "overlap": last["overlap"].to_numpy(),
        }
        norms = runs.groupby("replica")["gradient_norm"]
        for q in (0.5, 0.95, 1.0):
            figures[f"gradient_norm_q{q:g}"] = norms.quantile(q).to_numpy()
        row: dict[str, float] = {}
        for name, values in figures.items():
            row |= _with_interval(name, _mean, values, draws, level)
        when = when if possible.all() else np.full(len(when), np.nan)
        rows[policy] = row | _with_interval("time_to_rescue", _median, when, draws, level)
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("policy")


def _with_interval(
    name: str,
    statistic: Callable[[Array], Array],
    values: Array,
    draws: NDArray[np.int64],
    level: float,
    /,
) -> dict[str, float]:
    """A statistic of the replicas' values, and the ends of its percentile interval."""
    low, high = _quantiles(statistic(values[draws]), [(1 - level) / 2, (1 + level) / 2])
    return {name: float(statistic(values)), f"{name}_low": low, f"{name}_high": high}


def _mean(values: Array, /) -> Array:
    """Mean along the last axis of what is not NaN; NaN if nothing is."""
    known = ~np.isnan(values)
    count = known.sum(-1)
    total = np.where(known, values, 0.0).sum(-1)
    return np.divide(total, count, out=np.full(np.shape(total), np.nan), where=count > 0)


def _quantiles(values: Array, levels: Sequence[float], /) -> list[float]:
    """Quantiles of the values that are not NaN; the nearest one, as some may be inf."""
    known = values[~np.isnan(values)]
    if not known.size:
        return [np.nan] * len(levels)
    return np.quantile(known, levels, method="nearest").tolist()


def _median(steps: Array, /) -> Array:
    """Upper median along the last axis, which is defined when some steps are inf."""
    middle: Array = np.sort(steps, axis=-1)[..., steps.shape[-1] // 2]
    return middle
