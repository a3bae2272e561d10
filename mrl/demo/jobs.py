"""Independent jobs on a few worker processes, one thread each, with a progress line."""

import multiprocessing
import os
import queue
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Report = Callable[[int], None]
MAX_WORKERS = 8


@dataclass(frozen=True)
class Job:
    """A function of picklable arguments that reports its progress; `size` is its last report."""

    name: str
    size: int
    function: Callable[..., None]
    arguments: tuple[Any, ...]


def run_jobs(jobs: Sequence[Job], console: Console, /, *, title: str) -> None:
    """Run all jobs; the first that fails stops the others and raises its error here.

    What a job computes does not depend on the number of workers.
    """
    if not jobs:
        return
    context = multiprocessing.get_context("spawn")
    workers = min(len(jobs), os.cpu_count() or 1, MAX_WORKERS)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with (
        _single_threads(),
        context.Manager() as manager,
        Progress(*columns, console=console) as progress,
        ProcessPoolExecutor(workers, mp_context=context) as pool,
    ):
        reports = manager.Queue()
        total = sum(job.size for job in jobs)
        line = progress.add_task(title, total=total, now="")
        futures = {
            pool.submit(_run, job.function, job.arguments, job.name, reports): job for job in jobs
        }
        done: dict[str, int] = {}
        waiting: set[Future[None]] = set(futures)
        try:
            while waiting:
                finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_EXCEPTION)
                _drain(reports, done)
                for future in finished:
                    future.result()
                    done[futures[future].name] = futures[future].size
                sizes = {job.name: job.size for job in jobs}
                now = [name for name, count in done.items() if count < sizes[name]]
                progress.update(line, completed=sum(done.values()), now=", ".join(now))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(
    function: Callable[..., None], arguments: tuple[Any, ...], name: str, reports: Any
) -> None:
    import torch

    torch.set_num_threads(1)

    def report(count: int, /) -> None:
        reports.put((name, count))

    function(*arguments, report)


def _drain(reports: Any, done: dict[str, int], /) -> None:
    while True:
        try:
            name, count = reports.get_nowait()
        except queue.Empty:
            return
        done[name] = count


class _single_threads:
    """Environment in which a worker's libraries start with one thread each."""

    NAMES: Mapping[str, str] = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

    def __enter__(self) -> None:
        self.before = {name: os.environ.get(name) for name in self.NAMES}
        os.environ.update(self.NAMES)

    def __exit__(self, *_: object) -> None:
        for name, value in self.before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
