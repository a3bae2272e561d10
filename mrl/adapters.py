"""Low-rank adapters by the peft library: they train, the weights under them stay as they are.

A checkpoint of a policy with adapters holds these alone, as peft's ``from_pretrained`` reads them;
the weights under them are those that the configuration names.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import torch

from mrl.config import LoraConfig, PolicyConfig
from mrl.errors import InputError


def add_adapters(model: Any, config: PolicyConfig, lora: LoraConfig, /, *, seed: int) -> Any:
    """The model with adapters that change nothing yet; `seed` draws their first factor.

    Raises
    ------
    InputError
        If peft is not installed, or the model has none of the target modules.
    """
    if find_spec("peft") is None:
        raise InputError(
            f"policy {config.name!r} has a 'lora' section, which needs peft; "
            "install it: pip install 'mutual-rl[train]'"
        )
    import peft

    targets = lora.target_modules
    settings = peft.LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=targets if isinstance(targets, str) else list(targets),
        task_type="CAUSAL_LM",
    )
    try:
        with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
            # peft 0.21 asks transformers by a name that transformers 5.24 deprecates.
            warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
            torch.manual_seed(seed)
            return peft.get_peft_model(model, settings)
    except ValueError as error:
        linear = sorted(
            {
                name.rpartition(".")[2]
                for name, module in model.named_modules()
                if isinstance(module, torch.nn.Linear)
            }
        )
        raise InputError(
            f"policy {config.name!r}: no adapters could be added to {targets} ({error}); expected "
            f"all-linear, or names among {linear}"
        ) from None


def has_adapters(model: Any, /) -> bool:
    """Whether a model was made by `add_adapters`."""
    return hasattr(model, "peft_config")


@contextmanager
def without_adapters(model: Any, /) -> Iterator[None]:
    """Compute with the weights under the adapters: the policy as it was before training.

    Raises
    ------
    ValueError
        If the model has none.
    """
    if not has_adapters(model):
        raise ValueError("the model has no adapters; its initial weights need a copy of their own")
    with model.disable_adapter():
        yield


def read_adapters(model: Any, tensors: Mapping[str, torch.Tensor], /) -> list[str]:
    """Put stored adapters into a model; returns the names that the two do not have in common."""
    from peft import get_peft_model_state_dict, set_peft_model_state_dict

    expected = set(get_peft_model_state_dict(model))
    if expected == set(tensors):
        set_peft_model_state_dict(model, dict(tensors))
    return sorted(expected ^ set(tensors))
