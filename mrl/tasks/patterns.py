r"""Answers inside longer texts: regular expressions, and the content of ``\boxed{}``.

A regular expression can take time that is exponential in the text, so whoever matches one against
a response does it where time is bounded (`mrl.tasks.workers`).
"""

import re
from collections import deque
from dataclasses import dataclass

from mrl.tasks.task import Item
from mrl.tasks.verdicts import Verify
from mrl.tasks.verifiers import answer_text

BOXED = "boxed"
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def extract(pattern: str, text: str, /) -> str | None:
    r"""The last match of `pattern` in `text`, surrounding space aside; None where there is none.

    Of a pattern with groups the first one counts. ``boxed`` stands for the content of the last
    ``\boxed{}``, whose braces may nest.
    """
    if pattern == BOXED:
        return last_boxed(text)
    last = _last(re.compile(pattern), text)
    if last is None:
        return None
    found = last[1] if last.re.groups else last[0]
    return None if found is None else found.strip()


def last_boxed(text: str, /) -> str | None:
    r"""Content of the last ``\boxed{}`` or ``\fbox{}``; None without one, or if it stays open."""
    start = _last(_BOX, text)
    if start is None:
        return None
    depth = 1
    for brace in _BRACE.finditer(text, start.end()):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)  # an escaped brace is text
        if depth == 0:
            return text[start.end() : brace.start()].strip()
    return None


def _last(pattern: re.Pattern[str], text: str, /) -> re.Match[str] | None:
    return next(iter(deque(pattern.finditer(text), maxlen=1)), None)


def regex(item: Item, response: bytes, finished: bool, /) -> float:
    r"""1.0 where the item's answer, a regular expression, is found in the response.

    Surrounding space of the response is set aside; ``\A`` and ``\Z`` are its ends.
    """
    text = answer_text(response, finished)
    return float(text is not None and re.search(item.answer, text) is not None)


@dataclass(frozen=True)
class Extracted:
    """Shows a verifier the part of a response that a pattern finds; without it the reward is 0.

    Parameters
    ----------
    verify : callable
        The verifier of that part.
    pattern : str
        As for `extract`.
    """

    verify: Verify
    pattern: str

    def prepare(self) -> None:
        """Prepare the verifier, if it is one that wants it."""
        getattr(self.verify, "prepare", lambda: None)()

    def __call__(self, item: Item, response: bytes, finished: bool, /) -> float | None:
        """Reward of the part; 0.0 where the response has none."""
        text = answer_text(response, finished)
        part = None if text is None else extract(self.pattern, text)
        return 0.0 if part is None else self.verify(item, part.encode(), finished)
