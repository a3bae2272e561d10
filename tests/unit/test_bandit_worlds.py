"""Worlds and designs: what they hold, and what they refuse."""

import numpy as np
import pytest

from bandit import World, exact, worlds
from bandit.design import Design
from bandit.probes import SGT
from bandit.worlds import random_world, rare_success, specialists

PROBS = [[[0.2, 0.8], [0.5, 0.5]], [[1.0, 0.0], [0.3, 0.7]]]
REWARDS = [[1.0, 0.0], [0.0, 1.0]]


def test_quantities_of_a_small_world():
    world = World.tabular(PROBS, REWARDS, weights=[1, 3])
    np.testing.assert_allclose(world.success_probability, [[0.2, 0.5], [1.0, 0.7]])
    np.testing.assert_allclose(world.weights, [0.25, 0.75])
    np.testing.assert_allclose(world.value, [0.425, 0.775])
    np.testing.assert_allclose(world.true_gradient(0), [[0.16, -0.16], [-0.25, 0.25]])
    np.testing.assert_allclose(world.log_success_gradient(0)[0], [0.8, -0.8])


def test_true_gradient_is_the_derivative_of_the_value():
    world = random_world(np.random.default_rng(0), contexts=1, arms=4, levels=(0.0, 0.4, 1.0))
    logits, step = np.log(world.probs[0, 0]), 1e-6
    slopes = []
    for k in range(4):
        moved = np.exp(logits + step * np.eye(4)[k])
        slopes.append((moved / moved.sum() - world.probs[0, 0]) @ world.rewards[0] / step)
    np.testing.assert_allclose(world.true_gradient(0)[0], slopes, atol=1e-6)


def test_arrays_are_read_only_copies():
    probs = np.array(PROBS)
    world = World.tabular(probs, REWARDS)
    probs[0, 0] = [0.5, 0.5]
    assert world.probs[0, 0, 0] == 0.2
    with pytest.raises(ValueError, match="read-only"):
        world.probs[0, 0, 0] = 1.0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"probs": [0.5, 0.5]}, r"probs has shape \(2,\)"),
        ({"probs": [[[0.5, 0.6], [0.5, 0.5]]]}, "policy 0 in context 0 sum to 1.1"),
        ({"probs": [[[1.5, -0.5], [0.5, 0.5]]]}, r"probs\[\(0, 0, 1\)\] = -0.5"),
        ({"probs": [[[np.nan, 1.0], [0.5, 0.5]]]}, "is not a probability"),
        ({"rewards": [[1.0, 0.0]]}, r"rewards has shape \(1, 2\); expected \(2, 2\)"),
        ({"rewards": [[1.0, np.inf], [0.0, 1.0]]}, "rewards has a value that is not finite"),
        ({"weights": [1.0]}, r"weights has shape \(1,\)"),
        ({"weights": [1.0, -1.0]}, "weights must be finite and >= 0"),
        ({"weights": [0.0, 0.0]}, "positive sum"),
        ({"success_threshold": np.nan}, "success_threshold"),
    ],
)
def test_impossible_worlds_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        World.tabular(**{"probs": PROBS, "rewards": REWARDS, **change})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"receiver": 2}, "receiver=2 is not a policy"),
        ({"receiver": -1}, "receiver=-1"),
        ({"own": 0}, "own=0"),
        ({"own": 2.5}, "own=2.5"),
        ({"own": True}, "own=True"),
        ({"peers": -1}, r"peers\[1\]=-1"),
        ({"peers": {0: 3}}, "peers names policy 0"),
        ({"peers": {7: 3}}, "peers names policy 7"),
        ({"redraws": -1}, "redraws=-1"),
    ],
)
def test_impossible_designs_are_refused(change, message):
    world = World.tabular(PROBS, REWARDS)
    with pytest.raises(ValueError, match=message):
        Design.of(world, **{"receiver": 0, "own": 2, "peers": 2, **change})


def test_a_number_of_peers_means_that_many_of_every_other_policy():
    world = random_world(np.random.default_rng(0), policies=3)
    design = Design.of(world, receiver=1, own=np.int64(4), peers=2)
    assert design.peers == ((0, 2), (2, 2))
    assert design.rollouts == 8
    assert design.peer_source.tolist() == [0, 0, 2, 2]
    assert Design.of(world, receiver=1, own=4, peers={2: 3, 0: 0}).peers == ((2, 3),)


def test_example_worlds_have_the_probabilities_they_promise():
    np.testing.assert_allclose(rare_success(1e-3).success_probability[:, 0], [1e-3, 0.5])
    world = specialists(policies=3, contexts_each=2, weak=0.01, strong=0.7)
    np.testing.assert_allclose(
        world.success_probability, np.where(np.repeat(np.eye(3), 2, axis=1), 0.7, 0.01)
    )
    with pytest.raises(ValueError, match="weak=2"):
        specialists(weak=2)
    with pytest.raises(ValueError, match="p=-1"):
        rare_success(-1)


@pytest.mark.parametrize("bound", [1.5, 50.0])
def test_random_worlds_keep_their_ratio_bound(bound):
    for seed in range(20):
        world = random_world(np.random.default_rng(seed), policies=3, max_ratio=bound)
        ratio = world.probs.max(0) / world.probs.min(0)
        assert ratio.max() <= bound * (1 + 1e-9)
    with pytest.raises(ValueError, match="max_ratio"):
        random_world(np.random.default_rng(0), max_ratio=1.0)


@pytest.mark.parametrize("name", worlds.EXAMPLES)
def test_every_named_world_has_a_story_and_something_to_share(name):
    example = getattr(worlds, name)
    assert len(example.__doc__.splitlines()) >= 3
    settings = {"rare_success": (0.01,), "random_world": (np.random.default_rng(0),)}
    world = example(*settings.get(name, ()))
    assert world.n_policies >= 2
    gain = exact.moments(world, SGT(), own=8, peers=8).fisher_gain
    assert np.nanmax(gain) > 0


def test_crowded_successes_are_the_case_in_which_plain_steps_go_down():
    moments = exact.moments(worlds.crowded_successes(), SGT(), own=8, peers=8)
    assert moments.support_gain[0] < 0 < moments.fisher_gain[0]


def test_dead_groups_get_deader_from_prompt_to_prompt():
    dead = exact.dead_probability(worlds.dead_groups(), own=8)
    assert (np.diff(dead) > 0).all()
    assert dead[-1] > 0.999


def test_a_world_from_success_probabilities_has_them():
    world = worlds.from_success([[0.9, 0.02], [0.1, 0.5], [0.3, 0.3]], arms=6)
    np.testing.assert_allclose(world.success_probability, [[0.9, 0.02], [0.1, 0.5], [0.3, 0.3]])
    ratios = world.probs[:, None] / world.probs[None]
    masses = world.success_probability[:, None] / world.success_probability[None]
    assert (ratios[..., :2] <= worlds.MAX_SKEW * masses[..., None] * (1 + 1e-12)).all()
    for wrong in ([0.1, 0.2], []):
        with pytest.raises(ValueError, match="success has shape"):
            worlds.from_success(wrong)
    with pytest.raises(ValueError, match=r"success=\[\[1.2\]\] is not allowed"):
        worlds.from_success([[1.2]])
