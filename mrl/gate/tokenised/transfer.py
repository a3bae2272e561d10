"""A source's rollouts on their way to a receiver, through the trainer's own token code.

Source: docs/theory.md, section 7, and docs/tokens.md.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from bandit.probes import RatioRule
from bandit.probes.group import Array, Mask
from mrl.gate.tokenised.policies import ABSENT, Integers, TokenPolicy, canonical_logprobs
from mrl.tokens import Unrepresentable, align, block_sum, broadcast, retokenize_batch


@dataclass(frozen=True, eq=False)
class Transfer:
    """Every rollout that a source can give, spelled in a receiver's tokens.

    Attributes
    ----------
    source, receiver : TokenPolicy
        Who samples and who learns.
    spelled : ndarray of int, shape (N,)
        For each of the source's N sequences the receiver's sequence that spells the same text, by
        `mrl.tokens.retokenize_batch`; -1 where it is refused.
    """

    source: TokenPolicy
    receiver: TokenPolicy
    spelled: Integers

    @classmethod
    def of(cls, source: TokenPolicy, receiver: TokenPolicy, /) -> "Transfer":
        """Retokenise everything that the source can write.

        Raises
        ------
        ValueError
            If the receiver's responses are shorter than the source's.
        """
        if receiver.max_bytes < source.max_bytes:
            raise ValueError(
                f"the source writes up to {source.max_bytes} bytes and the receiver only "
                f"{receiver.max_bytes}; expected max_bytes of the receiver to be no smaller"
            )
        different = list(dict.fromkeys(source.texts))
        encoded = retokenize_batch(different, receiver.encoder)
        place = {
            text: ABSENT
            if isinstance(ids, Unrepresentable)
            else receiver.place[tuple(ids.tolist())]
            for text, ids in zip(different, encoded, strict=True)
        }
        return cls(source, receiver, np.array([place[text] for text in source.texts]))

    @property
    def representable(self) -> Mask:
        """Which of the source's sequences the receiver can represent, shape (N,)."""
        return self.spelled != ABSENT

    @property
    def refused_share(self) -> float:
        """``eta``: probability that a rollout of the source cannot be represented."""
        return float(self.source.probs[~self.representable].sum())

    def token_weights(self, rule: RatioRule, /) -> tuple[Array, ...]:
        """Weight of each of the receiver's tokens, EOS included, for each of the N sequences.

        As the trainer forms them: ``sequence`` and ``length_normalised`` (divided by bytes) give
        all tokens of a response one weight, ``block`` those of each aligned block its own.
        A refused rollout has no tokens.
        """
        if rule not in self._computed:
            self._computed[rule] = tuple(
                np.zeros(0) if b == ABSENT else self._weights_of(rule, a, int(b))
                for a, b in enumerate(self.spelled)
            )
        return self._computed[rule]

    def weights(self, rule: RatioRule, /) -> Array:
        """Weight of each of the N sequences: the mean over its tokens, 0 if refused."""
        return np.array([w.mean() if w.size else 0.0 for w in self.token_weights(rule)])

    def weight_moments(self, rule: RatioRule, /) -> tuple[float, float]:
        """``E[w]`` and ``E[w^2]`` over the source's rollouts; refused ones count with 0."""
        weights = self.weights(rule)
        return float(self.source.probs @ weights), float(self.source.probs @ np.square(weights))

    def ess_share(self, rule: RatioRule, /) -> float:
        """Effective sample size for each rollout, ``E[w]^2 / E[w^2]``; 0 if all weights are."""
        first, second = self.weight_moments(rule)
        return first**2 / second if second > 0 else 0.0

    @cached_property
    def _computed(self) -> dict[RatioRule, tuple[Array, ...]]:
        return {}

    @cached_property
    def covered_share(self) -> float:
        """Mass of the receiver's canonical responses that the source has canonical tokens for.

        All of the receiver's canonical share where the source can write whatever it can. This,
        and neither 1 nor the source's share, is the mean of the gated sequence ratio.
        """
        of_source = self.source.canonical_of
        return float(
            sum(
                self.receiver.probs[n]
                for text, n in self.receiver.canonical_of.items()
                if text in of_source and self.source.probs[of_source[text]] > 0
            )
        )

    @cached_property
    def residual(self) -> Array:
        """Error delta of the ungated log-ratio of each of the N sequences, in nats; NaN if refused.

        ``log pi_A(x) - log pi_A(a) - delta_B(x)``: what summing over the tokenisations of the text
        x on either side would change. For a canonical a it is ``delta_A(x) - delta_B(x)``.
        """
        texts = self.source.texts
        own = np.log([self.source.text_probs[text] for text in texts]) - np.log(self.source.probs)
        summed = np.log([self.receiver.text_probs.get(text, np.nan) for text in texts])
        gap = summed - np.where(
            self.representable, canonical_logprobs(self.receiver, texts), np.nan
        )
        return own - gap

    def _weights_of(self, rule: RatioRule, a: int, b: int, /) -> Array:
        """Weights (R+1,) of the receiver's sequence `b` for the source's sequence `a`."""
        canonical = bool(self.source.canonical[a])
        own, sampled = self.receiver.token_logprobs(b), self.source.token_logprobs(a)
        if rule.kind == "block":
            lengths = self.receiver.token_lengths(b), self.source.token_lengths(a)
            blocks = align(*lengths, eos=(True, True))
            log_ratio = block_sum(own, blocks.a) - block_sum(sampled, blocks.b)
            return broadcast(rule.weights(log_ratio, canonical), blocks.a)
        total = float(own.sum() - sampled.sum())
        if rule.kind == "length_normalised":
            total /= max(len(self.source.texts[a]), 1)
        return np.full(own.size, rule.weights(total, canonical))
