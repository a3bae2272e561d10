"""Untrusted text made harmless to look at, and numbers made short."""

import math
import unicodedata
from collections.abc import Mapping
from typing import Any

# Embeddings, overrides and isolates: they can show a text in another order than it has.
BIDI = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def visible(text: str, /) -> str:
    r"""Replace characters that a page cannot hold or that mislead the eye by their escapes.

    Control characters (except newline and tab), lone surrogates, noncharacters and bidirectional
    marks become ``\x00``-style escapes; everything else stays. Escaping for HTML is the
    template's task.
    """
    return "".join(_escape(char) if _hidden(char) else char for char in text)


def _hidden(char: str, /) -> bool:
    if char in "\n\t":
        return False
    noncharacter = ord(char) & 0xFFFE == 0xFFFE
    return char in BIDI or noncharacter or unicodedata.category(char) in ("Cc", "Cs")


def _escape(char: str, /) -> str:
    return char.encode("ascii", "backslashreplace").decode() if ord(char) > 127 else _hex(char)


def _hex(char: str, /) -> str:
    return f"\\x{ord(char):02x}"


def number(value: Any, /) -> str:
    """Format a value for a table cell: four significant digits, ``–`` where there is none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        whole = value.is_integer() and abs(value) < 1e15
        return f"{value:,.0f}" if whole else f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(number, value))
    return visible(str(value))


def percent(value: float | None, /) -> str:
    """Format a share as a percentage with one decimal, ``–`` where there is none."""
    return "–" if value is None or math.isnan(value) else f"{100 * value:.1f}%"


def proportion(value: float | None, /) -> str:
    """Format a value between 0 and 1 with three decimals, ``–`` where there is none."""
    return "–" if value is None or math.isnan(value) else f"{value:.3f}"


def interval(low: float | None, high: float | None, /) -> str:
    """``[low, high]`` with three decimals, empty where there is none."""
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return ""
    return f"[{low:.3f}, {high:.3f}]"


def error(value: float, /) -> str:
    """Format a standard error behind its number: ``± 0.012``; empty where there is none."""
    return "" if math.isnan(value) else f" ± {value:.2g}"


def flatten(values: Any, prefix: str = "", /) -> dict[str, Any]:
    """Nested mappings and lists as one mapping from dotted keys to leaves, in order.

    Lists of plain values stay leaves; lists that hold mappings or lists are numbered.
    """
    if isinstance(values, Mapping) and values:
        items = [(str(key), value) for key, value in values.items()]
    elif isinstance(values, list | tuple) and any(
        isinstance(v, Mapping | list | tuple) for v in values
    ):
        items = [(str(i), value) for i, value in enumerate(values)]
    else:
        return {prefix or "value": values}
    result: dict[str, Any] = {}
    for key, value in items:
        result |= flatten(value, f"{prefix}.{key}" if prefix else key)
    return result
