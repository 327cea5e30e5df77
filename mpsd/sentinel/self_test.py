"""Prove that a sentinel contains an SM exception on this machine: among clients of mpsd's own, in a vendor domain of their own.

It runs in a process of its own: `mpsd check --gpu`, which the daemon starts too (sentinel.self_test).  Two clients count and
one traps; the two have to count on, exactly.  Nothing here outlives the vendor daemon, which dies with this process.
Prose: docs/sentinel.md, "The self-test".
"""

import os
import select
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from mpsd.check.containment_proof import Proof, save_proof
from mpsd.check.probes import Finding, Grade
from mpsd.config import paths
from mpsd.config.options import Config
from mpsd.errors import MpsdError, ProtocolError, UnusablePath, VendorFailed
from mpsd.gpu import nvml
from mpsd.host import processes
from mpsd.host.peers import may_impersonate
from mpsd.host.programs import own_program
from mpsd.host.trusted_directories import look
from mpsd.model.device import ComputeMode, Device
from mpsd.native import lib
from mpsd.sentinel.messages import REPORT_BYTES, SentinelKind, SentinelOp, pack_request, parse_report
from mpsd.sentinel.process import environment_of

AREA = "sentinel test"
_START_SECONDS = 30.0  # of a server and a context; 0.3 s on an H200
_EVENT_SECONDS = 5.0  # until the exception is contained; 0.1 s there
_GO_ON_SECONDS = 0.5  # so long the others count on afterwards
_END_SECONDS = 10.0
_CO_RUNNERS = 2
_LOOK_SECONDS = 0.02


def probe_containment(config: Config, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Test each kind of GPU, and store the results."""
    grade = Grade.BAD if config.sentinel.mode == "required" else Grade.NOTE
    if not may_impersonate():
        yield Finding(AREA, grade, "without root mpsd starts no sentinel", "run it as root")
        return
    try:
        directory = paths.state_directory(config, os.geteuid(), environ)
        if refusal := look(directory).refusal:  # as at mpsd's start: another user could lead what is made there elsewhere
            raise UnusablePath(refusal)
        control, library = paths.find_vendor_control(config, environ), paths.nvml_library(config)
        visible = None if config.visible_devices == "all" else config.visible_devices
        devices, driver = nvml.read_devices(visible, library), nvml.read_driver(library)
        for device in {each.name: each for each in reversed(devices)}.values():
            proof = Proof(driver, device.name, os.uname().release, _try(device, control, directory, environ))
            save_proof(directory, proof)
            advice = "" if proof.is_good else "sentinels stay off: an SM exception ends all clients of its domain"
            yield Finding(AREA, Grade.GOOD if proof.is_good else grade, str(proof), advice)
    except (MpsdError, OSError) as exc:
        yield Finding(AREA, grade, f"it could not be made: {exc}", "see docs/sentinel.md")


def _try(device: Device, control: Path, directory: Path, environ: Mapping[str, str]) -> str:
    """Return why the exception was not contained on this GPU; "": it was.  Raise VendorFailed or OSError before it."""
    if device.compute_mode is not ComputeMode.DEFAULT:
        mode = f"the compute mode {device.compute_mode}, which allows no server beside others"
        raise VendorFailed(f"GPU {device.ordinal} is in {mode}")
    place = directory / f"test-{os.getpid()}"
    os.makedirs(directory, mode=0o700, exist_ok=True)
    with ExitStack() as stack:
        for name in ("", "pipe", "log"):
            os.makedirs(place / name, mode=0o700, exist_ok=True)
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        names = {"CUDA_MPS_PIPE_DIRECTORY": str(place / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(place / "log")}
        environment = environment_of({**environ, **names}, device.uuid)
        try:
            daemon = _start_daemon(stack, control, environment, place)
            sentinel, others, culprit = _start_clients(stack, daemon, environment, place)
        except (TimeoutError, ProtocolError) as exc:
            raise VendorFailed(str(exc)) from None
        try:
            return _cause_exception(sentinel, others, culprit)
        except (TimeoutError, ProtocolError) as exc:
            return str(exc)


def _start_daemon(
    stack: ExitStack, control: Path, environment: Mapping[str, str], place: Path
) -> "subprocess.Popen[bytes]":
    def die_with_us() -> None:
        lib.prctl(lib.PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # its servers and their clients end with it

    command, null = [str(control), "-f"], subprocess.DEVNULL
    daemon = subprocess.Popen(command, env=environment, stdin=null, stdout=null, stderr=null, preexec_fn=die_with_us)
    stack.callback(_end_daemon, daemon)
    until = time.monotonic() + _START_SECONDS
    while not (place / "pipe/control").exists():
        if daemon.poll() is not None or time.monotonic() > until:
            raise TimeoutError("the vendor's daemon did not start")
        time.sleep(_LOOK_SECONDS)
    return daemon


def _end_daemon(daemon: "subprocess.Popen[bytes]") -> None:
    servers = [found for pid in processes.children(daemon.pid) if (found := processes.process_id(pid))]
    _kill(daemon)
    until = time.monotonic() + _END_SECONDS
    while any(map(processes.is_alive, servers)) and time.monotonic() < until:
        time.sleep(_LOOK_SECONDS)
    for each in servers:
        with suppress(OSError):
            processes.kill(each)


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and wait for its end; one that waits in the driver for ever is left to init."""
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_SECONDS)


def _start_clients(
    stack: ExitStack, daemon: "subprocess.Popen[bytes]", environment: Mapping[str, str], place: Path
) -> "tuple[_Sentinel, list[_Trial], _Trial]":
    """Return the sentinel, the clients that count, and the one that will trap.  Raise TimeoutError, ProtocolError."""
    sentinel = _Sentinel(stack, environment, place)
    sentinel.wait_for(SentinelKind.ARMED, _START_SECONDS)
    others, culprit = [_Trial(stack, "count", environment) for _ in range(_CO_RUNNERS)], _Trial(stack, "trap", environment)
    for each in (*others, culprit):
        if (line := each.line(_START_SECONDS)) != "ready 0":
            raise TimeoutError(f"a client of the test got no context: {line or 'no answer'}")
    for server in processes.children(daemon.pid):
        sentinel.name(SentinelOp.SERVER, server)
    for each in (*others, culprit):
        sentinel.name(SentinelOp.ADD, each.process.pid)
    return sentinel, others, culprit


def _cause_exception(sentinel: "_Sentinel", others: "list[_Trial]", culprit: "_Trial") -> str:
    """Return why the others did not go on after an exception; "": they did.  Raise TimeoutError, ProtocolError."""
    culprit.go_on()
    sentinel.wait_for(SentinelKind.CONTAINED, _EVENT_SECONDS)
    time.sleep(_GO_ON_SECONDS)
    lines = [each.finish() for each in others]
    return next((f"another client did not go on: {each or 'no answer'}" for each in lines if not each.startswith("exact ")), "")


class _Trial:
    """One client of the test: `mpsd-sentinel --trial`."""

    def __init__(self, stack: ExitStack, role: str, environment: Mapping[str, str]) -> None:
        command, pipe = [str(own_program("sentinel")), "--trial", role], subprocess.PIPE
        self.process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        stack.callback(self._end)
        self._said = b""

    def line(self, seconds: float) -> str:
        """Return its next line; empty if it says nothing in time, or has ended."""
        assert self.process.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._said:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                return ""
            if not (data := os.read(self.process.stdout.fileno(), 4096)):
                return ""
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return line.decode(errors="replace")

    def go_on(self) -> None:
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            os.write(self.process.stdin.fileno(), b"\n")

    def finish(self) -> str:
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.line(_END_SECONDS)

    def _end(self) -> None:
        _kill(self.process)
        for each in (self.process.stdin, self.process.stdout):
            if each is not None:
                each.close()


class _Sentinel:
    """A sentinel in the server of the test."""

    def __init__(self, stack: ExitStack, environment: Mapping[str, str], place: Path) -> None:
        path = str(place / "sentinel")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(path)
            listener.listen(1)
            number = listener.fileno()
            self._process = subprocess.Popen(
                [str(own_program("sentinel")), "--fd", str(number)], env=environment, pass_fds=[number],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        stack.callback(self._end)
        self._peer = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        self._peer.connect(path)

    def name(self, op: SentinelOp, pid: int) -> None:
        pidfd = os.pidfd_open(pid)
        try:
            socket.send_fds(self._peer, [pack_request(op, pid)], [pidfd])
        finally:
            os.close(pidfd)

    def wait_for(self, kind: SentinelKind, seconds: float) -> None:
        """Wait for this report.  Raise TimeoutError, also if the sentinel fails; ProtocolError."""
        until = time.monotonic() + seconds
        while True:
            self._peer.settimeout(max(0.001, until - time.monotonic()))
            try:
                data = self._peer.recv(REPORT_BYTES + 1)
            except TimeoutError:
                raise TimeoutError(f"the sentinel did not report {kind.name} in {seconds:g} s") from None
            except OSError as exc:
                raise TimeoutError(f"the sentinel ended: {exc.strerror}") from None
            if not data:
                raise TimeoutError("the sentinel ended")
            report = parse_report(data)
            if report.kind is SentinelKind.FAILED:
                raise TimeoutError(f"the sentinel failed: {report.why}")
            if report.kind is kind:
                return

    def _end(self) -> None:
        with suppress(OSError):
            self._peer.send(pack_request(SentinelOp.END))
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(self._process)
