"""A Python program with arenas, run as `python arena_program.py VERB ...` on the simulated driver: JSON lines of what it found.

Memory is looked at through the driver itself (cuMemcpy), never through the views under test.
"""

import array
import ctypes
import gc
import json
import os
import signal
import subprocess
import sys
import threading
from ctypes import c_ssize_t, c_void_p
from functools import partial
from typing import Any

from arena_looks import MIB, dense, is_there, pattern, poke, refusal, say
from mpsd_client import Arena, Layout, State, StateReader, TensorSpec, adopt
from mpsd_client import _native as native
from mpsd_client._cuda import on_device
from mpsd_client._native import lib

# -- one process writes, dies, and another adopts ------------------------------------------------------------------------


def fill(arena: Arena) -> None:
    """Three blocks, one dropped before the commit; tensors in the others, one across both."""
    first, second, third = (arena.allocate(size) for size in (2 * MIB, 3 * MIB, 2 * MIB))
    poke(arena, first.address, 1, first.bytes)
    poke(arena, third.address, 3, third.bytes)
    arena.free(second)
    layout = {
        "weights": dense(first.offset, "bfloat16", 1024, 1024),
        "slanted": TensorSpec(third.offset + 4096, "float32", (3, 5), (8, 1)),
        "kv": dense(third.offset, "uint8", 2, MIB),
    }
    arena.commit(Layout(layout, {"step": 7}))


def write_and_die(name: str, *more: str) -> None:
    """Killed in the middle of the next change: a block more, another layout not committed yet, one committed block freed."""
    arena = Arena.create(name, 32 * MIB)
    fill(arena)
    late = arena.allocate(4 * MIB)
    poke(arena, late.address, 9, late.bytes)
    arena.flush()
    arena.free(arena.blocks()[0])
    say(base=arena.base, generation=arena.generation, used=arena.used_bytes, blocks=len(arena.blocks()))
    os.kill(os.getpid(), signal.SIGKILL)


def take_over(name: str) -> None:
    arena = adopt(name, wait=10)
    kv, weights = arena["kv"], arena["weights"]
    say(
        base=arena.base,
        generation=arena.generation,
        blocks=[block.bytes // MIB for block in arena.blocks()],
        names=list(arena),
        step=arena.extra["step"],
        strides=arena["slanted"].strides,
        weights=is_there(arena, weights.address, 1, weights.nbytes),
        kv=is_there(arena, kv.address, 3, kv.nbytes),
        reading=arena["kv"].is_read_only,
    )
    more = arena.allocate(MIB)
    arena.commit(Layout(dict(arena.tensors) | {"more": dense(more.offset, "int8", MIB)}, {"step": 8}))
    arena.close()


def write_and_leave(name: str) -> None:
    with Arena.create(name, 32 * MIB) as arena:
        fill(arena)


# -- several processes ---------------------------------------------------------------------------------------------------


def read_beside(name: str) -> None:
    """While a writer has it: its own process here opens it to read, then the writer adds to it."""
    with Arena.create(name, 32 * MIB) as writer:
        fill(writer)
        say(second=refusal(lambda: other_process("open_now", name)))
        with_reader = other_process("look", name)
        say(**with_reader)


def other_process(*words: str) -> Any:
    done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return json.loads(done.stdout)


def open_now(name: str) -> None:
    Arena.open(name).close()


def look(name: str) -> None:
    with Arena.read(name) as arena:
        kv = arena["kv"]
        interface = kv.__cuda_array_interface__
        versioned = kv.__dlpack__(max_version=(1, 1))
        facts = {
            "right": is_there(arena, kv.address, 3, kv.nbytes),
            "plain": refusal(kv.__dlpack__),
            "capsule": repr(versioned).split('"')[1],
            "interface": interface,
            "allocate": refusal(lambda: arena.allocate(MIB)),
            "commit": refusal(lambda: arena.commit(b"mine")),
        }
        del kv, versioned, interface
    say(**facts)


def follow(name: str) -> None:
    """Reads, and looks again when a line comes; a view of what stayed is as good as before."""
    with Arena.read(name) as arena:
        kv = arena["kv"]
        say(names=list(arena), changed=arena.refresh())
        sys.stdin.readline()
        say(
            changed=arena.refresh(),
            names=list(arena),
            extra=arena.extra,
            right=is_there(arena, kv.address, 3, kv.nbytes) and is_there(arena, arena["more"].address, 6, arena["more"].nbytes),
            gone=refusal(lambda: arena["weights"]),
            blocks=[block.bytes // MIB for block in arena.blocks()],
            again=arena.refresh(),
        )
        del kv


def let_follow(name: str) -> None:
    """Run the concurrent writer."""
    with Arena.create(name, 32 * MIB) as arena:
        fill(arena)
        reader = subprocess.Popen([sys.executable, __file__, "follow", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with reader:
            assert reader.stdin is not None
            assert reader.stdout is not None
            first = json.loads(reader.stdout.readline())
            more = arena.allocate(2 * MIB)
            poke(arena, more.address, 6, more.bytes)
            arena.free(arena.blocks()[0])
            arena.commit(Layout({"kv": arena.tensors["kv"], "more": dense(more.offset, "uint8", 2 * MIB)}, {"step": 8}))
            reader.stdin.write(b"on\n")
            reader.stdin.flush()
            say(first=first, second=json.loads(reader.stdout.readline()))


def terms(name: str) -> None:
    """Play a service's member: the writer becomes a reader and the writer again, and its forward state is kept all the time."""
    with Arena.create(name, 32 * MIB) as arena, State.create({"step": "uint64"}, generation=1) as state:
        found: dict[str, Any] = {"none": arena.fetch_state(), "uncommitted": None}
        fill(arena)
        serial = arena.keep_state(state)
        state.publish(step=7)
        kept = arena.fetch_state()
        assert kept is not None
        with StateReader.open(kept[0], generation=kept[1]) as reader:
            record = reader.read()
        os.close(kept[0])
        found |= {"kept": [kept[1], kept[2] == serial, record and record["step"]]}
        block = arena.allocate(MIB)
        found["uncommitted"] = refusal(arena._yielded)
        arena.free(block)
        arena._yielded()
        kv = arena["kv"]
        found |= {"reading": [arena.is_writable, kv.is_read_only], "allocate": refusal(lambda: arena.allocate(MIB))}
        found["stale"] = refusal(lambda: arena._promoted(0))
        arena._promoted(2)
        found |= {"writing": [arena.is_writable, kv.is_read_only], "generation": arena.generation}
        arena._promoted(2)
        kv.frombytes(pattern(5, kv.nbytes)[: kv.nbytes])
        found["right"] = is_there(arena, kv.address, 5, kv.nbytes)
        del kv
        say(**found)
        arena.forget()  # generation 2 was not mpsd's word


def on_gpu(name: str, new_on: str = "") -> None:
    """Creates it on a GPU of mpsd's counting, or adopts it where it is."""
    try:
        arena = Arena.create(name, 8 * MIB, new_on) if new_on else adopt(name)
    except LookupError as exc:
        return say(refused=f"LookupError: {exc}")
    if new_on:
        arena.commit(Layout({"word": dense(arena.allocate(5).offset, "uint8", 5)}))
        arena["word"].frombytes(b"hello")
    word = arena["word"]
    return say(gpu=arena.gpu, device=word.__dlpack_device__(), said=word.tobytes().decode())


def across_a_restart(name: str) -> None:
    """Waits for a line, before and after: mpsd is another one by then, or is coming."""
    arena = Arena.create(name, 32 * MIB)
    fill(arena)
    say(base=arena.base)
    sys.stdin.readline()
    more = arena.allocate(2 * MIB)
    poke(arena, more.address, 6, more.bytes)
    arena.commit(Layout(dict(arena.tensors) | {"more": dense(more.offset, "uint8", 2 * MIB)}, {"step": 9}))
    say(generation=arena.generation, base=arena.base)
    os.kill(os.getpid(), signal.SIGKILL)


def leave_unused(name: str) -> None:
    """The next writer names only some of the existing tensors; the one after it removes the others, and adds a block."""
    write_and_leave(name)
    with adopt(name) as arena:
        arena.commit(Layout({"weights": arena.tensors["weights"]}))
        kept_own = arena.free_unused()
    with adopt(name) as arena:
        arena.allocate(MIB)
        say(before=kept_own, freed=arena.free_unused(), again=arena.free_unused(), left=len(arena.blocks()), names=list(arena))


def hold(name: str) -> None:
    """Until a line comes."""
    with Arena.create(name, 32 * MIB) as arena:
        fill(arena)
        say(generation=arena.generation)
        sys.stdin.readline()


def wait_for_it(name: str) -> None:
    try:
        say(waits=True)
        with Arena.open(name, wait=3600) as arena:
            say(generation=arena.generation)
    except KeyboardInterrupt:
        say(interrupted=True)


# -- borders -------------------------------------------------------------------------------------------------------------


def refusals(name: str) -> None:
    arena = Arena.create(name, 8 * MIB)
    block = arena.allocate(6 * MIB)
    outside = Layout({"x": dense(block.offset + block.bytes - 2, "int16", 2)})
    facts = {
        "again": refusal(lambda: Arena.create(name, 8 * MIB)),
        "unknown": refusal(lambda: Arena.open("nobodys")),
        "no layout": refusal(lambda: arena["x"]),
        "capacity": refusal(lambda: arena.allocate(4 * MIB)),
        "free": refusal(lambda: arena.free(block.address + 4096)),
        "outside": refusal(lambda: arena.commit(outside)),
        "text": refusal(lambda: arena.commit("a layout")),  # type: ignore[arg-type]
        "large": refusal(lambda: arena.commit(b"x" * (16 * MIB + 1))),
        "view": refusal(lambda: arena.view(block.address, "int8", (7 * MIB,))),
        "type": refusal(lambda: arena.view(block.address, "int9", (1,))),
    }
    arena.close()
    facts |= {"closed": refusal(lambda: arena.allocate(MIB)), "twice": refusal(arena.close)}
    say(**facts, none=refusal(lambda: adopt(name)), still=refusal(lambda: Arena.open(name).close()))


def foreign_layouts(name: str) -> None:
    """What another program, or a malicious one, may have committed."""
    arena = Arena.create(name, 8 * MIB)
    block = arena.allocate(2 * MIB)
    found = {}
    arena.commit(b"\x00\xffnot ours")
    found["bytes"] = (arena.layout == b"\x00\xffnot ours", refusal(lambda: arena["x"]))
    arena.commit({"format": "mine", "version": 3})
    found["mapping"] = (json.loads(arena.layout or b"")["version"], refusal(lambda: arena.tensors))
    beyond = {"offset": block.bytes - 8, "bytes": 16, "dtype": "int8", "shape": [16], "strides": [1]}
    arena.commit({"format": "mpsd-tensors-1", "tensors": {"beyond": beyond}})
    found["beyond"] = (list(arena), refusal(lambda: arena["beyond"]))
    found["missing"] = (list(arena), refusal(lambda: arena["nothing"]))
    arena.close()
    say(**found)


def lending(name: str) -> None:
    """The library unmaps no memory that a process still has open."""
    write_and_leave(name)
    arena = adopt(name)
    tensor = arena["kv"]
    capsule = tensor.__dlpack__(max_version=(1, 0))
    found = {"capsule": refusal(arena.close), "lent": arena.lent}
    del capsule
    interface = tensor.__cuda_array_interface__
    found["interface"] = refusal(arena.close)
    found["other device"] = refusal(partial(tensor.__dlpack__, dl_device=(1, 0)))
    found["copy"] = refusal(partial(tensor.__dlpack__, copy=True))
    found["bfloat16"] = hasattr(arena["weights"], "__cuda_array_interface__")
    found["device"] = tensor.__dlpack_device__()
    slanted = arena["slanted"].__cuda_array_interface__
    found["strides"] = (interface["strides"], slanted["strides"], slanted["typestr"], interface["version"])
    del tensor, interface
    gc.collect()
    arena.close()
    found["closed"] = arena.is_closed
    say(**found)


def leaving_with_a_view(name: str, is_failing: str = "") -> None:
    """`with` reports a view that still exists, but hides no exception behind that report."""
    write_and_leave(name)

    def leave() -> None:
        with adopt(name) as arena:
            capsule = arena["kv"].__dlpack__(max_version=(1, 0))
            assert capsule
            if is_failing:
                raise KeyError("of mine")

    say(raised=refusal(leave))


def copies(name: str) -> None:
    write_and_leave(name)
    with adopt(name) as arena:
        kv = arena["kv"]
        found = {"same": kv.tobytes() == pattern(3, kv.nbytes)[: kv.nbytes], "gaps": refusal(arena["slanted"].tobytes)}
        kv.frombytes(pattern(4, kv.nbytes)[: kv.nbytes])
        found["same"] = found["same"] and is_there(arena, kv.address, 4, kv.nbytes)
        found["size"] = refusal(lambda: kv.frombytes(b"abc"))
        found["text"] = refusal(lambda: kv.frombytes("a" * kv.nbytes))  # type: ignore[arg-type]
        found["numbers"] = refusal(lambda: kv.frombytes(array.array("Q", bytes(kv.nbytes))))  # type: ignore[arg-type]
    with Arena.read(name) as reader:
        found["reading"] = refusal(lambda: reader["kv"].frombytes(bytes(kv.nbytes)))
    say(**found)


def fork(name: str) -> None:
    """The child can only close the parent's arena."""
    write_and_leave(name)
    arena = adopt(name)
    child = os.fork()
    if child == 0:
        said = refusal(lambda: arena.allocate(MIB))
        arena.close()
        os._exit(0 if "parent" in said else 3)
    _, status = os.waitpid(child, 0)
    kv = arena["kv"]
    say(child=os.waitstatus_to_exitcode(status), right=is_there(arena, kv.address, 3, kv.nbytes))
    arena.close()


# -- PyTorch's allocator, called as PyTorch calls it ---------------------------------------------------------------------


def allocator(name: str) -> None:
    path = native.__file__
    assert path
    library = ctypes.CDLL(path)
    take, give = library.mpsd_torch_alloc, library.mpsd_torch_free
    take.restype, take.argtypes = c_void_p, (c_ssize_t, ctypes.c_int, c_void_p)
    give.restype, give.argtypes = None, (c_void_p, c_ssize_t, ctypes.c_int, c_void_p)
    arena = Arena.create(name, 16 * MIB)
    found: dict[str, Any] = {"unchosen": take(2 * MIB, 0, None)}
    lib.mpsd_torch_use(0, arena.handle)
    elsewhere: list[Any] = []
    thread = threading.Thread(target=lambda: elsewhere.append(take(2 * MIB, 0, None)))
    thread.start()
    thread.join()
    with on_device(0):
        first, second = take(3 * MIB, 0, None), take(2 * MIB, 0, None)
        found |= {"too much": take(64 * MIB, 0, None), "no bytes": take(0, 0, None), "no device": take(MIB, 99, None)}
    found |= {"elsewhere": elsewhere[0], "offsets": [first - arena.base, second - arena.base], "blocks": len(arena.blocks())}
    poke(arena, second, 5, 2 * MIB)
    give(first, 3 * MIB, 0, None)  # no context is current: the GPU cannot be waited for
    found["after a free without a context"] = len(arena.blocks())
    with on_device(0):
        give(0x1000, MIB, 0, None)
        third = take(MIB, 0, None)  # the same place once more, since what was given back has gone by now
    found |= {"third": third - arena.base, "blocks then": len(arena.blocks())}
    found["second"] = is_there(arena, second, 5, 2 * MIB)
    found["forgotten"] = lib.mpsd_torch_forget(arena.handle)
    arena.close()
    with on_device(0):
        give(second, 2 * MIB, 0, None)
        found["after the end"] = take(MIB, 0, None)
    say(**found)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
