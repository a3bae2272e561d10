"""A round's gradient steps of one policy; knows weights and routes, no sharing rule."""

import warnings
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bandit.probes import effective_sample_size
from mrl.batch import Assignment, Batch, micro_batches
from mrl.distributed import reduced, share
from mrl.errors import RunError
from mrl.loss import LossResult, token_loss
from mrl.memory import memory_for
from mrl.policy import Policy

# Below this share of the peers' rollouts a few of them carry the whole term.
LOW_ESS = 0.1
SKIPPED = "steps_skipped_in_a_row"


def update(policy: Policy, assignment: Assignment, /) -> dict[str, Any]:
    """Take the round's gradient steps; returns what they showed.

    Raises
    ------
    RunError
        If loss or gradient is not finite more often in a row than `objective.skip_nonfinite`
        allows, or memory runs out; the weights then stand as before that step.
    """
    assignment = share(assignment)
    steps = policy.objective.updates
    if steps > 1:
        assignment = _anchored(policy, assignment)
    losses, norms, results = [], [], []
    lr = policy.optim.param_groups[0]["lr"]
    parts = list(assignment.split(steps))
    for part in parts:
        loss, found = reduced(policy.parameters, *accumulate(policy, part))
        norm = _step(policy, loss)
        if norm is not None:
            norms.append(norm)
            losses.append(loss)
        results += found
    with warnings.catch_warnings():
        # Steps that were left out may have been the first of all.
        warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
        policy.schedule.step()
    return {
        "loss": float(np.mean(losses)) if losses else None,
        "grad_norm": float(np.mean(norms)) if norms else None,
        "skipped_steps": len(parts) - len(norms),
        "lr": lr,
        "computed_tokens": sum(result.computed_tokens for result in results),
        "unreachable_tokens": sum(result.unreachable_tokens for result in results),
        **_token_figures(policy, results),
        **_ratio_figures(results, assignment),
    }


def _anchored(policy: Policy, assignment: Assignment, /) -> Assignment:
    """The rows with their log-probabilities before the first of several updates."""
    anchors = policy.score(assignment.rows)
    rows = [
        replace(row, anchor=anchor) for row, anchor in zip(assignment.rows, anchors, strict=True)
    ]
    return replace(assignment, rows=rows)


def accumulate(policy: Policy, assignment: Assignment, /) -> tuple[float, list[LossResult]]:
    """Set the gradients to those of one update over `assignment`, without a step."""
    objective = policy.objective
    policy.optim.zero_grad(set_to_none=False)
    total, results = 0.0, []
    for batch in micro_batches(assignment, objective, policy.pad_id, policy.device):
        with _memory_for(policy, batch):
            # First, so that its activations are gone before those of the gradient are kept.
            held = bool(batch.kl_weight_M.any())
            reference_NR = policy.reference_logprobs(batch) if held else None
            logp_NR, whole_NR = policy.logprobs(batch)
            result = token_loss(
                logp_NR,
                batch,
                assignment.ratio,
                clip_low=objective.clip_low,
                clip_high=objective.clip_high,
                whole_NR=whole_NR,
                reference_NR=reference_NR,
                kl_unbiased=objective.kl_unbiased,
                engine_cap=policy.engine_cap,
            )
            result.loss.backward()
        total += result.loss.item()
        results.append(replace(result, loss=result.loss.detach()))
    return total, results


def _memory_for(policy: Policy, batch: Batch, /) -> AbstractContextManager[None]:
    return memory_for(
        f"while policy {policy.name!r} trains on a micro-batch of {tuple(batch.ids_NT.shape)}",
        f"lower objective.batch_tokens={policy.objective.batch_tokens}, which changes no gradient "
        "(one response is the least that it can hold), or sampling.max_tokens",
    )


def _step(policy: Policy, loss: float, /) -> float | None:
    """Take an optimizer step; the gradient's norm, or None if the step was left out."""
    # Without any weighted row there are no gradients yet; the step is then one of zeros.
    for parameter in policy.parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    limit = policy.optimizer.max_grad_norm
    norm = float(
        torch.nn.utils.clip_grad_norm_(policy.parameters, float("inf") if limit is None else limit)
    )
    # Kept with the optimizer's settings, and so in its state: a resumed run goes on counting.
    settings = policy.optim.param_groups[0]
    if np.isfinite(norm) and np.isfinite(loss):
        settings[SKIPPED] = 0
        policy.optim.step()
        return norm
    allowed = policy.objective.skip_nonfinite
    settings[SKIPPED] = settings.get(SKIPPED, 0) + 1
    if settings[SKIPPED] > allowed:
        raise RunError(
            f"policy {policy.name!r}: the gradient is not finite (norm {norm}, loss {loss}); no "
            f"step was taken, the last of {settings[SKIPPED]} in a row (objective.skip_nonfinite="
            f"{allowed}). Lower the learning rate, or cap the ratios if the probe has them"
        )
    return None


def _token_figures(policy: Policy, results: list[LossResult], /) -> dict[str, float | None]:
    """Shares and means over tokens; those of a term that is off are left out."""
    pg_tokens = sum(result.pg_tokens for result in results)
    clipped = sum(result.clipped_tokens for result in results)
    figures: dict[str, float | None] = {"clip_share": clipped / pg_tokens if pg_tokens else None}
    if policy.objective.kl:
        tokens = sum(result.kl_tokens for result in results)
        figures["kl"] = sum(result.kl for result in results) / tokens if tokens else None
    cap = policy.engine_cap
    if cap is not None:
        corrections = [one for result in results for one in result.corrections]
        weights = np.concatenate(corrections) if corrections else None
        figures["engine_weight_mean"] = None if weights is None else float(weights.mean())
        figures["engine_capped_share"] = None if weights is None else float((weights >= cap).mean())
    return figures


def _ratio_figures(results: list[LossResult], assignment: Assignment, /) -> dict[str, Any]:
    """Importance weights of peers' rows: effective sample size a prompt, mean and quantiles."""
    pairs = [pair for result in results for pair in result.ratios]
    pairs += [(group, 0.0) for group in assignment.gated]
    if not pairs:
        return {}
    by_group: dict[int, list[float]] = {}
    for group, weight in pairs:
        by_group.setdefault(group, []).append(weight)
    shares = [effective_sample_size(np.array(w)) / len(w) for w in by_group.values()]
    weights = np.array([weight for _, weight in pairs])
    quantiles = np.quantile(weights, [0.5, 0.9, 0.99])
    ess = float(np.mean(shares))
    return {
        "ess": ess,
        "ess_low": ess < LOW_ESS,
        "ratio_mean": float(weights.mean()),
        **dict(zip(("ratio_q50", "ratio_q90", "ratio_q99"), map(float, quantiles), strict=True)),
    }
