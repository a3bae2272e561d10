"""A round's gradient steps of one policy; knows weights and routes, no sharing rule."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from bandit.probes import RatioRule, effective_sample_size
from mrl.batch import Assignment, micro_batches
from mrl.distributed import reduced, share
from mrl.errors import RunError
from mrl.loss import LossResult, token_loss
from mrl.policy import Policy

# Below this share of the peers' rollouts a few of them carry the whole term.
LOW_ESS = 0.1


def update(policy: Policy, assignment: Assignment, /) -> dict[str, Any]:
    """Take the round's gradient steps; returns what they showed.

    Raises
    ------
    RunError
        If a gradient is not finite; the weights then stand as before that step.
    """
    assignment = share(assignment)
    steps = policy.objective.updates
    if steps > 1:
        anchors = policy.score(assignment.rows)
        rows = [
            replace(row, anchor=anchor)
            for row, anchor in zip(assignment.rows, anchors, strict=True)
        ]
        assignment = replace(assignment, rows=rows)
    losses, norms, results = [], [], []
    lr = policy.optim.param_groups[0]["lr"]
    for part in assignment.split(steps):
        loss, found = reduced(policy.parameters, *accumulate(policy, part))
        norms.append(_step(policy))
        losses.append(loss)
        results += found
    policy.schedule.step()
    pg_tokens = sum(result.pg_tokens for result in results)
    clipped = sum(result.clipped_tokens for result in results)
    return {
        "loss": float(np.mean(losses)),
        "grad_norm": float(np.mean(norms)),
        "lr": lr,
        "clip_share": clipped / pg_tokens if pg_tokens else None,
        "computed_tokens": sum(result.computed_tokens for result in results),
        "unreachable_tokens": sum(result.unreachable_tokens for result in results),
        **_ratio_figures(results, assignment.ratio),
    }


def accumulate(policy: Policy, assignment: Assignment, /) -> tuple[float, list[LossResult]]:
    """Set the gradients to those of one update over `assignment`, without a step."""
    policy.optim.zero_grad(set_to_none=False)
    total, results = 0.0, []
    for batch in micro_batches(assignment, policy.objective, policy.pad_id, policy.device):
        logp_NR, whole_NR = policy.logprobs(batch)
        result = token_loss(
            logp_NR,
            batch,
            assignment.ratio,
            clip_low=policy.objective.clip_low,
            clip_high=policy.objective.clip_high,
            whole_NR=whole_NR,
        )
        result.loss.backward()
        total += result.loss.item()
        results.append(replace(result, loss=result.loss.detach()))
    return total, results


def _step(policy: Policy, /) -> float:
    # Without any weighted row there are no gradients yet; the step is then one of zeros.
    for parameter in policy.parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    limit = policy.optimizer.max_grad_norm
    norm = float(
        torch.nn.utils.clip_grad_norm_(policy.parameters, float("inf") if limit is None else limit)
    )
    if not np.isfinite(norm):
        raise RunError(
            f"policy {policy.name!r}: the gradient is not finite (norm {norm}); no step was "
            "taken. Lower the learning rate, or cap the ratios if the probe has them"
        )
    policy.optim.step()
    return norm


def _ratio_figures(results: list[LossResult], rule: RatioRule | None, /) -> dict[str, Any]:
    """Importance weights of peers' rows: effective sample size a prompt, mean and quantiles."""
    pairs = [pair for result in results for pair in result.ratios]
    if rule is None or rule.kind == "none" or not pairs:
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
