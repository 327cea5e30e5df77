"""Guards that a process lays into its own address space: run as a program, `python sim_guards.py VERB ...`."""

import ctypes
import sys
from ctypes import byref, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from sim_driver import GRANULE, call, count_wrong, cuda, launch, say, start
from sim_memory import SEED, allocate, allow, create, kernel, place, reserve

FREE, CREATE_RANGE, MAP_SPARSE = 34, 73, 74
K64 = 0x10000


class Range(ctypes.Structure):
    _fields_ = [("base", c_uint64), ("length", c_uint64), ("status", c_uint), ("reserved", c_uint)]


class Sparse(ctypes.Structure):
    _fields_ = [("base", c_uint64), ("length", c_uint64), ("uuid", c_ubyte * 16), ("status", c_uint), ("reserved", c_uint)]


def uvm(number: int, base: int, length: int) -> int:
    """The status."""
    if number == MAP_SPARSE:
        sparse = Sparse(base, length, gpu_uuid(), 0xFFFF)
        assert cuda.mpsd_sim_uvm_ioctl(-1, c_uint64(number), byref(sparse)) == 0
        return int(sparse.status)
    plain = Range(base, length, 0xFFFF)
    assert cuda.mpsd_sim_uvm_ioctl(-1, c_uint64(number), byref(plain)) == 0
    return int(plain.status)


def gpu_uuid() -> Any:
    uuid = (c_ubyte * 16)()
    call("cuDeviceGetUuid_v2", byref(uuid), 0)
    return uuid


def lay(base: int, length: int) -> int:
    return uvm(CREATE_RANGE, base, length) or uvm(MAP_SPARSE, base, length)


def refusals() -> None:
    """Each call that the module refuses, and its status."""
    start()
    memory, window = allocate(1 << 20).value, reserve(16 * GRANULE).value
    found = {
        "base 0": uvm(CREATE_RANGE, 0, K64),
        "not of pages": uvm(CREATE_RANGE, window + 1, K64),
        "over memory": uvm(CREATE_RANGE, memory, K64),
        "reaching into memory": uvm(CREATE_RANGE, memory - K64, 2 * K64),
        "in a window": lay(window, K64),
        "the same": uvm(CREATE_RANGE, window, K64),
        "overlapping": uvm(CREATE_RANGE, window - K64, 2 * K64),
        "sparse over nothing": uvm(MAP_SPARSE, window + GRANULE, K64),
        "free a part": uvm(FREE, window, K64 // 2),
        "free": uvm(FREE, window, K64),
        "free twice": uvm(FREE, window, K64),
        "free memory": uvm(FREE, memory, 1 << 20),
        "4 KiB sparse": uvm(CREATE_RANGE, window, 4096) or uvm(MAP_SPARSE, window, 4096),
    }
    other = Sparse(window, 4096, (c_ubyte * 16)(), 0xFFFF)
    other.base, other.length = window + 4 * GRANULE, K64
    uvm(CREATE_RANGE, other.base, other.length)
    cuda.mpsd_sim_uvm_ioctl(-1, c_uint64(MAP_SPARSE), byref(other))
    found["another GPU"] = int(other.status)
    found["another number"] = cuda.mpsd_sim_uvm_ioctl(-1, c_uint64(75), byref(other))
    found["nothing"] = cuda.mpsd_sim_uvm_ioctl(-1, c_uint64(FREE), None)
    say(**found)


def guarded() -> None:
    """A mapping with guards around it, and one where it was."""
    kernels = start()
    window = reserve(16 * GRANULE).value
    handle, middle = create(), window + 4 * GRANULE
    place(middle, handle)
    allow(middle, GRANULE)
    laid = [lay(middle - K64, K64), lay(middle + GRANULE, 2 * GRANULE)]
    launch(kernels["fill"], middle - K64, (GRANULE + 2 * K64) // 8, SEED)
    over = cuda.cuCtxSynchronize()
    inside = count_wrong(kernels["check"], middle - K64, K64 // 8)  # its zeros
    call("cuMemUnmap", c_uint64(middle), c_size_t(GRANULE))
    laid.append(lay(middle, GRANULE))
    launch(kernel("use_after_free"), middle)
    freed = cuda.cuCtxSynchronize()
    laid.append(uvm(FREE, middle, GRANULE))
    place(middle, handle)
    allow(middle, GRANULE)
    launch(kernel("use_after_free"), middle)
    word = c_uint64()
    call("cuMemcpyDtoH_v2", byref(word), c_uint64(middle), c_size_t(8))
    say(laid=laid, over=over, inside=inside, freed=freed, is_back=word.value == middle)


def thousand_guards(count_text: str) -> None:
    start()
    window = reserve(int(count_text) * 2 * GRANULE).value
    laid = {lay(window + each * 2 * GRANULE, GRANULE) for each in range(int(count_text))}
    launch(kernel("use_after_free"), window + (int(count_text) // 2) * 2 * GRANULE)
    say(laid=list(laid), write=cuda.cuCtxSynchronize())


def sparse_over_memory() -> None:
    """Do what no program may do: the driver accepts it, and the process dies."""
    start()
    memory, endless = allocate(1 << 20), kernel("hang")
    launch(endless, memory.value)
    status = uvm(MAP_SPARSE, memory.value, 1 << 20)
    say(status=status, code=cuda.cuCtxSynchronize())


def managed_guard() -> None:
    """When its stdin ends it writes into one, twice into the same page and once into the next."""
    start()
    window = reserve(16 * GRANULE).value
    wild = kernel("use_after_free")
    assert cuda.mpsd_sim_uvm_mmap(c_void_p(window), c_size_t(GRANULE)) == 0
    say(event="ready", window=window)
    sys.stdin.read()
    for offset in (4096, 8192, K64):
        launch(wild, window + offset)
    say(event="end", code=cuda.cuCtxSynchronize(), word=c_uint64.from_address(window + 4096).value - window)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
