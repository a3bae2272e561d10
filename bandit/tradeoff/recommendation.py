"""Which sharing rule to use where the stability cost is bounded.

Source: docs/theory.md, section 4.
"""

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass

import pandas as pd

from bandit.design import Design
from bandit.probes import GRPO, Probe
from bandit.probes._checks import is_real
from bandit.residual import NO_RESIDUAL, Residual
from bandit.tradeoff.breakeven import more_own_gain
from bandit.tradeoff.frontier import frontier, non_dominated, settings
from bandit.tradeoff.plane import grpo_like, weighted_mean
from bandit.world import World

SAME, MORE = "GRPO, G own", "GRPO, M more own"
SHOWN = ("stability_cost", "support_gain", "bias_cosine", "error")
TOLERANCE = 1e-9


@dataclass(frozen=True, eq=False)
class Recommendation:
    """A setting to use, and why.

    Attributes
    ----------
    probe : Probe
        The rule; GRPO where sharing is not worth it.
    own : int
        Own rollouts to draw: G, or G + M where more own rollouts are the better use of the budget.
    peers : int or {policy: int}
        As it was asked for; 0 for GRPO.
    label : str
        Name of the setting in `considered`.
    figures : dict of {str: float}
        ``max_stability_cost``, and of the setting ``stability_cost``, ``support_gain``,
        ``bias_cosine``, ``error``; the same with the suffix ``_same`` for GRPO with G and
        ``_more`` for GRPO with G + M own rollouts.
    reason : str
        The choice in figures.
    considered : DataFrame
        All settings and both controls, as `bandit.tradeoff.frontier` gives them, the columns
        ``fits`` (within the bound) and ``control`` added; the largest gain first.
    """

    probe: Probe
    own: int
    peers: int | Mapping[int, int]
    label: str
    figures: dict[str, float]
    reason: str
    considered: pd.DataFrame

    def __str__(self) -> str:
        """State the setting and its reason."""
        return f"{self.label}: {self.probe}, own={self.own}, peers={self.peers}\n{self.reason}"

    def _repr_html_(self) -> str:
        columns = ["label", *SHOWN, "on_frontier", "fits"]
        table = self.considered[columns].to_html(
            index=False, border=0, float_format=lambda value: f"{value:.3g}"
        )
        head = f"{self.probe}, own={self.own}, peers={self.peers}"
        return (
            f"<p><b>{html.escape(self.label)}</b>: <code>{html.escape(head)}</code></p>"
            f"<p>{html.escape(self.reason)}</p>{table}"
        )


def recommend(
    world: World,
    /,
    max_stability_cost: float,
    probes: Mapping[str, Probe] | None = None,
    *,
    receiver: int = 0,
    own: int = 8,
    peers: int | Mapping[int, int] = 8,
    residual: Residual = NO_RESIDUAL,
    min_cosine: float = -1.0,
) -> Recommendation:
    """Choose the setting with the largest support gain whose stability cost stays within a bound.

    Parameters
    ----------
    world : World
        Contexts, rewards and policies.
    max_stability_cost : float
        Bound on the absolute stability cost of the population: tr Cov(g) of one receiver's
        estimate in one context (squared units of the gradient in the parameters), averaged with
        the world's weights; column ``stability_cost`` of `bandit.tradeoff.aggregate`.
    probes : {label: Probe}, optional
        Sharing settings to choose from; default: those of `bandit.tradeoff.settings`.
    receiver, own, peers, residual
        As in `bandit.exact.moments`.
    min_cosine : float
        Bound on the bias: the population's cosine to the true gradient. The default asks for none;
        the gain alone may choose a rule that is biased, and the reason says when its error is above
        GRPO's.

    Returns
    -------
    Recommendation
        The sharing setting if it gains more than GRPO within the bound, else GRPO.

    Raises
    ------
    ValueError
        If nothing fits the bound (the message gives the smallest cost there is), the receiver
        never succeeds so that no gain is defined, all settings share nothing, they differ in the
        advantage's conventions, or a setting is out of range.

    Notes
    -----
    Controls are GRPO with G own rollouts, which gains 0 by definition, and GRPO with G + M,
    credited with what M more own rollouts gain where the first G had no success
    (`bandit.tradeoff.breakeven.more_own_gain`); a control over the bound does not count. Of equal
    gains the cheapest is taken.
    """
    for name, value, sound in (
        ("max_stability_cost", max_stability_cost, is_real(max_stability_cost)),
        ("min_cosine", min_cosine, is_real(min_cosine) and -1 <= min_cosine <= 1),
    ):
        least = "a number >= 0" if name == "max_stability_cost" else "a number in [-1, 1]"
        if not sound or (name == "max_stability_cost" and value < 0):
            raise ValueError(f"{name}={value!r} is not allowed; expected {least}")
    every = settings() if probes is None else probes
    shared = {label: probe for label, probe in every.items() if probe.needs}
    rule = _common_rule(shared)
    design = Design.of(world, receiver=receiver, own=own, peers=peers)
    rows = frontier(
        world, shared, receiver=receiver, own=own, peers=peers, residual=residual
    ).assign(control=False)
    controls = _controls(world, rule, design).assign(control=True)
    considered = pd.concat([rows, controls], ignore_index=True)
    considered["on_frontier"] = non_dominated(
        considered["stability_cost"], considered["support_gain"]
    )
    considered["fits"] = (considered["stability_cost"] <= max_stability_cost) & (
        considered["bias_cosine"].fillna(1.0) >= min_cosine
    )
    considered = considered.sort_values(
        ["support_gain", "stability_cost"], ascending=[False, True], kind="stable"
    ).reset_index(drop=True)
    chosen = _choose(considered, max_stability_cost, design)
    by_label = considered.set_index("label").to_dict("index")
    mine = by_label[chosen]
    figures = {"max_stability_cost": float(max_stability_cost)}
    for suffix, label in (("", chosen), ("_same", SAME), ("_more", MORE)):
        figures |= {f"{name}{suffix}": float(by_label[label][name]) for name in SHOWN}
    return Recommendation(
        probe=rule if mine["control"] else shared[chosen],
        own=int(mine["own"]),
        peers=0 if mine["control"] else peers,
        label=chosen,
        figures=figures,
        reason=_reason(considered, chosen, figures, design),
        considered=considered,
    )


def _common_rule(shared: Mapping[str, Probe], /) -> GRPO:
    rules = {grpo_like(probe) for probe in shared.values()}
    if len(rules) != 1 or not {SAME, MORE}.isdisjoint(shared):
        raise ValueError(
            f"probes holds {len(shared)} sharing rules with {len(rules)} conventions of the "
            f"advantage; expected at least one rule, none called {SAME!r} or {MORE!r}, and the "
            "same scale, ddof and eps in all: costs on different scales cannot be compared"
        )
    return rules.pop()


def _controls(world: World, rule: GRPO, design: Design, /) -> pd.DataFrame:
    """GRPO with G and with G + M own rollouts; without peers the two are the same."""
    extra = design.rollouts - design.own
    sizes = (design.own, design.rollouts)
    rows = pd.concat(
        [
            frontier(world, {label: rule}, receiver=design.receiver, own=size, peers=0)
            for label, size in zip((SAME, MORE), sizes, strict=True)
        ],
        ignore_index=True,
    )
    gains = more_own_gain(world, receiver=design.receiver, own=design.own, extra=extra, rule=rule)
    rows.loc[1, "support_gain"] = weighted_mean(gains, world.weights)
    return rows


def _choose(considered: pd.DataFrame, bound: float, design: Design, /) -> str:
    """Label of the largest gain within the bound; a control's where sharing gains no more."""
    fitting = considered[considered["fits"]]
    if fitting.empty:
        least = considered.sort_values("stability_cost").iloc[0]
        raise ValueError(
            f"no setting keeps within max_stability_cost={bound!r} and min_cosine; the smallest "
            f"stability cost is {least['stability_cost']:.6g}, of {least['label']!r}; raise the "
            f"bound, lower min_cosine, or give more own rollouts than own={design.own}"
        )
    measured = fitting[fitting["support_gain"].notna()]
    if measured.empty:
        raise ValueError(
            f"receiver {design.receiver} has no support gain in any context: its success "
            "probability is 0; give it a small positive one"
        )
    best = measured.iloc[0]
    controls = measured[measured["control"]]
    if not controls.empty:
        own_best = controls.iloc[0]
        slack = TOLERANCE * max(abs(own_best["support_gain"]), abs(best["support_gain"]))
        if best["support_gain"] <= own_best["support_gain"] + slack:
            best = own_best
    return str(best["label"])


def _reason(
    considered: pd.DataFrame, chosen: str, figures: Mapping[str, float], design: Design, /
) -> str:
    shared = considered[~considered["control"]]
    fitting = shared[shared["fits"]]
    limit = f"within a stability cost of {figures['max_stability_cost']:.3g}"
    if chosen in (SAME, MORE):
        first = f"No sharing setting beats GRPO {limit}: "
        if fitting.empty:
            least = shared.sort_values("stability_cost").iloc[0]
            first += (
                f"the cheapest, {least['label']}, costs {least['stability_cost']:.3g}, with cosine "
                f"{_known(least['bias_cosine'])}."
            )
        else:
            best = fitting.iloc[0]
            first += f"the best of them, {best['label']}, gains {best['support_gain']:.3g}."
    else:
        first = (
            f"{chosen} has the largest support gain {limit}: {figures['support_gain']:.3g} at "
            f"cost {figures['stability_cost']:.3g} ({len(fitting)} of {len(shared)} sharing "
            "settings fit)."
        )

    def state(suffix: str) -> str:
        return (
            f"gains {figures['support_gain' + suffix]:.3g} at cost "
            f"{figures['stability_cost' + suffix]:.3g}"
        )

    return (
        f"{first} GRPO with the same own group (G={design.own}) {state('_same')}; with G+M="
        f"{design.rollouts} own rollouts it {state('_more')}. Cosine to the true gradient "
        f"{_known(figures['bias_cosine'])} (GRPO {_known(figures['bias_cosine_same'])}), error at "
        f"the best learning rate {_known(figures['error'])} (GRPO {_known(figures['error_same'])} "
        f"with G, {_known(figures['error_more'])} with G+M).{_caution(figures)}"
    )


def _caution(figures: Mapping[str, float], /) -> str:
    """Say so where the choice is a worse estimate than not sharing."""
    if figures["error"] > figures["error_same"] * (1 + TOLERANCE):
        return (
            " Its error is above GRPO's with the same own group: the gain is paid for with bias or "
            "noise; min_cosine bounds the bias."
        )
    return ""


def _known(value: float, /) -> str:
    return "undefined" if math.isnan(value) else f"{value:.3g}"
