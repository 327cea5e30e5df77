"""A program that takes images of its arena, run as `python image_program.py VERB DIRECTORY` on the simulator; it prints JSON.

It writes through the driver itself, and prints a hash of each block's bytes at the barrier.
"""

import ctypes
import hashlib
import os
import random
import select
import signal
import sys
import threading
from pathlib import Path

from arena_looks import MIB, cuda, dense, is_there, poke, refusal, say
from mpsd_client import Arena, Client, ImageSchedule, Layout, Service, State, StateReader, calls, restore_arena, restore_image
from mpsd_client._restoring import restore_if_missing

BLOCK = 2 * MIB
MOST_BESIDE = 10  # steps while the arena is copied: the simulator's GPU is the tests' processor


def cuda_context() -> None:
    context = ctypes.c_void_p()
    for status in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)):
        assert status == 0, f"CUDA error {status}"


def digests(arena: Arena) -> dict[int, str]:
    found = {}
    for block in arena.blocks():
        data = arena.copy_out(block.address, block.bytes)
        for at in range(0, block.bytes, BLOCK):
            found[block.offset + at] = hashlib.sha256(data[at : at + BLOCK]).hexdigest()
    return found


def change(arena: Arena, chosen: random.Random) -> None:
    """Write a part of some block."""
    block = chosen.choice(arena.blocks())
    at = chosen.randrange(0, block.bytes, MIB // 2)
    poke(arena, block.address + at, chosen.randrange(250), MIB // 2)


def many(directory: str, count: str) -> None:
    """Images in a row by one imager, of an arena that is written all the time and commits in between."""
    chosen = random.Random(int(count))
    with Arena.create("many", 64 * MIB) as arena:
        arena.allocate(6 * MIB)
        state = State.create({"step": "uint64"}, generation=arena.generation)
        arena.keep_state(state)
        for number in range(int(count)):
            change(arena, chosen)
            block = arena.allocate(2 * MIB)
            arena.commit(b"layout %d" % number)
            taking = arena.image(f"many.{number}", directory)
            beside = 0
            while not taking.is_prepared and beside < MOST_BESIDE:
                change(arena, chosen)
                beside += 1
            arena.free(block)
            arena.allocate(4 * MIB)  # partly where the other one was
            change(arena, chosen)
            arena.commit(b"later layout %d" % number)
            state.publish(step=number)
            barrier = taking.barrier()
            expected = digests(arena)
            for _ in range(5):
                change(arena, chosen)
            state.publish(step=999)
            image = taking.wait()
            copied, to_copy = taking.progress
            sizes = {"bytes": image.bytes, "staged": barrier.staged_bytes, "direct": barrier.direct_bytes}
            say(name=image.name, beside=beside, expected=expected, copied=copied, to_copy=to_copy, **sizes)


def group(directory: str, gpu: str) -> None:
    """Images of two arenas, on two GPUs, which are written in turns."""
    chosen = random.Random(7)
    with Arena.create("left", 64 * MIB) as left, Arena.create("right", 64 * MIB, gpu) as right:
        for arena in (left, right):
            arena.allocate(6 * MIB)
            arena.commit(arena.name.encode())
        said = {"alone": refusal(lambda: left.image("none", directory, [right]))}
        said["twice"] = refusal(lambda: left.image("none", directory, [left], "both"))
        say(**said)
        for number in range(2):
            taking = left.image(f"both.{number}", directory, [right], "both")
            for arena in (left, right, left, right):
                change(arena, chosen)
            right.allocate(2 * MIB)
            right.commit(b"right %d" % number)
            taking.barrier()
            expected = {"left": digests(left), "right": digests(right)}
            for arena in (left, right):
                change(arena, chosen)
            say(expected=expected, bytes=taking.wait().bytes)
        alone = left.image("alone", directory)
        alone.barrier()
        alone.wait()


def fill(name: str, ending: str) -> None:
    """Commit, and leave the arena; or seal it, or stay its writer until standard input ends."""
    with Arena.create(name, 64 * MIB) as arena:
        block = arena.allocate(6 * MIB)
        for number in range(3):
            poke(arena, block.address + number * BLOCK, number, BLOCK)
        arena.commit(b"layout of %s" % name.encode())
        if ending == "seal":
            arena.seal()
        say(expected=digests(arena))
        if ending == "stay":
            sys.stdin.read()


def serve(directory: str, count: str) -> None:
    """The active of a service: images between two steps, each of which writes memory and publishes its number."""
    chosen, step = random.Random(1), 0
    service = Service("served", capacity=64 * MIB, schema={"step": "uint64"})
    cuda_context()
    service.open()
    with service.active() as term:
        term.arena.allocate(8 * MIB)
        term.arena.commit(b"layout")

        def decode() -> None:
            nonlocal step
            change(term.arena, chosen)
            step += 1
            term.publish(step=step)

        for number in range(int(count)):
            taking = term.arena.image(f"served.{number}", directory)
            for _ in range(MOST_BESIDE):
                decode()
            taking.barrier()
            said = {"name": taking.name, "step": step, "expected": digests(term.arena)}
            for _ in range(3):
                decode()
            taking.wait()
            say(**said)


def serve_on(directory: str, kept: str, failed: str) -> None:
    """The active of a service that takes images at its own times, until so many were kept and failed.

    Its memory says its step, and it says what it found."""
    images = ImageSchedule(0.05, directory)
    service = Service("on", capacity=64 * MIB, schema={"step": "uint64"}, images=images)
    cuda_context()
    adopted = service.open().layout
    with service.active() as term:
        if adopted is None:
            term.arena.allocate(8 * MIB)
            term.arena.commit(b"layout")
        [block] = term.arena.blocks()
        step = int(term.record["step"]) if term.record else 0
        was_step = step and is_there(term.arena, block.address, step % 250, block.bytes)
        say(found=step, is_of_that_step=bool(was_step), generation=term.generation)
        publish = term.publisher("step")
        while images.taken < int(kept) or images.failed < int(failed):
            step += 1
            poke(term.arena, block.address, step % 250, block.bytes)
            if step % 2:
                publish(step)
            else:
                term.publish(step=step)
            poke(term.arena, block.address, 251, MIB)  # the next step has begun
            term.publish()
        say(step=step, last=images.last and images.last.name, trouble=images.trouble)


def end_early(directory: str) -> None:
    """Close the arena of a schedule whose imager starts."""
    before = set(threading.enumerate())
    with Arena.create("early", 64 * MIB) as arena:
        arena.allocate(2 * MIB)
        arena.commit(b"layout")
        images = ImageSchedule(0.001, directory)
        images.step_done(arena)
        [thread] = set(threading.enumerate()) - before
        while not Path(f"/proc/self/task/{thread.native_id}/children").read_text():
            assert thread.is_alive()
        images.end()
    thread.join(60)
    say(is_over=not thread.is_alive(), taken=images.taken, failed=images.failed)


def keep(directory: str) -> None:
    """Take an image of an arena with memory in several places, a layout and a forward state."""
    chosen = random.Random(3)
    with Arena.create("kept", 64 * MIB) as arena:
        blocks = [arena.allocate(size * MIB) for size in (6, 2, 4)]
        for _ in range(20):
            change(arena, chosen)
        arena.free(blocks[1])  # a gap
        state = State.create({"step": "uint64", "text": "text[16]"}, generation=arena.generation)
        state.publish(step=7, text="seven")
        arena.commit(b"layout of kept")
        arena.keep_state(state)
        taking = arena.image("kept", directory)
        taking.barrier()
        say(expected=digests(arena))
        taking.wait()


def keep_tensors(directory: str) -> None:
    """Take an image of an arena with three tensors."""
    names = ("embed", "layers.0", "layers.1")
    with Arena.create("tensors", 64 * MIB) as arena:
        blocks = [arena.allocate(BLOCK) for _ in names]
        for number, block in enumerate(blocks):
            poke(arena, block.address, number, BLOCK)
        state = State.create({"step": "uint64", "text": "text[16]"}, generation=arena.generation)
        state.publish(step=7, text="seven")
        tensors = {name: dense(block.offset, "uint8", BLOCK) for name, block in zip(names, blocks, strict=True)}
        arena.commit(Layout(tensors))
        arena.keep_state(state)
        taking = arena.image("tensors", directory)
        taking.barrier()
        taking.wait()


def restore_in_use(directory: str, name: str) -> None:
    """Use the tensors of an image as they come."""
    cuda_context()
    arena = restore_arena("tensors", name, ["layers.0"], directory=directory, ttl=3600.0)
    with Client() as mpsd:
        said = {"others find": mpsd.ask(calls.arena_get(name)).layout_hash}
    said["unknown"] = refusal(lambda: arena.ready("layer"))
    for number, each in ((1, "layers.0"), (0, "embed"), (2, "layers.1")):
        why = refusal(lambda each=each: arena.ready(each, timeout=60.0))
        said[each] = "right" if is_there(arena, arena[each].address, number, BLOCK) else why
    arena.allocate(BLOCK)
    said |= {"ready": refusal(arena.ready), "commit": refusal(arena.commit)}
    arena.close()
    say(**said)


def die_in_use(directory: str) -> None:
    """Killed while the image comes, which this process uses."""
    cuda_context()
    arena = restore_arena("tensors", "halfway", ["layers.0"], directory=directory)
    arena.ready("layers.0")
    os.kill(os.getpid(), signal.SIGKILL)


def look(name: str) -> None:
    """Adopt an arena, print what it has, and change it.  The work of its writer before may not have ended yet."""
    with Arena.open(name, wait=20.0) as arena:
        fetched = arena.fetch_state()
        step = text = None
        if fetched:
            with StateReader.open(fetched[0]) as reader:
                record = reader.read()
                assert record is not None
                step, text = record["step"], record["text"]
            os.close(fetched[0])
        layout = None if arena.layout is None else arena.layout.decode()
        say(expected=digests(arena), layout=layout, step=step, text=text)
        change(arena, random.Random(4))
        arena.allocate(2 * MIB)
        arena.commit(b"another")


def live_through_a_fault(directory: str) -> None:
    """An image before a fault of the domain that this process and its imager are in, and one begun after it."""
    arena = Arena.create("shaken", 64 * MIB)
    arena.allocate(6 * MIB)
    arena.commit(b"layout")
    first = arena.image("first", directory)
    first.barrier()
    first.wait()
    say(expected=digests(arena))
    sys.stdin.readline()
    second = arena.image("second", directory)
    say(second=refusal(second.barrier))
    os._exit(0)  # its context is lost, and so is all that it would close


def leave_the_barrier(directory: str) -> None:
    """Wait too short a time at the barrier, and write on: the imager is stopped, so that the time is over first."""
    arena = Arena.create("impatient", 64 * MIB)
    block = arena.allocate(8 * MIB)
    arena.commit(b"layout")
    taking = arena.image("impatient", directory)
    look = select.poll()
    look.register(taking._imager._socket, select.POLLIN)
    look.poll()  # prepared
    imager = taking._imager._process
    os.kill(imager.pid, signal.SIGSTOP)
    said = {"barrier": refusal(lambda: taking.barrier(timeout=0.1))}
    poke(arena, block.address, 9, block.bytes)
    os.kill(imager.pid, signal.SIGCONT)
    say(**said, status=imager.wait(20))
    arena.close()


def die_restoring(directory: str) -> None:
    """Killed when the first memory is in the new arena."""
    with Client() as mpsd:
        restore_image(mpsd, "kept", "half", directory=directory, told=lambda *_: os.kill(os.getpid(), signal.SIGKILL))


def restore_missing(directory: str) -> None:
    """Restore `kept`, which was made but never committed: while a process has it, then when none has it, and then again."""
    with Client() as mpsd:
        made = mpsd.ask(calls.arena_create("kept", "0", 64 * MIB))
        opened, found = mpsd.ask(calls.arena_open("kept", "write")), []
        for number in range(3):
            restore_if_missing("kept", "0", None, directory, mode=0o600, ttl=0.0)
            found.append(mpsd.ask(calls.arena_get("kept")))
            if number == 0:
                mpsd.ask(calls.arena_close(opened.id))
        say(commits=[each.commit for each in found], is_same=[each.id == made.id for each in found])


def die_after_barrier(directory: str) -> None:
    """Killed as soon as it may go on."""
    arena = Arena.create("orphan", 64 * MIB)
    arena.allocate(32 * MIB)
    arena.commit(b"layout")
    change(arena, random.Random(1))
    taking = arena.image("orphan", directory)
    taking.barrier()
    say(expected=digests(arena))
    os.kill(os.getpid(), signal.SIGKILL)


def die_completing(directory: str) -> None:
    """Take images whose imager is killed at the first call, the second and so on (deadly_imager.py), until one survives."""
    chosen = random.Random(5)
    with Arena.create("deadly", 64 * MIB) as arena:
        arena.allocate(6 * MIB)
        arena.commit(b"layout")
        is_complete, number = False, 0
        while not is_complete:
            number += 1
            os.environ["DEADLY_CALL"] = str(number)
            change(arena, chosen)
            taking = arena.image(f"deadly.{number}", directory)
            taking.barrier()
            expected = digests(arena)
            is_complete = refusal(taking.wait) == "nothing"
            say(name=taking.name, is_complete=is_complete, expected=expected)


def complete_two(directory: str, call: str) -> None:
    """Take an image, and another one during which a process is killed; print the hashes of either."""
    arena = Arena.create("two", 64 * MIB)
    arena.allocate(6 * MIB)
    arena.commit(b"layout")
    for name, deadly in (("before", "0"), ("during", call)):
        os.environ["DEADLY_CALL"] = deadly
        change(arena, random.Random(6))
        print(*digests(arena).values(), flush=True)
        taking = arena.image(name, directory)
        taking.barrier()
        taking.wait()
        taking.end()  # the next one has other orders
        arena._taking = None
    os._exit(0)  # mpsd may be gone


def refusals(directory: str) -> None:
    with Arena.create("refusals", 64 * MIB) as arena:
        arena.allocate(2 * MIB)
        arena.commit(b"layout")
        first = arena.image("same", directory)
        first.barrier()
        said = {"two barriers": refusal(first.barrier)}
        first.wait()
        again = arena.image("same", directory)
        said["same name"] = refusal(again.barrier)
        killed = arena.image("killed", directory)
        said["another process after a failure"] = killed._imager is not again._imager
        while not (variables := Path(f"/proc/{killed._imager._process.pid}/environ").read_bytes()):
            os.sched_yield()  # the kernel is about to set it
        said["below normal"] = b"CUDA_MPS_CLIENT_PRIORITY=1" in variables.split(b"\0")
        said["wait before the barrier"] = refusal(killed.wait)
        os.kill(killed._imager._process.pid, signal.SIGKILL)
        said["killed imager"] = refusal(killed.barrier)
        after = arena.image("after", directory)
        after.barrier()
        said["after it"] = after.wait().name
        os.environ["MPSD_IMAGER"] = "/nonexistent/imager"
        said["no program"] = refusal(lambda: arena.image("none", directory + "/other"))
        Path(directory, "file").write_text("")
        del os.environ["MPSD_IMAGER"]
        said["no directory"] = refusal(lambda: arena.image("none", Path(directory, "file")).barrier())
        say(**said)


if __name__ == "__main__":
    verbs = (many, group, fill, keep, keep_tensors, look, serve, serve_on, live_through_a_fault, leave_the_barrier,
             end_early, die_after_barrier, die_completing, complete_two, die_restoring, die_in_use, restore_missing,
             restore_in_use, refusals)  # fmt: skip
    {each.__name__: each for each in verbs}[sys.argv[1]](*sys.argv[2:])
