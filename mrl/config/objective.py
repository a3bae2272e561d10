"""How a policy learns: token loss and optimizer."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mrl.config.base import Section

# Names that TRL and verl give to the same aggregations.
AGGREGATION_ALIASES = {
    "dapo": "token",
    "token-mean": "token",
    "grpo": "sequence",
    "seq-mean-token-mean": "sequence",
    "seq-mean-token-sum": "sum",
}


class ObjectiveConfig(Section):
    """The token-level loss."""

    aggregation: Literal["token", "sequence", "sum"] = "token"
    """How log pi(response) is formed from tokens: ``sum``; ``sequence`` (divided by its own
    length); ``token`` (divided by the mean length of the update)."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """Lower clip of the within-policy ratio: 1 - clip_low."""
    clip_high: float = Field(0.28, ge=0)
    """Upper clip of the within-policy ratio: 1 + clip_high."""
    updates: int = Field(1, ge=1)
    """Optimizer steps a round; the prompts of a round are split evenly over them."""
    mask_truncated: bool = False
    """Leave responses that did not end by EOS out of loss and length."""
    batch_tokens: int = Field(16384, ge=1)
    """Padded tokens a micro-batch; bounds memory and changes no gradient."""

    @model_validator(mode="before")
    @classmethod
    def _aliases(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("aggregation") in AGGREGATION_ALIASES:
            return {**values, "aggregation": AGGREGATION_ALIASES[values["aggregation"]]}
        return values


class OptimizerConfig(Section):
    """The optimizer of one policy."""

    kind: Literal["adamw", "sgd"] = "adamw"
    """AdamW, or plain gradient descent."""
    lr: float = Field(1e-6, gt=0)
    """Learning rate."""
    betas: tuple[Annotated[float, Field(ge=0, lt=1)], Annotated[float, Field(ge=0, lt=1)]] = (
        0.9,
        0.999,
    )
    """Decay rates of AdamW's moments."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Course of the learning rate after the warm-up: it stays, or falls to 0 along a line or half
    a cosine."""
    warmup_rounds: int = Field(0, ge=0)
    """Rounds over which the learning rate grows linearly to `lr`."""
    decay_rounds: int | None = Field(None, ge=1)
    """Rounds after which it is 0, warm-up included; null: the run's, which then cannot grow."""
    max_grad_norm: float | None = Field(1.0, gt=0)
    """Global gradient-norm clip; null: none."""

    @model_validator(mode="after")
    def _decay(self) -> "OptimizerConfig":
        if self.decay_rounds is not None and (
            self.schedule == "constant" or self.decay_rounds <= self.warmup_rounds
        ):
            raise ValueError(
                f"decay_rounds={self.decay_rounds} with schedule={self.schedule!r} and "
                f"warmup_rounds={self.warmup_rounds}; expected a schedule that falls, and more "
                "rounds than the warm-up has"
            )
        return self
