"""What must be the same for a run to be continued, and what is only noted.

Importable without torch.
"""

from collections.abc import Mapping
from importlib import metadata
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
    same = {"rounds": config.rounds, "output": config.output}
    if stored.model_copy(update=same) != config:
        old, new = stored.model_dump(), config.model_dump()
        keys = sorted(key for key in new if old[key] != new[key] and key not in same)
        raise InputError(
            f"{config.folder} was started with other settings of {keys}; a run resumes with the "
            "settings it has (only rounds may grow); give a new name to start another run"
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
