"""A CUDA client of a few lines: one context on device 0, kept until standard input ends.

Prints `ready` once it has its context, or the CUDA error; needs no package, and runs on the simulator as on a GPU.
"""

import ctypes
import sys


def main() -> int:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context = ctypes.c_int(), ctypes.c_void_p()
    error = (
        cuda.cuInit(0)
        or cuda.cuDeviceGet(ctypes.byref(device), 0)
        or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
    )
    print("ready" if not error else f"CUDA error {error}", flush=True)
    sys.stdin.read()
    return error


if __name__ == "__main__":
    sys.exit(main())
