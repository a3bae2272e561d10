"""What the demo runs: sharing rules and controls, regimes, seeds, and each run's configuration."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from mrl.config import RunConfig, parse
from mrl.demo.skills import SKILLS, TaskFiles


@dataclass(frozen=True)
class Mode:
    """One row of the demo's table."""

    key: str
    label: str
    probe: Mapping[str, Any]
    group: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Regime:
    """How much of the other skill a warm-up holds: it sets p where sharing could help."""

    key: str
    label: str
    other_share: float


@dataclass(frozen=True)
class WarmUp:
    """Supervised steps of one policy before it meets the other."""

    steps: int
    batch: int
    lr: float


WARM_UP = {"chars": WarmUp(600, 64, 4e-3), "bpe": WarmUp(900, 64, 3e-3)}


@dataclass(frozen=True)
class Plan:
    """Everything that one call of the demo runs."""

    name: str
    modes: tuple[Mode, ...]
    regimes: tuple[Regime, ...]
    seeds: tuple[int, ...]
    warm_up: Mapping[str, WarmUp] = field(default_factory=lambda: WARM_UP)
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the runs that differ from the shipped configuration."""


GRPO = Mode("grpo", "GRPO alone", {"kind": "grpo"}, {"peers": 0})
XGRPO = Mode("xgrpo", "XGRPO, pooled", {"kind": "xgrpo"})
PRP = Mode("prp", "PRP, sequence ratio, cap 10", {"kind": "prp", "ratio": "sequence", "cap": 10})
PRP_NONE = Mode("prp-none", "PRP, no ratio", {"kind": "prp", "ratio": "none"})
SGT = Mode("sgt", "SGT, weight 0.1", {"kind": "sgt", "weight": 0.1})
CONTROLS = (
    Mode("grpo-double", "GRPO, G + M own", {"kind": "grpo"}, {"own": 16, "peers": 0}),
    Mode("grpo-redraw", "GRPO, dynamic sampling", {"kind": "grpo"}, {"redraws": 1, "peers": 0}),
    Mode("nll", "NLL, no gate, weight 0.1", {"kind": "nll", "weight": 0.1}),
)
APART = Regime("apart", "no item of the other skill in the warm-up", 0.0)
MIXED = Regime("mixed", "2% of the other skill in the warm-up", 0.02)

QUICK = Plan("quick", (GRPO, XGRPO, PRP_NONE, SGT), (APART,), (0,))
FULL = Plan("full", (GRPO, XGRPO, PRP, PRP_NONE, SGT, *CONTROLS), (APART, MIXED), (0, 1, 2))

POLICIES = ("chars", "bpe")
OWN_SKILL = dict(zip(POLICIES, SKILLS, strict=True))


def base() -> dict[str, Any]:
    """The shipped configuration that every run of the demo starts from."""
    text = resources.files("mrl.configs").joinpath("demo-pair.yaml").read_text(encoding="utf-8")
    values: dict[str, Any] = yaml.safe_load(text)
    return values


def pair_config(files: TaskFiles, models: Path | None, /, **settings: Any) -> RunConfig:
    """The pair's configuration; with `models`, policies start from the weights stored there."""
    values = base() | settings
    values["task"] |= {"path": str(files.train), "eval_path": str(files.heldout)}
    for policy in values["policies"]:
        if policy["tokenizer"]["kind"] == "bpe":
            policy["tokenizer"]["path"] = str(files.text)
        if models is not None:
            policy["model"] = {"kind": "pretrained", "path": str(models / policy["name"])}
            del policy["tokenizer"]
    return parse(values, source="the demo's configuration")


def run_config(
    plan: Plan,
    mode: Mode,
    regime: Regime,
    seed: int,
    files: TaskFiles,
    models: Path,
    output: Path,
    success: tuple[tuple[float, ...], ...],
    /,
) -> RunConfig:
    """The configuration of one run."""
    values = base() | dict(plan.settings)
    return pair_config(
        files,
        models,
        **dict(plan.settings)
        | {
            "seed": seed,
            "output": str(output),
            "name": f"{regime.key}-{mode.key}-seed{seed}",
            "probe": dict(mode.probe),
            "group": values["group"] | dict(mode.group),
            "gate": values["gate"] | {"success": success},
        },
    )
