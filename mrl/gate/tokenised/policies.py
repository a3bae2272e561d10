"""Policies that write text token by token, small enough to list everything they can write.

Source: docs/theory.md, section 7.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from bandit.policies import log_probabilities, score_sum, softmax
from bandit.probes.group import Array, Mask
from bandit.rollouts import draw_each
from mrl.tokens import ContentEncoder, TokenBytes, is_canonical_batch

Integers = NDArray[np.int64]

MAX_SEQUENCES = 20_000
# Nats that a token off the canonical path can be held back or favoured by, at most.
MAX_CARE = 30.0
ABSENT = -1


@dataclass(frozen=True, eq=False)
class TokenPolicy:
    """An autoregressive softmax over the tokens of a tokenizer of its own; see `TokenPolicy.of`.

    The logits are a table: one row for each sequence of tokens as context, one column for each
    token and a last one for EOS. Every sequence that can be sampled is listed, so that sums over
    them are exact. A response has at most `max_bytes` bytes; where no token fits any more, only
    EOS is left, so no response is cut.

    Attributes
    ----------
    encoder : ContentEncoder
        The tokenizer, as the trainer uses it.
    max_bytes : int
        Longest response.
    tokens : tuple of int
        V token ids, one a column: all that stand for bytes.
    sequences : tuple of tuple of int
        N token sequences without EOS, each also a context; the empty one first, shorter ones
        before longer ones.
    texts : tuple of bytes
        What each sequence spells; not always UTF-8.
    canonical : ndarray of bool, shape (N,)
        Whether a sequence is what the tokenizer makes of its text.
    parent, column : ndarray of int, shape (N,)
        The sequence less its last token, and that token's column; -1 for the empty one.
    conditional : ndarray, shape (N, V+1)
        Probability of each next token, and of EOS.
    """

    encoder: ContentEncoder
    max_bytes: int
    tokens: tuple[int, ...]
    sequences: tuple[tuple[int, ...], ...]
    texts: tuple[bytes, ...]
    canonical: Mask
    parent: Integers
    column: Integers
    conditional: Array

    @classmethod
    def of(
        cls,
        tokenizer: Any,
        rng: np.random.Generator,
        /,
        *,
        max_bytes: int,
        spread: float = 1.0,
        canonical_share: float | None = None,
    ) -> "TokenPolicy":
        """Draw a policy.

        Parameters
        ----------
        tokenizer : ContentEncoder, transformers fast tokenizer or tokenizers.Tokenizer
            Its own tokenizer; small, since all sequences are listed.
        rng : numpy.random.Generator
            Gives the logits, ``N(0, spread^2)``.
        max_bytes : int
            Longest response, >= 1.
        spread : float
            Standard deviation of the logits in nats.
        canonical_share : float, optional
            Probability that a sampled response is canonical, in (0, 1): tokens that leave the
            canonical path are held back by as many nats as it takes. Default: by none. Without
            effect where every text has one tokenisation only.

        Raises
        ------
        ValueError
            If there are more than `MAX_SEQUENCES` sequences, or the share cannot be reached.
        """
        if isinstance(tokenizer, ContentEncoder):
            encoder = tokenizer
        else:
            encoder = ContentEncoder.of(tokenizer)
        tokens = _content_tokens(encoder.table)
        sequences, texts, children = _enumerate(encoder.table, tokens, max_bytes)
        canonical = is_canonical_batch(sequences, encoder)
        parent = np.full(len(sequences), ABSENT)
        column = np.full(len(sequences), ABSENT)
        at, taken = np.nonzero(children != ABSENT)
        parent[children[at, taken]], column[children[at, taken]] = at, taken
        logits = rng.normal(scale=spread, size=(len(sequences), children.shape[1] + 1))
        logits[:, :-1][children == ABSENT] = -np.inf
        leaves = np.zeros(logits.shape, np.bool_)
        leaves[parent[1:], column[1:]] = canonical[parent[1:]] & ~canonical[1:]

        def held_back(care: float) -> "TokenPolicy":
            probs = softmax(np.where(leaves, logits - care, logits))
            probs.flags.writeable = False
            listed = (tuple(sequences), tuple(texts), canonical, parent, column)
            return cls(encoder, max_bytes, tokens, *listed, probs)

        if canonical_share is None or canonical.all():
            return held_back(0.0)
        return held_back(_care(held_back, canonical_share))

    def __len__(self) -> int:
        """N, the number of sequences."""
        return len(self.sequences)

    @cached_property
    def probs(self) -> Array:
        """Probability of sampling each sequence with EOS after it, shape (N,); sums to 1."""
        return np.exp(self.logprobs)

    @cached_property
    def logprobs(self) -> Array:
        """Log-probability of each sequence, EOS included, shape (N,)."""
        steps = self._steps
        prefix = np.zeros(len(self))
        depth = np.array([len(ids) for ids in self.sequences])
        for level in range(1, depth.max() + 1):
            new = np.flatnonzero(depth == level)
            before = self.parent[new]
            prefix[new] = prefix[before] + steps[before, self.column[new]]
        return prefix + steps[:, -1]

    @cached_property
    def canonical_share(self) -> float:
        """Probability that a sampled response is canonical."""
        return float(self.probs[self.canonical].sum())

    @cached_property
    def text_probs(self) -> dict[bytes, float]:
        """Probability of each text: the sum over its tokenisations."""
        totals: dict[bytes, float] = {}
        for text, prob in zip(self.texts, self.probs.tolist(), strict=True):
            totals[text] = totals.get(text, 0.0) + prob
        return totals

    @cached_property
    def canonical_of(self) -> dict[bytes, int]:
        """The canonical sequence of each text that has one."""
        return {self.texts[n]: int(n) for n in np.flatnonzero(self.canonical)}

    @cached_property
    def place(self) -> dict[tuple[int, ...], int]:
        """Where each sequence stands."""
        return {ids: n for n, ids in enumerate(self.sequences)}

    @cached_property
    def paths(self) -> tuple[tuple[Integers, Integers], ...]:
        """Rows and columns of the logits that each sequence uses, EOS last."""
        rows: list[list[int]] = [[0]]
        columns: list[list[int]] = [[]]
        for n in range(1, len(self)):
            before = int(self.parent[n])
            rows.append([*rows[before], n])
            columns.append([*columns[before], int(self.column[n])])
        eos = self.conditional.shape[1] - 1
        return tuple(
            (np.array(row), np.array([*taken, eos]))
            for row, taken in zip(rows, columns, strict=True)
        )

    def token_logprobs(self, n: int, /) -> Array:
        """Log-probability of each token of sequence `n`, EOS last."""
        return self._steps[self.paths[n]]

    def token_lengths(self, n: int, /) -> Integers:
        """Bytes of each token of sequence `n`, EOS last: what `mrl.tokens.align` reads."""
        return np.append(self.encoder.table.lengths(self.sequences[n]), 0)

    def gradient(self, which: Iterable[int], weights: Iterable[float | Array], /) -> Array:
        """``sum_n sum_t w_nt grad log pi(token t of sequence n)``, EOS included.

        Parameters
        ----------
        which : iterable of int
            Sequences.
        weights : iterable of float or ndarray
            For each one weight, or one a token.

        Returns
        -------
        ndarray, shape (N, V+1)
            With respect to the table of logits.
        """
        total = np.zeros(self.conditional.shape)
        for n, weight in zip(which, weights, strict=True):
            total[self.paths[n]] += weight  # the contexts of one sequence are all different
        return score_sum(total, self.conditional)

    def sample(self, shape: tuple[int, ...], rng: np.random.Generator, /) -> Integers:
        """Draw responses token by token; returns which sequences they are, of that shape."""
        at = np.zeros(int(np.prod(shape)), np.int64)
        going = np.arange(at.size)
        while going.size:
            drawn = draw_each(self.conditional[at[going]], 1, rng)[:, 0]
            goes_on = drawn < self.conditional.shape[1] - 1
            going, drawn = going[goes_on], drawn[goes_on]
            at[going] = self._next[at[going], drawn]
        return at.reshape(shape)

    @cached_property
    def _steps(self) -> Array:
        return log_probabilities(self.conditional)

    @cached_property
    def _next(self) -> Integers:
        following = np.full((len(self), self.conditional.shape[1] - 1), ABSENT)
        following[self.parent[1:], self.column[1:]] = np.arange(1, len(self))
        return following


def _content_tokens(table: TokenBytes, /) -> tuple[int, ...]:
    """Ids of the tokens that stand for bytes."""
    return tuple(
        index for index, piece in enumerate(table.pieces) if piece and index not in table.control
    )


def _enumerate(
    table: TokenBytes, tokens: Sequence[int], max_bytes: int, /
) -> tuple[list[tuple[int, ...]], list[bytes], Integers]:
    """All sequences, their texts, and by sequence and token the sequence that follows."""
    if max_bytes < 1:
        raise ValueError(f"max_bytes={max_bytes} is not allowed; expected a number >= 1")
    pieces = [(index, table.bytes_of([index])) for index in tokens]
    sequences: list[tuple[int, ...]] = [()]
    texts = [b""]
    children: list[list[int]] = []
    for n, text in enumerate(texts):  # grows as it goes
        row = []
        for index, piece in pieces:
            fits = len(text) + len(piece) <= max_bytes
            row.append(len(texts) if fits else ABSENT)
            if fits:
                sequences.append((*sequences[n], index))
                texts.append(text + piece)
        children.append(row)
        if len(texts) > MAX_SEQUENCES:
            raise ValueError(
                f"{len(tokens)} tokens and max_bytes={max_bytes} give more than {MAX_SEQUENCES} "
                "token sequences; expected fewer: lower max_bytes, or use a smaller tokenizer"
            )
    return sequences, texts, np.array(children, dtype=np.int64).reshape(len(texts), -1)


def _care(held_back: Callable[[float], TokenPolicy], share: float, /) -> float:
    """Nats that give a policy the canonical share asked for."""
    low, high = (held_back(care).canonical_share for care in (-MAX_CARE, MAX_CARE))
    if not low < share < high:
        raise ValueError(
            f"canonical_share={share} cannot be reached; this tokenizer and length allow shares "
            f"between {low:.3g} and {high:.3g}"
        )
    return float(brentq(lambda c: held_back(c).canonical_share - share, -MAX_CARE, MAX_CARE))


def canonical_logprobs(policy: TokenPolicy, texts: Sequence[bytes], /) -> Array:
    """Log-probability of the canonical tokens of each text, -inf where there are none."""
    found = [policy.canonical_of.get(text) for text in texts]
    return np.array([-np.inf if n is None else policy.logprobs[n] for n in found])
