"""The token loss: a clipped surrogate and a likelihood term, blind to the sharing rule.

Shapes: N rows, R response tokens, T prompt and response tokens.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bandit.probes import RatioRule
from mrl.batch import Batch, Row
from mrl.rollout.hf import positions, scaled_logprobs


@dataclass(frozen=True, eq=False)
class LossResult:
    """A micro-batch's share of the loss, and what its computation showed."""

    loss: torch.Tensor
    clipped_tokens: int
    pg_tokens: int
    ratios: list[tuple[int, float]]
    """(group, weight) of each peer row under a ratio rule; the mean over its tokens."""


def response_logprobs(
    model: Any, batch: Batch, temperature: float, vocabulary: int | None = None, /
) -> torch.Tensor:
    """Log-probabilities (N, R) of the response tokens at the sampling distribution."""
    width = batch.mask_NR.shape[1]
    logits_NRV = model(
        input_ids=batch.ids_NT,
        attention_mask=batch.attention_NT,
        position_ids=positions(batch.attention_NT),
        use_cache=False,
        logits_to_keep=width + 1,
    ).logits[:, -width - 1 : -1]
    logp_NRV = scaled_logprobs(logits_NRV, temperature, vocabulary)
    return logp_NRV.gather(-1, batch.targets_NR[..., None])[..., 0]


def ratio_weights(
    rule: RatioRule, row: Row, logprobs_R: NDArray[np.float64], /
) -> NDArray[np.float64]:
    """Weight of each response token of a peer's row, shape (R,).

    ``sequence`` and ``length_normalised`` give all tokens of a response one weight; ``block``
    gives the tokens of each aligned block the weight of that block. Source: docs/theory.md,
    section 2, and docs/tokens.md.
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
) -> LossResult:
    """Loss of a micro-batch; the sum over micro-batches is the loss of the update.

    ``- sum_tokens [ min(rho w, clip(rho, 1 - clip_low, 1 + clip_high) w) + v logp ]``, where w is
    the row's policy-gradient weight times its importance ratio, v its likelihood weight, and rho
    the change of the receiver's own probability of the token since the round began. On the first
    update of a round rho is 1 and its gradient that of logp.
    """
    mask_NR = batch.mask_NR
    logp_NR = torch.where(mask_NR, logp_NR, 0.0)
    anchor_NR = logp_NR.detach() if batch.anchor_NR is None else batch.anchor_NR.to(logp_NR)
    weight_NR = batch.pg_weight_N[:, None].to(logp_NR).expand_as(logp_NR)
    ratios: list[tuple[int, float]] = []
    if ratio is not None and any(row.source is not None for row in batch.rows):
        factor_NR = np.ones(logp_NR.shape)
        anchors = torch.where(mask_NR, anchor_NR, 0.0).double().cpu().numpy()
        for i, row in enumerate(batch.rows):
            if row.source is not None:
                tokens = len(row.response)
                factor_NR[i, :tokens] = ratio_weights(ratio, row, anchors[i, :tokens])
                ratios.append((row.group, float(factor_NR[i, :tokens].mean())))
        weight_NR = weight_NR * torch.from_numpy(factor_NR).to(logp_NR)
    rho_NR = torch.exp(torch.where(mask_NR, logp_NR - anchor_NR, 0.0))
    clipped_NR = rho_NR.clamp(1 - clip_low, 1 + clip_high) * weight_NR
    surrogate_NR = torch.minimum(rho_NR * weight_NR, clipped_NR)
    likelihood_NR = batch.nll_weight_N[:, None].to(logp_NR) * logp_NR
    loss = -torch.where(mask_NR, surrogate_NR + likelihood_NR, 0.0).sum()
    pg_NR = mask_NR & (weight_NR != 0)
    return LossResult(
        loss=loss,
        clipped_tokens=int((pg_NR & (clipped_NR < rho_NR * weight_NR)).sum()),
        pg_tokens=int(pg_NR.sum()),
        ratios=ratios,
    )
