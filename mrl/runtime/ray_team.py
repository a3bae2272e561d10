"""The members of a run on a Ray cluster."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from mrl.config import InventoryConfig, RunConfig
from mrl.exchange import Exchange
from mrl.exchange.ray import RayExchange
from mrl.exchange.ray import start as start_exchange
from mrl.member import Member
from mrl.runtime.layout import Layout, Place, check_alive, hosts, lay_out, reserve
from mrl.runtime.seat import Sampler, Seat
from mrl.runtime.waiting import Call, fetch, gather
from mrl.tasks import Item, Task

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

# Bytes of a checkpoint's file that travel at a time.
PIECE = 2**26
# Verification tasks of a policy at a time, where the configuration does not say.
MOST_VERIFIERS = 8
# What every process needs before it imports anything; threads are for each to say.
ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class RayRuntime:
    """How a run uses a Ray cluster.

    Parameters
    ----------
    address : str, optional
        Of a cluster that runs; ``auto``: the one that this machine belongs to. Default: one is
        started on this machine, and ends with the run.
    inventory : InventoryConfig, optional
        What its machines can do; needed where they have GPUs.
    worker_timeout : float
        Seconds in which at least one of the processes that are waited for must have answered.
    patience : float
        Seconds to wait until the devices that the run needs are free.
    restarts : int
        Losses in a row, without a checkpoint between them, after which the run goes on; one more
        ends it.
    """

    address: str | None = None
    inventory: InventoryConfig | None = None
    worker_timeout: float = 1800.0
    patience: float = 20.0
    restarts: int = 3


class RayTeam:
    """A `Team` on a cluster: a process for each device of each policy.

    Policies that share a device take turns, as the plan says; all others work at the same time.
    """

    exchange: Exchange

    def __init__(
        self, config: RunConfig, runtime: RayRuntime, layout: Layout, group: PlacementGroup, /
    ) -> None:
        self.config, self.runtime, self.layout = config, runtime, layout
        self.names = [policy.name for policy in config.policies]
        self.begun = False
        self._group = group
        self._machines = {place.host for place in layout.bundles.values()}
        self._actors: list[Any] = []
        self._seats: dict[str, list[Any]] = {}
        self._late: list[Call] = []
        self._stack = ExitStack()
        self._stack.callback(remove_placement_group, group)
        self._stack.callback(self._end)

    @classmethod
    def start(cls, config: RunConfig, runtime: RayRuntime, /) -> Self:
        """Plan the run, take its devices, and load its policies there.

        Raises
        ------
        InputError
            If the policies do not fit on the machines, or cannot be loaded.
        RunError
            If the devices are not free, or a process is lost meanwhile.
        """
        layout = lay_out(config, runtime.inventory, hosts())
        team = cls(config, runtime, layout, reserve(layout, runtime.patience))
        try:
            team._sit()
        except BaseException:
            team._stack.close()
            raise
        return team

    def _sit(self) -> None:
        samplers: dict[str, list[Any]] = {name: [] for name in self.names}
        for name in self.names:
            places = self.layout.places(name, "training")
            self._seats[name] = [self._actor(Seat, name, place) for place in places]
            if self.layout.apart(name):
                others = self.layout.places(name, "generation")
                samplers[name] = [self._actor(Sampler, name, place) for place in others]
        self._fetch((one.sit.remote(), name) for name, ours in samplers.items() for one in ours)
        addresses = self._fetch(
            (seats[0].address.remote(), name) for name, seats in self._seats.items()
        )
        self._fetch(
            (seat.sit.remote(rank, len(seats), address, samplers[name]), name)
            for (name, seats), address in zip(self._seats.items(), addresses, strict=True)
            for rank, seat in enumerate(seats)
        )

    def _actor(self, kind: type, name: str, place: Place, /) -> Any:
        # A user's own number holds for each process: with it, rounding is that of a local run.
        threads = os.environ.get("OMP_NUM_THREADS") or str(place.threads)
        options: Any = ray.remote(kind).options(
            num_cpus=place.cpus,
            num_gpus=place.gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=place.bundle
            ),
            runtime_env={"env_vars": ENVIRONMENT | {"OMP_NUM_THREADS": threads}},
        )
        given = os.getcwd(), self.runtime.worker_timeout
        actor = options.remote(self.config, name, *given)
        self._actors.append(actor)
        return actor

    def _fetch(self, calls: Iterable[tuple[Any, str]], /) -> list[Any]:
        asked = [self._asked(*call) for call in calls]
        return fetch(asked, self.runtime.worker_timeout, self._check_machines)

    @staticmethod
    def _asked(call: Any, name: str, /) -> Call:
        return call, f"policy {name!r}"

    def _check_machines(self) -> None:
        check_alive(self._machines)

    def begin(self, task: Task, folder: Path, /) -> None:
        """See `Team.begin`."""
        self.begun = True
        config, timeout = self.config, self.runtime.worker_timeout
        count = 0 if task.runner is None else self._verifiers()
        task = replace(task, runner=None)
        here = ray.get_runtime_context().get_node_id()
        actor = start_exchange(config, task, folder.absolute(), here)
        self._actors.append(actor)
        self.exchange = RayExchange(actor, timeout)
        shared = ray.put(task)
        self._fetch(
            (seat.begin.remote(shared, actor, count), name)
            for name, seats in self._seats.items()
            for seat in seats
        )

    def _verifiers(self) -> int:
        asked = self.config.task.verification.workers
        cores = sum(host.cpus for host in hosts())
        return asked or max(1, min(MOST_VERIFIERS, cores // len(self.names)))

    def publish(self, round: int, items: Sequence[Item], /) -> None:
        """See `Team.publish`."""
        calls = self._calls(Member.publish, (round, items), {})
        asked = [self._asked(one, name) for name, ours in calls.items() for one in ours]
        patience = self.config.exchange.barrier_timeout
        came = gather(asked, self.runtime.worker_timeout, self._check_machines, patience)
        self._late = [call for call in asked if call[0] not in came]

    def each(
        self,
        function: Callable[Concatenate[Member, Arguments], Result],
        /,
        *args: Arguments.args,
        **settings: Arguments.kwargs,
    ) -> list[Result]:
        """See `Team.each`; what several processes of a member return is the first one's."""
        calls = self._calls(function, args, settings)
        asked = [self._asked(one, name) for name, ours in calls.items() for one in ours]
        late, self._late = self._late, []
        found = gather([*late, *asked], self.runtime.worker_timeout, self._check_machines, inf)
        return [found[ours[0]] for ours in calls.values()]

    def _calls(
        self, function: Callable[..., Any], args: Sequence[Any], settings: Mapping[str, Any], /
    ) -> dict[str, list[Any]]:
        """Call a method of every member, in turns where they share a device."""
        calls: dict[str, list[Any]] = {}
        for name, seats in self._seats.items():
            mine = self.layout.devices(name)
            before = [other for other in calls if mine & self.layout.devices(other)]
            turn = [call for other in before for call in calls[other]]
            calls[name] = [seat.call.remote(function, args, settings, *turn) for seat in seats]
        return calls

    def save(self, folder: Path, /) -> None:
        """See `Team.save`; files travel through the cluster, which needs no shared storage."""
        firsts = {name: seats[0] for name, seats in self._seats.items()}
        listed = self._fetch((seat.pack.remote(), name) for name, seat in firsts.items())
        for (name, seat), files in zip(firsts.items(), listed, strict=True):
            for file, size in files:
                path = folder / name / file
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as target:
                    for start in range(0, size, PIECE):
                        (piece,) = self._fetch([(seat.read.remote(file, start, PIECE), name)])
                        target.write(piece)
        self._fetch((seat.forget.remote(), name) for name, seat in firsts.items())

    def load(self, folder: Path, /) -> None:
        """See `Team.load`."""
        for name, seats in self._seats.items():
            for path in sorted(file for file in (folder / name).rglob("*") if file.is_file()):
                with path.open("rb") as source:
                    while piece := source.read(PIECE):
                        shared, place = ray.put(piece), str(path.relative_to(folder / name))
                        self._fetch((seat.write.remote(place, shared), name) for seat in seats)
        self._fetch(
            (seat.unpack.remote(), name) for name, seats in self._seats.items() for seat in seats
        )

    def _end(self) -> None:
        for actor in self._actors:
            ray.kill(actor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()
