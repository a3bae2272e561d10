"""The demo's task: two skills on three-letter words, one for each policy to know from the start.

``t abc=`` asks for the rotation ``bca``, ``r abc=`` for the reversal ``cba``. All words over ten
letters; a fixed fifth of them is held out.
"""

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

LETTERS = "abcdefghij"
ALPHABET = LETTERS + "rt= "
SKILLS = ("rotation", "reversal")
HELD_OUT = 200
_SPLIT_SEED = 20_260_507


@dataclass(frozen=True)
class TaskFiles:
    """Files of training and held-out items, and the text that the BPE tokenizer learns from."""

    train: Path
    heldout: Path
    text: Path


def rows_of(word: str, /) -> list[dict[str, str]]:
    """Both questions about a word, as rows of the task files."""
    return [
        {"question": f"t {word}=", "answer": word[1:] + word[0], "skill": "rotation"},
        {"question": f"r {word}=", "answer": word[::-1], "skill": "reversal"},
    ]


def write_task(folder: Path, /) -> TaskFiles:
    """Write the task's files into `folder`; always the same content."""
    words = ["".join(letters) for letters in itertools.product(LETTERS, repeat=3)]
    shuffled = [words[i] for i in np.random.default_rng(_SPLIT_SEED).permutation(len(words))]
    parts = {"heldout": shuffled[:HELD_OUT], "train": shuffled[HELD_OUT:]}
    rows = {name: [row for word in part for row in rows_of(word)] for name, part in parts.items()}
    files = TaskFiles(folder / "train.jsonl", folder / "heldout.jsonl", folder / "text.txt")
    folder.mkdir(parents=True, exist_ok=True)
    for path, part in ((files.train, rows["train"]), (files.heldout, rows["heldout"])):
        path.write_text("".join(json.dumps(row) + "\n" for row in part), encoding="utf-8")
    lines = [line for row in rows["train"] for line in (row["question"], row["answer"])]
    files.text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return files
