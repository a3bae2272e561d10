"""One schema for study, gate and training runs; checked before torch is imported.

A configuration is a YAML mapping. `load` reads it, applies ``section.key=value`` overrides and
returns a frozen `RunConfig`; `load_study` and `load_any` do so for studies.
"""

from mrl.config.base import ProbeField, Section
from mrl.config.engine import EngineConfig, HFEngineConfig, VllmEngineConfig
from mrl.config.gating import GateConfig
from mrl.config.inventory import (
    DemandConfig,
    InventoryConfig,
    KindConfig,
    NodeConfig,
    SizeConfig,
)
from mrl.config.logs import LoggingConfig
from mrl.config.objective import ObjectiveConfig, OptimizerConfig
from mrl.config.policies import (
    BPETokenizer,
    CharacterTokenizer,
    InitModel,
    LoraConfig,
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
    load_inventory,
    load_study,
    override,
    parse,
    parse_any,
    parse_study,
    read,
    shipped_configs,
)
from mrl.config.rollouts import GroupConfig, SamplingConfig
from mrl.config.schema import (
    CheckpointConfig,
    EvaluationConfig,
    ExchangeConfig,
    RunConfig,
)
from mrl.config.study import (
    AnalysisConfig,
    ExampleWorld,
    LearningConfig,
    MeasuredWorld,
    ResidualConfig,
    StudyConfig,
    SuccessWorld,
    TableWorld,
)
from mrl.config.tasks import (
    DatasetTask,
    JsonlTask,
    ReasoningGymTask,
    TaskConfig,
    VerificationConfig,
)

__all__ = [
    "AnalysisConfig",
    "BPETokenizer",
    "CharacterTokenizer",
    "CheckpointConfig",
    "DatasetTask",
    "DemandConfig",
    "EngineConfig",
    "EvaluationConfig",
    "ExampleWorld",
    "ExchangeConfig",
    "GateConfig",
    "GroupConfig",
    "HFEngineConfig",
    "InitModel",
    "InventoryConfig",
    "JsonlTask",
    "KindConfig",
    "LearningConfig",
    "LoggingConfig",
    "LoraConfig",
    "MeasuredWorld",
    "ModelConfig",
    "NodeConfig",
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
    "SizeConfig",
    "StudyConfig",
    "SuccessWorld",
    "TableWorld",
    "TaskConfig",
    "TokenizerConfig",
    "VerificationConfig",
    "VllmEngineConfig",
    "dump",
    "load",
    "load_any",
    "load_inventory",
    "load_study",
    "override",
    "parse",
    "parse_any",
    "parse_study",
    "read",
    "shipped_configs",
]
