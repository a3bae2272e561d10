"""Checkpoints that are whole or not there: written aside, then renamed.

A checkpoint is a folder ``round-000050`` with each policy's weights (as `from_pretrained` reads
them), optimizer and schedule, the exchange's position and the length of the metric files. Its
``manifest.json`` holds the checksum of every file; a folder whose files do not match is refused.
Random streams are functions of (seed, round), the global ones of libraries (dropout) included, so
they need no state.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mrl.adapters import has_adapters, read_adapters
from mrl.distributed import once
from mrl.errors import RunError
from mrl.policy import Policy, save_weights
from mrl.runs import RunFolder
from mrl.runtime import Team

PREFIX = "round-"
MANIFEST = "manifest.json"


def save(
    run: RunFolder,
    rounds_done: int,
    team: Team,
    /,
    *,
    keep: int,
    score: float | None = None,
) -> None:
    """Write a checkpoint of `run` and remove all but the newest `keep` and the best.

    Parameters
    ----------
    run, rounds_done, team
        What is stored.
    keep : int
        Newest checkpoints that stay.
    score : float, optional
        What the evaluation after these rounds found; of the checkpoints that have one, that with
        the highest is the best.

    Raises
    ------
    RunError
        If it could not be written; what was there before is untouched.
    """
    once(lambda: _write(run, rounds_done, team, score))
    if run.writes:
        best = best_of(run.checkpoints)
        for old in _complete(run.checkpoints)[:-keep]:
            if best is None or old != best[0]:
                shutil.rmtree(old, ignore_errors=True)
    run.set_status("running", rounds_done=rounds_done)


def _write(run: RunFolder, rounds_done: int, team: Team, score: float | None, /) -> None:
    folder = run.checkpoints
    final = folder / f"{PREFIX}{rounds_done:06d}"
    partial = folder / f".{final.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        team.save(partial)
        (partial / "exchange.bin").write_bytes(team.exchange.snapshot())
        content = {
            "rounds_done": rounds_done,
            "score": score,
            "positions": run.positions(),
            "policies": team.names,
            "files": _checksums(partial),
        }
        (partial / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")
        for path in partial.rglob("*"):
            _sync(path)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync(folder)
    except RunError:  # who was to write is lost
        shutil.rmtree(partial, ignore_errors=True)
        raise
    except Exception as error:  # torch and safetensors wrap a full disk in errors of their own
        shutil.rmtree(partial, ignore_errors=True)
        raise RunError(
            f"the checkpoint of round {rounds_done} could not be written to {folder}: {error}. "
            "Earlier checkpoints are whole; free space, then continue with --resume"
        ) from error


def restore(run: RunFolder, team: Team, /) -> int:
    """Put a resumed run back to its newest checkpoint, any other to its start.

    Returns
    -------
    int
        The rounds done.

    Raises
    ------
    RunError
        If a file is missing or damaged, or the checkpoint is of other policies.
    """
    path = latest(run.checkpoints) if run.resumed else None
    if path is None:
        done = run.status.get("rounds_done", 0)
        if run.resumed and done > 0:
            raise RunError(
                f"{run.path} has trained {done} rounds, but {run.checkpoints} holds no checkpoint; "
                "put it back, or start the run again under another name"
            )
        run.rewind({})
        team.exchange.rollback(0)
        return 0
    content = whole(path, team.names)
    rounds_done: int = content["rounds_done"]
    team.load(path)
    run.rewind(content["positions"])
    team.exchange.restore((path / "exchange.bin").read_bytes())
    team.exchange.rollback(rounds_done)
    return rounds_done


def latest(folder: Path, /) -> Path | None:
    """The newest whole checkpoint, or None where there is none."""
    complete = _complete(folder)
    return complete[-1] if complete else None


def best_of(folder: Path, /) -> tuple[Path, float] | None:
    """The checkpoint with the highest score, of equals the oldest; None where none has one."""
    scores = [(path, score) for path in _complete(folder) if (score := _score(path)) is not None]
    return max(scores, key=lambda pair: pair[1]) if scores else None


def _score(path: Path, /) -> float | None:
    try:
        score = json.loads((path / MANIFEST).read_text(encoding="utf-8")).get("score")
    except (OSError, ValueError, AttributeError):
        return None  # a damaged checkpoint is refused where it is loaded
    return score if isinstance(score, float) else None


def whole(path: Path, names: Sequence[str], /) -> dict[str, Any]:
    """The manifest of a checkpoint, held against its files and the policies that it should have.

    Raises
    ------
    RunError
        If a file is missing or damaged, or the checkpoint is of other policies.
    """
    try:
        content: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        expected, found = content["files"], _checksums(path)
        entries = {"rounds_done", "positions", "policies"} <= set(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its {MANIFEST} cannot be read ({error})") from None
    if not entries:
        raise _damaged(path, f"its {MANIFEST} lacks entries")
    for name, checksum in expected.items():
        if found.get(name) != checksum:
            what = "is missing" if name not in found else "does not match its checksum"
            raise _damaged(path, f"{name} {what}")
    if content["policies"] != list(names):
        raise RunError(
            f"checkpoint {path} is of policies {content['policies']}; the configuration has {names}"
        )
    return content


def write_policy(home: Path, policy: Policy, /) -> None:
    """Write a policy's weights, optimizer and schedule into its folder of a checkpoint."""
    save_weights(policy, home)
    training = {
        "optimizer": policy.optim.state_dict(),
        "schedule": policy.schedule.state_dict(),
    }
    torch.save(training, home / "training.pt")


def read_policy(home: Path, policy: Policy, /) -> None:
    """Put what `write_policy` wrote into a policy.

    Raises
    ------
    RunError
        If it is of another model.
    """
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(home.glob("*.safetensors")):
        tensors.update(load_file(file))
    if has_adapters(policy.model):
        unknown = read_adapters(policy.model, tensors)
    else:
        missing, unexpected = policy.model.load_state_dict(tensors, strict=False)
        # Tied weights are stored once, under one of their names.
        tied = set(getattr(policy.model, "_tied_weights_keys", None) or ())
        unknown = sorted({*unexpected, *missing} - tied)
    if unknown:
        raise RunError(
            f"checkpoint {home} does not fit the model of policy {policy.name!r}: one of them "
            f"lacks {unknown}; the configuration must name the model it was trained from"
        )
    training: dict[str, Any] = torch.load(home / "training.pt", weights_only=True)
    policy.optim.load_state_dict(training["optimizer"])
    policy.schedule.load_state_dict(training["schedule"])
    policy.sync()


def _complete(folder: Path, /) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.name.startswith(PREFIX))


def _checksums(path: Path, /) -> dict[str, str]:
    files = sorted(file for file in path.rglob("*") if file.is_file() and file.name != MANIFEST)
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
    }


def _sync(path: Path, /) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _damaged(path: Path, what: str, /) -> RunError:
    others = [other.name for other in _complete(path.parent) if other != path]
    way_out = f"remove {path} and resume from {others[-1]}" if others else "start the run again"
    return RunError(f"checkpoint {path} is damaged: {what}; {way_out}")
