"""Tidy frames of what tokens do to importance ratios.

Source: docs/theory.md, section 7.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from bandit.probes import RatioRule
from mrl.gate.tokenised.toys import toy_world
from mrl.gate.tokenised.world import TokenWorld

RULES: Mapping[str, RatioRule] = {
    "sequence, gated": RatioRule("sequence"),
    "sequence, not gated": RatioRule("sequence", gated=False),
    "block": RatioRule("block"),
    "length-normalised": RatioRule("length_normalised"),
    "no ratio": RatioRule("none"),
}


def texts(world: TokenWorld, /) -> pd.DataFrame:
    """Probability of every text by policy, and what its canonical tokens have of it.

    Returns
    -------
    DataFrame
        ``policy``, ``text``, ``reward``, ``probability``, ``canonical`` (probability of the
        canonical tokens) and ``delta`` (nats, as `TokenWorld.delta`).
    """
    policies, arms = world.probs.shape
    return pd.DataFrame(
        {
            "policy": np.repeat(np.arange(policies), arms),
            "text": [text.decode(errors="backslashreplace") for text in world.texts] * policies,
            "reward": np.tile(world.rewards, policies),
            "probability": world.probs.ravel(),
            "canonical": world.canonical_probs.ravel(),
            "delta": world.delta.ravel(),
        }
    )


def rollouts(world: TokenWorld, source: int, receiver: int, /) -> pd.DataFrame:
    """Every rollout that a source can give, and the error of its log-ratio at a receiver.

    Returns
    -------
    DataFrame
        ``text``, ``tokens`` (number), ``probability``, ``canonical``, ``residual`` (nats, as
        `Transfer.residual`).
    """
    moved = world.transfer(source, receiver)
    policy = moved.source
    return pd.DataFrame(
        {
            "text": [text.decode(errors="backslashreplace") for text in policy.texts],
            "tokens": [len(ids) for ids in policy.sequences],
            "probability": policy.probs,
            "canonical": policy.canonical,
            "residual": moved.residual,
        }
    )


def ratios(
    world: TokenWorld, source: int, receiver: int, /, rules: Mapping[str, RatioRule] = RULES
) -> pd.DataFrame:
    """What each ratio rule makes of one policy's rollouts at another.

    Returns
    -------
    DataFrame
        One row a rule: ``label``, ``mean_weight``, ``second_moment``, ``ess`` (for each rollout),
        ``bias_cosine``, and ``canonical_share`` of the receiver.
    """
    moved = world.transfer(source, receiver)
    rows = []
    for label, rule in rules.items():
        first, second = moved.weight_moments(rule)
        rows.append(
            {
                "label": label,
                "mean_weight": first,
                "second_moment": second,
                "ess": moved.ess_share(rule),
                "bias_cosine": world.bias_cosine(source, receiver, rule),
                "canonical_share": moved.receiver.canonical_share,
            }
        )
    return pd.DataFrame(rows)


def sweep(
    parameter: str,
    values: Iterable[Any],
    /,
    *,
    seeds: Iterable[int] = (0,),
    source: int = 0,
    receiver: int = 1,
    rules: Mapping[str, RatioRule] = RULES,
    **settings: Any,
) -> pd.DataFrame:
    """Compute `ratios` over toy worlds that differ in one setting of `toy_world` and in the seed.

    Parameters
    ----------
    parameter : str
        ``max_bytes``, ``canonical_share`` or ``spread``.
    values, seeds : iterable
        All pairs are computed.
    source, receiver, rules
        As for `ratios`.
    **settings
        Other settings of `toy_world`; ``kinds`` gives its tokenizers.

    Returns
    -------
    DataFrame
        The rows of `ratios` with the columns `parameter` and ``seed``.
    """
    kinds = settings.pop("kinds", ("characters", "ab"))
    seeds = tuple(seeds)
    return pd.concat(
        [
            ratios(
                toy_world(kinds, seed=seed, **{parameter: value}, **settings),
                source,
                receiver,
                rules=rules,
            ).assign(**{parameter: value, "seed": seed})
            for value in values
            for seed in seeds
        ],
        ignore_index=True,
    )
