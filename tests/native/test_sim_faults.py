"""Faults on the simulator: the error of each client, the lines of the log and the kernel log, and the server's recovery."""

import os
import signal
import subprocess
import time

import pytest

from tests.integration.process import state_of
from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import CLIENTS, CONTROL, SIMULATOR, Client, Machine, eventually, sanitizer_library

# mode, the result of the culprit's synchronize, a co-runner's result, the Xids
UNDER_MPS = [
    ("oob_write", 700, 700, [31]),
    ("oob_read", 700, 700, [31]),
    ("oob_atomic", 700, 700, [31]),
    ("null_write", 700, 700, [31]),
    ("near_null_write", 700, 700, [31]),
    ("array_null_write", 700, 700, [31]),
    ("array_null_read", 700, 700, [31]),
    ("use_after_free", 700, 700, [31]),
    ("managed_freed", 700, 700, [31]),
    ("managed_oob", 700, 700, [31]),
    ("ro_write", 700, 700, [31]),
    ("copy", 700, 700, [31]),
    ("busy_write", 700, 700, [31]),
    ("misaligned", 0, 716, [13, 13, 43]),
    ("trap", 719, 719, [43]),
    ("illegal_instruction", 715, 715, [13, 13, 43]),
    ("stack_overflow", 700, 700, [13, 13, 43]),
]
ALONE = [(mode, victim if mode == "misaligned" else culprit) for mode, culprit, victim, _ in UNDER_MPS] + [("assert_fail", 710)]


def two_clients(mps: Machine, mode: str, linger: str = "0") -> tuple[Client, Client]:
    victim = mps.client("counter", "--seconds", "8", "--ms", "20")
    victim.wait_for("ready")
    culprit = mps.client("faulter", mode, "--linger", linger)
    return victim, culprit


def codes(mps: Machine) -> list[int]:
    return [int(line.split("): ")[1].split(",")[0]) for line in mps.xids()]


@pytest.mark.parametrize(("mode", "mine", "theirs", "xids"), UNDER_MPS, ids=[row[0] for row in UNDER_MPS])
def test_a_fault_takes_everybody_down_and_passes(mps: Machine, mode: str, mine: int, theirs: int, xids: list[int]) -> None:
    victim, culprit = two_clients(mps, mode)
    assert culprit.wait_for("result")["code"] in (mine, theirs)  # theirs: on a busy machine it asked late
    assert victim.end()["code"] == theirs
    culprit.end()
    server = mps.server()
    eventually(lambda: mps.ask(f"get_server_status {server}") == "ACTIVE\n")
    assert mps.run("counter", "--seconds", "0.05")["event"] == "end"
    assert codes(mps) == xids


@pytest.mark.parametrize(("mode", "code"), ALONE, ids=[row[0] for row in ALONE])
def test_without_mps_only_the_culprit_suffers(machine: Machine, mode: str, code: int) -> None:
    victim, culprit = two_clients(machine, mode)
    assert culprit.wait_for("result")["code"] == code
    culprit.end()
    victim.kill(signal.SIGTERM)
    assert not any(event["event"] == "error" for event in victim.events)


def test_an_assertion_is_contained(mps: Machine) -> None:
    victim, culprit = two_clients(mps, "assert_fail")
    assert culprit.wait_for("result")["code"] == 710
    culprit.end()
    assert mps.ask(f"get_server_status {mps.server()}") == "ACTIVE\n"
    victim.wait_for("tick")
    assert mps.xids() == []


def test_too_much_memory_is_refused_and_harms_nobody(mps: Machine) -> None:
    victim, culprit = two_clients(mps, "out_of_memory")
    assert culprit.wait_for("result")["code"] == 2
    assert culprit.wait_for("next")["code"] == 0
    culprit.end()
    assert culprit.process.returncode == 5
    victim.wait_for("tick")
    assert mps.xids() == []


def test_every_mode_has_a_test() -> None:
    command = [CLIENTS / "faulter", "--list"]
    environment = {"LD_LIBRARY_PATH": str(SIMULATOR / "lib"), "LD_PRELOAD": sanitizer_library()}
    listed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.splitlines()
    classes = dict(line.split() for line in listed)
    xids = {"mmu": [31], "sm": [43]}
    assert {row[0] for row in ALONE} == {mode for mode, kind in classes.items() if kind in xids}
    assert all(row[3][-1:] == xids[classes[row[0]]] for row in UNDER_MPS)
    assert {mode for mode, kind in classes.items() if kind not in xids} == {"killed", "killed_hang", "hang", "out_of_memory"}


def stays_silent(mps: Machine, line: str) -> "subprocess.Popen[str]":
    """A front end that waits for an answer and does not get it."""
    process = subprocess.Popen([CONTROL], env=mps.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    mps.started.append(process)
    assert process.stdin
    process.stdin.write(line)
    process.stdin.close()
    process.stdin = None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)
    return process


def test_terminate_client_beside_a_fault_waits_for_the_culprits_end_and_all_others_with_it(mps: Machine) -> None:
    """On the device it hung for 20 s, and was answered once the culprit's process had gone."""
    bystander = mps.client("hold")
    bystander.wait_for("ready")
    culprit = mps.client("faulter", "trap", "--linger", "60")
    culprit.wait_for("result")
    server = mps.server()
    waiting = [stays_silent(mps, f"terminate_client {server} {bystander.pid}"), stays_silent(mps, "get_server_list")]
    culprit.kill()
    answers = [process.communicate(timeout=10)[0] for process in waiting]
    assert answers == ["0\n", f"{server}\n"]


def test_terminate_client_of_a_stopped_process_waits_until_it_goes_on(mps: Machine) -> None:
    """Measured on an H200: 5 s and more, as long as it was stopped."""
    stopped = mps.client("hold")
    stopped.wait_for("ready")
    server = mps.server()
    os.kill(stopped.pid, signal.SIGSTOP)
    eventually(lambda: state_of(stopped.pid) == "T")
    waiting = stays_silent(mps, f"terminate_client {server} {stopped.pid}")
    os.kill(stopped.pid, signal.SIGCONT)
    assert waiting.communicate(timeout=10)[0] == "0\n"


def test_nor_is_it_answered_of_a_stopped_process_whose_first_thread_has_ended(mps: Machine) -> None:
    """/proc/PID/stat shows that thread alone.  Of the vendor's server it is believed: it needs another one."""
    stopped = mps.client("counter", "--seconds", "60", "--ms", "20", "--leave-first")
    stopped.wait_for("ready")
    stopped.open_gate()
    eventually(lambda: state_of(stopped.pid) == "Z")
    stopped.goes_on()
    os.kill(stopped.pid, signal.SIGSTOP)
    waiting = stays_silent(mps, f"terminate_client {mps.server()} {stopped.pid}")
    os.kill(stopped.pid, signal.SIGCONT)
    assert waiting.communicate(timeout=10)[0] == "0\n"


def test_terminate_client_beside_a_fault_knows_strangers_at_once(mps: Machine) -> None:
    culprit = mps.client("faulter", "trap", "--linger", "60")
    culprit.wait_for("result")
    assert mps.ask(f"terminate_client {mps.server()} 1") == "Invalid process 1!\n1\n"


def test_the_log_names_who_was_there_first(mps: Machine) -> None:
    victim, culprit = two_clients(mps, "oob_write")
    victim.end(), culprit.end()
    assert f"Client {{PID: {victim.pid}, Context: 1}} encountered a fatal GPU error.\n" in mps.log("server.log")
    assert f"pid={victim.pid}, name=counter," in mps.xids()[0]
    assert "faulted @ 0x7000_dead0000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE" in mps.xids()[0]


def test_an_sm_exception_is_logged_without_a_name_and_with_the_servers_pid(mps: Machine) -> None:
    victim, culprit = two_clients(mps, "trap")
    victim.end(), culprit.end()
    assert "encountered a fatal GPU error" not in mps.log("server.log")
    assert "Server is handling a fatal GPU error.\n" in mps.log("server.log")
    assert f"43, pid={mps.server()}, name=nvidia-cuda-mps," in mps.xids()[0]


def test_new_clients_are_refused_until_the_last_old_context_is_gone(mps: Machine) -> None:
    victim, culprit = two_clients(mps, "oob_write", linger="30")
    victim.end()
    server = mps.server()
    assert mps.ask(f"get_server_status {server}") == "FAULT\n"
    refused = mps.run("counter")
    assert (refused["call"], refused["code"]) == ("cuInit", 807)
    culprit.kill()
    eventually(lambda: mps.ask(f"get_server_status {server}") == "ACTIVE\n")
    assert mps.run("counter", "--seconds", "0.05")["event"] == "end"
    log = mps.log("server.log")
    assert "with status 807\n" in log
    assert "Destroy server context on device 0 (NVIDIA H200)\n" in log


@pytest.mark.parametrize(
    ("kernel_us", "dies"),
    [
        ("400000", True), ("5000", False),
        *(pytest.param(*row, marks=pytest.mark.slow) for row in (("2000000", True), ("100", False))),
    ],
)  # fmt: skip
def test_dying_in_a_long_kernel_takes_the_others_along(mps: Machine, kernel_us: str, dies: bool) -> None:
    victim = mps.client("counter", "--seconds", "30" if dies else "0.8")
    victim.wait_for("ready")
    killed = mps.client("counter", "--kernel-us", kernel_us, "--seconds", "30")
    killed.wait_for("ready")
    time.sleep(0.05)  # into the next kernel: they follow each other without a pause
    killed.kill()
    assert victim.end().get("code") == (700 if dies else None)


@pytest.mark.parametrize("mode", ["hang", None], ids=["endless kernel", "short kernels"])
def test_a_terminated_client_can_be_killed_without_harm(mps: Machine, mode: str | None) -> None:
    victim = mps.client("counter", "--seconds", "0.8")
    victim.wait_for("ready")
    doomed = mps.client("faulter", mode, "--linger", "30") if mode else mps.client("counter", "--seconds", "30")
    doomed.wait_for("fault" if mode else "ready")
    server = mps.server()
    assert mps.ask(f"terminate_client {server} {doomed.pid}") == "0\n"
    assert mps.ask(f"terminate_client {server} {doomed.pid}") in ("201\n", f"Invalid process {doomed.pid}!\n1\n")
    assert doomed.wait_for("result" if mode else "error")["code"] == 810
    doomed.kill()
    assert victim.end()["event"] == "end"
    assert "Client termination succeeded.\n" in mps.log("server.log")


@pytest.mark.parametrize("how", ["server killed", "control daemon killed", "shutdown_server -f", "quit -t 0"])
def test_clients_of_a_server_that_goes_see_806(mps: Machine, how: str) -> None:
    client = mps.client("counter", "--seconds", "20")
    client.wait_for("ready")
    server = mps.server()
    if how == "server killed":
        os.kill(int(server), signal.SIGKILL)
    elif how == "control daemon killed":
        os.kill(mps.daemon_pid(), signal.SIGKILL)
    else:
        mps.ask(f"shutdown_server {server} -f" if how.startswith("shutdown") else "quit -t 0")
    assert client.end()["code"] == 806


def test_a_device_fault_hits_every_server_and_every_process_on_the_gpu(mps: Machine) -> None:
    client = mps.client("counter", "--seconds", "20")
    plain = mps.client("counter", "--seconds", "20", CUDA_MPS_PIPE_DIRECTORY="/nowhere")
    client.wait_for("ready"), plain.wait_for("ready")
    mps.tool("xid", "0", "79")
    assert (client.end()["code"], plain.end()["code"]) == (719, 719)
    assert codes(mps) == [79]
