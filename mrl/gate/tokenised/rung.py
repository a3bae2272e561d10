"""Rung "tokenised": peers' texts through the trainer's token code, on a world with known answers.

Needs the tokenizers library, no torch. Source: docs/gate.md, docs/theory.md, section 7.
"""

from typing import Any

import numpy as np

from bandit import Residual, exact
from bandit.execution import execute
from bandit.probes import Group, Probe, RatioRule
from bandit.probes.group import Array
from mrl.config import PolicyConfig, RunConfig
from mrl.errors import InputError
from mrl.gate.certificate import Check, Rung
from mrl.gate.estimators import MAX_Z, ROUNDING, largest_z
from mrl.gate.tokenised.policies import Integers
from mrl.gate.tokenised.toys import KINDS, toy_world
from mrl.gate.tokenised.transfer import Transfer
from mrl.gate.tokenised.world import TokenWorld
from mrl.gate.worlds import peers_by_index
from mrl.seeds import derive, generator
from mrl.tokens import Unrepresentable, retokenize_batch
from mrl.tokens.residual import LEVELS, ResidualSummary, summarise_residual

# Sums over a few hundred sequences, in another order.
LAW = 1e-10
# Groups are dearer than single rollouts.
DRAWS_PER_GROUP = 4
TAIL = LEVELS[-1]
# Texts that no toy policy writes: control tokens spelled out, bytes that are no UTF-8, letters
# outside the alphabet, spaces, and a character in two forms.
AWKWARD = (
    b"<eos>",
    b"a<pad>b",
    b"\xff",
    b"ab\xc3",
    b"d",
    b" a",
    b"a\n",
    "\u00e9".encode(),
    "e\u0301".encode(),
    "\ufffd".encode(),
)


def gate_texts(run: RunConfig, /) -> TokenWorld:
    """Build the rung's world: one toy policy for each of the run's, tokenizers taken in turn.

    Raises
    ------
    InputError
        If the tokenizers do not allow `gate.canonical_share` in `gate.text_bytes`.
    """
    kinds = [KINDS[i % len(KINDS)] for i in range(len(run.policies))]
    try:
        return toy_world(
            kinds,
            max_bytes=run.gate.text_bytes,
            canonical_share=run.gate.canonical_share,
            seed=derive(run.seed, "gate", "texts"),
        )
    except ValueError as error:
        raise InputError(
            f"gate.canonical_share={run.gate.canonical_share} and gate.text_bytes="
            f"{run.gate.text_bytes} do not go together: {error}"
        ) from None


def tokenised_rung(run: RunConfig, world: TokenWorld, policy: PolicyConfig, /) -> Rung:
    """Send all peers' responses to one policy and hold what arrives against what theory says.

    Parameters
    ----------
    run : RunConfig
        Group sizes, draws, thresholds.
    world : TokenWorld
        As `gate_texts` gives it.
    policy : PolicyConfig
        The receiver, with its own sharing rule.

    Returns
    -------
    Rung
        Texts that changed on the way; for a rule that trains on peers' text the simulated gradient
        against the exact one; for a ratio rule the mean weights and the error of the log-ratios;
        for the gated sequence ratio the bias. Dynamic sampling, which moves no text, is left out.
    """
    receiver, probe = run.policies.index(policy), run.probe_of(policy)
    peers = {j: n for j, n in peers_by_index(run, policy.name).items() if n}
    name = policy.name
    figures: dict[str, Any] = {
        "tokenizer": KINDS[receiver % len(KINDS)],
        "canonical_share": world.policies[receiver].canonical_share,
    }
    checks = [Check.at_most(f"{name}: texts changed on the way", changed(world, receiver), 0)]
    if not probe.needs & {"rollout", "success"}:
        note = f"{name}: {probe.kind} uses no peer's text: nothing here depends on tokens"
        return Rung(tuple(checks), {name: figures}, (note,))
    if not peers:
        return Rung(tuple(checks), {name: figures}, (f"{name} sees no peer's rollouts",))
    rule, notes = exact.ratio_rule(probe), []
    if predicted(rule):
        z = gradient_z(run, world, probe, receiver, peers)
        checks.append(Check.at_most(f"{name}: largest |z| of the gradient by text", z, MAX_Z))
        figures["gradient_z"] = z
    else:
        notes.append(f"{name}: {_unpredicted(rule)}, so the gradient by text is not compared")
    figures["from"] = {}
    for j in peers:
        found, judged, note = _transfer(run, world, rule, (j, receiver))
        figures["from"][run.policies[j].name] = found
        checks += judged
        notes.append(note)
    return Rung(tuple(checks), {name: figures}, tuple(notes))


def changed(world: TokenWorld, receiver: int, /) -> int:
    """How many texts, awkward ones included, neither keep their bytes nor are refused."""
    texts = [*world.texts, *AWKWARD]
    encoder = world.policies[receiver].encoder
    return sum(
        not isinstance(ids, Unrepresentable) and encoder.table.bytes_of(ids) != text
        for text, ids in zip(texts, retokenize_batch(texts, encoder), strict=True)
    )


def predicted(rule: RatioRule | None, /) -> bool:
    """Whether a bandit with one arm a text has the moments of this rule's weights."""
    if rule is None or rule.kind == "none":
        return True
    return rule.kind != "block" and (rule.gated or np.isinf(rule.cap))


def gradient_z(
    run: RunConfig, world: TokenWorld, probe: Probe, receiver: int, peers: dict[int, int], /
) -> float:
    """Largest |z| of a simulated mean gradient over texts against `bandit.exact`.

    Rollouts are drawn token by token, retokenised, gated and weighted by the tokens; the exact side
    knows of tokens only what `TokenWorld.residual` says.
    """
    rule, arms = exact.ratio_rule(probe), world.to_world()
    residual: Residual = world.residual(receiver, rule or RatioRule("none"))
    own = run.group_of(run.policies[receiver]).own
    moments = exact.moments(arms, probe, receiver=receiver, own=own, peers=peers, residual=residual)
    groups = run.gate.draws // DRAWS_PER_GROUP
    seed = derive(run.seed, "gate", "tokenised", run.policies[receiver].name)
    streams = [np.random.default_rng([seed, i]) for i in range(len(world.policies) + 1)]
    drawn = {
        i: world.policies[i].sample((groups, 1, n), streams[i])
        for i, n in {**peers, receiver: own}.items()
    }
    moved = {j: world.transfer(j, receiver) for j in peers}
    peer_arms = _side_by_side({j: world.arms[j][drawn[j]] for j in peers})
    own_arms = world.arms[receiver][drawn[receiver]]
    group = Group(
        own_rewards=world.rewards[own_arms],
        peer_rewards=world.rewards[peer_arms],
        peer_source=np.repeat(list(peers), list(peers.values())),
        peer_representable=_side_by_side({j: moved[j].representable[drawn[j]] for j in peers}),
    )
    credit = probe.credit(group, streams[-1])
    weights = None
    if rule is not None:
        weights = _side_by_side({j: moved[j].weights(rule)[drawn[j]] for j in peers})
    gradients = execute(arms.probs[receiver], own_arms, peer_arms, credit, weights)
    return largest_z(moments, gradients.mean(0), groups)


def _side_by_side(parts: dict[int, Any], /) -> Any:
    return np.concatenate(list(parts.values()), axis=-1)


def _transfer(
    run: RunConfig,
    world: TokenWorld,
    rule: RatioRule | None,
    pair: tuple[int, int],
    /,
) -> tuple[dict[str, Any], list[Check], str]:
    """Figures, checks and a sentence about what one source sends to one receiver."""
    moved = world.transfer(*pair)
    source, receiver = (run.policies[i].name for i in pair)
    name = f"{receiver} from {source}"
    figures: dict[str, Any] = {"refused_share": moved.refused_share}
    refused = f"{name}: {moved.refused_share:.2g} of the rollouts are refused"
    if rule is None or rule.kind == "none":
        return figures, [], f"{refused}; no ratio is formed"
    rng = generator(run.seed, "gate", "tokenised", receiver, source)
    drawn = moved.source.sample((run.gate.draws,), rng)
    first, second = moved.weight_moments(rule)
    mean = float(moved.weights(rule)[drawn].mean())
    gated = moved.weight_moments(RatioRule("sequence"))[0]
    spread = _residual(moved, rule, drawn)
    cosine = world.bias_cosine(*pair, rule)
    checks = [
        Check.at_most(f"{name}: |gated mean - law|", abs(gated - moved.covered_share), LAW),
        Check.at_most(f"{name}: |z| of mean weight", _z(mean, first, second, drawn.size), MAX_Z),
        Check.at_most(
            f"{name}: {TAIL:.0%} quantile of |residual|",
            spread.magnitude[-1],
            run.gate.max_residual,
        ),
    ]
    if rule.kind == "sequence" and rule.gated:
        checks.append(Check.at_least(f"{name}: bias cosine", cosine, run.gate.min_token_cosine))
    figures |= {
        "source_canonical_share": moved.source.canonical_share,
        "law": moved.covered_share,
        "gated_mean_weight": gated,
        "mean_weight": first,
        "simulated_mean_weight": mean,
        "ess_share": moved.ess_share(rule),
        "residual_large_share": spread.large_share,
        "residual_magnitude": dict(
            zip((f"q{level}" for level in spread.levels), spread.magnitude, strict=True)
        ),
        "bias_cosine": cosine,
    }
    sentence = (
        f"{refused}; ratio {rule.kind!r}{'' if rule.gated else ', not gated'} has mean weight "
        f"{first:.3f}, effective share {figures['ess_share']:.2f} and cosine {cosine:.3f}"
    )
    return figures, checks, sentence + _beside(world, rule, pair)


def _beside(world: TokenWorld, rule: RatioRule, pair: tuple[int, int], /) -> str:
    """Figures of the gated sequence ratio, which rung "estimators" cannot tell from the rule."""
    usual = RatioRule("sequence")
    if rule == usual:
        return ""
    share, cosine = world.transfer(*pair).ess_share(usual), world.bias_cosine(*pair, usual)
    return f" (gated 'sequence' without a cap: {share:.2f} and {cosine:.3f})"


def _residual(moved: Transfer, rule: RatioRule, drawn: Integers, /) -> ResidualSummary:
    """Error of the log-ratios among drawn rollouts that the rule gives a weight."""
    counted = moved.representable & moved.source.canonical if rule.gated else moved.representable
    kept: Array = moved.residual[drawn[counted[drawn]]]
    return summarise_residual(kept)


def _z(mean: float, first: float, second: float, draws: int, /) -> float:
    """Deviation of a mean of independent weights from ``E[w]`` in standard errors."""
    off = abs(mean - first)
    if off <= ROUNDING:
        return 0.0
    variance = max(second - first**2, 0.0)
    return off / float(np.sqrt(variance / draws)) if variance > 0 else float("inf")


def _unpredicted(rule: RatioRule | None, /) -> str:
    if rule is not None and rule.kind == "block":
        return "a block ratio weights the tokens of a text differently"
    return "a cap acts on each tokenisation of a text differently"
