"""The schema of a study: a grid of worlds, sharing rules, group sizes, residuals and receivers.

Where a setting may be swept, a list of values stands for one value after another; the grid is the
product of all lists.
"""

import difflib
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from bandit import Residual, World, worlds
from bandit.optimizers import OptimizerKind
from bandit.probes import Probe, probe_from_config
from mrl.config.base import Section
from mrl.config.gating import GateConfig
from mrl.errors import InputError
from mrl.run_world import RunWorld

T = TypeVar("T")
# A label stands in tables and file names.
Label = Annotated[str, Field(min_length=1, max_length=60)]
Swept = Annotated[
    tuple[T, ...],
    BeforeValidator(lambda value: value if isinstance(value, list | tuple) else [value]),
    Field(min_length=1),
]
Probability = Annotated[float, Field(ge=0, le=1)]
Finite = Annotated[float, Field(allow_inf_nan=False)]


@dataclass(frozen=True)
class Variant:
    """One combination of the swept settings of a section.

    Attributes
    ----------
    settings : dict
        Every setting, each with one value.
    swept : dict
        Those that are swept in the section.
    """

    settings: dict[str, Any]
    swept: dict[str, Any]

    def name(self, label: str, /) -> str:
        """``label``, with the values of what is swept."""
        return ", ".join([label, *(f"{key}={_short(value)}" for key, value in self.swept.items())])


@dataclass(frozen=True)
class Point(Generic[T]):
    """A world or a sharing rule of the grid.

    Attributes
    ----------
    label : str
        Its name in tables and figures, swept values included.
    swept : dict
        The values of what is swept.
    value : World or Probe
        The thing itself.
    residuals : tuple of Residual
        Of the world of a run, what was measured for each policy as receiver.
    """

    label: str
    swept: dict[str, Any]
    value: T
    residuals: tuple[Residual, ...] = ()


class ExampleWorld(Section):
    """A named example world of `bandit.worlds`."""

    kind: Literal["example"]
    name: str
    """Name of the function, for example ``rare_success`` or ``specialists``."""
    params: dict[str, Any] = {}
    """Its parameters; a list is swept. A random world takes its draw from ``seed``."""

    @model_validator(mode="after")
    def _known(self) -> "ExampleWorld":
        examples = example_worlds()
        if self.name not in examples:
            raise ValueError(
                f"world {self.name!r} is unknown; expected one of {sorted(examples)}"
                + _did_you_mean(self.name, list(examples))
            )
        known = _parameters(examples[self.name])
        for key in self.params:
            if key not in known:
                raise ValueError(
                    f"world {self.name!r} has no parameter {key!r}; expected any of {list(known)}"
                    + _did_you_mean(key, list(known))
                )
        missing = [key for key, default in known.items() if default is inspect.Parameter.empty]
        if lacking := [key for key in missing if key not in self.params]:
            raise ValueError(f"world {self.name!r} needs the parameters {lacking}")
        for key, value in self.params.items():
            _check_numbers(key, value)
        return self

    def variants(self) -> list[Variant]:
        """Every combination of the parameters."""
        defaults = _parameters(example_worlds()[self.name])
        depth = {key: _depth(defaults[key]) for key in self.params}
        return _variants(self.params, depth)

    def build(self, settings: Mapping[str, Any], /) -> World:
        """The world of one variant."""
        example = example_worlds()[self.name]
        settings = dict(settings)
        if "rng" in inspect.signature(example).parameters:
            return example(np.random.default_rng(settings.pop("seed", 0)), **settings)
        call = inspect.signature(example).bind(*_positional(example, settings), **settings)
        return example(*call.args, **call.kwargs)


class SuccessWorld(Section):
    """The gate's world: success probabilities of each policy on each kind of prompt."""

    kind: Literal["success"]
    success: tuple[Any, ...]
    """Rows are policies, columns kinds of prompts, as ``gate.success``; a list of such tables is
    swept."""
    arms: Swept[int] = (16,)
    """Responses a prompt."""

    @model_validator(mode="after")
    def _tables(self) -> "SuccessWorld":
        for variant in self.variants():
            GateConfig(success=variant.settings["success"], arms=variant.settings["arms"])
        return self

    def variants(self) -> list[Variant]:
        """Every combination of table and number of arms."""
        return _variants({"success": self.success, "arms": self.arms}, {"success": 2, "arms": 0})

    def build(self, settings: Mapping[str, Any], /) -> World:
        """The world of one variant."""
        return worlds.from_success(settings["success"], arms=settings["arms"])


class TableWorld(Section):
    """A world given number by number."""

    kind: Literal["table"]
    probs: tuple[tuple[tuple[float, ...], ...], ...]
    """Probability of each arm in each context, by policy: ``probs[policy][context][arm]``."""
    rewards: tuple[tuple[float, ...], ...]
    """Reward of each arm in each context."""
    weights: tuple[float, ...] | None = None
    """Share of each context; default: equal."""
    success_threshold: float = 1.0
    """Reward from which an arm counts as a success."""

    def variants(self) -> list[Variant]:
        """List the one world."""
        return [Variant({}, {})]

    def build(self, settings: Mapping[str, Any], /) -> World:
        """Build the world."""
        return World.tabular(self.probs, self.rewards, self.weights, self.success_threshold)


class MeasuredWorld(Section):
    """The world of a run, as ``mrl study --world-from`` left it in the run's folder."""

    kind: Literal["run"]
    path: str
    """The file ``world-NNNNNN.npz``."""

    def variants(self) -> list[Variant]:
        """List the one world."""
        return [Variant({}, {})]

    def build(self, settings: Mapping[str, Any], /) -> World:
        """Read the world."""
        return self.read().world

    def read(self) -> RunWorld:
        """Read the file.

        Raises
        ------
        ValueError
            If it is not there or damaged.
        """
        try:
            return RunWorld.load(self.path)
        except InputError as error:
            raise ValueError(str(error)) from None


WorldConfig = Annotated[
    ExampleWorld | SuccessWorld | TableWorld | MeasuredWorld, Field(discriminator="kind")
]


def _rule(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise ValueError(f"got {value!r}; expected a mapping with the key 'kind'")
    if isinstance(value.get("kind"), list):
        raise ValueError("kind is a list; expected one: give each kind of rule a label of its own")
    for variant in rule_variants(value):
        probe_from_config(variant.settings)
    return dict(value)


RuleConfig = Annotated[dict[str, Any], BeforeValidator(_rule)]


def rule_variants(rule: Mapping[str, Any], /) -> list[Variant]:
    """Every combination of the settings of a sharing rule."""
    return _variants(rule, dict.fromkeys(rule, 0))


class ResidualConfig(Section):
    """What tokenizers do to peers' rollouts; see `bandit.Residual`. Every setting may be swept."""

    mu: Swept[Finite] = (0.0,)
    """Mean error of the log-ratio, in nats."""
    sigma: Swept[Annotated[Finite, Field(ge=0)]] = (0.0,)
    """Standard deviation of the error."""
    drop: Swept[Probability] = (0.0,)
    """Probability that the receiver cannot represent a rollout."""
    gate: Swept[Probability] = (0.0,)
    """Probability that a rollout fails the canonicality gate."""
    measured: bool = False
    """What was measured for each receiver in the worlds of runs, in place of the four numbers."""

    @model_validator(mode="after")
    def _one(self) -> "ResidualConfig":
        if self.measured and {*self.mu, *self.sigma, *self.drop, *self.gate} != {0.0}:
            raise ValueError("got measured together with mu, sigma, drop or gate; expected one")
        return self


class LearningConfig(Section):
    """Learning curves of all policies together; see `bandit.dynamics.run`."""

    steps: int = Field(200, ge=1)
    """Updates."""
    lr: float = Field(1.0, gt=0, allow_inf_nan=False)
    """Learning rate."""
    replicas: int = Field(32, ge=1)
    """Independent runs."""
    optimizer: OptimizerKind = "sgd"
    """Plain gradient, Adam, or the natural gradient."""
    max_norm: float | None = Field(None, gt=0)
    """Bound on the norm of a policy's gradient; null: none."""


class AnalysisConfig(Section):
    """How the grid is analysed."""

    method: Literal["exact", "sampled", "both", "sampled_if_too_large"] = "exact"
    """``exact``: closed forms, an error where a group is too large for them. ``sampled``:
    simulation. ``both``: one beside the other. ``sampled_if_too_large``: simulation where the
    closed forms refuse; the column ``method`` says which it was."""
    draws: int = Field(20_000, ge=2)
    """Simulated gradients of each cell, where there is simulation."""
    controls: bool = True
    """Add what sharing must beat: GRPO with G + M own rollouts, GRPO with dynamic sampling, and
    likelihood steps on peers' successes without a gate. Always exact."""
    rare: Probability = 0.01
    """Success arms below this probability count for the column ``open_flow``."""
    dynamics: LearningConfig | None = None
    """Learning curves; null: none."""


class StudyConfig(Section):
    """A study: what is placed on the stability-support plane, and how."""

    kind: Literal["study"]
    """Tells a study from a run."""
    name: str = Field("study", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name of the study and of its folder."""
    seed: int = Field(0, ge=0)
    """Every result is a function of the configuration and this number."""
    output: str = "runs"
    """Folder that holds the study's folder."""
    worlds: dict[Label, WorldConfig] = Field(min_length=1)
    """Worlds by label."""
    rules: dict[Label, RuleConfig] = Field(min_length=1)
    """Sharing rules by label: ``kind`` and settings; a list is swept."""
    own: Swept[Annotated[int, Field(ge=1)]] = (8,)
    """Rollouts of the receiver a prompt (G)."""
    peers: Swept[Annotated[int, Field(ge=0)]] = (8,)
    """Rollouts seen of each peer a prompt."""
    receivers: Swept[Annotated[int, Field(ge=0)]] | None = (0,)
    """Policies that receive, by number; null: all."""
    residual: ResidualConfig = ResidualConfig()
    """Tokenizer residual."""
    analysis: AnalysisConfig = AnalysisConfig()
    """Closed forms, simulation, learning curves."""
    max_stability_cost: float | None = Field(None, gt=0)
    """Bound on the stability cost within which the page recommends a setting; null: none asked
    for."""
    min_cosine: float = Field(-1.0, ge=-1, le=1)
    """Least cosine to the true gradient of what the page recommends; -1: any bias will do."""
    max_figures: int = Field(12, ge=0)
    """Figures drawn at most, the first of every kind first; the page says how many it leaves
    out."""

    @model_validator(mode="after")
    def _sound(self) -> "StudyConfig":
        for point in self.world_points():
            beyond = [i for i in self.receivers_of(point.value) if i >= point.value.n_policies]
            if beyond:
                raise ValueError(
                    f"receivers names {beyond}, and world {point.label!r} has policies 0 to "
                    f"{point.value.n_policies - 1}"
                )
        if self.residual.measured:
            self._check_measured()
        for section, labels in (
            ("worlds", [point.label for point in self.world_points()]),
            ("rules", [point.label for point in self.rule_points()]),
        ):
            if double := sorted({label for label in labels if labels.count(label) > 1}):
                raise ValueError(f"{section}: two have the label {double[0]!r}; rename one")
        return self

    def _check_measured(self) -> None:
        others = [k for k, one in self.worlds.items() if not isinstance(one, MeasuredWorld)]
        if others or self.analysis.dynamics is not None:
            what = f"worlds {others}" if others else "learning curves (analysis.dynamics)"
            raise ValueError(
                f"residual.measured does not go with {what}; expected worlds of kind run, and the "
                "plane: a residual is measured for one receiver and one state of the policies"
            )

    @property
    def folder(self) -> Path:
        """The study's folder."""
        return Path(self.output) / self.name

    @property
    def probes(self) -> dict[str, Probe]:
        """Every sharing rule by its label in tables and figures."""
        return {point.label: point.value for point in self.rule_points()}

    def rule_points(self) -> list["Point[Probe]"]:
        """Every sharing rule of the grid."""
        return [
            Point(variant.name(label), variant.swept, probe_from_config(variant.settings))
            for label, rule in self.rules.items()
            for variant in rule_variants(rule)
        ]

    def world_points(self) -> Iterator["Point[World]"]:
        """Build every world of the grid.

        Raises
        ------
        ValueError
            Naming the world, if its parameters do not fit together.
        """
        for label, section in self.worlds.items():
            for variant in section.variants():
                try:
                    world = section.build(variant.settings)
                    residuals = self._measured(section, world)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"worlds.{label}: {error}") from None
                yield Point(variant.name(label), variant.swept, world, residuals)

    def _measured(self, section: WorldConfig, world: World, /) -> tuple[Residual, ...]:
        if not self.residual.measured or not isinstance(section, MeasuredWorld):
            return ()
        return tuple(section.read().residual(i) for i in range(world.n_policies))

    def receivers_of(self, world: World, /) -> Sequence[int]:
        """The policies of a world that receive."""
        return range(world.n_policies) if self.receivers is None else self.receivers


def example_worlds() -> dict[str, Callable[..., World]]:
    """The named worlds of `bandit.worlds`."""
    return {name: getattr(worlds, name) for name in worlds.EXAMPLES}


def _parameters(example: Callable[..., World], /) -> dict[str, Any]:
    """Parameters of an example world with their defaults; ``seed`` for a generator."""
    parameters = inspect.signature(example).parameters
    return {
        ("seed" if name == "rng" else name): (0 if name == "rng" else parameter.default)
        for name, parameter in parameters.items()
    }


def _positional(example: Callable[..., World], settings: dict[str, Any], /) -> list[Any]:
    """Take what can only be given by position out of `settings`."""
    return [
        settings.pop(name)
        for name, parameter in inspect.signature(example).parameters.items()
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY and name in settings
    ]


def _variants(settings: Mapping[str, Any], depth: Mapping[str, int], /) -> list[Variant]:
    """Every combination of values; one value of setting k is a list `depth[k]` deep."""
    swept = {key: _depth(value) > depth[key] for key, value in settings.items()}
    choices = [value if swept[key] else [value] for key, value in settings.items()]
    if empty := [key for key, choice in zip(settings, choices, strict=True) if len(choice) == 0]:
        raise ValueError(f"{empty[0]} is an empty list; expected at least one value")
    several = [key for key in settings if swept[key] and len(settings[key]) > 1]
    found = []
    for values in itertools.product(*choices):
        one = dict(zip(settings, values, strict=True))
        found.append(Variant(one, {key: one[key] for key in several}))
    return found


def _depth(value: Any, /) -> int:
    """How many lists deep a value is; an empty list counts as one."""
    if not isinstance(value, list | tuple):
        return 0
    return 1 + (_depth(value[0]) if value else 0)


def _check_numbers(name: str, value: Any, /) -> None:
    """Refuse whatever is no number, however deep in lists."""
    if isinstance(value, list | tuple):
        for one in value:
            _check_numbers(name, one)
    elif isinstance(value, str):
        raise ValueError(
            f"{name}: got the text {value!r}; expected a number (YAML reads 1e-3 as text: write "
            "1.0e-3)"
        )
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name}: got {value!r}; expected a number")


def _short(value: Any, /) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return "[" + " ".join(_short(one) for one in value) + "]"
    return "null" if value is None else str(value)


def _did_you_mean(word: str, known: Sequence[str], /) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""
