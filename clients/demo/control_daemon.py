"""The temporary directories of an act, and the control daemon in them: the vendor's or mpsd.

Both are started, asked and ended by the same words: `-d`, `get_server_list`, `quit`.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mpsd.config import paths
from mpsd.config.options import Config
from mpsd.host.peers import may_impersonate

ROOT = Path(__file__).resolve().parents[2]
_CLIENTS = ("counter", "faulter")
_START_SECONDS = 90
_ASK_SECONDS = 10
_QUIT_SECONDS = 30
_GONE_SECONDS = 5.0
_LONGEST_PARENT = 30  # bytes: socket names end at 107, and much is put below it
_OURS = (
    "CUDA_MPS_", "MPSD_CONFIG", "MPSD_BACKEND", "MPSD_PYTHON", "MPSD_SIM_DIR", "CUDA_VISIBLE_DEVICES", "NOTIFY_SOCKET",
    "SUDO_UID",  # root takes little from the user of sudo; here it is root's own environment
)  # fmt: skip


class Unfit(Exception):
    """The scene cannot be played here; the message has the reason and the remedy."""


@dataclass(slots=True)
class Workspace:
    """Guards one temporary directory with everything in it, and that nothing started for the scene outlives it."""

    backend: str
    directory: Path
    clients: Path
    vendor: Path
    is_privileged: bool  # mpsd can relay: clients of several users, a domain for each

    @classmethod
    def build(cls, backend: str) -> "Workspace":
        """Raises Unfit."""
        parent = tempfile.gettempdir()
        directory = Path(tempfile.mkdtemp(prefix="mpsd-demo-", dir=parent if len(parent) <= _LONGEST_PARENT else "/tmp"))
        directory.chmod(0o755)  # tenants are other users
        try:
            if backend == "sim":
                for part in ("bin", "lib"):  # copied: other users may not be able to enter the checkout
                    shutil.copytree(ROOT / "native/sim" / part, directory / "sim" / part, symlinks=True)
                vendor = directory / "sim/bin" / paths.PROGRAM
            else:
                vendor = paths.find_vendor_control(Config(), os.environ)
            _compile(directory / "clients", backend)
        except Exception as exc:
            shutil.rmtree(directory, ignore_errors=True)
            raise Unfit(str(exc)) from None
        return cls(backend, directory, directory / "clients", vendor, may_impersonate())

    def environ(self, name: str) -> dict[str, str]:
        """Return the environment of the processes of the act `name`."""
        kept = {key: value for key, value in os.environ.items() if not key.startswith(_OURS)}
        kept |= {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.directory / name / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self.directory / name / "log"),
        }
        if self.backend == "sim":
            libraries = [str(self.directory / "sim/lib"), *filter(None, [kept.get("LD_LIBRARY_PATH")])]
            kept |= {"MPSD_SIM_DIR": str(self.directory / "machine"), "LD_LIBRARY_PATH": ":".join(libraries)}
        return kept

    def vendor_daemon(self) -> "ControlDaemon":
        return self._daemon("vendor", self.vendor, {})

    def mpsd_daemon(self) -> "ControlDaemon":
        config = self.directory / "mpsd.toml"
        config.write_text(f'state_directory = "{self.directory}/state"\n[vendor]\ncontrol = "{self.vendor}"\n')
        beside = Path(sys.executable).with_name(paths.PROGRAM)
        front_end = beside if beside.exists() else ROOT / "clients/control" / paths.PROGRAM
        more = {"MPSD_CONFIG": str(config), "MPSD_BACKEND": self.backend, "MPSD_PYTHON": sys.executable}
        return self._daemon("mpsd", front_end, more)

    def _daemon(self, name: str, program: Path, more: Mapping[str, str]) -> "ControlDaemon":
        for part in ("pipe", "log"):
            (self.directory / name / part).mkdir(parents=True, mode=0o755)
        environ = self.environ(name)
        daemon = environ | more
        if "CUDA_VISIBLE_DEVICES" in os.environ:  # the daemon's alone: its clients count within what it serves
            daemon["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]
        return ControlDaemon(program, daemon, environ)

    def clear(self) -> None:
        """End all remaining processes of the scene, and remove its directory."""
        deadline = time.monotonic() + _GONE_SECONDS
        while self._kill_left() and time.monotonic() < deadline:
            time.sleep(0.05)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _kill_left(self) -> bool:
        """Kill the processes that were started with the scene's directory in their environment, whose name is unique.  Return
        whether there were any."""
        mark, is_left = os.fsencode(self.directory) + b"/", False
        for entry in os.listdir("/proc"):
            if entry.isdigit() and int(entry) != os.getpid():
                with suppress(OSError):  # it ended, or is another user's
                    pidfd = os.pidfd_open(int(entry))  # before the look: a later process of this pid is not meant
                    try:
                        if mark in Path("/proc", entry, "environ").read_bytes():
                            is_left = True
                            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    finally:
                        os.close(pidfd)
        return is_left


@dataclass(slots=True)
class ControlDaemon:
    """One control daemon.  `clients`: the environment of those who come to it."""

    program: Path
    environ: Mapping[str, str]
    clients: Mapping[str, str]
    is_open: bool = False

    def open(self) -> None:
        """Start the daemon. Raises Unfit with its message."""
        self.is_open = True
        done = self._run(["-d"], "", _START_SECONDS)
        if done.returncode:
            said = (done.stdout + done.stderr).strip() or "it said nothing"
            raise Unfit(f"{self.program} -d ended with status {done.returncode}: {said}")

    def ask(self, line: str) -> str:
        """Return the daemon's answer; empty if none came in time."""
        try:
            return self._run([], line + "\n", _ASK_SECONDS).stdout.strip()
        except subprocess.TimeoutExpired:
            return ""

    def servers(self) -> list[tuple[str, str]]:
        """Return each server with its status."""
        return [(pid, self.ask(f"get_server_status {pid}")) for pid in self.ask("get_server_list").split()]

    def close(self) -> None:
        if not self.is_open:
            return
        self.is_open = False
        try:
            self._run([], "quit -t 1\n", _QUIT_SECONDS)
        except subprocess.TimeoutExpired:
            pass  # Workspace.clear() ends what did not end by itself

    def _run(self, arguments: list[str], text: str, seconds: float) -> subprocess.CompletedProcess[str]:
        command = [str(self.program), *arguments]
        return subprocess.run(
            command, input=text, env=dict(self.environ), capture_output=True, text=True, timeout=seconds, check=False
        )


def _compile(target: Path, backend: str) -> None:
    """Compile the tenants' programs, with the CUDA toolkit if it is installed, otherwise with the simulator's header; the same
    programs run on both. Raises Unfit."""
    toolkits = [os.environ.get("CUDA_HOME", ""), os.environ.get("CUDA_PATH", ""), "/usr/local/cuda"]
    cuda = [kit for kit in toolkits if kit and os.path.exists(f"{kit}/include/cuda.h")] if backend == "gpu" else []
    said = ""
    for choice in [*cuda[:1], "sim"]:
        goals = [str(target / name) for name in _CLIENTS]
        command = ["make", "-s", "-C", str(ROOT / "tests/clients"), f"OUT={target}", f"CUDA={choice}", *goals]
        try:
            environ = {key: value for key, value in os.environ.items() if key not in ("OUT", "CUDA", "MAKEFLAGS", "MAKELEVEL")}
            done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        except OSError as exc:
            raise Unfit(f"the tenants' programs cannot be built: make: {exc.strerror}") from None
        if done.returncode == 0:
            return
        said = done.stdout + done.stderr
    raise Unfit(f"the tenants' programs cannot be built:\n{said}")
