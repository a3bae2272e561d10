"""The processes of a run on a Ray cluster: those that hold its members, and those that sample.

A policy has a `Seat` for each device that it trains on; several of them are one member, played by
processes that divide its work (`mrl.distributed`). Where it generates on other devices, each of
them has a `Sampler`, whose weights follow those of the seats.
"""

import os
import pickle
import shutil
import socket
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray
import torch

from mrl.checkpoint import read_policy, write_policy
from mrl.config import RunConfig
from mrl.distributed import once, processes
from mrl.exchange.ray import RayExchange
from mrl.member import Member
from mrl.models import load_codec
from mrl.policy import build_policy
from mrl.replay import stored_codecs
from mrl.rollout import Prompts, Sampled, parts_of
from mrl.runtime.waiting import fetch
from mrl.tasks import Task
from mrl.tasks.ray import RayVerifier

Weights = Mapping[str, torch.Tensor]


class Seat:
    """One process of a member.

    Parameters
    ----------
    config : RunConfig
        The whole run.
    name : str
        The policy.
    home : str
        The driver's working directory: paths in the configuration start there, where it exists.
    timeout : float
        Seconds to wait for other processes.
    """

    def __init__(self, config: RunConfig, name: str, home: str, timeout: float, /) -> None:
        settle(home)
        self._config, self._name, self._timeout = config, name, timeout
        self._stack = ExitStack()
        self._packed: Path | None = None

    def address(self) -> tuple[str, int]:
        """Where the other processes of the member can find this one."""
        with socket.socket() as free:
            free.bind(("", 0))
            return ray.util.get_node_ip_address(), free.getsockname()[1]

    def sit(
        self, rank: int, count: int, address: tuple[str, int], samplers: Sequence[Any], /
    ) -> None:
        """Find the member's other processes, and load the policy."""
        if count > 1:
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(count),
                "LOCAL_RANK": "0",  # Ray shows each process its own devices only
                "MASTER_ADDR": address[0],
                "MASTER_PORT": str(address[1]),
            }
            self._stack.enter_context(processes(self._config.device))
        elsewhere = None
        config = self._config.policy(self._name)
        if samplers:
            batch = self._config.sampling_of(config).batch
            elsewhere = SpreadEngine(samplers, batch, self._timeout, self._name)
        policy = build_policy(config, self._config, elsewhere=elsewhere)
        self._member = Member(policy, self._config)
        self._stack.callback(policy.close)

    def begin(self, task: Task, exchange: Any, verifiers: int, /) -> None:
        """Take part in the run.

        Parameters
        ----------
        task : Task
            Without a runner.
        exchange : ActorHandle
            The run's exchange.
        verifiers : int
            Tasks that verify at a time; 0: this process does, without a bound of time.
        """
        config = self._config
        if verifiers:
            verify, settings = pickle.dumps(task.verify), config.task.verification
            runner = RayVerifier(verify, settings, verifiers, task.verifier_id, self._timeout)
            task = replace(task, runner=runner)
        peers = [policy for policy in config.policies if policy.name != self._name]
        codecs = {policy.name: load_codec(policy) for policy in peers}
        codecs |= {self._name: self._member.policy.codec} | stored_codecs(config.exchange)
        self._member.join(task, RayExchange(exchange, self._timeout, self._name), codecs)

    def call(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        settings: Mapping[str, Any],
        *after: Any,
    ) -> Any:
        """Call a method of the member, once `after` are there."""
        return function(self._member, *args, **settings)

    def pack(self) -> list[tuple[str, int]]:
        """Write what a checkpoint needs beside; names and sizes of its files."""
        self._packed = Path(tempfile.mkdtemp(prefix="mrl-"))
        write_policy(self._packed, self._member.policy)
        return [
            (str(file.relative_to(self._packed)), file.stat().st_size)
            for file in sorted(self._packed.rglob("*"))
            if file.is_file()
        ]

    def read(self, name: str, start: int, size: int, /) -> bytes:
        """Bytes of a packed file."""
        with (self._folder() / name).open("rb") as file:
            file.seek(start)
            return file.read(size)

    def write(self, name: str, content: bytes, /) -> None:
        """Append to a file that is to be unpacked."""
        path = self._folder() / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(content)

    def unpack(self) -> None:
        """Put the member back to what the files say."""
        read_policy(self._folder(), self._member.policy)
        self.forget()

    def forget(self) -> None:
        """Remove the files."""
        shutil.rmtree(self._folder())
        self._packed = None

    def _folder(self) -> Path:
        if self._packed is None:
            self._packed = Path(tempfile.mkdtemp(prefix="mrl-"))
        return self._packed


def settle(home: str, /) -> None:
    """Work in the driver's working directory, where there is one."""
    if Path(home).is_dir():
        os.chdir(home)


class Sampler:
    """One process that samples for a policy, by weights that the policy's seats give it.

    Parameters
    ----------
    config : RunConfig
        The whole run.
    name : str
        The policy.
    home : str
        As for a `Seat`.
    timeout : float
        Seconds to wait for weights.
    """

    def __init__(self, config: RunConfig, name: str, home: str, timeout: float, /) -> None:
        settle(home)
        self._config, self._name, self._timeout = config, name, timeout
        self._version = 0

    def sit(self) -> None:
        """Load the policy."""
        self._policy = build_policy(self._config.policy(self._name), self._config)
        self._policy.reference = None  # of learners only

    def take(self, version: int, weights: Sequence[Any], /) -> dict[str, float]:
        """Take over weights, unless it has them; what the engine's check showed."""
        if version == self._version:
            return {}
        (found,) = fetch([(weights[0], "the new weights")], self._timeout)
        own = dict(self._policy.model.named_parameters())
        with torch.no_grad():
            for name, value in found.items():
                own[name].copy_(value)
        self._version = version
        return self._policy.sync()

    def sample(
        self, prompts: Prompts, n: int, seed: int, version: int, weights: Sequence[Any], /
    ) -> list[list[Sampled]]:
        """Sample by the weights of a version, which are fetched if they are not here."""
        self.take(version, weights)
        return self._policy.sample(prompts, n, seed)


class SpreadEngine:
    """An `Engine` on other devices: samplers, each of which has the policy's weights.

    Parameters
    ----------
    samplers : sequence of ActorHandle
        See `Sampler`.
    batch : int
        Responses that one of them generates at a time.
    timeout : float
        Seconds to wait for any of them.
    name : str
        The policy, in messages.
    """

    def __init__(self, samplers: Sequence[Any], batch: int, timeout: float, name: str, /) -> None:
        self._samplers, self._batch, self._timeout = samplers, batch, timeout
        self._who = f"what samples for policy {name!r}"
        self._version = 0
        self._weights: list[Any] = []

    def generate(self, prompts: Prompts, n: int, seed: int, /) -> list[list[Sampled]]:
        """Sample `n` responses for each prompt; the parts, and their streams, are `HFEngine`'s."""
        return once(lambda: self._generate(prompts, n, seed))

    def _generate(self, prompts: Prompts, n: int, seed: int, /) -> list[list[Sampled]]:
        calls = [
            self._samplers[i % len(self._samplers)].sample.remote(
                part, n, seed + i, self._version, self._weights
            )
            for i, part in enumerate(parts_of(prompts, n, self._batch))
        ]
        parts = fetch([(call, self._who) for call in calls], self._timeout)
        return [group for part in parts for group in part]

    def sync(self, model: Any, /) -> dict[str, float]:
        """Give all samplers the weights that `model` trains."""
        return once(lambda: self._sync(model))

    def _sync(self, model: Any, /) -> dict[str, float]:
        weights: Weights = {
            name: parameter.detach().cpu()
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        }
        self._version += 1
        # In a list: they are fetched by who does not have them, not before each call.
        self._weights = [ray.put(weights)]
        calls = [one.take.remote(self._version, self._weights) for one in self._samplers]
        figures = fetch([(call, self._who) for call in calls], self._timeout)
        return {name: max(one[name] for one in figures) for name in figures[0]}

    def close(self) -> None:
        """Those who started the samplers end them."""
