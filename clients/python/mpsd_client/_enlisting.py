"""The first step of a member of a service: mpsd hears of it before CUDA begins in this process, and says what CUDA shall find
in the environment."""

import ctypes
import os

from mpsd_client import _calls as calls
from mpsd_client._client import Client
from mpsd_client._place import remember

NOT_INITIALIZED = 3  # CUresult


def has_cuda_begun() -> bool:
    """Whether cuInit was called in this process.  What is only loaded, as PyTorch loads it, has not begun."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALIZED)


def enlist(name: str, path: str) -> None:
    """Raises RuntimeError: it is too late for that; Refused, OSError as Client does."""
    if has_cuda_begun():
        raise RuntimeError(
            f"CUDA has begun in this process, so that it has its fault domain: make Service({name!r}) before that"
        )
    with Client(path, program="mpsd_client") as mpsd:
        told = mpsd.ask(calls.service_enlist(name)).environment
    if "CUDA_MPS_PIPE_DIRECTORY" in told:
        remember(path)
    os.environ.update(told)
