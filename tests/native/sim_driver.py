"""The driver API through ctypes, for what the test clients do not do: run as a program, `python sim_driver.py VERB ...`.

Prints what it found as JSON; any CUDA error ends it with status 5 and the error's number.
"""

import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import sys
import time
from ctypes import byref, c_char, c_char_p, c_float, c_int, c_size_t, c_uint64, c_void_p
from typing import Any, NoReturn

GRANULE = 2 << 20
ADDRESS = 0x480000000000  # free in any process, a sanitized one too
PTX = b".version 7.0\n.visible .entry fill(\n.visible .entry check(\n.visible .entry spin(\n"
cuda = ctypes.CDLL("libcuda.so.1")


class Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class Properties(ctypes.Structure):
    _fields_ = [("type", c_int), ("handles", c_int), ("location", Location), ("win32", c_void_p), ("flags", c_char * 8)]


class Access(ctypes.Structure):
    _fields_ = [("location", Location), ("flags", c_int)]


def call(name: str, *arguments: Any) -> None:
    status = getattr(cuda, name)(*arguments)
    if status:
        print(json.dumps({"call": name, "code": status}))
        sys.exit(5)


def say(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def start() -> dict[str, c_void_p]:
    """A current context; the kernels by name."""
    context, module = c_void_p(), c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", byref(module), c_char_p(PTX))
    kernels = {name: c_void_p() for name in ("fill", "check", "spin")}
    for name, kernel in kernels.items():
        call("cuModuleGetFunction", byref(kernel), module, name.encode())
    return kernels


def launch(kernel: c_void_p, *values: int) -> None:
    words = [c_uint64(value) for value in values]
    pointers = (c_void_p * len(words))(*[ctypes.addressof(word) for word in words])
    call("cuLaunchKernel", kernel, 1, 1, 1, 32, 1, 1, 0, None, pointers, None)


def map_at(handle: c_uint64, size: int) -> None:
    address = c_uint64()
    call("cuMemAddressReserve", byref(address), c_size_t(size), c_size_t(0), c_uint64(ADDRESS), c_uint64(0))
    assert address.value == ADDRESS
    call("cuMemMap", address, c_size_t(size), c_size_t(0), handle, c_uint64(0))
    call("cuMemSetAccess", address, c_size_t(size), byref(Access(Location(1, 0), 3)), c_size_t(1))


def write(path: str, granules: str, ending: str) -> None:
    """Fill shared memory, give its descriptor to the process that listens at `path`, and end, or be killed."""
    size, handle, shared = int(granules) * GRANULE, c_uint64(), c_int()
    kernels = start()
    call("cuMemCreate", byref(handle), c_size_t(size), byref(Properties(1, 1, Location(1, 0))), c_uint64(0))
    call("cuMemExportToShareableHandle", byref(shared), handle, 1, c_uint64(0))
    map_at(handle, size)
    launch(kernels["fill"], ADDRESS, size // 8, 12345)
    call("cuCtxSynchronize")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.connect(path)
        socket.send_fds(peer, [b"memory"], [shared.value])
    if ending == "kill":
        os.kill(os.getpid(), signal.SIGKILL)


def adopt(descriptor: str, granules: str) -> None:
    """Maps memory that came by descriptor at the address it had, and counts the wrong words in it."""
    size, handle, bad, wrong = int(granules) * GRANULE, c_uint64(), c_uint64(), c_uint64(1)
    kernels = start()
    call("cuMemImportFromShareableHandle", byref(handle), c_void_p(int(descriptor)), 1)
    map_at(handle, size)
    call("cuMemAlloc_v2", byref(bad), c_size_t(8))
    call("cuMemsetD8_v2", bad, 0, c_size_t(8))
    launch(kernels["check"], ADDRESS, size // 8, 12345, bad.value)
    call("cuMemcpyDtoH_v2", byref(wrong), bad, c_size_t(8))
    say(wrong=wrong.value)


def import_junk(path: str) -> None:
    """Check that the driver refuses a descriptor that is not memory."""
    start()
    with open(path, "rb") as file:
        status = cuda.cuMemImportFromShareableHandle(byref(c_uint64()), c_void_p(file.fileno()), 1)
    say(code=status)


def order() -> None:
    """Work of two streams, events around it, and what they measured."""
    kernels = start()
    counter, first, last, stream, ms = c_uint64(), c_void_p(), c_void_p(), c_void_p(), c_float()
    call("cuMemAlloc_v2", byref(counter), c_size_t(8))
    call("cuMemsetD8_v2", counter, 0, c_size_t(8))
    call("cuStreamCreate", byref(stream), 1)
    call("cuEventCreate", byref(first), 0)
    call("cuEventCreate", byref(last), 0)
    call("cuEventRecord", first, stream)
    launch(kernels["spin"], counter.value, 1755 * 20000)
    call("cuEventRecord", last, stream)
    pending = cuda.cuEventQuery(last)
    call("cuEventSynchronize", last)
    call("cuEventElapsedTime_v2", byref(ms), first, last)
    value = c_uint64()
    call("cuMemcpyDtoH_v2", byref(value), counter, c_size_t(8))
    say(pending=pending, ms=ms.value, count=value.value)


def lay_range(base: int, length: int) -> None:
    """A sparse range in our own address space, as native/sim/include/uvm_space.h lays it out."""
    for number in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{number}"
        if os.path.islink(link) and os.readlink(link).endswith(".space"):
            with mmap.mmap(int(number), mmap.PAGESIZE) as page:
                struct.pack_into("<QQQ", page, 32, base, length, 1)
                struct.pack_into("<I", page, 24, 1)
            return
    sys.exit(5)


def count_wrong(kernel: c_void_p, address: int, words: int) -> int:
    bad, wrong = c_uint64(), c_uint64()
    call("cuMemAlloc_v2", byref(bad), c_size_t(8))
    call("cuMemsetD8_v2", bad, 0, c_size_t(8))
    launch(kernel, address, words, 12345, bad.value)
    call("cuMemcpyDtoH_v2", byref(wrong), bad, c_size_t(8))
    return wrong.value


def overrun() -> None:
    """Writes and reads a page more than it has, where a range lies behind: the wrong words inside, and in the whole."""
    kernels, memory = start(), c_uint64()
    call("cuMemAlloc_v2", byref(memory), c_size_t(4096))
    lay_range(memory.value + 4096, 1 << 16)
    launch(kernels["fill"], memory.value, 1024, 12345)
    call("cuCtxSynchronize")
    say(
        inside=count_wrong(kernels["check"], memory.value, 512),
        whole=count_wrong(kernels["check"], memory.value, 1024),
        copied=cuda.cuCtxSynchronize(),
    )


def die_in_queue(*milliseconds: str) -> None:
    """Launches a kernel of each length when its stdin ends, and dies while the first runs."""
    kernels, memory = start(), c_uint64()
    call("cuMemAlloc_v2", byref(memory), c_size_t(8))
    say(event="ready")
    sys.stdin.read()
    for each in milliseconds:
        launch(kernels["spin"], memory.value, int(each) * 1755000)
    time.sleep(0.02)
    os.kill(os.getpid(), signal.SIGKILL)


def misuse() -> None:
    """Each wrong call, and its error."""
    codes = {"before cuInit": cuda.cuDeviceGet(byref(c_int()), 0), "cuInit flags": cuda.cuInit(1)}
    call("cuInit", 0)
    codes["no context"] = cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(8))
    codes["no device"] = cuda.cuDeviceGet(byref(c_int()), 7)
    start()
    memory = c_uint64()
    call("cuMemAlloc_v2", byref(memory), c_size_t(4096))
    codes["no bytes"] = cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(0))
    codes["too many bytes"] = cuda.cuMemAlloc_v2(byref(c_uint64()), c_size_t(1 << 50))
    codes["free twice"] = cuda.cuMemFree_v2(memory) or cuda.cuMemFree_v2(memory)
    codes["copy to freed"] = cuda.cuMemcpyHtoD_v2(memory, c_char_p(b"x" * 8), c_size_t(8))
    codes["odd size"] = cuda.cuMemCreate(
        byref(c_uint64()), c_size_t(4096), byref(Properties(1, 1, Location(1, 0))), c_uint64(0)
    )
    codes["no such kernel"] = cuda.cuModuleGetFunction(byref(c_void_p()), load(b".version 7.0\n.entry nothing("), b"nothing")
    codes["no image"] = cuda.cuModuleLoadData(byref(c_void_p()), c_char_p(b"\x7fELF" + b"\0" * 64))
    say(**codes)


def load(image: bytes) -> c_void_p:
    module = c_void_p()
    call("cuModuleLoadData", byref(module), c_char_p(image))
    return module


def reset_and_stay() -> None:
    """Gives its context up, and goes on until stdin ends."""
    start()
    call("cuDevicePrimaryCtxReset_v2", 0)
    say(reset=True)
    sys.stdin.read()


def names() -> None:
    """cuGetProcAddress finds a function by its plain name, in the version of the CUDA asked for."""
    found = {}
    call("cuInit", 0)
    for name in ("cuInit", "cuMemAlloc", "cuCtxCreate", "cuNothing"):
        pointer, status = c_void_p(), c_int()
        cuda.cuGetProcAddress_v2(name.encode(), byref(pointer), 13000, c_uint64(0), byref(status))
        found[name] = bool(pointer.value)
    version = c_int()
    call("cuDriverGetVersion", byref(version))
    pointers = []
    for asked in (12000, 13000):
        pointer = c_void_p()
        call("cuGetProcAddress_v2", b"cuCtxCreate", byref(pointer), asked, c_uint64(0), None)
        pointers.append(pointer.value)
    say(version=version.value, versions=len(set(pointers)), **found)


def fork_after_init() -> NoReturn:
    """A child of an initialised process has no CUDA; the parent keeps its context."""
    start()
    child = os.fork()
    if child == 0:
        os._exit(cuda.cuInit(0) or cuda.cuCtxSynchronize())
    _, status = os.waitpid(child, 0)
    say(child=os.waitstatus_to_exitcode(status), parent=cuda.cuCtxSynchronize())
    sys.exit(0)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
