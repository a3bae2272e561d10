import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from mrl.config import RunConfig, dump, override, parse
from mrl.errors import InputError, RunError
from mrl.gate.certificate import Certificate, Check, Rung, check, plain, write


def run_of(probe: dict[str, Any], **settings: Any) -> RunConfig:
    model = {"kind": "pretrained", "path": "none"}
    values = {
        "probe": probe,
        "task": {"kind": "jsonl", "path": "none"},
        "policies": [{"name": "a", "model": model}, {"name": "b", "model": model}],
    }
    return parse({**values, **settings})


def rung(value: float = 1.0) -> Rung:
    return Rung((Check.at_most("size", value, 2.0),), {"a": {"cost": 0.1, "ess": float("nan")}})


def certified(run: RunConfig, value: float = 1.0) -> RunConfig:
    """The run as `mrl promote` would write it, read back from its YAML."""
    certificate = Certificate.of(run, {"estimators": rung(value)}).to_dict()
    return parse(yaml.safe_load(dump(run.model_copy(update={"certificate": certificate}))))


PRP_CAPPED = {"kind": "prp", "cap": 10.0}
PRP = {"kind": "prp"}
SGT = {"kind": "sgt", "weight": 0.1}


@pytest.mark.parametrize("probe", [PRP, PRP_CAPPED, SGT, {"kind": "xgrpo"}, {"kind": "nll"}])
def test_a_certified_run_is_validated(probe: dict[str, Any]) -> None:
    assert check(certified(run_of(probe)), unvalidated=False)


def test_a_run_that_shares_nothing_needs_no_certificate() -> None:
    assert check(run_of({"kind": "grpo"}), unvalidated=False)


def test_one_policy_that_shares_makes_a_certificate_necessary() -> None:
    run = run_of({"kind": "grpo"})
    values = run.model_dump()
    values["policies"][1]["probe"] = SGT
    with pytest.raises(InputError, match=r"\['b'\] learn from their peers"):
        check(parse(values), unvalidated=False)


@pytest.mark.parametrize(
    ("assignment", "change"),
    [
        ("probe.weight=0.2", "policies.a.probe.weight: 0.1 -> 0.2"),
        ("probe.ddof=0", "policies.b.probe.ddof: 1 -> 0"),
        ("probe={kind: nll}", "policies.a.probe.kind: sgt -> nll"),
        ("group.own=16", "group.own: 8 -> 16"),
        ("group.peers=4", "group.peers.a.b: 8 -> 4"),
        ("group.redraws=1", "group.redraws: 0 -> 1"),
        ("policies.0.group.own=16", "policies.a.group.own: absent -> 16"),
        ("objective.aggregation=sum", "policies.a.objective.aggregation: token -> sum"),
        ("objective.clip_high=0.3", "policies.a.objective.clip_high: 0.28 -> 0.3"),
        ("objective.updates=2", "policies.a.objective.updates: 1 -> 2"),
        ("objective.mask_truncated=true", "mask_truncated: False -> True"),
        ("policies.1.optimizer.kind=sgd", "policies.b.optimizer.kind: adamw -> sgd"),
        ("policies.0.optimizer.max_grad_norm=null", "policies.a.optimizer.max_grad_norm: 1.0 -> N"),
        ("policies.0.name=c", "policies.c.probe.kind: absent -> sgt"),
        ("exchange.reverify=false", "exchange.reverify: True -> False"),
        ("exchange.max_staleness=1", "exchange.max_staleness: 0 -> 1"),
    ],
)
def test_changing_a_setting_it_speaks_for_voids_it_and_is_named(
    assignment: str, change: str
) -> None:
    values = certified(run_of(SGT)).model_dump()
    changed = parse(override(values, [assignment]))
    with pytest.raises(InputError) as caught:
        check(changed, unvalidated=False)
    assert change in str(caught.value)
    assert "mrl promote" in str(caught.value)
    assert "--unvalidated" in str(caught.value)
    assert not check(changed, unvalidated=True)


@pytest.mark.parametrize(
    "assignment",
    ["rounds=7", "policies.0.optimizer.lr=0.1", "seed=3", "prompts=2", "gate.draws=5000"],
)
def test_other_settings_do_not_void_it(assignment: str) -> None:
    run = parse(override(certified(run_of(SGT)).model_dump(), [assignment]))
    assert check(run, unvalidated=False)


def test_without_a_certificate_a_sharing_rule_is_refused() -> None:
    with pytest.raises(InputError, match=r"no certificate; .*mrl promote.*--unvalidated"):
        check(run_of(SGT), unvalidated=False)
    assert not check(run_of(SGT), unvalidated=True)


def test_a_failed_certificate_is_refused_with_the_rungs_that_failed() -> None:
    failed = certified(run_of(SGT), value=3.0)
    with pytest.raises(InputError, match=r"did not pass \(rungs \['estimators'\]\)"):
        check(failed, unvalidated=False)
    assert not check(failed, unvalidated=True)


@pytest.mark.parametrize(
    "assignment",
    [
        "certificate.passed=true",
        "certificate.rungs.estimators.figures.a.cost=0.01",
        "certificate.rungs.estimators.checks.0.value=0.5",
        "certificate.speaks_for.group.own=16",
        "certificate.digest=abc",
        "certificate={}",
    ],
)
def test_an_edited_certificate_is_refused(assignment: str) -> None:
    edited = parse(override(certified(run_of(SGT), value=3.0).model_dump(), [assignment]))
    with pytest.raises(InputError, match="changed after it was written"):
        check(edited, unvalidated=False)


def test_the_json_form_holds_what_was_found(tmp_path: Path) -> None:
    run = run_of(PRP)
    certificate = Certificate.of(run, {"estimators": rung(float("inf"))})
    write(certificate, tmp_path / "deep" / "certificate.json")
    stored = json.loads((tmp_path / "deep" / "certificate.json").read_text())
    assert stored == certificate.to_dict()
    assert stored["created_by"] == "mrl validate"
    assert stored["passed"] is False
    assert list(stored["rungs"]) == ["estimators"]
    assert stored["rungs"]["estimators"]["checks"] == [
        {"name": "size", "value": "inf", "bound": 2.0, "sense": "at most", "passed": False}
    ]
    assert stored["rungs"]["estimators"]["figures"] == {"a": {"cost": 0.1, "ess": None}}
    assert stored["speaks_for"]["policies"]["a"]["probe"]["cap"] == "inf"
    assert stored["regime"]["success"] == [[0.95, 0.02], [0.02, 0.9]]


def test_nothing_passes_without_rungs_or_checks() -> None:
    assert not Certificate.of(run_of(SGT), {}).passed
    assert not Rung((), {}).passed


@pytest.mark.parametrize("make", [Check.at_most, Check.at_least])
def test_nan_passes_no_check_and_a_bound_is_inside(make: Any) -> None:
    assert not make("x", float("nan"), 1.0).passed
    assert make("x", 1.0, 1.0).passed


def test_plain_values_survive_yaml_and_json() -> None:
    values = plain({"a": (1.0, 1e-300, 1e22, 0.1), "b": float("-inf"), "c": None, 2: "inf"})
    assert yaml.safe_load(yaml.safe_dump(values)) == values
    assert json.loads(json.dumps(values, allow_nan=False)) == values


def test_a_certificate_that_cannot_be_written_is_a_run_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    certificate = Certificate.of(run_of(SGT), {"estimators": rung()})
    with pytest.raises(RunError, match="cannot write"):
        write(certificate, tmp_path / "file" / "certificate.json")


def test_checking_and_studying_need_no_torch() -> None:
    code = (
        "import sys, mrl.gate.certificate, mrl.gate.promote, mrl.study; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
