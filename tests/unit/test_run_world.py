"""A run's world as numbers: its file, its residual, and what the report makes of two of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from bandit.policies import log_ratio
from bandit.probes import RatioRule
from mrl.config import dump, parse, parse_study
from mrl.errors import InputError
from mrl.report import figures, theory, write_report
from mrl.run_world import RunWorld, stored_worlds

PROMPTS = 6


def world(**changes: Any) -> RunWorld:
    """Two policies, right with different probability on each prompt; the last arm is the rest."""
    right = np.linspace(0.1, 0.6, PROMPTS)
    probs = np.empty((2, PROMPTS, 3))
    probs[0] = np.stack([right, 0.9 * (1 - right), 0.1 * (1 - right)], -1)
    probs[1] = np.stack([right[::-1], 0.8 * (1 - right[::-1]), 0.2 * (1 - right[::-1])], -1)
    hits = np.rint(100 * probs[..., 0]).astype(np.int64)
    counts = np.stack([hits, 100 - hits, np.zeros_like(hits)], -1)
    fields: dict[str, Any] = {
        "probs_NXK": probs,
        "canonical_NXK": probs.copy(),
        "representable_NXK": np.ones(probs.shape, np.bool_),
        "rewards_XK": np.tile([1.0, 0.0, 0.0], (PROMPTS, 1)),
        "counts_NXK": counts,
        "canonical_counts_NXK": counts,
        "policies": ("a", "b"),
        "prompt_ids": tuple(f"p{i}" for i in range(PROMPTS)),
        "questions": tuple(f"question {i}" for i in range(PROMPTS)),
        "texts": (("yes", "no"),) * PROMPTS,
        "run": "tiny",
        "round": 0,
        "prompts": PROMPTS,
        "samples": 100,
        "excess": 0.0,
    }
    return RunWorld(**fields | changes)


def after(start: RunWorld, gained: np.ndarray) -> RunWorld:
    """The same prompts after training, with so many more successes of policy a."""
    counts = start.counts_NXK.copy()
    counts[0, :, 0] += gained
    counts[0, :, 1] -= gained
    return replace(start, counts_NXK=counts, round=9)


def test_a_saved_world_comes_back_bit_for_bit(tmp_path: Path):
    start = world(texts=(("nó", "a\x00b..."),) * PROMPTS)
    for name in ("world-000000.npz", "again.npz"):
        start.save(tmp_path / name)
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "world-000000.npz").read_bytes()
    (back,) = stored_worlds(tmp_path)
    for name in RunWorld.__dataclass_fields__:
        mine, other = getattr(start, name), getattr(back, name)
        if isinstance(mine, np.ndarray):
            assert mine.dtype == other.dtype
            np.testing.assert_array_equal(mine, other)
        else:
            assert mine == other, name


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 no archive", None])
def test_a_damaged_or_missing_file_says_how_to_write_it_again(tmp_path: Path, damage):
    path = tmp_path / "world-000000.npz"
    if damage is not None:
        path.write_bytes(damage)
    with pytest.raises(InputError, match="mrl study --world-from RUN"):
        RunWorld.load(path)


def test_without_gaps_between_tokenisations_there_is_no_residual():
    residual = world().residual(0)
    assert residual.named == {1}
    assert not np.any(residual.samples[1])
    assert not np.any(residual.drop[1])
    assert not np.any(residual.gate[1])


def test_gated_ratios_carry_a_peers_mass_to_the_receivers_canonical_tokens():
    """E_peer[gate w] on a response is what the receiver gives to its canonical tokens."""
    start = world()
    canonical = start.canonical_NXK.copy()
    canonical[0, :, 0] *= 0.8
    canonical[1, :, 0] *= 0.5
    # Only one response was sampled canonically, so the pooled residual is that response's own.
    only = np.zeros_like(start.counts_NXK)
    only[1, :, 0] = 7
    measured = replace(start, canonical_NXK=canonical, canonical_counts_NXK=only).residual(0)
    ratios = log_ratio(start.probs_NXK[0], start.probs_NXK[1])
    weight, _ = measured.weight_moments(RatioRule("sequence"), ratios, 1)
    carried = (start.probs_NXK[1] * weight)[:, 0]
    np.testing.assert_allclose(carried, canonical[0, :, 0], rtol=1e-12)


def test_what_a_receiver_cannot_spell_is_dropped_and_has_no_delta():
    start = world()
    spelt, probs, canonical = (
        start.representable_NXK.copy(),
        start.probs_NXK.copy(),
        start.canonical_NXK.copy(),
    )
    spelt[0, 2, 1] = False
    probs[0, 2, 2] += probs[0, 2, 1]
    probs[0, 2, 1] = canonical[0, 2, 1] = 0.0
    canonical[0, 2, 2] = probs[0, 2, 2]
    found = replace(start, representable_NXK=spelt, probs_NXK=probs, canonical_NXK=canonical)
    residual = found.residual(0)
    assert residual.drop[1].sum() == 1.0
    assert residual.drop[1][2, 1] == 1.0
    assert not np.any(found.residual(1).drop[0])
    assert (
        len(residual.samples[1]) == start.canonical_counts_NXK[1].sum() - start.counts_NXK[1, 2, 1]
    )


def run_config(**sections: Any) -> Any:
    """A run whose policies are those of the world; nothing of it is ever loaded."""
    model = {"kind": "init", "params": {"hidden_size": 16}}
    tokenizer = {"kind": "characters", "alphabet": "01"}
    return parse(
        {
            "name": "tiny",
            "probe": {"kind": "grpo"},
            "group": {"own": 4, "peers": 4},
            "task": {"kind": "jsonl", "path": "none.jsonl"},
            "policies": [
                {"name": name, "model": model, "tokenizer": tokenizer} for name in ("a", "b")
            ],
        }
        | sections
    )


def test_a_change_in_the_predicted_proportions_is_predicted_whole():
    start = world()
    config = run_config()
    direction = theory.changes(start, start, config).query("policy == 'a'")["direction"].to_numpy()
    # GRPO moves a prompt by kappa |g*|^2: everywhere upwards.
    assert (direction > 0).all()
    gained = np.rint(10 * direction / direction.max()).astype(np.int64)
    frame = theory.changes(start, after(start, gained), config).query("policy == 'a'")
    np.testing.assert_allclose(frame["measured"], gained / 100, atol=0.01)
    np.testing.assert_allclose(frame["predicted"], frame["measured"], atol=0.02)
    assert ((frame["low"] < frame["measured"]) & (frame["measured"] < frame["high"])).all()
    (row,) = theory.agreement(frame).to_dict("records")
    assert row["rank_correlation"] > 0.9
    assert row["low"] <= row["rank_correlation"] <= row["high"]
    assert row["scale"] > 0


def test_no_change_has_no_rank_and_no_scale():
    start = world()
    frame = theory.changes(start, replace(start, round=9), run_config())
    assert (frame["measured"] == 0).all()
    assert (frame["predicted"] == 0).all()
    assert theory.agreement(frame)["rank_correlation"].isna().all()


def test_a_prompt_without_a_verdict_has_no_measured_change():
    start = world()
    counts = start.counts_NXK.copy()
    counts[0, 3] = [0, 0, 100]
    frame = theory.changes(start, replace(start, counts_NXK=counts), run_config())
    assert frame["measured"].isna().tolist() == [i == 3 for i in range(PROMPTS)] + [False] * PROMPTS
    assert theory.agreement(frame)["prompts"].tolist() == [PROMPTS - 1, PROMPTS]


def test_worlds_of_other_prompts_are_not_compared():
    start = world()
    other = replace(start, prompt_ids=start.prompt_ids[::-1], round=9)
    with pytest.raises(ValueError, match="other prompts or policies"):
        theory.changes(start, other, run_config())
    assert theory.ends([start, other]) is None
    assert theory.ends([start, other, replace(start, round=12)])[1].round == 12


def test_the_own_rule_is_marked_and_its_value_changes_uphill():
    config = run_config(probe={"kind": "prp", "cap": 2.0})
    rows = theory.probes(world(), config)
    own = rows[rows["own"]]
    assert own["label"].tolist() == ["PRP (this run)"] * 2
    assert own["receiver"].tolist() == ["a", "b"]
    assert "PRP, cap 10" not in set(rows["label"])
    assert (rows.loc[rows["label"] == "GRPO", "value_change"] > 0).all()


def graded(levels: int) -> RunWorld:
    """The world with a reward of its own for each arm of each prompt, some of which fail."""
    rng = np.random.default_rng(0)
    probs = rng.dirichlet(np.ones(levels), size=(2, PROMPTS))
    rewards = rng.uniform(0, 0.9, (PROMPTS, levels))
    rewards[:, 0], rewards[:, -1] = 1.0, 0.0
    counts = np.rint(100 * probs).astype(np.int64)
    return world(
        probs_NXK=probs,
        canonical_NXK=probs.copy(),
        representable_NXK=np.ones(probs.shape, np.bool_),
        rewards_XK=rewards,
        counts_NXK=counts,
        canonical_counts_NXK=counts,
    )


def test_moments_are_simulated_where_rewards_can_fall_in_too_many_ways():
    config = run_config(group={"own": 8, "peers": 8})
    rows = theory.probes(graded(5), config).set_index(["receiver", "label"])
    simulated = rows["stability_cost_se"].notna()
    assert simulated["a", "XGRPO"]
    assert simulated["b", "SGT"]
    assert not simulated["a", "GRPO (this run)"]
    assert (rows[simulated]["stability_cost_se"] > 0).all()
    assert (rows[simulated]["support_gain_se"] < rows[simulated]["support_gain"].abs() + 0.1).all()
    assert not theory.probes(world(), config)["stability_cost_se"].notna().any()


def test_simulated_figures_lie_within_their_errors_of_exact_ones(monkeypatch: pytest.MonkeyPatch):
    config = run_config(probe={"kind": "xgrpo"})
    start, end = graded(3), replace(graded(3), round=9)
    want, exactly = theory.probes(start, config), theory.changes(start, end, config)
    monkeypatch.setattr(theory, "MOST_WAYS", 0)
    got, drawn = theory.probes(start, config), theory.changes(start, end, config)
    assert got["stability_cost_se"].notna().all()
    for name in ("stability_cost", "support_gain"):
        gap = (got[name] - want[name]).abs()
        assert (gap <= 5 * got[f"{name}_se"] + 1e-12).all()
        assert gap.max() > 0
    assert (exactly["predicted_se"] == 0).all()
    gap = (drawn["direction"] - exactly["direction"]).abs()
    assert 0 < gap.max() < 0.05 * exactly["direction"].abs().max()


def test_the_page_names_the_rules_that_were_simulated(tmp_path: Path):
    started = tmp_path / "tiny"
    started.mkdir()
    (started / "config.yaml").write_text(dump(run_config(group={"own": 8, "peers": 8})))
    state = {"id": "x", "status": "running", "rounds_done": 0, "versions": {}, "error": None}
    (started / "run.json").write_text(json.dumps(state | {"unvalidated": True, "notes": []}))
    for name in ("metrics.jsonl", "timing.jsonl", "samples.jsonl"):
        (started / name).touch()
    graded(5).save(started / "world-000000.npz")
    page = write_report([started], tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Simulated, not exact" in page
    assert "20,000 groups" in page
    world().save(started / "world-000000.npz")
    assert "Simulated" not in write_report([started], tmp_path / "page.html").read_text("utf-8")


def test_a_policy_of_its_own_group_size_is_predicted_at_that_size():
    policies = [dict(one) for one in run_config().model_dump()["policies"]]
    policies[0] |= {"group": {"own": 12, "peers": 4}}
    own = theory.probes(world(), run_config(policies=policies)).set_index(["receiver", "label"])
    want = theory.probes(world(), run_config(group={"own": 12, "peers": 4}))
    want = want.set_index(["receiver", "label"])
    figure = "stability_cost"
    label = "GRPO (this run)"
    assert own.loc[("a", label), figure] == want.loc[("a", label), figure]
    assert own.loc[("b", label), figure] != want.loc[("b", label), figure]


def test_a_study_file_may_name_the_world_of_a_run(tmp_path: Path):
    world().save(tmp_path / "world-000000.npz")
    values = {
        "kind": "study",
        "worlds": {"mine": {"kind": "run", "path": str(tmp_path / "world-000000.npz")}},
        "rules": {"SGT": {"kind": "sgt"}},
        "receivers": None,
    }
    (point,) = parse_study(values).world_points()
    assert point.value.n_contexts == PROMPTS
    assert point.residuals == ()
    (point,) = parse_study(values | {"residual": {"measured": True}}).world_points()
    assert len(point.residuals) == 2
    with pytest.raises(InputError, match="got measured together with mu"):
        parse_study(values | {"residual": {"measured": True, "gate": 0.1}})
    example = {"toy": {"kind": "example", "name": "specialists"}}
    with pytest.raises(InputError, match=r"measured does not go with worlds \['toy'\]"):
        parse_study(values | {"worlds": example, "residual": {"measured": True}})
    values["worlds"]["mine"]["path"] = str(tmp_path / "none.npz")
    with pytest.raises(InputError, match="worlds.mine: .*is not there"):
        parse_study(values)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: figures.curves(pd.DataFrame(columns=["facet", "series", "x"]), ylabel="y"),
        lambda: figures.stacked(
            pd.DataFrame(columns=["row", "kind", "bytes"]), part="kind", value="bytes", xlabel="x"
        ),
        lambda: figures.intervals(pd.DataFrame(columns=["facet", "cohort"]), xlabel="x"),
        lambda: figures.agreement(pd.DataFrame(columns=["facet"]), xlabel="x", ylabel="y"),
    ],
    ids=["curves", "stacked", "intervals", "agreement"],
)
def test_a_frame_without_rows_is_drawn_as_nothing_recorded(draw):
    (axes,) = draw().axes
    assert [text.get_text() for text in axes.texts] == ["nothing was recorded"]
