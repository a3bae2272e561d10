"""What a task is: items with right answers, split in two, and the verifier that scores them.

Worker processes import this module: it needs neither torch nor numpy.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from mrl.tasks.verdicts import Job, Verdict, Verify, judge


@dataclass(frozen=True)
class Item:
    """One question with its right answer.

    Parameters
    ----------
    prompt_id : str
        Stable name of the item in records, metrics and samples; `Item.of` derives it.
    question : str
        The question itself.
    answer : str
        The right answer, or one of them where the verifier accepts several.
    tag : str or None
        Label by which evaluation is split.
    prompt : str, optional
        What the policies are asked, where it is more than the question; each renders it with its
        own template.
    system : str, optional
        System message before it.
    """

    prompt_id: str
    question: str
    answer: str
    tag: str | None
    prompt: str | None = None
    system: str | None = None

    @classmethod
    def of(
        cls,
        question: str,
        answer: str,
        tag: str | None = None,
        /,
        *,
        template: str = "{question}",
        system: str | None = None,
    ) -> "Item":
        """Build an item; ``{question}`` in `template` stands for the question.

        Its id is a hash of question and answer, and of template and system message where there
        are any: the same in every process, another where policies are asked something else.
        """
        asked = template.replace("{question}", question)
        prompt = None if asked == question else asked
        named = [question, answer] + ([prompt, system] if prompt or system else [])
        name = hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]
        return cls(name, question, answer, tag, prompt, system)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation up to the policies' turn: system message, if any, and user turn."""
        user = {"role": "user", "content": self.prompt or self.question}
        return [user] if self.system is None else [{"role": "system", "content": self.system}, user]


class Runner(Protocol):
    """Whatever gives verdicts in another place than the calling thread."""

    def verdicts(self, jobs: Sequence[Job], /) -> list[Verdict]:
        """One verdict a job, in their order."""

    def close(self) -> None:
        """Free what it holds; it may be used again afterwards."""


@dataclass(frozen=True, eq=False)
class Task:
    """Items to train on, items held out, and how responses are scored.

    Use it as a context manager: that ends its worker processes.

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
        end, or is not UTF-8, has reward 0.0: it gives no answer. None, or an exception, is "not
        verified": the verifier itself failed, and the rollout counts in no mean.
    notes : tuple of str
        What loading left out and how much of it, one sentence each, for the user to see.
    runner : Runner, optional
        Where `verify` runs. Default: in the calling thread, without a limit of time.
    """

    train: tuple[Item, ...]
    heldout: tuple[Item, ...]
    verifier_id: str
    verify: Verify
    notes: tuple[str, ...] = ()
    runner: Runner | None = None

    def verdicts(self, jobs: Sequence[Job], /) -> list[Verdict]:
        """Score responses; equal ones once.

        Parameters
        ----------
        jobs : sequence of (Item, bytes, bool)
            Item, response, and whether it ended by itself.

        Returns
        -------
        list of Verdict
            In the order of `jobs`, whatever runs in parallel.

        Raises
        ------
        RunError
            If too many verdicts are lost to the time limit or to crashes, or no worker starts.
        """
        keys = [(item.prompt_id, response, finished) for item, response, finished in jobs]
        different = dict(zip(keys, jobs, strict=True))
        asked = list(different.values())
        if self.runner is None:
            given = [judge(self.verify, job) for job in asked]
        else:
            given = self.runner.verdicts(asked)
        found = dict(zip(different, given, strict=True))
        return [found[key] for key in keys]

    @property
    def fingerprint(self) -> str:
        """A hash of what is asked and held right, in order: other items, another fingerprint."""
        parts = [
            [[item.prompt_id, item.messages, item.answer, item.tag] for item in items]
            for items in (self.train, self.heldout)
        ]
        content = json.dumps([self.verifier_id, parts])
        return hashlib.sha256(content.encode()).hexdigest()

    def close(self) -> None:
        """End the worker processes, if there are any."""
        if self.runner is not None:
            self.runner.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def drawn_order(items: list[Item], seed: int, /) -> list[Item]:
    """Order `items` by a hash of (seed, id): it does not depend on the order they come in."""

    def key(item: Item) -> bytes:
        return hashlib.sha256(f"{seed}:{item.prompt_id}".encode()).digest()

    return sorted(items, key=key)
