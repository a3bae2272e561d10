"""Rung "tokenised", second half: what a sharing rule becomes as responses get longer.

The tokenised bandit lists every response, so its responses are short. The length world factors, so
its responses may be as long as the run's. Needs no torch. Source: docs/gate.md, docs/theory.md,
section 7.
"""

import numpy as np

from bandit.length import long_answer, plane_by_length
from mrl.config import PolicyConfig, RunConfig
from mrl.errors import InputError
from mrl.gate.certificate import Check, Rung
from mrl.gate.worlds import peers_by_index

LENGTHS = (1, 4, 16, 64)
FIGURES = ("relative_cost", "support_gain", "bias_cosine", "peer_cosine", "ess", "chi2")


def lengths_rung(run: RunConfig, policy: PolicyConfig, /) -> Rung:
    """Place one policy's rule on the plane at several lengths of response.

    Parameters
    ----------
    run : RunConfig
        Group sizes; `gate.success` gives the success probabilities, of the policy on the prompts it
        is weakest at and of its best peer there; `sampling.max_tokens` bounds the lengths.
    policy : PolicyConfig
        The receiver, with its own sharing rule.

    Returns
    -------
    Rung
        The figures of `bandit.length.plane_by_length` at each length; the cosine to the true
        gradient at the longest is held against `gate.min_length_cosine` where that is set. Empty
        for a rule that trains on no peer's text, for a policy that sees no peer, and where nobody
        succeeds.

    Raises
    ------
    InputError
        If a capped ratio is too large for the closed forms.
    """
    probe, receiver = run.probe_of(policy), run.policies.index(policy)
    peers = {j: n for j, n in peers_by_index(run, policy.name).items() if n}
    success = np.array(run.gate.success)
    if not probe.needs & {"rollout", "success"} or not peers:
        return Rung((), {}, ())
    weakest = int(np.argmin(np.where(success[receiver] > 0, success[receiver], np.inf)))
    p, q = float(success[receiver, weakest]), float(success[list(peers), weakest].max())
    if p == 0 or q == 0:
        return Rung((), {}, ())
    longest = min(run.sampling_of(policy).max_tokens, max(LENGTHS))
    sizes = sorted({length for length in LENGTHS if length <= longest} | {longest})
    try:
        frame = plane_by_length(
            sizes,
            {policy.name: probe},
            world=lambda length: long_answer(length, p=p, q=q),
            own=run.group_of(policy).own,
            peers=sum(peers.values()),
        )
    except ValueError as error:
        raise InputError(
            f"policy {policy.name!r} cannot be placed by length of response: {error}"
        ) from None
    # rules without a ratio have no chi2 and no effective sample size
    rows = {
        int(row["length"]): {k: float(row[k]) for k in FIGURES if not np.isnan(row[k])}
        for _, row in frame.iterrows()
    }
    last = rows[longest]
    checks = []
    if run.gate.min_length_cosine is not None:
        name = f"{policy.name}: cosine at {longest} tokens"
        checks.append(Check.at_least(name, last["bias_cosine"], run.gate.min_length_cosine))
    note = (
        f"{policy.name} ({probe.kind}): in the length world (p {p:g}, q {q:g}), from {sizes[0]} to "
        f"{longest} tokens: " + "; ".join(_change(name, rows[sizes[0]], last) for name in last)
    )
    return Rung(tuple(checks), {f"{policy.name}, by length": rows}, (note,))


def _change(name: str, first: dict[str, float], last: dict[str, float], /) -> str:
    return f"{name.replace('_', ' ')} {first[name]:.3g} to {last[name]:.3g}"
