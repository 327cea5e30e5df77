"""Causes an SM exception that tests/clients/faulter has no mode for, with the same options and lines.

    sm_culprit.py MODE [--linger S] [--gate] [--json]      faults when its standard input ends

Standard library only; the driver compiles the PTX.
"""

import ctypes
import json
import os
import sys
import time

KERNELS = {
    "trap_all": "trap;",
    "breakpoint": "brkpt;",
    "noncanonical": "mov.u64 %d1, 0xdead000000000010;\n\tst.volatile.global.u64 [%d1], %d1;",
    "shared_overrun": "mov.u32 %r1, 4194304;\n\tst.volatile.shared.u32 [%r1], %r1;",
}
WIDE = {"trap_all": (264, 256)}  # blocks, threads: every SM
PTX = ".version 7.0\n.target sm_70\n.address_size 64\n" + "".join(
    f".visible .entry {name}(.param .u64 p)\n{{\n\t.reg .b64 %d<3>;\n\t.reg .b32 %r<3>;\n\t{body}\n\tret;\n}}\n"
    for name, body in KERNELS.items()
)
EXIT_WORK = 5


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


def check(rc: int) -> None:
    if rc:
        say("error", code=rc)
        sys.exit(EXIT_WORK)


def main(mode: str, linger: float) -> int:
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, kernel, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    check(cuda.cuInit(0))
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
    check(cuda.cuCtxSetCurrent(context))
    check(cuda.cuModuleLoadData(ctypes.byref(module), PTX.encode()))
    check(cuda.cuModuleGetFunction(ctypes.byref(kernel), module, mode.encode()))
    check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096)))
    check(cuda.cuMemsetD8_v2(memory, 0, ctypes.c_size_t(4096)))
    check(cuda.cuCtxSynchronize())
    say("ready")
    sys.stdin.read()
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(memory))
    blocks, threads = WIDE.get(mode, (1, 1))
    say("fault", mode=mode)
    check(cuda.cuLaunchKernel(kernel, blocks, 1, 1, threads, 1, 1, 0, None, parameters, None))
    code = cuda.cuCtxSynchronize()
    say("result", mode=mode, code=code)
    time.sleep(linger)
    return EXIT_WORK if code else 0


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word not in ("--gate", "--json")]
    sys.exit(main(words[0], float(words[2]) if words[1:2] == ["--linger"] else 0.0))
