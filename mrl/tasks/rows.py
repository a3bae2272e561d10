"""From rows of questions and answers, wherever they come from, to training and held-out items."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from mrl.config.tasks import RowsTask
from mrl.errors import InputError
from mrl.tasks.patterns import BOXED, extract
from mrl.tasks.task import Item, drawn_order
from mrl.tasks.verifiers import MAX_EXPONENT, MAX_NUMBER, read_number

Row: TypeAlias = "tuple[str, Mapping[str, Any]]"
"""Where a row stands, for messages, and its values by key."""


class Number(str):
    """A number, kept as written: an answer 0.10 stays "0.10"."""


@dataclass(frozen=True)
class Source:
    """Rows with the name that messages give them; read once."""

    name: str
    rows: Iterable[Row]


@dataclass(frozen=True)
class Items:
    """Items in two parts, no question twice, and what was left out."""

    train: tuple[Item, ...]
    heldout: tuple[Item, ...]
    notes: tuple[str, ...]


def split(config: RowsTask, train: Source, heldout: Source | None, seed: int, /) -> Items:
    """Read items, and split held-out ones off where they have no source of their own.

    The same question and answer again, in either source, is left out and counted; in both it
    stays a training item. Which items are split off follows from a hash of seed and item, so the
    order of the rows does not matter.

    Raises
    ------
    InputError
        Naming row and key, if a row is no item or a question comes with two different answers
        (unless `config.invalid` lets them be left out), or no item is left to train on or to hold
        out.
    """
    reader = _Reader(config)
    items, repeated = reader.read(train)
    if repeated:
        reader.notes.append(f"{repeated} repeated item(s) in {train.name} left out")
    if heldout is None:
        held = _split_off(config, train, items, seed)
        ids = {item.prompt_id for item in held}
        items = [item for item in items if item.prompt_id not in ids]
    else:
        found, repeated = reader.read(heldout)
        if repeated:
            reader.notes.append(
                f"{repeated} held-out item(s) in {heldout.name} left out: repeated, or also a "
                f"training item in {train.name}"
            )
        if not found:
            raise InputError(
                f"{heldout.name}: no held-out item is left, got {repeated} that are also in "
                f"{train.name}; expected other questions, or none named, to split some off"
            )
        held = drawn_order(found, seed)
    return Items(tuple(items), tuple(held), tuple(reader.notes))


def _split_off(config: RowsTask, source: Source, items: list[Item], seed: int, /) -> list[Item]:
    if len(items) < 2:
        raise InputError(
            f"{source.name}: got {len(items)} item to train on and to hold out; expected at least "
            "2 different ones, or held-out items of their own (eval_path, eval_split)"
        )
    held = min(max(round(config.eval_share * len(items)), 1), len(items) - 1)
    return drawn_order(items, seed)[:held]


@dataclass
class _Reader:
    """Reads sources one after the other; knows what questions came before."""

    config: RowsTask
    notes: list[str] = field(default_factory=list)
    seen: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Answer of each question, and where it stands."""

    def read(self, source: Source, /) -> tuple[list[Item], int]:
        """Items whose question is new, and how many came again."""
        items: list[Item] = []
        repeated, problems, empty = 0, [], True
        for where, row in source.rows:
            empty = False
            try:
                item = _item(self.config, row, where)
                if self._new(item, where):
                    items.append(item)
                else:
                    repeated += 1
            except InputError as error:
                if self.config.invalid == "error":
                    raise
                problems.append(str(error))
        if empty:
            raise InputError(
                f"{source.name}: got an empty file or split; expected rows of questions and answers"
            )
        if problems:
            self.notes.append(f"{len(problems)} row(s) left out; the first: {problems[0]}")
        return items, repeated

    def _new(self, item: Item, where: str, /) -> bool:
        if item.question not in self.seen:
            self.seen[item.question] = item.answer, where
            return True
        answer, first = self.seen[item.question]
        if answer != item.answer:
            raise InputError(
                f"{where}, key {self.config.answer!r}: got {short(item.answer)} for the question "
                f"{short(item.question)}, whose answer is {short(answer)} in {first}; "
                "expected one answer for a question, so remove or correct one of them"
            )
        return False


def _item(config: RowsTask, row: Mapping[str, Any], where: str, /) -> Item:
    question = _text(row, config.question, where, numbers=False)
    answer = _text(row, config.answer, where, numbers=True).strip()
    tag = None if config.tag is None else _text(row, config.tag, where, numbers=True)
    if config.answer_pattern is not None:
        found = extract(config.answer_pattern, answer)
        if not found:
            raise InputError(
                f"{where}, key {config.answer!r}: answer_pattern={config.answer_pattern!r} finds "
                f"no answer in {short(answer)}; expected one, or invalid: skip to leave such rows "
                "out"
            )
        answer = found
    problem = _problem(config.verifier, answer)
    if problem:
        raise InputError(f"{where}, key {config.answer!r}: got {short(answer)}; {problem}")
    return Item.of(question, answer, tag, template=config.prompt, system=config.system)


def _problem(verifier: str, answer: str, /) -> str:
    """Why no response can equal this answer; empty where some can."""
    if verifier == "numeric" and read_number(answer) is None:
        return (
            "the verifier 'numeric' expects one number and nothing else (an integer, decimal or "
            f"fraction such as 3/4, of at most {MAX_NUMBER} characters and an exponent within "
            f"{MAX_EXPONENT}); use the verifier 'exact' for other answers, or answer_pattern "
            "where the number stands in a text"
        )
    if verifier == "regex":
        try:
            re.compile(answer)
        except re.error as error:
            return f"the verifier 'regex' expects a regular expression ({error})"
    if verifier == "math" and extract(BOXED, answer) is not None:
        return (
            "the verifier 'math' expects the answer alone; set answer_pattern: boxed to take it "
            "out of a solution"
        )
    return ""


def _text(row: Mapping[str, Any], key: str, where: str, /, *, numbers: bool) -> str:
    expected = "a text or a number" if numbers else "a text"
    if key not in row:
        raise InputError(
            f"{where}: key {key!r} is missing, got the keys {sorted(row)}; expected {expected} "
            "there, or the name of another key in the task's settings"
        )
    text = row[key]
    if not isinstance(text, str) or (isinstance(text, Number) and not numbers):
        raise InputError(f"{where}, key {key!r}: got {short(text)}; expected {expected}")
    if not text.strip():
        raise InputError(f"{where}, key {key!r}: got an empty text; expected {expected}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(
            f"{where}, key {key!r}: got {short(text)}, which holds half of a surrogate pair; "
            "expected text that can be written as UTF-8"
        ) from None
    return str(text)


def short(value: Any, /) -> str:
    """A value in a message."""
    text = str(value) if isinstance(value, Number) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
