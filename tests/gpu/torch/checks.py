"""mpsd_client.torch on a real GPU: each check is a promise of docs/python.md, and reports in one JSON line whether it holds.

    checks.py                     all of them; exit status 1 if one fails
    checks.py NAME ...            some
    checks.py --list

Needs torch, a GPU, mpsd, and mpsd_client with its C part on PYTHONPATH. The actions of other processes are in acts.py.
"""

import json
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import torch
from acts import CUDA, MIB, digest, is_inside, refusal, say
from mpsd_client import Arena, Client, ErrorCode, LayoutError, Refused, calls
from mpsd_client._torch_pool import drop_pool
from mpsd_client.torch import load, pool, save

ACTS = Path(__file__).with_name("acts.py")
REMOVE_SECONDS = 60.0  # for the end of the process that had it to be seen


def act(verb: str, name: str, expected: int = 0) -> dict[str, Any]:
    """Let another process perform an action, and return its report."""
    command = [sys.executable, str(ACTS), verb, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == expected, f"{verb} ended with {done.returncode}: {done.stderr[-2000:]}"
    return dict(json.loads(done.stdout.splitlines()[-1])) if done.stdout.strip() else {}


def remove(name: str) -> None:
    deadline = time.monotonic() + REMOVE_SECONDS
    while True:
        try:
            with Client() as mpsd:
                mpsd.ask(calls.arena_remove(name))
            return
        except Refused as refused:
            if refused.code != ErrorCode.ARENA_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def check_memory_of_the_pool_is_the_arenas(name: str) -> None:
    arena = Arena.create(name, 128 * MIB)
    with pool(arena):
        small, large = torch.ones(10, device=CUDA), torch.ones(16 * MIB, device=CUDA)
        assert is_inside(arena, small)
        assert is_inside(arena, large)
    assert not is_inside(arena, torch.ones(10, device=CUDA))
    assert "in its pool" in refusal(arena.close, BufferError)
    assert float(large.sum()) == 16 * MIB
    del small, large
    arena.close()


def check_a_tensor_outside_is_refused_by_name_or_copied(name: str) -> None:
    arena = Arena.create(name, 64 * MIB)
    outside = torch.full((1000,), 3.0, device=CUDA)
    assert "tensor kv.1: 4000 bytes at" in refusal(lambda: save(arena, {"kv": [outside[:0], outside]}), LayoutError)
    save(arena, {"kv": [outside, outside], "host": torch.ones(3)}, copy=True)
    found = load(arena)
    assert found["kv.0"].data_ptr() == found["kv.1"].data_ptr()
    assert is_inside(arena, found["kv.0"])
    assert (float(found["kv.0"].sum()), float(found["host"].sum())) == (3000.0, 3.0)
    del found
    arena.close()


def check_the_capacity_is_an_out_of_memory_error(name: str) -> None:
    arena = Arena.create(name, 32 * MIB)
    with pool(arena):
        refusal(lambda: torch.empty(64 * MIB, dtype=torch.uint8, device=CUDA), torch.OutOfMemoryError)
        fits = torch.zeros(24 * MIB, dtype=torch.uint8, device=CUDA)
    save(arena, {"fits": fits})
    del fits
    arena.close()


def check_every_type_comes_back(name: str) -> None:
    assert act("write_kinds", name, -signal.SIGKILL) == act("read_kinds", name)


def check_a_module_comes_back_from_meta(name: str) -> None:
    before = act("write_module", name, -signal.SIGKILL)
    after = act("read_module", name)
    assert after == before | {"of": "checks"}


def check_keep_builds_once(name: str) -> None:
    first, second, third = (act("keep_and_die", name, -signal.SIGKILL) for _ in range(3))
    assert [each["is_adopted"] for each in (first, second, third)] == [False, True, True]
    assert [each["count"] for each in (first, second, third)] == [3.0, 6.0, 9.0]
    assert first["built"] == third["built"]


def check_a_build_that_died_is_done_again(name: str) -> None:
    act("half_build", name, -signal.SIGKILL)
    assert act("keep_and_die", name, -signal.SIGKILL)["is_adopted"] is False


def check_training_goes_on(name: str) -> None:
    before, after, through = act("train_and_die", name, -signal.SIGKILL), act("train_on", name), act("train_through", name)
    assert before["weights"] == after["weights"]
    worst = max(abs(a - b) / b for a, b in zip(after["losses"], through["losses"], strict=True))
    assert worst < 1e-5, f"{after['losses']} {through['losses']}"


def check_pools_of_two_threads_do_not_mix(name: str) -> None:
    arenas = [Arena.create(f"{name}-{number}", 128 * MIB) for number in range(2)]
    wrong: list[int] = []

    def fill(arena: Arena) -> None:
        for _ in range(50):
            with pool(arena):
                made = [torch.empty(MIB, device=CUDA) for _ in range(8)]
            wrong.append(sum(not is_inside(arena, each) for each in made))

    threads = [threading.Thread(target=fill, args=(arena,)) for arena in arenas]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [0] * 100
    for number, arena in enumerate(arenas):
        arena.close()
        remove(f"{name}-{number}")
    Arena.create(name, 2 * MIB).close()


def check_a_pool_may_end_before_its_tensors(name: str) -> None:
    arena = Arena.create(name, 64 * MIB)
    with pool(arena):
        tensor = torch.ones(MIB, device=CUDA)
    drop_pool(arena)
    assert float(tensor.sum()) == MIB
    del tensor
    torch.cuda.empty_cache()
    arena.close()
    torch.cuda.empty_cache()


def check_what_is_freed_waits_for_the_gpu(name: str) -> None:
    """A kernel that still writes to memory which goes must not fault."""
    arena = Arena.create(name, 1024 * MIB)
    for _ in range(20):
        with pool(arena):
            block = torch.zeros(64 * MIB, device=CUDA)
        for _ in range(50):
            block.add_(1)
        del block
        torch.cuda.empty_cache()
        drop_pool(arena)
    torch.cuda.synchronize()
    arena.close()


def check_the_interpreter_may_end_with_everything_open(name: str) -> None:
    assert act("leave_everything", name) == {"left": True}


def check_a_reader_sees_what_the_writer_has(name: str) -> None:
    arena = Arena.create(name, 64 * MIB)
    with pool(arena):
        x = torch.arange(1000, device=CUDA)
    save(arena, {"x": x})
    assert act("read_only", name)["digest"] == digest(x)
    del x
    arena.close()


def check_a_graph_captured_while_reading_runs_when_promoted(name: str) -> str:
    return promoted(name, "write_pieces")


def check_many_pieces_can_be_written_when_promoted(name: str) -> str:
    return promoted(name, "write_many_pieces")


def promoted(name: str, writer: str) -> str:
    act(writer, name, -signal.SIGKILL)
    said = act("stand_by", name)
    assert all(said["is_right"]), f"zero before, as captured, written to: {said['is_right']}"
    took = f"to be written after {said['mapped_ms']:.2f} ms, replayed within {said['replayed_ms']:.2f} ms"
    return f"{said['pieces']} pieces: {took}"


def check_a_rehearsal_writes_to_copies(name: str) -> str:
    return rehearsed(name, "write_pieces")


def check_a_rehearsal_of_many_pieces_writes_to_copies(name: str) -> str:
    return rehearsed(name, "write_many_pieces")


def rehearsed(name: str, writer: str) -> str:
    act(writer, name, -signal.SIGKILL)
    said = act("rehearse", name)
    assert all(said["is_right"]), f"rehearsals, the arena after each, the generator, the term: {said['is_right']}"
    return f"{said['pieces']} pieces: rehearsed in {said['rehearsed_ms']:.0f} ms, replayed within {said['replayed_ms']:.2f} ms"


CHECKS = {each.removeprefix("check_"): found for each, found in list(globals().items()) if each.startswith("check_")}


def main() -> int:
    words = sys.argv[1:]
    if words[:1] == ["--list"]:
        print("\n".join(CHECKS))
        return 0
    failed = 0
    for name in words or CHECKS:
        arena, began, why, told = f"checks-{uuid.uuid4().hex[:12]}", time.monotonic(), "", None
        try:
            told = CHECKS[name](arena)
            remove(arena)
        except Exception as exc:
            why, failed = f"{type(exc).__name__}: {exc}", failed + 1
        say(check=name, ok=not why, seconds=round(time.monotonic() - began, 3), why=why, told=told or "")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
