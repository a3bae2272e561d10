"""The token loss: a clipped surrogate and a likelihood term, blind to the sharing rule.

Shapes: M rows, N different responses, R response tokens, T prompt and response tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bandit.probes import RatioRule
from mrl.batch import Batch, Row
from mrl.rollout.hf import nucleus, positions, scaled_logprobs


@dataclass(frozen=True, eq=False)
class LossResult:
    """A micro-batch's share of the loss, and what its computation showed."""

    loss: torch.Tensor
    clipped_tokens: int
    pg_tokens: int
    computed_tokens: int
    ratios: list[tuple[int, float]]
    """(group, weight) of each peer row under a ratio rule; the mean over its tokens."""
    unreachable_tokens: int
    """Policy-gradient tokens that the receiver cannot sample: they lie outside its nucleus."""


def response_logprobs(
    model: Any,
    batch: Batch,
    temperature: float,
    vocabulary: int | None = None,
    top_p: float = 1.0,
    /,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the response tokens, each (N, R).

    Returns
    -------
    sampling, whole : Tensor
        At the distribution that responses are sampled from, -inf outside its nucleus; and the same
        without truncation, which is the same tensor where ``top_p`` is 1.
    """
    width = batch.mask_NR.shape[1]
    logits_NRV = model(
        input_ids=batch.ids_NT,
        attention_mask=batch.attention_NT,
        position_ids=positions(batch.attention_NT),
        use_cache=False,
        logits_to_keep=width + 1,
    ).logits[:, -width - 1 : -1]
    logp_NRV = scaled_logprobs(logits_NRV, temperature, vocabulary)
    whole_NR = logp_NRV.gather(-1, batch.targets_NR[..., None])[..., 0]
    if top_p >= 1:
        return whole_NR, whole_NR
    kept_NRV = nucleus(logp_NRV, top_p)
    return kept_NRV.gather(-1, batch.targets_NR[..., None])[..., 0], whole_NR


def ratio_weights(
    rule: RatioRule, row: Row, logprobs_R: NDArray[np.float64], /
) -> NDArray[np.float64]:
    """Weight of each response token of a peer's row, shape (R,).

    ``sequence`` and ``length_normalised`` give all tokens of a response one weight; ``block``
    gives the tokens of each aligned block the weight of that block. Where the receiver gives a
    token probability 0 (top-p), so is the ratio it enters. Source: docs/theory.md, section 2, and
    docs/tokens.md.
    """
    source = row.source
    if source is None:
        return np.ones(len(logprobs_R))
    own = np.zeros(len(source.logprobs))
    np.add.at(own, source.block_of_token, logprobs_R)
    log_ratio = own - source.logprobs
    if rule.kind == "length_normalised":
        log_ratio = log_ratio / max(source.size, 1)
    return rule.weights(log_ratio, source.canonical)[source.block_of_token]


def token_loss(
    logp_NR: torch.Tensor,
    batch: Batch,
    ratio: RatioRule | None,
    /,
    *,
    clip_low: float,
    clip_high: float,
    whole_NR: torch.Tensor | None = None,
) -> LossResult:
    """Loss of a micro-batch; the sum over micro-batches is the loss of the update.

    ``- sum_tokens [ min(rho w, clip(rho, 1 - clip_low, 1 + clip_high) w) + v logp ]``, where w is
    the row's policy-gradient weight times its importance ratio, v its likelihood weight, and rho
    the change of the receiver's own probability of the token since the round began. On the first
    update of a round rho is 1 and its gradient that of logp. Rows with the same tokens share their
    rho: those with w > 0 add up to one term, those with w < 0 to another.

    `whole_NR` holds the log-probabilities without truncation, which the likelihood term uses;
    default: `logp_NR`. A token that the receiver cannot sample has no score and leaves the
    surrogate: its probability is 0 whatever the parameters do to it.
    """
    mask_NR = batch.mask_NR
    whole_NR = torch.where(mask_NR, logp_NR if whole_NR is None else whole_NR, 0.0)
    logp_NR = torch.where(mask_NR, logp_NR, 0.0)
    anchor_NR = logp_NR.detach() if batch.anchor_NR is None else batch.anchor_NR.to(logp_NR)
    anchor_NR = torch.where(mask_NR, anchor_NR, 0.0)
    weights, ratios = _token_weights(batch, ratio, anchor_NR.double().cpu().numpy())
    up_NR, down_NR, nll_NR = (torch.from_numpy(w).to(logp_NR) for w in weights)
    reached_NR = mask_NR & ~torch.isneginf(anchor_NR)
    rho_NR = torch.exp(torch.where(reached_NR, logp_NR - anchor_NR, 0.0))
    clipped_NR = rho_NR.clamp(1 - clip_low, 1 + clip_high)
    low_NR, high_NR = torch.minimum(rho_NR, clipped_NR), torch.maximum(rho_NR, clipped_NR)
    surrogate_NR = up_NR * low_NR + down_NR * high_NR
    loss = -torch.where(reached_NR, surrogate_NR, 0.0).sum()
    loss = loss - torch.where(nll_NR != 0, nll_NR * whole_NR, 0.0).sum()
    cut_NR = ((up_NR > 0) & (clipped_NR < rho_NR)) | ((down_NR < 0) & (clipped_NR > rho_NR))
    pg_NR = (up_NR > 0) | (down_NR < 0)
    sought_N = np.zeros(len(mask_NR), np.bool_)
    sought_N[batch.place_M[batch.pg_weight_M != 0]] = True
    lost_NR = mask_NR & ~reached_NR & torch.from_numpy(sought_N).to(mask_NR.device)[:, None]
    return LossResult(
        loss=loss,
        clipped_tokens=int((reached_NR & cut_NR).sum()),
        pg_tokens=int((reached_NR & pg_NR).sum()),
        computed_tokens=int(mask_NR.sum()),
        ratios=ratios,
        unreachable_tokens=int(lost_NR.sum()),
    )


def _token_weights(
    batch: Batch, ratio: RatioRule | None, anchor_NR: NDArray[np.float64], /
) -> tuple[tuple[NDArray[np.float64], ...], list[tuple[int, float]]]:
    """Weights (N, R) of the tokens, the rows of a place added up: w > 0, w < 0, and likelihood."""
    pg_M, place_M = batch.pg_weight_M, batch.place_M
    plain_M = np.array([ratio is None or row.source is None for row in batch.rows])
    plain_pg_M = np.where(plain_M, pg_M, 0.0)
    up_NR, down_NR, nll_NR = (
        _by_place(weight_M, place_M, anchor_NR.shape)
        for weight_M in (plain_pg_M.clip(min=0), plain_pg_M.clip(max=0), batch.nll_weight_M)
    )
    ratios: list[tuple[int, float]] = []
    if ratio is not None:
        for m in np.flatnonzero(~plain_M):
            row, n = batch.rows[m], place_M[m]
            tokens = slice(len(row.response))
            factor_R = ratio_weights(ratio, row, anchor_NR[n, tokens])
            (up_NR if pg_M[m] > 0 else down_NR)[n, tokens] += pg_M[m] * factor_R
            ratios.append((row.group, float(factor_R.mean())))
    return (up_NR, down_NR, nll_NR), ratios


def _by_place(
    weight_M: NDArray[np.float64], place_M: NDArray[np.int64], shape: tuple[int, ...], /
) -> NDArray[np.float64]:
    """Sum of the rows' weights at each place, the same for all its tokens; shape (N, R)."""
    sums_N = np.zeros(shape[0])
    np.add.at(sums_N, place_M, weight_M)
    return np.tile(sums_N[:, None], shape[1])
