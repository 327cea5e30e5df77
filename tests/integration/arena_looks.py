"""The reports of arena_program.py and its checks of memory, read through the driver (cuMemcpy) and never through the views
under test."""

import ctypes
import json
from collections.abc import Callable
from ctypes import c_size_t, c_uint64
from typing import Any

from mpsd_client import Arena, TensorSpec
from mpsd_client._cuda import on_device

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def pattern(seed: int, size: int) -> bytes:
    return bytes((seed + 7 * number) % 251 for number in range(251)) * (size // 251 + 1)


def poke(arena: Arena, address: int, seed: int, size: int) -> None:
    with on_device(arena.device):
        assert cuda.cuMemcpyHtoD_v2(c_uint64(address), pattern(seed, size), c_size_t(size)) == 0


def is_there(arena: Arena, address: int, seed: int, size: int) -> bool:
    found = ctypes.create_string_buffer(size)
    with on_device(arena.device):
        assert cuda.cuMemcpyDtoH_v2(found, c_uint64(address), c_size_t(size)) == 0
    return found.raw == pattern(seed, size)[:size]


def refusal(call: Callable[[], Any]) -> str:
    """What a call raises, in words that a test can compare."""
    try:
        call()
    except Exception as exc:
        return f"{type(exc).__name__}: {exc}"
    return "nothing"


def dense(offset: int, dtype: str, *shape: int) -> TensorSpec:
    strides = [1]
    for size in shape[:0:-1]:
        strides.append(strides[-1] * size)
    return TensorSpec(offset, dtype, shape, tuple(reversed(strides)))
