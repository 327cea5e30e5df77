"""Descriptors that take long to close, sent where mpsd wants none: the one who sent them waits, and nobody else."""

import os
import resource
from pathlib import Path

import pytest
from mpsd_client import calls

from tests.hostile.attacker import NOBODY, attacking
from tests.hostile.silent_files import BRINGS_A_FILE, MOUNTS, sent
from tests.hostile.test_identity import held
from tests.integration.machine import Machine
from tests.integration.process import wait_for

# A TCP socket whose last close waits for SECONDS, since its other end reads nothing.
LINGERS = """
import array, os, socket, struct, sys, time
SECONDS = 10

def lingering():
    listener = socket.create_server(("127.0.0.1", 0))
    sock = socket.socket()
    sock.setblocking(False)
    try:
        sock.connect(listener.getsockname())
    except BlockingIOError:
        pass
    other, _ = listener.accept()
    kept.append(other)
    try:
        while True:
            sock.send(bytes(65536))
    except BlockingIOError:
        pass
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, SECONDS))
    return sock

def send(made):
    fd = lingering().detach()
    socket.send_fds(made, [b"x"], [fd])
    os.close(fd)

kept = []
"""
WHILE_HELD = (
    LINGERS
    + """
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.connect(sys.argv[1])
print("ready", flush=True)
if not os.fork():
    made.send(b"words of another process")
    os._exit(0)
os.wait()
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
send(made)
print("sent", flush=True)
time.sleep(120)
"""
)


def test_a_held_client_keeps_nobody_waiting(machine: Machine) -> None:
    """mpsd read its messages on the event loop, and so closed the last copies of the descriptors in them there."""
    machine.start()
    with machine.mpsd() as mpsd:
        go = machine.place / "machine" / "go"
        with attacking(WHILE_HELD, machine.pipe / "control", go) as attack:
            wait_for("the connection to be held", lambda: held(machine, "speaks on the connection of"))
            go.touch()
            assert attack.stdout is not None
            assert attack.stdout.readline() == "sent\n"
            for _ in range(20):
                assert mpsd.ask(calls.health()).state == "running"
    assert machine.blocks() == []


# UID DOOR CONNECTIONS STAYS SIZE: each brings DESCRIPTORS of a file that never closes.
BRINGS_FILES = (
    MOUNTS
    + """
DESCRIPTORS = 200
connections, kept = int(sys.argv[3]), []
if not server:
    sys.stdout = open(os.devnull, "w")
    serve(device)
os.close(device)
path = os.open(place, os.O_PATH)
file = os.open("file", os.O_RDONLY, dir_fd=path)
for _ in range(connections):
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(door)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 212992)  # every user may: net.core.wmem_max is at least that
    socket.send_fds(made, [bytes(int(sys.argv[5]))], [file] * DESCRIPTORS)
    if sys.argv[4] == "stays":
        kept.append(made)
    else:
        made.close()
print("ready", flush=True)
sys.stdin.read()
os.kill(server, 9)
"""
)
CONNECTIONS = 40
MOST_DESCRIPTORS = 700  # one message of 200 at each end of its closing, and mpsd's own
MOST_THREADS = 350  # 8 for one user, or one message's 200; and mpsd's own
TOO_LARGE = 300_000  # bytes of a message: more than the relay takes, and less than the kernel lets every user send


def descriptors(machine: Machine) -> int:
    return len(os.listdir(f"/proc/{machine.daemon_pid()}/fd"))


def threads(machine: Machine) -> int:
    return len(os.listdir(f"/proc/{machine.daemon_pid()}/task"))


@pytest.mark.root
@pytest.mark.parametrize(
    ("door", "stays", "size"),
    [
        ("control", "stays", 1),
        ("control", "hangs up", 1),
        ("control", "stays", TOO_LARGE),
        ("control", "hangs up", TOO_LARGE),
        ("mpsd.sock", "stays", 1),
        ("mpsd.sock", "hangs up", TOO_LARGE),
        ("mpsd-ui", "stays", 1),
        ("mpsd-ui", "hangs up", TOO_LARGE),
    ],
)
def test_files_that_never_close_do_not_stay_open_in_mpsd(machine: Machine, door: str, stays: str, size: int) -> None:
    """mpsd could open nothing more in the end, and every program that it started waited for them.

    Of a message that the relay refuses for its size, mpsd gets the descriptors all the same.
    """
    machine.start()
    with sent(BRINGS_FILES, NOBODY, machine.pipe / door, CONNECTIONS, stays, size) as said:
        assert said == "ready\n"
        machine.counter(uid=1000).ready()
        with machine.mpsd() as mpsd:
            assert mpsd.ask(calls.health()).state == "running"
        assert descriptors(machine) < MOST_DESCRIPTORS
        assert threads(machine) < MOST_THREADS


@pytest.mark.root
def test_a_vendor_daemon_waits_for_no_file_server(machine: Machine) -> None:
    """It closed the file, and not even SIGKILL ended its wait: mpsd could not replace it, and the domain was lost."""
    machine.start()
    with sent(BRINGS_A_FILE, NOBODY, machine.pipe / "control") as thread:
        assert Path(f"/proc/{machine.daemon_pid()}/task/{int(thread)}").exists(), "mpsd's waits, and no other"
        wait_for("the connection to be held", lambda: held(machine, "a descriptor of neither memory nor a GPU"))
        machine.counter(uid=1000).ready()


LESS_THAN_A_STACK = 6 << 20  # a thread's has 8 MiB
ASKS_FOR_NUMBERS = LINGERS + """
made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
made.connect(sys.argv[1])
fd = lingering().detach()
socket.send_fds(made, [b"GET /metrics HTTP/1.0\\r\\n" if sys.argv[2] == "half" else b"GET /metrics HTTP/1.0\\r\\n\\r\\n"], [fd])
os.close(fd)
print("ready", flush=True)
time.sleep(120)
"""


@pytest.mark.parametrize("asked", ["half", "whole"])
def test_a_reader_of_the_numbers_keeps_nobody_waiting(machine: Machine, asked: str) -> None:
    """The kernel dropped the descriptors as mpsd read the request."""
    place = machine.pipe / "numbers"
    machine.configure(f'[metrics]\nlisten = "unix:{place}"\n')
    machine.start()
    wait_for("the socket", place.exists)
    with machine.mpsd() as mpsd, attacking(ASKS_FOR_NUMBERS, place, asked):
        for _ in range(20):
            assert mpsd.ask(calls.health()).state == "running"
    assert machine.blocks() == []


TAKES_THREADS = LINGERS + """
for door in sys.argv[1:]:
    for _ in range(8):
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        made.connect(door)
        send(made)
        kept.append(made)
print("ready", flush=True)
time.sleep(120)
"""


def test_a_machine_without_threads_ends_nothing(machine: Machine) -> None:
    """Where TasksMax=, the pids of a cgroup or the memory leave mpsd few threads, one user's descriptors took them all: mpsd
    ended as soon as it needed one."""
    machine.start()
    pid = machine.daemon_pid()
    [size] = [int(line.split()[1]) << 10 for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "VmSize" in line]
    had = resource.prlimit(pid, resource.RLIMIT_AS)
    resource.prlimit(pid, resource.RLIMIT_AS, (size + LESS_THAN_A_STACK, had[1]))
    with attacking(TAKES_THREADS, machine.pipe / "mpsd.sock", machine.pipe / "mpsd-ui"):
        machine.wait_for_journal("threads.none")
        with machine.mpsd() as mpsd:
            assert mpsd.ask(calls.health()).state == "running"
        resource.prlimit(pid, resource.RLIMIT_AS, had)
        machine.counter(uid=1000).ready()
    assert machine.daemon_pid() == pid
