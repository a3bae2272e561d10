"""Monte Carlo gradients of a sharing rule: groups are sampled, the rule itself gives the credit.

Random numbers: rollouts come from streams keyed by (seed, chunk, policy), so with the same sizes
every rule sees the same rollouts (common random numbers); residuals and a rule's own draws have
streams of their own. Source: docs/theory.md, sections 1 to 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial

import numpy as np

from bandit.design import Design, check_rule_and_residual, whole_number
from bandit.execution import estimate, execute
from bandit.moments import Moments
from bandit.parallel import checked_jobs, mapped
from bandit.probes import Probe
from bandit.probes.group import Array, Mask
from bandit.residual import NO_RESIDUAL, Residual
from bandit.rollouts import Rollouts, Sample, Stream, Streams, draw_arms, redraw_dead
from bandit.world import World

__all__ = [
    "CHUNK_ENTRIES",
    "CHUNK_ROLLOUTS",
    "SampledMoments",
    "chunk_size",
    "execute",
    "gradients",
    "moments",
]

CHUNK_ROLLOUTS = 2**17
CHUNK_ENTRIES = 2**20


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
    ndarray, shape (n, X, D)
        Gradients with respect to the receiver's parameters.

    Raises
    ------
    ValueError
        If a setting is out of range.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers, redraws=redraws)
    check_rule_and_residual(world, probe, residual)
    n, seed = whole_number("n", n, 1), whole_number("seed", seed, 0)
    job = _Job(world, probe, design, residual, n, seed)
    every = np.empty((n, world.n_contexts, world.n_parameters(design.receiver)))
    for chunk in range(job.chunks):
        job.estimates(chunk, out=every[job.span(chunk)])
    return every


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
    n_jobs: int = 1,
    progress: bool = False,
) -> "SampledMoments":
    """Moments of the estimates of `gradients`, streamed: memory does not grow with `n`.

    Parameters
    ----------
    world, probe, receiver, own, peers, residual, n, seed, redraws
        As in `gradients`; n >= 2.
    n_jobs : int
        Processes that share the work; the result does not depend on it. -1: one for each core.
    progress : bool
        Show a progress bar.

    Returns
    -------
    SampledMoments
        The fields of `bandit.exact.moments`, estimated, with standard errors. `covariance`
        samples once more, with the same random numbers.

    Raises
    ------
    ValueError
        If a setting is out of range.

    Notes
    -----
    At a time `chunk_size` estimates are held, by each process.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers, redraws=redraws)
    check_rule_and_residual(world, probe, residual)
    n, seed = whole_number("n", n, 2), whole_number("seed", seed, 0)
    job = _Job(world, probe, design, residual, n, seed)
    uphill = np.nan_to_num(world.log_success_gradient(design.receiver))
    first = job.estimates(0)
    origin = first[0].mean(0)
    rest = mapped(
        partial(_chunk_sums, job, origin, uphill),
        range(1, job.chunks),
        total=job.chunks - 1,
        n_jobs=checked_jobs(n_jobs),
        progress=progress,
        description=f"{probe.kind}: {n} draws",
    )
    sums = sum(rest, start=_Sums.of(*first, origin, uphill))

    def covariance() -> Array:
        total: Array = np.zeros((world.n_contexts, *2 * (uphill.shape[1],)))
        for chunk in range(job.chunks):
            centred = np.moveaxis(job.estimates(chunk)[0] - sums.mean, 0, 1)
            total += centred.swapaxes(1, 2) @ centred
        return total / (n - 1)

    return SampledMoments(
        world=world,
        receiver=design.receiver,
        mean=sums.mean,
        covariance_trace=sums.variance.sum(-1),
        mean_without_success=sums.restricted / n,
        full_covariance=covariance,
        n=n,
        mean_se=np.sqrt(sums.variance / n),
        covariance_trace_se=_standard_error(sums.length, sums.fourth, n),
        support_gain_se=np.where(
            world.success_probability[design.receiver] > 0,
            _standard_error(sums.gain, sums.gain_squares, n),
            np.nan,
        ),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class SampledMoments(Moments):
    """Estimated moments with their standard errors.

    Attributes
    ----------
    n : int
        Estimates behind each figure.
    mean_se : ndarray, shape (X, D)
        Standard error of `mean`.
    covariance_trace_se, support_gain_se : ndarray, shape (X,)
        Standard errors of `covariance_trace` and `support_gain`.
    """

    n: int
    mean_se: Array
    covariance_trace_se: Array
    support_gain_se: Array


def chunk_size(world: World, design: Design, /) -> int:
    """Estimates held at once, at least 1, whatever the number of draws.

    About `CHUNK_ROLLOUTS` rollouts and `CHUNK_ENTRIES` logits: some tens of megabytes.
    """
    rollouts = CHUNK_ROLLOUTS // (world.n_contexts * design.rollouts)
    entries = CHUNK_ENTRIES // (world.n_contexts * world.n_arms)
    return max(1, min(rollouts, entries))


@dataclass(frozen=True, eq=False)
class _Job:
    """`n` estimates, cut into chunks that can be computed apart."""

    world: World
    probe: Probe
    design: Design
    residual: Residual
    n: int
    seed: int

    @property
    def size(self) -> int:
        return chunk_size(self.world, self.design)

    @property
    def chunks(self) -> int:
        return -(-self.n // self.size)

    def span(self, chunk: int, /) -> slice:
        """Which of the n estimates a chunk gives."""
        return slice(chunk * self.size, min((chunk + 1) * self.size, self.n))

    def estimates(self, chunk: int, /, *, out: Array | None = None) -> tuple[Array, Mask]:
        """Gradients (c, X, D), written to `out`, and no-success masks (c, X) of one chunk."""
        world, design, streams = self.world, self.design, Streams(self.seed, chunk)
        span = self.span(chunk)
        wanted = span.stop - span.start
        seen = design.peers if self.probe.needs else ()
        # a whole chunk even if fewer are wanted: the first estimates do not depend on n
        own, *others = (
            Sample.of(
                world,
                draw_arms(world.probs[j], self.size, rollouts, streams.rng(Stream.ROLLOUTS, j)),
                streams,
                j,
            )
            for j, rollouts in ((design.receiver, design.own), *seen)
        )
        if design.redraws:
            own = redraw_dead(world, world.probs[design.receiver], own, design, streams)
        sample = Rollouts(own.first(wanted), tuple(other.first(wanted) for other in others))
        return estimate(
            world, world.probs, self.probe, design, self.residual, sample, streams, out=out
        )


def _chunk_sums(job: _Job, origin: Array, uphill: Array, chunk: int, /) -> "_Sums":
    return _Sums.of(*job.estimates(chunk), origin, uphill)


@dataclass(frozen=True, eq=False)
class _Sums:
    """What gradients are reduced to; deviations are from `origin`, which rounding cannot hurt."""

    n: int
    origin: Array
    shift: Array
    squares: Array
    restricted: Array
    length: Array
    fourth: Array
    gain: Array
    gain_squares: Array

    @classmethod
    def of(cls, gradient: Array, no_success: Mask, origin: Array, uphill: Array, /) -> "_Sums":
        """Reduce one chunk."""
        centred = gradient - origin
        square = np.square(centred)
        distance = square.sum(-1)
        where_dead = gradient * no_success[..., None]
        rise = (where_dead * uphill).sum(-1)
        return cls(
            n=len(gradient),
            origin=origin,
            shift=centred.sum(0),
            squares=square.sum(0),
            restricted=where_dead.sum(0),
            length=distance.sum(0),
            fourth=np.square(distance).sum(0),
            gain=rise.sum(0),
            gain_squares=np.square(rise).sum(0),
        )

    def __add__(self, other: "_Sums") -> "_Sums":
        """Sums about the same origin."""
        total = {
            part.name: getattr(self, part.name) + getattr(other, part.name)
            for part in fields(self)
            if part.name != "origin"
        }
        return _Sums(origin=self.origin, **total)

    @property
    def mean(self) -> Array:
        return self.origin + self.shift / self.n

    @property
    def variance(self) -> Array:
        """Unbiased, by coordinate."""
        biased = self.squares / self.n - np.square(self.shift / self.n)
        return np.maximum(biased, 0.0) * self.n / (self.n - 1)


def _standard_error(total: Array, squares: Array, n: int, /) -> Array:
    return np.sqrt(np.maximum(squares / n - np.square(total / n), 0.0) / (n - 1))
