"""Where prompts come from and how responses are verified."""

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from mrl.config.base import Section

FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
"""``module:function``, also ``package.module:object.method``."""


def _verifier(name: str) -> str:
    known = ("exact", "numeric", "regex", "math")
    if name not in known and not FUNCTION.fullmatch(name):
        raise ValueError(
            f"got {name!r}; expected one of {', '.join(known)}, or a function of yours as "
            "module:function"
        )
    return name


def _pattern(text: str) -> str:
    if text != "boxed":
        try:
            re.compile(text)
        except re.error as error:
            raise ValueError(
                f"got {text!r}; expected 'boxed' or a regular expression ({error})"
            ) from None
    return text


def _prompt(text: str) -> str:
    if "{question}" not in text:
        raise ValueError(f"got {text!r}; expected a text that holds {{question}}")
    return text


Pattern = Annotated[str, Field(max_length=500), AfterValidator(_pattern)]


class VerificationConfig(Section):
    """How verdicts are bounded: worker processes, time, memory. No reward depends on `workers`."""

    workers: int | None = Field(None, ge=0)
    """Processes that score responses. Default: none where the verifier is ``exact`` or
    ``numeric`` and there is no `response_pattern`, which cannot hang; otherwise one a processor,
    at most 8. 0: in the training process, with no bound on time or memory."""
    timeout: float = Field(5.0, gt=0)
    """Seconds that one verdict may take; beyond them the response is not verified."""
    memory: int | None = Field(4096, ge=256)
    """Address space of a worker in MiB; null: no limit."""
    max_lost: float = Field(0.5, ge=0, le=1)
    """Share of the verdicts asked for at once that may be lost to time limit or crash; beyond it
    (and beyond 16 of them) the run stops. 1: it never does."""


class Task(Section):
    """What all kinds of task have in common."""

    prompt: Annotated[str, AfterValidator(_prompt)] = "{question}"
    """What the policies are asked; ``{question}`` stands for the question, other braces for
    themselves."""
    system: str | None = None
    """System message before it."""
    response_pattern: Pattern | None = None
    """The part of a response that the verifier sees: the last match of this regular expression
    (its first group, where it has one), or ``boxed``: the content of the last ``\\boxed{}``. A
    response without it has reward 0. Default: ``boxed`` for the verifier ``math``, otherwise the
    whole response."""
    too_long: Literal["error", "skip"] = "error"
    """What happens to a prompt that with the longest response exceeds a policy's context: the run
    does not start, or the item is left out for all policies and counted."""
    verification: VerificationConfig = VerificationConfig()
    """Bounds on verifying."""


class RowsTask(Task):
    """What tasks read from rows of data have in common."""

    path: str
    """Training items."""
    question: str = "question"
    """Key of the question."""
    answer: str = "answer"
    """Key of the right answer."""
    answer_pattern: Pattern | None = None
    """Where the right answer stands in the text under that key: the last match of this regular
    expression (its first group, where it has one), or ``boxed``: the content of the last
    ``\\boxed{}``. Default: the whole text."""
    tag: str | None = None
    """Key of a label by which evaluation is split, for example the skill."""
    verifier: Annotated[str, AfterValidator(_verifier)] = "exact"
    """``exact``: the response is the answer, surrounding space aside. ``numeric``: the last
    number in the response equals the answer as a number. ``regex``: the answer is a regular
    expression that is found in the response. ``math``: response and answer are the same by
    math-verify. ``module:function``: a function of yours."""
    invalid: Literal["error", "skip"] = "error"
    """What happens to a row that is no item, and to a question that comes with another answer
    than before: the run does not start, or the row is left out and counted."""
    eval_share: float = Field(0.2, gt=0, lt=1)
    """Share held out where there are no held-out items; which ones is fixed by the seed."""


class JsonlTask(RowsTask):
    """Questions and answers from files of the user's own, one JSON object a line."""

    kind: Literal["jsonl"]
    eval_path: str | None = None
    """File of held-out items; default: they are split off."""


class DatasetTask(RowsTask):
    """Questions and answers from a data set that the library `datasets` loads."""

    kind: Literal["dataset"]
    name: str | None = None
    """Configuration of the data set, where it has several."""
    revision: str | None = None
    """Commit, tag or branch of a data set on the hub; a commit makes a run repeatable."""
    split: str = "train"
    """Training items; parts such as ``train[:1000]`` are understood where the data set is not a
    folder written by ``save_to_disk``."""
    eval_split: str | None = None
    """Held-out items; default: they are split off."""


class ReasoningGymTask(Task):
    """A procedurally generated task of the reasoning-gym library, scored by its own verifier."""

    kind: Literal["reasoning_gym"]
    name: str
    """Name of the dataset in reasoning-gym."""
    params: dict[str, Any] = {}
    """Its settings."""
    size: int = Field(1000, ge=1)
    """Training items."""
    eval_size: int = Field(200, ge=1)
    """Held-out items; those also among the training items are left out."""


TaskConfig = Annotated[JsonlTask | DatasetTask | ReasoningGymTask, Field(discriminator="kind")]
