"""Verifiers of plain answers: the same text, or the same number.

A response that did not end has reward 0.0 whatever it holds so far, because it goes on: its
text is not yet the answer, its last number perhaps cut in two. So has a response that is not
UTF-8, which no answer can equal.
"""

import re
from fractions import Fraction

from mrl.tasks.task import Item

# Longest number that is read, in characters, and largest exponent: "1e999999999" would fill the
# memory. Answers are held to the same bounds, so what is beyond them equals no answer.
MAX_NUMBER = 300
MAX_EXPONENT = 1000

_INTEGER = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_NUMBER = re.compile(
    rf"""
    (?:(?<![A-Za-z0-9_)\]}}])[-+\u2212])?       # a sign, not the operator of "5-3" or "x-3"
    (?:
        (?<![A-Za-z0-9_]){_INTEGER}/[0-9]+(?!\.?[0-9])
      | (?:(?<![A-Za-z0-9_]){_INTEGER}(?:\.[0-9]+)?|(?<![A-Za-z0-9_.])\.[0-9]+)
        (?:[eE](?P<exponent>[-+\u2212]?[0-9]+))?
    )
    """,
    re.VERBOSE,
)


def answer_text(response: bytes, finished: bool, /) -> str | None:
    """Text of a response without surrounding space; None where it can be no answer."""
    if not finished:
        return None
    try:
        return response.decode("utf-8").strip()
    except UnicodeDecodeError:
        return None


def exact(item: Item, response: bytes, finished: bool, /) -> float:
    """1.0 where the response is the answer, surrounding space aside, and ended there."""
    return float(answer_text(response, finished) == item.answer.strip())


def numeric(item: Item, response: bytes, finished: bool, /) -> float:
    """1.0 where the last number in the response equals the answer as a number.

    Numbers are ASCII digits with an optional sign directly before them, written as integers,
    decimals, with an exponent (``1.5e3``) or as fractions of integers (``3/4``, no space).
    A comma groups thousands and does nothing else: ``1,234`` is one number, ``1,23`` two. A
    minus after a letter, digit or closing bracket is an operator. Digits right after a letter
    (``x2``) are part of a name. Percent and currency signs and LaTeX are not read: ``50%`` is 50.

    The comparison is of exact fractions: ``0.1`` equals ``1/10`` and ``1e-1``, and
    ``0.30000000000000004`` does not equal ``0.3``.
    """
    text = answer_text(response, finished)
    found = None if text is None else last_number(text)
    return float(found is not None and found == read_number(item.answer))


def read_number(text: str, /) -> Fraction | None:
    """Read the one number that `text` is, surrounding space aside; None where it is none."""
    match = _NUMBER.fullmatch(text.strip())
    return None if match is None else _value(match)


def last_number(text: str, /) -> Fraction | None:
    """Read the last number in `text`; None without one, or where it has no readable value."""
    last = None
    for match in _NUMBER.finditer(text):
        last = match
    return None if last is None else _value(last)


def _value(match: re.Match[str], /) -> Fraction | None:
    text = match[0].replace(",", "").replace("\u2212", "-")
    exponent = (match["exponent"] or "0").replace("\u2212", "-")
    if len(text) > MAX_NUMBER or abs(int(exponent)) > MAX_EXPONENT:
        return None
    try:
        return Fraction(text)
    except ZeroDivisionError:
        return None
