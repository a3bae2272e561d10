"""The stability-support plane against the length of responses.

Source: docs/theory.md, sections 4 and 7.
"""

from collections.abc import Callable, Iterable, Mapping

import numpy as np
import pandas as pd

from bandit.design import Design
from bandit.exact import ratio_rule
from bandit.length.moments import LengthMoments, moments
from bandit.length.world import LengthWorld, long_answer
from bandit.probes import GRPO, Probe
from bandit.probes.group import Array


def plane_by_length(
    lengths: Iterable[int],
    rules: Mapping[str, Probe],
    /,
    *,
    world: Callable[[int], LengthWorld] = long_answer,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
) -> pd.DataFrame:
    """Stability cost and support gain of sharing rules against the length of responses.

    Parameters
    ----------
    lengths : iterable of int
        L, the values to compute.
    rules : {label: Probe}
        The rules to place.
    world : callable
        Builds the world of a given length.
    receiver, own, peers
        As in `moments`.

    Returns
    -------
    DataFrame
        One row for each length and label: ``length``, ``label``; ``stability_cost``,
        ``relative_cost`` (to GRPO with the same scale), ``support_gain``, ``fisher_gain``,
        ``bias_cosine`` as in `bandit.tradeoff.plane`; ``shrinkage``, ``<E g, g*> / |g*|^2``;
        ``peer_cosine`` and ``peer_shrinkage``, the same of the peers' part alone (NaN if there is
        none), which is where the bias of a ratio shows; ``ess`` as in `LengthMoments`; ``chi2``,
        the average over peers' rollouts of that to their source (NaN for rules without a ratio).

    Raises
    ------
    ValueError
        If there is nothing to place, or a setting is out of range.
    """
    sizes = list(lengths)
    if not sizes or not rules:
        raise ValueError(f"got lengths {sizes} and {len(rules)} rules; expected one of each")
    rows = []
    for length in sizes:
        place = world(length)
        design = Design.of(place.outcomes, receiver=receiver, own=own, peers=peers)
        for label, probe in rules.items():
            placed = moments(place, probe, receiver=receiver, own=own, peers=peers)
            same = GRPO(scale=probe.scale, ddof=probe.ddof, eps=probe.eps)
            reference = moments(place, same, receiver=receiver, own=own, peers=0)
            rows.append({"length": length, "label": label, **_row(placed, reference)})
            rule = ratio_rule(probe)
            weighs = rule is not None and rule.kind != "none"
            rows[-1]["chi2"] = _mean_chi_squared(place, design) if weighs else np.nan
    return pd.DataFrame(rows)


def _mean_chi_squared(world: LengthWorld, design: Design, /) -> float:
    if not design.peers:
        return float("nan")
    each = [world.chi_squared(design.receiver, j) for j, _ in design.peers]
    return float(np.average(each, weights=[m for _, m in design.peers]))


def _row(placed: LengthMoments, reference: LengthMoments, /) -> dict[str, float]:
    true = placed.true_gradient

    def shrinkage(mean: Array) -> float:
        size = np.square(true).sum()
        return float((mean * true).sum() / size) if size > 0 and mean.any() else float("nan")

    cost, base = placed.covariance_trace, reference.covariance_trace
    return {
        "stability_cost": cost,
        "relative_cost": cost / base if base > 0 else (np.inf if cost > 0 else np.nan),
        "support_gain": placed.support_gain,
        "fisher_gain": placed.fisher_gain,
        "bias_cosine": placed.bias_cosine,
        "shrinkage": shrinkage(placed.mean),
        "peer_cosine": placed.peer_cosine,
        "peer_shrinkage": shrinkage(placed.peer_mean),
        "ess": placed.ess,
    }
