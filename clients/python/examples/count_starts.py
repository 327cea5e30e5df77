"""A number in GPU memory that outlives its program: how often it was started.

    python count_starts.py --arena starts

Kill it with -9 while it waits for Enter, and start it again: the number is at the same address, and one higher.
"""

import argparse

from mpsd_client import Arena, ErrorCode, Layout, Refused, TensorSpec, adopt


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--arena", default="starts")
    options.add_argument("--wait", action="store_true", help="until Enter")
    asked = options.parse_args()
    with adopt_or_create(asked.arena) as arena:
        number = arena["starts"]
        starts = int.from_bytes(number.tobytes(), "little") + 1
        number.frombytes(starts.to_bytes(8, "little"))
        print(f"start {starts}, generation {arena.generation}, at {number.address:#x}", flush=True)
        if asked.wait:
            input()


def adopt_or_create(name: str) -> Arena:
    try:
        return adopt(name, wait=10)
    except Refused as refused:
        if refused.code != ErrorCode.NO_SUCH_ARENA:
            raise
    arena = Arena.create(name, capacity=2 << 20)
    block = arena.allocate(8)
    arena.commit(Layout({"starts": TensorSpec(block.offset, "int64", (), ())}))
    arena["starts"].frombytes(bytes(8))
    return arena


if __name__ == "__main__":
    main()
