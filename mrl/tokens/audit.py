"""What it costs to move text from one tokenizer's policy to another's, measured on text.

Source: docs/tokens.md.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from bandit import Residual
from mrl.tokens.alignment import align
from mrl.tokens.residual import ResidualSummary, summarise_residual
from mrl.tokens.retokenization import (
    ContentEncoder,
    Unrepresentable,
    content_encoder,
    is_canonical_batch,
    retokenize_batch,
    without_turn_end,
)

TEXT_COLUMNS = {
    "text": "int64",
    "bytes": "int64",
    "tokens_a": "Int64",
    "tokens_b": "Int64",
    "blocks": "Int64",
    "one_to_one": "Int64",
    "refused_a": "object",
    "refused_b": "object",
}


@dataclass(frozen=True, eq=False)
class TokenAudit:
    """Tidy frames of an audit from source A to receiver B.

    Parameters
    ----------
    texts : DataFrame
        One row a text: ``text`` (its index), ``bytes``, ``tokens_a``, ``tokens_b``, ``blocks``,
        ``one_to_one`` (blocks of one token on either side), ``refused_a``, ``refused_b``
        (reasons). What a refused text does not have is NA.
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
            residuals.

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
        drop = self.refused_share
        if np.isnan(drop):
            raise ValueError(
                "audit saw no text that the source can represent; expected at least one"
            )
        if gated:
            return Residual(drop=drop, gate=1 - self.canonical_share if len(self.rollouts) else 0.0)
        measured = self.rollouts["residual"].dropna()
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
) -> TokenAudit:
    """Measure what moving text from A's policy to B's costs.

    Parameters
    ----------
    tokenizer_a, tokenizer_b : ContentEncoder, transformers fast tokenizer or tokenizers.Tokenizer
        Source and receiver.
    texts : iterable of str or bytes
        Texts to tokenise on both sides and align.
    rollouts : iterable, optional
        Responses that A's policy sampled: rows of token ids, or objects with ``source_ids`` (and a
        ``fingerprint``, which must then be A's), such as `mrl.exchange.records.RolloutRecord`.
    residuals : array_like, shape (number of rollouts,), optional
        `canonicality_residual` of each rollout in nats; needs the source's model, so the caller
        computes it. NaN where not known.

    Returns
    -------
    TokenAudit

    Raises
    ------
    UnsupportedTokenizer
        If a tokenizer's family is not supported.
    ValueError
        If a rollout comes from another tokenizer, or residuals do not match the rollouts.
    """
    a, b = content_encoder(tokenizer_a), content_encoder(tokenizer_b)
    responses = [text.encode() if isinstance(text, str) else text for text in texts]
    text_frame, block_frame = _aligned(a, b, responses)
    rows = [] if rollouts is None else [_sampled_ids(rollout, a) for rollout in rollouts]
    return TokenAudit(text_frame, block_frame, _rollout_frame(a, b, rows, residuals))


def _aligned(
    a: ContentEncoder, b: ContentEncoder, responses: Sequence[bytes], /
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Tokenise on both sides and align: `TokenAudit.texts` and `TokenAudit.blocks`."""
    encoded = zip(retokenize_batch(responses, a), retokenize_batch(responses, b), strict=True)
    shapes, sizes = [np.empty((0, 2), dtype=np.int64)], [np.empty(0, dtype=np.int64)]
    rows: list[dict[str, Any]] = []
    for response, (ids_a, ids_b) in zip(responses, encoded, strict=True):
        row: dict[str, Any] = {"text": len(rows), "bytes": len(response)}
        for side, ids in (("a", ids_a), ("b", ids_b)):
            if isinstance(ids, Unrepresentable):
                row[f"refused_{side}"] = ids.reason
            else:
                row[f"tokens_{side}"] = len(ids)
        if not isinstance(ids_a, Unrepresentable) and not isinstance(ids_b, Unrepresentable):
            blocks = align(a.table.lengths(ids_a), b.table.lengths(ids_b))
            row |= {"blocks": len(blocks), "one_to_one": int(blocks.one_to_one.sum())}
            shapes.append(np.stack([np.diff(blocks.a), np.diff(blocks.b)], axis=1))
            sizes.append(blocks.size)
        rows.append(row)
    frame = pd.DataFrame(rows, columns=list(TEXT_COLUMNS)).astype(TEXT_COLUMNS)
    return frame, _histogram(np.concatenate(shapes), np.concatenate(sizes))


def _histogram(shapes: NDArray[np.int64], sizes: NDArray[np.int64], /) -> pd.DataFrame:
    """Blocks by their number of tokens on either side, most frequent first."""
    kinds, which = np.unique(shapes, axis=0, return_inverse=True)
    which = which.reshape(-1)
    number = np.bincount(which, minlength=len(kinds))
    frame = pd.DataFrame(
        {
            "tokens_a": kinds[:, 0],
            "tokens_b": kinds[:, 1],
            "blocks": number,
            "bytes": np.bincount(which, weights=sizes, minlength=len(kinds)).astype(np.int64),
            "share": number / max(len(shapes), 1),
        }
    )
    order = ["blocks", "tokens_a", "tokens_b"]
    return frame.sort_values(order, ascending=[False, True, True], ignore_index=True)


def _sampled_ids(rollout: Any, a: ContentEncoder, /) -> NDArray[np.int64]:
    """Take a rollout's token ids without its turn end."""
    fingerprint = getattr(rollout, "fingerprint", a.table.fingerprint)
    if fingerprint != a.table.fingerprint:
        raise ValueError(
            f"rollout has tokenizer fingerprint {fingerprint!r}; expected tokenizer_a's, "
            f"{a.table.fingerprint!r}"
        )
    return without_turn_end(getattr(rollout, "source_ids", rollout), a.table)


def _rollout_frame(
    a: ContentEncoder,
    b: ContentEncoder,
    rows: Sequence[NDArray[np.int64]],
    residuals: ArrayLike | None,
    /,
) -> pd.DataFrame:
    measured = np.full(len(rows), np.nan)
    if residuals is not None:
        measured = np.asarray(residuals, dtype=np.float64)
        if measured.shape != (len(rows),):
            raise ValueError(
                f"residuals have shape {measured.shape}; expected one for each of {len(rows)} "
                "rollouts"
            )
    texts = [a.table.bytes_of(row) for row in rows]
    reasons = [
        ids.reason if isinstance(ids, Unrepresentable) else None
        for ids in retokenize_batch(texts, b)
    ]
    return pd.DataFrame(
        {
            "rollout": np.arange(len(rows)),
            "bytes": np.array([len(text) for text in texts], dtype=np.int64),
            "canonical": is_canonical_batch(rows, a),
            "refused_b": pd.Series(reasons, dtype=object),
            "residual": measured,
        }
    )
