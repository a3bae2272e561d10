"""A run's policies, loaded from one of its checkpoints."""

from pathlib import Path

from mrl import config as configuration
from mrl.checkpoint import best_of, latest, load
from mrl.config import EvaluationConfig, RunConfig
from mrl.errors import InputError
from mrl.evaluate import Evaluation, evaluate
from mrl.policy import Policy, build_policies
from mrl.seeds import derive
from mrl.tasks import load_task


def load_policies(folder: Path, /, *, best: bool = False) -> tuple[RunConfig, list[Policy], int]:
    """Configuration, policies and rounds done of a checkpoint in a run's folder.

    Parameters
    ----------
    folder : Path
        The run's folder.
    best : bool
        The checkpoint that evaluations found best (`checkpoint.best`). Default: the newest.

    Raises
    ------
    InputError
        If the folder holds no run, or the run has no such checkpoint yet.
    """
    config = configuration.load(folder / "config.yaml")
    checkpoints = folder / "checkpoints"
    path, found = latest(checkpoints), best_of(checkpoints)
    if best and found is None:
        raise InputError(
            f"{folder} has no checkpoint with an evaluation of its own; set checkpoint.best and "
            "evaluation.every, or take the newest"
        )
    if best and found is not None:
        path = found[0]
    if path is None:
        raise InputError(
            f"{folder} has no checkpoint yet; train it first, or lower checkpoint.every"
        )
    policies = build_policies(config)
    rounds_done: int = load(path, policies)["rounds_done"]
    return config, policies, rounds_done


def evaluate_run(folder: Path, /, *, samples: int, items: int, best: bool = False) -> Evaluation:
    """Evaluate a checkpoint of a run, see `load_policies`, on the first held-out items."""
    config, policies, rounds_done = load_policies(folder, best=best)
    settings = EvaluationConfig(samples=samples, items=items, ks=tuple(sorted({1, samples})))
    return evaluate(
        policies,
        load_task(config.task, config.seed),
        settings,
        round=rounds_done,
        seed=derive(config.seed, "evaluate", rounds_done),
    )
