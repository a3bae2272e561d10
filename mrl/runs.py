"""A run's folder: configuration, status, metrics, timing, samples and checkpoints.

``metrics.jsonl`` and ``samples.jsonl`` are functions of (configuration, seed) and the same after a
resume, bit for bit; wall-clock times are kept apart in ``timing.jsonl``.
"""

import json
import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Self

from mrl.config import RunConfig, dump, load
from mrl.errors import InputError, RunError
from mrl.timing import Phases

STREAMS = ("metrics", "timing", "samples")
PACKAGES = ("mutual-rl", "numpy", "torch", "transformers", "tokenizers")


@dataclass(eq=False)
class RunFolder:
    """Open files of a run; use as a context manager."""

    config: RunConfig
    unvalidated: bool = False
    resumed: bool = False
    status: dict[str, Any] = field(default_factory=dict)
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)

    @property
    def path(self) -> Path:
        """The folder."""
        return self.config.folder

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @classmethod
    def open(cls, config: RunConfig, items: str, /, *, resume: bool, unvalidated: bool) -> Self:
        """The folder of a new run, or of one to be continued; `items`: the task's fingerprint."""
        if resume:
            opened = cls.reopen(config, items)
        else:
            opened = cls.create(config, unvalidated=unvalidated)
        opened.unvalidated |= unvalidated
        opened.status = {**opened.status, "items": items}
        return opened

    @classmethod
    def create(cls, config: RunConfig, /, *, unvalidated: bool) -> Self:
        """Make the folder of a new run.

        Raises
        ------
        InputError
            If the folder holds a run already or cannot be written.
        """
        run = cls(config, unvalidated=unvalidated)
        if (run.path / "config.yaml").exists():
            raise InputError(
                f"{run.path} holds a run already; continue it with --resume, or set another "
                "name or output"
            )
        try:
            run.path.mkdir(parents=True, exist_ok=True)
            run._write_config()
        except OSError as error:
            raise InputError(
                f"cannot write to {run.path}: {error.strerror}; choose another output"
            ) from None
        return run

    @classmethod
    def reopen(cls, config: RunConfig, items: str, /) -> Self:
        """Open the folder of a run to be continued.

        Raises
        ------
        InputError
            If there is none, its configuration differs in more than `rounds` and
            ``task.verification``, the task's items are others, or it has more rounds behind it
            already.
        RunError
            If it cannot be written.
        """
        run = cls(config, resumed=True)
        if not (run.path / "config.yaml").exists():
            raise InputError(f"{run.path} holds no run to resume; start it without --resume")
        stored = load(run.path / "config.yaml")
        bounds = {"verification": config.task.verification}
        task = stored.task.model_copy(update=bounds)
        stored = stored.model_copy(
            update={"rounds": config.rounds, "output": config.output, "task": task}
        )
        if stored != config:
            old, new = stored.model_dump(), config.model_dump()
            keys = sorted(key for key in new if old[key] != new[key])
            raise InputError(
                f"{run.path} was started with other settings of {keys}; a run resumes with the "
                "settings it has (only rounds may grow, and task.verification change); give a new "
                "name to start another run"
            )
        run.status = read_status(run.path)
        run.unvalidated = bool(run.status.get("unvalidated"))
        if run.status.get("items", items) != items:
            raise InputError(
                f"{run.path} was started with other items of the task: its file, its data set or "
                "the library that makes it has changed (some reasoning-gym tasks need the same "
                "PYTHONHASHSEED); a run resumes with the items it has, so put them back, or give "
                "a new name to start another run"
            )
        done = run.status.get("rounds_done", 0)
        if config.rounds < done:
            raise InputError(
                f"rounds={config.rounds}, but {run.path} has trained {done}; expected at least "
                "that many"
            )
        try:
            run._write_config()
        except OSError as error:
            raise RunError(
                f"cannot write to {run.path}: {error.strerror}; free space, then continue with "
                "--resume"
            ) from None
        return run

    def _write_config(self) -> None:
        """Write ``config.yaml`` whole: a disk that is full leaves the old one, or none."""
        aside = self.path / ".config.yaml.partial"
        try:
            aside.write_text(dump(self.config), encoding="utf-8")
            aside.rename(self.path / "config.yaml")
        except OSError:
            aside.unlink(missing_ok=True)
            raise

    def __enter__(self) -> Self:
        self.set_status("running")
        try:
            self._files = {
                name: self._stack.enter_context((self.path / f"{name}.jsonl").open("ab"))
                for name in STREAMS
            }
        except OSError as error:
            self._stack.close()
            raise RunError(f"cannot write {error.filename}: {error.strerror}") from None
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        try:
            self._stack.close()
        except OSError:
            # A full disk refuses the buffers once more; the error on its way says so already.
            if error is None:
                raise
        if error is None:
            self.set_status("finished")
        else:
            self.set_status("failed", error=f"{type(error).__name__}: {error}")

    def write(self, stream: str, rows: Iterable[Mapping[str, Any]], /) -> None:
        """Append rows to a stream.

        Raises
        ------
        RunError
            If the disk does not take them.
        """
        try:
            for row in rows:
                text = json.dumps(_without_nan(row), allow_nan=False, ensure_ascii=False)
                self._files[stream].write(text.encode() + b"\n")
            self._files[stream].flush()
        except OSError as error:
            raise RunError(
                f"cannot write {stream}.jsonl in {self.path}: {error.strerror}; the last "
                "checkpoint is whole, continue with --resume"
            ) from None

    def write_timing(self, round: int, phases: Mapping[Any, Phases], /) -> None:
        """Append the phase times of a round; the key None is for what policies share."""
        self.write(
            "timing",
            (
                {"round": round, "policy": name, "phases": dict(spent.seconds)}
                for name, spent in phases.items()
                if spent.seconds
            ),
        )

    def positions(self) -> dict[str, int]:
        """Length of each stream in bytes; they are on disk when this returns."""
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
        return {name: file.tell() for name, file in self._files.items()}

    def rewind(self, positions: Mapping[str, int], /) -> None:
        """Cut the streams back to where a checkpoint was taken.

        Raises
        ------
        RunError
            If a stream is shorter than it was then: something removed what it held.
        """
        for name, file in self._files.items():
            size, position = file.seek(0, os.SEEK_END), positions.get(name, 0)
            if size < position:
                raise RunError(
                    f"{self.path / name}.jsonl has {size} bytes; its checkpoint was taken at "
                    f"{position}. Put the file back as it was, or start the run again"
                )
        for name, file in self._files.items():
            file.truncate(positions.get(name, 0))
            file.seek(0, os.SEEK_END)

    def set_status(self, status: str, /, **more: Any) -> None:
        """Write ``run.json`` whole."""
        self.status = {
            **self.status,
            "status": status,
            "unvalidated": self.unvalidated,
            "versions": versions(),
            "error": None,
            **more,
        }
        aside = self.path / ".run.json.partial"
        try:
            aside.write_text(json.dumps(self.status, indent=1), encoding="utf-8")
            aside.rename(self.path / "run.json")
        except OSError as error:
            if status != "failed":
                raise RunError(f"cannot write {self.path}/run.json: {error.strerror}") from None


def _without_nan(row: Mapping[str, Any], /) -> dict[str, Any]:
    """The row with null for figures that do not exist."""
    return {key: None if value != value else value for key, value in row.items()}


def read_status(path: Path, /) -> dict[str, Any]:
    """The content of a run's ``run.json``; empty where there is none."""
    try:
        status: dict[str, Any] = json.loads((path / "run.json").read_text(encoding="utf-8"))
        if not isinstance(status, dict):
            raise ValueError("it holds no mapping")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RunError(f"{path / 'run.json'} cannot be read: {error}; remove it") from None
    return status


def versions() -> dict[str, str]:
    """Versions of the packages that a run's numbers depend on."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found
