"""Checkpoints that are whole or not there: written aside, then renamed.

A checkpoint is a folder ``round-000050`` with each policy's weights (as `from_pretrained` reads
them), optimizer and schedule, the exchange's position and the length of the metric files. Its
``manifest.json`` holds the checksum of every file; a folder whose files do not match is refused.
Random streams are functions of (seed, round), so they need no state; the global streams, which
libraries may draw from (dropout), are seeded at a run's start and stored.
"""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mrl.adapters import has_adapters, read_adapters
from mrl.distributed import once
from mrl.errors import RunError
from mrl.exchange import Exchange
from mrl.policy import Policy, save_weights
from mrl.runs import RunFolder
from mrl.seeds import derive

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
    score: float | None = None,
) -> None:
    """Write a checkpoint of `run` and remove all but the newest `keep` and the best.

    Parameters
    ----------
    run, rounds_done, policies, exchange
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
    once(lambda: _write(run, rounds_done, policies, exchange, score))
    if run.writes:
        best = best_of(run.checkpoints)
        for old in _complete(run.checkpoints)[:-keep]:
            if best is None or old != best[0]:
                shutil.rmtree(old, ignore_errors=True)
    run.set_status("running", rounds_done=rounds_done)


def _write(
    run: RunFolder,
    rounds_done: int,
    policies: Sequence[Policy],
    exchange: Exchange,
    score: float | None,
    /,
) -> None:
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
            "score": score,
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
        _seed_global_streams(run.config.seed)
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
    _set_global_streams(torch.load(path / "random.pt", weights_only=True))
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
    torch.save(_global_streams(), partial / "random.pt")


def _seed_global_streams(seed: int, /) -> None:
    random.seed(derive(seed, "global", "python"))
    np.random.seed(derive(seed, "global", "numpy") % 2**32)  # noqa: NPY002 - libraries may use it
    torch.manual_seed(derive(seed, "global", "torch"))


def _global_streams() -> dict[str, Any]:
    state: Any = np.random.get_state()  # noqa: NPY002
    name, keys, *rest = state
    return {
        "python": random.getstate(),
        "numpy": (name, keys.tolist(), *rest),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def _set_global_streams(states: Mapping[str, Any], /) -> None:
    random.setstate(states["python"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, np.array(keys, np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(states["torch"])
    # A machine with other GPUs has no use for the rest.
    for device, state in zip(range(torch.cuda.device_count()), states["cuda"], strict=False):
        torch.cuda.set_rng_state(state, device)


def _read_policy(home: Path, policy: Policy, /) -> None:
    tensors = weights_of(home.parent, policy)
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
