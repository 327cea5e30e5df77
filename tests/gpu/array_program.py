"""A small program of one array library, as its users write them: the same result wherever its memory lies.

array_program.py torch|cupy|jax
"""

import hashlib
import json
import os
import sys
import time

SIZE = 3000  # 36 MB a matrix in single precision
ROUNDS = 20


def torch_program() -> bytes:
    import torch

    torch.use_deterministic_algorithms(True)
    a = torch.arange(SIZE * SIZE, device="cuda", dtype=torch.float32).reshape(SIZE, SIZE) % 7
    for _ in range(ROUNDS):
        a = ((a @ a) % 11).float() + a.T.contiguous()[
            :, torch.randperm(SIZE, generator=torch.Generator().manual_seed(1)).cuda()
        ]
        a %= 13
    return a.cpu().numpy().tobytes()


def cupy_program() -> bytes:
    import cupy

    a = cupy.arange(SIZE * SIZE, dtype=cupy.float32).reshape(SIZE, SIZE) % 7
    for _ in range(ROUNDS):
        a = ((a @ a) % 11 + cupy.ascontiguousarray(a.T)) % 13
    return bytes(cupy.asnumpy(a).tobytes())


def jax_program() -> bytes:
    import jax
    import numpy

    @jax.jit
    def step(a: "jax.Array") -> "jax.Array":
        return ((a @ a) % 11 + a.T) % 13

    a = (jax.numpy.arange(SIZE * SIZE, dtype=jax.numpy.float32).reshape(SIZE, SIZE)) % 7
    for _ in range(ROUNDS):
        a = step(a)
    return bytes(numpy.asarray(a).tobytes())


PROGRAMS = {"torch": torch_program, "cupy": cupy_program, "jax": jax_program}


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


if __name__ == "__main__":
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # it would take three quarters of the GPU
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")
    began = time.monotonic()
    result = PROGRAMS[sys.argv[1]]()
    say("end", digest=hashlib.sha256(result).hexdigest(), seconds=time.monotonic() - began)
