"""From a configuration section to the engine that it names."""

from typing import Any

from mrl.config import EngineConfig
from mrl.rollout import Decoding, Engine, Scorer
from mrl.rollout.hf import HFEngine


def open_engine(config: EngineConfig, model: Any, decoding: Decoding, score: Scorer, /) -> Engine:
    """Make the engine of a policy.

    Parameters
    ----------
    config : EngineConfig
        Which engine, and its settings.
    model : torch.nn.Module
        The policy's model.
    decoding : Decoding
        Where to sample from.
    score : Scorer
        The trainer's own log-probabilities, for engines that have weights of their own.

    Raises
    ------
    InputError
        If the engine's library is missing, or it cannot run this model or distribution.
    """
    if config.kind == "hf":
        return HFEngine(model, decoding)
    from mrl.rollout.vllm import VllmEngine

    return VllmEngine(config, model, decoding, score)
