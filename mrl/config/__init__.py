"""One schema for study, gate and training runs; checked before torch is imported.

A configuration is a YAML mapping. `load` reads it, applies ``section.key=value`` overrides and
returns a frozen `RunConfig`.
"""

from mrl.config.reading import dump, load, override, parse, read
from mrl.config.schema import (
    BPETokenizer,
    CharacterTokenizer,
    CheckpointConfig,
    EvaluationConfig,
    ExchangeConfig,
    GateConfig,
    GroupConfig,
    InitModel,
    JsonlTask,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PolicyConfig,
    PretrainedModel,
    PretrainedTokenizer,
    ProbeField,
    ReasoningGymTask,
    RunConfig,
    SamplingConfig,
    Section,
    TaskConfig,
    TokenizerConfig,
)

__all__ = [
    "BPETokenizer",
    "CharacterTokenizer",
    "CheckpointConfig",
    "EvaluationConfig",
    "ExchangeConfig",
    "GateConfig",
    "GroupConfig",
    "InitModel",
    "JsonlTask",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "PolicyConfig",
    "PretrainedModel",
    "PretrainedTokenizer",
    "ProbeField",
    "ReasoningGymTask",
    "RunConfig",
    "SamplingConfig",
    "Section",
    "TaskConfig",
    "TokenizerConfig",
    "dump",
    "load",
    "override",
    "parse",
    "read",
]
