"""The trainer's gradient of a one-token language model is the bandit's, and the gate sees when
it is not."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mrl.loss
import mrl.member
import mrl.update
from mrl.config import RunConfig, parse
from mrl.gate.parity import BOUND, parity_rung
from mrl.gate.worlds import gate_world
from mrl.seeds import generator

PROBES = [
    {"kind": "grpo"},
    {"kind": "grpo", "scale": "none"},
    {"kind": "xgrpo"},
    {"kind": "xgrpo", "peer_share": 0.3, "ddof": 0},
    {"kind": "prp"},
    {"kind": "prp", "cap": 2.0, "gated": False},
    {"kind": "prp", "ratio": "none"},
    {"kind": "prp", "ratio": "block"},
    {"kind": "prp", "ratio": "length_normalised"},
    {"kind": "sgt"},
    {"kind": "sgt", "weight": 0.7, "eps": 0.1},
    {"kind": "nll"},
]
SUCCESS = [[0.9, 0.05, 0.4], [0.04, 0.8, 0.3], [0.3, 0.02, 0.7], [0.02, 0.5, 0.1]]


def run_of(probe: dict[str, Any], policies: int = 2, **settings: Any) -> RunConfig:
    model = {"kind": "pretrained", "path": "none"}
    return parse(
        {
            "probe": probe,
            "task": {"kind": "jsonl", "path": "none"},
            "policies": [{"name": name, "model": model} for name in "dbca"[:policies]],
            "group": {"own": 4, "peers": 4},
            "gate": {"success": SUCCESS[:policies], "arms": 6},
            **settings,
        }
    )


def differences(run: RunConfig) -> list[float]:
    rung = parity_rung(run, gate_world(run))
    return [figures["relative_difference"] for figures in rung.figures.values()]


@pytest.mark.parametrize("policies", [2, 3, 4])
@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: "-".join(map(str, probe.values())))
def test_the_trainer_computes_the_gradient_of_theory(probe: dict[str, Any], policies: int) -> None:
    run = run_of(probe, policies)
    rung = parity_rung(run, gate_world(run))
    assert rung.passed, rung.checks
    assert set(rung.figures) == {policy.name for policy in run.policies}


@pytest.mark.parametrize(
    "settings",
    [
        {"sampling": {"temperature": 0.7}},
        {"sampling": {"temperature": 1.5, "batch": 8}},
        {"sampling": {"top_p": 0.7}},
        {"objective": {"aggregation": "sum", "clip_low": 0.0, "clip_high": 0.0}},
        {"objective": {"aggregation": "sequence", "batch_tokens": 16}},
        {"objective": {"updates": 3, "mask_truncated": True}},
        {"group": {"own": 4, "peers": {"d": 1, "b": 4, "c": 2}}},
        {"group": {"own": 4, "peers": 3, "redraws": 2}},
        {"exchange": {"reverify": False, "max_staleness": 2}},
        {"seed": 7},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["prp", "sgt"])
def test_parity_holds_for_the_settings_that_a_run_can_have(
    settings: dict[str, Any], kind: str
) -> None:
    run = run_of({"kind": kind}, 3, **settings)
    assert parity_rung(run, gate_world(run)).passed


def test_policies_may_follow_different_rules() -> None:
    values = run_of({"kind": "sgt"}, 4).model_dump()
    for policy, probe in zip(values["policies"], PROBES[::3], strict=True):
        policy["probe"] = probe
    run = parse(values)
    assert parity_rung(run, gate_world(run)).passed


def test_rescues_and_ratios_are_really_exercised() -> None:
    sgt = parity_rung(run := run_of({"kind": "sgt"}), gate_world(run))
    assert all(figures["rescued_prompts"] > 10 for figures in sgt.figures.values())
    prp = parity_rung(run := run_of({"kind": "prp"}), gate_world(run))
    assert all(figures["peer_tokens_trained"] > 100 for figures in prp.figures.values())


def test_a_gradient_of_zero_does_not_pass() -> None:
    run = run_of({"kind": "grpo"}, gate={"success": [[0.0, 0.0], [1.0, 1.0]], "arms": 6})
    rung = parity_rung(run, gate_world(run))
    assert not rung.passed
    assert [check.passed for check in rung.checks[:2]] == [False, True]


def no_ratio(rule: Any, row: Any, logprobs: np.ndarray) -> np.ndarray:
    return np.ones(len(logprobs))


def one_prompt_more(assignment: Any, *rest: Any) -> Any:
    more = replace(assignment, groups=assignment.groups + 1)
    return ORIGINAL_BATCHES(more, *rest)


def heavier_likelihood(logp: Any, batch: Any, *rest: Any, **settings: Any) -> Any:
    heavier = replace(batch, nll_weight_M=batch.nll_weight_M * (1 + 1e-6))
    return ORIGINAL_LOSS(logp, heavier, *rest, **settings)


def other_stream(seed: int, *path: int | str) -> np.random.Generator:
    return generator(seed + 1, *path)


ORIGINAL_BATCHES = mrl.update.micro_batches
ORIGINAL_LOSS = mrl.update.token_loss


@pytest.mark.parametrize(
    ("kind", "module", "name", "wrong"),
    [
        ("prp", mrl.loss, "ratio_weights", no_ratio),
        ("grpo", mrl.update, "micro_batches", one_prompt_more),
        ("sgt", mrl.update, "token_loss", heavier_likelihood),
        ("sgt", mrl.member, "generator", other_stream),
    ],
    ids=["weight left out", "wrong normaliser", "likelihood off by 1e-6", "another draw"],
)
def test_a_wrong_trainer_is_found_out(
    kind: str, module: Any, name: str, wrong: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of({"kind": kind}, 3)
    assert max(differences(run)) < BOUND
    monkeypatch.setattr(module, name, wrong)
    assert not parity_rung(run, gate_world(run)).passed
    assert max(differences(run)) > 100 * BOUND
