"""A program on cuda-python, the same on the simulator as on a GPU: `python cuda_python.py` prints what it found as JSON.

It compiles a kernel by NVRTC, launches it on a stream of low priority, shares memory with a second process by a descriptor, and
reads the bytes of both in pinned host memory. Needs cuda-python and NVRTC (`pip install cuda-python nvidia-cuda-nvrtc`).
"""

import ctypes
import json
import os
import socket
import sys
from typing import Any

import numpy
from cuda.bindings import driver
from cuda.core import (
    LEGACY_DEFAULT_STREAM,
    Device,
    EventOptions,
    LaunchConfig,
    ObjectCode,
    Program,
    ProgramOptions,
    StreamOptions,
    launch,
)

# The simulator runs its own function of this name, which writes the same words.
SOURCE = """
extern "C" __global__ void fill(unsigned long long *p, unsigned long long n, unsigned long long seed)
{
	for (unsigned long long i = blockIdx.x * (unsigned long long)blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
		p[i] = seed ^ i * 0x9e3779b97f4a7c15ull;
}
"""
GRANULE = 2 << 20
WORDS = GRANULE // 8
READ_WRITE = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
DESCRIPTOR = driver.CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
ON_DEVICE = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE


def done(answer: tuple[Any, ...]) -> Any:
    """Return what a driver call gave in addition to its status."""
    if answer[0] != driver.CUresult.CUDA_SUCCESS:
        raise SystemExit(f"a call failed: {answer[0].name}")
    return answer[1] if len(answer) > 1 else None


def expected(seed: int) -> numpy.ndarray[Any, Any]:
    return numpy.uint64(seed) ^ numpy.arange(WORDS, dtype=numpy.uint64) * numpy.uint64(0x9E3779B97F4A7C15)


def shareable() -> driver.CUmemAllocationProp:
    made = driver.CUmemAllocationProp()
    made.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    made.location.type = ON_DEVICE
    made.requestedHandleTypes = DESCRIPTOR
    return made


def place(handle: Any) -> int:
    """Map the memory, and return its address."""
    access = driver.CUmemAccessDesc()
    access.location.type = ON_DEVICE
    access.flags = READ_WRITE
    address = done(driver.cuMemAddressReserve(GRANULE, 0, 0, 0))
    done(driver.cuMemMap(address, GRANULE, 0, handle, 0))
    done(driver.cuMemSetAccess(address, GRANULE, [access], 1))
    return int(address)


def words_at(address: int, stream: Any) -> numpy.ndarray[Any, Any]:
    """Copy the memory to pinned host memory, and return its words."""
    pinned = int(done(driver.cuMemHostAlloc(GRANULE, 0)))
    done(driver.cuMemcpyDtoHAsync(pinned, address, GRANULE, stream.handle))
    stream.sync()
    words = numpy.frombuffer(bytes((ctypes.c_char * GRANULE).from_address(pinned)), numpy.uint64)
    done(driver.cuMemFreeHost(pinned))
    return words


def importer(channel: socket.socket) -> None:
    """The second process: write to the memory that comes by a descriptor."""
    device = Device(0)
    device.set_current()
    [descriptor] = socket.recv_fds(channel, 8, 1)[1]
    address = place(done(driver.cuMemImportFromShareableHandle(descriptor, DESCRIPTOR)))
    done(driver.cuMemsetD32(address, 0xAB, 1))
    done(driver.cuCtxSynchronize())


def main() -> int:
    ours, theirs = socket.socketpair()
    if os.fork() == 0:  # before CUDA begins
        importer(theirs)
        os._exit(0)
    device = Device(0)
    device.set_current()
    _, least, greatest = driver.cuCtxGetStreamPriorityRange()
    stream = device.create_stream(options=StreamOptions(nonblocking=True, priority=least))
    arch = "sm_" + "".join(map(str, device.compute_capability))
    cubin = Program(SOURCE, "c++", ProgramOptions(arch=arch)).compile("cubin")
    kernel = ObjectCode.from_cubin(cubin.code).get_kernel("fill")
    handle = done(driver.cuMemCreate(GRANULE, shareable(), 0))
    address = place(handle)
    config, arguments = LaunchConfig(grid=8, block=256), (numpy.uint64(address), numpy.uint64(WORDS))
    before = stream.record(options=EventOptions(timing_enabled=True))
    launch(stream, config, kernel, *arguments, numpy.uint64(7))
    after = stream.record(options=EventOptions(timing_enabled=True))
    after.sync()
    found = {"low priority": stream.priority == least and greatest < least, "parameters": kernel.num_arguments}
    found |= {"time passed": after - before >= 0, "wrong words": int((words_at(address, stream) != expected(7)).sum())}
    launch(LEGACY_DEFAULT_STREAM, config, kernel, *arguments, numpy.uint64(8))
    LEGACY_DEFAULT_STREAM.sync()
    found["wrong on the default stream"] = int((words_at(address, stream) != expected(8)).sum())
    socket.send_fds(ours, [b"memory"], [done(driver.cuMemExportToShareableHandle(handle, DESCRIPTOR, 0))])
    found["importer"] = os.waitstatus_to_exitcode(os.wait()[1])
    found["its word"] = int(words_at(address, stream)[0]) & 0xFFFFFFFF
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
