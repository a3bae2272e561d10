"""When does sharing beat sampling more? Sharing, measured in own rollouts of GRPO.

Source: docs/theory.md, section 4.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from bandit import exact
from bandit.design import Design, whole_number
from bandit.moments import Moments
from bandit.probes import GRPO, PRP, Probe
from bandit.probes.group import Array
from bandit.residual import NO_RESIDUAL, Residual
from bandit.tradeoff.accuracy import context_accuracy, population_accuracy
from bandit.tradeoff.plane import grpo_like, weighted_mean
from bandit.tradeoff.search import where_reached
from bandit.world import World

MOST = 512

Curve = Callable[[int], Array]


@dataclass(frozen=True, eq=False)
class BreakEven:
    """How many own rollouts of GRPO do as much as sharing does.

    Attributes
    ----------
    probe : Probe
        The sharing rule.
    own, peers : int
        G and M, the latter over all peers.
    most : int
        The largest number of extra rollouts looked at: inf below means "not within `most`".
    extra_for_error : float
        m at which GRPO with G + m own rollouts has the rule's error; 0 where GRPO with G has no
        more than that; NaN where g* is 0.
    extra_for_gain : float
        m at which drawing m more own rollouts wherever the first G had no success gives the
        rule's support gain; 0 for a gain of 0 or less; NaN where p = 0.
    population : dict of {str: float}
        What was compared, for the weighted population: ``error`` of the rule, ``error_own`` of
        GRPO with G and ``error_more`` of GRPO with G + M own rollouts; ``support_gain`` of the
        rule and ``gain_more`` of M more own rollouts (with none more it is 0).
    contexts : DataFrame
        One row a context: ``context``, ``weight``, the same figures, ``extra_for_error`` and
        ``extra_for_gain``.
    """

    probe: Probe
    own: int
    peers: int
    most: int
    extra_for_error: float
    extra_for_gain: float
    population: dict[str, float]
    contexts: pd.DataFrame

    def __str__(self) -> str:
        """State both numbers with the figures they compare."""
        seen = self.population
        return (
            f"{self.probe} with G={self.own} and M={self.peers} equals GRPO with\n"
            f"  {_count(self.extra_for_error, self.most)} more own rollouts in error "
            f"({seen['error']:.3g}; GRPO {seen['error_own']:.3g} with G, "
            f"{seen['error_more']:.3g} with G+M)\n"
            f"  {_count(self.extra_for_gain, self.most)} more own rollouts in support gain "
            f"({seen['support_gain']:.3g}; M more own rollouts {seen['gain_more']:.3g})"
        )


def break_even(
    world: World,
    probe: Probe,
    /,
    *,
    receiver: int = 0,
    own: int = 8,
    peers: int | Mapping[int, int] = 8,
    residual: Residual = NO_RESIDUAL,
    most: int = MOST,
) -> BreakEven:
    """Count the extra own rollouts of GRPO that would buy what sharing gives.

    Error is that of `bandit.tradeoff.accuracy.scale_free_error`. For the support gain plain GRPO is
    no yardstick, as it has none by definition; the counterfactual is m more own rollouts where the
    first G had no success, see `more_own_gain`. GRPO keeps the rule's scale, ddof and eps.

    Parameters
    ----------
    world, probe, receiver, own, peers, residual
        As in `bandit.exact.moments`.
    most : int
        Where to stop looking; >= 1.

    Returns
    -------
    BreakEven
        Numbers of rollouts for the population and for each context, linear between whole
        numbers: one of 0.3 is worth having, but not a rollout.

    Raises
    ------
    ValueError
        If a setting is out of range.

    Notes
    -----
    Doubling, then bisection: exact where what GRPO gives rises in m, or rises to one peak and
    falls. The gain does: with ``scale="none"`` it rises for ever if ``p <= (G+1)/(2G+1)``, and
    has one peak otherwise. A population of unlike contexts may have several peaks; the answer is
    then one of the places where the mark is reached, perhaps not the first.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers)
    most = whole_number("most", most, 1)
    given = exact.moments(world, probe, receiver=receiver, own=own, peers=peers, residual=residual)
    curves = _curves(world, design, grpo_like(probe))
    rows = [_row(given, curves, design, at, most) for at in range(world.n_contexts + 1)]
    population = rows.pop()
    place = {"context": np.arange(world.n_contexts), "weight": world.weights}
    return BreakEven(
        probe=probe,
        own=design.own,
        peers=design.rollouts - design.own,
        most=most,
        extra_for_error=population.pop("extra_for_error"),
        extra_for_gain=population.pop("extra_for_gain"),
        population=population,
        contexts=pd.DataFrame(place).join(pd.DataFrame(rows)),
    )


def break_even_map(
    worlds: Mapping[Any, World],
    probes: Mapping[str, Probe],
    /,
    *,
    parameter: str | Sequence[str],
    receiver: int = 0,
    own: int = 8,
    peers: int | Mapping[int, int] = 8,
    residual: Residual = NO_RESIDUAL,
    most: int = MOST,
) -> pd.DataFrame:
    """When does sharing beat sampling more? `break_even` of the population, by world and rule.

    Parameters
    ----------
    worlds : {value: World}
        One world for each value of what is swept; a value may be a tuple, as ``(p, q)``.
    probes : {label: Probe}
        The sharing rules.
    parameter : str or sequence of str
        Name of the column, or columns, that hold the value.
    receiver, own, peers, residual, most
        As in `break_even`.

    Returns
    -------
    DataFrame
        One row for each value and label: the value, ``label``, ``extra_for_error``,
        ``extra_for_gain`` and the figures of `BreakEven.population`.

    Raises
    ------
    ValueError
        If there is nothing to compute, a value does not fit `parameter`, or a setting is out of
        range.
    """
    names = [parameter] if isinstance(parameter, str) else list(parameter)
    if not worlds or not probes:
        raise ValueError(
            f"got {len(worlds)} worlds and {len(probes)} probes; expected at least one of each"
        )
    most = whole_number("most", most, 1)
    rows = []
    for key, world in worlds.items():
        values = (key,) if isinstance(parameter, str) else tuple(key)
        if len(values) != len(names):
            raise ValueError(
                f"worlds has the value {key!r}, but parameter={parameter!r} names {len(names)} "
                "columns; expected as many values as names"
            )
        design = Design.of(world, receiver=receiver, own=own, peers=peers)
        rules = {grpo_like(probe) for probe in probes.values()}
        curves = {rule: _curves(world, design, rule) for rule in rules}
        for label, probe in probes.items():
            given = exact.moments(
                world, probe, receiver=receiver, own=own, peers=peers, residual=residual
            )
            row = _row(given, curves[grpo_like(probe)], design, -1, most)
            rows.append({**dict(zip(names, values, strict=True)), "label": label, **row})
    return pd.DataFrame(rows)


def more_own_gain(
    world: World, /, *, receiver: int = 0, own: int, extra: int, rule: GRPO | None = None
) -> Array:
    """Support gain of drawing more own rollouts wherever the first G had no success.

    GRPO with G + m rollouts, restricted to no success among the first G, is PRP without a ratio
    whose one peer is a clone of the receiver that gives m rollouts: the same population, the same
    normaliser, the same scores.

    Parameters
    ----------
    world, receiver, own
        As in `bandit.exact.moments`.
    extra : int
        m, the rollouts added; >= 0.
    rule : GRPO, optional
        Conventions of the advantage.

    Returns
    -------
    ndarray, shape (X,)
        By context; 0 for ``extra=0``, NaN where p = 0.
    """
    rule = GRPO() if rule is None else rule
    unweighted = PRP(ratio="none", scale=rule.scale, ddof=rule.ddof, eps=rule.eps)
    return exact.moments(
        world.with_policies([receiver, receiver]), unweighted, receiver=0, own=own, peers=extra
    ).support_gain


def _curves(world: World, design: Design, rule: GRPO, /) -> tuple[Curve, Curve]:
    """Accuracy and gain of m more own rollouts, remembered: by context, then the population."""

    @cache
    def accuracy(extra: int) -> Array:
        moments = exact.moments(
            world, rule, receiver=design.receiver, own=design.own + extra, peers=0
        )
        return np.append(context_accuracy(moments), population_accuracy(moments))

    @cache
    def gain(extra: int) -> Array:
        gains = more_own_gain(
            world, receiver=design.receiver, own=design.own, extra=extra, rule=rule
        )
        return np.append(gains, weighted_mean(gains, world.weights))

    return accuracy, gain


def _row(
    given: Moments, curves: tuple[Curve, Curve], design: Design, at: int, most: int, /
) -> dict[str, float]:
    """Compare one context, or the population (the last), with what more rollouts give there."""
    accuracy, gain = curves
    shared = design.rollouts - design.own
    mine = float(np.append(context_accuracy(given), population_accuracy(given))[at])
    gained = float(
        np.append(given.support_gain, weighted_mean(given.support_gain, given.weights))[at]
    )
    return {
        "extra_for_error": where_reached(lambda m: float(accuracy(m)[at]), mine, most=most),
        "extra_for_gain": where_reached(lambda m: float(gain(m)[at]), gained, most=most),
        "error": 1.0 - mine,
        "error_own": 1.0 - float(accuracy(0)[at]),
        "error_more": 1.0 - float(accuracy(shared)[at]),
        "support_gain": gained,
        "gain_more": float(gain(shared)[at]),
    }


def _count(extra: float, most: int, /) -> str:
    if math.isnan(extra):
        return "an undefined number of"
    return f"more than {most}" if math.isinf(extra) else f"{extra:.3g}"
