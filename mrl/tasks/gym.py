"""Procedurally generated tasks of the reasoning-gym library, scored by its own verifiers or ours.

The library is imported when a task is loaded. Some of its datasets draw items from Python's or
numpy's global generator; while a task is loaded these are seeded, and afterwards they are as they
were. (No scorer of version 0.1.25 draws, and swapping the state would cost more than scoring.)

A few datasets (isomorphic_strings, polynomial_multiplication, ransom_note,
word_ladder and others) iterate over sets of strings: their items repeat in another process only
if PYTHONHASHSEED is set to the same number in both.

Some scorers (string_insertion, spiral_matrix, binary_matrix) evaluate the response as Python code
in this process: train on those only where that may do no harm. Nothing bounds a scorer's time.
"""

import difflib
import importlib
import math
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from mrl.config import ReasoningGymTask
from mrl.errors import InputError
from mrl.tasks.task import Item, Task, Verify, drawn_order
from mrl.tasks.verifiers import VERIFIERS, answer_text, read_number

# Settings of every dataset that a run fixes, and where.
OWN_SETTINGS = {"size": "task.size and task.eval_size", "seed": "the run's seed"}


class _Dataset(Protocol):
    """What is used of a reasoning-gym dataset."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> dict[str, Any]: ...

    def score_answer(self, answer: str, entry: dict[str, Any]) -> float: ...


@dataclass(frozen=True, eq=False)
class GymVerifier:
    """Scores responses by a dataset's own scorer.

    Rewards are graded: the scorer's value clipped to [0, 1], partial credit included. What
    counts as a success is the probe's to say (a reward of 1.0 by default).

    Parameters
    ----------
    dataset : reasoning-gym dataset
        Whose scorer is used.
    entries : mapping of str to dict
        The dataset's own entry for each prompt id.
    """

    dataset: _Dataset
    entries: Mapping[str, dict[str, Any]]

    def __call__(self, item: Item, response: bytes, finished: bool, /) -> float | None:
        """Reward of a response; None where the scorer fails or gives no number.

        Raises
        ------
        KeyError
            If the item is not of this task.
        """
        entry = self.entries[item.prompt_id]
        text = answer_text(response, finished)
        if text is None:
            return 0.0
        try:
            score = float(self.dataset.score_answer(text, entry))
        except (Exception, SystemExit):
            # The scorer meets text that its author did not foresee; whatever it raises, the
            # response is not verified and the run goes on.
            return None
        return None if math.isnan(score) else min(max(score, 0.0), 1.0)


def load(config: ReasoningGymTask, seed: int, /) -> Task:
    """Generate a task's training and held-out items.

    The two are drawn from different seeds. A question drawn again is left out, as is a held-out
    question that is also trained on; `Task.notes` says how many. The tag of all items is the
    dataset's name.

    Raises
    ------
    InputError
        If reasoning-gym is not installed, the dataset or a setting is unknown, the dataset
        refuses its settings, the verifier does not fit its answers, or no held-out item is left.
    """
    _check_settings(config)
    # reasoning-gym seeds item i with seed + i and numpy takes 32 bits: keep one bit of room.
    states = np.random.SeedSequence(seed).generate_state(2)
    train_seed, heldout_seed = (int(state) >> 1 for state in states)
    dataset, entries = _draw(config, config.size, train_seed)
    _, more = _draw(config, config.eval_size, heldout_seed)
    train = _distinct(config, entries, {})
    heldout = _distinct(config, more, train)
    if not heldout:
        raise InputError(
            f"task {config.name!r} with params={config.params}: all {config.eval_size} held-out "
            f"items are also among the {config.size} training items, of which {len(train)} "
            "differ; expected a smaller size, a larger eval_size, or params with more questions"
        )
    verifier_id, verify = _verifier(config, dataset, [*train.values(), *heldout.values()])
    notes = []
    if len(train) < config.size:
        notes.append(f"{config.size - len(train)} repeated training item(s) left out")
    if len(heldout) < config.eval_size:
        notes.append(
            f"{config.eval_size - len(heldout)} held-out item(s) left out: repeated, or also a "
            "training item"
        )
    return Task(
        tuple(item for item, _ in train.values()),
        tuple(drawn_order([item for item, _ in heldout.values()], seed)),
        verifier_id,
        verify,
        tuple(notes),
    )


def _verifier(
    config: ReasoningGymTask, dataset: _Dataset, items: list[tuple[Item, dict[str, Any]]], /
) -> tuple[str, Verify]:
    """Name and function of the verifier that a task asks for."""
    if config.verifier == "own":
        entries = {item.prompt_id: entry for item, entry in items}
        return f"reasoning_gym/{config.name}", GymVerifier(dataset, entries)
    if config.verifier == "numeric":
        for item, _ in items:
            if read_number(item.answer) is None:
                raise InputError(
                    f"task {config.name!r}: got the answer {item.answer[:80]!r}; the verifier "
                    "'numeric' expects numbers, so use 'own' or 'exact' for this dataset"
                )
    return config.verifier, VERIFIERS[config.verifier]


@contextmanager
def seeded_globals(seed: int, /) -> Iterator[None]:
    """Seed Python's and numpy's global generators, and restore their states afterwards."""
    state, numpy_state = random.getstate(), np.random.get_state()  # noqa: NPY002
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        random.setstate(state)
        np.random.set_state(numpy_state)  # noqa: NPY002


def _check_settings(config: ReasoningGymTask, /) -> None:
    datasets = _library("reasoning_gym.factory").DATASETS
    if config.name not in datasets:
        raise InputError(
            f"task.name: reasoning-gym has no dataset {config.name!r}; expected one of its "
            f"{len(datasets)} names{_near(config.name, datasets)}: {', '.join(sorted(datasets))}"
        )
    _, settings = datasets[config.name]
    allowed = sorted({field.name for field in fields(settings)} - OWN_SETTINGS.keys())
    for key, value in config.params.items():
        if key in OWN_SETTINGS:
            raise InputError(
                f"task.params.{key}: got {value!r}; expected no such entry, use "
                f"{OWN_SETTINGS[key]} instead"
            )
        if key not in allowed:
            raise InputError(
                f"task.params.{key}: dataset {config.name!r} has no such setting, got {value!r}; "
                f"expected any of {allowed}{_near(key, allowed)}"
            )


def _near(word: str, known: Iterable[str], /) -> str:
    close = difflib.get_close_matches(word, known, n=3)
    return f" (did you mean {' or '.join(map(repr, close))}?)" if close else ""


def _library(module: str, /) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise InputError(
            f"the task kind 'reasoning_gym' needs the package {error.name!r}, which is not "
            "installed; install mutual-rl[train]"
        ) from None


def _draw(
    config: ReasoningGymTask, size: int, seed: int, /
) -> tuple[_Dataset, list[dict[str, Any]]]:
    create = _library("reasoning_gym").create_dataset
    try:
        with seeded_globals(seed):
            dataset = create(config.name, size=size, seed=seed, **config.params)
            return dataset, [dataset[index] for index in range(len(dataset))]
    except Exception as error:
        # Datasets refuse settings by assertions, by errors of any type, or while generating.
        raise InputError(
            f"task {config.name!r}: reasoning-gym refuses params={config.params} "
            f"({type(error).__name__}: {error})"
        ) from error


def _distinct(
    config: ReasoningGymTask,
    entries: list[dict[str, Any]],
    seen: Mapping[str, Any],
    /,
) -> dict[str, tuple[Item, dict[str, Any]]]:
    """Items and entries by question; the first of each question, and none that is in `seen`."""
    result: dict[str, tuple[Item, dict[str, Any]]] = {}
    for entry in entries:
        question = entry["question"]
        if question not in seen and question not in result:
            answer = entry["answer"]  # None where a scorer needs no right answer
            item = Item.of(question, "" if answer is None else str(answer), config.name)
            result[question] = item, entry
    return result
