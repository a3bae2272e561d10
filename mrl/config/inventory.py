"""A cluster: its devices, what they can do, and what a plan must know about the policies."""

from collections import Counter
from typing import Annotated, Literal

from pydantic import Field, model_validator

from mrl.config.base import Section


class KindConfig(Section):
    """What one device can hold and do; a data sheet has the figures."""

    memory_gib: float = Field(gt=0)
    """Memory of a device, GiB."""
    tflops: float = Field(gt=0)
    """Peak rate at the policies' dtype without sparsity, 10^12 operations a second."""
    bandwidth_gbs: float = Field(gt=0)
    """Peak memory bandwidth, 10^9 bytes a second."""
    efficiency: float = Field(0.4, gt=0, le=1)
    """Share of both peaks that is reached; times measured in a run correct it."""


class NodeConfig(Section):
    """A machine, or several alike."""

    name: str = Field(min_length=1)
    """Name; of several alike the first part of theirs: name-0, name-1, ..."""
    kind: str
    """A key of `kinds`."""
    devices: int = Field(ge=1)
    """Devices of that kind in the machine."""
    count: int = Field(1, ge=1)
    """Machines alike."""

    @property
    def names(self) -> list[str]:
        """The name of each machine."""
        return [self.name] if self.count == 1 else [f"{self.name}-{i}" for i in range(self.count)]


class SizeConfig(Section):
    """Size of a language model, as its config.json has it."""

    parameters: float = Field(gt=0)
    """Number of parameters."""
    layers: int = Field(ge=1)
    """num_hidden_layers."""
    hidden_size: int = Field(ge=1)
    """hidden_size."""
    kv_size: int = Field(ge=1)
    """num_key_value_heads times head_dim."""
    vocab_size: int = Field(ge=1)
    """vocab_size."""


class DemandConfig(Section):
    """What a plan must know about a policy beyond the run's configuration."""

    size: SizeConfig | None = None
    """Size of its model. Default: what `models` says of it, or the local folder."""
    trainable: float | None = Field(None, gt=0, le=1)
    """Share of the parameters that is trained. Default: all; with adapters 2 rank / hidden_size,
    their share in a square matrix."""
    optimizer_bytes: float | None = Field(None, ge=0)
    """Bytes of optimizer state for each trained parameter, master weights included. Default: two
    moments in the parameters' type for AdamW, none for plain gradient descent."""


class InventoryConfig(Section):
    """The devices of a cluster, for ``mrl allocate``."""

    kind: Literal["inventory"]
    """Tells this file from a run's and a study's."""
    kinds: dict[Annotated[str, Field(min_length=1)], KindConfig] = Field(min_length=1)
    """Kinds of device by name."""
    nodes: tuple[NodeConfig, ...] = Field(min_length=1)
    """The machines."""
    usable_memory: float = Field(0.9, gt=0, le=1)
    """Share of a device's memory that a plan may fill; the rest is for the library's own."""
    sharding: bool = True
    """Whether weights, gradients and optimizer state may be divided among devices where they do
    not fit whole."""
    prompt_tokens: int = Field(256, ge=1)
    """Length of a prompt, tokens."""
    response_tokens: int | None = Field(None, ge=1)
    """Length of a response, tokens. Default: the longest that the run allows."""
    models: dict[str, SizeConfig] = {}
    """Sizes of models that are no local folders, by hub id."""
    policies: dict[str, DemandConfig] = {}
    """By name of a policy of the run."""

    @model_validator(mode="after")
    def _consistent(self) -> "InventoryConfig":
        names = Counter(name for node in self.nodes for name in node.names)
        if twice := sorted(name for name, count in names.items() if count > 1):
            raise ValueError(f"nodes must have different names; got {twice} more than once")
        for node in self.nodes:
            if node.kind not in self.kinds:
                raise ValueError(
                    f"node {node.name!r} has kind {node.kind!r}; expected one of "
                    f"{sorted(self.kinds)}"
                )
        if unused := sorted(self.kinds.keys() - {node.kind for node in self.nodes}):
            raise ValueError(f"no node has kind {unused}; remove it from kinds, or add the node")
        return self
