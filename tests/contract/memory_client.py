"""What the CUDA driver answers to calls that place memory: `python memory_client.py` prints {name of the try: answer} as JSON.

An answer is the CUresult, or a word for what came with success.  Needs no package; the same on the simulator as on a GPU.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from ctypes import byref, c_char, c_int, c_size_t, c_uint, c_uint64, c_void_p

GRANULE = 2 << 20
WINDOW = 0x4C0000000000
WINDOW_BYTES = 64 * GRANULE
ROOM = 1 << 38  # 256 GiB of addresses
FILE_DESCRIPTOR, READ_WRITE, ON_DEVICE = 1, 3, 1
cuda = ctypes.CDLL("libcuda.so.1")


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("win32", c_void_p), ("flags", c_char * 8)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


def create(granules: int = 1) -> c_uint64:
    handle = c_uint64()
    made = Properties(1, FILE_DESCRIPTOR, Location(ON_DEVICE, 0))
    must(cuda.cuMemCreate(byref(handle), c_size_t(granules * GRANULE), byref(made), c_uint64(0)))
    return handle


def must(status: int) -> None:
    if status:
        raise SystemExit(f"a call that had to succeed gave {status}")


def at(granule: int) -> c_uint64:
    return c_uint64(WINDOW + granule * GRANULE)


def place(granule: int, handle: c_uint64, granules: int = 1) -> int:
    return int(cuda.cuMemMap(at(granule), c_size_t(granules * GRANULE), c_size_t(0), handle, c_uint64(0)))


def allow(granule: int, granules: int = 1) -> int:
    access = Access(Location(ON_DEVICE, 0), READ_WRITE)
    return int(cuda.cuMemSetAccess(at(granule), c_size_t(granules * GRANULE), byref(access), c_size_t(1)))


def unmap(granule: int, granules: int = 1) -> int:
    return int(cuda.cuMemUnmap(at(granule), c_size_t(granules * GRANULE)))


def placed(granule: int, granules: int = 1) -> c_uint64:
    handle = create(granules)
    must(place(granule, handle, granules))
    return handle


def reserve(base: int, size: int) -> int | str:
    got = c_uint64()
    status: int = cuda.cuMemAddressReserve(byref(got), c_size_t(size), c_size_t(0), c_uint64(base), c_uint64(0))
    return status or ("there" if got.value == base else "elsewhere")


def free_window(base: int, size: int) -> int:
    return int(cuda.cuMemAddressFree(c_uint64(base), c_size_t(size)))


def reserve_much() -> int | str:
    answer = reserve(WINDOW + ROOM, ROOM)
    return answer if answer != "there" else free_window(WINDOW + ROOM, ROOM) or "there"


def export(handle: c_uint64) -> int:
    descriptor = c_int(-1)
    must(cuda.cuMemExportToShareableHandle(byref(descriptor), handle, FILE_DESCRIPTOR, c_uint64(0)))
    return descriptor.value


def take(descriptor: int) -> tuple[int, int]:
    handle = c_uint64()
    status = cuda.cuMemImportFromShareableHandle(byref(handle), c_void_p(descriptor), FILE_DESCRIPTOR)
    return status, handle.value


def take_file(path: str) -> int:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return take(descriptor)[0]
    finally:
        os.close(descriptor)


def import_twice() -> int | str:
    descriptor = export(create())
    (first, one), (second, other) = take(descriptor), take(descriptor)
    return first or second or ("the same handle" if one == other else "two handles")


def map_what_was_taken() -> int:
    status, handle = take(export(create(2)))
    return status or place(20, c_uint64(handle), 1)


def map_twice() -> int:
    handle = create()
    return place(22, handle) or place(24, handle) or allow(22) or allow(24)


def over_a_hole() -> int:
    placed(26), placed(28)
    return allow(26, 3)


def in_a_row() -> int:
    placed(30), placed(31, 2)
    return allow(30, 3)


def unmap_part() -> int:
    placed(34, 2)
    return unmap(34, 1)


def unmap_over_a_hole() -> int:
    placed(37), placed(39)
    return unmap(37, 3)


def unmap_in_a_row() -> int:
    placed(41), placed(42)
    return unmap(41, 2)


def map_over_another() -> int:
    placed(44)
    return place(44, create())


def range_of(granule: int) -> int | str:
    base, size = c_uint64(), c_size_t()
    status: int = cuda.cuMemGetAddressRange_v2(byref(base), byref(size), c_uint64(at(granule).value + 4096))
    return status or ("of the mapping" if (base.value, size.value) == (at(granule).value, 2 * GRANULE) else "other")


def memory_type(granule: int) -> int | str:
    kind = c_uint()
    status: int = cuda.cuPointerGetAttribute(byref(kind), 2, at(granule))
    return status or f"type {kind.value}"


def read_after_release() -> int:
    """What is mapped stays when the handle goes."""
    handle = placed(46)
    word = c_uint64()
    must(allow(46))
    must(cuda.cuMemRelease(handle))
    return int(cuda.cuMemcpyDtoH_v2(byref(word), at(46), c_size_t(8)))


def release_twice() -> int:
    handle = create()
    must(cuda.cuMemRelease(handle))
    return int(cuda.cuMemRelease(handle))


def export_of_what_may_not() -> int:
    handle, descriptor = c_uint64(), c_int(-1)
    must(cuda.cuMemCreate(byref(handle), c_size_t(GRANULE), byref(Properties(1, 0, Location(ON_DEVICE, 0))), c_uint64(0)))
    return int(cuda.cuMemExportToShareableHandle(byref(descriptor), handle, FILE_DESCRIPTOR, c_uint64(0)))


def export_of_what_was_imported() -> int:
    descriptor = c_int(-1)
    status, handle = take(export(create()))
    must(status)
    return int(cuda.cuMemExportToShareableHandle(byref(descriptor), c_uint64(handle), FILE_DESCRIPTOR, c_uint64(0)))


def ipc_handle(address: c_uint64) -> int:
    return int(cuda.cuIpcGetMemHandle(ctypes.create_string_buffer(64), address))


def ipc_of_allocated() -> int:
    memory = c_uint64()
    must(cuda.cuMemAlloc_v2(byref(memory), c_size_t(GRANULE)))
    return ipc_handle(memory)


def mapped_and_allowed(granule: int) -> None:
    placed(granule, 2)
    must(allow(granule, 2))


TRIES: dict[str, Callable[[], int | str]] = {
    "reserve where asked": lambda: reserve(WINDOW, WINDOW_BYTES),
    "reserve what is reserved": lambda: reserve(WINDOW, WINDOW_BYTES),
    "reserve 256 GiB": reserve_much,
    "create an odd size": lambda: int(
        cuda.cuMemCreate(byref(c_uint64()), c_size_t(4096), byref(Properties(1, 1, Location(ON_DEVICE, 0))), c_uint64(0))
    ),
    "map more than there is": lambda: place(0, create(1), 2),
    "map less than there is": lambda: place(0, create(2), 1),
    "map less of what was imported": map_what_was_taken,
    "map the whole": lambda: mapped_and_allowed(10) or 0,
    "map at two places": map_twice,
    "map over another": map_over_another,
    "map beyond the window": lambda: place(64, create()),
    "access over a hole": over_a_hole,
    "access over several": in_a_row,
    "unmap a part": unmap_part,
    "unmap over a hole": unmap_over_a_hole,
    "unmap several": unmap_in_a_row,
    "free a window in use": lambda: free_window(WINDOW, WINDOW_BYTES),
    "release twice": release_twice,
    "read after release": read_after_release,
    "export what may not be": export_of_what_may_not,
    "export what was imported": export_of_what_was_imported,
    "import /dev/null": lambda: take_file("/dev/null"),
    "import a memfd": lambda: take(os.memfd_create("x"))[0],
    "import twice": import_twice,
    "IPC handle of mapped memory": lambda: ipc_handle(at(10)),
    "IPC handle of allocated memory": ipc_of_allocated,
    "cuMemFree of mapped memory": lambda: int(cuda.cuMemFree_v2(at(10))),
    "address range of mapped memory": lambda: range_of(10),
    "type of mapped memory": lambda: memory_type(10),
    "type of what is not mapped": lambda: memory_type(60),
}


def main() -> int:
    context = c_void_p()
    must(cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(byref(context), 0) or cuda.cuCtxSetCurrent(context))
    print(json.dumps({name: answer() for name, answer in TRIES.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
