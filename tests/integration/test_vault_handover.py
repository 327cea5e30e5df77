"""A daemon as systemd runs it: what its vault's keeper gave away before it ended comes with the next start."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.machine import FRONT_END, Machine
from tests.integration.process import wait_for
from tests.integration.test_vault import begin, check_whole, vault_keeper

pytestmark = pytest.mark.slow
SECONDS = 20.0
# As systemd starts a service: the descriptors from 3 on, their names, and the pid that they are meant for.
START = """
import os, sys
first, *names = sys.argv[1:]
fds = [os.dup2(int(name.partition("=")[0]), 1000 + number) for number, name in enumerate(names)]
for number, fd in enumerate(fds):
    os.dup2(fd, 3 + number)
for fd in fds:
    os.close(fd)
words = ":".join(name.partition("=")[2] for name in names)
os.environ |= {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(len(names)), "LISTEN_FDNAMES": words}
os.execv(first, [first, "-f"])
"""


class Systemd:
    """Its notification socket, and its store."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store: list[tuple[str, int]] = []
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(SECONDS)

    def wait_for(self, word: str) -> None:
        """Takes what comes until then."""
        while True:
            text, passed, _, _ = socket.recv_fds(self._socket, 4096, 1)
            lines = text.decode().splitlines()
            name = next((line.partition("=")[2] for line in lines if line.startswith("FDNAME=")), "")
            if "FDSTORE=1" in lines:
                self.store.append((name, passed[0]))
            elif passed:
                os.close(passed[0])
            if "FDSTOREREMOVE=1" in lines:
                self._remove(name)
            if word in lines:
                return

    def _remove(self, name: str) -> None:
        for each in [each for each in self.store if each[0] == name]:
            os.close(each[1])
            self.store.remove(each)

    def close(self) -> None:
        for _, descriptor in self.store:
            os.close(descriptor)
        self._socket.close()


@pytest.fixture
def systemd(machine: Machine) -> Iterator[Systemd]:
    made = Systemd(machine.place / "notify")
    machine.variables["NOTIFY_SOCKET"] = str(made.path)
    yield made
    made.close()


def start(machine: Machine, systemd: Systemd) -> None:
    """With everything that is in the store."""
    words = [f"{descriptor}={name}" for name, descriptor in systemd.store]
    process = subprocess.Popen(
        [sys.executable, "-c", START, str(FRONT_END), *words],
        env=machine.variables,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=[descriptor for _, descriptor in systemd.store],
    )
    machine.addition(process)
    systemd.wait_for("READY=1")


def test_memory_that_systemd_kept_is_the_next_mpsds(machine: Machine, systemd: Systemd) -> None:
    start(machine, systemd)
    arena = begin(machine)
    keeper = vault_keeper(machine)
    machine.kill_daemon()
    os.kill(keeper, signal.SIGTERM)
    systemd.wait_for("BARRIER=1")
    assert len(systemd.store) == 4  # three pieces and a layout
    start(machine, systemd)
    check_whole(machine, arena)
    while systemd.store:  # it has a keeper again, and systemd's copies would be memory that nobody can free
        systemd.wait_for("FDSTOREREMOVE=1")
    wait_for("another keeper", lambda: vault_keeper(machine) not in (0, keeper))
    child = machine.processes("nvidia-cuda-mps-control")
    assert all("LISTEN_FDS" not in Path(f"/proc/{pid}/environ").read_text() for pid in child if pid != machine.daemon_pid())
