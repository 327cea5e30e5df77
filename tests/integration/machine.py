"""A simulated machine for one test: directories with short names, a daemon, its clients; at its end no process of it is left.

Its processes have MPSD_SIM_DIR in their environment. The test always waits for an event, under a deadline.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mpsd_client import Client as Mpsd

from tests.integration.client import Client
from tests.integration.pressure import Pressure
from tests.integration.process import EVENT_SECONDS, is_running, program_of, stop_idle, variable, wait_for

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "nvidia-cuda-mps-control"
FRONT_END = ROOT / "clients/control" / PROGRAM
SIMULATOR = ROOT / "native/sim"
CLIENTS = ROOT / "tests/clients/bin"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MEMORY, MEMORY_BYTES = Path("/dev/shm"), 1 << 27
START_SECONDS = 20.0
ANSWER_SECONDS = 20.0
UIDS = (1000, 1001)  # two users other than root; they need no entry in the user database


class Machine:
    """Directories, and what runs with them."""

    def __init__(self, place: Path, uid: int | None = None) -> None:
        self.place = place
        self.uid = uid
        self.pipe, self.log_directory, self.state = place / "pipe", place / "log", place / "state"
        self.variables = {
            "PATH": PATH,
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
            "LD_LIBRARY_PATH": str(SIMULATOR / "lib"),
            "MPSD_BACKEND": "sim",
            "MPSD_CONFIG": str(place / "mpsd.toml"),
            "MPSD_PYTHON": sys.executable,
            "MPSD_SIM_DIR": str(place / "machine"),
            "MPSD_SIM_FAST": "1",
        }
        self._children: list[subprocess.Popen[bytes]] = []
        self._pressure = Pressure()
        self.configure("")

    def configure(self, text: str) -> None:
        """Write the daemon's configuration: tables, after what every machine needs.  A program that is to misbehave goes into
        the table [vendor], which can be there once."""
        self.configuration = text
        program = self.place / "vendor" / PROGRAM
        control = f'control = "{program}"\n' if program.exists() else ""
        before, _, after = text.partition("[vendor]\n")
        (self.place / "mpsd.toml").write_text(f'state_directory = "{self.state}"\n{before}\n[vendor]\n{control}{after}\n')

    def keep_state_in_memory(self) -> None:
        """In memory, as /run is in production: making a file on a busy disk takes up to 0.1 s, which `blocks` would measure.
        Without enough memory the state stays on disk."""
        with contextlib.suppress(OSError):
            found = os.statvfs(MEMORY)
            if found.f_bavail * found.f_frsize < MEMORY_BYTES:
                return
            place = MEMORY / self.place.name
            place.mkdir(mode=0o755)
            if self.uid is not None and os.geteuid() == 0:
                os.chown(place, self.uid, self.uid)
            self.state = place / "state"
            self.configure(self.configuration)

    def misbehave(self, control: str = "", server: str = "") -> None:
        """What the vendor's programs do wrong from their next start on (native/sim: MPSD_SIM_CONTROL_FAULT, ..SERVER_FAULT)."""
        program = self.place / "vendor" / PROGRAM
        program.parent.mkdir(exist_ok=True)
        words = f"MPSD_SIM_CONTROL_FAULT='{control}' MPSD_SIM_SERVER_FAULT='{server}'"
        new = program.with_suffix(".new")
        new.write_text(f"#!/bin/sh\n{words} exec {SIMULATOR / 'bin' / PROGRAM} \"$@\"\n")
        new.chmod(0o755)
        new.replace(program)
        self.configure(self.configuration)

    # -- the front end -----------------------------------------------------------------------------------------------

    def run(
        self,
        *words: str,
        typed: str = "",
        uid: int | None = None,
        seconds: float = ANSWER_SECONDS,
        program: Path = FRONT_END,
        **variables: str,
    ) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [str(program), *words],
            input=typed,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=seconds,
            env=self.variables | variables,
            cwd="/",
            check=False,
            **self._user(uid),
        )

    def start(self, *words: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """The daemon, in the background; it must come up."""
        done = self.run("-d", *words, seconds=START_SECONDS, **variables)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        return done

    def begin(self, *words: str, uid: int | None = None, typed: str = "", **variables: str) -> "subprocess.Popen[bytes]":
        """A front end that runs on; ended with the machine."""
        with tempfile.TemporaryFile() as source:
            source.write(typed.encode())
            source.seek(0)
            process = subprocess.Popen(
                [str(FRONT_END), *words],
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.variables | variables,
                cwd="/",
                **self._user(uid),
            )
        self._children.append(process)
        return process

    def ask(self, line: str, uid: int | None = None, seconds: float = ANSWER_SECONDS) -> "subprocess.CompletedProcess[str]":
        """One command, as `echo ... |` gives it."""
        return self.run(typed=line + "\n", uid=uid, seconds=seconds)

    def tell(self, line: str, uid: int | None = None, seconds: float = ANSWER_SECONDS) -> str:
        """The answer to a command that must be answered."""
        done = self.ask(line, uid, seconds)
        assert (done.returncode, done.stderr) == (0, ""), f"{line}: {done}"
        return done.stdout

    def numbers(self, line: str) -> list[int]:
        """None of a server that has gone since it was listed."""
        answer = self.tell(line)
        return [] if answer.endswith(" not found\n") else [int(word) for word in answer.split()]

    def servers(self) -> list[int]:
        return self.numbers("get_server_list")

    def server(self) -> int:
        """Return the pid of the only server, once it is listed: mpsd learns of it from a log."""
        [pid] = wait_for("a server in the list", self.servers)
        return pid

    def clients(self) -> set[int]:
        """Return the pids of the clients of all servers, by the command language."""
        return {pid for server in self.servers() for pid in self.numbers(f"get_client_list {server}")}

    def server_of(self, client: Client) -> int:
        """The server of a client, once it is listed."""

        def look() -> int:
            return next((s for s in self.servers() if client.pid in self.numbers(f"get_client_list {s}")), 0)

        return wait_for(f"pid {client.pid} in a client list", look)

    def domain_of(self, client: Client) -> str:
        return self.domain_of_server(self.server_of(client))

    def domain_of_server(self, pid: int) -> str:
        return Path(variable(pid, "CUDA_MPS_PIPE_DIRECTORY")).parent.name

    @contextmanager
    def mpsd(self, uid: int | None = None) -> Iterator[Mpsd]:
        """A connection to mpsd.sock, as that user, or as the machine's: the kernel notes who connects, not who speaks later."""
        with self.connect(uid) as mpsd:
            yield mpsd

    def connect(self, uid: int | None = None) -> Mpsd:
        """The same, for the caller to close."""
        was, uid = os.geteuid(), self.uid if uid is None else uid
        if uid is not None:
            os.seteuid(uid)
        try:
            return Mpsd(self.pipe / "mpsd.sock")
        finally:
            os.seteuid(was)

    # -- clients -----------------------------------------------------------------------------------------------------

    def client(
        self, program: str, *words: str, uid: int | None = None, stdin: int = subprocess.DEVNULL, **variables: str
    ) -> Client:
        output = self.place / f"client-{len(self._children)}.jsonl"
        with output.open("wb") as file:
            process = subprocess.Popen(
                [str(CLIENTS / program), "--json", *words],
                stdin=stdin,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.variables | variables,
                cwd="/",
                **self._user(uid),
            )
        self._children.append(process)
        return Client(process, output)

    def counter(self, uid: int | None = None, **variables: str) -> Client:
        """A client that counts until it is ended, twenty times a second, and leaves the processor to others."""
        return self.client("counter", "--seconds", "600", "--ms", "50", "--kernel-us", "3000", uid=uid, **variables)

    # -- what runs ---------------------------------------------------------------------------------------------------

    def processes(self, program: str = "") -> list[int]:
        """The pids of this machine's processes, of those with that program name if one is given; no zombies."""
        ours = self.variables["MPSD_SIM_DIR"]
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]
        found = [pid for pid in pids if variable(pid, "MPSD_SIM_DIR") == ours and is_running(pid)]
        return [pid for pid in found if not program or program_of(pid) == program]

    def daemon_pid(self) -> int:
        """Return mpsd's pid, or 0 if it does not run."""
        try:
            return int((self.pipe / f"{PROGRAM}.pid").read_text())
        except (OSError, ValueError):
            return 0

    def keeper_pid(self) -> int:
        return next(iter(self.processes("mpsd-keeper")), 0)

    def domains(self) -> list[str]:
        """Return the names of the domains whose vendor daemon runs."""
        return sorted(path.name for path in (self.state / "domains").glob("*") if self.vendor_pid(path.name))

    def vendor_pid(self, domain: str) -> int:
        """The control daemon of a domain; 0 when it does not run."""
        directory = self.state / "domains" / domain / "pipe"
        try:
            pid = int((directory / f"{PROGRAM}.pid").read_text())
        except (OSError, ValueError):
            return 0
        return pid if variable(pid, "CUDA_MPS_PIPE_DIRECTORY") == str(directory) and is_running(pid) else 0

    def spares(self) -> list[str]:
        """Return the domains with a server that has no client yet."""
        ready = {event["domain"] for event in self.journal("domain.spare_ready")}
        return sorted(ready - {self.domain_of_server(pid) for pid in self.servers()})

    def with_spare(self) -> str:
        """Return the name of a spare once one exists."""
        return wait_for("a spare", self.spares)[0]

    def kill_vendor(self, domain: str) -> int:
        """`kill -9` of a domain's control daemon; the pid it had."""
        pid = wait_for(f"a vendor daemon of {domain}", lambda: self.vendor_pid(domain))
        os.kill(pid, signal.SIGKILL)
        return pid

    # -- the GPUs ----------------------------------------------------------------------------------------------------

    def status(self, **variables: str) -> dict[str, Any]:
        """Of the simulated machine: its GPUs, and the processes that have the driver."""
        done = self.run("status", "--json", program=SIMULATOR / "bin/mpsd-sim", **variables)
        return dict(json.loads(done.stdout))

    def uuids(self, **variables: str) -> list[str]:
        return [gpu["uuid"] for gpu in self.status(**variables)["gpus"]]

    def kinds(self) -> dict[int, str]:
        """Each process with the simulated driver: client and server of MPS, or plain, which runs without MPS."""
        return {process["pid"]: process["kind"] for process in self.status()["processes"]}

    def set_compute_mode(self, gpu: str, mode: str) -> None:
        assert self.run("set-compute-mode", gpu, mode, program=SIMULATOR / "bin/mpsd-sim").returncode == 0

    # -- its output ---------------------------------------------------------------------------------------------------------

    def log(self, name: str = "control.log") -> list[str]:
        try:
            return (self.log_directory / name).read_text(errors="replace").splitlines()
        except (FileNotFoundError, NotADirectoryError):
            return []

    def journal(self, event: str = "") -> list[dict[str, Any]]:
        """mpsd's own log; every entry, or those of one event."""
        entries = [json.loads(line) for line in self.log("mpsd.log") if line.startswith("{") and line.endswith("}")]
        return [entry for entry in entries if not event or entry["event"] == event]

    def wait_for_journal(self, event: str, seconds: float = EVENT_SECONDS) -> dict[str, Any]:
        return dict(wait_for(f"{event} in mpsd.log", lambda: self.journal(event), seconds)[-1])

    # -- ends --------------------------------------------------------------------------------------------------------

    def kill_daemon(self) -> int:
        """`kill -9` of mpsd; the pid it had."""
        pid = self.daemon_pid()
        os.kill(pid, signal.SIGKILL)
        wait_for(f"the end of mpsd, pid {pid}", lambda: not is_running(pid))
        return pid

    def kill_all_daemons(self) -> None:
        """`kill -9` of mpsd where its pid file is gone."""
        for pid in self.processes(PROGRAM):
            if "serve" in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                os.kill(pid, signal.SIGKILL)
                wait_for(f"the end of mpsd, pid {pid}", lambda pid=pid: not is_running(pid))

    def kill_daemon_idle(self) -> None:
        """`kill -9` of mpsd at a moment when it waits for events."""
        stop_idle(self.daemon_pid())
        self.kill_daemon()

    def signal_daemon(self, name: str) -> None:
        os.kill(self.daemon_pid(), signal.Signals[name])

    def quit(self, line: str = "quit -t 1", seconds: float = ANSWER_SECONDS) -> int:
        done = self.ask(line, seconds=seconds)
        assert (done.stdout, done.stderr) == ("", "")
        return done.returncode

    def bugs(self) -> list[dict[str, Any]]:
        """What mpsd itself calls a bug."""
        return [entry for entry in self.journal() if entry["event"].endswith(".bug") or "exception" in entry]

    def blocks(self) -> list[dict[str, Any]]:
        """Return the steps that blocked mpsd's event loop for over 50 ms, on a busy machine 1000, or MPSD_TEST_LOOP_MS: making
        a file on a busy disk takes long and is no fault of the step. health/loop_watch.py defines what counts."""
        most_ms = float(os.environ.get("MPSD_TEST_LOOP_MS", "1000" if self._pressure.is_busy() else "50"))
        return [entry for entry in self.journal("loop.blocked") if entry["ms"] > most_ms]

    def clear(self) -> None:
        """End everything that belongs here, and take the directories away."""
        self.end_children()
        self.end_processes()
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.rmtree(MEMORY / self.place.name, ignore_errors=True)

    def end_children(self) -> None:
        """`kill -9` of clients and front ends."""
        for child in self._children:
            child.kill()
            child.wait()
            for stream in (child.stdout, child.stderr):
                if stream:
                    stream.close()
        self._children.clear()

    def addition(self, process: "subprocess.Popen[bytes]") -> None:
        """A process that ends with the machine."""
        self._children.append(process)

    def end_processes(self) -> None:
        """`kill -9` of everything, as a loss of power would."""
        wait_for("the end of all processes", self._kill_all)

    def _kill_all(self) -> bool:
        found = self.processes()
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself
        return not found

    def _user(self, uid: int | None) -> dict[str, Any]:
        uid = self.uid if uid is None else uid
        return {} if uid is None or uid == os.geteuid() else {"user": uid, "group": uid, "extra_groups": []}


@contextmanager
def open_machine(uid: int | None = None) -> Iterator[Machine]:
    place = Path(tempfile.mkdtemp(prefix="mpsd-", dir="/tmp"))
    place.chmod(0o755)
    for name in ("pipe", "log", "machine"):
        (place / name).mkdir()
        (place / name).chmod(0o777)
    if uid is not None and os.geteuid() == 0:
        for path in (place, place / "pipe", place / "log"):
            os.chown(path, uid, uid)
    machine = Machine(place, uid)
    machine.keep_state_in_memory()
    try:
        yield machine
        bugs, blocks = machine.bugs(), machine.blocks()
    finally:
        machine.clear()
    assert not bugs, f"mpsd's log has bugs: {bugs}"
    assert not blocks, f"mpsd kept its event loop blocked: {blocks}"
