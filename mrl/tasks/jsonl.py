"""Questions and answers from files of the user's own, one JSON object a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from mrl.config import JsonlTask
from mrl.errors import InputError, cannot_read
from mrl.tasks.rows import Number, Row, Source, short


def sources(config: JsonlTask, /) -> tuple[Source, Source | None]:
    """Training rows and, where they have a file of their own, held-out rows.

    Blank lines are skipped. Reading them raises `InputError`, naming file and line, if a file
    cannot be read or a line is no JSON object.
    """
    held = config.eval_path
    heldout = None if held is None else Source(held, _rows(held))
    return Source(config.path, _rows(config.path)), heldout


def _rows(path: str, /) -> Iterator[Row]:
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise InputError(
            f"{cannot_read(path, error)}; expected a file of JSON objects, one a line"
        ) from None
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        where = f"{path}, line {number}"
        if line.strip():
            yield where, _parse(line, where)


def _parse(line: bytes, where: str, /) -> dict[str, Any]:
    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        text = line.decode("utf-8")
        value = json.loads(text, parse_int=Number, parse_float=Number, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{where}: got {short(line.decode('utf-8', 'backslashreplace').strip())}; "
            f"expected a JSON object in UTF-8 ({error})"
        ) from None
    if not isinstance(value, dict):
        raise InputError(f"{where}: got {short(value)}; expected a JSON object")
    return value
