"""A program with arenas on several GPUs, run as `python parity_program.py VERB ...` on the simulator; it prints JSON."""

import os
import random
import sys
from contextlib import ExitStack

from arena_looks import MIB, poke, refusal, say
from image_program import BLOCK, change, cuda_context, digests
from mpsd_client import Arena, State, StateReader, restore_arena

NAMES = ("left", "middle", "right")
BLOCKS = {"left": (3, 2), "middle": (4, 5), "right": (1, 3)}  # of the allocations: unequal


def fill(stack: ExitStack, suffix: str, ending: str = "", times: int = 1) -> list[Arena]:
    """Make an arena on each GPU, so many times as large."""
    chosen, arenas = random.Random(suffix), []
    for gpu, name in enumerate(NAMES):
        arena = stack.enter_context(Arena.create(f"{name}{suffix}", 64 * MIB, str(gpu)))
        blocks = [arena.allocate(2 * MIB), *(arena.allocate(times * count * BLOCK) for count in BLOCKS[name])]
        arena.free(blocks[0])  # a hole
        for block in arena.blocks():
            for at in range(0, block.bytes, BLOCK):
                poke(arena, block.address + at, chosen.randrange(250), BLOCK)
        state = State.create({"step": "uint64", "text": "text[16]"}, generation=arena.generation)
        state.publish(step=7, text=name)
        arena.commit(b"layout of %s" % name.encode())
        arena.keep_state(state)
        if ending == "seal":
            arena.seal()
        arenas.append(arena)
    return arenas


def leave(suffix: str, ending: str, times: str = "1") -> None:
    """Make the arenas, and leave them to mpsctl."""
    with ExitStack() as stack:
        arenas = fill(stack, suffix, ending, int(times))
        say(expected={arena.name: digests(arena) for arena in arenas})


def write_on(directory: str, suffix: str, count: str, parity: str) -> None:
    """Take parity while the arenas are written; then leave the bytes of the last barrier."""
    chosen, taking = random.Random(suffix), None
    with ExitStack() as stack:
        arenas = fill(stack, suffix)
        first, *others = arenas
        for number in range(int(count)):
            taking = first.image(f"live{suffix}.{number}", directory, others, "live", parity=int(parity))
            for _ in range(6):
                change(chosen.choice(arenas), chosen)
            chosen.choice(arenas).allocate(BLOCK)
            changed = chosen.choice([arena for arena in arenas if len(arena.blocks()) > 1])
            changed.free(chosen.choice(changed.blocks()))
            for arena in arenas:
                arena.commit(b"%d of %s" % (number, arena.name.encode()))
            barrier = taking.barrier()
            expected = {arena.name: digests(arena) for arena in arenas}
            if number < int(count) - 1:
                for _ in range(6):  # what is not finished yet does not look at it any more
                    change(chosen.choice(arenas), chosen)
            image = taking.wait()
            copied, to_copy = taking.progress
            say(name=image.name, expected=expected, direct=barrier.direct_bytes, copied=copied, to_copy=to_copy)


def append(directory: str, suffix: str, parity: str) -> None:
    """Take parity, and then write on behind the first blocks of each arena, as a cache does."""
    with ExitStack() as stack:
        arenas = fill(stack, suffix)
        taking = arenas[0].image(f"append{suffix}", directory, arenas[1:], "append", parity=int(parity))
        taking.barrier()
        expected = {arena.name: digests(arena) for arena in arenas}
        taking.wait()
        last = arenas[2].blocks()[-1]
        poke(arenas[2], last.address, 251, MIB)
        say(expected=expected, changed=last.offset)


def refusals(directory: str) -> None:
    with Arena.create("one", 64 * MIB) as one, Arena.create("two", 64 * MIB) as two, Arena.create("far", 64 * MIB, "1") as far:
        for arena in (one, two, far):
            arena.allocate(BLOCK)
            arena.commit(b"layout")
        said = {"alone": refusal(lambda: one.image("none", directory, parity=1))}
        taking = one.image("none", directory, [far, two], "g", parity=1)
        said["one gpu"] = refusal(taking.barrier)
        taking = one.image("good", directory, [far], "g", parity=1)
        taking.barrier()
        said["good"] = taking.wait().name
        said["three"] = refusal(one.image("none", directory, [far], "g", parity=3).barrier)
        say(**said)


def stay(suffix: str) -> None:
    """Make the arenas, and stay their writer until standard input ends."""
    with ExitStack() as stack:
        arenas = fill(stack, suffix)
        say(expected={arena.name: digests(arena) for arena in arenas})
        sys.stdin.read()


def look(name: str) -> None:
    """Print what an arena has, and leave it as it is."""
    with Arena.open(name) as arena:
        fetched, step = arena.fetch_state(), None
        if fetched:
            with StateReader.open(fetched[0]) as reader:
                record = reader.read()
                step = record and record["step"]
            os.close(fetched[0])
        say(expected=digests(arena), layout=arena.layout.decode() if arena.layout else None, step=step)


def use(directory: str, image: str, name: str) -> None:
    """Use a lost arena while it is rebuilt."""
    cuda_context()
    with restore_arena(image, arena=name, directory=directory, ttl=3600.0) as arena:
        arena.ready()
        say(expected=digests(arena))


if __name__ == "__main__":
    verbs = (leave, write_on, append, refusals, stay, look, use)
    {each.__name__: each for each in verbs}[sys.argv[1]](*sys.argv[2:])
