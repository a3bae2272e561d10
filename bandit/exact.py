"""Exact moments of any sharing rule's gradient, by enumeration of how rewards can fall.

Credit depends on a group only through its rewards. So each way in which the rewards can fall
(`bandit.compositions`) is put before the rule itself, as a `Group`, and the rule's own `Credit`
is read off: no formula of any rule is repeated here. What is left is linear algebra over arms.
Source: docs/theory.md, sections 2 and 3.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bandit.compositions import distribution
from bandit.design import Design, needs_text
from bandit.enumeration import Averages, Classes, average
from bandit.moments import Moments
from bandit.policies import log_ratio, pull_back, score_sum, squared_scores
from bandit.probes import Group, Probe, RatioRule
from bandit.probes.group import Array
from bandit.residual import NO_RESIDUAL, Residual
from bandit.world import World

BLOCK = 2**22


def moments(
    world: World,
    probe: Probe,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
    redraws: int = 0,
) -> Moments:
    """Mean, covariance and support gain of a rule's gradient estimate, exactly.

    For independent rollouts with coefficient ``c_i`` on the score ``s_i``, given the counts::

        E[g]   = sum_i E[c_i s_i]
        Cov[g] = sum_i (E[c_i^2 s_i s_i^T] - E[c_i s_i] E[c_i s_i]^T) + spread of E[g] over counts

    Parameters
    ----------
    world : World
        Contexts, rewards and policies.
    probe : Probe
        The sharing rule; one of your own needs `credit`, and `outcomes` if it draws.
    receiver : int
        The policy that learns.
    own : int
        G, its rollouts for each context.
    peers : int or {policy: int}
        M_j, rollouts seen of every other policy, or of those named.
    residual : Residual
        Tokenizer mismatch of the peers' rollouts.
    redraws : int
        The own group is drawn again while its rewards are all equal, at most this often.

    Returns
    -------
    Moments
        Per context, X of them; gradients with respect to the receiver's D parameters (K logits in a
        tabular world).

    Raises
    ------
    ValueError
        If a setting is out of range, or there are more than
        `bandit.compositions.MAX_COMPOSITIONS` compositions; `bandit.sampling.moments` has no
        such bound.

    Notes
    -----
    Contexts with the same set of reward levels share one enumeration; its cost does not depend
    on the number of arms. For a rule that pools its peers (`Probe.pools_peers`, as all rules here)
    it is polynomial in their number; for others it is a product over peers.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers, redraws=redraws)
    parts = list(_parts(world, probe, design, residual))
    shape = (world.n_contexts, world.n_parameters(receiver))
    mean, restricted, trace = np.zeros(shape), np.zeros(shape), np.zeros(shape[0])
    for part in parts:
        mean[part.contexts] = part.mean(part.averages.first)
        restricted[part.contexts] = part.mean(part.averages.first_without_success)
        trace[part.contexts] = part.covariance_trace()

    def covariance() -> Array:
        full = np.zeros((*shape, shape[1]))
        for part in parts:
            full[part.contexts] = part.covariance()
        return full

    return Moments(
        world=world,
        receiver=receiver,
        mean=mean,
        covariance_trace=trace,
        mean_without_success=restricted,
        full_covariance=covariance,
    )


@dataclass(frozen=True, eq=False)
class Bias:
    """Where ``E[g] - g*`` of a rule with a ratio term comes from; the parts add up to `total`.

    Attributes
    ----------
    total : ndarray, shape (X, D)
        ``E[g] - g*``.
    normalisation : ndarray, shape (X, D)
        What baseline and scale do: the difference that is left when peers' rollouts stand for the
        receiver's own without loss, ``(kappa - 1) g*`` with binary rewards.
    missing_support : ndarray, shape (X, D)
        Arms of the receiver that a peer never plays, or whose texts it loses more often than those
        of other arms with the same reward.
    residual : ndarray, shape (X, D)
        The error delta of the log-ratio, and the gate.
    truncation : ndarray, shape (X, D)
        The cap; for ``ratio="none"``, weight 1 in place of the ratio.
    """

    total: Array
    normalisation: Array
    missing_support: Array
    residual: Array
    truncation: Array


def bias(
    world: World,
    probe: Probe,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
) -> Bias:
    """Decompose the bias of a rule that weights peers' rollouts by a ratio (PRP).

    The mean gradient is linear in the mean weights ``E[w | arm]``, given how rewards fall. So the
    weights are put in one after another: ideal ones, under which a peer's rollouts of a reward
    level stand for the receiver's own of that level; exact ratios on what the peer can send; with
    the residual; with the cap. Each part is the difference that one replacement makes. Other orders
    would divide the same total otherwise.

    Parameters
    ----------
    world, probe, receiver, own, peers, residual
        As in `moments`.

    Returns
    -------
    Bias
        Per context, in the receiver's D parameters.

    Raises
    ------
    ValueError
        If the rule has no ratio term, or as in `moments`.

    Notes
    -----
    Source: docs/theory.md, section 2 (PRP).
    """
    rule = ratio_rule(probe)
    if rule is None:
        raise ValueError(
            f"{probe.kind} weights no rollout by a ratio; expected a rule with a ratio term, "
            "such as PRP"
        )
    design = Design.of(world, receiver=receiver, own=own, peers=peers)
    uncapped = RatioRule(rule.kind, gated=rule.gated)
    exactly = RatioRule(gated=False)
    stages = np.zeros((4, world.n_contexts, world.n_parameters(receiver)))
    for part in _parts(world, probe, design, residual):
        first = part.averages.first
        stages[0, part.contexts] = part.mean(first, part.ideal_arms())
        for stage, (each, noise) in enumerate(
            [(exactly, NO_RESIDUAL), (uncapped, residual), (rule, residual)], start=1
        ):
            if rule.kind == "none" and stage == 2:  # no ratio is computed, so nothing disturbs it
                each, noise = exactly, NO_RESIDUAL
            stages[stage, part.contexts] = part.mean(first, part.weighted_arms(each, noise)[0])
    true = world.true_gradient(receiver)
    ideal, sendable, disturbed, final = stages
    return Bias(
        total=final - true,
        normalisation=ideal - true,
        missing_support=sendable - ideal,
        residual=disturbed - sendable,
        truncation=final - disturbed,
    )


def dead_probability(world: World, /, *, receiver: int = 0, own: int) -> Array:
    """Probability that all own rewards are equal, so that a group gives GRPO no signal.

    ``sum over levels r of P(reward = r)^G``; for binary rewards ``(1-p)^G + p^G``.

    Returns
    -------
    ndarray, shape (X,)
        By context.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=0)
    levels = np.unique(world.rewards)
    mass = np.einsum("xlk,xk->xl", world.verdict_table(levels), world.probs[receiver])
    dead: Array = (mass**design.own).sum(-1)
    return dead


def rescue_probability(
    world: World,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
) -> Array:
    """``rho = (1-p)^G (1 - prod_j (1 - q_j)^M_j)``, q_j counting representable successes.

    Returns
    -------
    ndarray, shape (X,)
        Probability that the receiver has no success and some peer has one that it can use. Both
        are what the verifier calls a success.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers)
    unaided = np.ones(world.n_contexts)
    for (_, count), usable in zip(design.peers, _usable(world, design, residual), strict=True):
        unaided *= (1 - usable.sum(-1)) ** count
    return (1 - world.verdict_probability[receiver]) ** design.own * (1 - unaided)


def rescue_distribution(
    world: World,
    /,
    *,
    receiver: int = 0,
    own: int,
    peers: int | Mapping[int, int],
    residual: Residual = NO_RESIDUAL,
) -> Array:
    """Which arm a rescue teaches: ``mu+ = sum_j E[c_j/C given C >= 1] pi_j(. given success)``.

    Its sum over truly successful arms is the share of rescues that teach a right answer, which is 1
    unless the verifier errs.

    Returns
    -------
    ndarray, shape (X, K)
        Sums to 1; NaN where no peer can rescue.
    """
    design = Design.of(world, receiver=receiver, own=own, peers=peers)
    usable = _usable(world, design, residual)
    total = np.zeros(world.rewards.shape)
    sizes = [count for _, count in design.peers]
    chance = np.array([arms.sum(-1) for arms in usable]).T[..., None]  # (X, J, 1)
    chance = np.concatenate([chance, 1 - chance], axis=-1) if design.peers else chance
    for j, arms in enumerate(usable):
        left = [count - (i == j) for i, count in enumerate(sizes)]
        others = distribution(chance, left)  # of C - 1, given that one rollout of j is a success
        picked = others @ (1 / np.arange(1, others.shape[1] + 1))
        total += sizes[j] * picked[:, None] * arms
    mass = total.sum(-1, keepdims=True)
    return np.divide(total, mass, out=np.full_like(total, np.nan), where=mass > 0)


def _usable(world: World, design: Design, residual: Residual, /) -> list[Array]:
    """Probability (X, K), by peer, that a rollout is of an arm, called a success and usable."""
    kept = [1 - residual.drop_table(j, world.rewards.shape) for j, _ in design.peers]
    sources = [world.probs[j] for j, _ in design.peers]
    return [a * b * world.called_success for a, b in zip(sources, kept, strict=True)]


def ratio_rule(probe: Probe, /) -> RatioRule | None:
    """Tell how a sharing rule weights peers' rollouts; None if it has no such term."""
    group = Group(own_rewards=[0.0], peer_rewards=[0.0] if probe.needs else None)
    return next(iter(probe.outcomes(group)))[1].peer_ratio


def _parts(world: World, probe: Probe, design: Design, residual: Residual, /) -> Iterator["_Part"]:
    """Average over compositions for contexts that share reward levels, a few at a time."""
    by_levels: dict[tuple[float, ...], list[int]] = {}
    if world.wrong_verdict is not None:  # every reward can be seen everywhere
        by_levels[tuple(np.unique(world.rewards).tolist())] = list(range(world.n_contexts))
    else:
        for x, rewards in enumerate(world.rewards):
            by_levels.setdefault(tuple(np.unique(rewards).tolist()), []).append(x)
    size = max(1, BLOCK // (world.n_arms * (1 + sum(m > 0 for _, m in design.peers)) ** 2))
    for levels, contexts in by_levels.items():
        for start in range(0, len(contexts), size):
            block = np.array(contexts[start : start + size])
            yield _Part.of(world, probe, design, residual, np.array(levels), block)


@dataclass(frozen=True, eq=False)
class _Part:
    """Averages over compositions for X contexts, and the arms that they are about.

    Given the counts, the estimate's mean is ``sum_f S_f v_f`` with the features f of
    `bandit.enumeration.Averages` and ``v_f`` the mean of weight times score in the class.
    """

    world: World
    design: Design
    residual: Residual
    rule: RatioRule | None
    contexts: NDArray[np.int64]
    own: Classes
    peers: tuple[Classes, ...]
    averages: Averages

    @classmethod
    def of(
        cls,
        world: World,
        probe: Probe,
        design: Design,
        residual: Residual,
        levels: Array,
        contexts: NDArray[np.int64],
        /,
    ) -> "_Part":
        """Sort rollouts into classes, put every composition before the rule, and average."""
        verdicts = world.verdict_table(levels)[contexts]
        keep_rewards = "group_stats" in probe.needs

        def classes(members: Sequence[tuple[int, int]], text: bool) -> Classes:
            probs = np.stack([world.probs[j][contexts] for j, _ in members], axis=1)
            drop = np.zeros((1, 1, 1))
            if text:
                tables = [residual.drop_table(j, world.rewards.shape) for j, _ in members]
                drop = np.stack([table[contexts] for table in tables], axis=1)
            return Classes.of(members, levels, verdicts, probs, drop, keep_rewards)

        own = classes([(design.receiver, design.own)], False)
        peers = tuple(classes(pool, needs_text(probe)) for pool in design.pools(probe))
        averages = average(probe, own, peers, world.success_threshold, design.redraws)
        return cls(world, design, residual, ratio_rule(probe), contexts, own, peers, averages)

    @property
    def probs(self) -> Array:
        """The receiver's policy, shape (X, K)."""
        return self.world.probs[self.design.receiver][self.contexts]

    @cached_property
    def features(self) -> Array | None:
        """The receiver's linear features, shape (X, K, D)."""
        features = self.world.features_of(self.design.receiver)
        return None if features is None else features[self.contexts]

    def plain_arms(self) -> list[Array]:
        """Probability of arms given the class, (X, J * C, K) for each pool of peers."""
        return [_flat(p.arms) for p in self.peers]

    def weighted_arms(
        self, rule: RatioRule | None, residual: Residual, /
    ) -> tuple[list[Array], list[Array]]:
        """The same, times the mean weight of a rollout of the arm, and times its mean square."""
        first, second = [], []
        for pool in self.peers:
            if rule is None:
                first.append(np.zeros_like(_flat(pool.arms)))
                second.append(first[-1])
                continue
            members = [self._weight_moments(rule, residual, j) for j, _ in pool.pool.members]
            for into, moment in zip((first, second), zip(*members, strict=True), strict=True):
                weights = np.stack(moment, axis=1)[:, :, None, :]
                into.append(_flat(_times(pool.arms, weights)))
        return first, second

    def _weight_moments(
        self, rule: RatioRule, residual: Residual, peer: int, /
    ) -> tuple[Array, Array]:
        probs = self.world.probs
        if rule.kind == "none":
            ones = np.ones((len(self.contexts), 1))
            return ones, ones
        ratios = log_ratio(probs[self.design.receiver], probs[peer])
        first, second = residual.weight_moments(rule, ratios, peer)
        return first[self.contexts], second[self.contexts]

    def ideal_arms(self) -> list[Array]:
        """The receiver's own arms of the class's reward, over the source's chance of it."""
        probs = self.probs
        ideal = []
        for pool in self.peers:
            verdicts = self.world.verdict_table(pool.pool.rewards)[self.contexts][:, None]
            sources = np.stack(
                [self.world.probs[j][self.contexts] for j, _ in pool.pool.members], axis=1
            )
            mass = (verdicts * sources[:, :, None, :]).sum(-1, keepdims=True)
            mine = verdicts * probs[:, None, None, :] * pool.pool.representable[:, None]
            shape = pool.arms.shape
            arms = np.divide(
                np.broadcast_to(mine, shape),
                np.broadcast_to(mass, shape),
                out=np.zeros(shape),
                where=np.broadcast_to(mass > 0, shape),
            )
            ideal.append(_flat(arms))
        return ideal

    def mean(self, coefficients: Array, ratio_arms: list[Array] | None = None, /) -> Array:
        """``sum_f c_f v_f`` in the receiver's parameters, shape (X, D)."""
        if ratio_arms is None:
            ratio_arms = self.weighted[0]
        arms = [_flat(self.own.arms), *ratio_arms, *self.plain_arms()]
        total, at = np.zeros_like(self.probs), 0
        for block in arms:
            share = coefficients[:, at : at + block.shape[1]]
            if share.any():
                total += (share[:, None, :] @ block)[:, 0]
            at += block.shape[1]
        return pull_back(score_sum(total, self.probs), self.features)

    @cached_property
    def weighted(self) -> tuple[list[Array], list[Array]]:
        """`weighted_arms` under the rule and the residual that there are."""
        return self.weighted_arms(self.rule, self.residual)

    @cached_property
    def spread(self) -> Array:
        """Weights (X, F, F) on ``v_f v_f'^T`` in the covariance."""
        first = self.averages.first
        return self.averages.pairs - first[:, :, None] * first[:, None, :]

    @cached_property
    def scores(self) -> Array:
        """``v_f`` of every feature, shape (X, F, D)."""
        arms = np.concatenate([_flat(self.own.arms), *self.weighted[0], *self.plain_arms()], axis=1)
        return pull_back(score_sum(arms, self.probs[:, None, :]), _over_features(self.features))

    @cached_property
    def within(self) -> Array:
        """Weights (X, K) on ``s(y) s(y)^T`` in the covariance."""
        squares = self.averages.peer_squares
        total = (self.averages.own_squares[:, None, :] @ _flat(self.own.arms))[:, 0]
        once, twice = self.weighted
        for route, blocks in enumerate((twice, once, self.plain_arms())):
            at = 0
            for block in blocks:
                share = squares[:, route, at : at + block.shape[1]]
                if share.any():
                    total += (share[:, None, :] @ block)[:, 0]
                at += block.shape[1]
        return total

    def covariance_trace(self) -> Array:
        """``tr Cov(g)``, shape (X,)."""
        trace = (self.within * squared_scores(self.probs, self.features)).sum(-1)
        gram = self.scores @ self.scores.swapaxes(1, 2)
        trace += (self.spread * gram).sum((1, 2))
        return np.maximum(trace, 0.0)  # rounding can leave -1e-18 where nothing varies

    def covariance(self) -> Array:
        """``Cov(g)``, shape (X, D, D)."""
        within, probs = self.within, self.probs
        cross = within[:, :, None] * probs[:, None, :]
        outer = probs[:, :, None] * probs[:, None, :]
        full = outer * within.sum(-1)[:, None, None] - cross - cross.swapaxes(1, 2)
        full += within[:, :, None] * np.eye(probs.shape[-1])
        if self.features is not None:
            full = self.features.swapaxes(1, 2) @ full @ self.features
        between: Array = self.scores.swapaxes(1, 2) @ self.spread @ self.scores
        return full + between


def _flat(arms: Array, /) -> Array:
    """Members and classes (X, J, C, K) in one axis, shape (X, J * C, K)."""
    return arms.reshape(len(arms), -1, arms.shape[-1])


def _times(arms: Array, weights: Array, /) -> Array:
    """Arms times weights, 0 where there is no arm even if the weight overflows."""
    return np.multiply(arms, weights, out=np.zeros_like(arms), where=arms > 0)


def _over_features(features: Array | None, /) -> Array | None:
    """Linear features (X, K, D) as they apply to gradients (X, F, K)."""
    return None if features is None else features[:, None]
