"""A pool of processes that score responses, each verdict bounded in time.

A verdict that takes too long, or ends its process, costs itself alone: the process is replaced, and
what else it was to score goes to others. Results are in the order asked for and do not depend on
the number of processes.

Pools of libraries bound a whole task, so a chunk of responses would be lost with one of them, or
each response would travel alone; and they import the program's main module, here the trainer with
torch, in every process. So this one stands on `subprocess` and `multiprocessing.connection`: a
process imports what its verifier needs and nothing else, is the leader of a session of its own
(an interrupt from the keyboard does not reach it, and what it starts ends with it), and ends when
the parent is gone.
"""

import hashlib
import pickle
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from itertools import islice
from multiprocessing.connection import wait
from typing import TYPE_CHECKING

from mrl.errors import RunError
from mrl.tasks.process import Worker
from mrl.tasks.verdicts import Job, Verdict, Verify

if TYPE_CHECKING:
    from mrl.config import VerificationConfig

# Responses a message; fewer where there are few, so that no worker idles.
CHUNK = 64
# Processes lost in a call up to which it goes on, whatever their share of the verdicts.
LOST = 16
# Verdicts remembered: receivers of a response verify again what its source has verified.
REMEMBERED = 2**16


class Workers:
    """Processes that score responses for one task; callable from several threads, in turn.

    Parameters
    ----------
    verify : callable
        The verifier; pickled. Its method `prepare`, where it has one, is called once a process.
    settings : VerificationConfig
        Bounds.
    count : int
        Processes; they start when they are first needed.
    name : str
        The verifier, in messages.
    """

    def __init__(
        self, verify: Verify, settings: "VerificationConfig", count: int, name: str, /
    ) -> None:
        self.name = name
        self._settings = settings
        self._count = count
        self._verify = verify
        self._lock = threading.Lock()
        self._workers: list[Worker] = []
        self._known: dict[bytes, Verdict] = {}
        # Also when the interpreter exits, or this object is forgotten.
        weakref.finalize(self, _end, self._workers)

    def verdicts(self, jobs: Sequence[Job], /) -> list[Verdict]:
        """One verdict a job, in their order; a job scored before has the verdict it had.

        Raises
        ------
        RunError
            If no worker starts, or more verdicts are lost than `settings.max_lost` allows.
        """
        keys = [_key(job) for job in jobs]
        with self._lock:
            new = [place for place, key in enumerate(keys) if key not in self._known]
            for place, verdict in zip(new, self._score([jobs[i] for i in new]), strict=True):
                self._known[keys[place]] = verdict
            given = [self._known[key] for key in keys]
            for key in list(islice(self._known, max(len(self._known) - REMEMBERED, 0))):
                del self._known[key]
        return given

    def close(self) -> None:
        """End all processes at once."""
        with self._lock:
            _end(self._workers)

    def _score(self, jobs: Sequence[Job], /) -> list[Verdict]:
        found: dict[int, Verdict] = {}
        waiting = deque(range(len(jobs)))
        chunk = min(CHUNK, max(1, len(jobs) // (4 * self._count)))
        lost = 0
        try:
            while len(found) < len(jobs):
                self._staff(min(self._count, len(jobs) - len(found)))
                for worker in self._workers:
                    if worker.ready and not worker.missing and waiting:
                        numbers = [waiting.popleft() for _ in range(min(chunk, len(waiting)))]
                        worker.give(numbers, jobs)
                found |= self._hear()
                for worker in [one for one in self._workers if one.lost.reason]:
                    lost += 1
                    found |= self._replace(worker, waiting)
                    self._check(lost, len(found), worker)
        except BaseException:
            # Answers to this call may be on their way: the next one starts afresh.
            _end(self._workers)
            raise
        return [found[place] for place in range(len(jobs))]

    def _staff(self, count: int, /) -> None:
        """Start the workers that are missing."""
        missing = count - len(self._workers)
        try:
            started = [Worker.start(self._settings) for _ in range(missing)]
        except OSError as error:
            raise RunError(
                f"no process can be started for the verifier {self.name!r}: {error}; free memory "
                "or lower task.verification.workers, then continue with --resume"
            ) from None
        self._workers += started
        content = pickle.dumps(self._verify) if started else b""
        for worker in started:
            worker.send(content)

    def _hear(self) -> dict[int, Verdict]:
        """Wait until a worker says something, or should have; the verdicts that came."""
        found: dict[int, Verdict] = {}
        if any(worker.lost.reason for worker in self._workers):
            return found  # one was gone when it was to get jobs: it is replaced first
        busy = [worker for worker in self._workers if worker.missing or not worker.ready]
        first = min(worker.deadline for worker in busy)
        speaking = wait([one.connection for one in busy], max(0.0, first - time.monotonic()))
        for worker in busy:
            if worker.connection in speaking:
                found |= worker.hear()
            elif time.monotonic() > worker.deadline:
                worker.end(late=True)
        return found

    def _replace(self, worker: Worker, waiting: deque[int], /) -> dict[int, Verdict]:
        """Take a lost worker out; what it was at has its verdict, the rest goes to others."""
        self._workers.remove(worker)
        if not worker.ready:
            raise RunError(
                f"the verifier {self.name!r} does not start in a worker process: "
                f"{worker.lost.detail}; correct it, or give its process more memory with "
                "task.verification.memory"
            )
        # Last in the queue: if all fail, that is known soonest from the others.
        waiting += [number for number in worker.missing if number != worker.culprit]
        return {} if worker.culprit is None else {worker.culprit: worker.lost}

    def _check(self, lost: int, done: int, worker: Worker, /) -> None:
        if lost >= LOST and lost > self._settings.max_lost * done:
            raise RunError(
                f"the verifier {self.name!r} lost {lost} of the {done} responses that it was "
                f"asked about last: they ran out of time or ended its process (the last: "
                f"{worker.lost.detail}). Correct the verifier, raise task.verification.timeout, "
                "or let it lose more with task.verification.max_lost; the last checkpoint is "
                "whole, continue with --resume"
            )


def _key(job: Job, /) -> bytes:
    item, response, finished = job
    return hashlib.sha256(f"{item.prompt_id}:{finished}:".encode() + response).digest()


def _end(workers: list[Worker], /) -> None:
    while workers:
        workers.pop().end()
