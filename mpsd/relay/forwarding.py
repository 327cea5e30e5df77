"""Connect the two ends of one relayed connection, and copy between them.

The link does not interpret messages.  How a connection ends is critical, because CUDA runs *without* MPS, silently, when its
control connection is closed before the handshake is done (docs/relay.md): the link passes an end on only if the other side
really made it, never because mpsd or a vendor daemon died, or because mpsd had to free the vendor daemon of a silent client.
"""

import math
import os
import select
import socket
from collections.abc import Awaitable, Callable
from enum import Enum, auto
from functools import partial

import trio
from msgspec import Struct, field

from mpsd.domains.refuser import REFUSER_UID
from mpsd.errors import FatalMessage, ProtocolError, WrongSpeaker
from mpsd.host import processes
from mpsd.host.arrivals import hang_up, is_empty
from mpsd.host.descriptors import Closings, is_prompt
from mpsd.host.peers import has_ended, is_in_our_namespace, names_its_peer
from mpsd.model.process import Credentials, ProcessId
from mpsd.relay.message import Message, look_at, receive, send, take
from mpsd.relay.progress import TO_CLIENT, TO_DOMAIN, Track
from mpsd.relay.texts import MOST_TEXT_BYTES, change_in, long_text

_MOST_REPLAYED = 16  # messages; a handshake has five (measured)
_MOST_KEPT_BYTES = 32 << 10  # of them: one user has thousands of connections
_PENDING_SECONDS = 0.02  # a slower daemon has queued the client, and serves others in the meantime
_REPLAY_SECONDS = 5.0
_NO_RETURN_SECONDS = 30.0  # after the domain has passed descriptors: a busy machine may take seconds until a client sends


def _ignore(is_by_domain: bool) -> None:
    """Stand for a listener."""


class LinkSide(Enum):
    """The side that ended a link."""

    CLIENT = auto()
    DOMAIN = auto()
    SLOW_CLIENT = auto()  # neither: the client kept its domain waiting, and mpsd disconnected it
    OVERDUE_CLIENT = auto()  # neither: the client had its time and kept others waiting, and mpsd disconnected it


class _Turn(Enum):
    CLIENT = auto()
    DOMAIN = auto()


class Forwarding(Struct):
    """Guards the transcript of the messages, so that another connection to a domain can be brought to the same point.

    The transcript is None once the handshake cannot be repeated: one side has passed descriptors, or the transcript became too
    long.  Then the client can only be held; unless its domain passed them, it caused that and gets as much time as others.
    """

    client: socket.socket
    may_impersonate: bool
    trusts_containers: bool = False  # a container may give commands
    transcript: list[Message | bytes] | None = field(default_factory=list)  # bytes: sent by the domain
    has_run: bool = False  # it was linked to a domain before
    has_spoken: bool = False  # the client has sent a message
    greeted_at: float = math.inf  # when it was first sent one; trio time
    has_passed_descriptors: bool = False  # one side has passed some; without any, the client cannot have a channel to a server
    granted_at: float = -math.inf  # when the domain passed the first, or may have before this mpsd; trio time
    is_out_of_step: bool = False  # the replay to the last domain failed
    track: Track = field(default_factory=Track)
    speaker: int = 0  # the pid that connected, and that alone may send; 0: mpsd cannot see it
    process: ProcessId | None = None  # that has this pid; None: not known
    is_doubtful: bool = False  # another process with this pid may have sent what was queued when mpsd found this one
    ids: Credentials | None = None  # of the process that connected, as it did; None: each message has its own
    closings: Closings = field(default_factory=Closings)  # of all users' clients
    share: int = 0  # the uid against whose share the client's closings count
    _note_descriptors: Callable[[bool], None] = _ignore
    _kept_bytes: int = 0
    _turn: _Turn = _Turn.DOMAIN
    _turned: trio.Event = field(default_factory=trio.Event)
    _answers: int = 0  # messages of the domain
    _end: LinkSide | None = None
    _trouble: Exception | None = None

    def __post_init__(self) -> None:
        if self.process is not None:
            self.note_found(self.process)

    def note_found(self, process: ProcessId) -> None:
        """Note the process that has the pid now.

        Before Linux 6.5 it can be a later process, with messages of the earlier one in the queue.  A program sends nothing
        before its domain has; once an earlier mpsd has passed that on, an answer may be queued.
        """
        self.process = process
        if not self.track.has_begun:
            self.is_doubtful = not is_empty(self.client) and not names_its_peer(self.client)

    async def run(
        self, domain: socket.socket, patience_seconds: float, is_well: Callable[[], Awaitable[bool]]
    ) -> LinkSide:
        """Bring the domain to the client's point of the handshake, then copy both ways until one side ends.

        `is_well` is asked when the domain makes the client wait: whether the domain serves others in the meantime.  If not, it
        waits for this client.  Raise ProtocolError or OSError for what the client did.
        """
        self._end, self._trouble, self.has_run = None, None, True
        self.is_out_of_step = not await self._replay(domain)
        if self.is_out_of_step:
            return LinkSide.DOMAIN
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._copy_from_client, domain, nursery.cancel_scope)
            nursery.start_soon(self._watch_turns, patience_seconds, is_well, nursery.cancel_scope)
            await self._copy_from_domain(domain)
            nursery.cancel_scope.cancel()
        if self._trouble is not None:  # raised here: out of a nursery it would come as a group
            raise self._trouble
        if self._end is None:
            self._end = LinkSide.CLIENT if has_hung_up(self.client) else LinkSide.DOMAIN
        return self._end

    def note_descriptors(self, note: Callable[[bool], None]) -> None:
        """Call `note` with whether the domain passes them, before descriptors pass."""
        self._note_descriptors = note

    def no_way_back(self) -> None:
        """Drop the transcript: from here on the handshake cannot be repeated."""
        self.transcript = None

    def pass_on(self, end: LinkSide) -> None:
        """Shut the connection down for the client at once if its domain has ended it; it is closed later."""
        if end is LinkSide.DOMAIN:
            _stop(self.client, socket.SHUT_RDWR)

    def _close(self, message: Message) -> None:
        message.close(partial(self.closings.begin, self.share))

    def close(self) -> None:
        hang_up(self.client)

    # -- copying -----------------------------------------------------------------------------------------------------

    async def _copy_from_client(self, domain: socket.socket, scope: trio.CancelScope) -> None:
        try:
            while (message := await look_at(self.client, self.closings, self.share)) is not None:
                with self.closings.holding(self.share, len(message.descriptors)):  # while the domain takes no more
                    if self.ids and message.credentials:  # a sender may have other ids: its domain and its limits are of these
                        message.credentials = Credentials(message.credentials.pid, self.ids.uid, self.ids.gid)
                    self._check_speaker(message)
                    self._check_text(message)
                    self._check_descriptors(message)
                    self.has_spoken = True
                    if message.descriptors:
                        self.has_passed_descriptors = True
                        self._note_descriptors(False)
                    self._set_turn(_Turn.DOMAIN)
                    await self._pass_on(message, domain)
        except (BrokenPipeError, ConnectionResetError):
            if not has_hung_up(self.client):
                return  # the domain has ended: the other direction reads its last messages and then the end
        except (OSError, ProtocolError) as exc:
            self._trouble = exc
            scope.cancel()
            return
        if has_hung_up(self.client):
            self._end = LinkSide.CLIENT
            scope.cancel()
        else:
            _stop(domain, socket.SHUT_WR)

    def _check_speaker(self, message: Message) -> None:
        """Refuse another sender: a connection can be given away, but its limits are the caller's.  Raise WrongSpeaker.

        Root of a container without a user namespace has every uid, also the one that no user has.
        """
        if message.credentials is not None and message.credentials.uid == REFUSER_UID:
            self._close(message)
            raise WrongSpeaker(f"uid {REFUSER_UID} is that of the daemon that refuses clients, which would serve it")
        said_by = message.credentials.pid if message.credentials else self.speaker
        if self.speaker and said_by != self.speaker:
            self._close(message)
            raise WrongSpeaker(f"pid {said_by} speaks on the connection of pid {self.speaker}")
        # It may be of a process that has ended since, which gets no channel (_check_receiver).
        if self.process is not None and (now := processes.find(said_by)) is not None and now != self.process:
            self._close(message)
            raise WrongSpeaker(f"a later process with pid {said_by} speaks on the connection of the one before")

    def _check_text(self, message: Message) -> None:
        """Refuse a text that would end the vendor's daemon, and a container's command.  Raise FatalMessage, or OSError if mpsd
        cannot read the process: that is no offence of its user's.

        Without a user namespace a container's root is root to the vendor's daemon, or the user of any server.
        """
        why = ""
        if size := long_text(message.data):
            why = f"it sent a text of {size} bytes, and over {MOST_TEXT_BYTES} end a vendor daemon"
        elif not self.trusts_containers and (name := change_in(message.data)) and not self._is_inside(message):
            why = f"it sent the command {name} from another pid namespace than mpsd's"
        if why:
            self._close(message)
            raise FatalMessage(why)

    def _is_inside(self, message: Message) -> bool:
        try:
            return is_in_our_namespace(self.process)
        except OSError:
            self._close(message)
            raise

    def _check_descriptors(self, message: Message) -> None:
        """Refuse a descriptor if its close can wait: SIGKILL ends no vendor daemon that waits for a user's file or process.

        A socket has others in its queue.  Raise FatalMessage.
        """
        if not all(map(is_prompt, message.descriptors)):
            self._close(message)
            raise FatalMessage("it sent a descriptor of neither memory nor a GPU, for which a daemon could wait for ever")

    async def _pass_on(self, message: Message, domain: socket.socket) -> None:
        """Pass a message to the domain.  If that fails, it stays in the client's queue, for another domain or another mpsd."""
        try:
            with self.track.passing(TO_DOMAIN):
                await send(domain, message, self._as_sender(message.credentials))
                take(self.client)
            if message.descriptors:  # mpsd would have them open for as long as the client waits for its turn
                self.no_way_back()
            self._remember(message)
        finally:
            self._close(message)

    async def _copy_from_domain(self, domain: socket.socket) -> None:
        try:
            while (message := await look_at(domain)) is not None:
                if message.descriptors:
                    self._check_receiver(message)
                    self.has_passed_descriptors = True
                    self._note_descriptors(True)
                    if not self.is_granted:
                        self.granted_at = trio.current_time()
                    self.no_way_back()
                self._set_turn(_Turn.CLIENT)
                try:
                    with self.track.passing(TO_CLIENT):
                        await self._send_to_client(message)
                        take(domain)
                    self._remember(message.data)  # not before: if this is cancelled, another domain's has to be sent
                    self.greeted_at = min(self.greeted_at, trio.current_time())
                finally:
                    message.close()
        except (OSError, ProtocolError) as exc:
            if isinstance(exc, OSError | WrongSpeaker) and has_hung_up(self.client):
                self._end = LinkSide.CLIENT
            else:
                self._trouble = exc

    def _check_receiver(self, message: Message) -> None:
        """Refuse a channel to a process that has ended: mpsd has freed what it held, and another has its connection.

        Root of a pid namespace can speak as a process there that has ended, and one can end while a server starts for it.
        Raise WrongSpeaker.
        """
        if has_ended(self.client, self.process):
            message.close()
            raise WrongSpeaker(f"pid {self.speaker} has ended, and another process has its connection")

    async def _send_to_client(self, message: Message) -> None:
        try:
            await send(self.client, message, self._as_sender(message.credentials))
        except ProcessLookupError:  # the daemon has died since, and the kernel takes only the pid of a living process
            await send(self.client, message, None)

    async def _watch_turns(
        self, patience_seconds: float, is_well: Callable[[], Awaitable[bool]], scope: trio.CancelScope
    ) -> None:
        """Free the domain of a client that keeps it waiting, by silence or by messages that the domain does not answer.

        A client with a channel to a server cannot be linked again: it has far more time, and is never blamed for the silence of
        a domain.  Only an answer of the domain ends the wait for it: more messages of the client do not.
        """
        asked_at: int | None = None  # after so many answers; None: a new wait begins
        while True:
            turned, turn, is_granted, answers = self._turned, self._turn, self.is_granted, self._answers
            if turn is _Turn.CLIENT:
                silence = max(patience_seconds, _NO_RETURN_SECONDS) if is_granted else patience_seconds
                due, asked_at = trio.current_time() + silence, None
            elif asked_at != answers:
                due, asked_at = trio.current_time() + _PENDING_SECONDS, answers
            with trio.move_on_at(due):
                await turned.wait()
                continue
            if turn is _Turn.DOMAIN:
                asked_at = None
                if await is_well() or self._answers != answers:
                    await turned.wait()  # for as long as this keeps no others waiting (conversation.py)
                    continue
                if is_granted:
                    continue
            self._end = LinkSide.SLOW_CLIENT
            scope.cancel()
            return

    @property
    def is_granted(self) -> bool:
        """Whether the domain has passed a descriptor, or may have before this mpsd."""
        return self.granted_at > -math.inf

    @property
    def awaits_domain(self) -> bool:
        """Whether it is the domain's turn to send."""
        return self._turn is _Turn.DOMAIN

    def _set_turn(self, turn: _Turn) -> None:
        self._turn = turn
        self._answers += turn is _Turn.CLIENT
        self._turned.set()
        self._turned = trio.Event()

    # -- the transcript ----------------------------------------------------------------------------------------------

    def _remember(self, entry: Message | bytes) -> None:
        if self.transcript is None:
            return
        self.transcript.append(entry)
        self._kept_bytes += len(entry.data if isinstance(entry, Message) else entry)
        if len(self.transcript) > _MOST_REPLAYED or self._kept_bytes > _MOST_KEPT_BYTES:
            self.no_way_back()

    async def _replay(self, domain: socket.socket) -> bool:
        """Repeat the handshake with a fresh connection.  False: the domain ended, or answered otherwise this time."""
        self._turn, self._turned = _Turn.DOMAIN, trio.Event()
        if not self.transcript:
            return True
        try:
            with trio.fail_after(_REPLAY_SECONDS), self.track.passing(TO_DOMAIN):
                for entry in self.transcript:
                    if isinstance(entry, Message):
                        await send(domain, entry, self._as_sender(entry.credentials))
                    elif not await self._hears(domain, entry):
                        return False
        except (OSError, ProtocolError, trio.TooSlowError):
            return False
        if isinstance(self.transcript[-1], bytes):
            self._set_turn(_Turn.CLIENT)
        return True

    async def _hears(self, domain: socket.socket, expected: bytes) -> bool:
        message = await receive(domain)
        if message is None:
            return False
        is_same = message.data == expected and not message.descriptors
        message.close()
        return is_same

    def _as_sender(self, credentials: Credentials | None) -> Credentials | None:
        if credentials is None or not self.may_impersonate:
            return None
        pid = credentials.pid or os.getpid()  # a process outside our pid namespace: none that could be sent
        return Credentials(pid, credentials.uid, credentials.gid)


def has_hung_up(end: socket.socket) -> bool:
    """Return whether the other side has closed for good, rather than only stopped sending."""
    poll = select.poll()
    poll.register(end, 0)
    return any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(0))


def _stop(end: socket.socket, how: int) -> None:
    try:
        end.shutdown(how)
    except OSError:
        pass  # it has gone
