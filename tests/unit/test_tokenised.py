"""The tokenised bandit against the trainer: weights, credit and gradients of real tokens."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bandit.probes import PRP, SGT, Probe, RatioRule
from mrl.gate.tokenised import TokenPolicy, TokenWorld, Transfer, plots, study, toy_world
from mrl.gate.tokenised.toys import toy_encoder
from mrl.tokens import ContentEncoder, is_canonical, retokenize
from mrl.tokens.recipes import bpe_tokenizer, character_tokenizer
from mrl.update import accumulate

EOS_ID = 1
GROUPS, SIZE = 12, 4


def byte_level(*merges: tuple[str, str]) -> Tokenizer:
    """Bytes of a and of the two bytes of an e with an acute accent, and merges of them."""
    pieces = ["a", "\u00c3", "\u00a9", *("".join(pair) for pair in merges)]
    model = models.BPE({piece: i for i, piece in enumerate(pieces)}, list(merges))
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def policy_of(tokenizer: Any, seed: int = 0, **settings: Any) -> TokenPolicy:
    return TokenPolicy.of(tokenizer, np.random.default_rng(seed), **{"max_bytes": 3, **settings})


class TestPolicy:
    def test_a_listed_sequence_has_the_probability_of_its_steps(self) -> None:
        policy = policy_of(toy_encoder("ab"))
        n = policy.place[tuple(retokenize(b"abc", policy.encoder).tolist())]
        assert policy.texts[n] == b"abc"
        (at,) = policy.sequences[n]
        column = policy.tokens.index(at)
        eos_after_three_bytes = 1.0
        expected = policy.conditional[0, column] * eos_after_three_bytes
        assert policy.probs[n] == pytest.approx(expected, rel=1e-12)

    def test_other_spellings_are_listed_and_not_canonical(self) -> None:
        policy = policy_of(toy_encoder("ab"))
        spellings = [n for n, text in enumerate(policy.texts) if text == b"abc"]
        assert len(spellings) == 3  # abc, ab|c, a|b|c
        flags = [is_canonical(policy.sequences[n], policy.encoder) for n in spellings]
        assert policy.canonical[spellings].tolist() == flags
        assert sum(flags) == 1

    @pytest.mark.parametrize("share", [0.7, 0.9, 0.999])
    def test_the_canonical_share_is_the_one_asked_for(self, share: float) -> None:
        policy = policy_of(toy_encoder("ba"), canonical_share=share)
        assert policy.canonical_share == pytest.approx(share, abs=1e-9)

    def test_characters_have_one_spelling(self) -> None:
        policy = policy_of(toy_encoder("characters"), canonical_share=0.5)
        assert policy.canonical_share == pytest.approx(1.0, abs=1e-12)

    def test_samples_come_as_often_as_they_should(self) -> None:
        policy = policy_of(toy_encoder("ab"), max_bytes=2)
        drawn = policy.sample((40, 1000), np.random.default_rng(3))
        share = np.bincount(drawn.ravel(), minlength=len(policy)) / drawn.size
        error = np.sqrt(policy.probs * (1 - policy.probs) / drawn.size)
        assert (np.abs(share - policy.probs) < 5 * error).all()

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"max_bytes": 0}, "max_bytes=0 is not allowed"),
            ({"max_bytes": 12}, "more than 20000 token sequences.*lower max_bytes"),
            ({"canonical_share": 0.1}, "canonical_share=0.1 cannot be reached.*between"),
        ],
    )
    def test_what_cannot_be_is_said(self, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            policy_of(toy_encoder("ab"), **settings)


@pytest.fixture(scope="module")
def refusing() -> TokenWorld:
    """A byte-level source that can write half a character, and a receiver without a c."""
    accent = ("\u00c3", "\u00a9")
    policies = [
        policy_of(byte_level(accent)),
        policy_of(character_tokenizer("a\u00e9"), 1),
        policy_of(character_tokenizer("a"), 2),
    ]
    return TokenWorld.of(policies, lambda text: float(text.startswith(b"a")))


class TestRefusals:
    def test_bytes_that_are_no_text_are_never_canonical_and_never_arrive(
        self, refusing: TokenWorld
    ) -> None:
        moved = refusing.transfer(0, 1)
        half = np.array(
            [b"\xc3" in text.replace("\u00e9".encode(), b"") for text in moved.source.texts]
        )
        assert half.any()
        assert not moved.source.canonical[half].any()
        assert not moved.representable[half].any()
        assert np.isinf(refusing.delta[0][[refusing.texts.index(b"\xc3")]]).all()

    def test_eta_is_the_mass_of_what_is_refused(self, refusing: TokenWorld) -> None:
        moved = refusing.transfer(1, 2)
        lost = [prob for text, prob in moved.source.text_probs.items() if set(text) - set(b"a")]
        assert moved.refused_share == pytest.approx(sum(lost), rel=1e-12)
        assert 0.1 < moved.refused_share < 0.9
        assert refusing.residual(2, RatioRule()).drop[1].max() == 1.0

    def test_what_the_source_cannot_write_is_missing_from_the_mean_weight(
        self, refusing: TokenWorld
    ) -> None:
        back = refusing.transfer(2, 1)
        assert back.covered_share < back.receiver.canonical_share - 0.1
        assert back.weight_moments(RatioRule())[0] == pytest.approx(back.covered_share, rel=1e-12)

    def test_a_shorter_receiver_is_an_error(self) -> None:
        long, short = (policy_of(toy_encoder("ab"), max_bytes=n) for n in (3, 2))
        with pytest.raises(ValueError, match="up to 3 bytes and the receiver only 2"):
            Transfer.of(long, short)
        with pytest.raises(ValueError, match=r"max_bytes \[2, 3\]"):
            TokenWorld.of([long, short], lambda text: 0.0)


@pytest.fixture(scope="module")
def two_bpes() -> TokenWorld:
    return toy_world(("ab", "ba"), max_bytes=4, canonical_share=0.8)


class TestTrainer:
    """The trainer's credit, weights and token gradient on records drawn from the toy policies."""

    @pytest.mark.parametrize(
        "probe",
        [
            PRP(),
            PRP(cap=1.5),
            PRP(gated=False),
            PRP(ratio="block"),
            PRP(ratio="block", cap=1.2, gated=False),
            PRP(ratio="length_normalised"),
            PRP(ratio="none"),
            SGT(weight=0.3),
        ],
        ids=lambda probe: f"{probe.kind}-{getattr(probe, 'ratio', '')}-{getattr(probe, 'cap', '')}",
    )
    def test_its_gradient_is_that_of_the_tokenised_bandit(
        self, one_thread: None, two_bpes: TokenWorld, probe: Probe
    ) -> None:
        round_ = Round(two_bpes, probe)
        found, expected = round_.trainer_gradient(), round_.expected_gradient()
        scale = np.abs(expected).max()
        assert scale > 1e-3
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-10 * scale)


class Round:
    """One receiver's round of several groups, drawn from two toy policies."""

    def __init__(self, world: TokenWorld, probe: Probe) -> None:
        self.world, self.probe = world, probe
        rng = np.random.default_rng(5)
        shape = (GROUPS, SIZE)
        self.drawn = [policy.sample(shape, rng) for policy in world.policies]
        self.rewards = [world.rewards[world.arms[i][n]] for i, n in enumerate(self.drawn)]

    def trainer_gradient(self) -> np.ndarray:
        from mrl.credit import assign
        from mrl.publish import records_of
        from mrl.rollout import Rollout
        from mrl.rollout.groups import Groups
        from mrl.tasks import Item, Task

        items = [Item.of("a", str(i)) for i in range(GROUPS)]
        reward_of = dict(zip(self.world.texts, self.world.rewards, strict=True))
        task = Task(tuple(items), (), "toy", lambda item, text, finished: reward_of[text])
        sides = [self.trainer_policy(i) for i in range(2)]
        groups = [
            Groups(
                [
                    [
                        Rollout(
                            (*toy.sequences[n], EOS_ID), toy.token_logprobs(n), True, toy.texts[n]
                        )
                        for n in row
                    ]
                    for row in drawn
                ],
                rewards,
                rewards.size,
            )
            for toy, drawn, rewards in zip(
                self.world.policies, self.drawn, self.rewards, strict=True
            )
        ]
        assignment = assign(
            sides[0],
            groups[0],
            records_of(sides[1], groups[1], items, self.probe.needs, task, 0),
            items,
            peers={"peer": SIZE},
            task=task,
            reverify=True,
            codecs={side.name: side.codec for side in sides},
            rng=np.random.default_rng(7),
        )
        accumulate(sides[0], assignment)
        return -sides[0].parameters[0].grad.numpy()

    def trainer_policy(self, i: int) -> Any:
        from mrl.config import ObjectiveConfig, OptimizerConfig, SamplingConfig
        from mrl.policy import Policy

        texts, size = {0: (["ababca", "abcabc", "ab"], 7), 1: (["bacba", "cbba", "bcb"], 8)}[i]
        tokenizer = bpe_tokenizer(texts, size)
        toy = self.world.policies[i]
        assert ContentEncoder.of(tokenizer).table.fingerprint == toy.encoder.table.fingerprint
        return Policy(
            name=("receiver", "peer")[i],
            model=prefix_model(toy),
            tokenizer=tokenizer,
            probe=self.probe,
            sampling=SamplingConfig(max_tokens=8),
            objective=ObjectiveConfig(aggregation="sum"),
            optimizer=OptimizerConfig(kind="sgd"),
            template="plain",
        )

    def expected_gradient(self) -> np.ndarray:
        from bandit.probes import Group

        credit = self.probe.credit(
            Group(*self.rewards, peer_source=[0] * SIZE), np.random.default_rng(7)
        )
        receiver, moved = self.world.policies[0], self.world.transfer(1, 0)
        own = receiver.gradient(self.drawn[0].ravel(), credit.own_weight.ravel())
        peers = self.drawn[1].ravel()
        factors: list[Any] = [0.0] * peers.size
        if credit.peer_ratio is not None:
            weights = moved.token_weights(credit.peer_ratio)
            factors = [weights[n] for n in peers]
        on_peers = [
            pg * factor + nll
            for pg, factor, nll in zip(
                credit.peer_weight.ravel(), factors, credit.nll_weight.ravel(), strict=True
            )
        ]
        return (own + receiver.gradient(moved.spelled[peers], on_peers)) / GROUPS


def prefix_model(toy: TokenPolicy) -> Any:
    """A torch model whose next-token logits are the toy policy's table, after a prompt token."""
    import torch

    class PrefixModel(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            with np.errstate(divide="ignore"):
                table = np.maximum(np.log(toy.conditional), -1e9)
            self.table = torch.nn.Parameter(torch.from_numpy(table))
            self.config = SimpleNamespace(max_position_embeddings=None)
            self.ids = torch.tensor([*toy.tokens, EOS_ID])

        def forward(self, input_ids: Any, logits_to_keep: int, **_: Any) -> SimpleNamespace:
            width = input_ids.shape[1]
            rows = [
                [
                    toy.place.get(tuple(ids[1 : end + 1]), 0)
                    for end in range(width - logits_to_keep, width)
                ]
                for ids in input_ids.tolist()
            ]
            found = self.table[torch.tensor(rows)]
            logits = torch.full((*found.shape[:2], len(toy.encoder.table)), -1e9, dtype=found.dtype)
            return SimpleNamespace(logits=logits.index_copy(2, self.ids, found))

    return PrefixModel()


class TestWorld:
    def test_the_bandit_over_texts_has_all_of_every_policy(self) -> None:
        world = toy_world(("characters", "ab", "ba"), max_bytes=3)
        arms = world.to_world()
        assert (arms.n_policies, arms.n_contexts, arms.n_arms) == (3, 1, len(world.texts))
        np.testing.assert_allclose(arms.probs.sum(-1), 1.0, rtol=1e-12)
        won = {text for text, reward in zip(world.texts, arms.rewards[0], strict=True) if reward}
        assert won == {text for text in world.texts if b"ab" in text}

    @pytest.mark.parametrize(
        ("rule", "message"),
        [
            (RatioRule("block"), "use peer_gradient for 'block'"),
            (RatioRule(cap=5.0, gated=False), r"gated=False and cap=5.0.*a gated rule or no cap"),
        ],
        ids=["block", "capped"],
    )
    def test_weights_that_are_no_numbers_by_text_are_refused(
        self, rule: RatioRule, message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            toy_world(max_bytes=3).residual(0, rule)

    def test_an_unknown_tokenizer_is_named(self) -> None:
        with pytest.raises(ValueError, match="'words' is unknown; expected one of"):
            toy_world(("words",))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def swept() -> pd.DataFrame:
    return study.sweep("max_bytes", (2, 3), seeds=(0, 1), kinds=("ab", "ba"))


class TestFrames:
    def test_a_sweep_has_every_rule_value_and_seed(self, swept: pd.DataFrame) -> None:
        assert len(swept) == len(study.RULES) * 2 * 2
        gated = swept[swept["label"] == "sequence, gated"]
        np.testing.assert_allclose(gated["mean_weight"], gated["canonical_share"], rtol=1e-9)
        none = swept[swept["label"] == "no ratio"]
        np.testing.assert_allclose(none[["mean_weight", "ess"]], 1.0, rtol=1e-12)

    def test_texts_and_rollouts_hold_all_mass(self) -> None:
        world = toy_world(("ab", "ba"), max_bytes=3)
        by_policy = study.texts(world).groupby("policy")[["probability", "canonical"]].sum()
        np.testing.assert_allclose(by_policy["probability"], 1.0, rtol=1e-12)
        np.testing.assert_allclose(by_policy["canonical"], 0.9, rtol=1e-9)
        listed = study.rollouts(world, 0, 1)
        assert listed["probability"].sum() == pytest.approx(1.0)
        off = listed.loc[~listed["canonical"], "probability"].sum()
        assert off == pytest.approx(0.1, rel=1e-9)

    def test_figures_name_what_they_show(self, swept: pd.DataFrame) -> None:
        labels = [
            text.get_text()
            for text in plots.sweep(swept, "max_bytes").axes[2].get_legend().get_texts()
        ]
        assert labels == list(study.RULES)
        figure = plots.residual(study.rollouts(toy_world(max_bytes=3), 1, 0))
        assert figure.axes[0].get_xlabel() == "error of the log-ratio in nats"

    def test_a_frame_without_a_column_is_refused(self, swept: pd.DataFrame) -> None:
        with pytest.raises(ValueError, match=r"lacks columns \['spread'\]"):
            plots.sweep(swept, "spread")
        with pytest.raises(ValueError, match=r"lacks columns \['residual'"):
            plots.residual(swept)
