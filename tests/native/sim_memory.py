"""Memory through ctypes: run as a program, `python sim_memory.py VERB ...`, like sim_driver.py, whose functions it uses."""

import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from sim_driver import (
    ADDRESS,
    GRANULE,
    Access,
    Location,
    Properties,
    call,
    count_wrong,
    cuda,
    launch,
    load,
    map_at,
    say,
    start,
)

KERNELS = Path(__file__).resolve().parents[1] / "clients/kernels.ptx"
SEED = 12345
ADDRESS_OF_RANGE, SIZE_OF_RANGE, IS_MANAGED, MEMORY_TYPE, ORDINAL, POOL_OF = 11, 12, 8, 2, 9, 17


def kernel(name: str) -> c_void_p:
    function = c_void_p()
    call("cuModuleGetFunction", byref(function), load(KERNELS.read_bytes()), name.encode())
    return function


def create(size: int = GRANULE) -> c_uint64:
    handle = c_uint64()
    call("cuMemCreate", byref(handle), c_size_t(size), byref(Properties(1, 1, Location(1, 0))), c_uint64(0))
    return handle


def reserve(size: int, wish: int = 0) -> c_uint64:
    address = c_uint64()
    call("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(wish), c_uint64(0))
    return address


def allocate(size: int) -> c_uint64:
    memory = c_uint64()
    call("cuMemAlloc_v2", byref(memory), c_size_t(size))
    return memory


def place(address: int, handle: c_uint64) -> None:
    call("cuMemMap", c_uint64(address), c_size_t(GRANULE), c_size_t(0), handle, c_uint64(0))


def allow(address: int, size: int) -> None:
    call("cuMemSetAccess", c_uint64(address), c_size_t(size), byref(Access(Location(1, 0), 3)), c_size_t(1))


def export(handle: c_uint64) -> int:
    shared = c_int()
    call("cuMemExportToShareableHandle", byref(shared), handle, 1, c_uint64(0))
    return shared.value


def free_mib() -> int:
    free, total = c_size_t(), c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value >> 20


# -- how many ---------------------------------------------------------------------------------------------------------


def many(count_text: str) -> None:
    """Handles and reservations by the thousand: CPU seconds for the first and the last tenth of each."""
    count = int(count_text)
    start()
    handles: list[c_uint64] = []
    reserved: list[c_uint64] = []
    made = in_tenths(count, lambda: handles.append(create()))
    addresses = in_tenths(count, lambda: reserved.append(reserve(GRANULE)))
    order = sorted(range(count), key=lambda each: each * 7919 % count)
    gone = in_tenths(count, iter_calls("cuMemRelease", [(handles[each],) for each in order]))
    left = in_tenths(count, iter_calls("cuMemAddressFree", [(reserved[each], c_size_t(GRANULE)) for each in order]))
    say(tenths=[made, addresses, gone, left])


def iter_calls(name: str, arguments: list[tuple[Any, ...]]) -> Any:
    rest = iter(arguments)
    return lambda: call(name, *next(rest))


def in_tenths(count: int, do: Any) -> tuple[float, float]:
    seconds = []
    for _ in range(10):
        begun = time.process_time()
        for _ in range(count // 10):
            do()
        seconds.append(time.process_time() - begun)
    return seconds[0], seconds[-1]


def adopt_many(count_text: str) -> None:
    """Exported, mapped and allowed in one call, used at both ends; imported anew, the same bytes."""
    count = int(count_text)
    kernels = start()
    size = count * GRANULE
    window = reserve(size, ADDRESS).value
    handles = [create() for _ in range(count)]
    shared = [export(handle) for handle in handles]
    for index, handle in enumerate(handles):
        place(window + index * GRANULE, handle)
    allow(window, size)
    launch(kernels["fill"], window + size - 4096, 512, SEED)
    call("cuCtxSynchronize")
    before = free_mib()
    call("cuMemUnmap", c_uint64(window), c_size_t(size))
    for handle in handles:
        call("cuMemRelease", handle)
    held = free_mib() - before
    for index, descriptor in enumerate(shared):
        handle = c_uint64()
        call("cuMemImportFromShareableHandle", byref(handle), c_void_p(descriptor), 1)
        place(window + index * GRANULE, handle)
        call("cuMemRelease", handle)
        os.close(descriptor)
    allow(window, size)
    wrong = count_wrong(kernels["check"], window + size - 4096, 512)
    call("cuMemUnmap", c_uint64(window), c_size_t(size))
    say(freed_while_exported=held, wrong=wrong, freed_after=free_mib() - before)


def twice_in_a_process() -> None:
    """What is taken twice is there until both have gone."""
    before = start() and free_mib()
    handle, other = create(), c_uint64()
    descriptor = export(handle)
    call("cuMemImportFromShareableHandle", byref(other), c_void_p(descriptor), 1)
    os.close(descriptor)
    call("cuMemRelease", handle)
    one_left = before - free_mib()
    map_at(other, GRANULE)
    call("cuMemRelease", other)
    mapped = before - free_mib()
    call("cuMemUnmap", c_uint64(ADDRESS), c_size_t(GRANULE))
    say(one_left=one_left, mapped=mapped, in_the_end=before - free_mib())


# -- stream-ordered memory, pointers, graphs --------------------------------------------------------------------------


def pool() -> None:
    """Freed memory stays with its pool and is used again; a trimmed pool has none."""
    start()
    before = free_mib()
    first, second, handle, stored = c_uint64(), c_uint64(), c_void_p(), c_uint64()
    call("cuMemAllocAsync", byref(first), c_size_t(8 << 20), None)
    call("cuMemFreeAsync", first, None)
    twice = cuda.cuMemFreeAsync(first, None)
    call("cuCtxSynchronize")
    kept = before - free_mib()
    wild = cuda.cuMemsetD8_v2(first, 1, c_size_t(4096))
    call("cuMemAllocAsync", byref(second), c_size_t(8 << 20), None)
    call("cuDeviceGetDefaultMemPool", byref(handle), 0)
    call("cuMemPoolGetAttribute", handle, 7, byref(stored))
    used = stored.value >> 20
    call("cuMemFree_v2", second)
    call("cuMemPoolTrimTo", handle, c_size_t(0))
    say(twice=twice, kept=kept, wild=wild, is_same=first.value == second.value, used=used, after=before - free_mib())


def attribute(which: int, address: int, kind: Any = c_uint64) -> Any:
    value = kind()
    status = cuda.cuPointerGetAttribute(byref(value), which, c_uint64(address))
    return value.value if not status else {"code": status}


def pointers() -> None:
    start()
    managed, pooled, host, pitch, rows = c_uint64(), c_uint64(), c_void_p(), c_size_t(), c_uint64()
    plain = allocate(1 << 20)
    call("cuMemAllocManaged", byref(managed), c_size_t(4096), 1)
    call("cuMemAllocAsync", byref(pooled), c_size_t(4096), None)
    call("cuMemHostAlloc", byref(host), c_size_t(4096), 0)
    call("cuMemAllocPitch_v2", byref(rows), byref(pitch), c_size_t(1000), c_size_t(10), 4)
    map_at(create(), GRANULE)
    name = c_char_p()
    call("cuFuncGetName", byref(name), kernel("tick"))
    nothing = (c_uint(9), c_int(9))
    lists = (c_int * 2)(MEMORY_TYPE, ORDINAL)
    data = (c_void_p * 2)(ctypes.addressof(nothing[0]), ctypes.addressof(nothing[1]))
    call("cuPointerGetAttributes", 2, lists, data, c_uint64(0x7F0000000000))
    say(
        types=[attribute(MEMORY_TYPE, each, c_uint) for each in (plain.value + 5, host.value or 0, ADDRESS)],
        managed=[attribute(IS_MANAGED, each.value, c_uint) for each in (plain, managed)],
        has_pool=[bool(attribute(POOL_OF, each.value)) for each in (plain, pooled)],
        mapped=[attribute(ADDRESS_OF_RANGE, ADDRESS + 77) == ADDRESS, attribute(SIZE_OF_RANGE, ADDRESS + 77)],
        unknown=[attribute(MEMORY_TYPE, 0x7F0000000000), nothing[0].value, nothing[1].value],
        pitch=[pitch.value, attribute(SIZE_OF_RANGE, rows.value)],
        name=(name.value or b"").decode(),
        free_mapped=cuda.cuMemFree_v2(c_uint64(ADDRESS)),
        free_host=cuda.cuMemFree_v2(host),
        free_inside=cuda.cuMemFree_v2(c_uint64(plain.value + 4096)),
    )


def graph() -> None:
    """Capture a graph and launch it twice: a kernel on memory that cuMemMap placed."""
    start()
    map_at(create(), GRANULE)
    stream, captured, ready, value, state = c_void_p(), c_void_p(), c_void_p(), c_uint64(), c_int()
    call("cuStreamCreate", byref(stream), 1)
    words = [c_uint64(ADDRESS)]
    parameters = (c_void_p * 1)(ctypes.addressof(words[0]))
    call("cuStreamBeginCapture_v2", stream, 0)
    call("cuLaunchKernel", kernel("count_up"), 1, 1, 1, 32, 1, 1, 0, stream, parameters, None)
    call("cuStreamIsCapturing", stream, byref(state))
    call("cuStreamEndCapture", stream, byref(captured))
    call("cuGraphInstantiateWithFlags", byref(ready), captured, c_uint64(0))
    call("cuGraphDestroy", captured)
    call("cuMemcpyDtoH_v2", byref(value), c_uint64(ADDRESS), c_size_t(8))
    before = value.value
    call("cuGraphLaunch", ready, stream)
    call("cuGraphLaunch", ready, stream)
    call("cuStreamSynchronize", stream)
    call("cuMemcpyDtoH_v2", byref(value), c_uint64(ADDRESS), c_size_t(8))
    call("cuGraphExecDestroy", ready)
    call("cuStreamBeginCapture_v2", stream, 0)
    spoiled = [cuda.cuStreamSynchronize(stream), cuda.cuStreamEndCapture(stream, byref(captured)), captured.value]
    say(state=state.value, before=before, after=value.value, spoiled=spoiled)


class Config(ctypes.Structure):
    _fields_ = [("sizes", c_uint * 7), ("stream", c_void_p), ("attributes", c_void_p), ("count", c_uint)]


def launches() -> None:
    """Every way to launch, of a kernel that comes from a library: 32 each."""
    start()
    library, entry, function, per_thread = c_void_p(), c_void_p(), c_void_p(), c_void_p()
    memory, count = allocate(8), c_uint64()
    call("cuMemsetD8_v2", memory, 0, c_size_t(8))
    call("cuLibraryLoadData", byref(library), c_char_p(KERNELS.read_bytes()), None, None, 0, None, None, 0)
    call("cuLibraryGetKernel", byref(entry), library, b"count_up")
    call("cuKernelGetFunction", byref(function), entry)
    words = c_uint64(memory.value)
    parameters = (c_void_p * 1)(ctypes.addressof(words))
    shape = (1, 1, 1, 32, 1, 1, 0)
    call("cuLaunchKernel", entry, *shape, None, parameters, None)
    call("cuLaunchKernelEx", byref(Config((c_uint * 7)(*shape), None, None, 0)), function, parameters, None)
    call("cuLaunchCooperativeKernel", function, *shape, None, parameters)
    call("cuGetProcAddress_v2", b"cuLaunchKernel", byref(per_thread), 13000, c_uint64(2), None)
    typed = ctypes.CFUNCTYPE(c_int, c_void_p, *[c_uint] * 7, c_void_p, c_void_p, c_void_p)
    assert typed(per_thread.value)(function, *shape, None, parameters, None) == 0
    call("cuMemcpyDtoH_v2_ptds", byref(count), memory, c_size_t(8))
    say(count=count.value, flags=cuda.cuGetProcAddress_v2(b"cuInit", byref(per_thread), 13000, c_uint64(4), None))


# -- to another process -----------------------------------------------------------------------------------------------


def ipc_give() -> None:
    """Print a handle of filled memory, wait for the end of stdin, and report the contents at that time."""
    kernels = start()
    memory, handle = allocate(1 << 20), ctypes.create_string_buffer(64)
    launch(kernels["fill"], memory.value, 1 << 17, SEED)
    call("cuCtxSynchronize")
    before = free_mib()
    call("cuIpcGetMemHandle", handle, memory)
    own = cuda.cuIpcOpenMemHandle_v2(byref(c_uint64()), IpcHandle.from_buffer_copy(handle), 1)
    print(json.dumps({"handle": handle.raw.hex(), "own": own, "cost": before - free_mib()}), flush=True)
    sys.stdin.read()
    wrong = count_wrong(kernels["check"], memory.value, 1 << 17)
    call("cuMemFree_v2", memory)
    say(wrong=wrong)


class IpcHandle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * 64)]


def ipc_take(handle_text: str) -> None:
    kernels = start()
    handle = IpcHandle.from_buffer_copy(bytes.fromhex(handle_text))
    first, second = c_uint64(), c_uint64()
    call("cuIpcOpenMemHandle_v2", byref(first), handle, 1)
    call("cuIpcOpenMemHandle_v2", byref(second), handle, 1)
    wrong = count_wrong(kernels["check"], first.value, 1 << 17)
    launch(kernels["fill"], first.value, 8, SEED + 1)
    call("cuCtxSynchronize")
    call("cuIpcCloseMemHandle", first)
    still = cuda.cuMemsetD8_v2(second, 0, c_size_t(0))
    call("cuIpcCloseMemHandle", second)
    say(wrong=wrong, is_same=first.value == second.value, still=still, third=cuda.cuIpcCloseMemHandle(second))


# -- dying ------------------------------------------------------------------------------------------------------------


@contextmanager
def shared_counter(path: str) -> Iterator[int]:
    """An address in exported memory, once its descriptor is on its way to who listens at `path`; at the end it is used."""
    handle = create()
    descriptor = export(handle)
    map_at(handle, GRANULE)
    call("cuMemsetD8_v2", c_uint64(ADDRESS), 0, c_size_t(4096))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(path)
        socket.send_fds(peer, [b"memory"], [descriptor])
    os.close(descriptor)
    yield ADDRESS


def count_for(path: str, milliseconds: str) -> None:
    """A kernel that counts while it lasts; the process waits to be killed."""
    start()
    tick = kernel("tick")
    with shared_counter(path) as address:
        launch(tick, address, int(milliseconds) * 1755000)
        say(event="counting")
        call("cuCtxSynchronize")
        signal.pause()


def write_later(path: str, milliseconds: str) -> None:
    """A kernel that waits, and behind it one that fills."""
    kernels = start()
    with shared_counter(path) as address:
        launch(kernels["spin"], address, int(milliseconds) * 1755000)
        launch(kernels["fill"], address + 4096, 512, SEED)
        say(event="counting")
        call("cuCtxSynchronize")


def write_behind(path: str, milliseconds: str, what: str) -> None:
    """A kernel that waits, behind it work that sets a word, and behind that a kernel that fills."""
    kernels = start()
    advance = kernel("advance")
    with shared_counter(path) as address:
        launch(kernels["spin"], address, int(milliseconds) * 1755000)
        if what == "kernel":
            launch(advance, address + 64, address + 128, 1, 1)
        else:
            call("cuMemsetD8Async", c_uint64(address + 128), 1, c_size_t(1), None)
        launch(kernels["fill"], address + 4096, 512, SEED)
        say(event="counting")
        call("cuCtxSynchronize")


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
