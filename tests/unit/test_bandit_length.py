"""The length world against the definition of the estimate, and against the world of its strings."""

import itertools

import numpy as np
import pandas as pd
import pytest

from bandit import exact, tradeoff
from bandit.length import (
    LengthWorld,
    long_answer,
    moments,
    plane_by_length,
    token_moments,
    weights,
)
from bandit.probes import GRPO, PRP, SGT, XGRPO, Group, Probe, RatioRule, UngatedNLL
from paper_figures import length as figure

RULES = {
    "GRPO": GRPO(),
    "XGRPO": XGRPO(peer_share=0.3),
    "sequence": PRP(),
    "sequence, capped": PRP(cap=1.2),
    "length normalised": PRP(ratio="length_normalised"),
    "length normalised, capped": PRP(ratio="length_normalised", cap=1.1),
    "block": PRP(ratio="block"),
    "block, capped": PRP(ratio="block", cap=1.3),
    "no ratio": PRP(ratio="none"),
    "SGT": SGT(weight=0.7),
    "no gate": UngatedNLL(weight=0.7),
}
every_rule = pytest.mark.parametrize("probe", RULES.values(), ids=RULES.keys())


def random_length_world(
    seed: int, length: int, tokens: int, policies: int = 2, free: bool = False
) -> LengthWorld:
    rng = np.random.default_rng(seed)
    right = np.arange(tokens) < rng.integers(1, tokens, size=(length, 1))
    if free:
        right[-1] = True
    return LengthWorld.of(rng.dirichlet(np.full(tokens, 2.0), size=(policies, length)), right)


def response_weights(world: LengthWorld, rule: RatioRule | None, peer: int) -> np.ndarray:
    """Weight of a peer's response on the score at each position, by the definition of the ratio."""
    strings, positions = world.strings(), np.arange(world.length)
    token = world.probs[:, positions, strings]  # (N, strings, L)
    drawn = token[peer] > 0  # other responses never reach the receiver
    ratios = np.where(drawn, token[0] / np.where(drawn, token[peer], 1.0), 1.0)
    whole = np.broadcast_to(ratios.prod(-1, keepdims=True), ratios.shape)
    if rule is None or rule.kind == "none":
        return np.ones_like(ratios)
    cut = {"sequence": whole, "length_normalised": whole ** (1 / world.length), "block": ratios}
    return np.minimum(cut[rule.kind], rule.cap)


def by_definition(world: LengthWorld, probe: Probe, own: int, peers: dict[int, int]) -> dict:
    """Mean, tr Cov and support gain from every group of responses that can be drawn."""
    strings, positions = world.strings(), np.arange(world.length)
    sources = [0] * own + [j for j, m in peers.items() for _ in range(m)]
    drawn = np.array(list(itertools.product(range(len(strings)), repeat=len(sources))))
    chance = np.prod(
        [world.probs[j, positions, strings].prod(-1)[drawn[:, i]] for i, j in enumerate(sources)],
        axis=0,
    )
    rewards = world.right[positions, strings].all(-1).astype(float)
    scores = np.eye(world.probs.shape[2])[strings] - world.probs[0]  # (strings, L, V)
    group = Group(
        own_rewards=rewards[drawn[:, :own]],
        peer_rewards=rewards[drawn[:, own:]],
        peer_source=np.array(sources[own:]),
    )
    mean, restricted, square = np.zeros(scores.shape[1:]), np.zeros(scores.shape[1:]), 0.0
    for likelihood, credit in probe.outcomes(group):
        g = np.einsum("bi,bilv->blv", credit.own_weight, scores[drawn[:, :own]])
        for i, j in enumerate(sources[own:]):
            response = drawn[:, own + i]
            weight = response_weights(world, credit.peer_ratio, j)[response][..., None]
            if credit.peer_ratio is not None:
                g += credit.peer_weight[:, i, None, None] * weight * scores[response]
            g += credit.nll_weight[:, i, None, None] * scores[response]
        mass = chance * likelihood
        mean += np.einsum("b,blv->lv", mass, g)
        restricted += np.einsum("b,blv->lv", mass * ~group.own_success.any(-1), g)
        square += mass @ (g**2).sum((1, 2))
    p = (world.probs[0, positions, strings].prod(-1) * rewards).sum()
    given_success = np.einsum(
        "s,slv->lv", world.probs[0, positions, strings].prod(-1) * rewards / p, scores
    )
    return {
        "mean": mean,
        "covariance_trace": square - (mean**2).sum(),
        "support_gain": (given_success * restricted).sum(),
        "true_gradient": p * given_success,
    }


@every_rule
@pytest.mark.parametrize(
    ("length", "tokens", "own", "peers"),
    [(2, 2, 2, {1: 2}), (3, 2, 2, {1: 1}), (2, 3, 1, {1: 2}), (2, 2, 2, {1: 1, 2: 1})],
    ids=["two tokens", "three positions", "three tokens", "two peers"],
)
def test_moments_are_those_of_all_groups_of_responses(probe, length, tokens, own, peers):
    world = random_length_world(3, length, tokens, policies=1 + len(peers), free=length == 3)
    exactly = moments(world, probe, own=own, peers=peers)
    for name, value in by_definition(world, probe, own, peers).items():
        np.testing.assert_allclose(
            getattr(exactly, name), value, rtol=1e-9, atol=1e-13, err_msg=name
        )


@pytest.mark.parametrize(
    "probe",
    [GRPO(), XGRPO(), PRP(), PRP(cap=1.2), PRP(ratio="none"), SGT(), UngatedNLL()],
    ids=lambda probe: repr(probe),
)
def test_rules_on_whole_responses_are_those_of_the_world_of_strings(probe):
    world, design = random_length_world(5, 4, 3), {"own": 4, "peers": 5}
    strings, ours = world.to_world(), moments(world, probe, **design)
    theirs = exact.moments(strings, probe, **design)
    phi = np.eye(3)[world.strings()].reshape(81, 12)
    np.testing.assert_allclose(ours.mean.ravel(), theirs.mean[0] @ phi, rtol=1e-9, atol=1e-13)
    np.testing.assert_allclose(
        ours.covariance_trace, np.trace(phi.T @ theirs.covariance()[0] @ phi), rtol=1e-9
    )
    gain = (strings.log_success_gradient(0)[0] @ phi) @ (theirs.mean_without_success[0] @ phi)
    np.testing.assert_allclose(ours.support_gain, gain, rtol=1e-9, atol=1e-13)


def test_ess_and_chi_squared_are_those_of_the_world_of_strings():
    world, rules = random_length_world(5, 4, 3), {"PRP": PRP(), "capped": PRP(cap=1.2)}
    strings = tradeoff.plane(world.to_world(), rules, own=2, peers=6)
    ours = plane_by_length([4], rules, world=lambda length: world, own=2, peers=6)
    for name in ("ess", "chi2"):
        np.testing.assert_allclose(ours[name], strings[name], rtol=1e-9, err_msg=name)
    assert ours["chi2"][0] == world.chi_squared(0, 1)


@every_rule
def test_one_token_is_one_arm(probe):
    world = random_length_world(8, 1, 5, policies=3)
    ours = moments(world, probe, own=3, peers=2)
    arms = exact.moments(world.to_world(), probe, own=3, peers=2)
    for name in ("mean", "true_gradient", "covariance_trace", "support_gain", "fisher_gain"):
        np.testing.assert_allclose(
            np.squeeze(getattr(ours, name)),
            getattr(arms, name)[0],
            rtol=1e-12,
            atol=1e-12,
            err_msg=name,
        )


def test_the_fisher_gain_is_the_gain_of_a_natural_step():
    world = random_length_world(2, 3, 3)
    probe, pi, step = SGT(), world.probs[0], 1e-6
    base, placed = moments(world, GRPO(), own=1, peers=0), moments(world, probe, own=1, peers=2)
    # with one own rollout the whole gradient comes from rescues, so from groups without a success
    assert not base.mean.any()
    moved = pi * np.exp(step * placed.mean / pi)
    moved /= moved.sum(-1, keepdims=True)
    after = LengthWorld.of([moved], world.right).success_probability[0]
    before = world.success_probability[0]
    assert np.log(after / before) / step == pytest.approx(placed.fisher_gain, rel=1e-4)


def test_tokens_that_one_policy_never_plays():
    probs = np.array([[[0.5, 0.5, 0.0], [0.3, 0.3, 0.4]], [[0.5, 0.0, 0.5], [0.2, 0.0, 0.8]]])
    world = LengthWorld.of(probs, [True, True, False])
    assert world.chi_squared(0, 1) == np.inf
    for probe in RULES.values():
        exactly = moments(world, probe, own=2, peers=1)
        expected = by_definition(world, probe, 2, {1: 1})
        np.testing.assert_allclose(exactly.mean, expected["mean"], rtol=1e-9, atol=1e-13)
        assert exactly.covariance_trace == pytest.approx(expected["covariance_trace"], rel=1e-9)


def test_success_that_cannot_happen_or_cannot_fail():
    never = LengthWorld.of([[0.0, 1.0], [0.5, 0.5]], [True, False], length=3)
    assert np.isnan(moments(never, SGT(), own=2, peers=2).support_gain)
    assert moments(never, SGT(), own=2, peers=2).mean.any()
    always = LengthWorld.of([[0.4, 0.6], [0.5, 0.5]], [True, True], length=3)
    for probe in RULES.values():
        assert moments(always, probe, own=2, peers=2).support_gain == 0.0
    assert moments(always, PRP(), own=2, peers=2).covariance_trace == 0.0


def test_moments_beyond_floating_point_are_infinite_not_undefined():
    probs = [[[0.999, 0.001, 0.0]] * 400, [[0.001, 0.998, 0.001]] * 400]
    world = LengthWorld.of(probs, [True, True, False])
    placed = moments(world, PRP(), own=4, peers=4)
    assert placed.covariance_trace == np.inf
    assert placed.ess == 0.0
    assert world.chi_squared(0, 1) == np.inf
    assert np.isfinite(placed.mean).all()


def test_a_thousand_tokens_cost_no_enumeration():
    world = long_answer(1000)
    with pytest.raises(ValueError, match="forms none of them"):
        world.strings()
    placed = moments(world, PRP(ratio="block"), own=8, peers=8)
    assert np.isfinite(placed.covariance_trace)


@pytest.mark.parametrize("rule", [RatioRule("sequence", 2.0), RatioRule("length_normalised", 1.5)])
def test_a_cap_that_is_never_reached_changes_nothing(rule):
    world = random_length_world(1, 5, 2)
    far, free = RatioRule(rule.kind, 1e9), RatioRule(rule.kind)
    for capped, exactly in zip(
        token_moments(world.probs[0], world.probs[1], world.right, far),
        token_moments(world.probs[0], world.probs[1], world.right, free),
        strict=True,
    ):
        np.testing.assert_allclose(capped, exactly, rtol=1e-10)
    first, second = token_moments(world.probs[0], world.probs[1], world.right, rule)
    assert (second <= rule.cap * first * (1 + 1e-12)).all()


def test_a_cap_with_too_many_ratios_names_the_way_out(monkeypatch):
    monkeypatch.setattr(weights, "MAX_ATOMS", 100)
    world = random_length_world(1, 8, 3)
    with pytest.raises(ValueError, match="use cap=inf, ratio='block'"):
        moments(world, PRP(cap=2.0), own=2, peers=2)
    assert moments(world, PRP(ratio="block", cap=2.0), own=2, peers=2).covariance_trace > 0


def test_long_answers_keep_their_success_probabilities():
    for length in (1, 2, 3, 64):
        world = long_answer(length, p=0.02, q=0.7)
        np.testing.assert_allclose(world.success_probability, [0.02, 0.7], rtol=1e-12)
    world = long_answer(4, style=0.5, late=0.75)
    slips = -np.log(1 - world.probs[:, :, 2])
    np.testing.assert_allclose(slips[0], -np.log(0.05) * np.array([1, 1, 3, 3]) / 8)
    np.testing.assert_allclose(slips[1], -np.log(0.5) * np.array([3, 3, 1, 1]) / 8)


def test_the_frame_has_a_row_for_each_length_and_label():
    frame = plane_by_length([1, 2], {"GRPO": GRPO(), "block": PRP(ratio="block")}, own=2, peers=2)
    assert list(zip(frame["length"], frame["label"], strict=True)) == [
        (1, "GRPO"),
        (1, "block"),
        (2, "GRPO"),
        (2, "block"),
    ]
    grpo, block = (frame[frame["label"] == label] for label in ("GRPO", "block"))
    assert (grpo["relative_cost"] == 1).all()
    assert grpo[["chi2", "ess", "peer_cosine", "peer_shrinkage"]].isna().all(axis=None)
    assert block.notna().all(axis=None)
    placed = moments(long_answer(2), PRP(ratio="block"), own=2, peers=2)
    row = block[block["length"] == 2].squeeze()
    assert row["stability_cost"] == placed.covariance_trace
    assert row["peer_cosine"] == placed.peer_cosine
    own_part = placed.mean - placed.peer_mean
    direction = placed.true_gradient / np.square(placed.true_gradient).sum()
    assert row["shrinkage"] - row["peer_shrinkage"] == pytest.approx((own_part * direction).sum())
    assert isinstance(frame, pd.DataFrame)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LengthWorld.of([[0.5, 0.5]], [True, False]), "together with a length"),
        (lambda: LengthWorld.of([[[0.5, 0.5]]], [True, False], 2), "together with a length"),
        (lambda: LengthWorld.of([[0.5, 0.5]], [True, False], 0), "length=0"),
        (lambda: LengthWorld.of([[0.5, 0.5]], [1, 0], 2), "expected bool"),
        (lambda: LengthWorld.of([[0.5, 0.5]], [True], 2), "expected bool of shape"),
        (lambda: LengthWorld.of(np.zeros((1, 0, 2)), [True, False]), "no empty axis"),
        (lambda: LengthWorld.of([[[1, 0]], [[0.5, 0.6]]], [True, False]), r"probs\[1, 0\]"),
        (lambda: LengthWorld.of([[[np.nan, 1]]], [True, False]), r"probs\[0, 0\]"),
        (lambda: LengthWorld.of([[[np.inf, -np.inf]]], [True, False]), r"probs\[0, 0\]"),
        (lambda: long_answer(4, p=0.0), "p=0.0"),
        (lambda: long_answer(0), "length=0"),
        (lambda: plane_by_length([], {"GRPO": GRPO()}, own=2, peers=2), "expected one of each"),
        (lambda: moments(long_answer(2), SGT(), own=0, peers=2), "own=0"),
        (lambda: moments(long_answer(2), SGT(), own=2, peers={0: 2}), "peers names policy 0"),
    ],
)
def test_what_is_wrong_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_inputs_are_copied_and_held_read_only():
    probs = np.full((2, 3, 2), 0.5)
    world = LengthWorld.of(probs, [True, False])
    probs[0] = 0.0
    assert (world.probs == 0.5).all()
    for array in (world.probs, world.right):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 0


REDUCED = figure.Sweep(lengths=(1, 2, 4), own=3, peers=3)


def test_the_figure_draws_every_figure_of_the_frame():
    frame = figure.compute(REDUCED)
    for axes, column in zip(figure.plot(frame).axes, figure.PANELS, strict=True):
        drawn = {
            (line.get_label(), *map(float, point))
            for line in axes.lines
            if line.get_label() in REDUCED.rules
            for point in line.get_xydata()
        }
        rows = frame[frame[column].notna()]
        expected = zip(rows["label"], rows["length"], rows[column], strict=True)
        assert drawn == set(expected), column


def test_the_caption_states_the_frames_own_numbers():
    frame = figure.compute(REDUCED)
    doubled = frame.assign(chi2=2 * frame["chi2"])
    last = frame[(frame["length"] == 4) & (frame["label"] == "PRP, sequence")]["chi2"].item()
    assert f"to {last:.2g} and the cost" in figure.caption(frame)
    assert f"to {2 * last:.2g} and the cost" in figure.caption(doubled)
