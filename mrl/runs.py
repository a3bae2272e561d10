"""A run's folder: configuration, status, metrics, timing, samples and checkpoints.

``metrics.jsonl`` and ``samples.jsonl`` are functions of (configuration, seed) and the same after a
resume, bit for bit; wall-clock times are kept apart in ``timing.jsonl``.
"""

import json
import os
import uuid
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from filelock import FileLock, Timeout

from mrl.config import RunConfig, dump, load
from mrl.distributed import once, rank
from mrl.errors import InputError, RunError
from mrl.loggers import Loggers, check_loggers
from mrl.resume import changed_versions, check_items, check_same, versions

STREAMS = ("metrics", "timing", "samples")


@dataclass(eq=False)
class RunFolder:
    """A run's folder and its open files; use as a context manager.

    Of several processes that play the run the first alone writes.
    """

    config: RunConfig
    items: str = ""
    """Fingerprint of the task's items."""
    unvalidated: bool = False
    resumed: bool = False
    status: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """What a reader of the run should know."""
    _stack: ExitStack = field(default_factory=ExitStack, repr=False)
    _files: dict[str, Any] = field(default_factory=dict, repr=False)
    _lease: FileLock | None = None

    @property
    def path(self) -> Path:
        """The folder."""
        return self.config.folder

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes."""
        return rank() == 0

    @classmethod
    def open(cls, config: RunConfig, items: str, /, *, resume: bool, unvalidated: bool) -> Self:
        """The folder of a new run, or of one to be continued; `items`: the task's fingerprint.

        Raises
        ------
        InputError
            If another process has it, it cannot be written, or a logger is not installed. For a
            new run: if it holds one already. For one to be continued: if there is none, its
            configuration or the task's items are others (`check_same`, `check_items`), or it has
            more rounds behind it already.
        RunError
            If the folder of a run to be continued cannot be written.
        """
        check_loggers(config.logging)
        run = cls(config, items, unvalidated=unvalidated, resumed=resume)
        try:
            run.status, run.notes, run.unvalidated = once(run._reopen if resume else run._create)
        except BaseException:
            run._close()
            raise
        return run

    def _create(self) -> tuple[dict[str, Any], list[str], bool]:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock()
            self._refuse_a_second_run()
            self._write_config()
        except OSError as error:
            raise InputError(
                f"cannot write to {self.path}: {error.strerror}; choose another output"
            ) from None
        return {"id": uuid.uuid4().hex, "items": self.items}, [], self.unvalidated

    def _refuse_a_second_run(self) -> None:
        if (self.path / "config.yaml").exists():
            raise InputError(
                f"{self.path} holds a run already; continue it with --resume, or set another "
                "name or output"
            )

    def _reopen(self) -> tuple[dict[str, Any], list[str], bool]:
        if not (self.path / "config.yaml").exists():
            raise InputError(f"{self.path} holds no run to resume; start it without --resume")
        check_same(load(self.path / "config.yaml"), self.config)
        status = {"id": uuid.uuid4().hex} | read_status(self.path)
        check_items(status, self.items, self.path)
        done = status.get("rounds_done", 0)
        if self.config.rounds < done:
            raise InputError(
                f"rounds={self.config.rounds}, but {self.path} has trained {done}; expected at "
                "least that many"
            )
        try:
            self._lock()
            self._write_config()
        except OSError as error:
            raise RunError(
                f"cannot write to {self.path}: {error.strerror}; free space, then continue with "
                "--resume"
            ) from None
        unvalidated = self.unvalidated or bool(status.get("unvalidated"))
        return status, changed_versions(status), unvalidated

    def _lock(self) -> None:
        """Keep other processes out while this one lives; the lock of a dead one is no hindrance."""
        lock = FileLock(self.path / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise InputError(
                f"{self.path} is in use by another process; wait for its end, or set another name "
                "or output"
            ) from None
        self._lease = lock

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
        if not self.writes:
            return self
        try:
            self.set_status("running")
            self._files = {
                name: self._stack.enter_context((self.path / f"{name}.jsonl").open("a+b"))
                for name in STREAMS
            }
            self._loggers = self._stack.enter_context(self._open_loggers())
        except BaseException as error:
            self._close()
            if isinstance(error, OSError):
                raise RunError(f"cannot write {error.filename}: {error.strerror}") from None
            raise
        return self

    def _open_loggers(self) -> Loggers:
        logged: list[Any] = []
        if any(self.config.logging.model_dump().values()):
            metrics = self._files["metrics"]
            metrics.seek(0)
            logged = [json.loads(line) for line in metrics if line.endswith(b"\n")]
        name = f"{self.config.name}-{self.status['id'][:8]}"
        settings = self.config.model_dump(mode="json")
        return Loggers(self.config.logging, self.path, name, settings, logged)

    def __exit__(self, kind: type | None, error: BaseException | None, _: object) -> None:
        status, said = "finished", None
        if isinstance(error, KeyboardInterrupt | SystemExit):
            status = "stopped"
        elif error is not None:
            status, said = "failed", f"{type(error).__name__}: {error}"
            done = self.status.get("rounds_done", 0)
            error.add_note(f"{self.path} is whole up to round {done}; continue it with --resume")
        try:
            self._stack.close()
        except OSError:
            # A full disk refuses the buffers once more; the error on its way says so already.
            if error is None:
                self._close()
                raise
        self.set_status(status, error=said)
        self._close()

    def _close(self) -> None:
        self._stack.close()
        if self._lease is not None:
            self._lease.release()

    def write(self, stream: str, rows: Iterable[Mapping[str, Any]], /) -> None:
        """Append rows to a stream; metrics also go to the loggers.

        Raises
        ------
        RunError
            If the disk does not take them.
        """
        if not self._files:
            return
        listed = list(rows)
        try:
            for row in listed:
                text = json.dumps(_without_nan(row), allow_nan=False, ensure_ascii=False)
                self._files[stream].write(text.encode() + b"\n")
            self._files[stream].flush()
            if stream == "metrics":
                self._loggers.write(listed)
        except OSError as error:
            raise RunError(
                f"cannot write {stream}.jsonl in {self.path}: {error.strerror}; the last "
                "checkpoint is whole, continue with --resume"
            ) from None

    def write_timing(self, round: int, phases: Mapping[Any, Mapping[str, float]], /) -> None:
        """Append the seconds of a round's phases; the key None is for what policies share."""
        self.write(
            "timing",
            (
                {"round": round, "policy": name, "phases": dict(seconds)}
                for name, seconds in phases.items()
                if seconds
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
        if not self.writes:
            return
        self.status = {
            **self.status,
            "status": status,
            "unvalidated": self.unvalidated,
            "versions": versions(),
            "error": None,
            **more,
        }
        try:
            _write_status(self.path, self.status)
        except OSError as error:
            if status != "failed":
                raise RunError(f"cannot write {self.path}/run.json: {error.strerror}") from None


def _write_status(path: Path, status: Mapping[str, Any], /) -> None:
    aside = path / ".run.json.partial"
    aside.write_text(json.dumps(status, indent=1), encoding="utf-8")
    aside.rename(path / "run.json")


def add_note(path: Path, note: str, /) -> None:
    """Add to what a reader of a run, which nobody plays just now, should know."""
    status = read_status(path)
    _write_status(path, status | {"notes": [*status.get("notes", []), note]})


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
