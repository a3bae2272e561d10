"""Models and tokenizers from folders, published packages, hub ids or a configuration."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import torch

from mrl.adapters import add_adapters
from mrl.config import BPETokenizer, CharacterTokenizer, PolicyConfig
from mrl.distributed import count
from mrl.errors import InputError, cannot_read, words_of
from mrl.hub import local_only
from mrl.published import MODELS, is_published, model_folder, published_tokenizer
from mrl.tokens.recipes import bpe_tokenizer, character_tokenizer
from mrl.tokens.segments import SegmentEncoder

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def load_tokenizer(config: PolicyConfig, /) -> Any:
    """The tokenizer of a policy: built by recipe, or from where its section or model points.

    Raises
    ------
    InputError
        If it cannot be found or built, or has no end-of-sequence token.
    """
    from transformers import AutoTokenizer

    section = config.tokenizer
    if section is not None and section.kind != "pretrained":
        return _made_tokenizer(config.name, section)
    path = section.path if section is not None else config.model.path  # type: ignore[union-attr]
    if is_published(path):
        return published_tokenizer(path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=local_only(path))
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(
            f"policy {config.name!r}: no tokenizer could be loaded from {path!r} "
            f"({words_of(error)}); expected a folder with tokenizer.json, one of "
            f"{list(MODELS)}, or a hub id"
        ) from None
    if tokenizer.eos_token_id is None:
        raise InputError(
            f"policy {config.name!r}: the tokenizer in {path!r} has no end-of-sequence token; "
            "set eos_token in its tokenizer_config.json"
        )
    return tokenizer


def load_codec(config: PolicyConfig, /) -> SegmentEncoder:
    """What spells and reads a policy's responses, without its weights.

    Raises
    ------
    InputError
        As `load_tokenizer`.
    """
    return SegmentEncoder.of(config.name, load_tokenizer(config), config.segments)


def _made_tokenizer(name: str, section: CharacterTokenizer | BPETokenizer, /) -> Any:
    try:
        if section.kind == "characters":
            return character_tokenizer(section.alphabet)
        lines = _text(section.path).read_text(encoding="utf-8").splitlines()
        return bpe_tokenizer(lines, section.vocab_size, byte_level=section.byte_level)
    except OSError as error:
        raise InputError(
            f"policy {name!r}: the tokenizer's text: "
            f"{cannot_read(section.path, error)}; "  # type: ignore[union-attr]
            "expected a text file, one text a line"
        ) from None
    except ValueError as error:
        raise InputError(f"policy {name!r}: no tokenizer could be built: {error}") from None


def _text(path: str, /) -> Path | Traversable:
    """A file, or else the one of that name that comes with the package."""
    shipped = resources.files("mrl.configs").joinpath(path)
    return shipped if shipped.is_file() and not Path(path).is_file() else Path(path)


def load_model(config: PolicyConfig, tokenizer: Any, /, *, seed: int) -> Any:
    """The causal language model of a policy, in training mode; `seed` draws random weights.

    With the adapters and the activation checkpointing that the configuration asks for.

    Raises
    ------
    InputError
        If the folder holds no model, the architecture or one of its settings is unknown, or the
        vocabulary is smaller than the tokenizer's.
    """
    section = config.model
    try:
        with quiet():
            model = _load(config, tokenizer, seed)
        if config.activation_checkpointing:
            model.activation_checkpointing_enable()
    except InputError:
        raise
    except Exception as error:  # architectures check their settings each in their own way
        where = section.path if section.kind == "pretrained" else section.model_type
        raise InputError(
            f"policy {config.name!r}: no model could be made from {where!r} ({words_of(error)})"
        ) from None
    embeddings: Any = model.get_input_embeddings()
    size = embeddings.num_embeddings
    if size < len(tokenizer):
        raise InputError(
            f"policy {config.name!r}: the model has {size} embeddings and the tokenizer "
            f"{len(tokenizer)} tokens; expected at least as many embeddings as tokens"
        )
    if config.lora is not None:
        model = add_adapters(model, config, config.lora, seed=seed)
    return model.train()


def _load(config: PolicyConfig, tokenizer: Any, seed: int, /) -> Any:
    """Weights from where the section points, or random ones."""
    from transformers import AutoConfig, AutoModelForCausalLM

    section = config.model
    if section.kind == "pretrained":
        path = model_folder(section.path) if is_published(section.path) else section.path
        return AutoModelForCausalLM.from_pretrained(
            path, dtype=DTYPES[section.dtype], local_files_only=local_only(str(path))
        )
    _check_params(section.params, AutoConfig.for_model(section.model_type))
    settings = AutoConfig.for_model(
        section.model_type,
        **{
            "vocab_size": len(tokenizer),
            "eos_token_id": tokenizer.eos_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
            **section.params,
        },
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(settings, dtype=DTYPES[section.dtype])


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars of transformers, which would break the run's own."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def device_of(name: str, /) -> torch.device:
    """The device that a configuration names; with several processes each has its own GPU.

    Raises
    ------
    InputError
        If there is none of that name, or nothing can be trained on it.
    """
    try:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if name != "auto":
            device = torch.device(name)
    except RuntimeError:
        raise InputError(f"device={name!r} is no device; expected cpu, cuda or auto") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device={name!r}, but no CUDA device is available; expected cpu or auto")
    if device.type == "cuda" and count() > 1:
        from accelerate import PartialState

        return PartialState().device
    _try(device)
    return device


def _try(device: torch.device, /) -> None:
    """Take a gradient on a device: torch knows names of many that are not there, or hold no data.

    Raises
    ------
    InputError
        If it cannot be done.
    """
    try:
        parameter = torch.ones(1, device=device, requires_grad=True)
        parameter.square().sum().backward()
        parameter.sum().item()
    except Exception as error:  # each device raises its own
        raise InputError(
            f"device={str(device)!r} cannot be trained on here ({words_of(error)}); expected cpu, "
            "cuda or auto"
        ) from None


def _check_params(params: dict[str, Any], known: Any, /) -> None:
    """Refuse settings that the architecture does not have: it would ignore them."""
    unknown = sorted(key for key in params if not hasattr(known, key))
    if unknown:
        close = difflib.get_close_matches(unknown[0], list(known.to_dict()), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise ValueError(f"it has no settings {unknown}{hint}")
