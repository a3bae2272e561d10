"""What every engine must do, against plain unpadded forward passes of the same model."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from mrl.config import EngineConfig
from mrl.rollout import Decoding, Engine, Sampled, TokenIds
from mrl.rollout.hf import nucleus, scaled_logprobs
from mrl.rollout.opening import open_engine

EOS, PAD, VOCABULARY = 1, 0, 6
PROMPTS: list[TokenIds] = [(2, 3, 5), (3,), (2, 2, 3, 3, 5)]
# Longer than any block of a prefix cache.
LONG = tuple(int(i) for i in np.random.default_rng(0).integers(2, VOCABULARY, 200))
# Heads of a size that every kernel knows; weights far from uniform, so that no two tokens tie.
MODEL = {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.25,
}


def distribution(
    model: Any,
    prompt: TokenIds,
    response: TokenIds,
    temperature: float = 1.0,
    top_p: float = 1.0,
    vocabulary: int | None = None,
) -> torch.Tensor:
    """Log-probabilities of all tokens at each place of a response, (R, V): one pass, no cache."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([[*prompt, *response]])).logits[0]
    places = logits[len(prompt) - 1 : len(prompt) - 1 + len(response)]
    return nucleus(scaled_logprobs(places, temperature, vocabulary), top_p)


def forward(model: Any, prompt: TokenIds, response: TokenIds, **settings: Any) -> Any:
    """Log-probabilities of a response."""
    logp = distribution(model, prompt, response, **settings)
    return logp.gather(-1, torch.tensor(response)[:, None])[:, 0].double().numpy()


def everything(groups: Sequence[Sequence[Sampled]]) -> list[tuple[Any, ...]]:
    return [(one.ids, one.finished, one.logprobs.tolist()) for group in groups for one in group]


class EngineContract:
    """Inherit with a `config` and the `tolerance` of log-probabilities in float32."""

    config: EngineConfig
    tolerance: float

    @pytest.fixture
    def model(self, make_policy: Callable[..., Any]) -> Any:
        return make_policy(dtype="float32", **MODEL).model

    @pytest.fixture
    def serve(self) -> Iterator[Callable[..., Engine]]:
        opened: list[Engine] = []

        def make(model: Any, /, **settings: Any) -> Engine:
            defaults = {
                "max_tokens": 6,
                "eos_id": EOS,
                "pad_id": PAD,
                "vocabulary": VOCABULARY,
                "batch": 64,
            }
            decoding = Decoding(**(defaults | settings))
            engine = open_engine(
                self.config,
                model,
                decoding,
                lambda pairs: [
                    forward(
                        model,
                        *pair,
                        temperature=decoding.temperature,
                        vocabulary=decoding.vocabulary,
                    )
                    for pair in pairs
                ],
            )
            opened.append(engine)
            return engine

        yield make
        for engine in opened:
            engine.close()

    def assert_scored(
        self, model: Any, prompts: Sequence[TokenIds], groups: Any, **settings: Any
    ) -> None:
        """Group i answers prompt i, with the log-probabilities of a plain forward pass."""
        for prompt, group in zip(prompts, groups, strict=True):
            for one in group:
                expected = forward(model, prompt, one.ids, **settings)
                np.testing.assert_allclose(one.logprobs, expected, rtol=0, atol=self.tolerance)

    @pytest.mark.parametrize(("temperature", "top_p"), [(0.7, 1.0), (1.0, 0.8), (1.4, 0.8)])
    def test_logprobs_are_those_of_the_sampling_distribution(
        self, model, serve, temperature, top_p
    ):
        engine = serve(model, temperature=temperature, top_p=top_p)
        groups = engine.generate(PROMPTS, 8, 0)
        assert [len(group) for group in groups] == [8] * len(PROMPTS)
        self.assert_scored(model, PROMPTS, groups, temperature=temperature, top_p=top_p)

    @pytest.mark.parametrize(("temperature", "top_p"), [(0.7, 1.0), (1.0, 0.8)])
    def test_samples_follow_the_sampling_distribution(self, model, serve, temperature, top_p):
        engine = serve(model, max_tokens=1, temperature=temperature, top_p=top_p, batch=512)
        (group,) = engine.generate(PROMPTS[:1], 2000, 11)
        counts = np.bincount([one.ids[0] for one in group], minlength=VOCABULARY)
        expected = distribution(model, PROMPTS[0], (0,), temperature, top_p)[0].exp().numpy()
        kept = expected > 0
        assert max(expected) > 2 / VOCABULARY  # a distribution that uniform draws would fail
        assert kept.all() == (top_p == 1)
        assert not counts[~kept].any()
        scaled = expected[kept] / expected[kept].sum(dtype=np.float64)
        assert chisquare(counts[kept], 2000 * scaled).pvalue > 1e-3

    def test_responses_end_at_the_first_end_token_or_at_full_length(self, model, serve):
        groups = serve(model, max_tokens=8).generate(PROMPTS, 20, 0)
        ones = [one for group in groups for one in group]
        assert {one.finished for one in ones} == {True, False}
        for one in ones:
            assert len(one.ids) == len(one.logprobs)
            assert one.ids.count(EOS) == one.finished
            assert one.ids[-1] == EOS if one.finished else len(one.ids) == 8

    def test_an_empty_response_is_its_end_token(self, model, serve):
        groups = serve(model, max_tokens=1).generate(PROMPTS, 60, 0)
        ones = [one for group in groups for one in group if one.ids == (EOS,)]
        assert ones
        assert all(one.finished and len(one.logprobs) == 1 for one in ones)

    def test_without_an_end_token_every_response_has_full_length(self, model, serve):
        groups = serve(model, eos_id=None, max_tokens=5).generate(PROMPTS, 8, 0)
        assert {(len(one.ids), one.finished) for group in groups for one in group} == {(5, False)}
        assert any(EOS in one.ids for group in groups for one in group)

    def test_the_seed_fixes_every_sample(self, model, serve):
        engine = serve(model)
        first = everything(engine.generate([LONG, *PROMPTS], 8, 5))
        other = everything(engine.generate([LONG, *PROMPTS], 8, 6))
        assert everything(engine.generate([LONG, *PROMPTS], 8, 5)) == first != other
        assert len(set(map(str, first))) > 8  # the n responses to a prompt are separate draws

    def test_a_small_batch_holds_every_prompt(self, model, serve):
        groups = serve(model, batch=1).generate(PROMPTS, 4, 0)
        assert [len(group) for group in groups] == [4] * len(PROMPTS)
        self.assert_scored(model, PROMPTS, groups)

    def test_no_prompts_give_no_groups(self, model, serve):
        assert serve(model).generate([], 4, 0) == []

    def test_ids_beyond_the_vocabulary_are_neither_sampled_nor_summed(self, make_policy, serve):
        model = make_policy(dtype="float32", vocab_size=40, **MODEL).model
        groups = serve(model, max_tokens=3).generate(PROMPTS, 50, 0)
        assert max(token for group in groups for one in group for token in one.ids) < VOCABULARY
        self.assert_scored(model, PROMPTS, groups, vocabulary=VOCABULARY)

    @pytest.mark.parametrize("tied", [False, True])
    def test_synced_weights_are_used_at_once(self, make_policy, serve, tied):
        model = make_policy(dtype="float32", tie_word_embeddings=tied, **MODEL).model
        engine = serve(model)
        prompts = [LONG, *PROMPTS]
        for factor in (1.0, 1.1, 0.8):
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(factor)
            figures = engine.sync(model)
            assert all(0 <= value < self.tolerance for value in figures.values())
            groups = engine.generate(prompts, 4, 1)
            self.assert_scored(model, prompts, groups)

    def test_a_token_without_a_probability_has_the_logprob_nan(self, model, serve):
        with torch.no_grad():
            model.get_input_embeddings().weight[4] = torch.nan
        broken, sound = serve(model, max_tokens=1).generate([(2, 4, 3), (2, 3, 5)], 4, 0)
        assert all(np.isnan(one.logprobs).all() for one in broken)
        assert all(0 <= one.ids[0] < VOCABULARY for one in broken)
        self.assert_scored(model, [(2, 3, 5)], [sound])

    def test_the_process_is_left_as_it_was(self, model, serve):
        engine = serve(model)
        before = torch.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()
        numpy_before = np.random.get_state()[1].tolist()  # noqa: NPY002
        set_num_threads = torch.set_num_threads
        engine.generate(PROMPTS, 4, 0)
        engine.sync(model)
        engine.generate(PROMPTS, 4, 0)
        assert model.training
        assert torch.equal(torch.get_rng_state(), before[0])
        assert (torch.get_num_threads(), torch.get_default_dtype()) == before[1:]
        assert np.random.get_state()[1].tolist() == numpy_before  # noqa: NPY002
        assert torch.set_num_threads is set_num_threads
