"""Which processes a run gets on which machines of a cluster."""

import pytest

from mrl.config import InventoryConfig, load, load_inventory, parse
from mrl.errors import InputError
from mrl.runtime.layout import Host, lay_out

SIZE = {"parameters": 1e9, "layers": 8, "hidden_size": 512, "kv_size": 512, "vocab_size": 512}


def hosts(*cpus: int, gpus: int = 0) -> list[Host]:
    return [Host(f"id{i}", f"host{i}", n, gpus, 64 * 2**30) for i, n in enumerate(cpus)]


def inventory(*nodes: dict, **kinds: dict) -> InventoryConfig:
    policies = {name: {"size": SIZE} for name in "ab"}
    return InventoryConfig.model_validate(
        {"kind": "inventory", "kinds": kinds, "nodes": nodes, "policies": policies}
    )


TRAINS = {"memory_gib": 60, "tflops": 10, "bandwidth_gbs": 10}
SAMPLES = {"memory_gib": 8, "tflops": 10, "bandwidth_gbs": 1000}


@pytest.fixture
def config(settings):
    return lambda **sections: parse(settings(2, **sections))


@pytest.mark.parametrize(
    ("cpus", "expected"),
    [
        ((8,), [("id0", 4.0), ("id0", 4.0)]),
        ((5, 6), [("id0", 5.0), ("id1", 6.0)]),
        ((1, 1, 8), [("id0", 1.0), ("id1", 1.0)]),
    ],
)
def test_without_an_inventory_each_policy_has_a_device_of_its_own(config, cpus, expected):
    layout = lay_out(config(), None, hosts(*cpus))
    places = [layout.places(name, "training") for name in "ab"]
    assert sorted((one.host, one.cpus) for (one,) in places) == expected
    assert not any(layout.apart(name) for name in "ab")
    assert layout.devices("a").isdisjoint(layout.devices("b"))


def test_policies_that_share_a_device_share_what_they_hold_of_it_and_not_its_threads(config):
    layout = lay_out(config(), None, hosts(1))
    (a,), (b,) = (layout.places(name, "training") for name in "ab")
    assert a == b
    assert (a.cpus, a.threads) == (0.5, 1)
    assert layout.devices("a") == layout.devices("b")


def test_an_inventory_can_part_sampling_from_training(config):
    machines = inventory(
        {"name": "one", "kind": "trains", "devices": 1},
        {"name": "two", "kind": "samples", "devices": 2},
        trains=TRAINS,
        samples=SAMPLES,
    )
    layout = lay_out(config(), machines, hosts(4, 4))
    assert all(layout.apart(name) for name in "ab")
    assert {one.host for one in layout.places("a", "generation")} == {"id1"}
    assert {one.host for one in layout.places("a", "training")} == {"id0"}
    # Two policies take turns on what trains.
    (place,) = layout.places("a", "training")
    assert (place.cpus, place.threads) == (2.0, 4)


def test_machines_are_found_by_name_and_what_is_missing_is_said(config):
    machines = inventory(
        {"name": "host1", "kind": "trains", "devices": 1},
        {"name": "gone", "kind": "trains", "devices": 1},
        {"name": "lost", "kind": "trains", "devices": 1},
        trains=TRAINS,
    )
    layout = lay_out(config(), machines, hosts(2, 2))
    assert {one.node for one in layout.bundles} <= {"host1", "gone"}
    (note,) = layout.notes
    assert "['lost']" in note
    for device, place in layout.bundles.items():
        assert place.host == ("id1" if device.node == "host1" else "id0")


def test_no_process_shares_its_weights_with_another(config):
    small = inventory({"name": "one", "kind": "samples", "devices": 8}, samples=SAMPLES)
    with pytest.raises(InputError, match="GiB"):
        lay_out(config(), small, hosts(8))


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_gpus_need_an_inventory_and_are_held_whole_by_those_who_share_them(config, device):
    run = config(device=device)
    with pytest.raises(InputError, match="--inventory"):
        lay_out(run, None, hosts(16, gpus=4))
    machines = inventory({"name": "n", "kind": "gpu", "devices": 1}, gpu=TRAINS)
    layout = lay_out(run, machines, hosts(16, gpus=4))
    (place,) = layout.places("a", "training")
    assert (place.cpus, place.gpus, place.threads) == (2.0, 0.5, 4)


@pytest.mark.parametrize("name", ["math-pair", "gsm8k-pair", "gym-pair"])
@pytest.mark.parametrize(("cluster", "nodes"), [("cluster-8gpu", 1), ("cluster-2x8gpu", 2)])
def test_shipped_set_ups_fit_on_shipped_clusters_with_whole_weights(name, cluster, nodes):
    run = load(name)
    layout = lay_out(run, load_inventory(cluster), hosts(*[64] * nodes, gpus=8))
    assert not layout.notes
    for policy in run.policies:
        for phase in ("generation", "training"):
            places = layout.places(policy.name, phase)
            assert {one.gpus > 0 for one in places} == {True}
            assert len({one.bundle for one in places}) == len(places)


def test_an_inventory_of_other_machines_is_refused(config):
    machines = inventory({"name": "n", "kind": "gpu", "devices": 8}, gpu=TRAINS)
    with pytest.raises(InputError, match=r"\['n'\] is in the cluster.*host0"):
        lay_out(config(device="cuda"), machines, hosts(16, gpus=4))
