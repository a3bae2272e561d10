"""What the gate validates a sharing rule in, and what it must hold."""

from typing import Annotated

from pydantic import Field, model_validator

from mrl.config.base import Section


class GateConfig(Section):
    """The toy regime in which a probe is validated, and what it must hold."""

    success: tuple[tuple[Annotated[float, Field(ge=0, le=1)], ...], ...] = (
        (0.95, 0.02),
        (0.02, 0.9),
    )
    """Success probability of each policy (rows) on each kind of prompt (columns)."""
    arms: int = Field(16, ge=4)
    """Responses a prompt in the toy worlds."""
    draws: int = Field(20_000, ge=1000)
    """Monte-Carlo draws against the closed forms."""
    steps: int = Field(150, ge=1)
    """Steps of toy training."""
    replicas: int = Field(32, ge=4)
    """Seeds of toy training."""
    lr: float = Field(0.05, gt=0)
    """Learning rate of toy training; plain gradient descent wants about 1."""
    max_stability_cost: float | None = Field(None, gt=0)
    """Bound on the population's tr Cov(g) relative to GRPO's; null: reported only."""
    min_support_gain: float | None = None
    """Bound on the population's support gain; null: reported only."""
    max_collapse: float = Field(0.1, ge=0, le=1)
    """Largest share of toy runs whose value may fall by 0.2 below its best."""
    min_rescue_gain: float = 0.05
    """Least gain over GRPO on the rescue set, for a probe that claims support."""
    text_bytes: int = Field(4, ge=3, le=5)
    """Longest response, in bytes, of the toy policies that write text."""
    canonical_share: float = Field(0.9, gt=0, lt=1)
    """How often they sample the canonical tokens of what they write, where their tokenizer leaves
    a choice; `mrl tokens audit` measures it on rollouts."""
    max_residual: float = Field(1.0, ge=0)
    """Bound on the 99% quantile of the error of the log-ratio, in nats, over peers' rollouts that
    have a weight; a ratio that is not gated does not hold the default."""
    min_token_cosine: float = Field(0.9, ge=-1, le=1)
    """Least cosine between what the gated sequence ratio makes of a peer's rollouts and the true
    gradient; what is missing is the receiver's share of other than canonical responses, and what
    a cap cuts off."""
    min_length_cosine: float | None = Field(None, ge=-1, le=1)
    """Bound on the cosine to the true gradient in the length world, at the run's longest responses
    (64 tokens at most); null: reported only."""

    @model_validator(mode="after")
    def _success(self) -> "GateConfig":
        if len(self.success) < 1 or len({len(row) for row in self.success}) != 1:
            raise ValueError(
                "success must hold one row a policy, all of equal length, "
                f"one entry a kind of prompt; got {self.success}"
            )
        return self
