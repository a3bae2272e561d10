"""The tokenised bandit: arms are texts, and every policy writes them in tokens of its own.

Source: docs/theory.md, section 7.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bandit import Residual, World
from bandit.moments import cosine
from bandit.policies import log_ratio
from bandit.probes import RatioRule
from bandit.probes.group import Array
from mrl.gate.tokenised.policies import Integers, TokenPolicy, canonical_logprobs
from mrl.gate.tokenised.transfer import Transfer


@dataclass(frozen=True, eq=False)
class TokenWorld:
    """One prompt, answered in tokens by several policies; build one with `TokenWorld.of`.

    Attributes
    ----------
    policies : tuple of TokenPolicy
        P policies, all with the same `max_bytes`.
    texts : tuple of bytes
        The K arms: everything that a policy can write, short ones first.
    rewards : ndarray, shape (K,)
        Reward of each text.
    """

    policies: tuple[TokenPolicy, ...]
    texts: tuple[bytes, ...]
    rewards: Array

    @classmethod
    def of(
        cls, policies: Sequence[TokenPolicy], reward: Callable[[bytes], float], /
    ) -> "TokenWorld":
        """Collect the texts of all policies and reward them.

        Raises
        ------
        ValueError
            If there is no policy, or they differ in `max_bytes`.
        """
        limits = {policy.max_bytes for policy in policies}
        if len(limits) != 1:
            raise ValueError(
                f"policies have max_bytes {sorted(limits)}; expected at least one policy, and the "
                "same longest response for all"
            )
        texts = sorted({text for one in policies for text in one.texts}, key=lambda t: (len(t), t))
        rewards = np.array([float(reward(text)) for text in texts])
        rewards.flags.writeable = False
        return cls(tuple(policies), tuple(texts), rewards)

    def to_world(self) -> World:
        """Give the bandit over texts: one context, one arm a text, a text's probability its arm's.

        Nothing is left over, as no response is cut. Its gradients are with respect to one logit a
        text, not to the policies' own logits.
        """
        return World.tabular(self.probs[:, None, :], self.rewards[None])

    @cached_property
    def probs(self) -> Array:
        """Probability of each text by policy, summed over its tokenisations, shape (P, K)."""
        return np.array(
            [[policy.text_probs.get(text, 0.0) for text in self.texts] for policy in self.policies]
        )

    @cached_property
    def canonical_probs(self) -> Array:
        """Probability of each text's canonical tokens by policy, shape (P, K)."""
        return np.exp([canonical_logprobs(policy, self.texts) for policy in self.policies])

    @cached_property
    def delta(self) -> Array:
        """``log pi(x) - log pi(canonical(x)) >= 0`` in nats, shape (P, K).

        inf where a policy writes a text that its tokenizer refuses (bytes that are not UTF-8), NaN
        where it never writes it.
        """
        # Texts with one tokenisation have 0 exactly: both sides are then the same number.
        return np.where(self.probs > 0, -log_ratio(self.canonical_probs, self.probs), np.nan)

    @cached_property
    def arms(self) -> tuple[Integers, ...]:
        """Arm of each sequence, by policy."""
        arm_of = {text: k for k, text in enumerate(self.texts)}
        return tuple(np.array([arm_of[text] for text in policy.texts]) for policy in self.policies)

    @cached_property
    def _transfers(self) -> dict[tuple[int, int], Transfer]:
        return {
            (a, b): Transfer.of(source, receiver)
            for a, source in enumerate(self.policies)
            for b, receiver in enumerate(self.policies)
        }

    def transfer(self, source: int, receiver: int, /) -> Transfer:
        """What becomes of one policy's rollouts at another; a policy can be its own source."""
        return self._transfers[source, receiver]

    def true_gradient(self, receiver: int, /) -> Array:
        """``g*``: gradient of the expected reward in the receiver's own logits, shape (N, V+1).

        A sum over all token sequences, canonical or not.
        """
        policy = self.policies[receiver]
        return policy.gradient(
            range(len(policy)), policy.probs * self._advantage(receiver, receiver)
        )

    def peer_gradient(self, source: int, receiver: int, rule: RatioRule, /) -> Array:
        """``E[w (r - p) grad log pi_B(canonical_B(x))]`` over the source's rollouts, (N, V+1).

        p is the receiver's own expected reward. With this baseline `true_gradient` is what it would
        be if rollouts, ratios and texts were the receiver's own canonical tokens and all of these.
        """
        moved = self.transfer(source, receiver)
        scale = moved.source.probs * self._advantage(source, receiver)
        kept = np.flatnonzero(moved.representable)
        weights = moved.token_weights(rule)
        return moved.receiver.gradient(
            moved.spelled[kept].tolist(), (scale[n] * weights[n] for n in kept)
        )

    def bias_cosine(self, source: int, receiver: int, rule: RatioRule, /) -> float:
        """Cosine between `peer_gradient` and `true_gradient`; NaN where one of them is 0."""
        found = self.peer_gradient(source, receiver, rule).ravel()
        return float(cosine(found, self.true_gradient(receiver).ravel()))

    def residual(self, receiver: int, rule: RatioRule, /) -> Residual:
        """Give the bandit's residual with which `to_world` has this rule's weights.

        By text: ``drop`` where the receiver refuses it; ``gate``, the probability that the source
        wrote it in other than canonical tokens; ``mu`` and ``sigma`` such that ``E[w]`` and
        ``E[w^2]`` given the text (and the gate, if there is one) are those of the tokens. With a
        gated rule sigma is 0, and for ``sequence`` mu is ``delta_A(x) - delta_B(x)``.

        Raises
        ------
        ValueError
            If the weights are no numbers by text (``block``), or a cap would act on a spread that
            is normal only in its first two moments (ungated, with a cap).
        """
        if rule.kind == "block":
            raise ValueError(
                "a block ratio weights the tokens of one text differently; expected 'sequence', "
                "'length_normalised' or 'none': use peer_gradient for 'block'"
            )
        if rule.kind != "none" and not rule.gated and np.isfinite(rule.cap):
            raise ValueError(
                f"the rule has gated=False and cap={rule.cap}; expected a gated rule or no cap: a "
                "cap acts on each tokenisation of a text, and not on a normal distribution"
            )
        uncapped = RatioRule(rule.kind, gated=rule.gated)
        parts: dict[str, dict[int, Array]] = {"mu": {}, "sigma": {}, "drop": {}, "gate": {}}
        for source in range(len(self.policies)):
            if source != receiver:
                for name, table in self._by_text(source, receiver, uncapped).items():
                    parts[name][source] = table[None]
        return Residual(**parts)

    def _by_text(self, source: int, receiver: int, rule: RatioRule, /) -> dict[str, Array]:
        """Tables (K,) of `residual` for one source."""
        moved, arms, shape = self.transfer(source, receiver), self.arms[source], len(self.texts)
        written = self.probs[source]
        share = moved.source.probs / written[arms]  # of its text's tokenisations
        refused = np.zeros(shape)
        refused[arms[~moved.representable]] = 1.0
        passing = np.bincount(arms, share * moved.source.canonical, shape)
        passing = np.where(written > 0, passing, 1.0)
        if rule.kind == "none":
            return {"drop": refused}
        weights = moved.weights(rule)
        # Of the rollouts that pass the gate, if there is one.
        among = np.where(passing > 0, passing, 1.0) if rule.gated else np.ones(shape)
        first = np.bincount(arms, share * weights, shape) / among
        second = np.bincount(arms, share * np.square(weights), shape) / among
        known = first > 0
        first, second = np.where(known, first, 1.0), np.where(known, second, 1.0)
        spread = np.log(np.maximum(second / first**2, 1.0))
        # A single tokenisation has no spread, only rounding.
        spread[spread < 1e-12] = 0.0
        exact = log_ratio(self.probs[receiver], written)
        mu = np.where(known, np.log(first) - spread / 2 - np.where(known, exact, 0.0), 0.0)
        gate = np.clip(1.0 - passing, 0.0, 1.0) if rule.gated else np.zeros(shape)
        return {"mu": mu, "sigma": np.sqrt(spread), "drop": refused, "gate": gate}

    def _advantage(self, source: int, receiver: int, /) -> Array:
        """Reward less the receiver's expected reward, of each of the source's sequences."""
        baseline = self.probs[receiver] @ self.rewards
        return self.rewards[self.arms[source]] - baseline
