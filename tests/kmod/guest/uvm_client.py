"""A client in both worlds: of MPS, through the simulated libcuda, and of the real nvidia-uvm, on a simulated GPU.

It faults when it reads a line, and reports the result in JSON; then it continues with CUDA until it is ended.
"""

import ctypes
import json
import sys

from device import Device
from fake_gpu import FakeGpu, VaSpace

ADDRESS = 0x7E12_3456_7000


def say(**facts: object) -> None:
    print(json.dumps(facts), flush=True)


def open_context() -> ctypes.CDLL:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, handle = ctypes.c_void_p(), ctypes.c_int()
    for call in (
        lambda: cuda.cuInit(0),
        lambda: cuda.cuDeviceGet(ctypes.byref(handle), 0),
        lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), handle),
        lambda: cuda.cuCtxSetCurrent(context),
    ):
        result = call()
        assert result == 0, f"CUDA error {result}"
    return cuda


def main() -> None:
    cuda = open_context()
    with Device() as device, VaSpace() as va_space, FakeGpu(device, va_space) as gpu:
        say(event="ready")
        for _ in sys.stdin:
            say(event="faulted", absorbed=gpu.access(ADDRESS).absorbed)
            say(event="went_on", result=cuda.cuCtxSynchronize())


if __name__ == "__main__":
    main()
