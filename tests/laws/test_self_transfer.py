"""Importance weights between tokenisations of text, on a language model that can be any table.

The receiver's weight of a peer's rollout is formed by the trainer's own code. Over the peer's
samples its gated mean is the receiver's canonical share: 1 times the texts that it would write
in canonical tokens. Without the gate the mean counts tokenisations.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import real_tokenizers
import torch

from bandit.probes import PRP
from mrl.config import (
    ObjectiveConfig,
    OptimizerConfig,
    PolicyConfig,
    PretrainedModel,
    SamplingConfig,
)
from mrl.credit import assign
from mrl.models import load_model, load_tokenizer
from mrl.policy import Policy
from mrl.publish import records_of, residual_of
from mrl.rollout.groups import Groups
from mrl.tasks import Item, Task
from mrl.tokens.recipes import bpe_tokenizer
from mrl.update import accumulate

ITEM = Item.of("a", "1")
TASK = Task((ITEM,), (ITEM,), "any", lambda item, response, finished: 1.0)
SAMPLES = 3000


class Bigram(torch.nn.Module):
    """A language model whose next-token logits are the row of the current token."""

    def __init__(self, logits: np.ndarray) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.from_numpy(logits))
        self.config = SimpleNamespace(max_position_embeddings=None)

    def forward(
        self, input_ids: torch.Tensor, logits_to_keep: int = 0, **_: Any
    ) -> SimpleNamespace:
        return SimpleNamespace(logits=self.table[input_ids[:, -logits_to_keep:]], cache=None)


@pytest.fixture(scope="module")
def byte_level() -> Any:
    return bpe_tokenizer(["ab aba abab ba ab"], 262, byte_level=True)


def policy(name: str, tokenizer: Any, *, seed: int, shift: float = 0.0, **sampling: Any) -> Policy:
    """Random logits on the tokens of letters; `shift` favours the end: short texts."""
    vocabulary = tokenizer.get_vocab()
    spellings = [piece for piece in vocabulary if set(piece) <= set("ab")]
    tokens = sorted(vocabulary[piece] for piece in spellings)
    logits = np.full((len(tokenizer), len(tokenizer)), -1e9)
    rng = np.random.default_rng(seed)
    for token in tokens:
        logits[token, [*tokens, tokenizer.eos_token_id]] = rng.normal(size=len(tokens) + 1)
        logits[token, tokenizer.eos_token_id] += shift
    return Policy(
        name=name,
        model=Bigram(logits),
        tokenizer=tokenizer,
        probe=PRP(scale="none", gated=sampling.pop("gated", True)),
        sampling=SamplingConfig(**({"max_tokens": 5} | sampling)),
        objective=ObjectiveConfig(),
        optimizer=OptimizerConfig(kind="sgd"),
        template="plain",
    )


def weights(receiver: Policy, source: Policy, seed: int, samples: int = SAMPLES) -> np.ndarray:
    """Weights of the source's rollouts in the receiver's loss; what the gate takes out has 0."""
    rewards = (np.arange(samples)[None] % 2).astype(float)
    theirs = Groups(source.generate([ITEM], samples, seed), rewards, samples)
    own = Groups(receiver.generate([ITEM], 2, seed + 1), np.array([[0.0, 1.0]]), 2)
    found = assign(
        receiver,
        own,
        records_of(source, theirs, [ITEM], frozenset({"rollout"}), TASK, 0),
        [ITEM],
        peers={source.name: samples},
        task=TASK,
        reverify=False,
        codecs={},
        rng=np.random.default_rng(0),
    )
    _, results = accumulate(receiver, found)
    formed = [weight for result in results for _, weight in result.ratios]
    return np.array(formed + [0.0] * len(found.gated))


def canonical(one: Policy, seed: int, samples: int = SAMPLES) -> np.ndarray:
    (group,) = one.generate([ITEM], samples, seed)
    return np.array(one.canonical(group), dtype=float)


def standard_error(*samples: np.ndarray) -> float:
    return float(np.sqrt(sum(sample.var(ddof=1) / len(sample) for sample in samples)))


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.7}, {"top_p": 0.8}], ids=str)
def test_self_transfer_has_the_canonical_share_as_its_mean_weight(byte_level, sampling, one_thread):
    me = policy("a", byte_level, seed=1, **sampling)
    gated, share = weights(me, me, 10), canonical(me, 20)
    assert 0.2 < share.mean() < 0.95
    assert abs(gated.mean() - share.mean()) < 3 * standard_error(gated, share)
    np.testing.assert_allclose(np.unique(gated.round(9)), [0.0, 1.0])


@pytest.mark.slow
def test_self_transfer_holds_on_a_real_language_model(one_thread):
    path = str(real_tokenizers.model("smollm2"))
    config = PolicyConfig(name="a", model=PretrainedModel(kind="pretrained", path=path))
    tokenizer = load_tokenizer(config)
    me = Policy(
        name="a",
        model=load_model(config, tokenizer, seed=0),
        tokenizer=tokenizer,
        probe=PRP(scale="none"),
        sampling=SamplingConfig(max_tokens=12),
        objective=ObjectiveConfig(),
        optimizer=OptimizerConfig(kind="sgd"),
        template="plain",
    )
    gated, share = weights(me, me, 10, samples=64), canonical(me, 20, samples=64)
    assert 0.5 < share.mean() < 1
    assert abs(gated.mean() - share.mean()) < 3 * standard_error(gated, share)
    assert 0 < (gated == 0).mean() < 0.5
    # sampling with a cache and scoring without one round differently
    np.testing.assert_allclose(gated[gated > 0], 1.0, atol=1e-3)


def test_without_the_gate_the_mean_weight_counts_tokenisations(byte_level, one_thread):
    me = policy("a", byte_level, seed=1, gated=False)
    ungated = weights(me, me, 10)
    assert abs(ungated.mean() - 1) > 3 * standard_error(ungated)
    assert ungated.max() > 10


def test_the_mean_gated_weight_is_the_receivers_canonical_share_not_the_sources(
    byte_level, one_thread
):
    source = policy("a", byte_level, seed=1)
    receiver = policy("b", byte_level, seed=1, shift=1.0)
    gated = weights(receiver, source, 10)
    mine, theirs = canonical(receiver, 20), canonical(source, 30)
    assert abs(gated.mean() - mine.mean()) < 3 * standard_error(gated, mine)
    assert abs(gated.mean() - theirs.mean()) > 3 * standard_error(gated, theirs)


def test_the_residual_explains_what_the_gate_takes_out(byte_level, one_thread):
    me = policy("a", byte_level, seed=1, gated=False)
    rewards = (np.arange(SAMPLES)[None] % 2).astype(float)
    theirs = Groups(me.generate([ITEM], SAMPLES, 10), rewards, SAMPLES)
    records = records_of(me, theirs, [ITEM], frozenset({"rollout"}), TASK, 0)
    figures = residual_of(me, records, [ITEM], SAMPLES)
    # self-transfer: the log of the ungated weight is -r
    found = np.abs(np.log(weights(me, me, 10)))
    assert figures["residual_rollouts"] == SAMPLES
    assert figures["canonical_share"] == pytest.approx(np.mean([one.canonical for one in records]))
    for level in (50, 75, 90, 99):
        expected = np.quantile(found, level / 100)
        assert figures[f"residual_q{level}"] == pytest.approx(expected, abs=1e-9)
    assert figures["residual_above_5_nats"] == pytest.approx(np.mean(found > 5))
    assert figures["residual_q90"] > 0
