"""Warmed-up models of the demo, made once and kept in a folder."""

import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mrl.demo.plan import OWN_SKILL, Regime, WarmUp, pair_config
from mrl.demo.skills import TaskFiles
from mrl.demo.warmup import warm_up
from mrl.policy import build_policy, save_weights
from mrl.seeds import derive
from mrl.tasks import load_task


def folder_of(models: Path, regime: Regime, seed: int, /) -> Path:
    """Where the pair of a regime and seed is kept."""
    return models / f"{regime.key}-seed{seed}"


def made_with(
    name: str, how: WarmUp, regime: Regime, seed: int, files: TaskFiles, /
) -> dict[str, Any]:
    """Everything a warmed-up model depends on, in plain JSON types."""
    config = pair_config(files, None, seed=seed)
    (policy,) = (one for one in config.policies if one.name == name)
    settings = {
        "model": policy.model.model_dump(),
        "tokenizer": policy.tokenizer.model_dump(exclude={"path"}) if policy.tokenizer else None,
        "other_share": regime.other_share,
        "seed": seed,
        **asdict(how),
    }
    plain: dict[str, Any] = json.loads(json.dumps(settings))
    return plain


def is_ready(home: Path, settings: dict[str, Any], /) -> bool:
    """Whether `home` holds a model made with these settings."""
    try:
        stored = json.loads((home / "made_with.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(stored == settings)


def make(
    name: str,
    how: WarmUp,
    regime: Regime,
    seed: int,
    files: TaskFiles,
    models: Path,
    progress: Callable[[int], None],
    /,
) -> None:
    """Warm one policy up and keep it; the note of what it was made with is written last."""
    home = folder_of(models, regime, seed) / name
    config = pair_config(files, None, seed=seed)
    (section,) = (one for one in config.policies if one.name == name)
    policy = build_policy(section, config, seed=derive(seed, "init", name))
    items = load_task(config.task, seed).train
    own = [item for item in items if item.tag == OWN_SKILL[name]]
    other = [item for item in items if item.tag != OWN_SKILL[name]]
    warm_up(
        policy,
        own,
        other,
        other_share=regime.other_share,
        seed=seed,
        progress=progress,
        **asdict(how),
    )
    save_weights(policy, home)
    aside = home / ".made_with.partial"
    settings = made_with(name, how, regime, seed, files)
    aside.write_text(json.dumps(settings), encoding="utf-8")
    os.replace(aside, home / "made_with.json")
