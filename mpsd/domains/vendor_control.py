"""Run one vendor control daemon in private directories, by its documented command language.

It is started with `-d` (its parent returns when it listens), so it is not a child of mpsd and outlives it; see
docs/decisions/002-vendor-daemons-are-not-children.md.  As root, in a mount namespace of its own (directories.py gives the
reason).  Vendor daemons fail overlapping queries (measured: one in four to one in seven), so mpsd sends each one query at a
time.
"""

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path

import structlog
import trio
from msgspec import Struct

from mpsd.domains.directories import CLOSED, OPEN, DomainDirectories
from mpsd.domains.frozen_clients import how_frozen
from mpsd.domains.leftovers import Leftovers
from mpsd.domains.rules.server_answers import LIST, split_list
from mpsd.domains.sentinel_port import NoSentinel, SentinelPort
from mpsd.errors import UnusablePath, VendorFailed
from mpsd.host import processes
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.peers import once_known
from mpsd.host.process_exit import wait_ended
from mpsd.host.process_reader import Unanswered
from mpsd.host.program_run import run_program
from mpsd.model.process import ProcessId
from mpsd.threads import run_in_thread

log = structlog.get_logger()
MAX_SOCKET_PATH = 107  # sun_path less its final zero, unix(7)
MAX_LINE_BYTES = 1024  # 5,000 bytes kill the vendor's 580 daemon; 2,000 are fine
_DEVICES = "CUDA_VISIBLE_DEVICES"
_ATTEMPTS = 5  # another user's vendor front end, relayed, can still overlap with us
_SILENT_COMMANDS = 3
_FORCE_SECONDS = 1  # before mpsd lets a daemon quit, clients have ended, or their work was terminated
_BUSY = b"Cannot send command"
_NEEDS_ALL = ("shutdown_server", "terminate_client")
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE; it prints no message
_LONGEST_SOCKET = "control_privileged"
_NO_NAMESPACE = 125  # the launcher's exit status where mounts are not allowed (native/launcher)
EXPOSED = "every user can connect to its vendor daemon past the relay, and write to its log"
_LAUNCHER_SAYS = b"mpsd-launcher: "


class VendorSilent(VendorFailed):
    """The program did not end in time: the vendor daemon may still carry out the command."""


class VendorProgram(Struct, frozen=True):
    """The vendor's `nvidia-cuda-mps-control` and the time limits for it (seconds).

    launcher: starts it where no other user reaches it; None where clients connect to it directly, without the relay.
    unified: where cgroup v2 is mounted.
    """

    path: Path
    environment: Mapping[str, str]
    command_seconds: float
    start_seconds: float
    inspector: Inspector
    launcher: Path | None = None
    unified: Path | None = None


async def _no_check() -> None:
    pass


class VendorControl:
    """Guards that one command at a time reaches the daemon, and that mpsd signals only its own daemon."""

    def __init__(self, program: VendorProgram, home: Path, uid: int | None = None) -> None:
        """uid: the daemon's user; None: mpsd's own."""
        self.home = DomainDirectories(home)
        self.pipe_directory = self.home.pipe
        self.log_directory = self.home.log
        self.process: ProcessId | None = None
        self.sentinel: SentinelPort = NoSentinel()
        self.is_exposed = False  # other users reach its sockets and its log, past the relay
        self.was_left_exposed = False  # by an earlier mpsd, which did not close its directories or could not
        self._program = program
        self._uid = uid
        self._one_at_a_time = trio.Lock()
        self._leftovers = Leftovers(self.pipe_directory, program.inspector)

    async def how_frozen(self, client_pid: int) -> str:
        """Return how the client is frozen with its cgroup, or may be; "" if it is not."""
        found = await how_frozen(self._program.inspector, self._program.unified, [client_pid])
        return found.get(client_pid, "")

    async def start(self, visible_devices: str | None, options: tuple[str, ...] = ()) -> ProcessId:
        """Start the daemon and return when it listens.  Raise VendorFailed with its message, or UnusablePath."""
        await run_in_thread(self._make_directories)
        await self.sweep()
        arguments = ["-d", *options]
        environment = self.environment()
        if visible_devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible_devices
        try:
            status, output = await self._launch(arguments, environment)
        except VendorFailed:
            await self.sweep()  # a start that hung may have left a daemon behind
            raise
        self.process = await self._find_soon() if status == 0 else None
        if self.process is None:
            await self.sweep()  # one that runs, and could write no pid file or does not listen, as on a full disk
            room = await run_in_thread(os.statvfs, self.pipe_directory)
            reason = why_absent(output, status, has_room=room.f_bavail > 0)
            asked = f"{self._program.path} {' '.join(arguments)}"
            raise VendorFailed(f"{asked} ended with status {status} and left no daemon behind: {reason}")
        await run_in_thread(self.home.record, self.process)
        return self.process

    def adopt(self) -> ProcessId | None:
        """Return the daemon that already runs in these directories, if any."""
        self.process = self._find()
        self.is_exposed = self.was_left_exposed = self._program.launcher is not None and not self.home.is_closed
        return self.process

    def visible_devices(self) -> str:
        """Return the GPUs that the adopted daemon was started with; empty if it got none, or that cannot be read."""
        try:
            facts = self._program.inspector.facts_now(self.process.pid, [_DEVICES]) if self.process else None
        except (OSError, Unreadable):
            return ""
        return facts.variables.get(_DEVICES, "") if facts else ""

    async def command(self, line: str, seconds: float | None = None, check: Callable[[], Awaitable[None]] = _no_check) -> str:
        """Return its answer to one command.  Raise VendorFailed if it is gone, hangs, or is busy with others.

        check: called in the command's turn, right before it is sent; raises if it is not to be sent any more.
        """
        return await self.commands((line,), seconds, check)

    async def commands(
        self, lines: Sequence[str], seconds: float | None = None, check: Callable[[], Awaitable[None]] = _no_check
    ) -> str:
        """Return its answers to several commands, one after the other, from one session.

        The sentinel is ended before a command that a server carries out only while no client is stopped.  Raise VendorFailed,
        also if it contains an exception just then; then the daemon may have executed some of them.
        """
        for line in lines:
            if (size := len(line.encode())) > MAX_LINE_BYTES or "\n" in line:
                raise VendorFailed(f"a command of {size} bytes is not passed on: {MAX_LINE_BYTES} on one line are")
        encoded = "".join(f"{line}\n" for line in lines).encode()
        async with AsyncExitStack() as stack:
            if any(line.startswith(_NEEDS_ALL) for line in lines):
                await stack.enter_async_context(self.sentinel.aside(unless_contained=True))
            await stack.enter_async_context(self._one_at_a_time)
            for attempt in range(_ATTEMPTS):
                await check()
                status, output = await self._run([], encoded, self.environment(), seconds or self._program.command_seconds)
                if not status:
                    answer = output.decode(errors="replace")
                    if lines[0] == LIST:
                        self._leftovers.record(split_list(answer)[0])
                    return answer
                if _BUSY not in output:
                    break
                await trio.sleep(0.01 * 2**attempt)
        asked = "; ".join(lines)
        raise VendorFailed(f"'{asked}' was not answered: {output.decode(errors='replace').strip() or status}")

    async def is_responsive(self, seconds: float) -> bool:
        """Return whether it answers at all, even that it is busy.  Does not wait for other commands to finish."""
        with trio.move_on_after(seconds):
            try:
                await self._run([], f"{LIST}\n".encode(), self.environment(), seconds)
            except VendorFailed:
                return False
            return True
        return False

    @property
    def silence_seconds(self) -> float:
        """For how long it may leave everything unanswered, as it does while its server and the GPU are very busy."""
        return _SILENT_COMMANDS * self._program.command_seconds

    async def quit(self, patience_seconds: float) -> bool:
        """Ask it to quit, forcing its servers after a second; return True if it ends within the patience."""
        async with self.sentinel.aside():
            with trio.move_on_after(patience_seconds):
                try:
                    await self.command(f"quit -t {_FORCE_SECONDS}", patience_seconds)
                except VendorFailed:
                    pass  # a daemon that hangs or has ended does not answer: only its process counts
                await self.wait_gone()
        return not self.is_alive()

    async def kill(self) -> bool:
        """Kill a daemon that does not quit; its servers and their clients' contexts die with it.

        Return whether it has ended, after `command_seconds` at the latest.
        """
        if self.process is None:
            return True
        async with self.sentinel.aside():
            self._leftovers.record_children(self.process)
            with suppress(OSError):
                processes.kill(self.process)
            with trio.move_on_after(self._program.command_seconds) as waiting:
                await wait_ended(self.process)
        processes.collect(self.process.pid)
        await self.sweep()
        return not waiting.cancelled_caught

    async def sweep(self) -> int:
        """Kill the other remaining processes of this domain (leftovers.py); return their number."""
        return await self._leftovers.sweep()

    def is_alive(self) -> bool:
        return self.process is not None and processes.is_alive(self.process)

    async def wait_gone(self) -> None:
        """Wait until the daemon's process has ended, without limit."""
        if self.process is None:
            return
        await wait_ended(self.process)
        processes.collect(self.process.pid)  # it is our child where mpsd is its reaper

    def socket_path(self, name: str) -> str:
        return str(self.pipe_directory / name)

    def _make_directories(self) -> None:
        longest = len(os.fsencode(self.socket_path(_LONGEST_SOCKET)))
        if longest > MAX_SOCKET_PATH:
            raise UnusablePath(f"{self.pipe_directory} makes a socket path of {longest} bytes; {MAX_SOCKET_PATH} fit")
        self.home.make(CLOSED if self._program.launcher or os.geteuid() else OPEN, self._uid)
        if trouble := self.home.trouble(self._owner):
            raise UnusablePath(f"{self.home.path} cannot be used: {trouble}")

    def reach(self, *words: str) -> tuple[str, ...]:
        """Return the command line by which another user's program reaches the daemon's sockets."""
        if self._program.launcher is None or self.is_exposed:
            return words
        return (str(self._program.launcher), str(self.home.path), *words)

    def environment(self) -> dict[str, str]:
        """Return the environment of the daemon's programs."""
        directories = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
        }
        return dict(self._program.environment) | directories

    async def _launch(self, arguments: list[str], environment: dict[str, str]) -> tuple[int, bytes]:
        """Start the daemon where no other user reaches it, or else where they do; return status and output."""
        seconds, launcher = self._program.start_seconds, self._program.launcher
        self.is_exposed = self.was_left_exposed = False
        if launcher is None:
            return await self._run(arguments, b"", environment, seconds, self._uid)
        user = () if self._uid is None else ("--uid", str(self._uid))
        through = (str(launcher), *user, str(self.home.path))
        status, output = await self._run(arguments, b"", environment, seconds, through=through)
        if status != _NO_NAMESPACE or not output.startswith(_LAUNCHER_SAYS):
            return status, output
        log.error("domain.exposed", directory=str(self.home.path), why=output.decode(errors="replace").strip(),
                  effect=EXPOSED)  # fmt: skip
        self.is_exposed = True
        self.home.open_to_servers()
        return await self._run(arguments, b"", environment, seconds, self._uid)

    async def _run(
        self,
        arguments: list[str],
        text: bytes,
        env: dict[str, str],
        seconds: float,
        uid: int | None = None,
        through: tuple[str, ...] = (),
    ) -> tuple[int, bytes]:
        """Run the vendor's program; return status and output.  Raise VendorFailed if it is missing or hangs."""
        try:
            with trio.fail_after(seconds):
                command = [*through, str(self._program.path), *arguments]
                return await run_program(self._program.inspector, command, text, env, uid)
        except OSError as exc:
            raise VendorFailed(f"{(*through, self._program.path)[0]} cannot be run: {exc.strerror}") from None
        except trio.TooSlowError:
            what = text.decode(errors="replace").strip().replace("\n", "; ") or " ".join(arguments)
            raise VendorSilent(f"{self._program.path} hung: no answer to '{what}' in {seconds:g} s") from None

    @property
    def _owner(self) -> int:
        return os.geteuid() if self._uid is None else self._uid

    async def _find_soon(self) -> ProcessId | None:
        """Return the daemon that has started; wait some seconds while it is unread, or mpsd's own user's processes are."""
        if (found := await run_in_thread(self._find)) is None:
            with suppress(Unanswered):
                pid = self.home.named(self._owner) or os.getpid()
                await once_known(partial(processes.process_id, pid), trio.Lock())
                found = await run_in_thread(self._find)
        return found

    def _find(self) -> ProcessId | None:
        """Return the daemon of the private directory."""
        if trouble := self.home.trouble(self._owner):
            log.error("domain.not_believed", directory=str(self.home.path), why=trouble)
            return None
        asked = self._program.path, self._owner, self._program.inspector
        return self.home.recorded() or self.home.find_by_pid_file(*asked) or self.home.find_by_socket(*asked)


def why_absent(output: bytes, status: int, *, has_room: bool) -> str:
    """Return why it did not start, by its output; has_room: of its disk, which the output omits (the simulator's does not)."""
    said = output.decode(errors="replace").strip().partition("\n")[0].replace("\0", "")
    reason = said or ("no device is visible to it" if status == _NO_DEVICE else "it printed nothing")
    return reason if has_room else f"{reason}; the disk of the state directory is full"
