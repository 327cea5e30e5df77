"""A client ends and its pid is given to a process of another user; a process claims the identity of another one."""

import ctypes
import os
import signal
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from mpsd_client import Client as Mpsd
from mpsd_client import Refused, Selector, calls, values

from tests.hostile.attacker import IN_NAMESPACES, NOBODY, attacking
from tests.hostile.test_identity import held
from tests.hostile.test_kernel_log import DRIVERS, write
from tests.integration.client import Client
from tests.integration.machine import CLIENTS, Machine
from tests.integration.process import is_running, wait_for

SYS_CLONE3 = 435
# As root of separate user and pid namespaces: each line of output is a claim that the kernel refused, with its error.
FORGES = (
    IN_NAMESPACES
    + """
import socket, struct, time
path, others_pid, others_uid = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
brother = os.fork()
if not brother:
    time.sleep(60)
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.connect(path)
refused = []
for claim in ((others_pid, 0, 0), (os.getpid(), others_uid, 0), (others_pid, others_uid, others_uid), (brother, 0, 0)):
    try:
        made.sendmsg([b"words"], [(socket.SOL_SOCKET, 2, struct.pack("iII", *claim))])
    except OSError:
        refused.append(claim)
print("ready", flush=True)
print(len(refused), flush=True)
time.sleep(60)
"""
)
# Preloaded into a client: on SIGUSR1 a child takes its connections, without the driver's knowledge, and reports a trap to the
# simulator's server after some seconds, as the GPU does if a kernel of the ended client traps.
LEAVES = """
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { FAULT = 25, TRAP = 2, SECONDS = 8 };

static void leave(int number)
{
	unsigned told[9] = { 0x4c4b0001, FAULT, 0, 0, 1, TRAP, 1, 0, 0 };

	(void)number;
	if (syscall(SYS_fork))
		_exit(0);
	alarm(60);
	sleep(SECONDS);
	for (int fd = 3; fd < 256; fd++) {
		int type = 0;
		socklen_t size = sizeof(type);

		if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type == SOCK_SEQPACKET)
			send(fd, told, 33, MSG_NOSIGNAL);
	}
	for (;;)
		pause();
}

__attribute__((constructor)) static void begin(void)
{
	signal(SIGUSR1, leave);
}
"""
FRIENDLY = 1000
AFTER_SECONDS = 1.0  # mpsd ends clients within less
AS_OF_THE_FAULT_SECONDS = 2.5  # for less, an Xid may name a client that has ended


def start_with_pid(pid: int, uid: int, words: list[str], environment: dict[str, str]) -> bool:
    """False where the pid is not free.  clone(2): set_tid."""
    set_tid = (ctypes.c_int * 1)(pid)
    arguments = struct.pack("10Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(set_tid), 1)
    made = ctypes.CDLL(None).syscall(SYS_CLONE3, arguments, len(arguments))
    if made == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            null = os.open(os.devnull, os.O_RDWR)
            for number in range(3):
                os.dup2(null, number)
            os.execve(words[0], words, environment)
        finally:
            os._exit(1)
    return bool(made == pid)


@pytest.mark.parametrize("is_late", [False, True], ids=["mpsd saw the end", "mpsd was stopped meanwhile"])
def test_a_reused_pid_has_nothing_of_the_client_before(machine: Machine, is_late: bool) -> None:
    """Neither its lease nor its limits, nor what is held against it, and nothing ends it."""
    machine.configure("[faults]\nculprit_seconds = 0.2\n")
    machine.start()
    culprit = machine.client("faulter", "oob_write", "--after", "600", uid=FRIENDLY).ready()
    with machine.mpsd() as mpsd:
        lease = mpsd.ask(calls.lease_create("job", Selector.of_pid(culprit.pid), sm_percent=10)).id
        if is_late:
            machine.signal_daemon("SIGSTOP")
        culprit.end(signal.SIGKILL)
        words = [str(CLIENTS / "counter"), "--json", "--seconds", "600", "--ms", "50", "--kernel-us", "3000"]
        environment = machine.variables | {"CUDA_VISIBLE_DEVICES": "0"}
        wait_for("the pid to be free", lambda: start_with_pid(culprit.pid, NOBODY, words, environment))
        try:
            if is_late:
                machine.signal_daemon("SIGCONT")
            [row] = wait_for("the other client", lambda: [row for row in running(mpsd, culprit.pid) if row.uid == NOBODY])
            assert (row.lease_id, row.sm_percent in (None, 100.0)) == (None, True)
            with machine.mpsd(uid=FRIENDLY) as friend, pytest.raises(Refused):
                friend.ask(calls.client_stop(culprit.pid))
            assert not [each.key for each in mpsd.ask(calls.blame_list()).items if f":{NOBODY}:" in each.key]
            until = time.monotonic() + AFTER_SECONDS
            wait_for("a while", lambda: time.monotonic() > until or not is_running(culprit.pid))
            assert is_running(culprit.pid)
            assert [each.pid for each in running(mpsd, culprit.pid)] == [culprit.pid]
            assert lease not in [each.lease_id for each in mpsd.ask(calls.client_list()).items]
        finally:
            os.kill(culprit.pid, signal.SIGKILL)
            os.waitpid(culprit.pid, 0)


@contextmanager
def reused(machine: Machine, short_dir: Path) -> Iterator[tuple[Client, Callable[[], None]]]:
    """Yield a client that has ended, and that its server lists for as long as a child has its connections (measured on an H200
    too).  A process of another user has its pid, until the function is called that comes with it."""
    library = short_dir / "leaves.so"
    library.with_suffix(".c").write_text(LEAVES)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, library.with_suffix(".c")], check=True)
    machine.start()
    ended = machine.client("faulter", "trap", "--after", "600", uid=NOBODY, LD_PRELOAD=str(library)).ready()
    server = machine.server_of(ended)
    os.kill(ended.pid, signal.SIGUSR1)
    ended.process.wait()
    wait_for("the pid to be free", lambda: start_with_pid(ended.pid, FRIENDLY, ["/bin/sleep", "600"], {}))
    with ExitStack() as other:
        other.callback(os.waitpid, ended.pid, 0)
        other.callback(os.kill, ended.pid, signal.SIGKILL)
        assert machine.numbers(f"get_client_list {server}") == [ended.pid]
        yield ended, other.close


def test_a_process_is_not_the_client_whose_pid_it_got(machine: Machine, short_dir: Path) -> None:
    """mpsd took the process, of any user, for that client: it convicted and killed it after a fault."""
    with reused(machine, short_dir) as (ended, _), machine.mpsd() as mpsd:
        assert not running(mpsd, ended.pid)
        [fault] = wait_for("a culprit", lambda: [each for each in mpsd.ask(calls.fault_list()).items if each.culprit], 30)
        assert (fault.culprit.pid, fault.culprit.uid, fault.culprit.program) == (ended.pid, NOBODY, "faulter")


@pytest.mark.parametrize("is_over", [False, True], ids=["it lives", "it has ended"])
def test_nor_is_its_fault_past_mps_one_of_that_client_s_domain(machine: Machine, short_dir: Path, is_over: bool) -> None:
    """The Xid names its pid alone.  mpsd closed the domain, and fenced the actives of other users there."""
    with reused(machine, short_dir) as (ended, end_other):
        if is_over:
            until = time.monotonic() + AS_OF_THE_FAULT_SECONDS
            wait_for("a while", lambda: time.monotonic() > until)
            end_other()
        write(machine.place / "machine/kmsg", DRIVERS, 31, ended.pid)
        seen, *_ = wait_for("the Xid", lambda: [each for each in machine.journal("fault.xid") if each["xid"] == 31])
        assert (seen["pid"], seen["domain"]) == (ended.pid, None)


def running(mpsd: Mpsd, pid: int) -> list[values.MpsClient]:
    return [each for each in mpsd.ask(calls.client_list()).items if each.pid == pid and each.state == "running"]


def test_forged_credentials_speak_for_no_other_process(machine: Machine) -> None:
    """The kernel refuses those of other users and other namespaces.  Those of a process of the attacker's own it lets through,
    and mpsd holds the connection."""
    machine.start()
    client = machine.counter(uid=FRIENDLY).ready()
    with attacking(FORGES, machine.pipe / "control", client.pid, FRIENDLY) as forger:
        assert forger.stdout is not None
        assert forger.stdout.readline() == "3\n"
        [line] = wait_for("the connection to be held", lambda: held(machine, "speaks on the connection of"))
        assert line["uid"] == NOBODY
        with machine.mpsd() as mpsd:

            def running() -> list[int]:
                return [each.uid for each in mpsd.ask(calls.client_list()).items if each.state == "running"]

            wait_for("the client, and no other, to run", lambda: running() == [FRIENDLY])
    client.goes_on()
