"""A PyTorch program: it imports, multiplies two matrices, and then continues to do so. It reports each in a JSON object a line.

python3 torch_client.py SECONDS START_NS
"""

import json
import os
import sys
import time

SIZE = 2048  # 8 MiB a matrix in half precision
BATCH = 20  # multiplications between two looks at the clock


def main() -> None:
    seconds, start_ns = float(sys.argv[1]), int(sys.argv[2])
    began_ns = time.monotonic_ns()
    import torch

    imported_ns = time.monotonic_ns()
    say("import", ms=(imported_ns - began_ns) / 1e6, python_ms=(began_ns - start_ns) / 1e6)
    matrix = torch.full((SIZE, SIZE), 1 / SIZE, device="cuda", dtype=torch.float16)
    first = float((matrix @ matrix)[0, 0].item())
    now = time.monotonic_ns()
    say(
        "ready",
        first_kernel_ms=(now - start_ns) / 1e6,
        cuda_ms=(now - imported_ns) / 1e6,
        is_right=abs(first * SIZE - 1) < 0.01,
    )
    say("end", **work(torch, matrix, seconds))


def work(torch, matrix, seconds: float) -> dict[str, float]:
    """Multiplications per second of the clock on the wall."""
    torch.cuda.synchronize()
    begin, done = time.monotonic(), 0
    while (passed := time.monotonic() - begin) < seconds:
        for _ in range(BATCH):
            matrix @ matrix
        torch.cuda.synchronize()
        done += BATCH
    return {"matmuls": done, "seconds": passed, "per_second": done / passed if passed else 0.0}


def say(event: str, **facts: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), "monotonic_ns": time.monotonic_ns(), **facts}), flush=True)


if __name__ == "__main__":
    main()
