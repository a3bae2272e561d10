"""Small tokenizers made on the spot: for demos and tests, whole and deterministic.

Both have ``<pad>`` (id 0) and ``<eos>`` (id 1) and no unknown token: encoding text outside their
alphabet is an error in the tokenizers library, never a silent edit.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, EOS = "<pad>", "<eos>"
# Named but not in the vocabulary: the library then raises where it would drop a character.
NO_UNKNOWN = "<unk>"


def character_tokenizer(alphabet: str, /) -> "PreTrainedTokenizerFast":
    """One token a character.

    Parameters
    ----------
    alphabet : str
        The characters, each once; they get ids from 2 on in this order.

    Returns
    -------
    transformers.PreTrainedTokenizerFast
        With ``len(alphabet) + 2`` entries.

    Raises
    ------
    ValueError
        If the alphabet is empty or repeats a character.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    repeated = sorted({char for char in alphabet if alphabet.count(char) > 1})
    if not alphabet or repeated:
        raise ValueError(
            f"alphabet={alphabet!r} repeats {repeated}; expected at least one character, each once"
        )
    vocabulary = {piece: index for index, piece in enumerate((PAD, EOS, *alphabet))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=NO_UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    return _wrapped(tokenizer)


def bpe_tokenizer(
    texts: Iterable[str],
    /,
    vocab_size: int,
    *,
    byte_level: bool = False,
    pattern: str = r"\p{L}+|\p{N}+|\s+|[^\p{L}\p{N}\s]",
) -> "PreTrainedTokenizerFast":
    r"""Train a BPE tokenizer on `texts`.

    Parameters
    ----------
    texts : iterable of str
        Training text.
    vocab_size : int
        Entries, with ``<pad>`` and ``<eos>``.
    byte_level : bool
        Merge bytes (any text is representable, 256 entries at least) or the characters that occur
        in `texts`.
    pattern : str
        Regular expression of the pieces that merges stay inside of. Default: runs of letters, of
        digits or of white space, and every other character by itself.

    Returns
    -------
    transformers.PreTrainedTokenizerFast
        With exactly `vocab_size` entries.

    Raises
    ------
    ValueError
        If the text does not give `vocab_size` entries, or its alphabet alone has more.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(unk_token=None if byte_level else NO_UNKNOWN))
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    alphabet: list[str] = []
    if byte_level:
        spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, spell])
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    else:
        tokenizer.pre_tokenizer = split
        tokenizer.decoder = decoders.Fuse()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"vocab_size={vocab_size} does not fit the text: training gave "
            f"{tokenizer.get_vocab_size()} entries; expected more text for a larger vocabulary, or "
            "a size above that of the alphabet"
        )
    return _wrapped(tokenizer)


def _wrapped(tokenizer: Any, /) -> "PreTrainedTokenizerFast":
    from transformers import PreTrainedTokenizerFast

    names: Mapping[str, str] = {"pad_token": PAD, "eos_token": EOS}
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **names
    )
