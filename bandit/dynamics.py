"""Learning curves of all policies at once, from many seeds.

Every policy is a receiver, and a peer of all others. One step draws a group of every policy in
every context, forms each receiver's gradient by its own rule, and moves all policies together::

    theta <- theta + lr * sum_x w_x g_x        (or Adam, or the natural gradient)

As in the trainer, peers see the rollouts that a policy drew for itself (the first M_j of them).
Source: docs/theory.md, section 6.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, get_args

import numpy as np
import pandas as pd
from rich.progress import track

from bandit.design import Design, check_rule_and_residual, whole_number
from bandit.execution import estimate
from bandit.optimizers import Optimizer, OptimizerKind
from bandit.parallel import checked_jobs, mapped
from bandit.policies import entropy, log_probabilities, softmax
from bandit.probes import Probe
from bandit.probes._checks import is_real
from bandit.probes.group import Array, Mask
from bandit.residual import NO_RESIDUAL, Residual
from bandit.rollouts import Rollouts, Sample, Stream, Streams, draw_each, redraw_dead
from bandit.summary import summary
from bandit.world import World

__all__ = ["replica_chunk", "run", "summary"]

Setting = TypeVar("Setting")

CHUNK_ROLLOUTS = 2**16
RESCUE_BELOW = 0.05
RESCUE_ABOVE = 0.2
SOLVED = 0.5


def run(
    world: World,
    probe: Probe | Sequence[Probe],
    /,
    *,
    steps: int,
    lr: float | Sequence[float] = 1.0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
    replicas: int = 1,
    seed: int = 0,
    optimizer: OptimizerKind | Sequence[OptimizerKind] = "sgd",
    max_norm: float | None = None,
    redraws: int = 0,
    collapse: float = 0.2,
    n_jobs: int = 1,
    progress: bool = False,
) -> pd.DataFrame:
    """Let all policies of a world learn from each other.

    Parameters
    ----------
    world : World
        Rewards, context weights and the policies' start.
    probe : Probe or sequence of Probe
        Sharing rule, one for all policies or one each.
    steps : int
        Updates; >= 0.
    lr : float or sequence of float
        Step size, one for all policies or one each.
    own : int
        G, rollouts that a receiver learns from in each context and step.
    peers : int or {policy: int}
        M_j, rollouts that every receiver sees of each peer.
    residual : Residual
        Tokenizer mismatch; its mappings are keyed by the peer.
    replicas : int
        Independent runs, advanced together.
    seed : int
        Rollouts are drawn from the same uniform numbers for every rule, so that runs of two
        rules can be compared replica by replica.
    optimizer : {"sgd", "adam", "natural"} or sequence of such
        One for all policies or one each, see `bandit.optimizers.Optimizer`.
    max_norm : float, optional
        Bound on the norm of a policy's whole gradient, applied before the optimizer.
    redraws : int
        Dynamic sampling, as in `bandit.exact.moments`; peers see the first draws.
    collapse : float
        A run counts as collapsed once its value fell by this much from its best.
    n_jobs : int
        Processes that share the replicas, `replica_chunk` at a time; the result does not depend on
        it. -1: one for each core.
    progress : bool
        Show a progress bar.

    Returns
    -------
    DataFrame
        One row for each step (from 0, the start), replica and policy: ``value`` (exact expected
        reward over weighted contexts); ``rescue_value``, the same over the rescue set;
        ``entropy`` in nats; ``gradient_norm`` of the gradient, before clipping, that led to this
        step (NaN at step 0); ``overlap`` with other policies' solved sets; ``collapsed``, True
        from the step on at which the run collapsed.

    Raises
    ------
    ValueError
        If a setting is out of range.

    Notes
    -----
    The rescue set of a policy holds the contexts where its success probability at the start is
    below `RESCUE_BELOW` and some other policy's is above `RESCUE_ABOVE`; NaN where it is empty.
    A context is solved when the success probability is at least `SOLVED`; the overlap is the
    Jaccard index, averaged over the other policies, NaN while neither has solved any context. An
    arm of probability 0 keeps it, as no finite logit reaches it.
    """
    n, probes = world.n_policies, _each("probe", probe, world.n_policies)
    for each in probes:
        check_rule_and_residual(world, each, residual)
    job = _Job(
        world=world,
        probes=probes,
        rates=_each("lr", lr, n),
        optimizers=_each("optimizer", optimizer, n),
        designs=[
            Design.of(world, receiver=i, own=own, peers=_others(peers, i), redraws=redraws)
            for i in range(n)
        ],
        residual=residual,
        max_norm=max_norm,
        steps=whole_number("steps", steps, 0),
        seed=whole_number("seed", seed, 0),
    )
    _check_settings(job, collapse)
    size = replica_chunk(world, job.designs)
    starts = range(0, whole_number("replicas", replicas, 1), size)
    alone = checked_jobs(n_jobs) == 1
    runs = mapped(
        partial(_advance, job, progress and alone),
        [(chunk, min(size, replicas - first)) for chunk, first in enumerate(starts)],
        total=len(starts),
        n_jobs=n_jobs,
        progress=progress and not alone,
        description="learning",
    )
    columns = list(runs)
    return _frame(
        {name: np.concatenate([c[name] for c in columns], axis=2) for name in columns[0]}, collapse
    )


def replica_chunk(world: World, designs: Sequence[Design], /) -> int:
    """Replicas that are advanced together: about `CHUNK_ROLLOUTS` rollouts a step, at least 1."""
    largest = max(max(design.rollouts for design in designs), world.n_arms)
    return max(1, CHUNK_ROLLOUTS // (world.n_contexts * largest))


@dataclass(frozen=True, eq=False)
class _Job:
    """All that a replica's course depends on."""

    world: World
    probes: list[Probe]
    rates: list[float]
    optimizers: list[OptimizerKind]
    designs: list[Design]
    residual: Residual
    max_norm: float | None
    steps: int
    seed: int


def _advance(job: _Job, progress: bool, piece: tuple[int, int], /) -> dict[str, Array]:
    """Let some replicas learn; every figure has shape (steps + 1, N, replicas)."""
    world = job.world
    chunk, replicas = piece
    learners = [
        _Learner.start(world, i, replicas, job.optimizers[i], job.max_norm, job.rates[i])
        for i in range(world.n_policies)
    ]
    probs = np.stack([learner.probs() for learner in learners])
    records = [_measure(world, probs, np.full(probs.shape[:2], np.nan))]
    steps: Iterable[int] = range(job.steps)
    if progress:
        steps = track(steps, description=f"learning, {replicas} replicas")
    for step in steps:
        streams = Streams(job.seed, (step, chunk))
        gradients = _gradients(job, probs, streams)
        norms = [
            learner.update(gradient, now, step + 1)
            for learner, gradient, now in zip(learners, gradients, probs, strict=True)
        ]
        probs = np.stack([learner.probs() for learner in learners])
        records.append(_measure(world, probs, np.stack(norms)))
    return {name: np.stack([r[name] for r in records]) for name in records[0]}


@dataclass(eq=False)
class _Learner:
    """One policy of all replicas (R of them), its parameters and its optimizer."""

    parameters: Array  # (R, X, K) logits, or (R, D)
    features: Array | None
    optimizer: Optimizer
    weights: Array
    rate: float

    @classmethod
    def start(
        cls,
        world: World,
        policy: int,
        replicas: int,
        kind: OptimizerKind,
        max_norm: float | None,
        rate: float,
        /,
    ) -> "_Learner":
        features = world.features_of(policy)
        if world.parameters is None:
            first = log_probabilities(world.probs[policy])
        else:
            first = world.parameters[policy]
        parameters = np.repeat(first[None], replicas, axis=0)
        rule = Optimizer.start(kind, max_norm, world.weights, features, parameters)
        return cls(parameters, features, rule, world.weights, rate)

    def probs(self) -> Array:
        """Arm probabilities, shape (R, X, K)."""
        if self.features is None:
            return softmax(self.parameters)
        return softmax(np.einsum("xkd,rd->rxk", self.features, self.parameters))

    def update(self, gradient: Array, probs: Array, step: int, /) -> Array:
        """Move along per-context gradients (R, X, D) and return the norms (R,) of their sum."""
        total = gradient * self.weights[:, None]
        if self.features is not None:
            total = total.sum(1)
        direction, norms = self.optimizer.direction(total, probs, step)
        self.parameters = self.parameters + self.rate * direction
        return norms


def _gradients(job: _Job, probs: Array, streams: Streams, /) -> list[Array]:
    """One estimate for every policy, replica and context: N arrays of shape (R, X, D)."""
    world, designs = job.world, job.designs
    asked = [d.own for d in designs]
    for design in designs:
        for j, count in design.peers:
            asked[j] = max(asked[j], count)
    drawn = [
        Sample.of(world, draw_each(probs[i], size, streams.rng(Stream.ROLLOUTS, i)), streams, i)
        for i, size in enumerate(asked)
    ]
    gradients = []
    for i, (probe, design) in enumerate(zip(job.probes, designs, strict=True)):
        mine = drawn[i].seen(design.own)
        if design.redraws:
            mine = redraw_dead(world, probs[i], mine, design, streams)
        rollouts = Rollouts(mine, tuple(drawn[j].seen(count) for j, count in design.peers))
        gradient, _ = estimate(world, probs, probe, design, job.residual, rollouts, streams)
        gradients.append(gradient)
    return gradients


def _measure(world: World, probs: Array, norms: Array, /) -> dict[str, Array]:
    """Figures of all policies and replicas, each of shape (N, R)."""
    reward = (probs * world.rewards).sum(-1)
    share = np.where(_rescue_set(world), world.weights, 0.0)
    total = share.sum(-1)[:, None]
    rescue = np.einsum("nrx,nx->nr", reward, share)
    return {
        "value": reward @ world.weights,
        "rescue_value": np.divide(rescue, total, out=np.full_like(rescue, np.nan), where=total > 0),
        "entropy": entropy(probs) @ world.weights,
        "gradient_norm": norms,
        "overlap": _overlap(np.where(world.success, probs, 0.0).sum(-1) >= SOLVED),
    }


def _rescue_set(world: World, /) -> Mask:
    """Contexts where a policy starts near 0 and another one does not, shape (N, X)."""
    start = world.success_probability
    able = (start > RESCUE_ABOVE).any(0)  # a policy below RESCUE_BELOW is not among the able
    return (start < RESCUE_BELOW) & able


def _overlap(solved: Mask, /) -> Array:
    """Jaccard index with each other policy's solved set (N, R, X), averaged; shape (N, R)."""
    both = (solved[:, None] & solved[None]).sum(-1)
    either = (solved[:, None] | solved[None]).sum(-1)
    others = ~np.eye(len(solved), dtype=np.bool_)[..., None] & (either > 0)
    index = np.where(others, both / np.maximum(either, 1), 0.0)
    count = others.sum(1)
    total = index.sum(1)
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def _frame(columns: dict[str, Array], collapse: float, /) -> pd.DataFrame:
    steps, policies, replicas = np.indices(columns["value"].shape)
    best = np.maximum.accumulate(columns["value"], axis=0)
    fell = columns["value"] <= best - collapse
    columns["collapsed"] = np.logical_or.accumulate(fell, axis=0)
    keys = {"step": steps, "replica": replicas, "policy": policies}
    flat = {k: np.asarray(v).swapaxes(1, 2).ravel() for k, v in {**keys, **columns}.items()}
    return pd.DataFrame(flat)


def _others(peers: int | Mapping[int, int], receiver: int, /) -> int | dict[int, int]:
    if isinstance(peers, Mapping):
        return {j: m for j, m in peers.items() if j != receiver}
    return peers


def _each(name: str, setting: Setting | Sequence[Setting], policies: int, /) -> list[Setting]:
    """One setting a policy, from one for all or a sequence."""
    if isinstance(setting, np.ndarray):
        setting = setting.tolist()
    if isinstance(setting, str) or not isinstance(setting, Sequence):
        return [setting] * policies
    if len(setting) != policies:
        raise ValueError(
            f"{name} has {len(setting)} entries; expected one for all, or {policies}: one a policy"
        )
    return list(setting)


def _check_settings(job: _Job, collapse: float, /) -> None:
    kinds = get_args(OptimizerKind)
    norm = job.max_norm
    checks = [
        (
            "lr",
            job.rates,
            all(is_real(r) and math.isfinite(r) for r in job.rates),
            "finite numbers",
        ),
        ("optimizer", job.optimizers, all(kind in kinds for kind in job.optimizers), f"{kinds}"),
        ("max_norm", norm, norm is None or (is_real(norm) and norm > 0), "None or a number > 0"),
        ("collapse", collapse, is_real(collapse) and collapse > 0, "a number > 0"),
    ]
    for name, value, sound, allowed in checks:
        if not sound:
            raise ValueError(f"{name}={value!r} is not allowed; expected {allowed}")
