"""What a tokenizer mismatch does to each rule: bias, cost and effective sample size.

Source: docs/theory.md, section 2 (Residual).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bandit import Residual, exact, tradeoff
from bandit.plots import STYLE, log_ticks, looks
from bandit.probes import PRP, Probe
from bandit.worlds import rare_success
from paper_figures import RULES, common_legend

AXES = {
    "mu": r"mean error $\mu$ (nats)",
    "sigma": r"its deviation $\sigma$ (nats)",
    "drop": r"dropped share $\eta$",
    "gate": "gated share",
}
ROWS = {
    "shift": r"$|\Delta\,\mathrm{E}\,g|\,/\,|\mathrm{E}\,g|$",
    "relative_cost": r"tr Cov$(g)$, relative",
    "ess": "ESS",
}


def _rules() -> dict[str, Probe]:
    return {
        "PRP": PRP(),
        "PRP, cap 2": PRP(cap=2.0),
        **{label: RULES[label] for label in ("PRP, no ratio", "SGT", "XGRPO")},
    }


def _values() -> dict[str, tuple[float, ...]]:
    return {
        "mu": tuple(np.linspace(-2.0, 2.0, 9).tolist()),
        "sigma": tuple(np.linspace(0.0, 1.6, 9).tolist()),
        "drop": tuple(np.linspace(0.0, 1.0, 9).tolist()),
        "gate": tuple(np.linspace(0.0, 1.0, 9).tolist()),
    }


@dataclass(frozen=True)
class Sweep:
    """Over which settings the figure is computed.

    Attributes
    ----------
    values : {parameter: values}
        What each parameter of `bandit.Residual` runs through, the others being 0.
    success : float
        p, the receiver's success probability.
    own, peers : int
        Group sizes G and M.
    rules : {label: Probe}
        The sharing rules.
    """

    values: Mapping[str, tuple[float, ...]] = field(default_factory=_values)
    success: float = 0.05
    own: int = 8
    peers: int = 8
    rules: Mapping[str, Probe] = field(default_factory=_rules)


SWEEP = Sweep()


def compute(sweep: Sweep = SWEEP) -> pd.DataFrame:
    """Exact moments of every rule under every residual, against the same rule without one.

    Returns
    -------
    DataFrame
        One row for each parameter, its value and label: ``shift``, how far the mean moved from
        that without a residual, relative to its length; ``relative_cost``, tr Cov relative to
        that without a residual; ``bias_cosine`` to the true gradient; ``ess`` of the peers'
        rollouts (NaN without a ratio term), out of ``peers``.
    """
    world, own, peers = rare_success(sweep.success), sweep.own, sweep.peers
    clean = {
        label: exact.moments(world, rule, own=own, peers=peers)
        for label, rule in sweep.rules.items()
    }
    rows = []
    for parameter, values in sweep.values.items():
        for value in values:
            residual = Residual(**{parameter: value})
            plane = tradeoff.plane(world, sweep.rules, own=own, peers=peers, residual=residual)
            for label, ess in zip(plane["label"], plane["ess"], strict=True):
                rule, before = sweep.rules[label], clean[label]
                after = exact.moments(world, rule, own=own, peers=peers, residual=residual)
                moved = np.linalg.norm(after.mean - before.mean)
                rows.append(
                    {
                        "parameter": parameter,
                        "value": value,
                        "label": label,
                        "shift": moved / np.linalg.norm(before.mean),
                        "relative_cost": after.covariance_trace[0] / before.covariance_trace[0],
                        "bias_cosine": after.bias_cosine[0],
                        "ess": ess,
                        "peers": peers,
                    }
                )
    return pd.DataFrame(rows)


def plot(frame: pd.DataFrame, /) -> Figure:
    """Draw shift, relative cost and effective sample size, a column for each parameter.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute`.

    Returns
    -------
    Figure
        Rows share their vertical axis; the cost's is logarithmic.
    """
    parameters = list(dict.fromkeys(frame["parameter"]))
    with mpl.rc_context(rc=STYLE):
        figure = Figure(figsize=(6.9, 5.0), layout="constrained")
        grid = figure.subplots(
            len(ROWS), len(parameters), sharex="col", sharey="row", squeeze=False
        )
        for line, column in zip(grid, ROWS, strict=True):
            for axes, parameter in zip(line, parameters, strict=True):
                part = frame[frame["parameter"] == parameter]
                for label, look in looks(dict.fromkeys(part["label"])).items():
                    rule = part[part["label"] == label]
                    marks = look.both | {"markersize": 4.5, "markevery": 2}
                    axes.plot(rule["value"], rule[column], label=label, **marks)
            line[0].set_ylabel(ROWS[column])
        for axes in grid[list(ROWS).index("relative_cost")]:
            axes.set_yscale("log")
            log_ticks(axes.yaxis)
        for axes, parameter in zip(grid[-1], parameters, strict=True):
            axes.set_xlabel(AXES[parameter])
        figure.align_ylabels(grid[:, 0].tolist())
        common_legend(figure, grid[0, 0], ncols=5)
    return figure


def caption(frame: pd.DataFrame, /) -> str:
    """State what the figure shows, in its own numbers.

    Parameters
    ----------
    frame : DataFrame
        As returned by `compute` with the labels of `SWEEP`.
    """
    most = frame.groupby("parameter")["value"].max()
    table = frame.set_index(["parameter", "value", "label"])

    def at_most(parameter: str, label: str, column: str) -> float:
        return float(table.loc[(parameter, most[parameter], label), column])

    weighted = frame[(frame["label"] == "PRP") & frame["parameter"].isin(["mu", "sigma"])]
    still = frame[frame["label"] == "XGRPO"]["shift"].max()
    numb = frame[frame["label"].eq("SGT") & (frame["parameter"] != "drop")]["shift"].max()
    capped = frame[(frame["label"] == "PRP, cap 2") & (frame["parameter"] == "sigma")]
    least = frame[frame["parameter"] == "sigma"]["value"].min()
    clean = table.loc[("sigma", least, "PRP"), "ess"]
    return (
        f"Tokenizer residual (exact), each part alone. An error of the log-ratio multiplies PRP's "
        f"peer terms: mu = {most['mu']:g} moves its mean by {at_most('mu', 'PRP', 'shift'):.2g} of "
        f"its length and the cost by a factor {at_most('mu', 'PRP', 'relative_cost'):.2g}; sigma = "
        f"{most['sigma']:g} by {at_most('sigma', 'PRP', 'shift'):.2g} and "
        f"{at_most('sigma', 'PRP', 'relative_cost'):.2g}, and cuts the effective sample size from "
        f"{clean:.2g} to {at_most('sigma', 'PRP', 'ess'):.2g} of {frame['peers'].iloc[0]}. The "
        f"direction stays (least cosine {weighted['bias_cosine'].min():.3f}) as long as the error "
        f"is the same for all texts. With a cap of 2 the cost at that sigma is "
        f"{capped['relative_cost'].iloc[-1]:.2g} times its own without a residual. Dropped and "
        f"gated rollouts are lost: when all are dropped PRP's mean moves by "
        f"{at_most('drop', 'PRP', 'shift'):.2g} and SGT's by {at_most('drop', 'SGT', 'shift'):.2g},"
        f" when all are gated PRP's by {at_most('gate', 'PRP', 'shift'):.2g}. SGT feels only what "
        f"is dropped (else at most {numb:.1g}) and XGRPO nothing (at most {still:.1g})."
    )
