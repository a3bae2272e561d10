"""Rung "estimators": simulation agrees with the closed forms, and what sharing costs and gives.

Needs no torch. Source: docs/gate.md, docs/theory.md, sections 2 to 4.
"""

from typing import Any

import numpy as np

from bandit import World, exact, sampling
from bandit.moments import Moments
from bandit.probes import GRPO, Probe
from bandit.probes.group import Array
from bandit.sampling import SampledMoments
from mrl.config import PolicyConfig, RunConfig
from mrl.errors import InputError
from mrl.gate.certificate import Check, Rung
from mrl.gate.worlds import peers_by_index
from mrl.seeds import derive

# P(|z| > 5) = 5.7e-7 for one coordinate. A gate looks at policies x contexts x arms of them, so
# that with a thousand coordinates a correct estimator fails in less than one gate of a thousand.
MAX_Z = 5.0
# Coordinates that agree to rounding have z = 0, whatever their variance.
ROUNDING = 1e-12


def estimators_rung(run: RunConfig, world: World, policy: PolicyConfig, /) -> Rung:
    """Look at the gradient estimate of one policy as receiver.

    Parameters
    ----------
    run : RunConfig
        Group sizes, draws, thresholds.
    world : World
        The gate's world.
    policy : PolicyConfig
        The receiver, with its own sharing rule.

    Returns
    -------
    Rung
        Largest |z| of the simulated mean against the exact one, with standard errors from the
        exact covariance; stability cost and support gain, held against thresholds where set.

    Raises
    ------
    InputError
        If the group sizes are too large for the closed forms.
    """
    probe, group = run.probe_of(policy), run.group_of(policy)
    sizes: dict[str, Any] = {
        "receiver": run.policies.index(policy),
        "own": group.own,
        "peers": peers_by_index(run, policy.name),
        "redraws": group.redraws,
    }
    grpo = GRPO(scale=probe.scale, ddof=probe.ddof, eps=probe.eps)
    try:
        moments = exact.moments(world, probe, **sizes)
        reference = exact.moments(world, grpo, **sizes)
    except ValueError as error:
        raise InputError(
            f"the gate cannot take policy {policy.name!r} with group.own={group.own} and peers "
            f"{run.peers_of(policy.name)}: {error}"
        ) from None
    seed = derive(run.seed, "gate", "estimators")
    drawn = sampling.moments(world, probe, **sizes, n=run.gate.draws, seed=seed)
    z = largest_z(moments, drawn.mean, run.gate.draws)
    figures = _axes(moments, reference)
    checks = [Check.at_most(f"{policy.name}: largest |z|", z, MAX_Z)]
    if run.gate.max_stability_cost is not None:
        name = f"{policy.name}: cost relative to GRPO"
        checks.append(Check.at_most(name, figures["relative_cost"], run.gate.max_stability_cost))
    if run.gate.min_support_gain is not None:
        name = f"{policy.name}: support gain"
        checks.append(Check.at_least(name, figures["support_gain"], run.gate.min_support_gain))
    note = (
        f"{policy.name} ({probe.kind}): population tr Cov {figures['stability_cost']:.3g}, "
        f"{figures['relative_cost']:.3g} times GRPO's; support gain {figures['support_gain']:.3g}"
    )
    return Rung(
        tuple(checks),
        {policy.name: {"max_z": z, **figures, **_simulated(drawn)}},
        (note, *_blind_spots(run, probe)),
    )


def largest_z(moments: Moments, mean: Array, n: int, /) -> float:
    """Largest ``|mean - E g| / sqrt(Var g / n)`` over contexts and arms.

    inf where a coordinate that never varies is off.
    """
    variance = np.maximum(np.diagonal(moments.covariance(), axis1=1, axis2=2), 0.0)
    off = np.abs(mean - moments.mean)
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(off > ROUNDING, off / np.sqrt(variance / n), 0.0).max())


def _simulated(drawn: SampledMoments, /) -> dict[str, float]:
    """The simulated stability cost beside the exact one, for the reader."""
    error = float(np.sqrt(drawn.weights**4 @ np.square(drawn.covariance_trace_se)))
    return {
        "simulated_stability_cost": drawn.population_covariance_trace,
        "simulated_stability_cost_error": error,
    }


def _axes(moments: Moments, reference: Moments, /) -> dict[str, float]:
    """The two axes for the population: tr Cov with one draw of each context, and support gain."""
    cost, base = (m.population_covariance_trace for m in (moments, reference))
    known = ~np.isnan(moments.support_gain)
    gain = float("nan")
    if known.any():
        gain = float(np.average(moments.support_gain[known], weights=moments.weights[known]))
    return {
        "stability_cost": cost,
        "relative_cost": cost / base if base > 0 else float("inf" if cost > 0 else "nan"),
        "support_gain": gain,
    }


def _blind_spots(run: RunConfig, probe: Probe, /) -> list[str]:
    """What this rung cannot tell about a rule."""
    notes = []
    rule = exact.ratio_rule(probe)
    if rule is not None and rule.kind in ("block", "length_normalised"):
        notes.append(
            f"a response is one arm here, so the ratio {rule.kind!r} coincides with 'sequence': "
            "rung 'tokenised' tells the difference"
        )
    if probe.needs and any(run.group_of(one).redraws for one in run.policies):
        notes.append(
            "peers show their first draws here and their redrawn groups in training: with "
            "group.redraws this rung does not describe what peers send"
        )
    return notes
