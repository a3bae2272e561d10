"""Where prompts come from and how responses are verified."""

from typing import Annotated, Any, Literal

from pydantic import Field

from mrl.config.base import Section


class JsonlTask(Section):
    """Questions and answers from files of the user's own, one JSON object a line."""

    kind: Literal["jsonl"]
    path: str
    """File of training items; held-out items are split off where `eval_path` is not given."""
    eval_path: str | None = None
    """File of held-out items."""
    question: str = "question"
    """Key of the question."""
    answer: str = "answer"
    """Key of the right answer."""
    tag: str | None = None
    """Key of a label by which evaluation is split, for example the skill."""
    verifier: Literal["exact", "numeric"] = "exact"
    """``exact``: the response is the answer, surrounding space aside. ``numeric``: the last
    number in the response equals the answer as a number."""
    eval_share: float = Field(0.2, gt=0, lt=1)
    """Share held out where `eval_path` is not given; which items is fixed by the seed."""


class ReasoningGymTask(Section):
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


TaskConfig = Annotated[JsonlTask | ReasoningGymTask, Field(discriminator="kind")]
