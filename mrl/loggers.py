"""Loggers beside ``metrics.jsonl``, through their own libraries: TensorBoard, trackio, wandb.

A logger gets a step's figures once. A resumed run computes again the steps after its checkpoint,
and they are the same; those that the broken run had logged are left out.

Importable without torch.
"""

import importlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from mrl.config import LoggingConfig
from mrl.errors import InputError

# Keys of a row that say what it is about.
ABOUT = ("event", "round", "policy", "peer", "tag")

Log = Callable[[int, Mapping[str, float]], None]


def check_loggers(config: LoggingConfig, /) -> None:
    """Refuse a configuration whose loggers are not installed.

    Raises
    ------
    InputError
        Naming the package and how to install it.
    """
    for name, wanted in config.model_dump().items():
        if wanted and find_spec(name) is None:
            raise InputError(
                f"logging.{name} needs the package {name}, which is not installed; install it: "
                f"pip install {name}"
            )


class Loggers:
    """The loggers of a run; use as a context manager.

    Parameters
    ----------
    config : LoggingConfig
        Which.
    folder : Path
        The run's folder.
    run : str
        Name of the run in the loggers; a run that is resumed has the name it had.
    settings : mapping
        The run's configuration, for those that show it.
    logged : iterable of mapping
        Rows that the loggers have had already.
    """

    def __init__(
        self,
        config: LoggingConfig,
        folder: Path,
        run: str,
        settings: Mapping[str, Any],
        logged: Iterable[Mapping[str, Any]] = (),
    ) -> None:
        self._config, self._folder, self._run, self._settings = config, folder, run, settings
        self._logged = {(row["event"], row["round"]) for row in logged}
        self._logs: list[Log] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        if self._config.tensorboard:
            self._logs.append(self._tensorboard())
        if self._config.trackio is not None:
            self._logs.append(self._tracker("trackio", self._config.trackio, {}))
        if self._config.wandb is not None:
            where = {"id": self._run, "dir": str(self._folder)}
            self._logs.append(self._tracker("wandb", self._config.wandb, where))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def write(self, rows: Iterable[Mapping[str, Any]], /) -> None:
        """Log the figures of rows of ``metrics.jsonl``, by the number of rounds done."""
        if not self._logs:
            return
        steps: dict[int, dict[str, float]] = {}
        for row in rows:
            if (row["event"], row["round"]) not in self._logged:
                steps.setdefault(step_of(row), {}).update(figures_of(row))
        for step, figures in steps.items():
            for log in self._logs:
                log(step, figures)

    def _tensorboard(self) -> Log:
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(self._folder / "tensorboard"))
        self._stack.callback(writer.close)

        def log(step: int, figures: Mapping[str, float], /) -> None:
            for name, value in figures.items():
                writer.add_scalar(name, value, step)

        return log

    def _tracker(self, package: str, project: str, more: Mapping[str, Any], /) -> Log:
        """A logger with the interface of wandb, which trackio shares."""
        library = importlib.import_module(package)
        library.init(
            project=project, name=self._run, resume="allow", config=dict(self._settings), **more
        )
        self._stack.callback(library.finish)
        return lambda step, figures: library.log(dict(figures), step=step)


def step_of(row: Mapping[str, Any], /) -> int:
    """Rounds done when a row was written: its own round counts."""
    return int(row["round"]) + (row["event"] == "round")


def figures_of(row: Mapping[str, Any], /) -> dict[str, float]:
    """The numbers of a row, named ``policy/figure``, with peer and tag where it is about one."""
    about = [str(row[key]) for key in ("policy", "peer", "tag") if row.get(key) is not None]
    prefix = "/".join([*about, *([] if row["event"] == "round" else [row["event"]])])
    return {f"{prefix}/{name}": value for name, value in _numbers(row) if not math.isnan(value)}


def _numbers(row: Mapping[str, Any], /) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        if isinstance(value, Mapping):
            yield from ((f"{key}/{name}", number) for name, number in _numbers(value))
        elif key not in ABOUT and isinstance(value, bool | int | float):
            yield key, float(value)
