"""The weights of a trained model, as an engine loads them."""

from collections.abc import Iterator
from typing import Any

import torch


def weights_of(model: Any, vocabulary: int, /) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of a transformers model as its checkpoint would hold them.

    Parameters
    ----------
    model : torch.nn.Module
        A model of the transformers library.
    vocabulary : int
        Rows that are kept of the embeddings and of the output layer: what lies beyond names no
        token, so that an engine with these weights cannot sample it.
    """
    ends = (model.get_input_embeddings(), model.get_output_embeddings())
    wide = {id(p) for end in ends if end is not None for p in end.parameters()}
    for name, parameter in model.named_parameters():
        tensor = parameter.detach()
        yield name, tensor[:vocabulary] if id(parameter) in wide else tensor
