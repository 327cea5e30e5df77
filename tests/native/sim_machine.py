"""A simulated machine for a test: separate directories, a control daemon, clients, and no process left at the end.

With $MPSD_SIM_SAN=address,undefined the simulator's programs are those built with those sanitizers.
"""

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SANITIZER = os.environ.get("MPSD_SIM_SAN", "")
SIMULATOR = ROOT / "native/sim" / SANITIZER
CONTROL = SIMULATOR / "bin/nvidia-cuda-mps-control"
TOOL = SIMULATOR / "bin/mpsd-sim"
CLIENTS = ROOT / "tests/clients/bin"
ASK_SECONDS = 20.0
WAIT_SECONDS = 10.0
SILENT_SECONDS = 0.4


def eventually(holds: Callable[[], Any], seconds: float = WAIT_SECONDS) -> Any:
    """The first true answer; an event of another process cannot be forced, only awaited."""
    until = time.monotonic() + seconds
    while not (answer := holds()):
        assert time.monotonic() < until, f"did not happen within {seconds} s"
        time.sleep(0.005)
    return answer


def sanitizer_library() -> str:
    """What a program that is not sanitized must load first to use a library that is."""
    if not SANITIZER:
        return ""
    name = "libtsan.so" if SANITIZER == "thread" else "libasan.so"
    return subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()


class Client:
    """A running test client, and the JSON events it prints."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.pid = process.pid
        self.events: list[dict[str, Any]] = []

    def next_event(self) -> dict[str, Any] | None:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            return None
        event: dict[str, Any] = json.loads(line)
        self.events.append(event)
        return event

    def wait_for(self, name: str) -> dict[str, Any]:
        """Blocks until the event comes; the test's own deadline ends what does not."""
        while event := self.next_event():
            if event["event"] == name:
                return event
        raise AssertionError(f"ended without {name!r}: {self.events}")

    def falls_silent(self) -> bool:
        """Whether it says nothing for a while, within 3 s; what it says before is read. One that ended is not silent."""
        assert self.process.stdout
        until = time.monotonic() + 3.0
        while time.monotonic() < until:
            if not select.select([self.process.stdout], [], [], SILENT_SECONDS)[0]:
                return True
            if self.next_event() is None:
                return False
        return False

    def open_gate(self) -> None:
        """Lets a client that was started with `--gate` go on."""
        assert self.process.stdin
        self.process.stdin.close()

    def goes_on(self) -> None:
        """Wait until a counter has done work that it began after this call."""
        now = time.monotonic_ns()
        while self.wait_for("tick")["monotonic_ns"] < now:
            pass
        self.wait_for("tick")

    def released(self) -> dict[str, Any]:
        """Let a counter with `--until-release` go on and then end; return its last report."""
        self.goes_on()
        self.open_gate()
        return self.end()

    def end(self) -> dict[str, Any]:
        """Wait for its end, and return its last report."""
        while self.next_event():
            pass
        self.process.wait(WAIT_SECONDS)
        return self.events[-1] if self.events else {}

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(WAIT_SECONDS)


class Machine:
    """A directory that is the machine, and one with the daemon's pipe and log directories."""

    def __init__(self, place: Path, **knobs: str) -> None:
        self.place = place
        self.pipe = place / "pipe"
        self.logs = place / "log"
        self.knobs = {"MPSD_SIM_FAST": "1", "MPSD_SIM_OVERLAP_PERMILLE": "0", **knobs}
        self.started: list[subprocess.Popen[str]] = []

    def environment(self, **more: str) -> dict[str, str]:
        library = sanitizer_library()
        base = {
            "MPSD_SIM_DIR": str(self.place / "machine"),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.logs),
            "LD_LIBRARY_PATH": str(SIMULATOR / "lib"),
            **({"ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1", "UBSAN_OPTIONS": "halt_on_error=1"} if library else {}),
        }
        return base | self.knobs | more

    def library_environment(self, **more: str) -> dict[str, str]:
        """For a program that is not ours but loads our libraries."""
        library = sanitizer_library()
        return self.environment(**({"LD_PRELOAD": library} if library else {}), **more)

    def control(
        self, *arguments: str, line: str = "", uid: int | None = None, **more: str
    ) -> "subprocess.CompletedProcess[str]":
        user: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        return subprocess.run(
            [CONTROL, *arguments],
            input=line,
            env=self.environment(**more),
            capture_output=True,
            text=True,
            timeout=ASK_SECONDS,
            cwd="/",
            check=False,
            **user,
        )

    def start(self, *arguments: str, uid: int | None = None, **more: str) -> None:
        done = self.control("-d", *arguments, uid=uid, **more)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

    def ask(self, line: str, uid: int | None = None) -> str:
        done = self.control(line=line, uid=uid)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def server(self) -> str:
        """The pid of the one server, once it is there."""
        pid: str = eventually(lambda: self.ask("get_server_list").strip())
        return pid

    def start_server(self) -> str:
        """The pid of a server that is ACTIVE."""
        self.ask(f"start_server -uid {os.geteuid()}")
        server = self.server()
        eventually(lambda: self.ask(f"get_server_status {server}") == "ACTIVE\n")
        return server

    def client(self, name: str, *arguments: str, uid: int | None = None, **more: str) -> Client:
        user: dict[str, Any] = {} if uid is None else {"user": uid, "group": uid, "extra_groups": []}
        process = subprocess.Popen(
            [CLIENTS / name, *arguments, "--json"],
            env=self.library_environment(**more),
            stdin=subprocess.PIPE if {"--gate", "--until-release", "--leave-first"} & {*arguments} else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd="/",
            **user,
        )
        self.started.append(process)
        return Client(process)

    def run(self, name: str, *arguments: str, **more: Any) -> dict[str, Any]:
        """The last event of a client that ends by itself."""
        return self.client(name, *arguments, **more).end()

    def tool(self, *arguments: str) -> str:
        done = subprocess.run(
            [TOOL, *arguments], env=self.environment(), capture_output=True, text=True, timeout=ASK_SECONDS, check=True
        )
        return done.stdout

    def status(self) -> dict[str, Any]:
        status: dict[str, Any] = json.loads(self.tool("status", "--json"))
        return status

    def used_mib(self) -> int:
        used: int = self.status()["gpus"][0]["used_mib"]
        return used

    def daemon_pid(self) -> int:
        return int((self.pipe / "nvidia-cuda-mps-control.pid").read_text())

    def log(self, name: str) -> str:
        """The texts of a log without time and pid."""
        lines = (self.logs / name).read_text().splitlines()
        return "".join(line.split("] ", 1)[1] + "\n" for line in lines)

    def xids(self) -> list[str]:
        kmsg = self.place / "machine/kmsg"
        return kmsg.read_text().splitlines() if kmsg.exists() else []

    def close(self) -> None:
        """Ends what runs here, by pid."""
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream:
                    stream.close()
        with contextlib.suppress(FileNotFoundError, ValueError, ProcessLookupError):
            os.kill(self.daemon_pid(), signal.SIGKILL)  # its servers go with it


@contextlib.contextmanager
def open_machine(**knobs: str) -> Iterator[Machine]:
    """In a short place: a socket's path has at most 107 bytes."""
    place = Path(tempfile.mkdtemp(prefix="mpsd-sim-", dir="/tmp"))
    place.chmod(0o755)
    machine = Machine(place, **knobs)
    try:
        yield machine
    finally:
        machine.close()
        shutil.rmtree(place, ignore_errors=True)
