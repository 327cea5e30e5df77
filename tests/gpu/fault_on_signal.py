"""Runs a Python program that uses CUDA, and faults on its context on request: SIGUSR1 writes out of bounds, SIGUSR2 traps.
SIGQUIT prints the places of its threads, also of a program that hangs.

    fault_on_signal.py PROGRAM [arguments]

It reports each fault right before: {"event": "fault", "mode": "trap", "monotonic_ns": ...}.
"""

import ctypes
import faulthandler
import json
import os
import runpy
import signal
import sys
import time
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
.visible .entry fill(.param .u64 p, .param .u64 n, .param .u64 seed)
{
	ret;
}
.visible .entry trap(.param .u64 p)
{
	trap;
	ret;
}
"""
MODES = {signal.SIGUSR1: "oob_write", signal.SIGUSR2: "trap"}


def fault(number: int, frame: object) -> None:
    """The program's next call that waits for the GPU reports it."""
    cuda, mode = ctypes.CDLL("libcuda.so.1"), MODES[signal.Signals(number)]
    module, context, unused = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    cuda.cuCtxSetCurrent(context)
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX))
    harmless, faulting = loaded(cuda, module, "fill"), loaded(cuda, module, mode)
    parameters = (ctypes.c_void_p * 3)(*[ctypes.addressof(unused)] * 3)
    launch = (*([1] * 6), 0, None, parameters, None)
    check(cuda.cuLaunchKernel(harmless, *launch))  # a context's first launch takes milliseconds, which are not the fault's
    check(cuda.cuCtxSynchronize())
    say(mode)
    check(cuda.cuLaunchKernel(faulting, *launch))


def loaded(cuda: ctypes.CDLL, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
    kernel = ctypes.c_void_p()
    check(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, name.encode()))
    if hasattr(cuda, "cuFuncLoad"):  # since CUDA 12.4
        check(cuda.cuFuncLoad(kernel))
    return kernel


def check(rc: int) -> None:
    if rc:
        raise SystemExit(f"the fault could not be made: {rc}")


def say(mode: str) -> None:
    line = {"event": "fault", "mode": mode, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns()}
    os.write(1, f"\n{json.dumps(line)}\n".encode())  # the signal may have come in the middle of a line of the program's


if __name__ == "__main__":
    for each in MODES:
        signal.signal(each, fault)
    faulthandler.register(signal.SIGQUIT)
    sys.argv = sys.argv[1:]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))  # as if it had been started
    runpy.run_path(sys.argv[0], run_name="__main__")
