"""Simulated gradients agree with the exact moments, for every rule (theory, section 5, fact 10)."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from bandit import Residual, World, exact, sampling
from bandit.probes import GRPO, PRP, SGT, XGRPO, Credit, Group, Probe, UngatedNLL
from bandit.worlds import random_world

DRAWS = 200_000
RULES: dict[str, Probe] = {
    "grpo": GRPO(),
    "xgrpo": XGRPO(),
    "xgrpo-share": XGRPO(peer_share=0.7, scale="none"),
    "prp": PRP(),
    "prp-cap": PRP(cap=2.0, gated=False),
    "prp-none": PRP(ratio="none", ddof=0),
    "sgt": SGT(weight=0.3),
    "nll": UngatedNLL(weight=0.3),
}
PEERS = {1: {}, 2: {1: 4}, 3: {1: 3, 2: 2}, 4: {1: 2, 2: 3, 3: 1}}


def tabular(policies: int) -> World:
    return random_world(np.random.default_rng(policies), policies=policies, contexts=2, arms=5)


def graded(policies: int) -> World:
    rng = np.random.default_rng(policies + 10)
    return random_world(rng, policies=policies, contexts=2, arms=6, levels=(0.0, 0.3, 1.0))


def linear(policies: int) -> World:
    rng = np.random.default_rng(policies + 20)
    features = [rng.normal(size=(2, 5, 3)) for _ in range(policies)]
    parameters = [0.5 * rng.normal(size=3) for _ in range(policies)]
    return World.linear(features, parameters, [[1, 0, 0, 1, 0], [0, 0, 1, 0, 0]])


def erring(policies: int) -> World:
    return tabular(policies).noisy(false_positive=0.1, false_negative=[[0.2], [0.3]])


WORLDS = {make.__name__: make for make in (tabular, graded, linear, erring)}


def mismatch(world: World) -> Residual:
    by_arm = np.random.default_rng(5).uniform(0.0, 0.4, world.rewards.shape)
    settings = {
        "mu": {1: -0.1, 2: 0.1},
        "sigma": {1: 0.2},
        "drop": {1: by_arm, 2: 0.2},
    }
    present = {
        name: {j: value for j, value in by_peer.items() if j < world.n_policies}
        for name, by_peer in settings.items()
    }
    return Residual(**present, gate=0.15)


def assert_agrees(simulated, computed):
    spread = np.sqrt(np.maximum(np.einsum("xkk->xk", computed.covariance()), 0.0) / simulated.n)
    assert (np.abs(simulated.mean - computed.mean) <= 4 * spread + 1e-12).all()
    for name in ("covariance_trace", "support_gain"):
        gap = np.abs(getattr(simulated, name) - getattr(computed, name))
        assert (gap <= 4.5 * getattr(simulated, f"{name}_se") + 1e-12).all(), name


@pytest.mark.parametrize("residual", ["matched", "mismatched"])
@pytest.mark.parametrize("policies", PEERS, ids=lambda n: f"{n - 1} peers")
@pytest.mark.parametrize("kind", WORLDS)
@pytest.mark.parametrize("rule", RULES)
def test_simulated_moments_agree_with_enumeration(rule, kind, policies, residual):
    world = WORLDS[kind](policies)
    settings = {
        "own": 4,
        "peers": PEERS[policies],
        "residual": mismatch(world) if residual == "mismatched" else Residual(),
    }
    computed = exact.moments(world, RULES[rule], **settings)
    draws = DRAWS if kind == "tabular" else DRAWS // 5
    assert_agrees(sampling.moments(world, RULES[rule], n=draws, seed=7, **settings), computed)


@pytest.mark.parametrize("rule", ["grpo", "xgrpo-share", "prp-cap", "sgt"])
def test_graded_rewards_and_dynamic_sampling_agree_too(rule):
    world = graded(3)
    settings = {"own": 3, "peers": PEERS[3], "residual": mismatch(world), "redraws": 2}
    computed = exact.moments(world, RULES[rule], **settings)
    simulated = sampling.moments(world, RULES[rule], n=DRAWS // 2, seed=3, **settings)
    assert_agrees(simulated, computed)


@dataclass(frozen=True)
class ValuesAndOutcomes(SGT):
    """Rescues as SGT does, with XGRPO's advantages: of a dropped text it still has the reward."""

    kind: ClassVar[str] = "both"
    needs: ClassVar[frozenset[str]] = frozenset({"group_stats", "success"})

    def credit(self, group: Group, rng: np.random.Generator | None = None, /) -> Credit:
        pooled = XGRPO().credit(group)
        return replace(super().credit(group, rng), own_advantage=pooled.own_advantage)

    def outcomes(self, group: Group, /) -> Iterator[tuple[np.ndarray, Credit]]:
        pooled = XGRPO().credit(group)
        for chance, credit in super().outcomes(group):
            yield chance, replace(credit, own_advantage=pooled.own_advantage)


def test_a_rule_that_keeps_the_rewards_of_dropped_texts_agrees_too():
    world = random_world(np.random.default_rng(8), policies=3, contexts=2, arms=5)
    settings = {"own": 3, "peers": 2, "residual": Residual(drop={1: 0.4, 2: 0.2})}
    assert_agrees(
        sampling.moments(world, ValuesAndOutcomes(weight=0.5), n=DRAWS, seed=4, **settings),
        exact.moments(world, ValuesAndOutcomes(weight=0.5), **settings),
    )


def test_simulated_covariance_agrees_with_enumeration_entry_by_entry():
    world = random_world(np.random.default_rng(4), policies=2, contexts=1, arms=4)
    settings = {"own": 4, "peers": 4, "residual": Residual(sigma=0.3)}
    computed = exact.moments(world, PRP(cap=5.0), **settings).covariance()[0]
    simulated = sampling.moments(world, PRP(cap=5.0), n=DRAWS, seed=2, **settings)
    np.testing.assert_allclose(simulated.covariance()[0], computed, atol=0.02 * np.trace(computed))
    np.testing.assert_allclose(
        np.trace(simulated.covariance()[0]), simulated.covariance_trace[0], rtol=1e-9
    )


@pytest.mark.parametrize("rule", ["prp", "prp-cap", "sgt"])
def test_residuals_by_arm_agree_too(rule):
    rng = np.random.default_rng(9)
    world = random_world(rng, policies=2, contexts=2, arms=5)
    tables = rng.uniform(0.0, 0.5, (4, *world.rewards.shape))
    residual = Residual(*tables[:2], drop=tables[2], gate=tables[3])
    settings = {"own": 4, "peers": 4, "residual": residual}
    computed = exact.moments(world, RULES[rule], **settings)
    assert_agrees(sampling.moments(world, RULES[rule], n=DRAWS, seed=5, **settings), computed)


def test_empirical_residuals_agree_too():
    samples = np.concatenate([np.zeros(30), np.random.default_rng(0).standard_t(3, 20)])
    world = random_world(np.random.default_rng(6), policies=2, contexts=1, arms=4)
    settings = {"own": 4, "peers": 4, "residual": Residual.empirical(samples, drop=0.1, gate=0.2)}
    probe = PRP(cap=4.0)
    assert_agrees(
        sampling.moments(world, probe, n=DRAWS, seed=1, **settings),
        exact.moments(world, probe, **settings),
    )


def test_standard_errors_are_those_of_the_estimates():
    world = random_world(np.random.default_rng(3), policies=2, contexts=1, arms=4)
    runs = [sampling.moments(world, SGT(), own=4, peers=4, n=500, seed=s) for s in range(200)]
    for name in ("mean", "covariance_trace", "support_gain"):
        observed = np.std([getattr(run, name) for run in runs], axis=0, ddof=1)
        claimed = np.mean([getattr(run, f"{name}_se") for run in runs], axis=0)
        np.testing.assert_allclose(observed, claimed, rtol=0.25)
