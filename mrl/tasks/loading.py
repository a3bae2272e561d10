"""From the settings of a task to its items, its verifier, and where that runs."""

from dataclasses import replace
from importlib.util import find_spec

from joblib import cpu_count

from mrl.config import DatasetTask, JsonlTask, ReasoningGymTask, TaskConfig
from mrl.errors import InputError, RunError
from mrl.tasks import gym, hub, jsonl
from mrl.tasks.answers import bounded
from mrl.tasks.functions import FunctionVerifier
from mrl.tasks.mathematics import MathVerifier
from mrl.tasks.patterns import BOXED, Extracted, regex
from mrl.tasks.rows import split
from mrl.tasks.task import Task
from mrl.tasks.verdicts import Verify
from mrl.tasks.verifiers import exact, numeric
from mrl.tasks.workers import Workers

# Linear in the response: they need no bound.
QUICK = (exact, numeric)
# Most workers without being asked: each imports what its verifier needs.
MOST_WORKERS = 8


def load(config: TaskConfig, seed: int, /) -> Task:
    """Load a task; see `mrl.tasks.load_task`."""
    if isinstance(config, ReasoningGymTask):
        task = gym.load(config, seed)
    else:
        task = _load_rows(config, seed)
    pattern = config.response_pattern
    if pattern is not None:
        name, verify = f"{task.verifier_id} of {pattern}", Extracted(task.verify, pattern)
        task = replace(task, verifier_id=name, verify=verify)
    count = config.verification.workers
    if count is None:
        count = 0 if task.verify in QUICK else min(cpu_count(), MOST_WORKERS)
    if count:
        runner = Workers(task.verify, config.verification, count, task.verifier_id)
        task = replace(task, runner=runner)
    if not isinstance(config, ReasoningGymTask) and ":" in config.verifier:
        _try(task)
    return task


def _load_rows(config: JsonlTask | DatasetTask, seed: int, /) -> Task:
    verify = _verifier(config.verifier)
    if config.verifier == "math" and config.response_pattern is None:
        verify = Extracted(verify, BOXED)
    train, heldout = jsonl.sources(config) if config.kind == "jsonl" else hub.sources(config)
    train, heldout = bounded(config, train), heldout and bounded(config, heldout)
    items = split(config, train, heldout, seed)
    return Task(items.train, items.heldout, config.verifier, verify, items.notes)


def _verifier(name: str, /) -> Verify:
    if name == "math":
        if find_spec("math_verify") is None:
            raise InputError(
                "the verifier 'math' needs the package 'math_verify', which is not installed; "
                "install mutual-rl[train]"
            )
        return MathVerifier()
    return {"exact": exact, "numeric": numeric, "regex": regex}.get(name) or FunctionVerifier(name)


def _try(task: Task, /) -> None:
    """Ask a function of the user's about a right answer: it must have a verdict on that."""
    item = task.train[0]
    try:
        (verdict,) = task.verdicts([(item, item.answer.encode(), True)])
        problem = verdict.detail
    except RunError as error:
        problem = str(error)
    if problem:
        task.close()
        raise InputError(
            f"task.verifier: {task.verifier_id!r} has no verdict on the right answer "
            f"{item.answer[:80]!r} of the first item: {problem}; expected a function of "
            "(question, answer, response, finished) that returns a number in [0, 1], True, False "
            "or None, in a module that is installed or lies in this folder"
        )
