"""An imager that was started before it is asked: it has its context already, and what is restored is the same."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import Refused, calls

from tests.integration.machine import SIMULATOR, Machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_images import pytestmark, run, vault

__all__ = ["pytestmark", "vault"]

TOOL = SIMULATOR / "bin/mpsd-sim"
IMAGER = Path(sys.executable).with_name("mpsd-imager")
# Leaves room on the GPU for another context, and nearly 4 MiB.
HOLDER = """
import ctypes, sys
from tests.integration.arena_looks import cuda
context, memory, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
assert [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)] == [0, 0, 0]
assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(free.value - (520 << 20))) == 0
print("has it", flush=True)
sys.stdin.read()
"""
# Restores the image "kept" as a program does that has started an imager early.
RESTORE = """
import ctypes, json, sys
from mpsd_client import restore_arena, start_imager
from tests.integration.arena_looks import cuda
context = ctypes.c_void_p()
assert [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)] == [0, 0, 0]
imager = start_imager()
print(imager._process.pid, flush=True)
assert sys.stdin.readline()
if sys.argv[2] == "killed":
    imager._process.kill()
    imager._process.wait()
with restore_arena("kept", sys.argv[2], directory=sys.argv[1], imager=imager) as arena:
    is_same = arena._source.imager is imager
    arena.ready()
    print(json.dumps({"is_same": is_same}), flush=True)
"""


def has_modules(pid: int) -> bool:
    """Return whether the process has loaded what restores: mpsd's binding to C is among that."""
    return "/mpsd/_native" in Path(f"/proc/{pid}/maps").read_text()


def contexts(machine: Machine) -> dict[int, int]:
    """Return how many contexts each process has."""
    found = json.loads(machine.run("status", "--json", program=TOOL).stdout)
    return {each["pid"]: each["contexts"] for each in found["processes"]}


@pytest.mark.parametrize("gpus", [1, 2])
def test_an_imager_has_its_context_before_it_is_asked_for_an_image(machine: Machine, gpus: int) -> None:
    """If it sees one GPU alone: it does not know yet which one it will be asked for.  It ends with the process that has it."""
    machine.start(MPSD_SIM_GPUS=str(gpus))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, subprocess.Popen([IMAGER], stdin=theirs, env=machine.variables) as imager:
        theirs.close()
        ours.send(json.dumps({"do": "warm", "arena": "", "directory": ""}).encode())
        if gpus == 1:
            wait_for("its context", lambda: contexts(machine).get(imager.pid) == 1)
        wait_for("its modules", lambda: has_modules(imager.pid))
        ours.close()
        assert imager.wait(20) == 0
        assert imager.pid not in contexts(machine)


def sockets(pid: int) -> int:
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # a file that it had open to be read
            found += os.readlink(each).startswith("socket:")
    return found


@pytest.mark.slow
def test_an_imager_does_not_end_while_its_context_is_made(machine: Machine) -> None:
    """The vendor's daemon may hang after such an end."""
    machine.misbehave("slow@attach=4000")
    machine.start(MPSD_SIM_GPUS="1")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, subprocess.Popen([IMAGER], stdin=theirs, env=machine.variables) as imager, ours:
        theirs.close()
        before = sockets(imager.pid)
        ours.send(json.dumps({"do": "warm", "arena": "", "directory": ""}).encode())
        wait_for("a connection to MPS", lambda: sockets(imager.pid) > before)
        ours.close()
        with pytest.raises(subprocess.TimeoutExpired):
            imager.wait(1.0)
        assert imager.wait(20) == 0


def test_an_imager_makes_no_context_for_an_image_that_does_not_exist(
    vault: Machine, taken: tuple[Path, dict[str, str]]
) -> None:
    """As a replica asks until its first image is there.  The next question may find one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, subprocess.Popen([IMAGER], stdin=theirs, env=vault.variables) as imager, ours:
        theirs.close()
        for arena, answer in (("missing", "failed"), ("kept", "found")):
            with os.fdopen(os.memfd_create("progress"), "wb") as progress:
                asked = {"do": "restore", "image": "", "arena": arena, "directory": str(taken[0]), "gpu": ""}
                socket.send_fds(ours, [json.dumps(asked).encode()], [progress.fileno()])
            found, files, _, _ = socket.recv_fds(ours, 1 << 17, 3)
            for each in files:
                os.close(each)
            said = json.loads(found)
            assert said["is"] == answer, said
            if answer == "failed":
                assert said["is_missing"]
                wait_for("its modules", lambda: has_modules(imager.pid))
                assert sockets(imager.pid) == 1
        wait_for("its context", lambda: contexts(vault).get(imager.pid) == 1)
        ours.close()
        assert imager.wait(20) == 0


@pytest.fixture(scope="module")
def taken(vault: Machine, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """Return a directory with the image `kept`, and the hash of each of its blocks."""
    directory = tmp_path_factory.mktemp("images")
    [said] = run(vault, "keep", str(directory))
    return directory, said["expected"]


@pytest.mark.parametrize("name", ["warm", "killed"])
def test_what_a_warm_imager_restores_is_the_same(vault: Machine, taken: tuple[Path, dict[str, str]], name: str) -> None:
    """One that has ended in the meantime is replaced by another one."""
    directory, expected = taken
    command = [sys.executable, "-c", RESTORE, str(directory), name]
    more = {"PYTHONPATH": str(Path(__file__).parents[2]), "CUDA_VISIBLE_DEVICES": vault.uuids()[0]}
    environment, pipe = vault.variables | more, subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as program:
        assert program.stdin
        assert program.stdout
        pid = int(program.stdout.readline())
        wait_for("a warm imager", lambda: contexts(vault).get(pid) == 1)
        program.stdin.write("go\n")
        program.stdin.flush()
        said = json.loads(program.stdout.readline())
        assert program.wait(20) == 0
    assert said["is_same"] is (name == "warm")
    [found] = run(vault, "look", name)
    assert found["expected"] == expected


# A member of a service, that is told when to go on; "kept" is the image, too.
MEMBER = """
import ctypes, json, os, sys
from pathlib import Path
from mpsd_client import ImageSchedule, Service
from tests.integration.arena_looks import cuda
schema, images = {"step": "uint64", "text": "text[16]"}, ImageSchedule(3600, sys.argv[1])
service = Service("kept", capacity=64 << 20, schema=schema, images=images)
print(service._early and service._early._imager._process.pid, flush=True)
assert sys.stdin.readline()
context = ctypes.c_void_p()
assert [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)] == [0, 0, 0]
print("has begun", flush=True)
assert sys.stdin.readline()
arena = service.open()
with service.active(30) as term:
    print(json.dumps({"step": term.record["step"], "layout": term.arena.layout is not None}), flush=True)
    sys.stdin.readline()
"""


class Member:
    """A program that waits for a line before each thing that it does."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        more = {"PYTHONPATH": str(Path(__file__).parents[2]), "CUDA_VISIBLE_DEVICES": machine.uuids()[0]}
        command, pipe = [sys.executable, "-c", MEMBER, str(directory)], subprocess.PIPE
        self.process = subprocess.Popen(command, env=machine.variables | more, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.imager = self.read()

    def read(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, self.process.stderr and self.process.stderr.read()
        return json.loads(line) if line[0] in "{0123456789" else line.strip()

    def go_on(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("go on\n")
        self.process.stdin.flush()

    def close(self) -> str:
        """Kill it, and return its standard error."""
        self.process.kill()
        return self.process.communicate()[1]


@pytest.fixture
def member(vault: Machine, taken: tuple[Path, dict[str, str]]) -> Iterator[Member]:
    """Return one whose arena is gone."""
    with suppress(Refused), vault.mpsd() as mpsd:
        mpsd.ask(calls.arena_remove("kept"))
    made = Member(vault, taken[0])
    yield made
    made.close()


def test_a_service_has_a_warm_imager_when_it_restores(
    vault: Machine, taken: tuple[Path, dict[str, str]], member: Member
) -> None:
    """Its context comes after that of the program; it ends when the arena is there."""
    assert contexts(vault).get(member.imager, 0) == 0
    member.go_on()
    assert member.read() == "has begun"
    wait_for("a warm imager", lambda: contexts(vault).get(member.imager) == 1)
    member.go_on()
    assert member.read() == {"step": 7, "layout": True}
    wait_for("the imager's end", lambda: not is_running(member.imager))
    assert member.close() == ""
    [found] = run(vault, "look", "kept")
    assert found["expected"] == taken[1]


@pytest.mark.parametrize("moment", ["cold", "warm"])
def test_it_ends_with_its_program(vault: Machine, member: Member, moment: str) -> None:
    if moment == "warm":
        member.go_on()
        wait_for("a warm imager", lambda: contexts(vault).get(member.imager) == 1)
    member.close()
    wait_for("the imager's end", lambda: not is_running(member.imager))


def test_there_is_none_where_the_arena_is(vault: Machine, taken: tuple[Path, dict[str, str]], member: Member) -> None:
    member.go_on()
    member.go_on()
    assert [member.read(), member.read()] == ["has begun", {"step": 7, "layout": True}]
    another = Member(vault, taken[0])
    another.close()
    assert another.imager == "None"


def test_it_has_no_context_where_the_image_then_does_not_fit(machine: Machine, taken: tuple[Path, dict[str, str]]) -> None:
    """Another member may restore it first, with its own.  It says so, and restores when there is room."""
    machine.configure("[domains]\nspares = 0\n")  # its server would take memory meanwhile
    machine.start(MPSD_SIM_GPUS="1")  # a context has 516 MiB
    variables, pipe = machine.variables | {"PYTHONPATH": str(Path(__file__).parents[2])}, subprocess.PIPE
    asked = {"arena": "kept", "directory": str(taken[0])}
    with ExitStack() as stack:
        holder = stack.enter_context(subprocess.Popen([sys.executable, "-c", HOLDER], env=variables, stdin=pipe, stdout=pipe))
        stack.callback(holder.kill)
        assert holder.stdout
        assert holder.stdout.readline() == b"has it\n"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        imager = stack.enter_context(subprocess.Popen([IMAGER], stdin=theirs, stderr=pipe, env=machine.variables))
        stack.callback(ours.close)  # which ends it
        theirs.close()
        ours.send(json.dumps(asked | {"do": "warm"}).encode())
        assert imager.stderr
        said = imager.stderr.readline().decode()
        assert said == "mpsd-imager: it starts cold: 3 MiB of GPU memory are free, and the image of kept has 10 MiB\n"
        assert contexts(machine).get(imager.pid, 0) == 0
        holder.kill()
        holder.wait()
        with os.fdopen(os.memfd_create("progress"), "wb") as progress:
            restore = asked | {"do": "restore", "image": "", "gpu": ""}
            socket.send_fds(ours, [json.dumps(restore).encode()], [progress.fileno()])
        answer, files, _, _ = socket.recv_fds(ours, 1 << 17, 3)
        for each in files:
            os.close(each)
        assert json.loads(answer)["is"] == "found"
        wait_for("its context", lambda: contexts(machine).get(imager.pid) == 1)
