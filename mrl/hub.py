"""Whether a model hub can be asked: decided by one short request, before libraries try at length.

`from_pretrained` asks a hub that does not answer again and again, with growing pauses, for each
file: most of a minute until it says that a name is not known.
"""

from pathlib import Path

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
