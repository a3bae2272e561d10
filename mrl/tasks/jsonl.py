"""Questions and answers from files of the user's own, one JSON object a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from mrl.config import JsonlTask
from mrl.errors import InputError
from mrl.tasks.task import Item, Task, drawn_order
from mrl.tasks.verifiers import MAX_EXPONENT, MAX_NUMBER, VERIFIERS, read_number


class _Number(str):
    """A JSON number, kept as written: an answer 0.10 stays "0.10"."""


def load(config: JsonlTask, seed: int, /) -> Task:
    """Load a task from its file or files.

    Items are JSON objects with a question (text) and an answer (text or number). Blank lines are
    skipped. The same question and answer again, in either file, is left out and counted in
    `Task.notes`; in both files it stays a training item. Without `config.eval_path` the held-out
    items are drawn by a hash of seed and item, so the order of the lines does not matter.

    Raises
    ------
    InputError
        Naming file, line and key, if a file cannot be read, a line is no such item, a question
        comes with two different answers, or no item is left to train on or to hold out.
    """
    lines_of: dict[str, tuple[str, str]] = {}
    items, repeated = _distinct(config, config.path, lines_of)
    notes = [f"{repeated} repeated item(s) in {config.path} left out"] if repeated else []
    if config.eval_path is None:
        heldout = _split(config, items, seed)
        held = {item.prompt_id for item in heldout}
        items = [item for item in items if item.prompt_id not in held]
    else:
        heldout, repeated = _distinct(config, config.eval_path, lines_of)
        if repeated:
            notes.append(
                f"{repeated} held-out item(s) in {config.eval_path} left out: repeated, or also "
                f"a training item in {config.path}"
            )
        if not heldout:
            raise InputError(
                f"{config.eval_path}: no held-out item is left, got {repeated} that are also in "
                f"{config.path}; expected other questions, or no eval_path to split some off"
            )
        heldout = drawn_order(heldout, seed)
    verify = VERIFIERS[config.verifier]
    return Task(tuple(items), tuple(heldout), config.verifier, verify, tuple(notes))


def _split(config: JsonlTask, items: list[Item], seed: int, /) -> list[Item]:
    if len(items) < 2:
        raise InputError(
            f"{config.path}: got {len(items)} item to train on and to hold out; expected at least "
            "2 different ones, or held-out items in a file of their own (eval_path)"
        )
    held = min(max(round(config.eval_share * len(items)), 1), len(items) - 1)
    return drawn_order(items, seed)[:held]


def _distinct(
    config: JsonlTask, path: str, seen: dict[str, tuple[str, str]], /
) -> tuple[list[Item], int]:
    """Items of a file whose question is not in `seen`, which grows, and how many others came.

    `seen` maps a question to its answer and to where it stands.
    """
    items, repeated = [], 0
    for where, item in _items(config, path):
        if item.question not in seen:
            seen[item.question] = item.answer, where
            items.append(item)
            continue
        answer, first = seen[item.question]
        if answer != item.answer:
            raise InputError(
                f"{where}, key {config.answer!r}: got {_short(item.answer)} for the question "
                f"{_short(item.question)}, whose answer is {_short(answer)} in {first}; "
                "expected one answer for a question, so remove or correct one of them"
            )
        repeated += 1
    if not items and not repeated:
        raise InputError(f"{path}: got an empty file; expected one JSON object a line")
    return items, repeated


def _items(config: JsonlTask, path: str, /) -> Iterator[tuple[str, Item]]:
    """Every item of a file with the place it stands at."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; expected a file of JSON objects, one a line"
        ) from None
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        where = f"{path}, line {number}"
        if line.strip():
            yield where, _item(config, _parse(line, where), where)


def _parse(line: bytes, where: str, /) -> dict[str, Any]:
    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        text = line.decode("utf-8")
        value = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where}: got {_short(line.decode('utf-8', 'backslashreplace').strip())}; "
            f"expected a JSON object in UTF-8 ({error})"
        ) from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: got {_short(value)}; expected a JSON object")
    return value


def _item(config: JsonlTask, value: dict[str, Any], where: str, /) -> Item:
    question = _text(value, config.question, where, numbers=False)
    answer = _text(value, config.answer, where, numbers=True).strip()
    tag = None if config.tag is None else _text(value, config.tag, where, numbers=True)
    if config.verifier == "numeric" and read_number(answer) is None:
        raise InputError(
            f"{where}, key {config.answer!r}: got {_short(answer)}; the verifier 'numeric' "
            "expects one number and nothing else (an integer, decimal or fraction such as 3/4, "
            f"of at most {MAX_NUMBER} characters and an exponent within {MAX_EXPONENT}); "
            "use the verifier 'exact' for other answers"
        )
    return Item.of(question, answer, tag)


def _text(value: dict[str, Any], key: str, where: str, /, *, numbers: bool) -> str:
    expected = "a text or a number" if numbers else "a text"
    if key not in value:
        raise InputError(
            f"{where}: key {key!r} is missing, got the keys {sorted(value)}; expected {expected} "
            "there, or the name of another key in the task's settings"
        )
    text = value[key]
    if not isinstance(text, str) or (isinstance(text, _Number) and not numbers):
        raise InputError(f"{where}, key {key!r}: got {_short(text)}; expected {expected}")
    if not text.strip():
        raise InputError(f"{where}, key {key!r}: got an empty text; expected {expected}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(
            f"{where}, key {key!r}: got {_short(text)}, which holds half of a surrogate pair; "
            "expected text that can be written as UTF-8"
        ) from None
    return str(text)


def _short(value: Any, /) -> str:
    text = str(value) if isinstance(value, _Number) else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
