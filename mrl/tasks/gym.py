"""Procedurally generated tasks of the reasoning-gym library, scored by its own verifiers.

The library is imported when a task is loaded, and once in each process that scores. Some of its
datasets draw items from Python's or numpy's global generator; while a task is loaded these are
seeded, and afterwards they are as they were. (No scorer of version 0.1.25 draws, and swapping the
state would cost more than scoring.)

A few datasets (isomorphic_strings, polynomial_multiplication, ransom_note,
word_ladder and others) iterate over sets of strings: their items repeat in another process only
if PYTHONHASHSEED is set to the same number in both.

Some scorers (string_insertion, spiral_matrix, binary_matrix) evaluate the response as Python code.
Worker processes bound its time and memory, and nothing else: train on those only where that may do
no harm.
"""

import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from mrl.errors import InputError
from mrl.seeds import seeded_globals
from mrl.tasks.optional import library
from mrl.tasks.task import Item, Task, drawn_order
from mrl.tasks.verifiers import answer_text

if TYPE_CHECKING:
    from mrl.config import ReasoningGymTask

NEEDED_BY = "the task kind 'reasoning_gym'"
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
    create : callable
        Makes the dataset whose scorer is used: not every dataset can be sent to a process.
    entries : mapping of str to dict
        The dataset's own entry for each prompt id.
    """

    create: Callable[[], _Dataset]
    entries: Mapping[str, dict[str, Any]]

    @cached_property
    def dataset(self) -> _Dataset:
        """The dataset."""
        return self.create()

    def prepare(self) -> None:
        """Make the dataset."""
        _ = self.dataset

    def __call__(self, item: Item, response: bytes, finished: bool, /) -> float | None:
        """Reward of a response; None where the scorer gives no number. What it raises is raised.

        Raises
        ------
        KeyError
            If the item is not of this task.
        """
        entry = self.entries[item.prompt_id]
        text = answer_text(response, finished)
        if text is None:
            return 0.0
        score = float(self.dataset.score_answer(text, entry))
        return None if math.isnan(score) else min(max(score, 0.0), 1.0)


def load(config: "ReasoningGymTask", seed: int, /) -> Task:
    """Generate a task's training and held-out items.

    The two are drawn from different seeds. A question drawn again is left out, as is a held-out
    question that is also trained on; `Task.notes` says how many. The tag of all items is the
    dataset's name.

    Raises
    ------
    InputError
        If reasoning-gym is not installed, the dataset or a setting is unknown, the dataset
        refuses its settings, or no held-out item is left.
    """
    _check_settings(config)
    # reasoning-gym seeds item i with seed + i and numpy takes 32 bits: keep one bit of room.
    states = np.random.SeedSequence(seed).generate_state(2)
    train_seed, heldout_seed = (int(state) >> 1 for state in states)
    entries = _draw(config, config.size, train_seed)
    more = _draw(config, config.eval_size, heldout_seed)
    train = _distinct(config, entries, {})
    heldout = _distinct(config, more, train)
    if not heldout:
        raise InputError(
            f"task {config.name!r} with params={config.params}: all {config.eval_size} held-out "
            f"items are also among the {config.size} training items, of which {len(train)} "
            "differ; expected a smaller size, a larger eval_size, or params with more questions"
        )
    verifier = GymVerifier(
        partial(_scorer, config.name, config.size, train_seed, config.params),
        {item.prompt_id: entry for item, entry in [*train.values(), *heldout.values()]},
    )
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
        f"reasoning_gym/{config.name}",
        verifier,
        tuple(notes),
    )


def _check_settings(config: "ReasoningGymTask", /) -> None:
    datasets = library("reasoning_gym.factory", NEEDED_BY).DATASETS
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


def _create(name: str, size: int, seed: int, params: Mapping[str, Any], /) -> _Dataset:
    make = library("reasoning_gym", NEEDED_BY).create_dataset
    dataset: _Dataset = make(name, size=size, seed=seed, **params)
    return dataset


def _scorer(name: str, size: int, seed: int, params: Mapping[str, Any], /) -> _Dataset:
    """The dataset once more, for its scorer."""
    with seeded_globals(seed):
        return _create(name, size, seed, params)


def _draw(config: "ReasoningGymTask", size: int, seed: int, /) -> list[dict[str, Any]]:
    try:
        with seeded_globals(seed):
            dataset = _create(config.name, size, seed, config.params)
            return [dataset[index] for index in range(len(dataset))]
    except InputError:
        raise
    except Exception as error:
        # Datasets refuse settings by assertions, by errors of any type, or while generating.
        raise InputError(
            f"task {config.name!r}: reasoning-gym refuses params={config.params} "
            f"({type(error).__name__}: {error})"
        ) from error


def _distinct(
    config: "ReasoningGymTask",
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
            item = Item.of(
                question,
                "" if answer is None else str(answer),
                config.name,
                template=config.prompt,
                system=config.system,
            )
            result[question] = item, entry
    return result
