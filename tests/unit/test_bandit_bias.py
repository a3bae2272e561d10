"""The bias of ratio-weighted sharing, by cause."""

from dataclasses import fields

import numpy as np
import pytest

from bandit import Residual, World, exact
from bandit.probes import PRP, SGT
from bandit.worlds import random_world, shared_representation

SIZES = {"own": 3, "peers": 3}


def world(levels=(0.0, 1.0)) -> World:
    return random_world(np.random.default_rng(0), policies=3, contexts=2, arms=5, levels=levels)


def size(part) -> float:
    return float(np.abs(part).max())


@pytest.mark.parametrize(
    "probe", [PRP(), PRP(cap=1.5), PRP(ratio="none"), PRP(scale="none", cap=2.0)], ids=str
)
@pytest.mark.parametrize("levels", [(0.0, 1.0), (0.0, 0.3, 1.0)])
def test_the_parts_add_up_to_the_bias_of_the_exact_mean(probe, levels):
    residual = Residual(mu=0.1, sigma={1: 0.4}, drop={2: [0.1, 0.2, 0.0, 0.3, 0.0]}, gate=0.1)
    parts = exact.bias(world(levels), probe, residual=residual, **SIZES)
    moments = exact.moments(world(levels), probe, residual=residual, **SIZES)
    np.testing.assert_allclose(parts.total, moments.mean - moments.true_gradient, atol=1e-13)
    added = sum(getattr(parts, f.name) for f in fields(parts) if f.name != "total")
    np.testing.assert_allclose(added, parts.total, atol=1e-13)


def test_each_part_is_there_only_with_its_cause():
    plain = exact.bias(world(), PRP(), **SIZES)
    kappa = exact.moments(world(), PRP(), **SIZES).kappa
    true = world().true_gradient(0)
    np.testing.assert_allclose(plain.normalisation, (kappa - 1)[:, None] * true, atol=1e-13)
    assert size(plain.missing_support) < 1e-13
    assert size(plain.residual) < 1e-13
    assert size(plain.truncation) < 1e-13
    capped = exact.bias(world(), PRP(cap=1.2), **SIZES)
    assert size(capped.truncation) > 1e-4
    np.testing.assert_allclose(capped.normalisation, plain.normalisation, atol=1e-14)
    disturbed = exact.bias(world(), PRP(), residual=Residual(sigma=0.5), **SIZES)
    assert size(disturbed.residual) > 1e-4
    assert size(disturbed.truncation) < 1e-13
    weightless = exact.bias(world(), PRP(ratio="none"), residual=Residual(sigma=0.5), **SIZES)
    assert size(weightless.residual) == 0
    assert size(weightless.truncation) > 1e-3


def test_arms_that_a_peer_never_plays_are_missing_support():
    probs = [[[0.3, 0.3, 0.2, 0.2]], [[0.5, 0.0, 0.25, 0.25]]]
    holes = World.tabular(probs, [[1.0, 1.0, 0.0, 0.0]])
    parts = exact.bias(holes, PRP(scale="none"), **SIZES)
    # of the receiver's successes, a peer's stand for arm 0 only
    assert parts.missing_support[0, 1] < 0
    assert size(parts.residual) < 1e-13
    assert size(parts.truncation) < 1e-13


def test_evenly_lost_texts_are_no_missing_support():
    parts = exact.bias(world(), PRP(), residual=Residual(drop=0.3), **SIZES)
    assert size(parts.missing_support) < 1e-13
    uneven = Residual(drop=[0.9, 0.0, 0.5, 0.0, 0.0])
    assert size(exact.bias(world(), PRP(), residual=uneven, **SIZES).missing_support) > 1e-3


def test_the_bias_is_in_the_receivers_parameters():
    shared = shared_representation(contexts=2)
    parts = exact.bias(shared, PRP(cap=2.0), **SIZES)
    moments = exact.moments(shared, PRP(cap=2.0), **SIZES)
    assert parts.total.shape == (2, 32)
    np.testing.assert_allclose(parts.total, moments.mean - moments.true_gradient, atol=1e-13)


def test_rules_without_a_ratio_have_no_such_bias():
    with pytest.raises(ValueError, match="sgt weights no rollout by a ratio"):
        exact.bias(world(), SGT(), **SIZES)
