"""The weights of a trained model, as an engine loads them."""

from collections.abc import Iterator
from typing import Any

import torch


def weights_of(model: Any, vocabulary: int, /) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of a transformers model as its checkpoint would hold them.

    Parameters
    ----------
    model : torch.nn.Module
        A model of the transformers library, or one with low-rank adapters of the peft library,
        which are then added to the weights under them; the model itself stays as it is.
    vocabulary : int
        Rows that are kept of the embeddings and of the output layer: what lies beyond names no
        token, so that an engine with these weights cannot sample it.
    """
    if hasattr(model, "peft_config"):
        model = model.get_base_model()
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    wide = {id(p) for end in ends if end is not None for p in end.parameters()}
    adapted = {name: m for name, m in model.named_modules() if hasattr(m, "get_delta_weight")}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        layer, under, rest = name.partition(".base_layer.")
        tensor = parameter.detach()
        if under:
            name = f"{layer}.{rest}"
            if rest == "weight":
                tensor = tensor + _added(adapted[layer]).to(tensor.dtype)
        yield name, tensor[:vocabulary] if id(parameter) in wide else tensor


@torch.no_grad()
def _added(layer: Any, /) -> Any:
    """What the active adapters of a layer add to its weight."""
    return sum(layer.get_delta_weight(adapter) for adapter in layer.active_adapters)
