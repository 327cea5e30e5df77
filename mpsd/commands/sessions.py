"""Command sessions: front ends that connect to PIPE_DIR/mpsd-ui.

    front end                        mpsd
    `mpsd-ui 1`                 ->
                                <-   `mpsd-ui 1`
    one datagram per command    ->
                                <-   `O`bytes, `E`bytes (stdout, stderr), any number; then `X`status

SEQPACKET.  Both programs are built together, so another version is just refused.
"""

import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

import structlog
import trio
from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.commands.language.board import Board
from mpsd.commands.language.call import Answer
from mpsd.commands.language.dispatch import dispatch
from mpsd.commands.language.grammar import printable
from mpsd.fairness.places import OPERATORS_SHARE
from mpsd.fairness.rates import Rate, Rates
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.host.arrivals import Arrival, hang_up, serve_in_turn
from mpsd.host.datagrams import receive_now
from mpsd.host.descriptors import Closings
from mpsd.host.peers import Recognition, caller_of, is_operator, once_known, recognize
from mpsd.host.process_reader import Unanswered
from mpsd.model.authority import Caller
from mpsd.model.process import ProcessId
from mpsd.notify import Changed

log = structlog.get_logger()
_COMMAND_BYTES = 64 * 1024  # a longer command is cut, and refused like any over grammar.MAX_LINE_BYTES
GREETING = b"mpsd-ui 1"
MAX_COMMAND_BYTES = 4096
_CHUNK_BYTES = 16 * 1024 - 1
_SEND_SECONDS = 30.0
_RUNNING_OF_USER = 4  # commands at once: a vendor daemon does one at a time, and one that starts a server may take a minute
_LINES_RATE = Rate(burst=1 << 18, per_second=64)  # bytes of control.log for one user's commands: 5 MB a day at most
_USERS_IN_TOTAL = 16  # all users together may write as much as so many


class SessionSettings(Struct, frozen=True):
    max_sessions: int
    idle_seconds: float
    trusts_containers: bool = False

    @property
    def kept(self) -> int:
        return self.max_sessions // OPERATORS_SHARE


class _Session(Struct, eq=False):
    """One front end.  Guards that mpsd knows which of the two waits for the other."""

    connection: socket.socket
    uid: int
    share: int  # the uid that it counts as
    is_operator: bool
    closings: Closings  # of all users' descriptors
    recognition: Recognition | None = None
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)  # cancelled only while idle
    idle_since: float | None = field(default_factory=trio.current_time)  # mpsd waits for a command, or for room to send

    @contextmanager
    def idle(self, seconds: float) -> Iterator[None]:
        """Raises TooSlowError when the front end lets mpsd wait for longer."""
        self.idle_since = trio.current_time()
        try:
            with trio.fail_after(seconds):
                yield
        finally:
            self.idle_since = None

    async def receive(self, seconds: float) -> bytes:
        """Return the next datagram; empty at the end.  Raises TooSlowError, and OSError as if the process cannot be read."""
        with self.idle(seconds):
            while True:
                await trio.lowlevel.wait_readable(self.connection)
                await self.closings.room(self.share)
                await trio.lowlevel.checkpoint_if_cancelled()  # otherwise the command would be cut off in the middle
                try:
                    datagram = receive_now(self.connection, _COMMAND_BYTES)
                except (BlockingIOError, ConnectionResetError):
                    continue  # a reset is reported once, before the commands that are still queued
                await self.closings.close(self.share, datagram.descriptors.take())  # no command takes any
                if self.recognition:
                    self.recognition.note(datagram.sender_pid)
                return datagram.data

    async def reply(self, answer: Answer) -> None:
        """Send the answer.  Raises TooSlowError when the front end does not read."""
        for datagram in _datagrams(answer):
            with self.idle(_SEND_SECONDS):
                await self._send(datagram)

    async def _send(self, data: bytes) -> None:
        while True:
            try:
                self.connection.send(data, socket.MSG_NOSIGNAL)
                return
            except BlockingIOError:
                await trio.lowlevel.wait_writable(self.connection)

    async def greet(self) -> None:
        with self.idle(_SEND_SECONDS):
            await self._send(GREETING)

    def dismiss(self, why: str) -> None:
        """Send a last answer, if the front end can take it: it reads it as the answer to its next command."""
        try:
            for datagram in _datagrams(Answer(stderr=why, status=1)):
                self.connection.send(datagram, socket.MSG_NOSIGNAL)
        except OSError:
            pass  # it has closed, or does not read


class Sessions:
    """Guards the number of sessions: at the limit, an idle session is closed for the next front end.

    If all sessions wait for their answers, further front ends queue.
    """

    def __init__(
        self,
        board: Board,
        write_log: Callable[[str], None],
        settings: SessionSettings,
        ranges: UidRanges = NO_RANGES,
        admin_gid: Callable[[], int | None] = lambda: None,
    ) -> None:
        """admin_gid: the group of operators; None while it does not exist or is not known."""
        self._admin_gid = admin_gid
        self._board = board
        self._write_log = write_log
        self.settings = settings
        self._ranges = ranges
        self._open: set[_Session] = set()
        self._closings = {False: Closings(), True: Closings()}  # of operators: True
        self._running: dict[int, trio.Semaphore] = {}  # by the uid whose share they are of
        self._lines = Rates(_LINES_RATE, _LINES_RATE.times(_USERS_IN_TOTAL))
        self._looks = {False: trio.Lock(), True: trio.Lock()}  # the turns of front ends, each of which is identified; as above
        self._ended = Changed()

    async def serve(self, listener: socket.socket, nursery: trio.Nursery) -> None:
        """Accept until cancelled."""

        def begin(arrival: Arrival) -> None:
            uid = arrival.credentials.uid
            session = _Session(arrival.sock, uid, self._ranges.share_of(uid), self._is_operator(arrival), self._closings[False])
            self._open.add(session)
            nursery.start_soon(self._converse, session)

        def failed(trouble: OSError) -> None:
            log.error("ui.accept_failed", why=trouble.strerror)

        def refuse(arrival: Arrival) -> None:
            log.info("ui.dropped", uid=arrival.credentials.uid, why="too many sessions wait to be begun, most of this user")
            hang_up(arrival.sock)

        most = self.settings.max_sessions
        share_of, is_operator = self._ranges.share_of, self._is_operator
        await serve_in_turn(listener, begin, refuse, share_of, is_operator, most, failed, self._room, self._ended.wait)

    async def settled(self) -> None:
        """Return when no session is open."""
        while self._open:
            await self._ended.wait()

    def _room(self, for_operator: bool) -> int:
        """Return for how many sessions of operators, or of others, there is room; at the limit, end an idle session.

        It is the one that has been idle longest, of the user with most idle ones; of an operator only where operators have more
        idle ones than all others, since root of a container can be many users, and, for others, more than are kept for them.
        """
        operators = sum(each.is_operator for each in self._open)
        kept = 0 if for_operator else self.settings.kept
        room = self.settings.max_sessions - max(kept - operators, 0) - len(self._open)
        if room <= 0:
            idle = [session for session in self._open if session.idle_since is not None]
            kinds = (False, True) if operators > kept else (False,)
            if crowd := max(([each for each in idle if each.is_operator is kind] for kind in kinds), key=len):
                [(greediest, _)] = Counter(each.share for each in crowd).most_common(1)
                theirs = (each for each in crowd if each.share == greediest)
                min(theirs, key=lambda each: each.idle_since or 0.0).scope.cancel()
        return room

    async def _converse(self, session: _Session) -> None:
        """Serve one session.  An error in here ends this session and nothing else."""
        try:
            with session.scope:
                await self._serve(session)
            if session.scope.cancelled_caught:
                log.warning("ui.evicted", uid=session.uid, why="too many command sessions, and it was idle longest")
                session.dismiss("Session closed: too many sessions were open, and this one was idle longest\n")
        except (OSError, trio.TooSlowError) as exc:
            log.info("ui.dropped", uid=session.uid, why=repr(exc))
            if isinstance(exc, Unanswered):
                session.dismiss(f"mpsd cannot tell whether an operator asks: {exc.strerror}\n")
        except Exception:
            log.exception("ui.bug", uid=session.uid)
        finally:
            hang_up(session.connection)  # not waited for: a session would count for as long as its unread descriptors like
            self._open.remove(session)
            self._ended.notify()

    async def _serve(self, session: _Session) -> None:
        process, caller = await once_known(partial(self._identify, session.connection), self._looks[session.is_operator])
        session.recognition = recognition = recognize(session.connection, process)
        session.closings = self._closings[caller.is_owner]  # root of a container has an operator's uid
        first = await session.receive(self.settings.idle_seconds)
        if first != GREETING:
            if first:
                why = f"This mpsd speaks '{GREETING.decode()}', the front end sent {first[:32]!r}: install both again\n"
                await session.reply(Answer(stderr=why, status=1))
            return
        await session.greet()
        self._write(caller, "NEW UI")
        unknown = replace(caller, is_inside=self.settings.trusts_containers)
        while line := await session.receive(self.settings.idle_seconds):
            by = caller if recognition.is_certain else unknown
            async with self._turn(session, by):  # for the log too: to escape a line takes up to 2 ms (measured)
                answer = await self._answer(by, line)
                self._record(by, line, answer)
            await session.reply(answer)
        self._write(caller, "UI closed")

    async def _answer(self, caller: Caller, line: bytes) -> Answer:
        if len(line) > MAX_COMMAND_BYTES:
            return Answer(f"Command too long: more than {MAX_COMMAND_BYTES} bytes\n", 1)
        return await dispatch(self._board, caller, line)

    @asynccontextmanager
    async def _turn(self, session: _Session, caller: Caller) -> AsyncIterator[None]:
        """Let as many commands of one user run as a user has a share of; raises TooSlowError.  Operators never wait.

        A session that waits here is idle: it makes way for front ends of others.
        """
        if caller.is_owner:
            yield
            return
        share = self._ranges.share_of(caller.uid)
        running = self._running.setdefault(share, trio.Semaphore(_RUNNING_OF_USER))
        with session.idle(self.settings.idle_seconds):
            await running.acquire()
        try:
            yield
        finally:
            running.release()
            if running.value == _RUNNING_OF_USER:
                del self._running[share]

    def _record(self, caller: Caller, line: bytes, answer: Answer) -> None:
        text = printable(line[:MAX_COMMAND_BYTES])
        self._write(caller, f"Cmd:{text}\n{answer.stdout}" if answer.stdout else f"Cmd:{text}")

    def _write(self, caller: Caller, text: str) -> None:
        """Write to control.log, as the vendor's daemon does; a limit keeps users other than operators from filling the disk."""
        if caller.is_owner or self._lines.allows(self._ranges.share_of(caller.uid), trio.current_time(), len(text)):
            self._write_log(text)

    def tell_suppressed(self) -> None:
        """Write for each user how many entries the limit kept out of control.log."""
        for uid, entries in self._lines.take_suppressed().items():
            self._write_log(f"{entries} entries about commands of user {uid} are left out: they were too many")

    def _is_operator(self, arrival: Arrival) -> bool:
        return is_operator(arrival.sock, self._admin_gid(), trusts_containers=self.settings.trusts_containers)

    def _identify(self, connection: socket.socket) -> tuple[ProcessId | None, Caller]:
        return caller_of(connection, self._admin_gid(), trusts_containers=self.settings.trusts_containers)


def _datagrams(answer: Answer) -> Iterator[bytes]:
    for letter, text in ((b"O", answer.stdout), (b"E", answer.stderr)):
        data = text.encode(errors="replace")
        while data:
            end = _whole_characters(data, _CHUNK_BYTES)
            yield letter + data[:end]
            data = data[end:]
    yield b"X" + bytes([min(answer.status, 255)])


def _whole_characters(data: bytes, most: int) -> int:
    """Return the length of as many characters as fit: the front end would escape the parts of a split one."""
    end = min(most, len(data))
    while end < len(data) and data[end] & 0xC0 == 0x80:  # a byte inside a character of UTF-8
        end -= 1
    return end
