"""What an audit reads: texts, and tokenizers by name."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from mrl.config import PolicyConfig
from mrl.errors import InputError, PackageMissing, words_of
from mrl.hub import local_only
from mrl.tokens.conversion import as_it_is, sentencepiece, tekken
from mrl.tokens.published import TOKENIZERS
from mrl.tokens.published import load as load_published
from mrl.tokens.retokenization import ContentEncoder

PIECE_BYTES = 2000
PROSE = {"English": "english.txt", "Chinese": "chinese.txt", "digits": "digits.txt"}


@dataclass(frozen=True)
class Texts:
    """Texts to audit, and in words where they come from.

    Parameters
    ----------
    texts : tuple of bytes
        Pieces of at most about 2,000 bytes that end with a line: each is kept or refused whole.
    kinds : tuple of str
        Kind of each.
    about : str
        Where they come from.
    """

    texts: tuple[bytes, ...]
    kinds: tuple[str, ...]
    about: str

    @classmethod
    def of(cls, parts: Iterable[tuple[str, bytes]], about: str, /) -> "Texts":
        """Cut each (kind, text) into pieces."""
        pairs = [(kind, piece) for kind, text in parts for piece in pieces(text)]
        return cls(tuple(text for _, text in pairs), tuple(kind for kind, _ in pairs), about)

    def head(self, count: int | None, /) -> "Texts":
        """The first `count` texts of each kind; all for None."""
        kept = [
            i
            for i, kind in enumerate(self.kinds)
            if count is None or self.kinds[:i].count(kind) < count
        ]
        return Texts(
            tuple(self.texts[i] for i in kept), tuple(self.kinds[i] for i in kept), self.about
        )


def pieces(text: bytes, /) -> Iterator[bytes]:
    """Cut a text at line ends into pieces of about `PIECE_BYTES`; longer lines stay whole."""
    piece = b""
    for line in text.splitlines(keepends=True):
        if piece and len(piece) + len(line) > PIECE_BYTES:
            yield piece
            piece = b""
        piece += line
    if piece:
        yield piece


def shipped_texts() -> Texts:
    """Small texts that come with the package: prose, its own Python source, and digits."""
    prose = resources.files("mrl.tokens") / "texts"
    parts = [(kind, (prose / name).read_bytes()) for kind, name in PROSE.items()]
    modules = sorted(
        (one for one in resources.files("mrl.tokens").iterdir() if one.name.endswith(".py")),
        key=lambda one: one.name,
    )
    parts[1:1] = [("code", module.read_bytes()) for module in modules]
    version = metadata.version("mutual-rl")
    return Texts.of(
        parts,
        "shipped texts: English and Chinese prose, the Python source of mrl.tokens "
        f"{version}, and numbers",
    )


def file_texts(path: Path, /) -> Texts:
    """The pieces of a text file.

    Raises
    ------
    InputError
        If it cannot be read or is empty.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; expected a text file") from None
    if not content:
        raise InputError(f"{path} is empty; expected a text file")
    return Texts.of([(path.name, content)], f"{path}")


def published_here(
    names: Iterable[str] = tuple(TOKENIZERS), /
) -> tuple[dict[str, Any], dict[str, str]]:
    """Published tokenizers that are installed, and the commands that install the others."""
    here: dict[str, Any] = {}
    missing: dict[str, str] = {}
    for name in names:
        try:
            here[name] = load_published(name)
        except PackageMissing:
            missing[name] = TOKENIZERS[name].install
    return here, missing


def encoder_of(name: str, policies: Sequence[PolicyConfig] = (), /) -> ContentEncoder:
    """Find a tokenizer and make its encoder.

    Parameters
    ----------
    name : str
        A policy of `policies`, a file (``tokenizer.json``, ``tekken.json``, a SentencePiece
        ``.model``), a folder with a tokenizer, a name of `mrl.tokens.published`, or a hub id; the
        first that fits.
    policies : sequence of PolicyConfig
        Policies of a run.

    Raises
    ------
    InputError
        If there is none, or it is of a family that is not supported.
    """
    tokenizer = _load(name, {policy.name: policy for policy in policies})
    try:
        return ContentEncoder.of(tokenizer)
    except InputError as error:
        raise InputError(f"tokenizer {name!r}: {error}") from None


def _load(name: str, policies: Mapping[str, PolicyConfig], /) -> Any:
    path = Path(name)
    if name in policies:
        from mrl.models import load_tokenizer

        return load_tokenizer(policies[name])
    if path.is_file():
        return _from_file(path)
    if (path / "tokenizer.json").is_file() and not (path / "tokenizer_config.json").is_file():
        return _from_file(path / "tokenizer.json")
    if not path.exists() and name in TOKENIZERS:
        return load_published(name)
    return _from_pretrained(name)


def _from_file(path: Path, /) -> Any:
    expected = "expected a tokenizer.json, a tekken.json or a SentencePiece .model"
    if path.suffix == ".gguf":
        raise InputError(
            f"{path} is a GGUF file, which names its pre-tokenizer but does not hold it; expected "
            "the model's tokenizer.json"
        )
    kind = ".model" if ".model" in path.suffixes else path.suffix  # Mistral's are .model.v3
    read = {".model": sentencepiece, ".json": as_it_is}.get(kind)
    if read is None:
        raise InputError(f"{path} is no tokenizer that can be read here; {expected}")
    try:
        if path.name.startswith("tekken"):
            return tekken(path)
        return read(path)
    except InputError:
        raise
    except Exception as error:  # the libraries raise bare exceptions of several kinds
        raise InputError(f"cannot read {path} ({words_of(error)}); {expected}") from None


def _from_pretrained(name: str, /) -> Any:
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise InputError(
            f"tokenizer {name!r} needs the transformers library: pip install 'mutual-rl[train]', "
            "or give a tokenizer.json"
        ) from None
    try:
        return AutoTokenizer.from_pretrained(name, local_files_only=local_only(name))
    except Exception as error:  # what a damaged or remote folder raises depends on its content
        raise InputError(
            f"no tokenizer could be loaded from {name!r} ({words_of(error)}); expected a "
            f"folder or file of a tokenizer, a hub id, or one of {list(TOKENIZERS)}"
        ) from None
