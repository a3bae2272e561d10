"""What a policy's round takes: estimates from sizes, and corrections from a measured run.

For N parameters of w bytes, prompts of p and responses of r tokens, per device and round:

- generation: 2 N (p + r) operations a rollout, plus reading its cache of keys and values at each
  token; and r times reading all weights for each batch of rollouts;
- training: 2 N operations a token forward, 2 N for the gradients of activations and 2 f N for those
  of weights, of which a share f is trained: 6 N where all are. A scoring pass of 2 N where a round
  has several updates. Weights are read three times a micro-batch, and the optimizer's state is
  read and written once an update.

Operations and bytes are divided by the device's peaks times its efficiency; they do not overlap.
Activations are 17 w bytes a token, layer and hidden unit (34 bytes in 16-bit numbers: Korthikanti
et al., "Reducing activation recomputation in large transformer models", 2022, without attention
scores, which fused kernels do not store) and three 32-bit copies of the logits. With activation
checkpointing w bytes, and 2 N operations more to compute the others again.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

from mrl.allocation.problem import Cost, Demand, Inventory, Kind, Node, Phase
from mrl.allocation.shortage import GIB
from mrl.allocation.sizes import size_of
from mrl.config import (
    DemandConfig,
    InventoryConfig,
    KindConfig,
    PolicyConfig,
    RunConfig,
    SizeConfig,
    load,
)
from mrl.errors import InputError

DTYPE_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
MOMENTS = {"adamw": 2, "sgd": 0}
ACTIVATION = 17  # numbers of the model's type, a token, layer and hidden unit
KEPT = 1  # of these with activation checkpointing: the input of each layer
LOGITS = 3 * 4  # bytes a token and entry of the vocabulary


def inventory_of(config: InventoryConfig, /) -> Inventory:
    """The devices as the planner sees them: usable memory only."""
    kinds = tuple(
        Kind(name, kind.memory_gib * GIB * config.usable_memory)
        for name, kind in config.kinds.items()
    )
    nodes = tuple(
        Node(name, node.kind, node.devices) for node in config.nodes for name in node.names
    )
    return Inventory(kinds, nodes, config.sharding)


def demands_of(run: RunConfig, cluster: InventoryConfig, /) -> tuple[Demand, ...]:
    """What each policy of a run asks for, by estimate.

    Raises
    ------
    InputError
        If the inventory names a policy that the run does not have, or a size is not known.
    """
    names = [policy.name for policy in run.policies]
    if unknown := sorted(cluster.policies.keys() - set(names)):
        raise InputError(f"the inventory names policies {unknown}; the run has {names}")
    return tuple(
        _demand(run, cluster, policy, told, size_of(policy, told.size, cluster.models))
        for policy in run.policies
        for told in [cluster.policies.get(policy.name, DemandConfig())]
    )


def _demand(
    run: RunConfig,
    cluster: InventoryConfig,
    policy: PolicyConfig,
    told: DemandConfig,
    size: SizeConfig,
    /,
) -> Demand:
    width = DTYPE_BYTES[policy.model.dtype]
    weights, trained = size.parameters * width, size.parameters * _trained_share(policy, told, size)
    moments = told.optimizer_bytes
    if moments is None:
        moments = MOMENTS[policy.optimizer.kind] * width
    learned = trained * (width + moments)
    sampling, group = run.sampling_of(policy), run.group_of(policy)
    response = cluster.response_tokens or sampling.max_tokens
    tokens = cluster.prompt_tokens + response
    cache = 2 * size.layers * size.kv_size * width  # bytes a token
    objective = run.objective_of(policy)
    rows = run.prompts * group.own
    generation = Phase(
        rows=rows,
        batch=sampling.batch,
        costs={
            name: Cost(
                once=0.0,
                batch=response * _read(kind, weights),
                row=_compute(kind, 2 * size.parameters * tokens)
                + response * _read(kind, cache * (cluster.prompt_tokens + response / 2)),
            )
            for name, kind in cluster.kinds.items()
        },
        state=weights,
        row_bytes=cache * tokens,
    )
    if "rollout" in run.probe_of(policy).needs:
        rows += run.prompts * sum(run.peers_of(policy.name).values())
    operations = 4 * size.parameters + 2 * trained
    # A scoring pass before several updates, and activations that are computed again.
    operations += 2 * size.parameters * ((objective.updates > 1) + policy.activation_checkpointing)
    kept = KEPT if policy.activation_checkpointing else ACTIVATION
    training = Phase(
        rows=rows,
        batch=max(1, objective.batch_tokens // tokens),
        costs={
            name: Cost(
                once=objective.updates * 2 * _read(kind, learned),
                batch=3 * _read(kind, weights),
                row=_compute(kind, operations * tokens),
            )
            for name, kind in cluster.kinds.items()
        },
        state=weights + learned,
        row_bytes=tokens
        * (kept * width * size.layers * size.hidden_size + LOGITS * size.vocab_size),
    )
    shared = weights if policy.engine.kind == "hf" else 0.0
    return Demand(policy.name, generation, training, shared)


def _trained_share(policy: PolicyConfig, told: DemandConfig, size: SizeConfig, /) -> float:
    if told.trainable is not None:
        return told.trainable
    return 1.0 if policy.lora is None else min(1.0, 2 * policy.lora.rank / size.hidden_size)


def _compute(kind: KindConfig, operations: float, /) -> float:
    """Seconds for floating-point operations."""
    return operations / (kind.tflops * 1e12 * kind.efficiency)


def _read(kind: KindConfig, size: float, /) -> float:
    """Seconds to read bytes from a device's memory."""
    return size / (kind.bandwidth_gbs * 1e9 * kind.efficiency)


def measured(
    demands: tuple[Demand, ...], run: Path, cluster: InventoryConfig, kind: str, /
) -> tuple[Demand, ...]:
    """Correct estimates by the phase times of a run on one device of a kind.

    Each phase of a policy is multiplied, on all kinds, by measured over estimated seconds of that
    run: medians over its rounds, the first of which is left out as it warms up.

    Parameters
    ----------
    demands : tuple of Demand
        Estimates for the run that is planned; sizes may differ from the measured run's.
    run : Path
        Folder of the measured run, with policies of the same names.
    cluster : InventoryConfig
    kind : str
        The kind of device it ran on.

    Raises
    ------
    InputError
        If the kind is unknown, a file cannot be read, or a policy was not timed.
    """
    if kind not in cluster.kinds:
        raise InputError(f"kind {kind!r} is not in the inventory; it has {sorted(cluster.kinds)}")
    then = load(run / "config.yaml")
    known = {policy.name for policy in then.policies}
    only = cluster.model_copy(
        update={"policies": {k: v for k, v in cluster.policies.items() if k in known}}
    )
    estimates = {demand.name: demand for demand in demands_of(then, only)}
    seconds = _phase_seconds(run / "timing.jsonl")
    corrected = []
    for demand in demands:
        if demand.name not in estimates or demand.name not in seconds:
            raise InputError(
                f"{run} has no times of policy {demand.name!r}; it has those of {sorted(seconds)}"
            )
        generate, update = seconds[demand.name]
        old = estimates[demand.name]
        corrected.append(
            replace(
                demand,
                generation=_times(demand.generation, generate / old.generation.seconds(kind, 1)),
                training=_times(demand.training, update / old.training.seconds(kind, 1)),
            )
        )
    return tuple(corrected)


def _phase_seconds(path: Path, /) -> Mapping[str, tuple[float, float]]:
    """Median seconds of generation and of training by policy."""
    seen: dict[str, list[tuple[float, float]]] = {}
    try:
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            spent = row["phases"]
            if row["policy"] is not None:
                times = float(spent["generate"]), float(spent["update"])
                seen.setdefault(row["policy"], []).append(times)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} is not the timing of a run ({type(error).__name__}: {error})"
        ) from None
    found = {}
    for name, rounds in seen.items():
        generate, update = zip(*(rounds[1:] or rounds), strict=True)
        found[name] = median(generate), median(update)
    return found


def _times(phase: Phase, factor: float, /) -> Phase:
    """The phase with all costs multiplied."""
    costs = {name: Cost(*(part * factor for part in cost)) for name, cost in phase.costs.items()}
    return replace(phase, costs=costs)
