"""Whether a model hub can be asked: decided by one short request, before libraries try at length.

`from_pretrained` and `load_dataset` ask a hub that does not answer again and again, with growing
pauses, for each file: most of a minute until they say that a name is not known.
"""

import importlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

TIMEOUT = 5.0


def local_only(name: str, /) -> bool:
    """Whether a model or tokenizer can only come from this machine: ``local_files_only``.

    True for a folder. True for a hub id where ``HF_HUB_OFFLINE`` is set or the hub gives no answer
    within 5 seconds: what is in its cache can still be loaded, and all else is an error at once.

    Parameters
    ----------
    name : str
        Local folder or hub id.
    """
    if Path(name).exists():
        return True
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    if constants.HF_HUB_OFFLINE:
        return True
    try:
        get_session().head(constants.ENDPOINT, timeout=TIMEOUT)
    except Exception:  # of the HTTP library that the hub's client uses, which has changed
        return True
    return False


@contextmanager
def offline() -> Iterator[None]:
    """Let the libraries of the hub look into their caches alone, for as long as the context lasts.

    They read ``HF_HUB_OFFLINE`` once, when they are imported; `load_dataset` has no argument like
    ``local_files_only``. So what they have read is replaced.
    """
    with ExitStack() as stack:
        for module in ("huggingface_hub.constants", "datasets.config"):
            settings = importlib.import_module(module)
            stack.enter_context(patch.object(settings, "HF_HUB_OFFLINE", True))
        yield
