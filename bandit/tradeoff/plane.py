"""The stability-support plane: what each sharing rule costs, and what it gives.

The names of this module that a user needs are those of `bandit.tradeoff`.

Source: docs/theory.md, section 4.
"""

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from bandit import exact
from bandit.design import Design
from bandit.moments import Moments, cosine
from bandit.policies import log_ratio
from bandit.probes import GRPO, Probe, UngatedNLL
from bandit.probes.group import Array
from bandit.residual import NO_RESIDUAL, Residual
from bandit.sampling import SampledMoments
from bandit.tradeoff.accuracy import context_accuracy, population_accuracy
from bandit.world import World

CONTROLS = ("GRPO, G+M own", "GRPO, dynamic sampling", "NLL, no gate")


def plane(
    world: World,
    probes: Mapping[str, Probe],
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
    controls: bool = False,
    rare: float = 0.01,
    moments: Callable[..., Moments] = exact.moments,
) -> pd.DataFrame:
    """Stability cost and support gain of sharing rules in every context of a world.

    Parameters
    ----------
    world : World
        Contexts, rewards and policies.
    probes : {label: Probe}
        The rules to place.
    receiver, own, peers, residual
        As in `bandit.exact.moments`.
    controls : bool
        Add what sharing must beat: GRPO with G + M own rollouts; GRPO with dynamic sampling
        (dead groups drawn again, at most about G + M rollouts in all); likelihood steps on
        peers' successes without the gate (weight 0.1).
    rare : float
        Success arms below this probability count for ``open_flow``.
    moments : callable
        Finds a rule's moments; takes what `bandit.exact.moments`, the default, takes.

    Returns
    -------
    DataFrame
        One row for each label and context:

        - ``stability_cost``: tr Cov(g); ``relative_cost``: divided by ``reference_cost``, that of
          GRPO with the same scale and own group (inf where GRPO is always dead, NaN for 0/0).
        - ``support_gain``: ``<grad log p, E[g; no own success]>``; ``fisher_gain``: the same in
          the Fisher geometry; NaN where p = 0. ``open_flow``: flow into rare success arms.
        - ``bias_cosine``: ``cos(E g, g*)``, NaN where one is 0; ``mean_norm``, ``true_norm``.
        - ``error``: see `bandit.tradeoff.accuracy.scale_free_error`; NaN where g* is 0.
        - ``population_cosine`` and ``population_error``: the same for the whole population's
          gradient ``sum_x w_x g_x``, equal in all rows of a label; ``population_gain``: support
          gain of a step on the whole population, interference included.
        - ``chi2``: chi-squared of the receiver from the pooled peer mixture, inf where the
          mixture lacks an arm; ``ess``: expected effective number of peer rollouts, residual
          included. NaN for rules without a ratio term; chi2 also for weight-1 rules.
        - ``rescue_probability``, ``dead_probability`` of the world at these group sizes, and the
          context's ``weight``.
        - where `moments` simulates, the standard errors ``stability_cost_se`` and
          ``support_gain_se``; NaN in the rows of a rule whose moments are exact.

    Raises
    ------
    ValueError
        If there is nothing to place, a label is that of a control, or a setting is out of range.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers)
    if not probes and not controls:
        raise ValueError("probes is empty; expected at least one {label: probe}, or controls=True")
    taken = [label for label in probes if controls and label in CONTROLS]
    if taken:
        raise ValueError(f"labels {taken} are those of controls; rename them or leave out controls")
    rows = {label: (probe, own, 0) for label, probe in probes.items()}
    if controls:
        shared = design.rollouts - own
        rows[CONTROLS[0]] = (GRPO(), own + shared, 0)
        rows[CONTROLS[1]] = (GRPO(), own, math.ceil(shared / own))
        rows[CONTROLS[2]] = (UngatedNLL(weight=0.1), own, 0)

    @cache
    def measure(probe: Probe, size: int, redraws: int) -> Moments:
        return moments(
            world,
            probe,
            receiver=receiver,
            own=size,
            peers=peers,
            residual=residual,
            redraws=redraws,
        )

    rescue = exact.rescue_probability(
        world, receiver=receiver, own=own, peers=peers, residual=residual
    )
    dead = exact.dead_probability(world, receiver=receiver, own=own)
    frames = []
    for label, (probe, size, redraws) in rows.items():
        placed = measure(probe, size, redraws)
        reference = measure(grpo_like(probe), own, 0).covariance_trace
        frames.append(
            pd.DataFrame(
                {
                    "label": label,
                    "context": np.arange(world.n_contexts),
                    **axes(placed, reference, rare=rare),
                    **_standard_errors(placed),
                    **_ratio_figures(world, probe, design, residual),
                    "rescue_probability": rescue,
                    "dead_probability": dead,
                    "weight": world.weights,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def aggregate(frame: pd.DataFrame, /) -> pd.DataFrame:
    """Weighted population figures of each label of a plane.

    Parameters
    ----------
    frame : DataFrame
        As returned by `plane`.

    Returns
    -------
    DataFrame
        One row a label. Costs, gains and probabilities are averaged with the context weights,
        gains over contexts with p > 0 only. ``relative_cost`` is the ratio of averaged costs, not
        the average of ratios, which diverge where GRPO is dead. ``bias_cosine`` and ``error`` are
        those of the whole population's gradient, and ``population_cost`` is
        ``sum_x w_x^2 tr Cov_x``, the covariance of one draw of every context. Standard errors are
        those of the averages, contexts being simulated independently.
    """
    whole = {"bias_cosine": "population_cosine", "error": "population_error"}
    own_formula = ("label", "context", "weight", "relative_cost", *whole, *whole.values())
    rows = []
    for label, part in frame.groupby("label", sort=False):
        weight = part["weight"].to_numpy()
        means = {
            name: weighted_mean(part[name].to_numpy(), weight)
            for name in frame.columns
            if name not in own_formula and not name.endswith("_se")
        }
        errors = {
            name: _error_of_mean(part[name].to_numpy(), weight)
            for name in frame.columns
            if name.endswith("_se")
        }
        cost, reference = means["stability_cost"], means["reference_cost"]
        rows.append(
            {
                "label": label,
                **means,
                **errors,
                "relative_cost": _ratio(np.array([cost]), np.array([reference]))[0],
                **{name: part[source].iloc[0] for name, source in whole.items()},
                "population_cost": float(np.square(weight) @ part["stability_cost"]),
            }
        )
    return pd.DataFrame(rows)


def sweep(
    worlds: Mapping[Any, World],
    probes: Mapping[str, Probe],
    /,
    *,
    parameter: str,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
    controls: bool = False,
) -> pd.DataFrame:
    """`aggregate` of the plane of each world, with the swept value in column `parameter`.

    Parameters
    ----------
    worlds : {value: World}
        One world for each value of what is swept.
    probes, receiver, own, peers, residual, controls
        As in `plane`.
    parameter : str
        Name of the column that holds the value.

    Returns
    -------
    DataFrame
        One row for each value and label.
    """
    frames = []
    for value, world in worlds.items():
        rows = plane(
            world,
            probes,
            receiver=receiver,
            own=own,
            peers=peers,
            residual=residual,
            controls=controls,
        )
        row = aggregate(rows)
        row.insert(0, parameter, value)
        frames.append(row)
    return pd.concat(frames, ignore_index=True)


def grpo_like(probe: Probe, /) -> GRPO:
    """GRPO with the advantage's conventions of another rule."""
    return GRPO(scale=probe.scale, ddof=probe.ddof, eps=probe.eps)


def chi_squared(world: World, design: Design, /) -> Array:
    """``sum_y pi(y)^2 / mixture(y) - 1``, the mixture being that of all peers' rollouts.

    Returns
    -------
    ndarray, shape (X,)
        inf where the receiver plays an arm that no peer plays; NaN without peers.
    """
    if not design.peers:
        return np.full(world.n_contexts, np.nan)
    counts = np.array([m for _, m in design.peers], dtype=np.float64)
    mixture = np.einsum(
        "j,jxk->xk", counts / counts.sum(), world.probs[[j for j, _ in design.peers]]
    )
    probs = world.probs[design.receiver]
    missing = np.where(probs > 0, np.inf, 0.0)
    return np.divide(np.square(probs), mixture, out=missing, where=mixture > 0).sum(-1) - 1.0


def axes(moments: Moments, reference: Array, /, *, rare: float = 0.01) -> dict[str, Array | float]:
    """Columns of `plane` that follow from an estimate's moments, exact or simulated.

    Parameters
    ----------
    moments : Moments
        Of the rule.
    reference : ndarray, shape (X,)
        tr Cov of GRPO with the same own group.
    rare : float
        As in `plane`.
    """
    return {
        "stability_cost": moments.covariance_trace,
        "relative_cost": _ratio(moments.covariance_trace, reference),
        "reference_cost": reference,
        "support_gain": moments.support_gain,
        "fisher_gain": moments.fisher_gain,
        "open_flow": moments.open_flow(rare),
        "bias_cosine": moments.bias_cosine,
        "mean_norm": np.linalg.norm(moments.mean, axis=-1),
        "true_norm": np.linalg.norm(moments.true_gradient, axis=-1),
        "error": 1.0 - context_accuracy(moments),
        "population_cosine": float(
            cosine(moments.population_mean.ravel(), moments.population_true_gradient.ravel())
        ),
        "population_error": 1.0 - population_accuracy(moments),
        "population_gain": moments.population_support_gain,
    }


def _standard_errors(moments: Moments, /) -> dict[str, Array]:
    if not isinstance(moments, SampledMoments):
        return {}
    return {
        "stability_cost_se": moments.covariance_trace_se,
        "support_gain_se": moments.support_gain_se,
    }


def _ratio_figures(
    world: World, probe: Probe, design: Design, residual: Residual, /
) -> dict[str, Array]:
    """`chi2` and `ess` of `plane`: ``ess = (sum_j M_j E w)^2 / sum_j M_j E w^2``."""
    unknown = np.full(world.n_contexts, np.nan)
    rule = exact.ratio_rule(probe)
    if rule is None or not design.peers:
        return {"chi2": unknown, "ess": unknown}
    first, second = np.zeros((2, world.n_contexts))
    for j, count in design.peers:
        ratios = log_ratio(world.probs[design.receiver], world.probs[j])
        usable = count * world.probs[j] * (1 - residual.drop_table(j, world.rewards.shape))
        mean, square = residual.weight_moments(rule, ratios, j)
        first += (usable * mean).sum(-1)
        second += (usable * square).sum(-1)
    ess = np.divide(np.square(first), second, out=np.zeros_like(first), where=second > 0)
    return {"chi2": unknown if rule.kind == "none" else chi_squared(world, design), "ess": ess}


def _ratio(cost: Array, reference: Array, /) -> Array:
    diverging = np.where(cost > 0, np.inf, np.nan)
    return np.divide(cost, reference, out=diverging, where=reference > 0)


def _error_of_mean(errors: Array, weight: Array, /) -> float:
    """Standard error of `weighted_mean`, from those of independent values."""
    known = ~np.isnan(errors) & (weight > 0)
    if not known.any():
        return float("nan")
    return float(np.linalg.norm(errors[known] * weight[known]) / weight[known].sum())


def weighted_mean(values: Array, weight: Array, /) -> float:
    """Mean over the values that are not NaN; NaN if there are none of weight > 0."""
    known = ~np.isnan(values) & (weight > 0)
    if not known.any():
        return float("nan")
    return float(np.average(values[known], weights=weight[known]))
