"""An imager that was started before it is asked: it has its context already, and what is restored is the same."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.machine import SIMULATOR, Machine
from tests.integration.process import wait_for
from tests.integration.test_images import pytestmark, run, vault

__all__ = ["pytestmark", "vault"]

TOOL = SIMULATOR / "bin/mpsd-sim"
IMAGER = Path(sys.executable).with_name("mpsd-imager")
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


def contexts(machine: Machine) -> dict[int, int]:
    """Return how many contexts each process has."""
    found = json.loads(machine.run("status", "--json", program=TOOL).stdout)
    return {each["pid"]: each["contexts"] for each in found["processes"]}


@pytest.mark.parametrize("gpus", [1, 2])
def test_an_imager_has_its_context_before_the_first_request(machine: Machine, gpus: int) -> None:
    """If it sees one GPU alone: it does not know yet which one it will be asked for.  It ends with the process that has it."""
    machine.start(MPSD_SIM_GPUS=str(gpus))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, subprocess.Popen([IMAGER], stdin=theirs, env=machine.variables) as imager:
        theirs.close()
        if gpus == 1:
            wait_for("its context", lambda: contexts(machine).get(imager.pid) == 1)
        ours.close()
        assert imager.wait(20) == 0
        assert imager.pid not in contexts(machine)


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
