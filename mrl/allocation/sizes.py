"""How large a policy's model is: from the inventory, its folder, or its `init` settings."""

import json
import math
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mrl.config import PolicyConfig, PretrainedModel, SizeConfig
from mrl.errors import InputError

# Names in the config.json of older architectures.
OLDER = {
    "num_hidden_layers": "n_layer",
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
}


def size_of(
    policy: PolicyConfig, told: SizeConfig | None, models: Mapping[str, SizeConfig], /
) -> SizeConfig:
    """Size of a policy's model.

    What the inventory says, of the policy or of its model, comes first. Of a local folder the
    headers of the weight files and ``config.json`` are read. A model with random weights is built
    without memory, which needs torch.

    Raises
    ------
    InputError
        If the size is not known, or a file cannot be read.
    """
    if told is not None:
        return told
    if not isinstance(policy.model, PretrainedModel):
        return _of_init(policy)
    if policy.model.path in models:
        return models[policy.model.path]
    folder = Path(policy.model.path)
    if not folder.is_dir():
        raise InputError(
            f"policy {policy.name!r}: {policy.model.path!r} is no local folder, so its size is not "
            f"known; set models[{policy.model.path!r}] in the inventory (parameters, layers, "
            "hidden_size, kv_size, vocab_size, as its config.json has them)"
        )
    try:
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        return _sized(settings.get("text_config", settings), _stored_parameters(folder))
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise InputError(
            f"policy {policy.name!r}: the size of the model in {folder} cannot be read "
            f"({type(error).__name__}: {error}); expected config.json and .safetensors files, or "
            f"policies.{policy.name}.size in the inventory"
        ) from None


def _sized(settings: dict[str, Any], parameters: float, /) -> SizeConfig:
    def setting(name: str) -> int:
        return int(settings[name if name in settings else OLDER.get(name, name)])

    heads, hidden = setting("num_attention_heads"), setting("hidden_size")
    return SizeConfig(
        parameters=parameters,
        layers=setting("num_hidden_layers"),
        hidden_size=hidden,
        kv_size=int(settings.get("num_key_value_heads") or heads)
        * int(settings.get("head_dim") or hidden // heads),
        vocab_size=setting("vocab_size"),
    )


def _stored_parameters(folder: Path, /) -> int:
    """Parameters in a folder's weight files: the sizes that their headers state."""
    index = folder / "model.safetensors.index.json"
    if index.exists():
        weights = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        files = sorted({folder / name for name in weights.values()})
    else:
        files = [folder / "model.safetensors"]
    total = 0
    for path in files:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(length))
        header.pop("__metadata__", None)
        total += sum(math.prod(tensor["shape"]) for tensor in header.values())
    return total


def _of_init(policy: PolicyConfig, /) -> SizeConfig:
    """Size of a model with random weights, built on the device that holds none."""
    import torch

    from mrl.models import load_model, load_tokenizer

    with torch.device("meta"):
        model = load_model(policy, load_tokenizer(policy), seed=0)
    settings = model.config.get_text_config()
    found = {name: getattr(settings, name) for name in OLDER} | {
        "vocab_size": settings.vocab_size,
        "num_key_value_heads": getattr(settings, "num_key_value_heads", None),
        "head_dim": getattr(settings, "head_dim", None),
    }
    return _sized(found, sum(weights.numel() for weights in model.parameters()))
