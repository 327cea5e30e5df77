"""A program that knows nothing of mpsd: `python unaware_program.py BLOCKS`; each step writes its number to one block of 2 MiB
after the other, and prints it."""

import ctypes
import sys

BLOCK = 2 << 20
cuda = ctypes.CDLL("libcuda.so.1")


def call(name: str, *arguments: object) -> None:
    status = getattr(cuda, name)(*arguments)
    assert status == 0, f"{name}: CUDA error {status}"


def main(count: int) -> None:
    context, blocks = ctypes.c_void_p(), [ctypes.c_uint64() for _ in range(count)]
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    for block in blocks:
        call("cuMemAlloc_v2", ctypes.byref(block), ctypes.c_size_t(BLOCK))
        call("cuMemsetD32_v2", block, 0, ctypes.c_size_t(BLOCK // 4))
    step = 0
    while True:
        step += 1
        for block in blocks:
            call("cuMemsetD32_v2", block, step, ctypes.c_size_t(BLOCK // 4))
        call("cuCtxSynchronize")
        print(step, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
