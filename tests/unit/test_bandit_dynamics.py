"""Learning curves: what is recorded, and how policies move."""

import numpy as np
import pytest

from bandit import World, dynamics, exact
from bandit.design import Design
from bandit.probes import GRPO, SGT, XGRPO
from bandit.worlds import random_world, specialists

COLUMNS = [
    "step",
    "replica",
    "policy",
    "value",
    "rescue_value",
    "entropy",
    "gradient_norm",
    "overlap",
    "collapsed",
]


def curve(world, probe, **settings):
    return dynamics.run(world, probe, **{"own": 4, "peers": 4, "replicas": 3, **settings})


def test_frame_starts_at_the_world_and_has_one_row_for_each_step_replica_and_policy():
    world = specialists(contexts_each=2)
    frame = curve(world, SGT(), steps=2)
    assert list(frame.columns) == COLUMNS
    assert len(frame) == 3 * 3 * 2
    start = frame[frame["step"] == 0]
    for policy, value in enumerate(world.value):
        np.testing.assert_allclose(start[start["policy"] == policy]["value"], value)
    np.testing.assert_allclose(start["rescue_value"], 0.005)
    assert start["gradient_norm"].isna().all()
    assert (start["overlap"] == 0).all()
    assert frame[frame["step"] > 0]["gradient_norm"].notna().all()


def test_runs_are_a_function_of_the_seed():
    world = specialists(contexts_each=1)
    first, again, other = (curve(world, SGT(), steps=3, seed=seed) for seed in (1, 1, 2))
    assert first.equals(again)
    assert not first.equals(other)


def test_first_step_is_the_exact_mean_on_average():
    world = random_world(np.random.default_rng(0), policies=2, contexts=2, arms=4)
    lr = 1e-3
    frame = curve(world, GRPO(), steps=1, lr=lr, replicas=20_000)
    for policy in range(2):
        mean = exact.moments(world, GRPO(), receiver=policy, own=4, peers=0).mean
        slope = (world.weights[:, None] ** 2 * mean * world.true_gradient(policy)).sum()
        rows = frame[(frame["policy"] == policy) & (frame["step"] == 1)]
        rise = (rows["value"] - world.value[policy]) / lr
        assert rise.mean() == pytest.approx(slope, abs=4 * rise.std() / np.sqrt(len(rise)) + lr)


def test_each_policy_has_its_own_rule_and_rate():
    world = specialists(contexts_each=1)
    frame = curve(world, [GRPO(), SGT()], steps=5, lr=[0.0, 4.0])
    last = frame[frame["step"] == 5].groupby("policy")["value"].mean()
    assert last[0] == pytest.approx(world.value[0])
    assert last[1] > world.value[1] + 0.01


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 8.0), ("adam", 0.2), ("natural", 1.0)])
def test_rescue_needs_outcome_sharing_whatever_the_optimizer(optimizer, lr):
    world = specialists(contexts_each=1, weak=1e-6)
    settings = {"steps": 60, "lr": lr, "optimizer": optimizer, "replicas": 8, "own": 8, "peers": 8}
    alone = dynamics.summary(dynamics.run(world, GRPO(), **settings))
    shared = dynamics.summary(dynamics.run(world, SGT(), **settings))
    assert (alone["rescued_share"] == 0).all()
    assert np.isinf(alone["time_to_rescue"]).all()
    assert (shared["rescued_share"] == 1).all()
    assert (shared["time_to_rescue"] < 60).all()
    assert (shared["final_value"] > alone["final_value"] + 0.3).all()


def test_clipping_bounds_the_step_and_reports_the_norm_before_it():
    world = specialists(contexts_each=1)
    free = curve(world, SGT(), steps=1, lr=1.0)
    clipped = curve(world, SGT(), steps=1, lr=1.0, max_norm=1e-9)
    np.testing.assert_array_equal(free["gradient_norm"], clipped["gradient_norm"])
    np.testing.assert_allclose(clipped["value"], np.tile(world.value, 6), atol=1e-8)


def test_collapse_is_a_fall_from_the_best_and_is_remembered():
    world = World.tabular([[[0.9, 0.1]], [[0.5, 0.5]]], [[1.0, 0.0]])
    # climbing backwards: the value falls until the gradient dies
    frame = curve(world, GRPO(), steps=40, lr=[-4.0, 4.0], collapse=0.2)
    share = dynamics.summary(frame)["collapse_share"]
    assert share[0] == 1.0
    assert share[1] == 0.0
    for _, run in frame[frame["policy"] == 0].groupby("replica"):
        assert run["collapsed"].is_monotonic_increasing
        assert (run["value"].iloc[0] - run["value"][run["collapsed"]].iloc[0]) >= 0.2


def test_solved_sets_overlap_as_a_jaccard_index():
    # policy 0 solves contexts 0 and 1, policy 1 solves 1 and 2, policy 2 none
    hit = np.array([[0.9, 0.9, 0.1], [0.1, 0.9, 0.9], [0.1, 0.1, 0.1]])
    world = World.tabular(np.stack([hit, 1 - hit], axis=-1), [[1.0, 0.0]] * 3)
    frame = curve(world, GRPO(), steps=0, replicas=1)
    np.testing.assert_allclose(frame["overlap"], [(1 / 3 + 0) / 2, (1 / 3 + 0) / 2, 0.0])


def test_worlds_without_a_rescue_set_or_peers_have_no_such_figures():
    world = World.tabular([[[0.5, 0.5]]], [[1.0, 0.0]])
    frame = curve(world, GRPO(), steps=2, peers=0)
    assert frame["rescue_value"].isna().all()
    assert frame["overlap"].isna().all()
    row = dynamics.summary(frame).loc[0]
    assert np.isnan(row[["rescue_value", "rescued_share", "time_to_rescue"]].astype(float)).all()


def test_arms_of_probability_zero_stay_closed():
    world = World.tabular([[[0.0, 1.0]], [[1.0, 0.0]]], [[1.0, 0.0]])
    for optimizer in ("sgd", "adam", "natural"):
        frame = curve(world, SGT(), steps=5, optimizer=optimizer)
        assert (frame[frame["policy"] == 0]["value"] == 0.0).all()


def test_peers_may_be_seen_in_part_and_dead_groups_drawn_again():
    world = specialists(policies=3, contexts_each=1)
    partial = curve(world, XGRPO(), steps=3, peers={0: 2, 1: 6})
    again = curve(world, XGRPO(), steps=3, peers={0: 2, 1: 6}, redraws=3)
    assert not partial.equals(again)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": [1.0]}, "lr has 1 entries"),
        ({"lr": float("nan")}, "lr="),
        ({"steps": -1}, "steps=-1"),
        ({"replicas": 0}, "replicas=0"),
        ({"optimizer": "lion"}, r"optimizer=\['lion', 'lion'\]"),
        ({"max_norm": 0.0}, "max_norm=0.0"),
        ({"collapse": 0.0}, "collapse=0.0"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        curve(specialists(contexts_each=1), GRPO(), **{"steps": 1, **settings})


def test_curves_do_not_depend_on_the_number_of_processes():
    world = specialists(contexts_each=1)
    settings = {"steps": 2, "own": 8, "peers": 8, "seed": 2}
    designs = [Design.of(world, receiver=i, own=8, peers=8) for i in range(2)]
    settings["replicas"] = dynamics.replica_chunk(world, designs) + 3
    assert dynamics.run(world, SGT(), **settings).equals(
        dynamics.run(world, SGT(), n_jobs=2, **settings)
    )


def test_each_policy_may_have_its_own_optimizer():
    world = specialists(contexts_each=1, weak=0.1)
    mixed = curve(world, GRPO(), steps=3, optimizer=["adam", "sgd"])
    adam = curve(world, GRPO(), steps=3, optimizer="adam")
    sgd = curve(world, GRPO(), steps=3, optimizer="sgd")
    for policy, alike in enumerate((adam, sgd)):
        ours = mixed[(mixed["policy"] == policy) & (mixed["step"] == 1)]
        theirs = alike[(alike["policy"] == policy) & (alike["step"] == 1)]
        assert ours.equals(theirs)
    assert not adam.equals(sgd)


def test_progress_is_shown_when_asked_for(capsys):
    curve(specialists(contexts_each=1), GRPO(), steps=3, progress=True)
    assert "learning, 3 replicas" in capsys.readouterr().out


def test_every_figure_of_the_summary_has_its_interval():
    frame = curve(specialists(contexts_each=1, weak=0.05), SGT(), steps=30, replicas=30, lr=2.0)
    table = dynamics.summary(frame)
    plain = [name for name in table if not name.endswith(("_low", "_high"))]
    assert {"time_to_rescue", "gradient_norm_q0.95", "entropy", "overlap"} < set(plain)
    assert len(table.columns) == 3 * len(plain)
    for name in plain:
        low, middle, high = (table[name + end] for end in ("_low", "", "_high"))
        known = middle.notna()
        assert ((low <= middle) & (middle <= high))[known].all(), name
    assert (table["final_value_low"] < table["final_value_high"]).all()
