"""Exact moments of contexts that share reward levels: averages of credit, tied to arms.

Source: docs/theory.md, section 3.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bandit.design import Design, needs_text
from bandit.enumeration import Averages, Classes, average
from bandit.policies import log_ratio, pull_back, score_sum, squared_scores
from bandit.probes import Group, Probe, RatioRule
from bandit.probes.group import Array
from bandit.residual import Residual
from bandit.world import World

# Bounds the numbers that are held for the contexts of one part.
BLOCK = 2**23


def ratio_rule(probe: Probe, /) -> RatioRule | None:
    """Tell how a sharing rule weights peers' rollouts; None if it has no such term."""
    group = Group(own_rewards=[0.0], peer_rewards=[0.0] if probe.needs else None)
    return next(iter(probe.outcomes(group)))[1].peer_ratio


def parts_of(world: World, probe: Probe, design: Design, residual: Residual, /) -> Iterator["Part"]:
    """Average over compositions for contexts that share reward levels, a few at a time."""
    for levels, contexts in _blocks(world, probe, design):
        yield Part.of(world, probe, design, residual, levels, contexts)


def ways(world: World, probe: Probe, design: Design, residual: Residual, /) -> int:
    """How many compositions `parts_of` puts before a rule, in all parts together."""
    total = 0
    for levels, contexts in _blocks(world, probe, design):
        found = _compositions(design.own, len(levels))
        for pool in design.pools(probe):
            tables = [residual.drop_table(j, world.rewards.shape)[contexts] for j, _ in pool]
            lost = 0
            if needs_text(probe) and any(table.any() for table in tables):
                lost = len(levels) if keeps_dropped_rewards(probe) else 1
            found *= _compositions(sum(size for _, size in pool), len(levels) + lost)
        total += found
    return total


def keeps_dropped_rewards(probe: Probe, /) -> bool:
    """Tell whether a rule still sees the reward of a rollout whose text is lost to it."""
    return "group_stats" in probe.needs


def _compositions(size: int, classes: int, /) -> int:
    return math.comb(size + classes - 1, size)


def _blocks(
    world: World, probe: Probe, design: Design, /
) -> Iterator[tuple[Array, NDArray[np.int64]]]:
    """Reward levels, and contexts that share them, few enough to be held together."""
    by_levels: dict[tuple[float, ...], list[int]] = {}
    if world.wrong_verdict is not None:  # every reward can be seen everywhere
        by_levels[tuple(np.unique(world.rewards).tolist())] = list(range(world.n_contexts))
    else:
        for x, rewards in enumerate(world.rewards):
            by_levels.setdefault(tuple(np.unique(rewards).tolist()), []).append(x)
    for levels, contexts in by_levels.items():
        size = max(1, BLOCK // _numbers_a_context(world, probe, design, len(levels)))
        for start in range(0, len(contexts), size):
            yield np.array(levels), np.array(contexts[start : start + size])


def _numbers_a_context(world: World, probe: Probe, design: Design, levels: int, /) -> int:
    """About how many numbers a part holds for one context: arms by feature, chances of pairs."""
    most = 0
    for pool in design.pools(probe):
        features = len(pool) * levels
        rows = math.comb(sum(size for _, size in pool) + levels - 1, levels - 1)
        pairs = rows * features**2 if len(pool) > 1 else 0
        most = max(most, pairs, 2 * features * world.n_arms)
    return most + levels * world.n_arms


@dataclass(frozen=True, eq=False)
class Part:
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
    ) -> "Part":
        """Sort rollouts into classes, put every composition before the rule, and average."""
        verdicts = world.verdict_table(levels)[contexts]
        keep_rewards = keeps_dropped_rewards(probe)

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
        if np.isinf(np.where(probs[peer] > 0, first, 0.0)).any():
            raise ValueError(
                f"the mean weight of a rollout of policy {peer} overflows under this residual; "
                "give the rule a cap, or a smaller mu or sigma"
            )
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
                    with np.errstate(over="ignore", invalid="ignore"):
                        total += (share[:, None, :] @ block)[:, 0]
                at += block.shape[1]
        return total

    def covariance_trace(self) -> Array:
        """``tr Cov(g)``, shape (X,)."""
        with np.errstate(over="ignore", invalid="ignore"):
            trace = (self.within * squared_scores(self.probs, self.features)).sum(-1)
            gram = self.scores @ self.scores.swapaxes(1, 2)
            trace += (self.spread * gram).sum((1, 2))
        unbounded = ~np.isfinite(self.within).all(-1)  # E[w^2] overflows
        # rounding can leave -1e-18 where nothing varies
        return np.where(unbounded, np.inf, np.maximum(trace, 0.0))

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
