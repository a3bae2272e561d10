"""Checkpoints that are whole or not there: written aside, then renamed.

A checkpoint is a folder ``round-000050`` with each policy's weights (as `from_pretrained` reads
them), optimizer and schedule, the exchange's position and the length of the metric files. Its
``manifest.json`` holds the checksum of every file; a folder whose files do not match is refused.
Random streams are functions of (seed, round), so they need no state; torch's global stream
(dropout) is stored.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from mrl.errors import RunError
from mrl.exchange import Exchange
from mrl.policy import Policy, save_weights
from mrl.runs import RunFolder

PREFIX = "round-"
MANIFEST = "manifest.json"


def save(
    run: RunFolder,
    rounds_done: int,
    policies: Sequence[Policy],
    exchange: Exchange,
    /,
    *,
    keep: int,
) -> Path:
    """Write a checkpoint of `run` and remove all but the newest `keep`.

    Raises
    ------
    RunError
        If it could not be written; what was there before is untouched.
    """
    folder = run.checkpoints
    final = folder / f"{PREFIX}{rounds_done:06d}"
    partial = folder / f".{final.name}.partial"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        _write_policies(partial, policies)
        (partial / "exchange.bin").write_bytes(exchange.snapshot())
        content = {
            "rounds_done": rounds_done,
            "positions": run.positions(),
            "policies": [policy.name for policy in policies],
            "files": _checksums(partial),
        }
        (partial / MANIFEST).write_text(json.dumps(content, indent=1), encoding="utf-8")
        for path in partial.rglob("*"):
            _sync(path)
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
        _sync(folder)
    except Exception as error:  # torch and safetensors wrap a full disk in errors of their own
        shutil.rmtree(partial, ignore_errors=True)
        raise RunError(
            f"the checkpoint of round {rounds_done} could not be written to {folder}: {error}. "
            "Earlier checkpoints are whole; free space, then continue with --resume"
        ) from error
    for old in _complete(folder)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    run.set_status("running", rounds_done=rounds_done)
    return final


def restore(run: RunFolder, policies: Sequence[Policy], exchange: Exchange, /) -> int:
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
        exchange.rollback(0)
        return 0
    content = load(path, policies)
    rounds_done: int = content["rounds_done"]
    run.rewind(content["positions"])
    exchange.restore((path / "exchange.bin").read_bytes())
    exchange.rollback(rounds_done)
    return rounds_done


def latest(folder: Path, /) -> Path | None:
    """The newest whole checkpoint, or None where there is none."""
    complete = _complete(folder)
    return complete[-1] if complete else None


def load(path: Path, policies: Sequence[Policy], /) -> dict[str, Any]:
    """Put weights, optimizers and schedules of a checkpoint into `policies`; returns its manifest.

    Raises
    ------
    RunError
        If a file is missing or damaged, or the checkpoint is of other policies.
    """
    try:
        content: dict[str, Any] = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        expected, found = content["files"], _checksums(path)
        whole = {"rounds_done", "positions", "policies"} <= set(content)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(path, f"its {MANIFEST} cannot be read ({error})") from None
    if not whole:
        raise _damaged(path, f"its {MANIFEST} lacks entries")
    for name, checksum in expected.items():
        if found.get(name) != checksum:
            what = "is missing" if name not in found else "does not match its checksum"
            raise _damaged(path, f"{name} {what}")
    names = [policy.name for policy in policies]
    if content["policies"] != names:
        raise RunError(
            f"checkpoint {path} is of policies {content['policies']}; the configuration has {names}"
        )
    for policy in policies:
        _read_policy(path / policy.name, policy)
    torch.set_rng_state(torch.load(path / "torch_rng.pt", weights_only=True))
    return content


def weights_of(path: Path, policy: Policy, /) -> Mapping[str, torch.Tensor]:
    """The stored parameters of one policy."""
    from safetensors.torch import load_file

    tensors: dict[str, torch.Tensor] = {}
    for file in sorted((path / policy.name).glob("*.safetensors")):
        tensors.update(load_file(file))
    return tensors


def _write_policies(partial: Path, policies: Sequence[Policy], /) -> None:
    for policy in policies:
        home = partial / policy.name
        save_weights(policy, home)
        training = {
            "optimizer": policy.optim.state_dict(),
            "schedule": policy.schedule.state_dict(),
        }
        torch.save(training, home / "training.pt")
    torch.save(torch.get_rng_state(), partial / "torch_rng.pt")


def _read_policy(home: Path, policy: Policy, /) -> None:
    missing, unexpected = policy.model.load_state_dict(
        weights_of(home.parent, policy), strict=False
    )
    # Tied weights are stored once, under one of their names.
    tied = set(getattr(policy.model, "_tied_weights_keys", None) or ())
    if unexpected or set(missing) - tied:
        raise RunError(
            f"checkpoint {home} does not fit the model of policy {policy.name!r}: "
            f"missing {sorted(set(missing) - tied)}, unexpected {sorted(unexpected)}"
        )
    training: dict[str, Any] = torch.load(home / "training.pt", weights_only=True)
    policy.optim.load_state_dict(training["optimizer"])
    policy.schedule.load_state_dict(training["schedule"])


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
