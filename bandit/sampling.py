"""Monte Carlo gradients of a sharing rule: groups are sampled, the rule itself gives the credit.

Random numbers: rollouts come from streams keyed by (seed, chunk, policy), so with the same sizes
every rule sees the same rollouts (common random numbers); residuals and a rule's own draws have
streams of their own. Source: docs/theory.md, sections 1 to 4.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from bandit.design import Design, whole_number
from bandit.execution import estimate, execute
from bandit.moments import Moments, support_gain
from bandit.probes import Probe
from bandit.probes.group import Array, Mask
from bandit.residual import NO_RESIDUAL, Residual
from bandit.rollouts import Rollouts, Stream, Streams, draw_arms, redraw_dead
from bandit.worlds import World

__all__ = ["CHUNK_ROLLOUTS", "SampledMoments", "chunk_size", "execute", "gradients", "moments"]

CHUNK_ROLLOUTS = 2**17


def gradients(
    world: World,
    probe: Probe,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
    n: int,
    seed: int = 0,
    redraws: int = 0,
) -> Array:
    """Independent per-context gradient estimates.

    Parameters
    ----------
    world, probe, receiver, own, peers, residual, redraws
        As in `bandit.exact.moments`.
    n : int
        Estimates of each context.
    seed : int
        Rollouts depend on (seed, chunk) only, so all rules of the same sizes see the same ones,
        and the first estimates do not change with `n`.

    Returns
    -------
    ndarray, shape (n, X, K)
        Gradients with respect to the logits.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers, redraws=redraws)
    chunks = _chunks(world, probe, design, residual, n, seed)
    return np.concatenate([gradient for gradient, _ in chunks])


def moments(
    world: World,
    probe: Probe,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
    n: int,
    seed: int = 0,
    redraws: int = 0,
) -> "SampledMoments":
    """Moments of the estimates of `gradients`, streamed: memory does not grow with `n`.

    Parameters
    ----------
    world, probe, receiver, own, peers, residual, n, seed, redraws
        As in `gradients`; n >= 2.

    Returns
    -------
    SampledMoments
        The fields of `bandit.exact.moments`, estimated, with standard errors. `covariance`
        samples once more, with the same random numbers.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers, redraws=redraws)
    n = whole_number("n", n, 2)
    uphill = np.nan_to_num(world.log_success_gradient(receiver))
    sums = _Sums.over(_chunks(world, probe, design, residual, n, seed), uphill)

    def covariance() -> Array:
        total = np.zeros((*world.rewards.shape, world.n_arms))
        for gradient, _ in _chunks(world, probe, design, residual, n, seed):
            centred = np.moveaxis(gradient - sums.mean, 0, 1)
            total += centred.swapaxes(1, 2) @ centred
        return total / (n - 1)

    gain = support_gain(world, receiver, sums.restricted)
    return SampledMoments(
        mean=sums.mean,
        covariance_trace=sums.trace,
        support_gain=gain,
        true_gradient=world.true_gradient(receiver),
        mean_without_success=sums.restricted,
        probs=world.probs[receiver],
        success=world.success,
        weights=world.weights,
        full_covariance=covariance,
        n=n,
        mean_se=sums.mean_se,
        covariance_trace_se=sums.trace_se,
        support_gain_se=np.where(np.isnan(gain), np.nan, sums.gain_se),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledMoments(Moments):
    """Estimated moments with their standard errors.

    Attributes
    ----------
    n : int
        Estimates behind each figure.
    mean_se : ndarray, shape (X, K)
        Standard error of `mean`.
    covariance_trace_se, support_gain_se : ndarray, shape (X,)
        Standard errors of `covariance_trace` and `support_gain`.
    """

    n: int
    mean_se: Array
    covariance_trace_se: Array
    support_gain_se: Array


def chunk_size(world: World, design: Design, /) -> int:
    """Estimates drawn at once: about `CHUNK_ROLLOUTS` rollouts over all contexts, at least 1."""
    return max(1, CHUNK_ROLLOUTS // (world.n_contexts * design.rollouts))


def _chunks(
    world: World, probe: Probe, design: Design, residual: Residual, n: int, seed: int, /
) -> Iterator[tuple[Array, Mask]]:
    """Gradients and no-success masks of at most `chunk_size` estimates at a time."""
    n = whole_number("n", n, 1)
    size = chunk_size(world, design)
    for chunk, start in enumerate(range(0, n, size)):
        streams = Streams(seed, chunk)
        # a whole chunk even if fewer are wanted: the first estimates do not depend on n
        own, *others = (
            draw_arms(world.probs[j], size, rollouts, streams.rng(Stream.ROLLOUTS, j))
            for j, rollouts in ((design.receiver, design.own), *design.peers)
        )
        if design.redraws:
            own = redraw_dead(world, world.probs[design.receiver], own, design, streams)
        sample = Rollouts(own[: n - start], tuple(arms[: n - start] for arms in others))
        yield estimate(world, world.probs, probe, design, residual, sample, streams)


@dataclass(frozen=True, eq=False)
class _Sums:
    """What a stream of gradients is reduced to."""

    mean: Array
    mean_se: Array
    trace: Array
    trace_se: Array
    restricted: Array
    gain_se: Array

    @classmethod
    def over(cls, chunks: Iterator[tuple[Array, Mask]], uphill: Array, /) -> "_Sums":
        """Add up deviations from the first chunk's mean, which rounding cannot hurt."""
        n, origin = 0, np.zeros(uphill.shape)
        shift, squares, restricted = np.zeros((3, *uphill.shape))
        length, fourth, gain, gain_squares = np.zeros((4, len(uphill)))
        for gradient, no_success in chunks:
            if n == 0:
                origin = gradient.mean(0)
            n += len(gradient)
            centred = gradient - origin
            shift += centred.sum(0)
            squares += np.square(centred).sum(0)
            distance = np.square(centred).sum(-1)
            length += distance.sum(0)
            fourth += np.square(distance).sum(0)
            where_dead = np.where(no_success[..., None], gradient, 0.0)
            restricted += where_dead.sum(0)
            rise = (where_dead * uphill).sum(-1)
            gain += rise.sum(0)
            gain_squares += np.square(rise).sum(0)
        shift /= n
        variance = np.maximum(squares / n - np.square(shift), 0.0) * n / (n - 1)
        return cls(
            mean=origin + shift,
            mean_se=np.sqrt(variance / n),
            trace=variance.sum(-1),
            trace_se=_standard_error(length, fourth, n),
            restricted=restricted / n,
            gain_se=_standard_error(gain, gain_squares, n),
        )


def _standard_error(total: Array, squares: Array, n: int, /) -> Array:
    return np.sqrt(np.maximum(squares / n - np.square(total / n), 0.0) / (n - 1))
