"""Loggers beside the run's own metrics file."""

from pydantic import Field

from mrl.config.base import Section


class LoggingConfig(Section):
    """Figures by round also go to these; ``metrics.jsonl`` is always written."""

    tensorboard: bool = False
    """Event files in ``tensorboard`` of the run's folder."""
    trackio: str | None = Field(None, min_length=1)
    """Project in trackio's local store (the environment variable TRACKIO_DIR says where)."""
    wandb: str | None = Field(None, min_length=1)
    """Project in Weights & Biases; WANDB_MODE=offline keeps it on this machine."""
