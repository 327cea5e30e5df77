"""Parity: how fast one core makes the XOR of blocks of 2 MiB, compared with memcpy of as many bytes, in turns.

    .venv/bin/python tests/bench/bench_parity.py [--trials 20] [--json FILE] [--plot FILE]

Needs neither a GPU nor a daemon.  The blocks are in 256 MiB, so that no cache has them; GB/s are bytes of the members.
"""

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpsd.images.parity import xor_blocks
from mpsd.images.rules.manifest import BLOCK_BYTES
from tests.bench import setting
from tests.gpu.comparison import figures
from tests.gpu.comparison.table import Table

MEMBERS = (2, 3, 4, 8)
BLOCKS = 128


def main() -> int:
    asked = setting.parser("parity", __doc__).parse_args()
    table = Table(facts={"clock": "processor time of one thread"})
    memory = mmap.mmap(-1, BLOCKS * BLOCK_BYTES)
    view = memoryview(memory)
    for at in range(0, len(view), BLOCK_BYTES):
        view[at : at + BLOCK_BYTES] = os.urandom(BLOCK_BYTES)
    blocks = [view[at : at + BLOCK_BYTES] for at in range(0, len(view), BLOCK_BYTES)]
    addresses = [ctypes.addressof(ctypes.c_char.from_buffer(each)) for each in blocks]
    into = mmap.mmap(-1, BLOCK_BYTES)
    to = ctypes.addressof(ctypes.c_char.from_buffer(into))
    lines: dict[str, list[tuple[float, float]]] = {"XOR": [], "memcpy": []}
    for count in MEMBERS:
        stripes = [range(first, first + count) for first in range(0, BLOCKS - count + 1, count)]

        def xor(stripes: list[range] = stripes) -> None:
            for each in stripes:
                xor_blocks(into, [blocks[number] for number in each])

        def copy(stripes: list[range] = stripes) -> None:
            for each in stripes:
                for number in each:
                    ctypes.memmove(to, addresses[number], BLOCK_BYTES)

        size = len(stripes) * count * BLOCK_BYTES
        xor_rates, copy_rates = [], []
        for _ in range(asked.trials):
            xor_rates.append(_rate(xor, size))
            copy_rates.append(_rate(copy, size))
        found, copied = figures.median(xor_rates) or 0.0, figures.median(copy_rates) or 0.0
        table.keep("parity", f"{count} members", {"xor": xor_rates, "memcpy": copy_rates})
        table.add(
            "parity", f"XOR of {count} members", mpsd=f"{found:.1f} GB/s", ratio=f"{found / copied:.2f}",
            remark=f"memcpy of as many bytes {copied:.1f} GB/s; {figures.pair_range(xor_rates, copy_rates)}",
        )  # fmt: skip
        lines["XOR"].append((count, found))
        lines["memcpy"].append((count, copied))
    if asked.json:
        Path(asked.json).write_text(table.json())
    setting.plot(asked.plot, "Parity of blocks of 2 MiB, one core", "members", "GB/s", lines)
    print(table.text())
    return 0


def _rate(work: Callable[[], None], size: int) -> float:
    begun = time.thread_time()
    work()
    return size / (time.thread_time() - begun) / 1e9


if __name__ == "__main__":
    sys.exit(main())
