"""Whether `task.answer_pattern` comes to an end on every answer, found out where time is bounded.

A regular expression can take time that is exponential in the text. So it meets each answer in a
worker process first; what comes back in time there can be matched here.
"""

import pickle
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from mrl.config.tasks import RowsTask
from mrl.errors import InputError
from mrl.tasks.patterns import BOXED, Extracted
from mrl.tasks.process import Worker
from mrl.tasks.rows import Row, Source, short
from mrl.tasks.task import Item
from mrl.tasks.verifiers import exact

# Rows a message.
CHUNK = 256
# The verdict is of no interest: only whether there is one.
_ITEM = Item("", "", "", None)


def bounded(config: RowsTask, source: Source, /) -> Source:
    """Let the task's pattern meet every answer of a source in a worker process before it is read.

    ``boxed`` is linear in the text and needs no bound. With ``task.verification.workers: 0`` there
    is none, as for verdicts.

    Returns
    -------
    Source
        The same rows. Reading them raises `InputError`, naming the row, where the pattern takes
        longer than ``task.verification.timeout`` or ends the process, and where none starts.
    """
    if config.answer_pattern in (None, BOXED) or config.verification.workers == 0:
        return source
    return Source(source.name, _tried(config, source.rows))


def _tried(config: RowsTask, rows: Iterable[Row], /) -> Iterator[Row]:
    rows = iter(rows)
    worker = _started(config)
    try:
        while chunk := list(islice(rows, CHUNK)):
            _try(worker, config, chunk)
            yield from chunk
    finally:
        worker.end()


def _started(config: RowsTask, /) -> Worker:
    problem = ""
    try:
        worker = Worker.start(config.verification)
        worker.send(pickle.dumps(Extracted(exact, str(config.answer_pattern))))
        while not (worker.ready or worker.lost.reason):
            _hear(worker)
        problem = worker.lost.detail
    except OSError as error:
        problem = str(error)
    if problem:
        raise InputError(
            f"task.answer_pattern: the process to try it in does not start: {problem}; free "
            "memory, raise task.verification.memory, or set task.verification.workers=0 to match "
            "it without a bound on time"
        )
    return worker


def _try(worker: Worker, config: RowsTask, rows: Sequence[Row], /) -> None:
    """Match the answers of some rows in the worker; what is no text is found out by the reader."""
    texts = [
        (where, text) for where, row in rows if isinstance(text := row.get(config.answer), str)
    ]
    jobs = [(_ITEM, text.encode("utf-8", "surrogatepass"), True) for _, text in texts]
    worker.give(range(len(jobs)), jobs)
    while worker.missing and not worker.lost.reason:
        _hear(worker)
    if worker.lost.reason:
        where, text = texts[worker.culprit or 0]
        raise InputError(
            f"{where}, key {config.answer!r}: answer_pattern={config.answer_pattern!r} comes to no "
            f"end on {short(text)}: {worker.lost.detail}. Expected a pattern whose time is "
            "bounded (nested repeats such as (a+)+ are not), or a longer task.verification.timeout"
        )


def _hear(worker: Worker, /) -> None:
    """Wait for the worker's next message, and end it where none comes in time."""
    if worker.connection.poll(max(0.0, worker.deadline - time.monotonic())):
        worker.hear()
    else:
        worker.end(late=True)
