"""What an engine is given as the weights of a policy."""

import copy
import warnings

import torch

from mrl.rollout.weights import weights_of


def test_an_engine_gets_every_weight_under_its_name_in_a_checkpoint(make_policy):
    model = make_policy(dtype="float32").model
    found = dict(weights_of(model, 6))
    assert found.keys() == dict(model.named_parameters()).keys()
    assert all(found[name].equal(p) for name, p in model.named_parameters())


def test_an_engine_gets_no_rows_beyond_the_vocabulary(make_policy):
    model = make_policy(vocab_size=40).model
    found = dict(weights_of(model, 6))
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        assert found[name].equal(model.get_parameter(name)[:6])


def test_an_engine_gets_adapters_added_to_the_weights_under_them(make_policy):
    import peft

    plain = make_policy().model
    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    with warnings.catch_warnings():
        # peft 0.21 asks transformers by a name that transformers 5.24 deprecates.
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing`", FutureWarning)
        model = peft.get_peft_model(copy.deepcopy(plain), settings)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    before = copy.deepcopy(model.state_dict())
    found = dict(weights_of(model, 6))
    assert all(tensor.equal(before[name]) for name, tensor in model.state_dict().items())
    merged = dict(model.merge_and_unload().named_parameters())
    assert found.keys() == merged.keys() == dict(plain.named_parameters()).keys()
    for name, tensor in merged.items():
        torch.testing.assert_close(found[name], tensor.detach(), rtol=1e-12, atol=1e-12)
    changed = {name for name, p in plain.named_parameters() if not found[name].equal(p)}
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "down_proj"}
