"""Engines that sample a policy's responses."""

from typing import Annotated, Literal

from pydantic import Field

from mrl.config.base import Section


class HFEngineConfig(Section):
    """The model that is trained samples too, through transformers; nothing is copied."""

    kind: Literal["hf"] = "hf"


class VllmEngineConfig(Section):
    """A vLLM engine in the same process, with weights of its own; see docs/engines.md."""

    kind: Literal["vllm"]
    max_model_len: int | None = Field(None, ge=2)
    """Longest prompt and response together, in tokens. Default: the model's context."""
    kv_cache_gib: float = Field(4.0, gt=0)
    """Memory for the KV cache, in GiB."""
    eager: bool = False
    """Without compilation and CUDA graphs: starts in seconds, generates slower on a GPU."""
    max_logprob_gap: float = Field(0.1, gt=0)
    """Largest mean absolute difference, in nats a token, between the log-probabilities of engine
    and trainer on a few responses that are sampled after each weight update; beyond it the run
    stops."""


EngineConfig = Annotated[HFEngineConfig | VllmEngineConfig, Field(discriminator="kind")]
