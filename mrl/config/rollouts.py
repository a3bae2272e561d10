"""How many responses a policy samples, and from which distribution."""

from typing import Annotated

from pydantic import Field, model_validator

from mrl.config.base import Section


class GroupConfig(Section):
    """How many rollouts a prompt."""

    own: int = Field(8, ge=2)
    """Rollouts of each policy a prompt (G). One alone has no advantage, so at least 2."""
    peers: int | dict[str, Annotated[int, Field(ge=0)]] = 8
    """Rollouts seen of each peer a prompt (M_j): one number, or one a peer by name."""
    redraws: int = Field(0, ge=0)
    """Dynamic sampling: redraw a group without reward variance at most this often."""

    @model_validator(mode="after")
    def _peers(self) -> "GroupConfig":
        if isinstance(self.peers, int) and self.peers < 0:
            raise ValueError(f"peers={self.peers} is not allowed; expected a number >= 0")
        return self


class SamplingConfig(Section):
    """How responses are sampled; the same in training and in the importance ratios."""

    max_tokens: int = Field(64, ge=1)
    """Longest response in the sampling policy's own tokens, EOS included."""
    temperature: float = Field(1.0, gt=0)
    """Softmax temperature, used on both sides: for sampling and for scoring."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling: of each token's distribution the smallest set of most probable tokens
    with at least this mass is kept. Used on both sides too: the truncated distribution is the
    policy that is trained. Likelihood terms are not truncated."""
    batch: int = Field(512, ge=1)
    """Rows generated at a time; bounds memory."""
