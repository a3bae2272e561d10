"""Frames of an audit: texts on both sides, blocks by size, rollouts. See `mrl.tokens.audit`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from mrl.tokens.alignment_batch import align_batch
from mrl.tokens.retokenization import (
    ContentEncoder,
    Unrepresentable,
    is_canonical_batch,
    retokenize_batch,
    without_turn_end,
)

TEXT_COLUMNS = {
    "text": "int64",
    "kind": "object",
    "bytes": "int64",
    "tokens_a": "Int64",
    "tokens_b": "Int64",
    "blocks": "Int64",
    "one_to_one": "Int64",
    "refused_a": "object",
    "refused_b": "object",
}


def aligned(
    a: ContentEncoder, b: ContentEncoder, responses: Sequence[bytes], /
) -> tuple[pd.DataFrame, NDArray[np.int64], NDArray[np.int64]]:
    """Rows of `TokenAudit.texts`; tokens on either side (n, 2) and bytes (n,) of all blocks."""
    ids_a, ids_b = retokenize_batch(responses, a), retokenize_batch(responses, b)
    pairs = enumerate(zip(ids_a, ids_b, strict=True))
    both = [i for i, pair in pairs if not any(isinstance(ids, Unrepresentable) for ids in pair)]
    lengths_a, counts_a = _laid_out([ids_a[i] for i in both], a)
    lengths_b, counts_b = _laid_out([ids_b[i] for i in both], b)
    batch = align_batch(lengths_a, counts_a, lengths_b, counts_b)
    frame = pd.DataFrame({"bytes": [len(text) for text in responses]})
    for side, row in (("a", ids_a), ("b", ids_b)):
        frame[f"tokens_{side}"] = [
            pd.NA if isinstance(ids, Unrepresentable) else len(ids) for ids in row
        ]
        frame[f"refused_{side}"] = pd.Series(
            [ids.reason if isinstance(ids, Unrepresentable) else None for ids in row], dtype=object
        )
    alike = np.concatenate([[0], batch.one_to_one.cumsum()])[batch.first_block]
    frame.loc[both, "blocks"] = np.diff(batch.first_block)
    frame.loc[both, "one_to_one"] = np.diff(alike)
    shape = [batch.sums(np.ones(len(lengths_a)), "a"), batch.sums(np.ones(len(lengths_b)), "b")]
    return frame, np.stack(shape, axis=1).astype(np.int64), batch.size


def _laid_out(
    rows: Sequence[Any], encoder: ContentEncoder, /
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Bytes of each token, the texts end to end, and the number of tokens of each."""
    counts = np.array([len(ids) for ids in rows], dtype=np.int64)
    if not counts.sum():
        return np.zeros(0, np.int64), counts
    starts = (counts.cumsum() - counts)[counts > 0]
    return encoder.table.lengths_joined(np.concatenate(rows), starts), counts


def histogram(shapes: NDArray[np.int64], sizes: NDArray[np.int64], /) -> pd.DataFrame:
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


def _sampled_ids(rollout: Any, a: ContentEncoder, /) -> ArrayLike:
    """Take a rollout's token ids, its turn end among them."""
    fingerprint = getattr(rollout, "fingerprint", a.table.fingerprint)
    if fingerprint != a.table.fingerprint:
        raise ValueError(
            f"rollout has tokenizer fingerprint {fingerprint!r}; expected tokenizer_a's, "
            f"{a.table.fingerprint!r}"
        )
    ids: ArrayLike = getattr(rollout, "source_ids", rollout)
    return ids


def rollout_frame(
    a: ContentEncoder, b: ContentEncoder, rollouts: Sequence[Any], residuals: ArrayLike | None, /
) -> pd.DataFrame:
    measured = np.full(len(rollouts), np.nan)
    if residuals is not None:
        measured = np.asarray(residuals, dtype=np.float64)
        if measured.shape != (len(rollouts),):
            raise ValueError(
                f"residuals have shape {measured.shape}; expected one for each of {len(rollouts)} "
                "rollouts"
            )
    sampled = [_sampled_ids(rollout, a) for rollout in rollouts]
    rows = [without_turn_end(ids, a.table) for ids in sampled]
    told = [getattr(rollout, "canonical", None) for rollout in rollouts]
    unknown = [i for i, canonical in enumerate(told) if canonical is None]
    for i, canonical in zip(
        unknown, is_canonical_batch([sampled[i] for i in unknown], a), strict=True
    ):
        told[i] = bool(canonical)
    texts = [
        a.table.bytes_of(row) if (text := getattr(rollout, "text", None)) is None else text
        for rollout, row in zip(rollouts, rows, strict=True)
    ]
    reasons = [
        ids.reason if isinstance(ids, Unrepresentable) else None
        for ids in retokenize_batch(texts, b)
    ]
    return pd.DataFrame(
        {
            "rollout": np.arange(len(rows)),
            "bytes": np.array([len(text) for text in texts], dtype=np.int64),
            "canonical": np.array(told, dtype=bool),
            "refused_b": pd.Series(reasons, dtype=object),
            "residual": measured,
        }
    )
