"""CuPy: arrays whose memory outlives the process; each start continues with the step that the one before had reached.

    python with_cupy.py --arena rod --steps 1000

Kill it with -9 at any time, and start it again: the result is that of an undisturbed run.
"""

import argparse

import cupy
from mpsd_client import Arena, ErrorCode, Layout, Refused, adopt

CELLS = 1 << 16


def main() -> None:
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--arena", default="rod")
    options.add_argument("--steps", type=int, default=1000)
    asked = options.parse_args()
    with adopt_or_create(asked.arena) as arena:
        run(arena, asked.steps)  # whose arrays are gone when the arena closes


def adopt_or_create(name: str) -> Arena:
    try:
        return adopt(name, wait=10)
    except Refused as refused:
        if refused.code != ErrorCode.NO_SUCH_ARENA:
            raise
    arena = Arena.create(name, capacity=4 << 20)
    rod = arena.view(arena.allocate(8 * CELLS).address, "float32", (2, CELLS))
    step = arena.view(arena.allocate(8).address, "int64", (1,))
    start = cupy.from_dlpack(rod)
    start[...] = 0
    start[0, CELLS // 2] = 1000
    cupy.from_dlpack(step)[...] = 0
    cupy.cuda.Device().synchronize()
    arena.commit(Layout({"rod": rod.spec, "step": step.spec}))  # last: it is adopted complete, or made anew
    return arena


def run(arena: Arena, steps: int) -> None:
    rod, step = cupy.from_dlpack(arena["rod"]), cupy.from_dlpack(arena["step"])  # no copies: the arena's memory
    done = int(step[0])
    print(f"generation {arena.generation} begins after step {done}", flush=True)
    while done < steps:
        heat, target = rod[done % 2], rod[(done + 1) % 2]  # in turns, so that a step that was cut off can be repeated
        target[1:-1] = heat[1:-1] + 0.25 * (heat[2:] - 2 * heat[1:-1] + heat[:-2])
        cupy.cuda.Device().synchronize()
        done += 1
        step[...] = done  # last
    cupy.cuda.Device().synchronize()
    print(f"step {done}: {float(rod[done % 2].max()):.6f}")


if __name__ == "__main__":
    main()
