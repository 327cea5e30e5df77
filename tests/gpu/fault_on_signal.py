"""Runs a Python program that uses CUDA, and at SIGUSR1 writes out of bounds in its name: on its context, with its memory.

    fault_on_signal.py PROGRAM [arguments]
"""

import ctypes
import runpy
import signal
import sys
from pathlib import Path

PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry oob_write(.param .u64 p)
{
	.reg .b64 %d<3>;
	mov.u64 %d1, 0x7000dead0000;
	mov.u64 %d2, 1;
	st.volatile.global.u64 [%d1], %d2;
	ret;
}
"""


def fault(number: int, frame: object) -> None:
    """The program's next call that waits for the GPU tells it."""
    cuda = ctypes.CDLL("libcuda.so.1")
    module, function, context, unused = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(unused))
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    for rc in (
        cuda.cuModuleLoadData(ctypes.byref(module), PTX),
        cuda.cuModuleGetFunction(ctypes.byref(function), module, b"oob_write"),
        cuda.cuLaunchKernel(function, *([1] * 6), 0, None, parameters, None),
    ):
        if rc:
            raise SystemExit(f"the fault could not be made: {rc}")


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, fault)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))  # as if it had been started
    runpy.run_path(sys.argv[0], run_name="__main__")
