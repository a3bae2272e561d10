"""From the machines of a Ray cluster to the devices that each policy's processes get.

A device is a GPU; where there are none, an equal part of a machine's cores. One placement group
holds all devices of the plan: a run gets all that it needs or nothing, so no two runs can each hold
a part of what both wait for.
"""

import time
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, Literal

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group

from mrl.allocation.costs import demands_of, inventory_of
from mrl.allocation.placement import Placement
from mrl.allocation.plan import plan
from mrl.allocation.problem import Device
from mrl.allocation.shortage import GIB
from mrl.config import InventoryConfig, KindConfig, NodeConfig, RunConfig
from mrl.errors import InputError, RunError
from mrl.runtime.waiting import LOOK, WorkerLost

NODE_ID = "ray.io/node-id"  # the label that Ray gives each machine
# A guess for one core, where nothing is known of it: only ratios of these matter to a plan.
CORE_TFLOPS, CORE_BANDWIDTH = 0.05, 10.0


@dataclass(frozen=True)
class Host:
    """A machine of the cluster.

    Attributes
    ----------
    id, name : str
        Ray's id of it, and its host name; with the id's first characters where several share it.
    cpus, gpus : int
    memory : float
        Bytes that Ray lets its processes use.
    """

    id: str
    name: str
    cpus: int
    gpus: int
    memory: float


On = dict[str, tuple[Host, float]]
"""The machine that each of an inventory's is, and the cores of each of its devices."""


@dataclass(frozen=True)
class Place:
    """Part of a device, for one process.

    Attributes
    ----------
    bundle : int
        Of the placement group.
    cpus, gpus : float
        What it holds of the device: equal shares of it, whoever works when.
    threads : int
        Threads it may use while it works: all of the device's cores, since those that share a
        device take turns.
    host : str
        Id of the machine.
    """

    bundle: int
    cpus: float
    gpus: float
    threads: int
    host: str


@dataclass(frozen=True)
class Layout:
    """A plan on the machines that are there.

    Attributes
    ----------
    placement : Placement
    bundles : dict of Device to Place
        Whole devices, in the order of the placement group's bundles.
    notes : tuple of str
        What the inventory has and the cluster lacks.
    """

    placement: Placement
    bundles: dict[Device, Place]
    notes: tuple[str, ...] = ()

    def places(self, policy: str, phase: Literal["generation", "training"], /) -> list[Place]:
        """Where a policy's processes of a phase are, one a device."""
        part = self.placement.slice_of(policy, phase)
        shared = len(part.policies)
        wholes = [self.bundles[device] for device in part.devices]
        return [
            Place(one.bundle, one.cpus / shared, one.gpus / shared, one.threads, one.host)
            for one in wholes
        ]

    def apart(self, policy: str, /) -> bool:
        """Whether a policy generates on other devices than it trains on."""
        slices = [self.placement.slice_of(policy, phase) for phase in ("generation", "training")]
        return slices[0] != slices[1]

    def devices(self, policy: str, /) -> set[Device]:
        """All devices on which a policy has something to do."""
        return {
            device
            for part in self.placement.slices
            if policy in part.policies
            for device in part.devices
        }


def hosts() -> list[Host]:
    """The machines that are alive, in the order of their addresses."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
    nodes.sort(key=lambda node: (node["NodeManagerAddress"], node["NodeID"]))
    names = Counter(node["NodeManagerHostname"] for node in nodes)
    return [
        Host(
            id=node["NodeID"],
            name=name if names[name] == 1 else f"{name}-{node['NodeID'][:6]}",
            cpus=int(node["Resources"]["CPU"]),
            gpus=int(node["Resources"].get("GPU", 0)),
            memory=float(node["Resources"].get("memory", 0)),
        )
        for node in nodes
        for name in [node["NodeManagerHostname"]]
    ]


def lay_out(config: RunConfig, inventory: InventoryConfig | None, found: list[Host], /) -> Layout:
    """Plan a run on the machines that are there.

    Parameters
    ----------
    config : RunConfig
    inventory : InventoryConfig or None
        What the machines can do. Default, without GPUs: there is a device for each policy, as far
        as there are cores, and no policy gets several, so that results are those of one process.
    found : list of Host

    Raises
    ------
    InputError
        If the machines have GPUs and there is no inventory, none of its machines is there, or the
        policies do not fit.
    """
    gpus = config.device.startswith("cuda") or (
        config.device == "auto" and any(host.gpus for host in found)
    )
    if inventory is not None:
        on = _matched(inventory, found, gpus)
    elif gpus:
        raise InputError(
            "the cluster has GPUs, of which Ray knows neither memory nor speed; say with "
            "--inventory CLUSTER what they are (docs/cluster.md)"
        )
    else:
        inventory, on = _derived(found, len(config.policies))
    nodes = [one for node in inventory.nodes for one in _each(node)]
    there = tuple(node for node in nodes if node.name in on)
    kinds = {node.kind: inventory.kinds[node.kind] for node in there}
    # Every process here has whole weights.
    cluster = inventory.model_copy(update={"nodes": there, "kinds": kinds, "sharding": False})
    missing = [node.name for node in nodes if node.name not in on]
    note = f"machines {missing} of the inventory are not in the cluster: planned without them"
    notes = (note,) if missing else ()
    try:
        placement = plan(inventory_of(cluster), demands_of(config, cluster))
    except InputError as error:
        raise InputError("; ".join([str(error), *notes])) from None
    used = [device for part in placement.slices for device in part.devices]
    bundles = {
        device: Place(i, cores, float(gpus), max(1, int(cores)), host.id)
        for i, device in enumerate(used)
        for host, cores in [on[device.node]]
    }
    return Layout(placement, bundles, notes)


def _each(node: NodeConfig, /) -> list[NodeConfig]:
    return [NodeConfig(name=name, kind=node.kind, devices=node.devices) for name in node.names]


def _derived(found: Sequence[Host], policies: int, /) -> tuple[InventoryConfig, On]:
    """A device for each policy, as far as there are cores, on all machines in turn."""
    turns = sorted((turn, i) for i, host in enumerate(found) for turn in range(host.cpus))
    kinds, nodes, on = {}, [], {}
    for i, count in Counter(i for _, i in turns[:policies]).items():
        host, cores = found[i], found[i].cpus // count
        for turn in range(count):
            # Of a kind of its own, since only devices of one kind serve one policy together.
            name = f"{host.name}/{turn}"
            kinds[name] = KindConfig(
                memory_gib=host.memory / count / GIB,
                tflops=cores * CORE_TFLOPS,
                bandwidth_gbs=CORE_BANDWIDTH,
            )
            nodes.append(NodeConfig(name=name, kind=name, devices=1))
            on[name] = host, float(cores)
    return InventoryConfig(kind="inventory", kinds=kinds, nodes=tuple(nodes)), on


def _matched(inventory: InventoryConfig, found: Sequence[Host], gpus: bool, /) -> On:
    """Machines of the inventory on those of the cluster: by name, then any that has enough."""
    free, on = list(found), {}
    nodes = [one for node in inventory.nodes for one in _each(node)]
    for named in (True, False):
        for node in [node for node in nodes if node.name not in on]:
            for host in free:
                enough = host.gpus >= node.devices if gpus else True
                if enough and (host.name == node.name or not named):
                    cores = host.cpus / (host.gpus if gpus else node.devices)
                    on[node.name] = host, float(int(cores)) if cores >= 1 else cores
                    free.remove(host)
                    break
    if not on:
        raise InputError(
            f"none of the inventory's machines {[node.name for node in nodes]} is in the cluster, "
            f"which has {[(host.name, host.cpus, host.gpus) for host in found]} (name, cores, GPUs)"
        )
    return on


def reserve(layout: Layout, patience: float, /) -> PlacementGroup:
    """All devices of a layout, at once or not at all.

    Raises
    ------
    RunError
        If they are not free within `patience` seconds; nothing is then held.
    WorkerLost
        If one of the machines is gone.
    """
    places = list(layout.bundles.values())
    bundles: list[dict[str, float]] = [
        {"CPU": one.cpus} | ({"GPU": one.gpus} if one.gpus else {}) for one in places
    ]
    selectors: list[dict[str, str]] = [{NODE_ID: one.host} for one in places]
    group = placement_group(bundles, strategy="PACK", bundle_label_selector=selectors)
    deadline = time.monotonic() + patience
    try:
        while not group.wait(min(LOOK, patience)):
            check_alive({one.host for one in places})
            if time.monotonic() > deadline:
                raise _busy(bundles, patience)
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def check_alive(machines: Set[str], /) -> None:
    """Raise `WorkerLost` if one of the machines, given by their ids, is gone."""
    gone = machines - {host.id for host in hosts()}
    if gone:
        raise WorkerLost(f"{len(gone)} machine(s) of the run are gone: {sorted(gone)}")


def _busy(bundles: Sequence[dict[str, float]], patience: float, /) -> RunError:
    free: dict[str, Any] = ray.available_resources()
    return RunError(
        f"the run needs {_sum(bundles, 'CPU'):g} cores and {_sum(bundles, 'GPU'):g} GPUs; "
        f"within {patience:g} s the cluster had no more than {free.get('CPU', 0):g} and "
        f"{free.get('GPU', 0):g} free. Wait for what else runs there, or start it on fewer "
        "machines with --inventory"
    )


def _sum(bundles: Sequence[dict[str, float]], name: str, /) -> float:
    return sum(bundle.get(name, 0.0) for bundle in bundles)
