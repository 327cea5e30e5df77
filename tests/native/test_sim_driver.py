"""The simulator's driver: memory that outlives its process, order and time, wrong calls, names, fork; and its header."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import ROOT, Machine, eventually

DRIVER = Path(__file__).with_name("sim_driver.py")
TOOLKIT = Path("/usr/local/cuda/include")
GRANULES = 8


def drive(
    machine: Machine, *arguments: str, pass_fds: tuple[int, ...] = (), expected: int = 0, program: Path = DRIVER
) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-I", program, *arguments],
        env=machine.library_environment(),
        capture_output=True,
        text=True,
        timeout=25,
        pass_fds=pass_fds,
        check=False,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return found


def receive(path: Path, got: list[int]) -> threading.Thread:
    """Take one descriptor without CUDA, as a keeper does."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(path))
    listener.listen(1)
    listener.settimeout(20)

    def take() -> None:
        with listener:
            peer, _ = listener.accept()
            with peer:
                got.extend(socket.recv_fds(peer, 64, 1)[1])

    thread = threading.Thread(target=take)
    thread.start()
    return thread


@pytest.mark.parametrize("ending", ["exit", "kill"])
@pytest.mark.parametrize("with_daemon", [False, True], ids=["alone", "under MPS"])
def test_memory_lives_as_long_as_its_descriptor(machine: Machine, ending: str, with_daemon: bool) -> None:
    if with_daemon:
        machine.start()
        machine.start_server()
    before = machine.used_mib()
    got: list[int] = []
    keeper = receive(machine.place / "keeper", got)
    drive(machine, "write", str(machine.place / "keeper"), str(GRANULES), ending, expected=-9 if ending == "kill" else 0)
    keeper.join()
    eventually(lambda: machine.used_mib() == before + 2 * GRANULES)
    assert drive(machine, "adopt", str(got[0]), str(GRANULES), pass_fds=(got[0],)) == {"wrong": 0}
    os.close(got[0])
    eventually(lambda: machine.used_mib() == before)


def test_a_descriptor_of_something_else_is_no_memory(machine: Machine) -> None:
    assert drive(machine, "import_junk", str(DRIVER)) == {"code": 999}


def test_work_is_done_in_order_and_takes_its_time(machine: Machine) -> None:
    found = drive(machine, "order")
    assert (found["pending"], found["count"]) == (600, 1)
    assert 19 < found["ms"] < 200


def test_wrong_calls_get_the_error_that_says_so(machine: Machine) -> None:
    assert drive(machine, "misuse") == {
        "before cuInit": 3,
        "cuInit flags": 1,
        "no context": 201,
        "no device": 101,
        "no bytes": 1,
        "too many bytes": 2,
        "free twice": 1,
        "copy to freed": 1,
        "odd size": 1,
        "no such kernel": 500,
        "no image": 200,
    }


def test_a_context_that_is_given_up_is_gone_while_its_process_lives(mps: Machine) -> None:
    command = [sys.executable, "-I", DRIVER, "reset_and_stay"]
    with subprocess.Popen(
        command, env=mps.library_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline()
        server = mps.server()
        eventually(lambda: mps.ask(f"get_client_list {server}") == "")
        assert process.poll() is None
        process.communicate()


def test_functions_are_found_by_name(machine: Machine) -> None:
    found = {"version": 13000, "versions": 2, "cuInit": True, "cuMemAlloc": True, "cuCtxCreate": True, "cuNothing": False}
    assert drive(machine, "names") == found


def test_a_forked_child_has_no_cuda_and_harms_none(mps: Machine) -> None:
    assert drive(mps, "fork_after_init") == {"child": 3, "parent": 0}


@pytest.mark.skipif(not (TOOLKIT / "cuda.h").exists(), reason="needs the CUDA toolkit's header to compare with")
def test_the_header_agrees_with_the_toolkits(tmp_path: Path) -> None:
    """Our prototypes after the toolkit's header: a difference does not compile.  So with the numbers."""
    text = (ROOT / "native/sim/include/cuda.h").read_text()
    prototypes = re.findall(r"^CUresult CUDAAPI cu\w+\([^;]*;", text, re.MULTILINE)
    numbers = re.findall(r"^\s+(CU\w+) = (\d+)", text, re.MULTILINE)
    source = tmp_path / "compare.c"
    asserts = [f'_Static_assert((int){name} == {number}, "{name}");' for name, number in numbers]
    source.write_text("\n".join(["#include <cuda.h>", *prototypes, *asserts]))
    command = ["gcc", "-std=c11", "-Wall", "-Werror", f"-I{TOOLKIT}", "-fsyntax-only", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(prototypes) > 70


@pytest.mark.slow
@pytest.mark.deadline(120)
@pytest.mark.skipif(not (TOOLKIT / "cuda.h").exists(), reason="needs the CUDA toolkit's header")
def test_the_clients_compile_with_the_toolkits_header(sim_programs: None, tmp_path: Path) -> None:
    library = f"LIBRARY=-L{ROOT}/native/sim/lib -lcuda"
    command = ["make", "-s", "-C", ROOT / "tests/clients", f"OUT={tmp_path}", f"CUDA={TOOLKIT.parent}", library]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_function_of_the_header_is_in_the_library(machine: Machine) -> None:
    header = subprocess.run(
        ["gcc", "-E", "-P", ROOT / "native/sim/include/cuda.h"], capture_output=True, text=True, check=True
    ).stdout
    promised = set(re.findall(r"CUresult\s+(cu\w+)\(", header))
    library = ROOT / "native/sim/lib/libcuda.so.1"
    table = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    exported = {line.split()[-1] for line in table.splitlines()}
    assert promised <= exported
    ours = {f"mpsd_sim_{name}" for name in ("rm_ioctl", "rm_open", "uvm_ioctl", "uvm_mmap")}
    assert {name for name in exported if not name.startswith("cu")} == ours
