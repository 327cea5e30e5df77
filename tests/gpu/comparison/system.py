"""One of the two systems that are compared: a control program in separate directories, its daemon, and its clients."""

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.gpu.comparison import processes
from tests.gpu.comparison.clients import Client, end_all

START_SECONDS = 60.0
ANSWER_SECONDS = 20.0
EXIT_SECONDS = 5.0
PID_SECONDS = 2.0  # until the daemon has written its pid file
SERVER_PROGRAM = "nvidia-cuda-mps-server"
SPARE_READY = "domain.spare_ready"
PID_FILE = "nvidia-cuda-mps-control.pid"


class SystemFailed(Exception):
    """The control program did not do what the section needs."""


@dataclass(frozen=True, slots=True)
class Reply:
    out: str
    status: int | None  # None: it hung
    err: str
    ms: float


@dataclass(frozen=True, slots=True)
class Server:
    """A server as the commands describe it."""

    pid: int
    status: str
    clients: tuple[int, ...]


@dataclass(slots=True)
class System:
    """Guards that all processes that it started can be found and ended again."""

    name: str
    control: Path
    place: Path  # holds pipe, log, and for mpsd state
    programs: Path  # the test clients
    variables: Mapping[str, str]
    has_spares: bool = False
    user: Sequence[str] = ()  # what changes the user, before every command line
    clients: list[Client] = field(default_factory=list)

    @property
    def pipe(self) -> Path:
        return self.place / "pipe"

    @property
    def log(self) -> Path:
        return self.place / "log"

    def environment(self) -> dict[str, str]:
        directories = {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe), "CUDA_MPS_LOG_DIRECTORY": str(self.log)}
        return dict(self.variables) | directories

    # -- the daemon --------------------------------------------------------------------------------------------------

    def start(self) -> float:
        """Milliseconds `-d` took.  Raises SystemFailed."""
        reply = self._run([str(self.control), "-d"], "", START_SECONDS)
        deadline = time.monotonic() + PID_SECONDS
        while not reply.status and not self.pid() and time.monotonic() < deadline:
            time.sleep(0.01)
        if reply.status or not self.pid():
            raise SystemFailed(f"{self.name} -d: status {reply.status}, said {(reply.out + reply.err).strip()!r}")
        return reply.ms

    def ready(self) -> None:
        """Started, if it is not."""
        if not self.pid():
            self.start()

    def renew(self) -> float:
        """Replace the daemon by a new one, without any state of the old one."""
        self.quit()
        return self.start()

    def quit(self, seconds: int = 2) -> Reply | None:
        """Quit the daemon, then kill it. Return None if no daemon ran."""
        pid = self.pid()
        reply = self.ask(f"quit -t {seconds}") if pid else None
        processes.wait_gone(pid, EXIT_SECONDS)  # it answers, and removes its pid file, before it lets its lock go
        self.kill()
        return reply

    def kill(self) -> None:
        """Kill all of its processes, also clients."""
        if left := processes.end_below(self.place):
            raise SystemFailed(f"{self.name}: processes {left} cannot be ended")
        (self.pipe / PID_FILE).unlink(missing_ok=True)

    def pid(self) -> int:
        """The daemon's own; 0 where none lives."""
        try:
            pid = int((self.pipe / PID_FILE).read_text())
        except (OSError, ValueError):
            return 0
        return pid if processes.is_alive(pid) else 0

    # -- commands ----------------------------------------------------------------------------------------------------

    def ask(self, line: str, seconds: float = ANSWER_SECONDS) -> Reply:
        return self._run([str(self.control)], line + "\n", seconds)

    def servers(self) -> list[Server]:
        return [
            Server(int(pid), self.ask(f"get_server_status {pid}").out.strip(), self._clients_of(pid))
            for pid in self.ask("get_server_list").out.split()
            if pid.isdigit()
        ]

    def _clients_of(self, server: str) -> tuple[int, ...]:
        return tuple(int(word) for word in self.ask(f"get_client_list {server}").out.split() if word.isdigit())

    def wait_for_spare(self, seconds: float) -> bool:
        """Return True once mpsd has a started server in reserve. No command lists it: its process exists, no list has it, and
        mpsd's log reports it as ready."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            listed, started = self.ask("get_server_list").out.split(), self.server_processes()
            is_hidden = any(str(pid) not in listed for pid in started) or not started  # none: they are not to be recognised
            if is_hidden and self._last_of_spares() == SPARE_READY:
                return True
            time.sleep(0.05)
        return False

    def warm(self, seconds: float) -> None:
        """Everything is started that a first client causes to be started: its server, and mpsd's spare a second later."""
        self.ready()
        holder = self.client("hold")
        if not holder.wait_for("ready", seconds):
            raise SystemFailed(f"a first client of {self.name} did not start: {holder.fate}")
        if self.has_spares:
            self.wait_for_spare(seconds)
        end_all([holder])
        self.clients.remove(holder)

    def server_processes(self) -> list[int]:
        return [pid for pid in processes.started_below(self.place) if processes.program_name(pid) == SERVER_PROGRAM]

    def _last_of_spares(self) -> str:
        """Return the last event about a domain in mpsd's log."""
        try:
            lines = (self.log / "mpsd.log").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        events = (json.loads(line).get("event") for line in reversed(lines) if '"domain.' in line)
        return next((event for event in events if event in (SPARE_READY, "domain.recycling", "domain.failed")), "")

    # -- clients -----------------------------------------------------------------------------------------------------

    def client(self, program: str, *arguments: str, before: Sequence[str] = (), has_input: bool = False) -> Client:
        """Start a test client, with the time of its start in its arguments. `before` goes in front of its command line."""
        argv = [*self.user, *before, str(self.programs / program), *arguments, "--json", "--start-ns", "{start_ns}"]
        return self.spawn(argv, None, has_input)

    def spawn(self, argv: Sequence[str], env: Mapping[str, str] | None = None, has_input: bool = False) -> Client:
        client = Client(argv, self.environment() if env is None else env, has_input)
        self.clients.append(client)
        return client

    def _run(self, argv: Sequence[str], typed: str, seconds: float) -> Reply:
        before = time.monotonic()
        try:
            done = subprocess.run(
                [*self.user, *argv],
                input=typed.encode(),
                capture_output=True,
                timeout=seconds,
                env=self.environment(),
                cwd="/",
                check=False,
            )
        except subprocess.TimeoutExpired:
            return Reply("", None, "", (time.monotonic() - before) * 1e3)
        took = (time.monotonic() - before) * 1e3
        return Reply(done.stdout.decode(errors="replace"), done.returncode, done.stderr.decode(errors="replace"), took)


def make_place(place: Path, owner: int | None = None) -> None:
    """Directories that every user can reach; the vendor's daemon does not make all of them."""
    for directory in (place, place / "pipe", place / "log"):
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)
        if owner is not None:
            os.chown(directory, owner, owner)
