"""A finished run's policies, loaded from its newest checkpoint."""

from pathlib import Path

from mrl import config as configuration
from mrl.checkpoint import latest, load
from mrl.config import EvaluationConfig, RunConfig
from mrl.errors import InputError
from mrl.evaluate import Evaluation, evaluate
from mrl.policy import Policy, build_policies, engines
from mrl.seeds import derive
from mrl.tasks import load_task


def load_policies(folder: Path, /) -> tuple[RunConfig, list[Policy], int]:
    """Configuration, policies and rounds done of the newest checkpoint in a run's folder.

    Raises
    ------
    InputError
        If the folder holds no run or the run has no checkpoint yet.
    """
    config = configuration.load(folder / "config.yaml")
    path = latest(folder / "checkpoints")
    if path is None:
        raise InputError(
            f"{folder} has no checkpoint yet; train it first, or lower checkpoint.every"
        )
    policies = build_policies(config)
    rounds_done: int = load(path, policies)["rounds_done"]
    return config, policies, rounds_done


def evaluate_run(folder: Path, /, *, samples: int, items: int) -> Evaluation:
    """Evaluate the newest checkpoint of a run on the first held-out items of its task."""
    config, policies, rounds_done = load_policies(folder)
    settings = EvaluationConfig(samples=samples, items=items, ks=tuple(sorted({1, samples})))
    with engines(policies):
        return evaluate(
            policies,
            load_task(config.task, config.seed),
            settings,
            round=rounds_done,
            seed=derive(config.seed, "evaluate", rounds_done),
        )
