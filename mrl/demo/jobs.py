"""Independent jobs on a few worker processes, one thread each, with a progress line."""

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mrl.environment import environment
from mrl.errors import RunError

MAX_WORKERS = 8
# A worker's libraries start with one thread each.
SINGLE_THREADS = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Job:
    """A function of picklable arguments that reports its progress; `size` is its last report."""

    name: str
    size: int
    function: Callable[..., None]
    arguments: tuple[Any, ...]


class Workers:
    """Worker processes that live as long as this context; started when first needed.

    What a job computes does not depend on their number.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stack = ExitStack()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._stack.close()

    def run(self, jobs: Sequence[Job], /, *, title: str) -> None:
        """Run all jobs with a progress line; the first that fails raises its error here."""
        if not jobs:
            return
        pool, reports = self._started()
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[now]}"),
        )
        sizes = {job.name: job.size for job in jobs}
        done: dict[str, int] = {}
        futures = {
            pool.submit(_run, job.function, job.arguments, job.name, reports): job for job in jobs
        }
        waiting: set[Future[None]] = set(futures)
        with Progress(*columns, console=self._console) as progress:
            line = progress.add_task(title, total=sum(sizes.values()), now="")
            while waiting:
                finished, waiting = wait(waiting, timeout=0.2, return_when=FIRST_EXCEPTION)
                _drain(reports, done)
                for future in finished:
                    try:
                        future.result()
                    except BrokenProcessPool:
                        raise RunError(
                            f"a worker process of {title} was killed, perhaps for want of memory; "
                            "run it again, finished parts are kept"
                        ) from None
                    done[futures[future].name] = futures[future].size
                now = [name for name, count in done.items() if count < sizes[name]]
                progress.update(line, completed=sum(done.values()), now=", ".join(now))

    def _started(self) -> tuple[ProcessPoolExecutor, Any]:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._stack.enter_context(environment(SINGLE_THREADS))
            self._reports = self._stack.enter_context(context.Manager()).Queue()
            workers = min(os.cpu_count() or 1, MAX_WORKERS)
            self._pool = ProcessPoolExecutor(workers, context, initializer=_start_worker)
        return self._pool, self._reports


def _start_worker() -> None:
    """One thread of computation, and an end with the process that started the worker."""
    import torch

    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_follow, args=(parent.sentinel,), daemon=True).start()


def _follow(sentinel: int, /) -> None:
    connection.wait([sentinel])
    os._exit(1)


def _run(
    function: Callable[..., None], arguments: tuple[Any, ...], name: str, reports: Any
) -> None:
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
