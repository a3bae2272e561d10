"""The vLLM engine: the contract of all engines, and what it must refuse or notice."""

import importlib.util
import warnings
from typing import Any

import pytest
import torch
from engine_contract import MODEL, EngineContract

import mrl.rollout.vllm as under_test
from mrl.config import VllmEngineConfig
from mrl.errors import InputError, RunError
from mrl.tasks import Item

CONFIG = VllmEngineConfig(kind="vllm", eager=True, kv_cache_gib=0.05)
ITEMS = [Item.of("01=", "1"), Item.of("1+1+1=", "1")]


class TestVllmEngine(EngineContract):
    config = CONFIG
    tolerance = 1e-4


@pytest.fixture
def serve_policy(make_policy: Any) -> Any:
    opened = []

    def make(**settings: Any) -> Any:
        engine = CONFIG.model_copy(update=settings.pop("engine", {}))
        policy = make_policy(**({"dtype": "float32"} | MODEL | settings), engine=engine)
        opened.append(policy)
        return policy

    yield make
    for policy in opened:
        policy.close()


def change_weights(policy: Any) -> None:
    """Let every token mean another one."""
    for ends in (policy.model.get_input_embeddings(), policy.model.get_output_embeddings()):
        with torch.no_grad():
            ends.weight.copy_(ends.weight.roll(1, 0))


def test_weights_that_did_not_arrive_are_noticed(serve_policy, monkeypatch):
    policy = serve_policy()
    policy.generate(ITEMS, 2, 0)
    change_weights(policy)
    monkeypatch.setattr(under_test, "weights_of", lambda *_: iter(()))
    with pytest.raises(RunError, match=r"differ from the trainer's by .*max_logprob_gap=0.1"):
        policy.sync()
    with pytest.raises(RunError, match="closed"):
        policy.generate(ITEMS, 2, 0)


@pytest.fixture
def packing(monkeypatch: Any) -> None:
    """Let the kernels keep packed copies of weights, as they do on CPUs with matrix units."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how vLLM uses other libraries
        from vllm.model_executor.layers import utils

    dispatch = utils.dispatch_cpu_unquantized_gemm

    def pack(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        dispatch(layer, remove_weight)
        if not weight.is_meta and weight.ndim == 2:
            packed = weight.detach().clone()
            layer.cpu_linear = lambda x, _, bias: torch.nn.functional.linear(x, packed, bias)

    monkeypatch.setattr(utils, "dispatch_cpu_unquantized_gemm", pack)


def test_an_output_layer_that_kept_its_old_packed_weights_is_noticed(
    serve_policy, packing, monkeypatch
):
    policy = serve_policy(tie_word_embeddings=True)
    policy.generate(ITEMS, 2, 0)
    change_weights(policy)
    assert policy.sync()["engine_gap"] < 1e-4
    change_weights(policy)
    monkeypatch.setattr(under_test, "_repack_tied", lambda model: None)
    with pytest.raises(RunError, match="differ from the trainer's"):
        policy.sync()


def test_a_failed_update_closes_the_engine(serve_policy, monkeypatch):
    policy = serve_policy()
    policy.generate(ITEMS, 2, 0)
    odd = [("model.embed_tokens.weight", torch.zeros(3, 3))]
    monkeypatch.setattr(under_test, "weights_of", lambda *_: iter(odd))
    with pytest.raises(RunError, match="did not take over the weights"):
        policy.sync()
    with pytest.raises(RunError, match="closed"):
        policy.generate(ITEMS, 2, 0)


def test_weights_without_finite_numbers_stop_the_run(serve_policy):
    policy = serve_policy()
    policy.generate(ITEMS, 2, 0)
    with torch.no_grad():
        policy.parameters[0].fill_(torch.nan)
    with pytest.raises(RunError, match="by nan nats a token"):
        policy.sync()


def test_a_sync_before_the_first_response_starts_no_engine(serve_policy):
    policy = serve_policy()
    assert policy.sync() == {}
    change_weights(policy)
    policy.generate(ITEMS, 2, 0)  # takes the weights as they are now, and checks them
    assert policy.sync()["engine_gap"] < 1e-4


def test_two_engines_of_one_process_keep_their_own_weights(serve_policy):
    one, two = serve_policy(seed=0), serve_policy(seed=1)
    first = [r.ids for group in one.generate(ITEMS, 8, 0) for r in group]
    other = [r.ids for group in two.generate(ITEMS, 8, 0) for r in group]
    assert first != other
    assert one.sync()["engine_gap"] < 1e-4
    assert [r.ids for group in one.generate(ITEMS, 8, 0) for r in group] == first


def test_a_prompt_beyond_the_engines_length_is_named(serve_policy):
    policy = serve_policy(engine={"max_model_len": 8}, sampling={"max_tokens": 4})
    with pytest.raises(InputError, match=r"6 tokens.*max_tokens=4.*raise it to at least 10"):
        policy.generate(ITEMS, 2, 0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dtype": "float64"}, "no float64; expected .*float32"),
        ({"sampling": {"temperature": 0.001}}, "no temperature below 0.01"),
    ],
)
def test_what_vllm_cannot_do_is_refused_before_it_starts(serve_policy, settings, message):
    with pytest.raises(InputError, match=message):
        serve_policy(**settings)


def test_what_vllm_fails_at_is_told_with_the_way_out(serve_policy):
    policy = serve_policy(hidden_size=48)
    with pytest.raises(RunError, match=r"head_dim=24.*engine.kind=hf"):
        policy.generate(ITEMS, 2, 0)


def test_an_architecture_that_vllm_does_not_know_is_an_input_error(serve_policy):
    policy = serve_policy()
    policy.model.config.architectures = ["UnheardOfForCausalLM"]
    policy.model.config.model_type = "unheard-of"
    with pytest.raises(InputError, match="does not start with a model of type 'unheard-of'"):
        policy.generate(ITEMS, 2, 0)


def test_without_the_package_the_way_out_is_named(serve_policy, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match="pip install 'mutual-rl\\[vllm\\]'"):
        serve_policy()
