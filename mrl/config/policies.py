"""Policies: models, tokenizers, and what each does differently from the run."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from mrl.config.base import ProbeField, Section
from mrl.config.engine import EngineConfig, HFEngineConfig
from mrl.config.objective import ObjectiveConfig, OptimizerConfig
from mrl.config.rollouts import GroupConfig, SamplingConfig

Dtype = Literal["float64", "float32", "bfloat16", "float16"]


class CharacterTokenizer(Section):
    """One token a character."""

    kind: Literal["characters"]
    alphabet: str = Field(min_length=1)
    """Every character that a text may hold."""


class BPETokenizer(Section):
    """Byte-pair encoding learned from a text file."""

    kind: Literal["bpe"]
    path: str
    """Text file, one text a line; or ``arithmetic.txt``, which comes with the package."""
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
    dtype: Dtype = "float32"
    """Parameter type; float16 for the frozen weights under LoRA only."""


class InitModel(Section):
    """A decoder with random weights, for demonstrations and tests."""

    kind: Literal["init"]
    model_type: str = "llama"
    """Architecture name of the transformers library."""
    params: dict[str, Any] = {}
    """Settings of that architecture; vocabulary and special ids come from the tokenizer."""
    dtype: Dtype = "float32"
    """Parameter type; float16 for the frozen weights under LoRA only."""


ModelConfig = Annotated[PretrainedModel | InitModel, Field(discriminator="kind")]


class LoraConfig(Section):
    """Low-rank adapters; the weights they are added to stay as they are."""

    rank: int = Field(16, ge=1)
    """Rank of each adapter."""
    alpha: int = Field(32, ge=1)
    """Scale: what an adapter gives is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout before each adapter, in training steps only."""
    target_modules: Literal["all-linear"] | tuple[str, ...] = "all-linear"
    """Names of the modules that get one, for example ``[q_proj, v_proj]``; ``all-linear``: every
    linear module but the output layer."""


class PolicyConfig(Section):
    """One policy: its model, tokenizer, optimizer, and what it does differently from the run.

    What its sections `group`, `sampling` and `objective` leave out is as in the run's.
    """

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
    lora: LoraConfig | None = None
    """Train adapters instead of all parameters."""
    precision: Literal["auto", "full", "bfloat16"] = "auto"
    """``bfloat16``: float32 parameters, computed with under autocast, in generation and training
    alike. ``full``: in the parameters' own type. ``auto``: the former on CUDA where the parameters
    are float32, the latter elsewhere."""
    activation_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them."""
    engine: EngineConfig = HFEngineConfig()
    """What samples its responses."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """Own optimizer and learning rate."""
    group: GroupConfig | None = None
    """Own group sizes; default: the run's."""
    sampling: SamplingConfig | None = None
    """Own sampling; default: the run's."""
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

    @model_validator(mode="after")
    def _types(self) -> "PolicyConfig":
        dtype = self.model.dtype
        if dtype == "float16" and self.lora is None:
            raise ValueError(
                f"policy {self.name!r} has float16 parameters, in which small updates vanish; "
                "expected bfloat16 or float32, or a 'lora' section"
            )
        if self.precision == "bfloat16" and dtype != "float32":
            raise ValueError(
                f"policy {self.name!r} has precision bfloat16 over {dtype} parameters; expected "
                "model.dtype float32, or precision full"
            )
        return self
