"""What it costs to move text from one tokenizer's policy to another's, measured on text.

Source: docs/tokens.md.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from bandit import Residual
from mrl.tokens._audit_frames import TEXT_COLUMNS, aligned, histogram, rollout_frame
from mrl.tokens.residual import ResidualSummary, summarise_residual
from mrl.tokens.retokenization import content_encoder

BATCH = 256  # texts that are encoded and aligned at once


@dataclass(frozen=True, eq=False)
class TokenAudit:
    """Tidy frames of an audit from source A to receiver B.

    Parameters
    ----------
    texts : DataFrame
        One row a text: ``text`` (its index), ``kind``, ``bytes``, ``tokens_a``, ``tokens_b``,
        ``blocks``, ``one_to_one`` (blocks of one token on either side), ``refused_a``,
        ``refused_b`` (reasons). What a refused text does not have is NA.
    blocks : DataFrame
        Histogram of block sizes: ``tokens_a``, ``tokens_b``, ``blocks``, ``bytes``, ``share``.
    rollouts : DataFrame
        One row a rollout: ``rollout``, ``bytes``, ``canonical``, ``refused_b``, ``residual``
        (nats, NaN where not measured). Empty without rollouts.
    """

    texts: pd.DataFrame
    blocks: pd.DataFrame
    rollouts: pd.DataFrame

    @property
    def one_to_one_share(self) -> float:
        """Share of blocks that are one token on either side; NaN without blocks."""
        alike = (self.blocks["tokens_a"] == 1) & (self.blocks["tokens_b"] == 1)
        return float(self.blocks["share"][alike].sum()) if len(self.blocks) else float("nan")

    @property
    def by_kind(self) -> pd.DataFrame:
        """Figures of each kind of text.

        ``kind``, ``texts``, ``bytes``, ``blocks``, ``one_to_one_share`` (of the blocks) and
        ``refused_share`` (by B, of all texts of the kind).
        """
        frame = self.texts.assign(refused=self.texts["refused_b"].notna())
        found = frame.groupby("kind", sort=False).agg(
            texts=("text", "size"),
            bytes=("bytes", "sum"),
            blocks=("blocks", "sum"),
            one_to_one=("one_to_one", "sum"),
            refused_share=("refused", "mean"),
        )
        alike = found.pop("one_to_one").astype(float) / found["blocks"].replace(0, pd.NA)
        found.insert(3, "one_to_one_share", alike.astype(float))
        return found.astype({"blocks": "int64"}).reset_index()

    @property
    def refused(self) -> pd.DataFrame:
        """Refused texts by ``side`` and ``reason``: ``texts`` and their ``share`` of all."""
        counts = [
            self.texts[f"refused_{side}"]
            .value_counts()
            .rename_axis("reason")
            .reset_index(name="texts")
            .assign(side=side)
            for side in ("a", "b")
        ]
        frame = pd.concat(counts, ignore_index=True)[["side", "reason", "texts"]]
        return frame.assign(share=frame["texts"] / max(len(self.texts), 1))

    @property
    def refused_share(self) -> float:
        """Share of A's text that B cannot represent (`eta`); NaN without any.

        Of the rollouts if there are any, else of the texts that A itself can represent.
        """
        if len(self.rollouts):
            return float(self.rollouts["refused_b"].notna().mean())
        of_a = self.texts[self.texts["refused_a"].isna()]
        return float(of_a["refused_b"].notna().mean())

    @property
    def canonical_share(self) -> float:
        """Share of rollouts whose sampled tokens are canonical; NaN without rollouts."""
        return float(self.rollouts["canonical"].mean()) if len(self.rollouts) else float("nan")

    @property
    def _kept(self) -> pd.DataFrame:
        """Rollouts that B can represent."""
        return self.rollouts[self.rollouts["refused_b"].isna()]

    @property
    def gated_share(self) -> float:
        """Share that is not canonical of the rollouts that B can represent; NaN without any."""
        return float(1 - self._kept["canonical"].mean()) if len(self._kept) else float("nan")

    @property
    def residual(self) -> ResidualSummary | None:
        """Distribution of the measured residuals; None where none were given."""
        measured = self.rollouts["residual"].dropna()
        return summarise_residual(measured.to_numpy(dtype=float)) if len(measured) else None

    @property
    def summary(self) -> pd.DataFrame:
        """The figures of the audit: ``quantity``, ``value``."""
        rows: dict[str, float] = {
            "texts": len(self.texts),
            "one_to_one_share": self.one_to_one_share,
            "refused_share": self.refused_share,
            "rollouts": len(self.rollouts),
            "canonical_share": self.canonical_share,
            "gated_share": self.gated_share,
        }
        spread = self.residual
        if spread is not None:
            rows |= {
                "residual_zero_share": spread.zero_share,
                "residual_above_5_nats": spread.large_share,
            }
            for level, signed, size in zip(
                spread.levels, spread.signed, spread.magnitude, strict=True
            ):
                rows |= {f"residual_q{level:.0%}": signed, f"residual_magnitude_q{level:.0%}": size}
        return pd.DataFrame({"quantity": list(rows), "value": list(rows.values())})

    def suggested_residual(self, *, gated: bool = True) -> Residual:
        """Give the bandit's residual for this pair of tokenizers.

        Parameters
        ----------
        gated : bool
            For a gated ratio rule: rollouts that are not canonical are gated out, and with them
            the residual. For an ungated one: the log-ratio's error is ``-r`` of the measured
            residuals. Either way of the rollouts that B can represent: the others are dropped.

        Returns
        -------
        bandit.Residual
            What was not measured is 0. The text's own canonical shares under A and B, which need
            sums over tokenisations, are not part of it.

        Raises
        ------
        ValueError
            If there is no text to take a share of, or ``gated=False`` and no residual was
            measured.
        """
        drop, kept = self.refused_share, self._kept
        if np.isnan(drop):
            raise ValueError(
                "audit saw no text that the source can represent; expected at least one"
            )
        if gated:
            return Residual(drop=drop, gate=self.gated_share if len(kept) else 0.0)
        measured = kept["residual"].dropna()
        if measured.empty:
            raise ValueError(
                "audit saw no residuals, which gated=False needs; pass `residuals` with `rollouts`"
            )
        return Residual.empirical(-measured.to_numpy(dtype=float), drop=drop)


def audit(
    tokenizer_a: Any,
    tokenizer_b: Any,
    texts: Iterable[str | bytes],
    rollouts: Iterable[Any] | None = None,
    *,
    residuals: ArrayLike | None = None,
    kinds: Iterable[str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> TokenAudit:
    """Measure what moving text from A's policy to B's costs.

    Parameters
    ----------
    tokenizer_a, tokenizer_b : ContentEncoder or a tokenizer that `TokenBytes.of` reads
        Source and receiver.
    texts : iterable of str or bytes
        Texts to tokenise on both sides and align.
    rollouts : iterable, optional
        Responses that A's policy sampled: rows of token ids, or objects with ``source_ids`` (and a
        ``fingerprint``, which must then be A's), such as `mrl.exchange.records.RolloutRecord`.
        If an object has ``text`` and ``canonical`` of its own, as that record does, these count:
        they know the source's declared segments.
    residuals : array_like, shape (number of rollouts,), optional
        `canonicality_residual` of each rollout in nats; needs the source's model, so the caller
        computes it. NaN where not known.
    kinds : iterable of str, optional
        Kind of each text, told apart in `TokenAudit.by_kind`. Default: ``"text"``.
    progress : callable, optional
        Called with the number of texts done.

    Returns
    -------
    TokenAudit

    Raises
    ------
    UnsupportedTokenizer
        If a tokenizer's family is not supported.
    ValueError
        If a rollout comes from another tokenizer, or residuals or kinds do not match.
    """
    a, b = content_encoder(tokenizer_a), content_encoder(tokenizer_b)
    responses = [text.encode() if isinstance(text, str) else text for text in texts]
    labels = ["text"] * len(responses) if kinds is None else list(kinds)
    if len(labels) != len(responses):
        raise ValueError(
            f"kinds has {len(labels)} entries; expected one for each of {len(responses)} texts"
        )
    frames, shapes, sizes = [], [np.empty((0, 2), np.int64)], [np.empty(0, np.int64)]
    for start in range(0, len(responses), BATCH):
        frame, shape, size = aligned(a, b, responses[start : start + BATCH])
        frames.append(frame)
        shapes.append(shape)
        sizes.append(size)
        if progress is not None:
            progress(start + len(frame))
    rows = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    rows = rows.assign(text=np.arange(len(rows)), kind=labels)
    return TokenAudit(
        rows.reindex(columns=list(TEXT_COLUMNS)).astype(TEXT_COLUMNS),
        histogram(np.concatenate(shapes), np.concatenate(sizes)),
        rollout_frame(a, b, [] if rollouts is None else list(rollouts), residuals),
    )


def compare(
    tokenizers: Mapping[str, Any],
    texts: Iterable[str | bytes],
    *,
    kinds: Iterable[str] | None = None,
) -> pd.DataFrame:
    """Audit every ordered pair of some tokenizers on the same texts.

    Parameters
    ----------
    tokenizers : mapping of str to tokenizer
        By name; see `audit`.
    texts, kinds : iterable
        See `audit`.

    Returns
    -------
    DataFrame
        The rows of `TokenAudit.by_kind` with ``source`` and ``receiver`` in front. Empty with
        fewer than two tokenizers.
    """
    texts, kinds = list(texts), None if kinds is None else list(kinds)
    encoders = {name: content_encoder(tokenizer) for name, tokenizer in tokenizers.items()}
    frames = []
    for a, b in permutations(encoders, 2):
        frame = audit(encoders[a], encoders[b], texts, kinds=kinds).by_kind
        frame.insert(0, "source", a)
        frame.insert(1, "receiver", b)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
