"""What theory says of a run's own world, next to what the run measured there.

Theory's step is one of a table of logits, one for each prompt and response. A language model's step
is another one: of another length, and prompts share its weights. So a rule's figures are compared
with those of other rules, never with a learning curve; and of the change of success probability by
prompt, theory can predict the order and the proportions, not the scale. The comparison fits one
scale for each policy and reports the rank correlation over prompts with its interval.

Graded rewards have many ways to fall. Where exact moments would have to go through too many of
them, moments are simulated instead, with a fixed seed, and the result says so.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from bandit import exact, sampling, tradeoff
from bandit.moments import Moments
from bandit.probes import Probe
from bandit.world import World
from mrl.config import RunConfig
from mrl.errors import InputError
from mrl.run_world import RunWorld
from mrl.study.from_run import rules_of

LEVEL, RESAMPLES = 0.95, 2000
# Compositions up to which moments are exact: about two seconds a rule. Beyond, so many groups are
# drawn for each prompt, which costs about as much.
MOST_WAYS, DRAWS = 100_000, 20_000
Array = NDArray[np.float64]


def probes(found: RunWorld, config: RunConfig, /) -> pd.DataFrame:
    """What each rule would cost and give each policy at the run's group sizes.

    Returns
    -------
    DataFrame
        One row a receiver and label: the columns of `bandit.tradeoff.aggregate`, and
        ``value_change``, the first-order change ``<grad J, E g>`` of the expected reward for
        a step of unit length of the learning rate, mean over prompts; ``own`` marks the rule that
        the policy trained by. ``stability_cost_se`` and ``support_gain_se`` are standard errors
        where the rule's moments were simulated (see `bounded_moments`), NaN where they are exact.

    Raises
    ------
    InputError
        If theory refuses the world, for example for too many different rewards.
    """
    rules = rules_of(config)
    errors = ["stability_cost_se", "support_gain_se"]
    frames = []
    for policy in config.policies:
        receiver = found.policies.index(policy.name)
        try:
            plane = tradeoff.plane(
                found.world,
                rules,
                controls=True,
                moments=bounded_moments,
                **_sizes(found, config, receiver),
            )
        except ValueError as error:
            raise InputError(
                f"the world of {found.run!r} after {found.round} rounds cannot be placed on the "
                f"plane: {error}; remove its file to have a report without it"
            ) from None
        uphill = plane["bias_cosine"].fillna(0.0) * plane["mean_norm"] * plane["true_norm"]
        change = uphill.groupby(plane["label"], sort=False).mean()
        columns = dict.fromkeys([*plane.columns, *errors])
        rows = tradeoff.aggregate(plane.reindex(columns=list(columns)))
        rows.insert(0, "receiver", policy.name)
        rows["value_change"] = rows["label"].map(change)
        rows["own"] = [rules.get(label) == config.probe_of(policy) for label in rows["label"]]
        frames.append(rows)
    return pd.concat(frames, ignore_index=True)


def bounded_moments(world: World, probe: Probe, /, **sizes: Any) -> Moments:
    """Exact moments where they go through at most `MOST_WAYS` compositions, else simulated ones.

    Parameters
    ----------
    world, probe, **sizes
        As in `bandit.exact.moments`.

    Returns
    -------
    Moments
        Those of `DRAWS` groups (`bandit.sampling.SampledMoments`, with standard errors), drawn
        with seed 0, where they are not exact.
    """
    if exact.ways(world, probe, **sizes) <= MOST_WAYS:
        return exact.moments(world, probe, **sizes)
    return sampling.moments(world, probe, n=DRAWS, seed=0, **sizes)


def changes(start: RunWorld, end: RunWorld, config: RunConfig, /) -> pd.DataFrame:
    """Predicted and measured change of each policy's success probability on each prompt.

    Parameters
    ----------
    start, end : RunWorld
        Before and after, with the same prompts.
    config : RunConfig
        The run's rules and group sizes.

    Returns
    -------
    DataFrame
        One row a policy and prompt: ``before``, the scored success probability that the prediction
        stands on; ``direction``, the first-order change ``<grad p, E g>`` of the policy's own rule
        for a unit of the learning rate; ``predicted``, the same times the policy's ``scale``;
        ``predicted_se``, its standard error where moments were simulated, else 0;
        ``measured``, the change of the share of successes among fresh samples, with the 95%
        interval ``low``, ``high`` of two independent proportions.

    Raises
    ------
    ValueError
        If the two are about other prompts or policies.

    Notes
    -----
    The interval is Newcombe's (1998, Statistics in Medicine 17, 873, method 10). The prediction
    stands on scored probabilities and not on the counts that `measured` starts from, so a prompt
    with lucky samples at the start is not predicted to fall.
    """
    if (start.prompt_ids, start.policies) != (end.prompt_ids, end.policies):
        raise ValueError("the two worlds are about other prompts or policies; expected the same")
    frames = []
    for policy in config.policies:
        receiver = start.policies.index(policy.name)
        direction, error = _direction(start, config, receiver)
        measured, low, high = _difference(
            *(
                count[receiver]
                for one in (start, end)
                for count in (one.successes_NX, one.verified_NX)
            )
        )
        scale = _scale(direction, measured)
        frames.append(
            pd.DataFrame(
                {
                    "policy": policy.name,
                    "question": start.questions,
                    "before": start.world.success_probability[receiver],
                    "direction": direction,
                    "predicted": scale * direction,
                    "predicted_se": abs(scale) * error,
                    "scale": scale,
                    "measured": measured,
                    "low": low,
                    "high": high,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def agreement(frame: pd.DataFrame, /, seed: int = 0) -> pd.DataFrame:
    """How well the prediction orders the prompts of each policy.

    Parameters
    ----------
    frame : DataFrame
        As `changes` returns it.
    seed : int
        Seed of the bootstrap over prompts.

    Returns
    -------
    DataFrame
        One row a policy: ``prompts``, the means ``measured`` and ``before``, the fitted ``scale``
        (a negative one says that the policy went where the rule does not point), and Spearman's
        ``rank_correlation`` with its bootstrap interval ``low``, ``high``; NaN where all
        predictions or all changes are equal.
    """
    rows = []
    for policy, part in frame.groupby("policy", sort=False):
        known = part.dropna(subset=["measured"])
        pairs = known[["direction", "measured"]].to_numpy()
        rng = np.random.default_rng(seed)
        drawn = [
            _rank_correlation(pairs[rng.integers(len(pairs), size=len(pairs))])
            for _ in range(RESAMPLES)
        ]
        usable = [value for value in drawn if not np.isnan(value)]
        tails = [(1 - LEVEL) / 2, (1 + LEVEL) / 2]
        low, high = np.quantile(usable, tails) if usable else (np.nan, np.nan)
        rows.append(
            {
                "policy": policy,
                "prompts": len(known),
                "before": part["before"].mean(),
                "measured": known["measured"].mean(),
                "scale": part["scale"].iloc[0],
                "rank_correlation": _rank_correlation(pairs),
                "low": float(low),
                "high": float(high),
            }
        )
    return pd.DataFrame(rows)


def ends(worlds: Sequence[RunWorld], /) -> tuple[RunWorld, RunWorld] | None:
    """The newest world, and the earliest one that is about the same prompts; None if alone."""
    same = [
        one
        for one in worlds
        if (one.prompt_ids, one.policies) == (worlds[-1].prompt_ids, worlds[-1].policies)
    ]
    return (same[0], same[-1]) if len(same) > 1 else None


def _sizes(found: RunWorld, config: RunConfig, receiver: int, /) -> dict[str, Any]:
    seen = config.peers_of(found.policies[receiver])
    peers = {found.policies.index(name): n for name, n in seen.items() if name in found.policies}
    return {
        "receiver": receiver,
        "own": config.group_of(config.policy(found.policies[receiver])).own,
        "peers": peers,
        "residual": found.residual(receiver),
    }


def _direction(found: RunWorld, config: RunConfig, receiver: int, /) -> tuple[Array, Array]:
    """``<grad p, E g>`` of the receiver's own rule by prompt, 0 where p = 0; standard errors."""
    rule = config.probe_of(config.policy(found.policies[receiver]))
    moments = bounded_moments(found.world, rule, **_sizes(found, config, receiver))
    p = found.world.success_probability[receiver]
    uphill = np.nan_to_num(found.world.log_success_gradient(receiver)) * p[:, None]
    error = np.zeros(len(p))
    if isinstance(moments, sampling.SampledMoments):
        variance = np.einsum("xd,xde,xe->x", uphill, moments.covariance(), uphill)
        error = np.sqrt(np.maximum(variance, 0.0) / moments.n)
    return (uphill * moments.mean).sum(-1), error


def _difference(hits_0: Array, of_0: Array, hits_1: Array, of_1: Array, /) -> tuple[Array, ...]:
    """Difference of two proportions and its Newcombe interval; NaN where one is of nothing."""
    found = np.full((3, len(hits_0)), np.nan)
    for i, (a, m, b, n) in enumerate(zip(hits_0, of_0, hits_1, of_1, strict=True)):
        if not (m and n):
            continue
        p, q = a / m, b / n
        first, second = (
            stats.binomtest(int(k), int(size)).proportion_ci(LEVEL, "wilson")
            for k, size in ((a, m), (b, n))
        )
        down = np.hypot(q - second.low, first.high - p)
        up = np.hypot(second.high - q, p - first.low)
        found[:, i] = q - p, q - p - down, q - p + up
    return tuple(found)


def _scale(direction: Array, measured: Array, /) -> float:
    """Least-squares factor from direction to measured change; 0 where nothing is predicted."""
    known = ~np.isnan(measured)
    square = float(np.square(direction[known]).sum())
    return float(direction[known] @ measured[known]) / square if square > 0 else 0.0


def _rank_correlation(pairs: Array, /) -> float:
    if len(pairs) < 2 or (pairs == pairs[0]).all(axis=0).any():
        return float("nan")
    ranks = stats.rankdata(pairs, axis=0)
    return float(np.corrcoef(ranks.T)[0, 1])
