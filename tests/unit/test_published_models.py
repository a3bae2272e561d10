"""Taking published models out of packages: conversion, folder, and what is missing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import real_tokenizers

from mrl import published as module
from mrl.config import PolicyConfig
from mrl.errors import InputError, PackageMissing
from mrl.models import load_model, load_tokenizer
from mrl.published import main, model_folder, published_tokenizer
from mrl.tokens import TokenBytes
from mrl.tokens import published as tokenizers
from mrl.tokens._spelling import byte_alphabet
from mrl.tokens.published import Published
from mrl.tokens.published import load as load_published

torch = pytest.importorskip("torch")
gguf = pytest.importorskip("gguf")

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"
WIDTH = 32


def write_gguf(path: Path) -> np.ndarray:
    """A llama of one layer, with SmolLM2's kind of tokenizer; gives its embeddings."""
    rng = np.random.default_rng(0)
    pieces = [*CONTROL, *byte_alphabet(), "th"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(WIDTH)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_vocab_size(len(pieces))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(pieces)
    writer.add_token_types([3] * len(CONTROL) + [1] * (len(pieces) - len(CONTROL)))
    writer.add_token_merges(["t h"])
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(2)
    writer.add_chat_template(TEMPLATE)
    embeddings = rng.normal(size=(len(pieces), WIDTH)).astype(np.float32)
    writer.add_tensor("token_embd.weight", embeddings)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, np.float32))
    for norm in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{norm}.weight", np.ones(WIDTH, np.float32))
    for part in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        tensor = rng.normal(size=(WIDTH, WIDTH)).astype(np.float32)
        writer.add_tensor(f"blk.0.{part}.weight", tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return embeddings


@pytest.fixture
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A package `tiny_lm` of version 1.0 that carries a model, published as ``tiny``."""
    site = tmp_path / "site"
    (site / "tiny_lm").mkdir(parents=True)
    (site / "tiny_lm-1.0.dist-info").mkdir()
    about = "Metadata-Version: 2.1\nName: tiny-lm\nVersion: 1.0\n"
    (site / "tiny_lm-1.0.dist-info" / "METADATA").write_text(about)
    embeddings = write_gguf(site / "tiny_lm" / "tiny.gguf")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.chdir(tmp_path)
    carried = Published("tiny-lm", "1.0", "tiny_lm/tiny.gguf", tokenizers.smollm2)
    model = Published("tiny-lm", "1.0", "tiny_lm/tiny.gguf", module._from_gguf)
    monkeypatch.setattr(tokenizers, "TOKENIZERS", {"tiny": carried})
    monkeypatch.setattr(module, "MODELS", {"tiny": model})
    monkeypatch.setattr("mrl.models.MODELS", {"tiny": model})
    return SimpleNamespace(embeddings=embeddings, cache=tmp_path / module.CACHE, model=model)


def policy(path: str, dtype: str = "float32") -> PolicyConfig:
    model = {"kind": "pretrained", "path": path, "dtype": dtype}
    return PolicyConfig.model_validate({"name": "a", "model": model})


def test_a_policy_names_a_published_model_where_it_would_name_a_folder(tiny):
    tokenizer = load_tokenizer(policy("tiny"))
    model = load_model(policy("tiny"), tokenizer, seed=0)
    assert model.dtype == torch.float32
    found = model.get_input_embeddings().weight.detach().numpy()
    expected = torch.tensor(tiny.embeddings).bfloat16().float().numpy()
    np.testing.assert_array_equal(found, expected)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert (tokenizer.eos_token, tokenizer.pad_token) == ("<|im_end|>", "<|im_end|>")
    assert load_model(policy("tiny", "bfloat16"), tokenizer, seed=0).dtype == torch.bfloat16


def test_a_folder_of_that_name_goes_first(tiny, tmp_path):
    (tmp_path / "tiny").mkdir()
    with pytest.raises(InputError, match="no tokenizer could be loaded from 'tiny'"):
        load_tokenizer(policy("tiny"))


def test_the_folders_tokenizer_is_the_published_one_with_the_chat_template(tiny):
    from transformers import AutoTokenizer

    kept = AutoTokenizer.from_pretrained(model_folder("tiny"))
    alone = published_tokenizer("tiny")
    fingerprints = {TokenBytes.of(one).fingerprint for one in (kept, alone, load_published("tiny"))}
    assert len(fingerprints) == 1
    for one in (kept, alone):
        shown = one.apply_chat_template([{"role": "user", "content": "the"}], tokenize=False)
        assert shown == "<|im_start|>the<|im_end|>"
        assert one.eos_token_id == 2


def test_a_model_is_converted_once(tiny, monkeypatch):
    first = model_folder("tiny")
    assert first.parent == module.CACHE
    assert first.name.startswith("tiny-1.0-")
    monkeypatch.setattr(
        module, "MODELS", {"tiny": Published("tiny-lm", "1.0", "tiny_lm/tiny.gguf", pytest.fail)}
    )
    assert model_folder("tiny") == first


def test_a_conversion_that_breaks_off_leaves_nothing(tiny, monkeypatch):
    def breaks(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "published_tokenizer", breaks)  # weights are written by then
    with pytest.raises(KeyboardInterrupt):
        model_folder("tiny")
    assert list(tiny.cache.iterdir()) == []


def test_without_the_library_that_reads_it_the_way_out_is_named(tiny, monkeypatch):
    found = module.importlib.util.find_spec
    monkeypatch.setattr(
        module.importlib.util, "find_spec", lambda name: None if name == "gguf" else found(name)
    )
    with pytest.raises(PackageMissing, match=r"pip install gguf=="):
        model_folder("tiny")


def test_an_unknown_model_is_an_error_that_lists_those_there_are():
    with pytest.raises(InputError, match=r"'gpt5' is not known; expected one of \['smollm2'\]"):
        model_folder("gpt5")


def test_the_command_lists_the_models(capsys):
    main([])
    assert capsys.readouterr().out.startswith("smollm2 ")


@pytest.mark.slow
def test_smollm2_knows_english():
    from transformers import AutoModelForCausalLM

    folder = real_tokenizers.model("smollm2")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokenizer = published_tokenizer("smollm2")
    assert sum(one.numel() for one in model.parameters()) == 134_515_008
    ids = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        logits = model(ids).logits[0, -1]
    assert tokenizer.decode([int(logits.argmax())]) == " Paris"
