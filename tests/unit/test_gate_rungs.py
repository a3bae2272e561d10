import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress

from bandit import Residual, exact
from bandit.probes import probe_to_config
from bandit.worlds import MAX_SKEW
from mrl.config import RunConfig, load, override, parse
from mrl.errors import InputError, RunError
from mrl.gate import run_gate
from mrl.gate.certificate import Rung, check
from mrl.gate.dynamics import MORE_OWN, REDRAWN, dynamics_rung, treatments_of
from mrl.gate.estimators import MAX_Z, estimators_rung, largest_z
from mrl.gate.lengths import lengths_rung
from mrl.gate.promote import promote
from mrl.gate.tokenised import TokenWorld, Transfer
from mrl.gate.tokenised.rung import changed, gate_texts, tokenised_rung
from mrl.gate.worlds import gate_world, peers_by_index
from mrl.tokens import retokenize_batch

SMALL = {"arms": 6, "draws": 2000, "steps": 10, "replicas": 4}
MODEL = {"kind": "pretrained", "path": "none"}


def run_of(probe: dict[str, Any], policies: int = 2, **settings: Any) -> RunConfig:
    return parse(
        {
            "probe": probe,
            "task": {"kind": "jsonl", "path": "none"},
            "policies": [{"name": name, "model": MODEL} for name in "dbca"[:policies]],
            **settings,
        }
    )


class TestWorld:
    @given(
        success=st.integers(1, 4).flatmap(
            lambda n: st.lists(
                st.lists(st.floats(0.01, 0.99), min_size=3, max_size=3), min_size=n, max_size=n
            )
        ),
        arms=st.integers(4, 20),
    )
    @settings(max_examples=50, deadline=None)
    def test_it_has_the_success_asked_for_and_bounded_ratios(
        self, success: list[list[float]], arms: int
    ) -> None:
        run = run_of({"kind": "grpo"}, len(success), gate={"success": success, "arms": arms})
        world = gate_world(run)
        np.testing.assert_allclose(world.success_probability, success, rtol=1e-12)
        assert world.n_arms == arms
        assert (world.success.sum(-1) == 2).all()
        mass = np.where(world.success, *(np.array(v)[..., None] for v in (success, success)))
        mass = np.where(world.success, mass, 1 - mass)
        ratios = world.probs[:, None] / world.probs[None]
        bound = MAX_SKEW * mass[:, None] / mass[None]
        assert (ratios <= bound * (1 + 1e-9)).all()

    def test_policies_prefer_different_answers(self) -> None:
        world = gate_world(run_of({"kind": "grpo"}))
        best = np.where(world.success, world.probs, 0.0).argmax(-1)
        assert (best[0] != best[1]).all()

    def test_it_needs_one_row_a_policy(self) -> None:
        with pytest.raises(InputError, match=r"2 rows and the run has 3 policies.*set gate.succ"):
            gate_world(run_of({"kind": "grpo"}, 3))

    def test_peers_are_found_by_position(self) -> None:
        run = run_of({"kind": "prp"}, 3, group={"peers": {"d": 2, "c": 5}})
        assert peers_by_index(run, "b") == {0: 2, 2: 5}
        assert peers_by_index(run, "d") == {1: 0, 2: 5}


class TestEstimators:
    @pytest.mark.parametrize(
        "probe",
        [
            {"kind": "grpo"},
            {"kind": "xgrpo", "peer_share": 0.5},
            {"kind": "prp"},
            {"kind": "prp", "ratio": "none"},
            {"kind": "sgt"},
            {"kind": "nll"},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("redraws", [0, 2])
    def test_simulation_agrees_with_the_closed_forms(
        self, probe: dict[str, Any], redraws: int
    ) -> None:
        run = run_of(probe, group={"redraws": redraws, "own": 4, "peers": 4})
        for policy in run.policies:
            assert estimators_rung(run, gate_world(run), policy).passed

    def test_a_mean_that_is_off_by_ten_errors_is_seen(self) -> None:
        run = run_of({"kind": "sgt"})
        moments = exact.moments(gate_world(run), run.probe, own=8, peers=8)
        error = np.sqrt(np.diagonal(moments.covariance(), axis1=1, axis2=2) / 1000)
        for factor in (0.0, 1.0, 10.0):
            off = moments.mean.copy()
            off[1, 3] -= factor * error[1, 3]
            assert largest_z(moments, off, 1000) == pytest.approx(factor, abs=1e-6)
        assert factor > MAX_Z

    def test_a_coordinate_that_never_varies_must_agree(self) -> None:
        run = run_of({"kind": "grpo"}, gate={"success": [[0.0, 0.5], [0.5, 0.5]]})
        moments = exact.moments(gate_world(run), run.probe, own=8, peers=8)
        assert largest_z(moments, moments.mean, 1000) == 0.0
        assert largest_z(moments, moments.mean + 1e-6, 1000) == float("inf")

    def test_thresholds_are_held_where_set(self) -> None:
        gate = {"max_stability_cost": 2.0, "min_support_gain": 0.001}
        run = run_of({"kind": "grpo"}, gate=gate)
        cost, gain = estimators_rung(run, gate_world(run), run.policies[0]).checks[1:]
        assert (cost.value, cost.passed) == (1.0, True)
        assert (gain.value, gain.passed) == (0.0, False)
        run = run_of({"kind": "prp"}, gate=gate)
        cost, gain = estimators_rung(run, gate_world(run), run.policies[0]).checks[1:]
        assert not cost.passed
        assert gain.passed

    def test_without_thresholds_the_axes_are_reported_only(self) -> None:
        run = run_of({"kind": "prp"})
        rung = estimators_rung(run, gate_world(run), run.policies[1])
        assert len(rung.checks) == 1
        found = rung.figures["b"]
        assert found["stability_cost"] == pytest.approx(
            found["simulated_stability_cost"], abs=5 * found["simulated_stability_cost_error"]
        )
        assert found["relative_cost"] > 1

    @pytest.mark.parametrize("ratio", ["block", "length_normalised"])
    def test_it_says_which_rung_tells_ratio_kinds_apart(self, ratio: str) -> None:
        run = run_of({"kind": "prp", "ratio": ratio})
        notes = estimators_rung(run, gate_world(run), run.policies[0]).notes
        assert any(repr(ratio) in note and "rung 'tokenised'" in note for note in notes)
        run = run_of({"kind": "prp"})
        notes = estimators_rung(run, gate_world(run), run.policies[0]).notes
        assert not any("tokenised" in note for note in notes)

    def test_groups_too_large_for_closed_forms_are_bad_input(self) -> None:
        run = run_of(
            {"kind": "prp"},
            4,
            group={"own": 1200, "peers": 1200},
            gate={"success": [[0.5]] * 4},
        )
        with pytest.raises(InputError, match=r"'d' with group.own=1200.*compositions|enumerate"):
            estimators_rung(run, gate_world(run), run.policies[0])


def tokenised(run: RunConfig) -> list[Rung]:
    world = gate_texts(run)
    return [tokenised_rung(run, world, policy) for policy in run.policies]


class TestTokenised:
    @pytest.mark.parametrize(
        "probe",
        [
            {"kind": "prp"},
            {"kind": "prp", "cap": 5.0},
            {"kind": "prp", "ratio": "none"},
            {"kind": "prp", "ratio": "block"},
            {"kind": "prp", "ratio": "length_normalised"},
            {"kind": "sgt"},
            {"kind": "nll"},
        ],
        ids=str,
    )
    def test_what_arrives_is_what_theory_expects(self, probe: dict[str, Any]) -> None:
        for rung in tokenised(run_of(probe)):
            assert rung.passed, rung.checks

    def test_three_policies_have_three_tokenizers(self) -> None:
        rungs = tokenised(run_of({"kind": "prp"}, 3))
        found = {name: figures for rung in rungs for name, figures in rung.figures.items()}
        assert len({one["tokenizer"] for one in found.values()}) == 3
        assert {name: set(one["from"]) for name, one in found.items()} == {
            "d": {"b", "c"},
            "b": {"d", "c"},
            "c": {"d", "b"},
        }
        assert all(rung.passed for rung in rungs)

    @pytest.mark.parametrize("kind", ["grpo", "xgrpo"])
    def test_a_rule_without_text_depends_on_no_token(self, kind: str) -> None:
        for rung in tokenised(run_of({"kind": kind})):
            assert rung.passed
            assert len(rung.checks) == 1
            assert "nothing here depends on tokens" in rung.notes[0]

    def test_a_policy_that_sees_no_peer_is_not_asked(self) -> None:
        rung = tokenised(run_of({"kind": "prp"}, group={"peers": {"b": 0}}))[0]
        assert rung.passed
        assert "sees no peer" in rung.notes[0]

    def test_without_the_gate_the_residual_leaves_its_bound(self) -> None:
        chars, bpe = tokenised(run_of({"kind": "prp", "gated": False}))
        failed = [check.name for check in chars.checks if not check.passed]
        assert failed == ["d from b: 99% quantile of |residual|"]
        assert bpe.passed  # the character tokenizer has one spelling for each text
        run = run_of({"kind": "prp", "gated": False}, gate={"max_residual": 5.0})
        assert all(rung.passed for rung in tokenised(run))

    def test_what_the_gate_leaves_out_is_held_as_a_cosine(self) -> None:
        gate = {"canonical_share": 0.7, "min_token_cosine": 0.99, "max_residual": 9.0}
        chars, bpe = tokenised(run_of({"kind": "prp"}, gate=gate))
        assert chars.passed
        assert [c.name for c in bpe.checks if not c.passed] == ["b from d: bias cosine"]

    def test_ratio_kinds_are_told_apart(self) -> None:
        cosines = {}
        for ratio in ("sequence", "block", "length_normalised"):
            (chars, _) = tokenised(run_of({"kind": "prp", "ratio": ratio}))
            cosines[ratio] = chars.figures["d"]["from"]["b"]["bias_cosine"]
        assert cosines["sequence"] == pytest.approx(1.0, abs=1e-9)
        assert cosines["block"] < 0.95
        assert cosines["length_normalised"] < 0.98

    def test_a_wrong_weight_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = run_of({"kind": "prp"})
        world = gate_texts(run)
        right = Transfer.token_weights

        def wrong(self: Transfer, rule: Any, /) -> Any:
            """EOS forgotten on the source's side."""
            eos = self.source.conditional[:, -1]
            return tuple(w * one for w, one in zip(right(self, rule), eos, strict=True))

        monkeypatch.setattr(Transfer, "token_weights", wrong)
        failed = [
            c.name for c in tokenised_rung(run, world, run.policies[0]).checks if not c.passed
        ]
        assert "d from b: |gated mean - law|" in failed

    def test_a_wrong_expectation_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = run_of({"kind": "prp"})
        world = gate_texts(run)
        monkeypatch.setattr(TokenWorld, "residual", lambda *_: Residual(gate=0.5))
        (failed,) = (c for c in tokenised_rung(run, world, run.policies[1]).checks if not c.passed)
        assert failed.name == "b: largest |z| of the gradient by text"

    def test_a_tokenizer_that_edits_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run = run_of({"kind": "sgt"})
        world = gate_texts(run)

        def lossy(texts: Any, encoder: Any, /) -> Any:
            return retokenize_batch([text.replace(b" ", b"") for text in texts], encoder)

        monkeypatch.setattr("mrl.gate.tokenised.rung.retokenize_batch", lossy)
        assert changed(world, 0) == 1

    def test_a_share_that_no_text_of_this_length_allows_is_bad_input(self) -> None:
        run = run_of({"kind": "prp"}, gate={"text_bytes": 3, "canonical_share": 0.2})
        with pytest.raises(
            InputError, match=r"gate.canonical_share=0.2 and gate.text_bytes=3.*betw"
        ):
            gate_texts(run)


class TestDynamics:
    def test_sgt_keeps_its_promise_with_default_settings(self) -> None:
        run = run_of({"kind": "sgt"})
        rung = dynamics_rung(run, gate_world(run))
        assert rung.passed, rung.checks
        assert [check.sense for check in rung.checks] == ["at most", "at least"] * 2
        mean, low, high = rung.figures["d"]["gain_over"]["GRPO"]
        assert low < mean < high

    def test_a_rule_that_claims_support_and_gives_none_fails(self) -> None:
        run = run_of({"kind": "sgt", "weight": 0.0}, gate=SMALL)
        rung = dynamics_rung(run, gate_world(run))
        assert [check.value for check in rung.checks] == [0.0] * 4
        assert not rung.passed

    def test_a_rule_without_that_claim_is_not_asked_for_gain(self) -> None:
        run = run_of({"kind": "prp"}, gate=SMALL)
        rung = dynamics_rung(run, gate_world(run))
        assert len(rung.checks) == 2
        assert rung.passed

    def test_a_claim_that_the_world_cannot_test_does_not_pass(self) -> None:
        run = run_of({"kind": "sgt"}, gate={**SMALL, "success": [[0.5, 0.6], [0.7, 0.4]]})
        rung = dynamics_rung(run, gate_world(run))
        assert not rung.passed
        assert any("set gate.success" in note for note in rung.notes)

    def test_a_policy_that_is_weak_nowhere_is_not_asked_for_gain(self) -> None:
        run = run_of({"kind": "sgt"}, gate={**SMALL, "success": [[0.9, 0.9], [0.02, 0.9]]})
        rung = dynamics_rung(run, gate_world(run))
        asked = [check.name for check in rung.checks if check.sense == "at least"]
        assert asked == ["b: rescue gain over GRPO"]

    def test_unbounded_ratios_with_a_large_adam_step_collapse_and_a_small_step_does_not(
        self,
    ) -> None:
        def shares(lr: float) -> list[float]:
            gate = {"success": [[0.3], [0.9]], "arms": 40, "steps": 40, "replicas": 16, "lr": lr}
            run = run_of({"kind": "prp"}, group={"own": 2, "peers": 2}, gate=gate)
            rung = dynamics_rung(run, gate_world(run))
            assert rung.passed == all(check.value <= 0.1 for check in rung.checks)
            return [check.value for check in rung.checks]

        assert max(shares(3.0)) > 0.1
        assert max(shares(0.05)) == 0.0

    def test_controls_spend_what_sharing_spends(self) -> None:
        run = run_of({"kind": "sgt", "ddof": 0}, 3, group={"own": 8, "peers": {"d": 3, "b": 8}})
        treatments = treatments_of(run, run.group)
        assert treatments[MORE_OWN].own == 8 + 11
        assert treatments[REDRAWN].redraws == 2
        assert {p.ddof for t in treatments.values() for p in t.probes} == {0}

    def test_policies_with_other_optimizers_are_judged_by_their_own(self) -> None:
        def figures(*kinds: str) -> dict[str, Any]:
            values = run_of({"kind": "sgt"}, gate={**SMALL, "lr": 0.5}).model_dump()
            for policy, kind in zip(values["policies"], kinds, strict=True):
                policy["optimizer"]["kind"] = kind
            run = parse(values)
            return dict(dynamics_rung(run, gate_world(run)).figures)

        mixed, adam, sgd = figures("adamw", "sgd"), figures("adamw", "adamw"), figures("sgd", "sgd")
        assert mixed == {"d": adam["d"], "b": sgd["b"]}
        assert adam["b"] != sgd["b"]


class TestLengths:
    def test_long_responses_cost_a_ratio_its_sample(self) -> None:
        run = run_of({"kind": "prp"}, sampling={"max_tokens": 16})
        rung = lengths_rung(run, run.policies[0])
        (rows,) = rung.figures.values()
        assert list(rows) == [1, 4, 16]
        assert rows[1]["ess"] > rows[4]["ess"] > rows[16]["ess"]
        assert rows[16]["bias_cosine"] == pytest.approx(1.0)
        assert not rung.checks
        assert "from 1 to 16 tokens" in rung.notes[0]

    @pytest.mark.parametrize(("kind", "passes"), [("sequence", True), ("length_normalised", False)])
    def test_a_bound_on_the_cosine_tells_ratios_apart(self, kind: str, passes: bool) -> None:
        run = run_of(
            {"kind": "prp", "ratio": kind},
            sampling={"max_tokens": 64},
            gate={"min_length_cosine": 0.9},
        )
        (one,) = lengths_rung(run, run.policies[0]).checks
        assert one.passed is passes

    def test_rules_without_text_and_policies_without_peers_have_nothing_to_say(self) -> None:
        for run in (
            run_of({"kind": "xgrpo"}),
            run_of({"kind": "sgt"}, group={"peers": 0}),
            run_of({"kind": "sgt"}, gate={"success": [[0.0], [0.5]]}),
        ):
            rung = lengths_rung(run, run.policies[0])
            assert (rung.checks, rung.figures, rung.notes) == ((), {}, ())


class TestGate:
    def test_every_rung_is_printed_with_its_verdict(self) -> None:
        console = Console(record=True, width=160, file=io.StringIO())
        certificate = run_gate(run_of({"kind": "sgt"}, gate=SMALL), console=console)
        printed = console.export_text()
        assert list(certificate.rungs) == ["estimators", "tokenised", "parity", "dynamics"]
        assert not certificate.passed
        for rung in certificate.rungs.values():
            for one in rung.checks:
                assert one.name in printed
        assert "gate passed: no" in printed

    def test_progress_counts_every_rung(self, monkeypatch: pytest.MonkeyPatch) -> None:
        bars: list[Progress] = []

        class Kept(Progress):
            def __enter__(self) -> Progress:
                bars.append(self)
                return super().__enter__()

        monkeypatch.setattr("mrl.gate.Progress", Kept)
        run_gate(run_of({"kind": "sgt"}, gate=SMALL))
        (task,) = bars[0].tasks
        assert task.completed == task.total == 2 + 2 + 1 + 4

    def test_the_result_is_a_function_of_configuration_and_seed(self) -> None:
        run = run_of({"kind": "sgt"}, gate=SMALL)
        assert run_gate(run).to_dict() == run_gate(run).to_dict()
        other = run.model_copy(update={"seed": 1})
        assert run_gate(run).to_dict()["rungs"] != run_gate(other).to_dict()["rungs"]


class TestPromote:
    def test_the_promoted_run_is_the_run_with_its_certificate(self, tmp_path: Path) -> None:
        run = run_of({"kind": "prp", "cap": 5.0}, gate=SMALL)
        path = tmp_path / "new" / "promoted.yaml"
        certificate = promote(run, path)
        promoted = load(path)
        assert promoted.model_copy(update={"certificate": None}) == run
        assert probe_to_config(promoted.probe) == probe_to_config(run.probe)
        assert promoted.certificate == certificate.to_dict()
        assert check(promoted, unvalidated=False)
        assert [file.name for file in path.parent.iterdir()] == ["promoted.yaml"]
        changed = parse(override(promoted.model_dump(), ["probe.cap=6.0"]))
        with pytest.raises(InputError, match=r"policies.d.probe.cap: 5.0 -> 6.0"):
            check(changed, unvalidated=False)

    def test_a_run_that_fails_is_not_promoted(self, tmp_path: Path) -> None:
        run = run_of({"kind": "sgt", "weight": 0.0}, gate=SMALL)
        with pytest.raises(RunError, match=r"rungs \['dynamics'\]"):
            promote(run, tmp_path / "promoted.yaml")
        assert not list(tmp_path.iterdir())

    def test_an_existing_file_is_not_overwritten(self, tmp_path: Path) -> None:
        path = tmp_path / "promoted.yaml"
        path.write_text("mine")
        with pytest.raises(InputError, match="exists and is not overwritten"):
            promote(run_of({"kind": "prp"}, gate=SMALL), path)
        assert path.read_text() == "mine"
