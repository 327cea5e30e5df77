"""A user who made the pipe directory first and listens there in mpsd's place: no client sends anything to that process.

The victims are root, and another user. Each of them connects, finds out who listens, reports it, and ends.
"""

import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.hostile.attacker import NOBODY, attacking
from tests.integration.machine import CLIENTS, FRONT_END, ROOT, SIMULATOR, UIDS, Machine
from tests.integration.test_shim import SHIM

LAST = b"the test itself"
ENDS_SECONDS = 30.0  # a front end that believed the answer to `quit` would wait for ever

# Makes the directory, listens at both sockets, and records the first message of each connection; then it answers, with
# characters that clear a terminal.
SOCKETS = ("mpsd-ui", "mpsd.sock")
IMPOSTOR = r"""
import json, os, select, socket, sys
directory, record, *sockets = sys.argv[1:]
os.umask(0)
os.mkdir(directory)
listeners = []
for name in sockets:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(os.path.join(directory, name))
    listener.listen(16)
    listeners.append(listener)
print("ready", flush=True)
while True:
    for listener in select.select(listeners, [], [])[0]:
        peer, _ = listener.accept()
        first = peer.recv(65536)
        with open(record, "a") as file:
            file.write(json.dumps(first.decode("latin-1")) + "\n")
        try:
            peer.send(b"mpsd-ui 1" if first == b"mpsd-ui 1" else b"E\x1b[2J\x1b]0;owned\x07")
            if first:
                peer.send(b"O\x1b[2J\x1b]0;owned\x07")
        except OSError:
            pass
        peers = globals().setdefault("peers", [])
        peers.append(peer)  # kept open: a client that believed it would wait
"""
SESSION = "from mpsd_client._session import Session; Session()"  # of the C client
ASYNC = "import trio, mpsd_client\nasync def main():\n  async with mpsd_client.AsyncClient(): pass\ntrio.run(main)"
VICTIMS = pytest.mark.parametrize("uid", [0, UIDS[0]], ids=["root", "another user"])


@dataclass(frozen=True, slots=True)
class Trap:
    """The false daemon's directory, and what came to it."""

    directory: Path
    record: Path
    python: Path

    def run(self, *words: object, uid: int, **variables: str) -> "subprocess.CompletedProcess[str]":
        """A program that looks for mpsd there."""
        environ = {
            "PATH": os.environ["PATH"],
            "CUDA_MPS_PIPE_DIRECTORY": str(self.directory),
            "PYTHONPATH": f"{ROOT / 'clients/mpsctl'}:{ROOT / 'clients/python'}",
        }
        return subprocess.run(
            list(map(str, words)), env=environ | variables, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=ENDS_SECONDS, check=False, user=uid, group=uid, extra_groups=[],
        )  # fmt: skip

    def heard(self) -> list[str]:
        """Return the first message of each connection; "": none.

        The false daemon takes the connections of a socket in order, and may be late: its answer to us comes after all others.
        """
        for name in SOCKETS:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as last:
                last.settimeout(ENDS_SECONDS)
                last.connect(str(self.directory / name))
                last.send(LAST)
                assert last.recv(4096)
        said = [json.loads(line) for line in self.record.read_text().splitlines()]
        return [each for each in said if each != LAST.decode()]

    def refusal(self, uid: int) -> str:
        """The words of every client, in every language."""
        if uid:
            return f"uid {NOBODY} listens there, not root or uid {uid}"
        command = f"setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups COMMAND"
        return f"uid {NOBODY} listens there, not root; to use a daemon of that user, run as that user: {command}"


@pytest.fixture
def trap(programs: None, strangers_python: Path) -> Iterator[Trap]:
    """In a place like /tmp."""
    place = Path(tempfile.mkdtemp(prefix="mpsd-trap-", dir="/tmp"))
    place.chmod(0o1777)
    made = Trap(place / "pipe", place / "record", strangers_python)
    try:
        with attacking(IMPOSTOR, made.directory, made.record, *SOCKETS):
            yield made
    finally:
        shutil.rmtree(place)


@VICTIMS
@pytest.mark.parametrize("command", ["get_server_list", "quit"])
def test_the_front_end_sends_no_command(trap: Trap, uid: int, command: str) -> None:
    done = trap.run(FRONT_END, command, uid=uid)
    said = f"Cannot find MPS control daemon process\n{trap.directory}/mpsd-ui: {trap.refusal(uid)}\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
    assert trap.heard() == [""]


@VICTIMS
def test_mpsctl_and_the_python_client_ask_nothing(trap: Trap, uid: int) -> None:
    said = trap.refusal(uid)
    done = trap.run(trap.python, "-m", "mpsctl", "status", uid=uid)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"mpsctl status: no mpsd at {trap.directory}/mpsd.sock: {said}\n"
    done = trap.run(trap.python, "-c", ASYNC, uid=uid)
    assert done.stderr.splitlines()[-1].endswith(f"PermissionError: [Errno 1] {said}: '{trap.directory}/mpsd.sock'")
    assert trap.heard() == ["", ""]


@VICTIMS
def test_the_c_client_and_the_shim_tell_nothing(trap: Trap, uid: int, tmp_path: Path) -> None:
    """A program whose lease is required does not start: it would run without limits, and with the false daemon's CUDA."""
    said = trap.refusal(uid)
    done = trap.run(trap.python, "-c", SESSION, uid=uid)
    assert f"connecting to {trap.directory}/mpsd.sock: {said}" in done.stderr
    log = trap.directory.parent / f"shim-{uid}.log"
    shim = {"LD_PRELOAD": str(SHIM), "LD_LIBRARY_PATH": str(SIMULATOR / "lib"), "MPSD_LOG": str(log), "MPSD_BACKEND": "sim"}
    lease = {"MPSD_LEASE_SM_PERCENT": "25", "MPSD_REQUIRED": "1", "MPSD_SIM_DIR": str(tmp_path)}
    done = trap.run(CLIENTS / "counter", "--json", "--seconds", "0.05", uid=uid, **shim, **lease)
    assert done.returncode == 3, done
    assert f"mpsd cannot be reached: connecting to {trap.directory}/mpsd.sock: {said}" in log.read_text()
    assert trap.heard() == ["", ""]


def test_in_a_namespace_where_root_is_hidden_a_client_still_finds_roots_mpsd(machine: Machine) -> None:
    """In the container of an ordinary user the kernel reports uid 65534 for root, as for each user of the outside."""
    machine.start()
    inside = ("setpriv", f"--reuid={UIDS[0]}", f"--regid={UIDS[0]}", "--clear-groups", "unshare", "--user", "--map-root-user")
    if subprocess.run([*inside, "true"], capture_output=True, check=False).returncode:
        pytest.skip("an ordinary user may make no user namespace here")
    words = [*inside, FRONT_END, "get_default_active_thread_percentage"]
    done = subprocess.run(words, env=machine.variables, cwd="/", capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "100.0\n", "")
