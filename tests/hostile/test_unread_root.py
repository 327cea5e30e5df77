"""A user keeps mpsd from reading root's processes: root then waits, and is not taken for a stranger, who sees no leases."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mpsd_client import Client, Refused, Selector, calls
from mpsd_kubernetes.leases import Leases
from mpsd_kubernetes.shares import Part

from tests.held_directory import MOST_SECONDS, held
from tests.hostile.attacker import NOBODY
from tests.hostile.test_slurm_leases import Node, node  # noqa: F401
from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for

# It asks mpsd while a user holds its directory, as that of each program of root's that users can start (setuid).
ASKS = """
import socket, sys
print("ready", flush=True)
for _ in sys.stdin:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(sys.argv[1])
    print("asked", flush=True)
"""


@contextmanager
def held_program(place: Path, *words: str) -> Iterator["subprocess.Popen[str]"]:
    """Yield a program of root's, and hold its directory below /proc."""
    words = (sys.executable, "-IS", "-c", ASKS, *words)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as made:
        try:
            assert made.stdout is not None
            assert made.stdout.readline() == "ready\n"
            with held(f"/proc/{made.pid}", place):
                yield made
        finally:
            made.kill()


@contextmanager
def unread_root(machine: Machine, place: Path) -> Iterator[None]:
    """Keep mpsd from reading root's processes for 5 s, from the next connection on."""
    with held_program(place, str(machine.pipe / "mpsd.sock")) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        program.stdin.write("\n")
        program.stdin.flush()
        assert program.stdout.readline() == "asked\n"
        yield


def test_an_epilog_forgets_no_lease_that_it_cannot_see(shared: Machine, node: Node) -> None:  # noqa: F811
    """It took the lease for released, and removed its mark: no script released it any more."""
    node.run("prolog", 5)
    with unread_root(shared, node.place / "mount"):
        node.run("epilog", 5)
    assert node.leases(5) == []


def test_a_prolog_makes_a_lease_for_all_users(shared: Machine, node: Node) -> None:  # noqa: F811
    """It made one for root's processes alone."""
    with unread_root(shared, node.place / "mount"):
        node.run("prolog", 5)
    [lease] = node.leases(5)
    assert lease.for_all_users


def test_the_device_plugin_makes_no_lease_that_it_would_not_see(shared: Machine, tmp_path: Path) -> None:
    """It was for root's processes alone, and not taken for the plugin's when its container had ended."""
    plugin = Leases(str(shared.pipe / "mpsd.sock"), 1, 0, 1.0, 1.0)
    with unread_root(shared, tmp_path / "mount"):
        plugin.make(Part(shared.uuids()[0], frozenset({1, 2})))
    with shared.mpsd() as mpsd:
        [lease] = mpsd.pages(calls.lease_list())
        assert lease.for_all_users


def test_operators_are_answered_as_operators(shared: Machine, tmp_path: Path) -> None:
    """`mpsctl stop` found nothing to stop, and ended with 0."""
    client = shared.counter(uid=NOBODY).ready()
    with unread_root(shared, tmp_path / "mount"):
        stopped = shared.run("stop", "--pid", str(client.pid), program=Path(sys.executable).with_name("mpsctl"))
    assert stopped.returncode == 0, stopped
    wait_for("its end", lambda: not is_running(client.pid))
    with unread_root(shared, tmp_path / "again"):
        assert shared.ask("get_server_list").returncode == 0


def test_no_user_makes_mpsd_read_a_process_by_naming_it(shared: Machine, tmp_path: Path) -> None:
    """A lease for a pid of root's was refused only after mpsd had read it; the same with `stop`."""
    with held_program(tmp_path / "mount") as program, shared.mpsd(uid=NOBODY) as user:
        for call in (calls.lease_create("any", Selector.of_pid(program.pid)), calls.client_stop(pid=program.pid)):
            with pytest.raises(Refused, match=r"another user's|no client has"):
                user.ask(call)
            with Client(str(shared.pipe / "mpsd.sock"), timeout_seconds=4.0) as root:  # before the 5 s are over
                assert root.hello.is_operator


def test_a_held_process_of_roots_keeps_no_mpsd_from_starting(machine: Machine, tmp_path: Path) -> None:
    """mpsd looked at the names of all processes first, and then could not read the vendor daemon that it had started."""
    with held_program(tmp_path / "mount"):
        machine.start()
        assert machine.ask("get_default_active_thread_percentage").returncode == 0


def test_a_held_mpsd_keeps_no_front_end_from_returning_after_quit(machine: Machine, tmp_path: Path) -> None:
    """It looked for the daemon's name below /proc, and waited for as long as a user held that directory."""
    machine.start()
    with held(f"/proc/{machine.daemon_pid()}", tmp_path / "mount"):
        began = time.monotonic()
        assert machine.ask("quit").returncode == 0
        assert time.monotonic() - began < MOST_SECONDS / 2
