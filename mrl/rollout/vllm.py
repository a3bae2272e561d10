"""Sampling with vLLM, in the trainer's process and with weights of its own.

The engine starts empty: at first use, and after each update, it takes the weights over from the
trainer's model in place, tensor by tensor, and then shows on a few responses that it gives them the
log-probabilities that the trainer gives them. It runs on one device, without worker processes, so
no tensor is copied through a pipe or a file. Source: docs/engines.md.
"""

import copy
import gc
import importlib.util
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mrl.config import VllmEngineConfig
from mrl.errors import InputError, RunError
from mrl.rollout import Decoding, Sampled, Scorer, TokenIds
from mrl.rollout.guests import quiet_and_in_process, undisturbed
from mrl.rollout.weights import weights_of
from mrl.seeds import derive

DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}
# vLLM raises any lower temperature to this one.
LOWEST_TEMPERATURE = 0.01
# Responses that a weight update is checked on: to so many prompts, so many each, so long at most.
CHECKED_PROMPTS, CHECKED_SAMPLES, CHECKED_TOKENS = 4, 4, 64


class VllmEngine:
    """Samples with vLLM on one device.

    vLLM keeps one set of process groups: when one engine of a process closes, all do.

    Parameters
    ----------
    config : VllmEngineConfig
        Settings.
    model : torch.nn.Module
        The trainer's model, of the transformers library.
    decoding : Decoding
        Where to sample from.
    score : Scorer
        The trainer's log-probabilities, which the engine's are held against.

    Raises
    ------
    InputError
        If vLLM is not installed, or it cannot run this model or distribution.
    """

    def __init__(
        self, config: VllmEngineConfig, model: Any, decoding: Decoding, score: Scorer, /
    ) -> None:
        _check_supported(model, decoding)
        self.config = config
        self.model = model
        self.decoding = decoding
        self.score = score
        self._llm: Any = None
        self._closed = False
        self._probes: Sequence[TokenIds] = ()

    def generate(self, prompts: Sequence[TokenIds], n: int, seed: int, /) -> list[list[Sampled]]:
        """Sample `n` responses for each prompt; the first call starts the engine.

        Raises
        ------
        InputError
            If a prompt and the longest response exceed `max_model_len`, or vLLM does not start.
        RunError
            If the engine is closed, or its weights differ from the trainer's.
        """
        if not prompts:
            return []
        if self._closed:
            raise RunError("the vLLM engine is closed; start the run again with --resume")
        self._check_lengths(prompts)
        self._probes = prompts[:CHECKED_PROMPTS]
        if self._llm is None:
            self._start()
        return self._sample(prompts, n, seed, self.decoding)

    def sync(self, model: Any, /) -> dict[str, float]:
        """Take over the weights of `model`, unless no response was asked for yet.

        Returns
        -------
        dict
            ``engine_gap``: mean absolute difference of the log-probabilities of engine and
            trainer, in nats a token; ``engine_gap_max``: the largest.

        Raises
        ------
        RunError
            If vLLM refused the weights or samples from others; the engine is then closed.
        """
        self.model = model
        return {} if self._llm is None else self._load()

    def close(self) -> None:
        """Stop vLLM and free its memory."""
        self._closed = True
        if self._llm is None:
            return
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _start(self) -> None:
        settings = copy.deepcopy(self.model.config)
        settings.get_text_config().vocab_size = self.decoding.vocabulary
        with tempfile.TemporaryDirectory() as folder, undisturbed(), quiet_and_in_process():
            settings.save_pretrained(folder)
            try:
                import vllm

                self._llm = vllm.LLM(
                    folder,
                    skip_tokenizer_init=True,
                    load_format="dummy",
                    dtype=DTYPES[self.model.dtype],
                    logprobs_mode="processed_logprobs",
                    max_model_len=self.config.max_model_len,
                    max_num_seqs=self.decoding.batch,
                    kv_cache_memory_bytes=int(self.config.kv_cache_gib * 2**30),
                    # With the cache's size given, no more than a bound on free memory at start.
                    gpu_memory_utilization=0.01,
                    enforce_eager=self.config.eager,
                    generation_config="vllm",
                )
            except Exception as error:  # vLLM's own, and whatever its parts raise
                raise InputError(
                    f"vLLM does not start with a model of type {settings.model_type!r}: {error}; "
                    "expected an architecture that vLLM knows and enough memory "
                    "(engine.kv_cache_gib, engine.max_model_len)"
                ) from error
        self._load()

    def _load(self) -> dict[str, float]:
        weights = weights_of(self.model, self.decoding.vocabulary)
        try:
            self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": weights})
            self._llm.apply_model(_repack_tied)
        except Exception as error:
            self.close()
            raise RunError(
                f"vLLM did not take over the weights ({type(error).__name__}: {error}) and cannot "
                "be used any more; use engine.kind=hf, or remove the cause and continue with "
                "--resume"
            ) from error
        return self._check_weights()

    def _check_weights(self) -> dict[str, float]:
        # Not truncated: where one token is the whole nucleus, any weights agree.
        tokens = min(self.decoding.max_tokens, CHECKED_TOKENS)
        decoding = replace(self.decoding, top_p=1.0, max_tokens=tokens)
        groups = self._sample(self._probes, CHECKED_SAMPLES, 0, decoding)
        pairs = [
            (prompt, one.ids)
            for prompt, group in zip(self._probes, groups, strict=True)
            for one in group
        ]
        engine = np.concatenate([one.logprobs for group in groups for one in group])
        gaps = np.abs(engine - np.concatenate(self.score(pairs)))
        gaps = gaps[np.isfinite(gaps)]  # single missing log-probabilities leave the loss too
        mean = float(gaps.mean()) if len(gaps) else float("nan")
        if not mean <= self.config.max_logprob_gap:
            self.close()
            raise RunError(
                f"after a weight update vLLM's log-probabilities differ from the trainer's by "
                f"{mean:.3g} nats a token on average (over {len(gaps)} tokens); expected at most "
                f"engine.max_logprob_gap={self.config.max_logprob_gap}. Either the engine does not "
                "have the trainer's weights, or it computes this architecture differently: use "
                "engine.kind=hf, or raise the bound if the difference is one of rounding"
            )
        return {"engine_gap": mean, "engine_gap_max": float(gaps.max())}

    def _sample(
        self, prompts: Sequence[TokenIds], n: int, seed: int, decoding: Decoding, /
    ) -> list[list[Sampled]]:
        import vllm

        stop = [] if decoding.eos_id is None else [decoding.eos_id]
        params = [
            vllm.SamplingParams(
                n=n,
                # Response i of the n has seed + i.
                seed=derive(seed, i) >> 1,
                max_tokens=decoding.max_tokens,
                temperature=decoding.temperature,
                top_p=decoding.top_p,
                stop_token_ids=stop,
                ignore_eos=True,  # the model's configuration may name others than the policy's
                logprobs=0,
                flat_logprobs=True,
                detokenize=False,
            )
            for i in range(len(prompts))
        ]
        requests = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
        try:
            with undisturbed():
                # What is cached stems from other weights, or would let results depend on what
                # was asked before.
                if not self._llm.reset_prefix_cache():
                    raise RuntimeError("its prefix cache cannot be emptied")
                outputs = self._llm.generate(requests, params, use_tqdm=False)
        except Exception as error:
            self.close()
            raise RunError(
                f"vLLM failed while it generated ({type(error).__name__}: {error}); use "
                "engine.kind=hf, or remove the cause and continue with --resume"
            ) from error
        return [[self._sampled(one) for one in output.outputs] for output in outputs]

    def _sampled(self, completion: Any, /) -> Sampled:
        ids = tuple(completion.token_ids)
        logprobs = np.array(completion.logprobs.logprobs, dtype=np.float64)
        if completion.finish_reason not in ("stop", "length"):
            raise RunError(
                f"vLLM ended a response with reason {completion.finish_reason!r}; expected 'stop' "
                "or 'length'"
            )
        return Sampled(ids, logprobs, completion.finish_reason == "stop")

    def _check_lengths(self, prompts: Sequence[TokenIds], /) -> None:
        limit = self.config.max_model_len
        longest = max(map(len, prompts)) + self.decoding.max_tokens
        if limit is not None and longest > limit:
            raise InputError(
                f"the longest prompt has {longest - self.decoding.max_tokens} tokens; with "
                f"sampling.max_tokens={self.decoding.max_tokens} that exceeds "
                f"engine.max_model_len={limit}; raise it to at least {longest}"
            )


def _check_supported(model: Any, decoding: Decoding, /) -> None:
    if importlib.util.find_spec("vllm") is None:
        raise InputError(
            "engine.kind=vllm needs the package vllm, which is not installed: pip install "
            "'mutual-rl[vllm]' on a GPU, or see docs/engines.md for CPUs; or use engine.kind=hf"
        )
    if model.dtype not in DTYPES:
        raise InputError(
            f"vLLM has no {str(model.dtype).removeprefix('torch.')}; expected the policy's "
            f"model.dtype to be one of {sorted(DTYPES.values())}"
        )
    if decoding.temperature < LOWEST_TEMPERATURE:
        raise InputError(
            f"vLLM samples at no temperature below {LOWEST_TEMPERATURE}; got "
            f"sampling.temperature={decoding.temperature}; raise it or use engine.kind=hf"
        )
    if torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1:
        raise InputError(
            "a vLLM engine runs in a run of one process; got "
            f"{torch.distributed.get_world_size()}; start one, or use engine.kind=hf"
        )


def _repack_tied(model: torch.nn.Module, /) -> None:
    """Make the output layers' packed copy of weights that they share with the embeddings anew.

    On CPUs vLLM packs weights for its kernels. Loading weights repacks each layer that has some
    of its own; an output layer tied to the embeddings has none and would keep its old copy.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    for module in model.modules():
        if isinstance(module, ParallelLMHead):
            module.quant_method.process_weights_after_loading(module)
