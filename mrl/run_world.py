"""A run as a world: its prompts are contexts, the responses that were seen are arms.

Shapes: N policies, X prompts, K arms; the last arm of every prompt is all that was not seen. The
table is a file that numpy reads, so theory can look at a run without a deep-learning library.
Source: docs/study.md, "A run as a world".
"""

import json
import os
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bandit import Residual, World
from bandit.probes import Group
from mrl.errors import InputError, RunError

FILE = "world-{round:06d}.npz"
FORMAT = 1
ARRAYS = (
    *("probs_NXK", "canonical_NXK", "representable_NXK", "rewards_XK"),
    *("counts_NXK", "canonical_counts_NXK"),
)


@dataclass(frozen=True, eq=False)
class RunWorld:
    """Probabilities, rewards and counts of the responses that a run's policies gave.

    Attributes
    ----------
    probs_NXK : ndarray
        Probability of each response: the sum over its known tokenisations, which are the policy's
        canonical one and those that it sampled. Arms that a prompt does not have are 0. The last
        arm is the rest, so that every row sums to 1.
    canonical_NXK : ndarray
        The part of it that is the canonical tokenisation; the rest arm has all of it.
    representable_NXK : ndarray of bool
        Whether the policy's tokenizer can spell the response.
    rewards_XK : ndarray
        The verifier's; 0 for the rest.
    counts_NXK, canonical_counts_NXK : ndarray of int
        How often each policy sampled each response, and so by canonical tokens. What has no
        verdict is counted in the rest.
    policies, prompt_ids, questions : tuple of str
        Names.
    texts : tuple of tuple of str
        Responses of each prompt, without the rest; ``...`` marks one that was cut at the limit.
    run : str
        Name of the run.
    round, prompts, samples : int
        Rounds done by the weights, prompts asked for, and responses of each policy to each.
    excess : float
        By how much the largest sum over seen arms exceeded 1 before it was divided out.
    """

    probs_NXK: NDArray[np.float64]
    canonical_NXK: NDArray[np.float64]
    representable_NXK: NDArray[np.bool_]
    rewards_XK: NDArray[np.float64]
    counts_NXK: NDArray[np.int64]
    canonical_counts_NXK: NDArray[np.int64]
    policies: tuple[str, ...]
    prompt_ids: tuple[str, ...]
    questions: tuple[str, ...]
    texts: tuple[tuple[str, ...], ...]
    run: str
    round: int
    prompts: int
    samples: int
    excess: float

    @cached_property
    def world(self) -> World:
        """The bandit, prompts of equal weight."""
        return World.tabular(
            self.probs_NXK, self.rewards_XK, success_threshold=Group.success_threshold
        )

    @property
    def seen_NX(self) -> NDArray[np.float64]:
        """Probability of the responses that were seen; the world knows no success outside them."""
        return 1.0 - self.probs_NXK[..., -1]

    @property
    def successes_NX(self) -> NDArray[np.int64]:
        """Successes among the samples of each policy on each prompt."""
        hits = self.rewards_XK >= Group.success_threshold
        return np.where(hits, self.counts_NXK, 0).sum(-1)

    @property
    def verified_NX(self) -> NDArray[np.int64]:
        """Samples of each policy on each prompt that have a verdict."""
        return self.counts_NXK[..., :-1].sum(-1)

    def residual(self, receiver: int, /) -> Residual:
        """What tokenizers do to the peers' rollouts on their way to a receiver.

        For a peer's response, ``delta`` is what the computed log-ratio of canonical tokens has over
        the log-ratio of the responses: the peer's canonical gap minus the receiver's, each
        ``log P(response) - log P(canonical tokens) >= 0``. Its sample is the peer's rollouts that
        pass the gate; ``gate`` is exact for each response, and so is ``drop``.

        Parameters
        ----------
        receiver : int
            The policy that learns.

        Returns
        -------
        Residual
        """
        peers = [j for j in range(len(self.policies)) if j != receiver]
        with np.errstate(divide="ignore", invalid="ignore"):
            gap_NXK = np.log(self.probs_NXK) - np.log(self.canonical_NXK)
            gate_NXK = 1.0 - np.where(self.probs_NXK > 0, self.canonical_NXK / self.probs_NXK, 1.0)
            samples = {}
            for j in peers:
                delta_XK = gap_NXK[j] - gap_NXK[receiver]
                found = np.repeat(delta_XK.ravel(), self.canonical_counts_NXK[j].ravel())
                found = found[np.isfinite(found)]
                # Without one that both sides can form, no weight depends on it.
                samples[j] = found if found.size else np.zeros(1)
        return Residual.empirical(
            samples,
            drop={j: (~self.representable_NXK[receiver]).astype(np.float64) for j in peers},
            gate={j: np.clip(gate_NXK[j], 0.0, 1.0) for j in peers},
        )

    def save(self, path: Path, /) -> None:
        """Write the table whole or not at all; equal tables give equal files.

        Raises
        ------
        RunError
            If the file cannot be written.
        """
        arrays = {name: getattr(self, name) for name in ARRAYS}
        rest = {key: getattr(self, key) for key in self.__dataclass_fields__ if key not in ARRAYS}
        meta = json.dumps({"format": FORMAT, **rest}).encode()
        aside = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            with aside.open("wb") as file:
                np.savez_compressed(file, meta=np.frombuffer(meta, np.uint8), **arrays)
            aside.replace(path)
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror or error}") from None
        finally:
            aside.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path, /) -> Self:
        """Read a table that `save` wrote.

        Raises
        ------
        InputError
            If there is none, or it is damaged or of another format.
        """
        try:
            with Path(path).open("rb") as file, np.load(file, allow_pickle=False) as stored:
                meta: dict[str, Any] = json.loads(stored["meta"].tobytes())
                if (found := meta.pop("format", None)) != FORMAT:
                    raise ValueError(f"its format is {found}; this version reads {FORMAT}")
                arrays = {name: stored[name] for name in ARRAYS}
            for key in ("policies", "prompt_ids", "questions"):
                meta[key] = tuple(meta[key])
            return cls(**arrays, **meta | {"texts": tuple(map(tuple, meta["texts"]))})
        except FileNotFoundError:
            raise InputError(
                f"{path} is not there; mrl study --world-from RUN writes it to the run's folder"
            ) from None
        except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
            raise InputError(
                f"{path} cannot be read as the world of a run: {error}; remove it and write it "
                "again with mrl study --world-from RUN"
            ) from None


def stored_worlds(folder: Path, /) -> list[RunWorld]:
    """The worlds in a run's folder, in the order of their rounds.

    Raises
    ------
    InputError
        If one is damaged.
    """
    return [RunWorld.load(path) for path in sorted(folder.glob("world-*.npz"))]
