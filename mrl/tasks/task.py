"""What a task is: items with right answers, split in two, and the verifier that scores them."""

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Item:
    """One question with its right answer.

    Parameters
    ----------
    prompt_id : str
        Stable name of the item in records, metrics and samples; `Item.of` derives it.
    question : str
        What the policies are asked; each renders it with its own template.
    answer : str
        The right answer, or one of them where the verifier accepts several.
    tag : str or None
        Label by which evaluation is split.
    """

    prompt_id: str
    question: str
    answer: str
    tag: str | None

    @classmethod
    def of(cls, question: str, answer: str, tag: str | None = None, /) -> "Item":
        """Build an item whose id is a hash of question and answer: the same in every process."""
        content = json.dumps([question, answer]).encode()
        return cls(hashlib.sha256(content).hexdigest()[:16], question, answer, tag)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The question as a conversation of one user turn."""
        return [{"role": "user", "content": self.question}]


Verify = Callable[[Item, bytes, bool], float | None]
"""``verify(item, response, finished)``: reward in [0, 1], or None where none could be found."""


@dataclass(frozen=True, eq=False)
class Task:
    """Items to train on, items held out, and how responses are scored.

    Parameters
    ----------
    train : tuple of Item
        Training items, no question twice, in the order of their source.
    heldout : tuple of Item
        Held-out items, no question twice and none among the training items. Their order is
        drawn from the seed, so that the first n are a fair sample of them.
    verifier_id : str
        Names the verifier in success records; policies that name the same one agree on rewards.
    verify : callable
        ``verify(item, response, finished) -> float | None``, where `response` is the bytes of
        the response and `finished` tells whether it ended by itself. A response that did not
        end, or is not UTF-8, has reward 0.0: it gives no answer. None is "not verified": the
        verifier itself failed, and the rollout counts in no mean.
    notes : tuple of str
        What loading left out and how much of it, one sentence each, for the user to see.
    """

    train: tuple[Item, ...]
    heldout: tuple[Item, ...]
    verifier_id: str
    verify: Verify
    notes: tuple[str, ...] = ()


def drawn_order(items: list[Item], seed: int, /) -> list[Item]:
    """Order `items` by a hash of (seed, id): it does not depend on the order they come in."""

    def key(item: Item) -> bytes:
        return hashlib.sha256(f"{seed}:{item.prompt_id}".encode()).digest()

    return sorted(items, key=key)
