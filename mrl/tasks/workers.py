"""A pool of processes that score responses, each verdict bounded in time.

A process whose verdict takes too long, or that ends by itself, costs that verdict alone: it is
replaced, and what else it was to score goes to others. Results are in the order asked for and do
not depend on the number of processes.

Pools of libraries bound a whole task, so a chunk of responses would be lost with one of them, or
each response would travel alone; and they import the program's main module, here the trainer with
torch, in every process. So this one stands on `subprocess` and `multiprocessing.connection`: a
process imports what its verifier needs and nothing else, is the leader of a session of its own
(an interrupt from the keyboard does not reach it, and what it starts ends with it), and ends when
the parent is gone.
"""

import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing.connection import Connection, Pipe, wait
from typing import TYPE_CHECKING

from mrl.errors import RunError
from mrl.tasks.verdicts import Job, Verdict, Verify

if TYPE_CHECKING:
    from mrl.config import VerificationConfig

# Responses a message; fewer where there are few, so that no worker idles.
CHUNK = 16
# Seconds within which a worker must have imported what its verifier needs.
START = 120.0
# Seconds after the worker's own timer at which the parent ends it: verifiers can disarm timers.
GRACE = 2.0
# Verdicts lost in a call up to which it goes on whatever their share.
LOST = 16
# Bytes of an answer: JSON writes up to 6 for a character.
LONGEST_ANSWER = 2**12
# Verdicts remembered: receivers of a response verify again what its source has verified.
REMEMBERED = 2**16


@dataclass(eq=False)
class _Worker:
    """One process and the jobs (numbers) it has been given and not answered."""

    process: subprocess.Popen[bytes]
    connection: Connection
    deadline: float
    ready: bool = False
    jobs: deque[int] = field(default_factory=deque)

    @classmethod
    def start(cls, settings: "VerificationConfig", /) -> "_Worker":
        ours, theirs = Pipe()
        memory = (settings.memory or 0) << 20
        numbers = [str(theirs.fileno()), str(settings.timeout), str(memory)]
        with theirs:
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-P", "-m", "mrl.tasks.worker", *numbers],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=_environment(),
            )
        return cls(process, ours, time.monotonic() + START)

    def hear(self) -> Verdict | None:
        """What the process says; None where it says nothing that can be understood."""
        try:
            reward, reason, detail = json.loads(self.connection.recv_bytes(LONGEST_ANSWER))
            return Verdict(None if reward is None else float(reward), str(reason), str(detail))
        except (EOFError, OSError, ValueError, TypeError):
            return None

    def end(self) -> int:
        """Kill the process and whatever it has started; its exit status (-n: by signal n)."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()
        self.connection.close()
        return self.process.wait()


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
        self._workers: list[_Worker] = []
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
            found = dict(zip(new, self._score([jobs[place] for place in new]), strict=True))
            given = [
                found[place] if place in found else self._known[key]
                for place, key in enumerate(keys)
            ]
            self._known |= zip(keys, given, strict=True)
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
                self._staff(len(jobs) - len(found))
                for worker in self._workers:
                    if worker.ready and not worker.jobs and waiting:
                        self._give(worker, jobs, waiting, chunk)
                for worker, verdict in self._answers():
                    found[worker.jobs.popleft()] = verdict
                    if verdict.reason in ("timeout", "crash"):
                        # Last in the queue: whether all fail is known soonest from the others.
                        waiting += worker.jobs
                        worker.jobs.clear()
                        lost += 1
                        self._check(lost, len(found), verdict)
        except BaseException:
            # Answers to this call may be on their way: the next one starts afresh.
            _end(self._workers)
            raise
        return [found[place] for place in range(len(jobs))]

    def _staff(self, jobs: int, /) -> None:
        """Start the workers that are missing."""
        missing = min(self._count, jobs) - len(self._workers)
        started = [_Worker.start(self._settings) for _ in range(missing)]
        self._workers += started
        content = pickle.dumps(self._verify) if started else b""
        for worker in started:
            try:
                worker.connection.send_bytes(content)
            except OSError:
                raise self._failed(worker, "") from None

    def _give(
        self, worker: _Worker, jobs: Sequence[Job], waiting: deque[int], chunk: int, /
    ) -> None:
        worker.jobs += [waiting.popleft() for _ in range(min(chunk, len(waiting)))]
        worker.deadline = self._deadline()
        try:
            worker.connection.send_bytes(pickle.dumps([jobs[place] for place in worker.jobs]))
        except OSError:
            return  # it is gone: the next look at its connection finds that out

    def _deadline(self) -> float:
        return time.monotonic() + self._settings.timeout + GRACE

    def _answers(self) -> Iterator[tuple[_Worker, Verdict]]:
        """Wait for something to happen; verdicts on the first job of workers.

        A worker that was lost is out of the pool when its verdict comes.
        """
        busy = [worker for worker in self._workers if worker.jobs or not worker.ready]
        first = min(worker.deadline for worker in busy)
        speaking = wait([worker.connection for worker in busy], max(0.0, first - time.monotonic()))
        for worker in busy:
            if worker.connection in speaking:
                answer = worker.hear()
                if answer is None:
                    yield worker, self._lose(worker)
                elif worker.ready:
                    worker.deadline = self._deadline()
                    yield worker, answer
                elif answer.reason:
                    raise self._failed(worker, answer.detail)
                else:
                    worker.ready = True
            elif time.monotonic() > worker.deadline:
                yield worker, self._lose(worker, late=True)

    def _lose(self, worker: _Worker, /, *, late: bool = False) -> Verdict:
        """End a worker whose first job has no verdict; what becomes of that."""
        if not worker.ready:
            raise self._failed(worker, f"nothing in {START:.0f} s" if late else "")
        self._workers.remove(worker)
        status = worker.end()
        if late or status == -signal.SIGALRM:
            return Verdict(None, "timeout", f"no verdict within {self._settings.timeout} s")
        return Verdict(None, "crash", f"its worker process ended ({_words(status)})")

    def _failed(self, worker: _Worker, why: str, /) -> RunError:
        status = worker.end()
        return RunError(
            f"the verifier {self.name!r} does not start in a worker process: "
            f"{why or _words(status)}; correct it, or give its process more memory with "
            "task.verification.memory"
        )

    def _check(self, lost: int, done: int, last: Verdict, /) -> None:
        if lost >= LOST and lost > self._settings.max_lost * done:
            raise RunError(
                f"the verifier {self.name!r} gave no verdict on {lost} of the {done} responses "
                f"that it was asked about last: they ran out of time or ended its process (the "
                f"last: {last.detail}). Correct the verifier, raise task.verification.timeout, "
                "or let it lose more with task.verification.max_lost; the last checkpoint is "
                "whole, continue with --resume"
            )


def _key(job: Job, /) -> bytes:
    item, response, finished = job
    return hashlib.sha256(f"{item.prompt_id}:{finished}:".encode() + response).digest()


def _end(workers: list[_Worker], /) -> None:
    while workers:
        workers.pop().end()


def _words(status: int, /) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"


def _environment() -> dict[str, str]:
    """The worker's environment: our modules, one thread, and the same hashes in every worker."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    modules = os.pathsep.join(path or os.getcwd() for path in sys.path)
    return {"PYTHONHASHSEED": "0"} | dict(os.environ) | threads | {"PYTHONPATH": modules}
