"""What must be the same for a run to be continued, and what is only noted.

Importable without torch.
"""

from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from mrl.config import RunConfig
from mrl.errors import InputError

PACKAGES = ("mutual-rl", "numpy", "torch", "transformers", "tokenizers", "peft")


def check_same(stored: RunConfig, config: RunConfig, /) -> None:
    """Refuse to continue a run with settings that would have given another one.

    Raises
    ------
    InputError
        Naming the settings that differ.
    """
    task = stored.task.model_copy(update={"verification": config.task.verification})
    same = {"rounds": config.rounds, "output": config.output, "task": task}
    if (before := stored.model_copy(update=same)) != config:
        old, new = before.model_dump(), config.model_dump()
        keys = sorted(key for key in new if old[key] != new[key])
        raise InputError(
            f"{config.folder} was started with other settings of {keys}; a run resumes with the "
            "settings it has (only rounds may grow, and task.verification change); give a new "
            "name to start another run"
        )
    bound = [
        policy.name
        for policy in config.policies
        if policy.optimizer.schedule != "constant" and policy.optimizer.decay_rounds is None
    ]
    if bound and config.rounds != stored.rounds:
        raise InputError(
            f"rounds={config.rounds}, but the learning rates of policies {bound} fall to 0 over "
            f"the {stored.rounds} rounds that {config.folder} was started with; a run that may "
            "grow needs optimizer.decay_rounds"
        )


def check_items(status: Mapping[str, Any], items: str, folder: Path, /) -> None:
    """Refuse to continue a run on other items of its task.

    Parameters
    ----------
    status : mapping
        The content of its ``run.json``.
    items : str
        Fingerprint of the items now.
    folder : Path
        Its folder, for the message.

    Raises
    ------
    InputError
        If the fingerprint is not that of the run's start.
    """
    if status.get("items", items) != items:
        raise InputError(
            f"{folder} was started with other items of the task: its file, its data set or the "
            "library that makes it has changed (some reasoning-gym tasks need the same "
            "PYTHONHASHSEED); a run resumes with the items it has, so put them back, or give a "
            "new name to start another run"
        )


def changed_versions(status: Mapping[str, Any], /) -> list[str]:
    """A note where packages are not those that the run had before; its earlier notes stay."""
    before, now = status.get("versions", {}), versions()
    changed = [
        f"{name} {before[name]} -> {now[name]}"
        for name in now
        if before.get(name, now[name]) != now[name]
    ]
    notes = list(status.get("notes", []))
    if changed:
        notes.append(
            f"resumed after {status.get('rounds_done', 0)} rounds with other versions of "
            f"{', '.join(changed)}: these rounds and the earlier ones may differ in rounding"
        )
    return notes


def versions() -> dict[str, str]:
    """Versions of the packages that a run's numbers depend on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
