"""`check_estimator`: simulated gradients are held against a closed form."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import stats

from bandit.design import Design, whole_number
from bandit.moments import Moments, cosine
from bandit.policies import pull_back, score_sum
from bandit.probes.group import Array
from bandit.rollouts import Arms, draw_arms
from bandit.world import World

Draw = Callable[[np.random.Generator, int], ArrayLike]
CHUNK = 5000


def check_estimator(
    draw: Draw,
    world: World,
    /,
    *,
    expected: Moments | ArrayLike | None = None,
    receiver: int = 0,
    n: int = 20_000,
    seed: int = 0,
    alpha: float = 1e-4,
) -> pd.DataFrame:
    """Hold a gradient estimator of your own against a closed form.

    Parameters
    ----------
    draw : callable
        ``draw(rng, n)`` returns n independent estimates, shape (n, X, D), or (n, D) for a world
        of one context. See `from_rollouts` for a function of sampled rollouts.
    world : World
        X contexts.
    expected : Moments or array_like, shape (X, D), optional
        What the estimates should have: mean and covariance, as `bandit.exact.moments` gives them
        for a rule, or a mean only. Default: the receiver's true gradient, so that the check is
        one of unbiasedness.
    receiver : int
        Whose true gradient it is.
    n : int
        Estimates; >= 100.
    seed : int
        Of the generator that `draw` gets.
    alpha : float
        Probability with which an estimator that is right is refused, over all contexts and
        figures.

    Returns
    -------
    DataFrame
        One row a context: ``distance`` of the simulated mean from the expected one and
        ``distance_se``, what it is by chance (root mean square); ``z``, the largest deviation of
        a component in standard errors, ``p_value`` of it, corrected for the number of
        components; ``bias_cosine`` with the true gradient; ``variance``, tr Cov of the estimates,
        with ``variance_se``; ``expected_variance`` and ``variance_ratio``, NaN where only a mean
        is expected.

    Raises
    ------
    AssertionError
        If mean or variance contradict what is expected; the message has the worst context.
    ValueError
        If shapes do not fit or a setting is out of range.

    Notes
    -----
    Standard errors come from the exact covariance where `expected` has one, and from the
    estimates otherwise. Tests are normal approximations: choose n so that what is rare happens
    some dozens of times. Source: docs/theory.md, sections 3 and 5, fact 10.
    """
    n = whole_number("n", n, 100)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha={alpha!r} is not allowed; expected a probability between 0 and 1")
    true = world.true_gradient(receiver)
    exactly = expected if isinstance(expected, Moments) else None
    if isinstance(expected, Moments):
        target = expected.mean
    else:
        target = true if expected is None else np.asarray(expected, np.float64)
    if target.shape != true.shape:
        raise ValueError(f"expected has shape {target.shape}; expected {true.shape}: (X, D)")
    drawn = _estimates(draw, np.random.default_rng(seed), n, true.shape)
    variance_of = drawn.var(0, ddof=1)
    if exactly is not None:
        variance_of = np.maximum(np.einsum("xkk->xk", exactly.covariance()), 0.0)
    frame = _figures(drawn, target, true, variance_of, exactly)
    _judge(frame, alpha / (2 * len(frame)))
    return frame


def from_rollouts(
    estimate: Callable[[Arms, dict[int, Arms]], ArrayLike],
    world: World,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int] = 0,
) -> Draw:
    """Make a ``draw`` for `check_estimator` of a function of sampled rollouts.

    Parameters
    ----------
    estimate : callable
        ``estimate(own_arms, peer_arms)`` gets the arms that the receiver drew, shape (n, X, G),
        and ``{peer: arms (n, X, M_j)}``, and returns gradients, shape (n, X, D).
    world : World
        Whose policies draw.
    receiver, own, peers
        As in `bandit.exact.moments`.

    Returns
    -------
    callable
        ``draw(rng, n)``.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers)

    def draw(rng: np.random.Generator, n: int) -> ArrayLike:
        mine = draw_arms(world.probs[design.receiver], n, design.own, rng)
        others = {j: draw_arms(world.probs[j], n, size, rng) for j, size in design.peers}
        return estimate(mine, others)

    return draw


def weighted_scores(world: World, arms: Arms, weights: ArrayLike, /, *, receiver: int = 0) -> Array:
    """Average ``weight * s(y)`` over rollouts, the form that most estimators have.

    Parameters
    ----------
    world : World
        Whose policy's scores.
    arms : ndarray of int, shape (n, X, R)
        Rollouts, whoever drew them.
    weights : array_like, shape (n, X, R)
        Weight of each; ``bandit.rollouts.of_arms(table, arms)`` looks up rewards and ratios.
    receiver : int
        The policy whose scores are meant.

    Returns
    -------
    ndarray, shape (n, X, D)
        Gradients in the receiver's parameters.
    """
    size = np.broadcast_to(weights, arms.shape) / arms.shape[-1]
    by_arm = np.zeros((*arms.shape[:-1], world.n_arms))
    n, x, _ = np.ogrid[tuple(slice(length) for length in arms.shape)]
    np.add.at(by_arm, (n, x, arms), size)
    return pull_back(score_sum(by_arm, world.probs[receiver]), world.features_of(receiver))


def _estimates(draw: Draw, rng: np.random.Generator, n: int, shape: tuple[int, ...], /) -> Array:
    """Draw n estimates (n, X, D), some thousands at a time."""
    parts = []
    for start in range(0, n, CHUNK):
        size = min(CHUNK, n - start)
        part = np.asarray(draw(rng, size), np.float64)
        if part.shape == (size, shape[1]) and shape[0] == 1:
            part = part[:, None]
        if part.shape != (size, *shape):
            raise ValueError(
                f"draw(rng, {size}) returned shape {part.shape}; expected {(size, *shape)}: "
                "(n, contexts, parameters)"
            )
        if not np.isfinite(part).all():
            raise ValueError(
                "draw returned a value that is not finite; expected a number for each parameter"
            )
        parts.append(part)
    return np.concatenate(parts)


def _figures(
    drawn: Array, target: Array, true: Array, variance_of: Array, exactly: Moments | None, /
) -> pd.DataFrame:
    n, contexts, size = drawn.shape
    mean = drawn.mean(0)
    gap = np.abs(mean - target)
    se = np.sqrt(variance_of / n)
    # what does not vary must be right; rounding is no deviation
    rounding = 1e-12 * np.maximum(1.0, np.abs(target))
    z = np.divide(gap, se, out=np.where(gap > rounding, np.inf, 0.0), where=se > rounding).max(-1)
    lengths = np.square(drawn - mean).sum(-1) * n / (n - 1)
    variance = lengths.mean(0)
    known = np.full(contexts, np.nan) if exactly is None else exactly.covariance_trace
    return pd.DataFrame(
        {
            "context": np.arange(contexts),
            "n": n,
            "distance": np.linalg.norm(gap, axis=-1),
            "distance_se": np.sqrt(np.square(se).sum(-1)),
            "z": z,
            "p_value": np.minimum(1.0, 2 * stats.norm.sf(z) * size),
            "bias_cosine": cosine(mean, true),
            "variance": variance,
            "variance_se": lengths.std(0, ddof=1) / np.sqrt(n),
            "expected_variance": known,
            "variance_ratio": np.divide(
                variance, known, out=np.full(contexts, np.nan), where=known > 0
            ),
        }
    )


def _judge(frame: pd.DataFrame, alpha: float, /) -> None:
    """Raise where a mean, or a variance, has a p-value below `alpha`."""
    worst: Any = frame.iloc[int(np.argmin(frame["p_value"]))]
    if worst["p_value"] < alpha:
        raise AssertionError(
            f"the mean of {int(worst['n'])} estimates in context {int(worst['context'])} is "
            f"{worst['distance']:.4g} away from what is expected, where chance makes it "
            f"{worst['distance_se']:.2g}: a component is off by {worst['z']:.1f} standard errors "
            f"(p = {worst['p_value']:.1g}, refused below {alpha:.1g})\n{frame.to_string()}"
        )
    off = (frame["variance"] - frame["expected_variance"]).abs().to_numpy()
    allowed = stats.norm.isf(alpha / 2) * frame["variance_se"].to_numpy() + 1e-12
    wrong = np.flatnonzero(off > allowed)
    if len(wrong):
        row: Any = frame.iloc[int(wrong[0])]
        raise AssertionError(
            f"tr Cov of {int(row['n'])} estimates in context {int(row['context'])} is "
            f"{row['variance']:.4g}; expected {row['expected_variance']:.4g} within "
            f"{allowed[wrong[0]]:.2g} (ratio {row['variance_ratio']:.3f})\n{frame.to_string()}"
        )
