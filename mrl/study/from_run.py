"""The world that a run is in: its policies' own responses, scored by all of them.

`world_of_run` samples and scores, which needs torch; what it returns and stores does not.
Source: docs/study.md, "A run as a world".
"""

from collections.abc import Sequence
from pathlib import Path

from bandit import exact
from bandit.probes import GRPO, Probe, probe_to_config
from mrl import config as configuration
from mrl.config import RunConfig, StudyConfig
from mrl.errors import InputError
from mrl.run_world import FILE, RunWorld
from mrl.runs import read_status
from mrl.study.regime import OWN, STANDARD, like

PROMPTS, SAMPLES = 16, 64
# Characters of a world's label; see mrl.config.study.
MAX_LABEL = 60


def world_of_run(
    folder: str | Path,
    /,
    *,
    prompts: int = PROMPTS,
    samples: int = SAMPLES,
    round: int | None = None,
) -> RunWorld:
    """Build the world of a run, or read it where it is stored; it is kept in the run's folder.

    Every policy samples responses to the first prompts that the run trains on; each different
    response is an arm, and every policy scores it in its own tokens. The result is a function of
    the run's seed, the weights and the arguments.

    Parameters
    ----------
    folder : str or Path
        A run's folder.
    prompts : int
        Contexts: that many prompts, in the order in which the run comes to them.
    samples : int
        Responses of each policy to each prompt.
    round : int, optional
        Rounds done by the weights: 0 for those the run started from, else those of a checkpoint
        that is kept. Default: the newest.

    Returns
    -------
    RunWorld

    Raises
    ------
    InputError
        If there is no run or checkpoint, or a number is out of range.
    """
    folder = Path(folder)
    stored = stored_world(folder, prompts=prompts, samples=samples, round=round)
    if stored is not None:
        return stored
    from mrl.reload import load_policies
    from mrl.study.scoring import sampled_world
    from mrl.tasks import load_task

    config, policies, done = load_policies(folder, round)
    task = load_task(config.task, config.seed)
    found = sampled_world(config, policies, task, done, prompts, samples)
    found.save(folder / FILE.format(round=done))
    return found


def stored_world(
    folder: Path, /, *, prompts: int, samples: int, round: int | None
) -> RunWorld | None:
    """The world that `world_of_run` would build, where the run's folder has it.

    Raises
    ------
    InputError
        If there is no run, a number is out of range, or the file is damaged.
    """
    if not (folder / "config.yaml").is_file():
        raise InputError(f"{folder} holds no run; expected the folder of a run, with config.yaml")
    for name, value in (("prompts", prompts), ("samples", samples)):
        if value < 1:
            raise InputError(f"{name}={value} is not allowed; expected a number >= 1")
    done = read_status(folder).get("rounds_done", 0) if round is None else round
    path = folder / FILE.format(round=done)
    found = RunWorld.load(path) if path.is_file() else None
    asked = (prompts, samples)
    return found if found is not None and (found.prompts, found.samples) == asked else None


def sizes_of(config: RunConfig, /) -> tuple[int, int]:
    """Own rollouts of each policy a prompt, and those that it sees of each peer.

    Raises
    ------
    InputError
        If policies differ in them: a study has one number for all.
    """
    own = {config.group_of(policy).own for policy in config.policies}
    peers = {n for policy in config.policies for n in config.peers_of(policy.name).values()}
    if len(own) > 1 or len(peers) > 1:
        raise InputError(
            f"the policies of {config.folder} draw {sorted(own)} rollouts a prompt and see "
            f"{sorted(peers)} of each peer, and a study has one number for all; write a study file "
            "with a world of kind run, and one number in own and in peers"
        )
    return max(own), max(peers, default=0)


def study_of_run(folder: Path, found: RunWorld, assignments: Sequence[str] = (), /) -> StudyConfig:
    """The study of a run's own world: its rule among the standard ones, at its group sizes.

    Every policy is a receiver; the residual is the one that was measured. The bound on the cost of
    what is recommended is what GRPO costs on its noisiest prompt: no more noise than without
    sharing.

    Parameters
    ----------
    folder : Path
        The run's folder; holds the world's file.
    found : RunWorld
        The world.
    assignments : sequence of str
        Overrides of the study, ``key=value``.

    Raises
    ------
    InputError
        If policies differ in their group sizes, or an override cannot be right.
    """
    config = configuration.load(folder / "config.yaml")
    own, peers = sizes_of(config)
    values = {
        "kind": "study",
        "name": config.name,
        "seed": config.seed,
        "worlds": {
            _label(found): {
                "kind": "run",
                "path": str(folder / FILE.format(round=found.round)),
            }
        },
        "rules": {label: probe_to_config(rule) for label, rule in rules_of(config).items()},
        "own": own,
        "peers": peers,
        "receivers": None,
        "residual": {"measured": True},
        "max_stability_cost": _noisiest(found, config.group.own),
    }
    return configuration.parse_study(
        configuration.override(values, assignments), source=f"the study of {folder}"
    )


def _label(found: RunWorld, /) -> str:
    """Name of the world in tables and titles, with the policies by number as far as they fit."""
    label = f"{found.run} after {found.round} rounds"
    names = f"{label} ({', '.join(found.policies)})"
    return names if len(names) <= MAX_LABEL else label[:MAX_LABEL]


def rules_of(config: RunConfig, /) -> dict[str, Probe]:
    """The standard rules, and the run's own where they are others, in place of their like."""
    own: dict[Probe, list[str]] = {}
    for policy in config.policies:
        own.setdefault(config.probe_of(policy), []).append(policy.name)
    whose = {
        probe: OWN if len(own) == 1 else f" ({', '.join(names)})" for probe, names in own.items()
    }
    rules = {f"{label}{whose.get(probe, '')}": probe for label, probe in STANDARD.items()}
    for probe, mark in whose.items():
        if probe not in STANDARD.values():
            rules.pop(like(probe), None)
            rules[f"{probe.kind.upper()}{mark}"] = probe
    return rules


def _noisiest(found: RunWorld, own: int, /) -> float | None:
    """Largest stability cost of GRPO in any prompt, over receivers; None where all are 0."""
    costs = [
        exact.moments(found.world, GRPO(), receiver=i, own=own, peers=0).covariance_trace.max()
        for i in range(len(found.policies))
    ]
    return float(max(costs)) or None
