"""JSON rows of a run's files, checked field by field."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrl.errors import InputError


@dataclass(frozen=True)
class Kind:
    """A kind of JSON value.

    Parameters
    ----------
    valid : callable
        Whether a value is of this kind.
    expected : str
        What to say is expected.
    """

    valid: Callable[[Any], bool]
    expected: str


def _is_count(value: Any, /) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def _is_number(value: Any, /) -> bool:
    if isinstance(value, bool):
        return False
    # A diverged run writes NaN and Infinity; an integer has to fit a float.
    return (
        value is None or isinstance(value, float) or (isinstance(value, int) and abs(value) < 2**63)
    )


def _is_text_or_none(value: Any, /) -> bool:
    return value is None or isinstance(value, str)


def _is_numbers(value: Any, /) -> bool:
    return isinstance(value, Mapping) and all(map(_is_number, value.values()))


COUNT = Kind(_is_count, "a whole number >= 0")
NUMBER = Kind(_is_number, "a number or null")
BOOL = Kind(lambda value: isinstance(value, bool), "true or false")
TEXT = Kind(lambda value: isinstance(value, str), "a text")
TEXT_OR_NULL = Kind(_is_text_or_none, "a text or null")
OBJECT = Kind(lambda value: isinstance(value, Mapping), "an object")
NUMBERS = Kind(_is_numbers, "an object of numbers")
NUMBERS_OR_NULL = Kind(lambda value: value is None or _is_numbers(value), "an object of numbers")
TEXT_LIST = Kind(
    lambda value: isinstance(value, list) and all(isinstance(entry, str) for entry in value),
    "a list of texts",
)
NUMBER_LIST = Kind(
    lambda value: isinstance(value, list) and all(map(_is_number, value)),
    "a list of numbers and nulls",
)


class Row:
    """One JSON object of a file, whose fields are checked as they are read."""

    def __init__(self, path: Path, line: int, values: Any) -> None:
        self.path, self.line = path, line
        if not isinstance(values, dict):
            raise self.damaged(f"got {type(values).__name__}; expected a JSON object")
        self.values: dict[str, Any] = values

    def damaged(self, message: str, /) -> InputError:
        """Return the error for this row."""
        return InputError(f"{self.path}, line {self.line}: {message}")

    def get(self, key: str, kind: Kind, /) -> Any:
        """Return the field `key`; an absent field counts as null.

        Raises
        ------
        InputError
            If it is not of that kind.
        """
        value = self.values.get(key)
        if not kind.valid(value):
            got = repr(value) if key in self.values else "nothing"
            got = got if len(got) <= 80 else got[:77] + "..."
            raise self.damaged(f"{key!r}: got {got}; expected {kind.expected}")
        return value

    def number(self, key: str, /) -> float:
        """Return the field `key` as a number, NaN where it is null or absent."""
        value = self.get(key, NUMBER)
        return float("nan") if value is None else float(value)


def read_object(path: Path, /) -> Row:
    """Read a JSON file that holds one object.

    Raises
    ------
    InputError
        If the file is missing or damaged.
    """
    try:
        return Row(path, 1, json.loads(_read(path)))
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise InputError(f"{path}, line {line}: not valid JSON: {error}") from None


def read_rows(path: Path, notes: list[str], /) -> list[Row]:
    """Read a JSONL file.

    Parameters
    ----------
    path : Path
        The file.
    notes : list of str
        Receives a note where the last line is torn: it has no line end and is no JSON, as a
        killed run leaves it. Such a line is left out.

    Raises
    ------
    InputError
        If the file is missing or another line is damaged.
    """
    lines = _read(path).split(b"\n")
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except ValueError as error:
            if number == len(lines):
                notes.append(f"The last line of {path} (line {number}) is torn and was left out.")
                continue
            raise InputError(f"{path}, line {number}: not valid JSON: {error}") from None
        rows.append(Row(path, number, values))
    return rows


def _read(path: Path, /) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"cannot read {path}: {error.strerror}; expected the folder of a run that has started"
        ) from None
