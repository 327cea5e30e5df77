"""Parity: how fast one core makes P, or P and Q, of blocks of 2 MiB, and rebuilds one; compared with memcpy of as many bytes.

    .venv/bin/python tests/bench/bench_parity.py [--trials 20] [--json FILE]

Needs neither a GPU nor a daemon.  The blocks are in 256 MiB, more than most processors have as cache; GB/s are bytes of the
members.
"""

import ctypes
import mmap
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mpsd.images.parity import combine, make_parity
from mpsd.images.rules.manifest import BLOCK_BYTES
from mpsd.images.rules.parity import factors
from tests.bench import setting
from tests.gpu.comparison import figures
from tests.gpu.comparison.table import Table

MEMBERS = (2, 3, 4, 8)
BLOCKS = 128
FIRST, SECOND = mmap.mmap(-1, BLOCK_BYTES), mmap.mmap(-1, BLOCK_BYTES)
TO = ctypes.addressof(ctypes.c_char.from_buffer(FIRST))


def _copy(stripe: Sequence[memoryview]) -> None:
    for each in stripe:
        ctypes.memmove(TO, ctypes.addressof(ctypes.c_char.from_buffer(each)), BLOCK_BYTES)


def _rebuild(stripe: Sequence[memoryview]) -> None:
    """Of the sums of P and Q, as when two members are lost."""
    make_parity([None, *stripe[1:]], FIRST, SECOND)
    combine(factors(0, 1), FIRST, SECOND, FIRST)


WORK: dict[str, Callable[[Sequence[memoryview]], None]] = {
    "memcpy": _copy,
    "P": lambda stripe: make_parity(stripe, FIRST),
    "P and Q": lambda stripe: make_parity(stripe, FIRST, SECOND),
    "a block with Q": _rebuild,
}


def main() -> int:
    asked = setting.parser("parity", __doc__).parse_args()
    table = Table(facts={"clock": "processor time of one thread"})
    memory = mmap.mmap(-1, BLOCKS * BLOCK_BYTES)
    view = memoryview(memory)
    for at in range(0, len(view), BLOCK_BYTES):
        view[at : at + BLOCK_BYTES] = os.urandom(BLOCK_BYTES)
    blocks = [view[at : at + BLOCK_BYTES] for at in range(0, len(view), BLOCK_BYTES)]
    for count in MEMBERS:
        stripes = [blocks[first : first + count] for first in range(0, BLOCKS - count + 1, count)]
        rates: dict[str, list[float]] = {what: [] for what in WORK}
        for _ in range(asked.trials):
            for what, work in WORK.items():  # in turns: what else runs meanwhile hits all
                rates[what].append(_rate(work, stripes))
        table.keep("parity", f"{count} members", rates)
        for what, those in rates.items():
            found, copied = figures.median(those) or 0.0, figures.median(rates["memcpy"]) or 0.0
            if what != "memcpy":
                remark = f"memcpy of as many bytes {copied:.1f} GB/s; {figures.pair_range(those, rates['memcpy'])}"
                ratio = f"{found / copied:.2f}"
                table.add("parity", f"{what} of {count} members", mpsd=f"{found:.1f} GB/s", ratio=ratio, remark=remark)
    return setting.finish(table, asked)


def _rate(work: Callable[[Sequence[memoryview]], None], stripes: Sequence[Sequence[memoryview]]) -> float:
    begun = time.thread_time()
    for each in stripes:
        work(each)
    return sum(map(len, stripes)) * BLOCK_BYTES / (time.thread_time() - begun) / 1e9


if __name__ == "__main__":
    sys.exit(main())
