"""Mathematical answers, compared by the library math-verify.

The library bounds its time with a signal, which works in a main thread only: elsewhere it finds no
answer equal, so all rewards would be 0. Its limits are therefore off; the worker process bounds
the time of the whole verdict.
"""

import importlib
import logging
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mrl.tasks.task import Item
from mrl.tasks.verifiers import answer_text


@dataclass(frozen=True)
class MathVerifier:
    r"""1.0 where response and answer are the same mathematical object.

    Both are read as LaTeX or as a plain expression, without ``\boxed``. What cannot be read is
    compared as text. See math-verify for which objects are the same: 0.5 and ``\frac{1}{2}`` are.
    """

    def prepare(self) -> None:
        """Import the library, which takes a second."""
        importlib.import_module("math_verify")
        # It says once a process that its time limits are off.
        for name in ("math_verify.parser", "math_verify.grader"):
            logging.getLogger(name).setLevel(logging.ERROR)

    def __call__(self, item: Item, response: bytes, finished: bool, /) -> float:
        """Reward of a response; what the library raises is raised."""
        text = answer_text(response, finished)
        if not text:
            return 0.0
        self.prepare()
        gold, found = _gold(item.answer), _read(text)
        library = importlib.import_module("math_verify")
        return float(library.verify(gold, found, timeout_seconds=None, raise_on_error=True))


def _read(text: str, /) -> list[Any]:
    library = importlib.import_module("math_verify")
    boxed = library.LatexExtractionConfig(boxed_match_priority=0)
    return library.parse(
        f"\\boxed{{{text}}}",
        extraction_config=[boxed, library.ExprExtractionConfig()],
        parsing_timeout=None,
        raise_on_error=True,
    )


# Half of a verdict's time is reading, and every answer meets a group of responses.
_gold = lru_cache(maxsize=4096)(_read)
