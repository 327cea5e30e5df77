"""mpsd as systemd runs it: with the unit's capabilities and no more, and with the notifications that the unit waits for."""

import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.faults.sources.test_core_dump_file import SAMPLES

ROOT = Path(__file__).resolve().parents[2]
FRONT_END = ROOT / "clients/control/nvidia-cuda-mps-control"
UNIT = ROOT / "clients/systemd/mpsd.service"
SECONDS = 20

pytestmark = pytest.mark.skipif(not FRONT_END.exists(), reason="not built; run: make build")


@pytest.fixture
def environ(short_dir: Path) -> dict[str, str]:
    return {
        "CUDA_MPS_PIPE_DIRECTORY": str(short_dir / "pipe"),
        "CUDA_MPS_LOG_DIRECTORY": str(short_dir / "log"),
        "MPSD_BACKEND": "sim",
        "MPSD_SIM_DIR": str(short_dir / "sim"),
        "MPSD_PYTHON": sys.executable,
        "MPSD_CONFIG": str(write_config(short_dir, "")),
    }


def write_config(directory: Path, more: str) -> Path:
    file = directory / "mpsd.toml"
    file.write_text(f'state_directory = "{directory}/state"\n{more}')
    return file


def unit_capabilities() -> list[str]:
    lines = re.findall(r"^CapabilityBoundingSet=(.*)$", UNIT.read_text(), re.MULTILINE)
    return " ".join(lines).replace("CAP_", "").lower().split()


def hardened() -> list[str]:
    """The unit's capabilities and NoNewPrivileges, without systemd."""
    bounding = ",".join(["-all", *(f"+{name}" for name in unit_capabilities())])
    return ["setpriv", "--no-new-privs", f"--bounding-set={bounding}", "--inh-caps=-all"]


def command(text: str, environ: dict[str, str]) -> str:
    done = subprocess.run(
        [str(FRONT_END)], env=environ, input=text, capture_output=True, text=True, timeout=SECONDS, check=True
    )
    return done.stdout


@pytest.fixture
def notifications(short_dir: Path, environ: dict[str, str]) -> Iterator[socket.socket]:
    """systemd's end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(short_dir / "notify"))
        listening.settimeout(SECONDS)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        environ["NOTIFY_SOCKET"] = str(short_dir / "notify")
        yield listening


@contextmanager
def running(environ: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """The daemon in the foreground, as the unit starts it."""
    with subprocess.Popen([str(FRONT_END), "-f"], env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as daemon:
        try:
            yield daemon
        finally:
            daemon.kill()  # nothing, when it ended as it should


def wait_for(word: bytes, notifications: socket.socket, sender: int = 0) -> bytes:
    """sender: the pid that everything has to come from until then; 0: any."""
    while True:  # the socket's deadline stands
        message, [(_, _, credentials)], _, _ = notifications.recvmsg(4096, socket.CMSG_SPACE(12))
        if sender:
            assert struct.unpack("3i", credentials)[0] == sender
        if word in message.split(b"\n"):
            return message


@pytest.mark.root
def test_the_units_capabilities_are_enough(environ: dict[str, str]) -> None:
    """Started, serving a user other than root, and ended, with what the unit grants: the relay's mode is the privileged one."""
    done = subprocess.run([*hardened(), str(FRONT_END), "-d"], env=os.environ | environ, timeout=SECONDS, check=False)
    assert done.returncode == 0
    pid = Path(environ["CUDA_MPS_PIPE_DIRECTORY"], "nvidia-cuda-mps-control.pid").read_text()
    try:
        assert "NoNewPrivs:\t1" in Path(f"/proc/{pid}/status").read_text()
        assert command("start_server -uid 1000", environ) == ""
        server = int(command("get_server_list", environ))
        assert os.stat(f"/proc/{server}").st_uid == 1000
        assert "mode.privileged" in Path(environ["CUDA_MPS_LOG_DIRECTORY"], "mpsd.log").read_text()
    finally:
        assert command("quit", environ) == ""


READS_A_DUMP = """
import os, sys
from pathlib import Path
from mpsd.faults.sources.core_dump_directory import CoreDirectory
path = Path(sys.argv[1])
directory = CoreDirectory(path, 2, 1 << 24)
(path / "core.1").write_bytes(Path(sys.argv[2]).read_bytes())
os.chown(path / "core.1", 12345, 12345)
print([dump.may_change for dump in directory.look(["core.1"])])
"""


@pytest.mark.root
def test_the_unit_lets_mpsd_keep_other_users_from_a_dump_that_it_reads(tmp_path: Path) -> None:
    """Without CAP_LEASE the dumps of all users but root proved nothing, and cleared no client."""
    (tmp_path / "sample").write_bytes(SAMPLES["trap-culprit"])
    words = [*hardened(), sys.executable, "-c", READS_A_DUMP, tmp_path / "cores", tmp_path / "sample"]
    assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == "[False]\n"


def test_systemd_is_told_of_start_reload_and_stop(
    environ: dict[str, str], notifications: socket.socket, short_dir: Path
) -> None:
    """-f execs the daemon, so the process that systemd started sends everything: the unit lets no other one speak for mpsd."""
    assert "\nNotifyAccess=main\n" in UNIT.read_text()
    with running(environ) as daemon:
        ready = wait_for(b"READY=1", notifications, daemon.pid)
        assert f"MAINPID={daemon.pid}".encode() in ready.split(b"\n")

        write_config(short_dir, "[domains]\nspares = 0\n")
        daemon.send_signal(signal.SIGHUP)
        wait_for(b"RELOADING=1", notifications, daemon.pid)
        wait_for(b"READY=1", notifications, daemon.pid)

        daemon.send_signal(signal.SIGTERM)
        wait_for(b"STOPPING=1", notifications, daemon.pid)
        _, log = daemon.communicate(timeout=SECONDS)
    assert daemon.returncode == 0
    assert b'"event":"reload.done","changed":["domains.spares"],"need_a_restart":[]' in log


def test_a_bad_file_at_a_reload_changes_nothing(
    environ: dict[str, str], notifications: socket.socket, short_dir: Path
) -> None:
    with running(environ) as daemon:
        wait_for(b"READY=1", notifications)
        write_config(short_dir, "spare = 0\n")
        daemon.send_signal(signal.SIGHUP)
        wait_for(b"READY=1", notifications)
        assert command("get_default_active_thread_percentage", environ) == "100.0\n"
        daemon.send_signal(signal.SIGTERM)
        _, log = daemon.communicate(timeout=SECONDS)
    assert daemon.returncode == 0
    assert b"reload.refused" in log
    assert b"spare: no such option; did you mean domains.spares?" in log
