"""One schema for study, gate and training runs; checked before torch is imported.

A configuration is a YAML mapping. `load` reads it, applies ``section.key=value`` overrides and
returns a frozen `RunConfig`; `load_study` and `load_any` do so for studies.
"""

from mrl.config.base import ProbeField, Section
from mrl.config.engine import EngineConfig, HFEngineConfig, VllmEngineConfig
from mrl.config.gating import GateConfig
from mrl.config.objective import ObjectiveConfig, OptimizerConfig
from mrl.config.policies import (
    BPETokenizer,
    CharacterTokenizer,
    InitModel,
    ModelConfig,
    PolicyConfig,
    PretrainedModel,
    PretrainedTokenizer,
    TokenizerConfig,
)
from mrl.config.reading import (
    dump,
    load,
    load_any,
    load_study,
    override,
    parse,
    parse_any,
    parse_study,
    read,
)
from mrl.config.schema import (
    CheckpointConfig,
    EvaluationConfig,
    ExchangeConfig,
    GroupConfig,
    RunConfig,
    SamplingConfig,
)
from mrl.config.study import (
    AnalysisConfig,
    ExampleWorld,
    LearningConfig,
    ResidualConfig,
    StudyConfig,
    SuccessWorld,
    TableWorld,
)
from mrl.config.tasks import JsonlTask, ReasoningGymTask, TaskConfig

__all__ = [
    "AnalysisConfig",
    "BPETokenizer",
    "CharacterTokenizer",
    "CheckpointConfig",
    "EngineConfig",
    "EvaluationConfig",
    "ExampleWorld",
    "ExchangeConfig",
    "GateConfig",
    "GroupConfig",
    "HFEngineConfig",
    "InitModel",
    "JsonlTask",
    "LearningConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "OptimizerConfig",
    "PolicyConfig",
    "PretrainedModel",
    "PretrainedTokenizer",
    "ProbeField",
    "ReasoningGymTask",
    "ResidualConfig",
    "RunConfig",
    "SamplingConfig",
    "Section",
    "StudyConfig",
    "SuccessWorld",
    "TableWorld",
    "TaskConfig",
    "TokenizerConfig",
    "VllmEngineConfig",
    "dump",
    "load",
    "load_any",
    "load_study",
    "override",
    "parse",
    "parse_any",
    "parse_study",
    "read",
]
