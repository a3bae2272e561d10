"""What vLLM would change in the process that it is a guest of, kept as it was."""

import os
import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from mrl.environment import environment


@contextmanager
def undisturbed() -> Iterator[None]:
    """Keep the process's random streams, and torch's thread setting, which vLLM takes away."""
    streams, numpy_stream = random.getstate(), np.random.get_state()  # noqa: NPY002
    set_num_threads = torch.set_num_threads
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(streams)
        np.random.set_state(numpy_stream)  # noqa: NPY002
        torch.set_num_threads = set_num_threads


@contextmanager
def quiet_and_in_process() -> Iterator[None]:
    """Let vLLM start in this process, and print errors only unless the user wants more."""
    settings = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    if "VLLM_LOGGING_LEVEL" not in os.environ:
        settings["VLLM_LOGGING_LEVEL"] = "ERROR"
    with environment(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how it uses other libraries
        yield
