"""Exact moments: rules of one's own, graded rewards, bounds, and the pieces they are made of."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
from scipy.stats import binom, multinomial

from bandit import Residual, World, enumeration, exact, sampling
from bandit.compositions import Pool, composition_counts, compositions, distribution, group_of
from bandit.policies import natural_gradient, softmax, squared_scores
from bandit.probes import GRPO, PRP, SGT, XGRPO, Credit, Group, Probe
from bandit.probes.probe import peer_zeros
from bandit.worlds import random_world, rare_success

GRADED = (0.0, 0.25, 1.0)


@dataclass(frozen=True)
class Reinforce(Probe):
    """Plain REINFORCE, whose moments are textbook: independent terms, no baseline."""

    kind: ClassVar[str] = "reinforce"

    def credit(self, group: Group, rng: np.random.Generator | None = None, /) -> Credit:
        n = np.full(group.batch_shape, float(group.own_rewards.shape[-1]))
        return Credit(group.own_rewards, peer_zeros(group), None, peer_zeros(group), n)


@dataclass(frozen=True)
class Coin(Reinforce):
    """REINFORCE that is thrown away half of the time, by its own draw."""

    kind: ClassVar[str] = "coin"

    def credit(self, group: Group, rng: np.random.Generator | None = None, /) -> Credit:
        assert rng is not None
        kept, lost = (credit for _, credit in self.outcomes(group))
        heads = rng.random(group.batch_shape) < 0.5
        own = np.where(heads[..., None], kept.own_advantage, lost.own_advantage)
        return Credit(own, kept.peer_advantage, None, kept.nll_weight, kept.n_pg)

    def outcomes(self, group: Group, /) -> Iterator[tuple[np.ndarray, Credit]]:
        half, plain = np.full(group.batch_shape, 0.5), super().credit(group)
        yield half, plain
        yield (
            half,
            Credit(
                0 * plain.own_advantage, plain.peer_advantage, None, plain.nll_weight, plain.n_pg
            ),
        )


def graded_world() -> World:
    return random_world(np.random.default_rng(0), contexts=3, arms=6, levels=GRADED)


@pytest.mark.parametrize("probe", [GRPO(), PRP(), XGRPO(), SGT(), PRP(ratio="none")])
@pytest.mark.parametrize("drop", [0.0, 0.3])
def test_ways_are_the_compositions_that_moments_go_through(
    probe: Probe, drop: float, monkeypatch: pytest.MonkeyPatch
):
    counted = []

    def counting(own, peers, rows, threshold):
        counted.append(len(rows[0]))
        return group_of(own, peers, rows, threshold)

    monkeypatch.setattr(enumeration, "group_of", counting)
    # two contexts of three levels, which are looked at together, and one of two
    rewards = np.array([[0.0, 0.5, 1.0], [1.0, 0.5, 0.0], [0.0, 0.0, 1.0]])
    world = World.tabular(np.full((3, 3, 3), 1 / 3), rewards)
    sizes = {"own": 3, "peers": {1: 2, 2: 1}, "residual": Residual(drop=drop)}
    exact.moments(world, probe, **sizes)
    assert exact.ways(world, probe, **sizes) == sum(counted)


def test_a_rule_of_ones_own_is_analysed_exactly():
    world, own = graded_world(), 3
    moments = exact.moments(world, Reinforce(), own=own, peers=2)
    np.testing.assert_allclose(moments.mean, moments.true_gradient, rtol=1e-12, atol=1e-15)
    pi = world.probs[0]
    second = (pi * world.rewards**2 * squared_scores(pi)).sum(-1)
    expected = (second - (moments.true_gradient**2).sum(-1)) / own
    np.testing.assert_allclose(moments.covariance_trace, expected, rtol=1e-12)


def test_a_rule_that_draws_is_averaged_over_its_outcomes():
    world = graded_world()
    plain = exact.moments(world, Reinforce(), own=2, peers=0)
    coin = exact.moments(world, Coin(), own=2, peers=0)
    np.testing.assert_allclose(coin.mean, plain.mean / 2, rtol=1e-12)
    spread = plain.covariance_trace / 2 + (plain.mean**2).sum(-1) / 4
    np.testing.assert_allclose(coin.covariance_trace, spread, rtol=1e-12)
    simulated = sampling.moments(world, Coin(), own=2, peers=0, n=20_000)
    assert (np.abs(simulated.mean - coin.mean) <= 4 * simulated.mean_se).all()


@pytest.mark.parametrize("probe", [GRPO(), XGRPO(), PRP(cap=2.0), SGT()], ids=lambda p: p.kind)
def test_covariance_is_symmetric_positive_and_has_the_trace(probe):
    world = graded_world()
    moments = exact.moments(world, probe, own=3, peers=3, residual=Residual(sigma=0.2, drop=0.1))
    full = moments.covariance()
    np.testing.assert_allclose(full, full.swapaxes(1, 2), atol=1e-15)
    np.testing.assert_allclose(np.einsum("xkk->x", full), moments.covariance_trace, rtol=1e-10)
    assert np.linalg.eigvalsh(full).min() > -1e-12
    np.testing.assert_allclose(full.sum(-1), 0.0, atol=1e-12)  # logits are free up to a constant


def test_contexts_do_not_depend_on_each_other():
    # four contexts with three different sets of reward levels
    rewards = np.array([[0.0, 1.0, 0.0], [0.0, 0.5, 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    probs = np.random.default_rng(1).dirichlet(np.ones(3), size=(2, 4))
    together = exact.moments(World.tabular(probs, rewards), SGT(), own=3, peers=2)
    for x in range(4):
        alone = exact.moments(World.tabular(probs[:, [x]], rewards[[x]]), SGT(), own=3, peers=2)
        for ours, theirs in (
            (together.mean, alone.mean),
            (together.covariance(), alone.covariance()),
            (together.support_gain, alone.support_gain),
        ):
            np.testing.assert_allclose(ours[x], theirs[0], rtol=1e-12, atol=1e-15)
    assert np.isnan(together.support_gain[3])


def test_a_rule_that_needs_no_records_never_sees_peers():
    world = random_world(np.random.default_rng(0), policies=4)
    without = exact.moments(world, GRPO(), own=4, peers=0)
    crowded = exact.moments(world, GRPO(), own=4, peers=500)  # not enumerated
    np.testing.assert_array_equal(without.mean, crowded.mean)


def test_too_many_compositions_name_the_way_out():
    world = random_world(np.random.default_rng(0), policies=4, arms=8, levels=(0, 0.3, 0.6, 1))
    with pytest.raises(ValueError, match="use bandit.sampling.moments"):
        exact.moments(world, XGRPO(), own=500, peers=500)


def test_compositions_carry_all_probability():
    pool = Pool(((0, 5),), np.array([0.0, 0.5, 1.0]), np.ones(3, bool))
    probability = np.array([[[0.2, 0.3, 0.5]], [[0.0, 0.0, 1.0]]])
    chance = distribution(probability, pool.sizes)
    np.testing.assert_allclose(chance.sum(-1), 1.0, rtol=1e-14)
    expected = multinomial.pmf(pool.counts, 5, [0.2, 0.3, 0.5])
    np.testing.assert_allclose(chance[0], expected, rtol=1e-12)
    assert len(pool.counts) == 21
    for counts, classes in zip(pool.counts, pool.class_of, strict=True):
        assert np.bincount(classes, minlength=3).tolist() == counts.tolist()
    assert composition_counts([pool, pool]) == (21, 21)
    (rows,) = next(compositions((21,)))
    assert rows.tolist() == list(range(21))


def test_large_groups_neither_overflow_nor_lose_probability():
    chance = distribution(np.array([[[1e-3, 1 - 1e-3]]]), (3000,))
    np.testing.assert_allclose(chance.sum(), 1.0, rtol=1e-11)
    np.testing.assert_allclose(
        chance[0], binom.pmf(np.arange(3001), 3000, 1e-3), rtol=1e-9, atol=1e-300
    )


class ApartXGRPO(XGRPO):
    pools_peers: ClassVar[bool] = False


class ApartPRP(PRP):
    pools_peers: ClassVar[bool] = False


class ApartSGT(SGT):
    pools_peers: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("pooled", "apart"),
    [
        (XGRPO(peer_share=0.3), ApartXGRPO(peer_share=0.3)),
        (PRP(cap=2.0), ApartPRP(cap=2.0)),
        (SGT(weight=0.5), ApartSGT(weight=0.5)),
    ],
    ids=["xgrpo", "prp", "sgt"],
)
@pytest.mark.parametrize("levels", [(0.0, 1.0), GRADED])
def test_one_pool_of_all_peers_is_as_good_as_a_pool_for_each(pooled, apart, levels):
    world = random_world(np.random.default_rng(3), policies=4, contexts=2, arms=4, levels=levels)
    residual = Residual(sigma={1: 0.3}, drop={2: 0.2}, gate=0.1)
    sizes = {"own": 3, "peers": {1: 2, 2: 1, 3: 2}, "residual": residual}
    one, many = (exact.moments(world, rule, **sizes) for rule in (pooled, apart))
    np.testing.assert_allclose(one.mean, many.mean, rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(one.covariance(), many.covariance(), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(one.support_gain, many.support_gain, rtol=1e-10)


def test_many_peers_are_polynomial():
    world = random_world(np.random.default_rng(2), policies=11, contexts=2, arms=4)
    few = exact.moments(world, SGT(), own=4, peers=dict.fromkeys(range(1, 11), 4))  # 5^11 apart
    simulated = sampling.moments(world, SGT(), own=4, peers=4, n=40_000)
    assert (np.abs(few.mean - simulated.mean) <= 4.5 * simulated.mean_se).all()
    with pytest.raises(ValueError, match="pools_peers = True"):
        exact.moments(world, ApartSGT(), own=4, peers=4)


def test_dead_and_rescue_probabilities():
    world = rare_success(0.05)
    np.testing.assert_allclose(exact.dead_probability(world, own=4), 0.95**4 + 0.05**4)
    rho = exact.rescue_probability(world, own=4, peers=3, residual=Residual(drop=0.2))
    np.testing.assert_allclose(rho, 0.95**4 * (1 - 0.6**3))


def test_natural_gradient_solves_the_damped_fisher_system():
    rng = np.random.default_rng(0)
    pi = softmax(rng.normal(size=(2, 5)) * 3)
    gradient = rng.normal(size=(2, 5))
    gradient -= gradient.mean(-1, keepdims=True)
    solution = natural_gradient(gradient, pi, damping=0.01)
    for p, g, x in zip(pi, gradient, solution, strict=True):
        fisher = np.diag(p) - np.outer(p, p) + 0.01 * np.eye(5)
        np.testing.assert_allclose(fisher @ x, g, rtol=1e-9, atol=1e-12)
    bare = natural_gradient(gradient, pi)
    fisher = np.diag(pi[0]) - np.outer(pi[0], pi[0])
    np.testing.assert_allclose(fisher @ bare[0], gradient[0], rtol=1e-9, atol=1e-12)


def test_softmax_takes_arms_that_are_never_played():
    np.testing.assert_allclose(softmax([0.0, 1000.0, -np.inf]), [0.0, 1.0, 0.0])
