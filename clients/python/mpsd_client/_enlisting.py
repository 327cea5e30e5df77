"""The first step of a service member, before CUDA begins in this process: it asks mpsd for the environment that CUDA needs."""

import ctypes
import os

from mpsd_client import _calls as calls
from mpsd_client._client import Client
from mpsd_client._place import remember

NOT_INITIALIZED = 3  # CUresult


def has_cuda_begun() -> bool:
    """Return whether cuInit was called in this process.  Loading the library, as PyTorch does, does not count."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOW | os.RTLD_NOLOAD)
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != NOT_INITIALIZED)


def enlist(name: str, path: str) -> None:
    """Enlist this process with mpsd, and set the environment variables that mpsd returns.  Raises RuntimeError if CUDA has
    begun already; Refused and OSError as Client does."""
    if has_cuda_begun():
        raise RuntimeError(
            f"CUDA has begun in this process, so that it has its fault domain: make Service({name!r}) before that"
        )
    with Client(path, program="mpsd_client") as mpsd:
        told = mpsd.ask(calls.service_enlist(name)).environment
    if "CUDA_MPS_PIPE_DIRECTORY" in told:
        remember(path)
    os.environ.update(told)
