"""Sampling: random streams, draws, and the execution of credit."""

import numpy as np
import pytest

from bandit import Residual, World, sampling
from bandit.design import Design
from bandit.probes import GRPO, PRP, SGT, XGRPO, Credit, Probe, RatioRule
from bandit.rollouts import draw_arms, draw_each
from bandit.sampling import chunk_size, execute
from bandit.worlds import random_world

RULES: list[Probe] = [GRPO(), XGRPO(), PRP(cap=3.0), SGT()]
MISMATCH = Residual(mu=0.1, sigma=0.3, drop=0.2, gate=0.1)


def credit_of(own, peer=((),), ratio=None, nll=None, n=None) -> Credit:
    own, peer = np.array(own, float), np.array(peer, float)
    nll = np.zeros_like(peer) if nll is None else np.array(nll, float)
    count = np.full(own.shape[:-1], float(own.shape[-1]) if n is None else float(n))
    return Credit(own, peer, ratio, nll, count)


def test_execution_of_a_credit_by_hand():
    pi = np.array([[0.5, 0.3, 0.2]])
    own, peers = np.array([[0, 2]]), np.array([[1, 1, 2]])
    credit = credit_of([[1.0, -1.0]], [[2.0, 0.0, 1.0]], RatioRule(), [[0.0, 0.1, 0.0]], n=5)
    weights = np.array([[0.5, 7.0, 3.0]])
    # arms: 1/5 [e0 - e2 + 2 * 0.5 e1 + 3 e2] + 0.1 e1, less their total 0.9 times pi
    expected = np.array([0.2, 0.3, 0.4]) - 0.9 * pi[0]
    np.testing.assert_allclose(execute(pi, own, peers, credit, weights)[0], expected, atol=1e-15)


def test_execution_takes_one_policy_for_each_group():
    rng = np.random.default_rng(0)
    pi = rng.dirichlet(np.ones(4), size=(5, 3))
    own, none = rng.integers(4, size=(5, 3, 2)), np.zeros((5, 3, 0), int)
    advantage, no_peer = rng.normal(size=own.shape), np.zeros(none.shape)
    together = execute(pi, own, none, credit_of(advantage, no_peer))
    for i in range(5):
        alone = execute(pi[i], own[i], none[i], credit_of(advantage[i], no_peer[i]))
        np.testing.assert_array_equal(together[i], alone)


def test_execution_refuses_missing_or_idle_ratio_weights():
    pi, arms, peer = np.array([[0.5, 0.5]]), np.array([[0]]), np.array([[1]])
    with pytest.raises(ValueError, match="ratio_weights are missing"):
        execute(pi, arms, peer, credit_of([[1.0]], [[1.0]], RatioRule()))
    with pytest.raises(ValueError, match="ratio_weights were given"):
        execute(pi, arms, peer, credit_of([[1.0]], [[0.0]]), np.ones((1, 1)))


@pytest.mark.parametrize("probe", RULES, ids=lambda p: p.kind)
def test_gradients_are_a_function_of_the_seed(probe):
    world = random_world(np.random.default_rng(0), policies=3)
    design = {"own": 3, "peers": 2, "residual": MISMATCH, "n": 50, "redraws": 1}
    first = sampling.gradients(world, probe, seed=1, **design)
    assert np.array_equal(first, sampling.gradients(world, probe, seed=1, **design))
    assert not np.array_equal(first, sampling.gradients(world, probe, seed=2, **design))


@pytest.mark.parametrize("probe", RULES, ids=lambda p: p.kind)
def test_first_estimates_do_not_depend_on_how_many_are_drawn(probe, monkeypatch):
    monkeypatch.setattr(sampling, "CHUNK_ROLLOUTS", 300)
    world = random_world(np.random.default_rng(0), policies=2)
    design = {"own": 3, "peers": 2, "residual": MISMATCH, "redraws": 2}
    size = sampling.chunk_size(world, Design.of(world, receiver=0, own=3, peers=2))
    assert size == 20
    many = sampling.gradients(world, probe, n=3 * size + 1, **design)
    few = sampling.gradients(world, probe, n=size + 5, **design)
    assert np.array_equal(many[: size + 5], few)
    assert many.shape == (61, 3, 5)


def test_all_rules_see_the_same_rollouts():
    world = random_world(np.random.default_rng(0), policies=2, contexts=1)
    design = {"own": 4, "peers": 4, "n": 200}
    plain = sampling.gradients(world, GRPO(scale="none"), **design)
    pooled = sampling.gradients(world, XGRPO(scale="none", peer_share=0.0), **design)
    alive = (plain != 0).any(-1)
    # with share 0 the baseline is the own mean: the same rollouts give the same gradient
    np.testing.assert_allclose(pooled[alive], plain[alive], atol=1e-15)


def test_a_weight_free_rule_is_not_moved_by_the_residual_draws():
    world = random_world(np.random.default_rng(0), policies=2)
    design = {"own": 4, "peers": 4, "n": 50}
    gated = Residual(mu=1.0, sigma=2.0, gate=0.5)
    for probe in (GRPO(), XGRPO(), PRP(ratio="none"), SGT()):
        assert np.array_equal(
            sampling.gradients(world, probe, residual=gated, **design),
            sampling.gradients(world, probe, **design),
        )


@pytest.mark.parametrize("n", [3, 4000])  # below and above the size that uses a table
def test_drawn_arms_are_the_inverse_of_the_distribution_function(n):
    probs = np.array([[0.0, 0.25, 0.0, 0.75, 0.0], [0.1, 0.2, 0.3, 0.4, 0.0]])
    arms = draw_arms(probs, n, 2, np.random.default_rng(0))
    uniform = np.moveaxis(np.random.default_rng(0).random((2, 2, n)), -1, 0)
    expected = np.where(uniform[:, 0] < 0.25, 1, 3)
    assert np.array_equal(arms[:, 0], expected)
    steps = np.cumsum(probs[1])
    assert (uniform[:, 1] < steps[arms[:, 1]]).all()
    assert (uniform[:, 1] >= steps[arms[:, 1]] - probs[1][arms[:, 1]] - 1e-15).all()


def test_draws_for_each_group_follow_their_own_distribution():
    probs = np.broadcast_to([[0.0, 0.3, 0.7], [1.0, 0.0, 0.0]], (20_000, 2, 3))
    arms = draw_each(probs, 3, np.random.default_rng(0))
    assert arms.shape == (20_000, 2, 3)
    assert not arms[:, 1].any()
    assert set(np.unique(arms[:, 0])) == {1, 2}
    assert (arms[:, 0] == 1).mean() == pytest.approx(0.3, abs=0.01)


def test_streamed_moments_are_those_of_the_gradients(monkeypatch):
    monkeypatch.setattr(sampling, "CHUNK_ROLLOUTS", 1000)
    world = random_world(np.random.default_rng(0), policies=2)
    design = {"own": 3, "peers": 3, "n": 1234}
    gradients = sampling.gradients(world, SGT(), **design)
    moments = sampling.moments(world, SGT(), **design)
    np.testing.assert_allclose(moments.mean, gradients.mean(0), rtol=1e-10, atol=1e-15)
    np.testing.assert_allclose(
        moments.covariance_trace, gradients.var(0, ddof=1).sum(-1), rtol=1e-10
    )
    np.testing.assert_allclose(moments.covariance()[1], np.cov(gradients[:, 1].T), atol=1e-12)


def test_too_few_estimates_are_refused():
    world = World.tabular([[[0.5, 0.5]]], [[0.0, 1.0]])
    with pytest.raises(ValueError, match="n=0"):
        sampling.gradients(world, GRPO(), own=2, peers=0, n=0)
    with pytest.raises(ValueError, match="n=1"):
        sampling.moments(world, GRPO(), own=2, peers=0, n=1)


def test_moments_do_not_depend_on_the_number_of_processes():
    world = random_world(np.random.default_rng(5), policies=2, contexts=2, arms=4)
    design = {"own": 4, "peers": 4, "n": 20_000, "seed": 3}
    size = chunk_size(world, Design.of(world, receiver=0, own=4, peers=4))
    assert size < 20_000  # several chunks
    alone, together = (sampling.moments(world, SGT(), n_jobs=k, **design) for k in (1, 2))
    for name in ("mean", "covariance_trace", "support_gain", "mean_se"):
        assert np.array_equal(getattr(alone, name), getattr(together, name))


def test_chunks_are_bounded_however_large_the_world():
    world = random_world(np.random.default_rng(5), policies=2, contexts=3, arms=1000)
    design = Design.of(world, receiver=0, own=8, peers=8)
    size = chunk_size(world, design)
    assert size * world.n_contexts * world.n_arms <= sampling.CHUNK_ENTRIES
    assert size * world.n_contexts * design.rollouts <= sampling.CHUNK_ROLLOUTS


@pytest.mark.parametrize("n_jobs", [0, 1.5, True])
def test_impossible_numbers_of_processes_are_refused(n_jobs):
    world = random_world(np.random.default_rng(5))
    with pytest.raises(ValueError, match="n_jobs="):
        sampling.moments(world, SGT(), own=2, peers=2, n=100, n_jobs=n_jobs)


def test_progress_is_shown_when_asked_for(capsys):
    world = random_world(np.random.default_rng(5))
    sampling.moments(world, SGT(), own=2, peers=2, n=50_000, progress=True)
    assert "sgt: 50000 draws" in capsys.readouterr().out
