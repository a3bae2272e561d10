"""What all sections of a configuration share."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, PlainSerializer

from bandit.probes import Probe, probe_from_config, probe_to_config


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, values cannot be changed afterwards."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, arbitrary_types_allowed=True, allow_inf_nan=False
    )


def _probe(value: Any) -> Probe:
    if isinstance(value, Probe):
        return value
    if not isinstance(value, Mapping):
        raise ValueError(f"got {value!r}; expected a mapping with the key 'kind'")
    return probe_from_config(value)


ProbeField = Annotated[
    Probe, BeforeValidator(_probe), PlainSerializer(probe_to_config, return_type=dict)
]
