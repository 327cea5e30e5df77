"""Control programs under test: where each is found, how it is started in separate directories, asked, and ended.

It needs only the standard library, since a GPU machine has no more.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.contract.transcript import Reply

ROOT = Path(__file__).resolve().parents[2]
SIMULATOR = ROOT / "native/sim"
FRONT_END = ROOT / "clients/control/nvidia-cuda-mps-control"
CLIENT = Path(__file__).with_name("client.py")
START_SECONDS = 60.0
ANSWER_SECONDS = 20.0
END_SECONDS = 20.0


@dataclass(frozen=True)
class Program:
    """A control program, and the machine it runs on: the simulator's, or this one."""

    name: str
    control: Path
    is_ours: bool
    is_simulated: bool

    def missing(self) -> str:
        """Why it cannot be tried here; nothing if it can."""
        needed = [self.control, *([SIMULATOR / "lib/libcuda.so.1"] if self.is_simulated else [])]
        absent = [str(path) for path in needed if not path.exists()]
        return f"not there: {', '.join(absent)}" if absent else ""

    def environment(self, place: Path) -> dict[str, str]:
        """Nothing of the caller's MPS, and the machine it is to run on."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("CUDA_", "MPSD_"))}
        kept |= {"CUDA_MPS_PIPE_DIRECTORY": f"{place}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{place}/log"}
        if self.is_ours:
            kept |= {"MPSD_PYTHON": sys.executable, "MPSD_CONFIG": f"{place}/mpsd.toml"}
        if self.is_simulated:
            kept |= {"MPSD_BACKEND": "sim", "MPSD_SIM_DIR": f"{place}/machine", "MPSD_SIM_FAST": "1"}
            kept |= {"LD_LIBRARY_PATH": str(SIMULATOR / "lib")}
        return kept


def program_at(control: Path) -> Program:
    """What stands behind a path: the simulator's program, mpsd's front end, or the vendor's."""
    control = Path(shutil.which(control) or control).resolve()
    is_ours = control.name == FRONT_END.name and (b"mpsd-ui" in control.read_bytes() if control.exists() else False)
    is_simulator = control.is_relative_to(SIMULATOR)
    name = "sim" if is_simulator else "mpsd" if is_ours else "vendor"
    return Program(name, control, is_ours, is_simulator or (is_ours and "MPSD_CONTRACT_GPU" not in os.environ))


def programs() -> list[Program]:
    """The simulator's, mpsd's, and with $MPSD_CONTRACT_CONTROL the one there."""
    gpu = os.environ.get("MPSD_CONTRACT_CONTROL")
    ours = Program("mpsd", FRONT_END, True, "MPSD_CONTRACT_GPU" not in os.environ)
    simulator = Program("sim", SIMULATOR / "bin/nvidia-cuda-mps-control", False, True)
    return [simulator, ours, *([Program("vendor", Path(gpu), False, False)] if gpu else [])]


@dataclass
class Daemon:
    """A program's directories, and its daemon where one was started."""

    program: Program
    place: Path
    clients: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self) -> Reply:
        return self.run(["-d"], "", START_SECONDS)

    def ask(self, line: str, uid: int | None = None, seconds: float = ANSWER_SECONDS) -> Reply:
        """One run of the front end; the line in Latin-1, like the answer."""
        return self.run([], line + "\n", seconds, uid)

    def run(self, arguments: list[str], typed: str, seconds: float = ANSWER_SECONDS, uid: int | None = None) -> Reply:
        """uid: whom the front end runs as; None: the user who runs the tests.  Another user needs root."""
        user = {} if uid in (None, os.geteuid()) else {"user": uid, "group": uid, "extra_groups": []}
        done = subprocess.run(
            [str(self.program.control), *arguments],
            input=typed.encode("latin-1"),
            capture_output=True,
            timeout=seconds,
            env=self.program.environment(self.place),
            cwd="/",
            check=False,
            **user,  # type: ignore[call-overload]
        )
        return Reply(done.stdout.decode("latin-1"), done.returncode, done.stderr.decode("latin-1"))

    @contextmanager
    def open_session(self, line: str) -> Iterator[subprocess.Popen[bytes]]:
        """Open a front end that got one line and waits for more; stderr goes to stdout. It is ended afterwards."""
        environment = self.program.environment(self.place)
        with tempfile.TemporaryFile() as typed:
            typed.write(line.encode("latin-1") + b"\n")
            typed.seek(0)
            session = subprocess.Popen(
                [str(self.program.control)],
                env=environment,
                stdin=typed,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        try:
            yield session
        finally:
            session.kill()
            session.wait()
            if session.stdout:
                session.stdout.close()

    def start_server(self, uid: int) -> str:
        """The pid of a server that is ready, started by its user."""
        self.ask(f"start_server -uid {uid}", uid)
        for _ in waiting("a server", START_SECONDS):
            pids = self.ask("get_server_list").out.split()
            if pids and self.ask(f"get_server_status {pids[0]}").out == "ACTIVE\n":
                return pids[0]
        raise AssertionError("not reached")

    def start_client(self) -> str:
        """The pid of a client with a context, once it is listed."""
        client = subprocess.Popen(
            [sys.executable, str(CLIENT)],
            env=self.program.environment(self.place),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.clients.append(client)
        assert client.stdout
        said = client.stdout.readline()
        assert said == "ready\n", f"the client said {said!r}"
        for _ in waiting("the client in a list", ANSWER_SECONDS):
            if any(str(client.pid) in self.ask(f"get_client_list {server}").out.split() for server in self.servers()):
                break
        return str(client.pid)

    def servers(self) -> list[str]:
        """Once one is listed: mpsd learns of a server and its clients from a log, moments after a client runs."""
        for _ in waiting("a server in the list", ANSWER_SECONDS):
            if pids := self.ask("get_server_list").out.split():
                return pids
        raise AssertionError("not reached")

    def end_clients(self) -> None:
        for client in self.clients:
            client.communicate(timeout=END_SECONDS)
        self.clients.clear()

    def pid(self) -> int:
        """Return the daemon's pid, or 0 if it does not run."""
        try:
            return int((self.place / "pipe/nvidia-cuda-mps-control.pid").read_text())
        except (OSError, ValueError):
            return 0

    def end(self) -> None:
        """End what was started, politely first."""
        self.end_clients()
        pid = self.pid()
        if self.ask("quit -t 5").status == 0 or not pid:
            return
        for _ in waiting(f"the end of {pid}", END_SECONDS):
            if not Path(f"/proc/{pid}").exists():
                return
            os.kill(pid, signal.SIGKILL)


def waiting(what: str, seconds: float) -> Iterator[None]:
    """Looks again every few milliseconds; an AssertionError when the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(0.01)
    raise AssertionError(f"waited {seconds:g} s for {what}")


@contextmanager
def open_place(program: Program) -> Iterator[Daemon]:
    """Directories with short names that every user can reach, and no daemon yet; everything in them is ended and gone after."""
    place = Path(tempfile.mkdtemp(prefix="mpsd-", dir="/tmp"))
    place.chmod(0o755)
    for name in ("pipe", "log", "machine"):
        (place / name).mkdir()
        (place / name).chmod(0o777)
    (place / "mpsd.toml").write_text(f'state_directory = "{place}/state"\n')
    daemon = Daemon(program, place)
    try:
        yield daemon
    finally:
        daemon.end()
        shutil.rmtree(place, ignore_errors=True)


def uuid_of_device(daemon: Daemon) -> str:
    """Of device 0, from the program's own list."""
    rows = [row.split(",") for row in daemon.ask("device_query --csv").out.splitlines()]
    return next((row[2] for row in rows if row[0] == "0"), "GPU-unknown")
