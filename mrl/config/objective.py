"""How a policy learns: token loss and optimizer."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mrl.config.base import Section

# Names that TRL and verl give to the same aggregations. TRL's `bnpo` is a mean over the tokens of a
# micro-batch: with denominators over the whole update, as all are here, that is `dapo`.
AGGREGATION_ALIASES = {
    "dapo": "token",
    "bnpo": "token",
    "token-mean": "token",
    "grpo": "sequence",
    "seq-mean-token-mean": "sequence",
    "seq-mean-token-sum": "sum",
    "dr_grpo": "constant",
}


class ObjectiveConfig(Section):
    """The token-level loss."""

    aggregation: Literal["token", "sequence", "sum", "constant"] = "token"
    """How log pi(response) is formed from tokens: ``sum``; ``sequence`` (divided by its own
    length); ``token`` (divided by the mean length of the update); ``constant`` (divided by
    `length`)."""
    length: int | None = Field(None, ge=1)
    """What ``constant`` divides by; usually the longest response, `sampling.max_tokens`."""
    clip_low: float = Field(0.2, ge=0, lt=1)
    """Lower clip of the within-policy ratio: 1 - clip_low."""
    clip_high: float = Field(0.28, ge=0)
    """Upper clip of the within-policy ratio: 1 + clip_high."""
    kl: float = Field(0.0, ge=0, allow_inf_nan=False)
    """Weight of the divergence from the policy's initial weights on its own responses; 0: none,
    and no copy of those weights is kept."""
    kl_unbiased: bool = True
    """Multiply each token's k3 estimate of that divergence by the within-policy ratio: its gradient
    is then an unbiased one of the divergence. False: bare k3, whose gradient is not."""
    engine_correction: Annotated[float, Field(gt=0)] | Literal["auto"] | None = "auto"
    """Cap on the importance weights that correct own tokens for the gap between the engine that
    sampled them and the trainer. null: no such weights. ``auto``: 2 for an engine with weights of
    its own, null for the trainer's own model, where the two agree to rounding."""
    updates: int = Field(1, ge=1)
    """Optimizer steps a round; the prompts of a round are split evenly over them."""
    mask_truncated: bool = False
    """Leave responses that did not end by EOS out of loss and length."""
    batch_tokens: int = Field(16384, ge=1)
    """Padded tokens a micro-batch; bounds memory and changes no gradient."""
    skip_nonfinite: int = Field(0, ge=0)
    """Steps in a row that may be left out because loss or gradient is not finite; one more ends
    the run. 0: the first ends it."""

    @model_validator(mode="before")
    @classmethod
    def _aliases(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("aggregation") in AGGREGATION_ALIASES:
            return {**values, "aggregation": AGGREGATION_ALIASES[values["aggregation"]]}
        return values

    @model_validator(mode="after")
    def _length(self) -> "ObjectiveConfig":
        if (self.aggregation == "constant") != (self.length is not None):
            raise ValueError(
                f"aggregation={self.aggregation!r} with length={self.length}; expected a length, "
                "for example that of sampling.max_tokens, with 'constant' and with no other"
            )
        return self


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
