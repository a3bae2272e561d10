"""Policies: models, tokenizers, and what each does differently from the run."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mrl.config.base import ProbeField, Section
from mrl.config.engine import EngineConfig, HFEngineConfig
from mrl.config.objective import ObjectiveConfig, OptimizerConfig


class CharacterTokenizer(Section):
    """One token a character."""

    kind: Literal["characters"]
    alphabet: str = Field(min_length=1)
    """Every character that a text may hold."""


class BPETokenizer(Section):
    """Byte-pair encoding learned from a text file."""

    kind: Literal["bpe"]
    path: str
    """Text file, one text a line."""
    vocab_size: int = Field(ge=2)
    """Entries, special tokens included."""
    byte_level: bool = False
    """Merge bytes, so that any text can be written, or the characters of the file."""


class PretrainedTokenizer(Section):
    """A tokenizer from a folder, a published package or a hub id."""

    kind: Literal["pretrained"]
    path: str
    """Local folder, a name of `mrl.published`, or hub id; the first that there is."""


TokenizerConfig = Annotated[
    CharacterTokenizer | BPETokenizer | PretrainedTokenizer, Field(discriminator="kind")
]


class PretrainedModel(Section):
    """Weights from a folder, a published package or a hub id."""

    kind: Literal["pretrained"]
    path: str
    """Local folder, a name of `mrl.published`, or hub id; the first that there is."""
    dtype: Literal["float64", "float32", "bfloat16"] = "float32"
    """Parameter type."""


class InitModel(Section):
    """A decoder with random weights, for demonstrations and tests."""

    kind: Literal["init"]
    model_type: str = "llama"
    """Architecture name of the transformers library."""
    params: dict[str, Any] = {}
    """Settings of that architecture; vocabulary and special ids come from the tokenizer."""
    dtype: Literal["float64", "float32", "bfloat16"] = "float32"
    """Parameter type."""


ModelConfig = Annotated[PretrainedModel | InitModel, Field(discriminator="kind")]


class PolicyConfig(Section):
    """One policy: its model, tokenizer, optimizer, and what it does differently from the run."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name in records, metrics and folders."""
    model: ModelConfig
    """Where the weights come from."""
    tokenizer: TokenizerConfig | None = None
    """Default: the tokenizer in the model's folder."""
    template: Literal["auto", "chat", "plain"] = "auto"
    """How messages become a prompt: the tokenizer's chat template, or their bare content.
    ``auto``: the chat template where the tokenizer has one."""
    segments: Literal["auto"] | dict[Annotated[str, Field(min_length=1)], str] = "auto"
    """Structural tokens inside responses, the text of one token for each kind, for example
    ``{think_open: "<think>", think_close: "</think>"}``. ``auto``: those of the common think and
    tool marks that are among the tokenizer's added tokens; ``{}``: none."""
    engine: EngineConfig = HFEngineConfig()
    """What samples its responses."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Own optimizer and learning rate."""
    objective: ObjectiveConfig | None = None
    """Own objective; default: the run's."""
    probe: ProbeField | None = None
    """Own sharing rule; default: the run's."""

    @model_validator(mode="after")
    def _tokenizer(self) -> "PolicyConfig":
        if self.tokenizer is None and self.model.kind == "init":
            raise ValueError(
                f"policy {self.name!r} has a model with random weights and no tokenizer; "
                "add a 'tokenizer' section (kind: characters, bpe or pretrained)"
            )
        return self
