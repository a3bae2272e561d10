"""The token loss: clipped surrogate, likelihood and divergence, blind to the sharing rule.

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
    corrections: list[NDArray[np.float64]]
    """Weights of own tokens for the gap between engine and trainer, one array a row."""
    kl: float
    """Divergence from the reference, summed over `kl_tokens`."""
    kl_tokens: int


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
    own = np.bincount(source.block_of_token, logprobs_R, len(source.logprobs))
    log_ratio = own - source.logprobs
    if rule.kind == "length_normalised":
        log_ratio = log_ratio / max(source.size, 1)
    return rule.weights(log_ratio, source.canonical)[source.block_of_token]


def engine_weights(
    engine_R: NDArray[np.float64], logprobs_R: NDArray[np.float64], cap: float, /
) -> NDArray[np.float64]:
    """Truncated importance weights of an own response's tokens, shape (R,).

    ``min(exp(logp_trainer - logp_engine), cap)``: an engine samples from probabilities of its own
    (other kernels, other precision), and these weights give its tokens the trainer's. A token
    without engine log-probability (NaN) has weight 1; its row does not count it.
    """
    gap_R = np.where(np.isnan(engine_R), 0.0, logprobs_R - engine_R)
    with np.errstate(over="ignore"):
        return np.minimum(np.exp(gap_R), cap)


def token_loss(
    logp_NR: torch.Tensor,
    batch: Batch,
    ratio: RatioRule | None,
    /,
    *,
    clip_low: float,
    clip_high: float,
    whole_NR: torch.Tensor | None = None,
    reference_NR: torch.Tensor | None = None,
    kl_unbiased: bool = True,
    engine_cap: float | None = None,
) -> LossResult:
    """Loss of a micro-batch; the sum over micro-batches is the loss of the update.

    ``sum_tokens [ - min(rho w, clip(rho, 1 - clip_low, 1 + clip_high) w) - v logp + u k ]``, where
    w is the row's policy-gradient weight times its importance ratio, v its likelihood weight, u its
    divergence weight, and rho the change of the receiver's own probability of the token since the
    round began. On the first update of a round rho is 1 and its gradient that of logp. Rows with
    the same tokens share their rho: those with w > 0 add up to one term, those with w < 0 to
    another. ``k = rho (exp(d) - d - 1)`` with ``d = logp_reference - logp`` is at least 0 and has
    the mean KL(policy || reference) on the policy's own samples; without rho it is known as k3.

    Parameters
    ----------
    logp_NR : Tensor, shape (N, R)
        Log-probabilities at the distribution that is sampled from. A token that the receiver cannot
        sample has no score and leaves the surrogate: its probability is 0 whatever the parameters
        do to it.
    batch : Batch
        Rows with their final weights.
    ratio : RatioRule or None
        How peers' rows are weighted.
    clip_low, clip_high : float
        Bounds of rho.
    whole_NR : Tensor, shape (N, R), optional
        Log-probabilities without truncation, for likelihood and divergence. Default: `logp_NR`.
    reference_NR : Tensor, shape (N, R), optional
        The same by the reference; needed where a row has a divergence weight.
    kl_unbiased : bool
        Whether ``k`` has the factor rho, which makes its gradient that of the divergence.
    engine_cap : float, optional
        Correct own rows for the engine, see `engine_weights`. Default: no correction.
    """
    mask_NR = batch.mask_NR
    whole_NR = torch.where(mask_NR, logp_NR if whole_NR is None else whole_NR, 0.0)
    logp_NR = torch.where(mask_NR, logp_NR, 0.0)
    anchor_NR = logp_NR.detach() if batch.anchor_NR is None else batch.anchor_NR.to(logp_NR)
    anchor_NR = torch.where(mask_NR, anchor_NR, 0.0)
    weights = _token_weights(batch, ratio, engine_cap, anchor_NR.double().cpu().numpy())
    reached_NR = mask_NR & ~torch.isneginf(anchor_NR)
    rho_NR = torch.exp(torch.where(reached_NR, logp_NR - anchor_NR, 0.0))
    surrogate, counts = _surrogate(rho_NR, reached_NR, batch, weights, clip_low, clip_high)
    nll_NR = torch.from_numpy(weights.nll_NR).to(logp_NR)
    likelihood = torch.where(nll_NR != 0, nll_NR * whole_NR, 0.0).sum()
    divergence, kl, kl_tokens = _divergence(
        whole_NR, batch, reference_NR, rho_NR if kl_unbiased else None
    )
    return LossResult(
        loss=divergence - surrogate - likelihood,
        **counts,
        computed_tokens=int(mask_NR.sum()),
        ratios=weights.ratios,
        corrections=weights.corrections,
        kl=kl,
        kl_tokens=kl_tokens,
    )


def _surrogate(
    rho_NR: torch.Tensor,
    reached_NR: torch.Tensor,
    batch: Batch,
    weights: "_TokenWeights",
    clip_low: float,
    clip_high: float,
    /,
) -> tuple[torch.Tensor, dict[str, int]]:
    """The clipped surrogate, summed, and the counts of its tokens."""
    up_NR, down_NR = (torch.from_numpy(w).to(rho_NR) for w in (weights.up_NR, weights.down_NR))
    clipped_NR = rho_NR.clamp(1 - clip_low, 1 + clip_high)
    low_NR, high_NR = torch.minimum(rho_NR, clipped_NR), torch.maximum(rho_NR, clipped_NR)
    surrogate_NR = up_NR * low_NR + down_NR * high_NR
    cut_NR = ((up_NR > 0) & (clipped_NR < rho_NR)) | ((down_NR < 0) & (clipped_NR > rho_NR))
    pg_NR = (up_NR > 0) | (down_NR < 0)
    sought_N = np.zeros(len(rho_NR), np.bool_)
    sought_N[batch.place_M[batch.pg_weight_M != 0]] = True
    sought_N1 = torch.from_numpy(sought_N).to(rho_NR.device)[:, None]
    return torch.where(reached_NR, surrogate_NR, 0.0).sum(), {
        "clipped_tokens": int((reached_NR & cut_NR).sum()),
        "pg_tokens": int((reached_NR & pg_NR).sum()),
        "unreachable_tokens": int((batch.mask_NR & ~reached_NR & sought_N1).sum()),
    }


def _divergence(
    whole_NR: torch.Tensor,
    batch: Batch,
    reference_NR: torch.Tensor | None,
    rho_NR: torch.Tensor | None,
    /,
) -> tuple[torch.Tensor, float, int]:
    """Weighted divergence from the reference; its plain sum over rollouts; their tokens."""
    held_M = batch.kl_weight_M != 0
    if not held_M.any():
        return whole_NR.new_zeros(()), 0.0, 0
    if reference_NR is None:
        raise ValueError("rows have a divergence weight; expected the reference's log-probs")
    gap_NR = torch.where(batch.mask_NR, reference_NR.to(whole_NR) - whole_NR, 0.0)
    k_NR = torch.expm1(gap_NR) - gap_NR
    k_N = (k_NR if rho_NR is None else rho_NR * k_NR).sum(-1)
    weight_N, rollouts_N = (
        torch.from_numpy(np.bincount(batch.place_M, values_M, len(k_N))).to(k_N)
        for values_M in (batch.kl_weight_M, held_M)
    )
    total = (rollouts_N * k_N.detach()).sum()
    return (weight_N * k_N).sum(), float(total), int((rollouts_N * batch.mask_NR.sum(-1)).sum())


@dataclass(frozen=True, eq=False)
class _TokenWeights:
    """Weights (N, R) of the tokens, the rows of a place added up: w > 0, w < 0, and likelihood."""

    up_NR: NDArray[np.float64]
    down_NR: NDArray[np.float64]
    nll_NR: NDArray[np.float64]
    ratios: list[tuple[int, float]]
    corrections: list[NDArray[np.float64]]


def _token_weights(
    batch: Batch,
    ratio: RatioRule | None,
    engine_cap: float | None,
    anchor_NR: NDArray[np.float64],
    /,
) -> _TokenWeights:
    pg_M, place_M = batch.pg_weight_M, batch.place_M
    peer_M = np.array([ratio is not None and row.source is not None for row in batch.rows])
    own_M = np.array([engine_cap is not None and row.engine is not None for row in batch.rows])
    own_M &= pg_M != 0
    plain_pg_M = np.where(peer_M | own_M, 0.0, pg_M)
    up_NR, down_NR, nll_NR = (
        _by_place(weight_M, place_M, anchor_NR.shape)
        for weight_M in (plain_pg_M.clip(min=0), plain_pg_M.clip(max=0), batch.nll_weight_M)
    )
    found = _TokenWeights(up_NR, down_NR, nll_NR, [], [])
    for m in np.flatnonzero(peer_M | own_M).tolist():
        row, n = batch.rows[m], int(place_M[m])
        tokens = slice(len(row.response))
        if ratio is not None and row.source is not None:
            factor_R = ratio_weights(ratio, row, anchor_NR[n, tokens])
            found.ratios.append((row.group, float(factor_R.mean())))
        elif engine_cap is not None and row.engine is not None:
            factor_R = engine_weights(row.engine, anchor_NR[n, tokens], engine_cap)
            found.corrections.append(factor_R if row.usable is None else factor_R[row.usable])
        (up_NR if pg_M[m] > 0 else down_NR)[n, tokens] += pg_M[m] * factor_R
    return found


def _by_place(
    weight_M: NDArray[np.float64], place_M: NDArray[np.int64], shape: tuple[int, ...], /
) -> NDArray[np.float64]:
    """Sum of the rows' weights at each place, the same for all its tokens; shape (N, R)."""
    sums_N = np.bincount(place_M, weight_M, shape[0])
    return np.tile(sums_N[:, None], shape[1])
