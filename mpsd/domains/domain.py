"""Hold the state of one fault domain: its vendor daemon, its servers and clients.

mpsd builds its view from the daemon's answers, and asks again only after the daemon's log has reported a change: so a view of a
quiet domain is free (docs/domains.md, "Where answers come from").
"""

import math
import os
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import structlog
import trio

from mpsd.domains.limit_guard import Guard
from mpsd.domains.newcomer_failures import NewcomerFailures
from mpsd.domains.rules import log_lines, server_answers, vendor_limits
from mpsd.domains.rules.line_alarm import LineAlarm
from mpsd.domains.rules.log_lines import News
from mpsd.domains.sentinel_port import NoSentinel, SentinelPort
from mpsd.domains.server_questions import ask_servers
from mpsd.domains.unseen_clients import UnseenClients
from mpsd.domains.vendor_control import VendorControl
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.model.domain import Defaults, DomainState, ServerView
from mpsd.model.process import ProcessId

log = structlog.get_logger()
_STARTING, _STARTING_SECONDS = "INITIALIZING", 15.0
_MOST_FORGOTTEN = 256  # in one turn of the event loop: a user can have thousands
_MOST_TOLD = 256  # clients by the log alone: a server has some sixty
_FROZEN_SECONDS = 2.0  # a newcomer hangs at a vendor daemon that has not answered for so long
_BETWEEN_SECONDS = 10.0  # a client is in no list between two connections, which takes long where many wait


@dataclass(slots=True)
class Domain:
    """Guards that its views are consistent: state, servers and members change only through its methods."""

    name: str
    number: int
    gpus: tuple[str, ...]  # UUIDs, ordered by the domain's ordinals
    control: VendorControl
    capacity: int
    is_public: bool = False
    state: DomainState = DomainState.STARTING
    servers: dict[int, ServerView] = field(default_factory=dict)
    members: dict[ProcessId, float] = field(default_factory=dict)  # placed here; last seen (trio time)
    channels: set[ProcessId] = field(default_factory=set)  # may have a channel to a server, also if they have left since
    unseen: UnseenClients = field(default_factory=UnseenClients)
    handshakes: Counter[ProcessId | None] = field(default_factory=Counter)  # open relayed connections
    guard: Guard = field(init=False)  # the limits of each client, and its turn to send to the vendor daemon
    key: str = ""  # all its clients have this key (domains/rules/placement.py)
    is_draining: bool = False
    is_worn: bool = False  # drained because newcomers got no context, or ended before they made one
    failures: NewcomerFailures = field(default_factory=NewcomerFailures)
    contexts: dict[int, Counter[int]] = field(default_factory=dict)  # by server, then by client, from the log
    applied_defaults: Defaults | None = None  # of the vendor daemon
    served_defaults: Defaults | None = None  # of the server, since its start
    joined_uid: int | None = None  # the user of the newest client
    uids: dict[ProcessId, int] = field(default_factory=dict)  # of the members, and of ended ones that a server may list
    idle_since: float = 0.0
    trouble: str = ""  # why its vendor daemon last failed
    is_adopted: bool = False  # an earlier mpsd started it: its servers are older than the log, its clients are not known
    _ready_since: dict[int, float] = field(default_factory=dict)  # of each server: first seen, or long ago once it is ready
    ends_by: float = math.inf  # when mpsd ends the clients of a CONTAINED one (trio time)
    fault_since: float = math.inf  # the start of FAULT (trio time)
    suspect_until: float = -math.inf  # until then signs other than the vendor daemon's answers show a fault (trio time)
    admitted: dict[int, ProcessId] = field(default_factory=dict)  # by the pid that servers may list
    adopts_until: float = -math.inf  # clients that an earlier mpsd admitted may still come into its lists (trio time)
    made_ticks: int = field(default_factory=processes.ticks_at)  # a later process is no client of an earlier mpsd
    _line_alarm: LineAlarm = field(default_factory=LineAlarm)
    _told_arrivals: deque[int] = field(default_factory=lambda: deque(maxlen=_MOST_TOLD))  # from log lines that users can forge
    sentinel: SentinelPort = field(default_factory=NoSentinel)
    silenced: trio.Event = field(default_factory=trio.Event)  # set: the vendor daemon did not answer mpsd, or cannot
    hindrance: str = ""  # why the vendor daemon cannot answer, by its processes and files (vital_signs.py)
    blocked_by: tuple[int, int | None] | None = None  # pid of a stopped client that its server waits for; uid, None if several
    _silent_since: float = math.inf  # when mpsd asked the first unanswered question (trio time)
    unanswered_since: float = math.inf  # the same, for a pending question or a client's (trio time)
    news: trio.Event = field(default_factory=trio.Event)  # set: the view may be out of date
    asked_at: float = -1.0  # when mpsd last asked for the clients of all servers (trio time)
    _asking: trio.Lock = field(default_factory=trio.Lock)

    def __post_init__(self) -> None:
        self.guard = Guard(self.gpus)

    # -- its clients and its health ------------------------------------------------------------------------------------

    def has_outdated_spare(self, defaults: Defaults) -> bool:
        """Return whether its server was started before any client came, with defaults that have changed since."""
        return not self.is_public and bool(self.servers) and self.served_defaults != defaults

    @property
    def occupancy(self) -> int:
        """How many places are taken: a process that is connected or connecting takes one a context, and at least one."""
        return sum(max(1, sum(opened[pid] for opened in self.contexts.values())) for pid in self.present_pids)

    @property
    def present_pids(self) -> set[int]:
        """The pids of its members and clients, and of those that have left, but may have a channel to a server, or get one."""
        coming = (process.pid if process else os.getpid() for process in self.handshakes)
        return self.known_pids.union(coming, (process.pid for process in self.channels))

    @property
    def known_pids(self) -> set[int]:
        """The pids of its members and clients: to look for each of a thousand processes costs more."""
        return self.client_pids.union(process.pid for process in self.members)

    @property
    def is_exposed(self) -> bool:
        """Whether every user can connect to the vendor daemon past the relay, and write to its log."""
        return self.control is not None and self.control.is_exposed

    @property
    def is_ill(self) -> bool:
        """Whether new clients should go to another domain: this one faults, may fault, or does not answer."""
        is_suspect = trio.current_time() < self.suspect_until
        return self.state is not DomainState.READY or is_suspect or self.silenced.is_set() or self._is_deserted

    @property
    def _is_deserted(self) -> bool:
        """Whether a server with clients has died, and the vendor daemon still lists it: newcomers get 805 (measured)."""
        return any(server.client_pids and not processes.lives(server.pid) for server in self.servers.values())

    @property
    def connected(self) -> set[ProcessId]:
        """Members with a context, as far as mpsd knows."""
        pids = self.pids_at_work
        return {process for process in self.members if process.pid in pids}

    @property
    def served(self) -> set[ProcessId]:
        """The processes that have a context on a server, or may have a channel to one."""
        return self.connected | self.channels

    @property
    def pids_at_work(self) -> set[int]:
        """The pids of the clients that the servers list, or that have a context by the log."""
        return self.client_pids.union(*self.contexts.values())

    @property
    def client_pids(self) -> set[int]:
        return {pid for server in self.servers.values() for pid in server.client_pids}

    # -- events ------------------------------------------------------------------------------------------------------

    def join(self, process: ProcessId | None, uid: int | None = None, key: str = "") -> None:
        self.is_public = True
        self.joined_uid, self.key = uid, key
        if process is not None:
            self.members.setdefault(process, trio.current_time())
            if uid is not None:
                self.uids[process] = uid

    @contextmanager
    def handshake(self, process: ProcessId | None) -> Iterator[None]:
        """Count a connection of the process while mpsd relays it to this domain."""
        self.handshakes[process] += 1
        try:
            yield
        finally:
            self.handshakes[process] -= 1
            if not self.handshakes[process]:
                del self.handshakes[process]
            if process in self.members:
                self.members[process] = trio.current_time()

    def attach(self, process: ProcessId | None) -> None:
        """Note that a process may have a channel to a server, to its end: no list shows that before its first context."""
        if process is not None and (process in self.members or processes.is_alive(process)):
            self.channels.add(process)

    def leave(self, process: ProcessId | None, *, has_ended: bool = False) -> None:
        """Note that the process is no member.  has_ended: the caller knows that it has ended, so it is not read.

        If it has ended, it counts for its user until an answer, as a child may have its connections; with a channel it takes a
        place until it or the servers have ended.
        """
        if process is None:
            return
        is_alive = not has_ended and processes.is_alive(process)
        if self.members.pop(process, None) is not None:
            if is_alive or self.admitted.get(process.pid) != process:
                self.uids.pop(process, None)
            self.mark_stale()
        if not is_alive:
            self.channels.discard(process)

    def forget_absent(self) -> list[ProcessId]:
        """Remove and return members without a connection, channel or context here for _BETWEEN_SECONDS.

        Their next connection is placed anew: as members they would be clients of whoever has the domain by then."""
        before = min(self.asked_at, trio.current_time() - _BETWEEN_SECONDS)
        absent = {each for each, seen_at in self.members.items() if seen_at < before and not self.handshakes[each]}
        for process in (few := list(absent and absent - self.served)[:_MOST_FORGOTTEN]):
            self.leave(process)
        return few

    def suspect(self, seconds: float) -> None:
        """Take no clients for this time: a vendor server takes long to report a fault."""
        self.suspect_until = trio.current_time() + seconds
        self.mark_stale()

    def find_hindered(self, hindrance: str) -> bool:
        """Set why the vendor daemon cannot answer; "": no sign shows that, and mpsd asks it.  Return whether this is new."""
        if hindrance == self.hindrance:
            return False
        self.hindrance = hindrance
        if hindrance:
            self._silent_since = min(self._silent_since, trio.current_time())
            self.silenced.set()
            log.warning("domain.hindered", domain=self.name, why=hindrance)
        self.mark_stale()
        return True

    @property
    def is_answering(self) -> bool:
        return trio.current_time() - self.unanswered_since < _FROZEN_SECONDS

    @property
    def is_unusable(self) -> bool:
        """Whether mpsd replaces it where it has no clients: it cannot answer (then at once), or has been silent for long."""
        is_long = trio.current_time() - self._silent_since >= self.control.silence_seconds
        return self.silenced.is_set() and (bool(self.hindrance) or is_long)

    def mark_stale(self) -> None:
        self.news.set()

    def hear(self, news: News) -> None:
        """Take a line of the log, and ask the daemon soon: a line alone proves little (faults/rules/unconfirmed_lines.py)."""
        match news:
            case log_lines.ServerFault() if self.state is DomainState.READY:
                if until := self._line_alarm.until(trio.current_time()):
                    self.suspect_until = max(self.suspect_until, until)
            case log_lines.ContextOpened(server_pid, client_pid):
                opened = self.contexts.setdefault(server_pid, Counter())
                if client_pid in opened or len(opened) < _MOST_TOLD:
                    opened[client_pid] += 1
            case log_lines.ContextClosed(server_pid, client_pid, left):
                opened = self.contexts.pop(server_pid, Counter()) - Counter([client_pid])
                if left:
                    self.contexts[server_pid] = opened
            case log_lines.ClientArrived(_, client_pid):
                if self.is_exposed:
                    self._told_arrivals.append(client_pid)
                else:
                    self.guard.hear(client_pid)
            case log_lines.ServerStarting(pid) if pid not in self.servers:
                self.served_defaults = self.applied_defaults
            case log_lines.ServerReady(pid):
                self._ready_since[pid] = -math.inf
            case log_lines.ServerExited(pid) if not processes.lives(pid):
                self.contexts.pop(pid, None)
        self.mark_stale()

    def is_plausible(self, news: News) -> bool:
        """Return whether the line names a server of this domain: a listed one, or a child of the vendor daemon."""
        pid = news.pid if isinstance(news, log_lines.Servers) else news.server_pid
        if pid in self.servers or isinstance(news, log_lines.ServerExited):
            return True
        vendor = self.control.process  # with its children: the server's user may keep mpsd from reading the server
        return vendor is not None and (processes.parent(pid) == vendor.pid or pid in processes.children(vendor.pid))

    def admit(self, process: ProcessId) -> None:
        """Admit a process as a client, before its first message reaches the vendor daemon.

        mpsd knows it by the pid in mpsd's own namespace, which the kernel also gives to the vendor daemon (SCM_CREDENTIALS).  A
        process chooses its pid inside another namespace, and could choose that of a process outside.
        """
        self.admitted[process.pid] = process

    @property
    def strangers(self) -> frozenset[int]:
        """Clients that the servers list, but that mpsd did not admit."""
        return frozenset(self.client_pids - self.admitted.keys() - {os.getpid()})  # mpsd's: of processes without a pid here

    def forget(self) -> None:
        """Forget all servers and contexts: the vendor daemon has ended."""
        for each in (self.servers, self.members, self.channels, self.uids, self.admitted, self.contexts, self._ready_since):
            each.clear()
        self.failures.clear()
        self.unseen.forget()
        self.guard.forget()
        self.key, self.hindrance, self.blocked_by = "", "", None
        self.silenced = trio.Event()
        self._silent_since = self.unanswered_since = math.inf
        self.joined_uid = self.applied_defaults = None

    # -- questions to the vendor daemon ------------------------------------------------------------------------------

    async def fresh_servers(self) -> list[ServerView]:
        """Return the servers; ask for them only if something has happened, or one must have started.  Raise VendorFailed."""
        if any(each.status == _STARTING and self._is_started(each.pid) for each in self.servers.values()):
            self.mark_stale()  # mpsd may have missed its line
        if self.news.is_set():
            await self.refresh()
        return list(self.servers.values())

    async def refresh(self) -> None:
        """Ask for servers, states and clients.  Concurrent callers share one answer."""
        async with self._asking:
            if not self.news.is_set():
                return
            self.news = trio.Event()
            asked_at, told = trio.current_time(), tuple(self._told_arrivals)
            known = self._ready_since.keys() | self.contexts.keys()  # the log may name another one during the question
            self._told_arrivals.clear()
            self.unanswered_since = min(self.unanswered_since, asked_at)
            try:
                self._believe(await self._ask(), asked_at)
            except trio.Cancelled:
                self.news.set()  # a caller with little patience must not let others take the view for the present one
                raise
            except VendorFailed:
                self.news.set()
                self._silent_since = min(self._silent_since, asked_at)
                if trio.current_time() - self._silent_since >= self.control.silence_seconds:
                    self.silenced.set()
                raise
            for gone in [pid for pid in known - self.servers.keys() if not processes.lives(pid)]:  # others come later
                self.contexts.pop(gone, None)
                self._ready_since.pop(gone, None)
            self.unanswered_since = math.inf
            if not self.hindrance:  # else the control daemon answers, but the server cannot
                self._silent_since = math.inf
                if self.silenced.is_set():
                    self.silenced = trio.Event()
            for pid in self.client_pids.intersection(told):
                self.guard.hear(pid)

    def _believe(self, servers: dict[int, ServerView], asked_at: float) -> None:
        self.servers = servers
        if self.is_adopted or trio.current_time() < self.adopts_until:
            found = filter(None, map(processes.find, self.strangers))
            self.admitted |= {each.pid: each for each in found if each.start_time <= self.made_ticks}
        self.guard.forget_servers_but(set(servers))
        if all(server.status != _STARTING for server in servers.values()):  # mpsd does not ask for the clients of such a server
            self.asked_at = asked_at
            self._forget_admitted()
        is_faulty = any(server.status == "FAULT" for server in servers.values())
        if is_faulty and self.state in (DomainState.STARTING, DomainState.READY):  # STARTING: mpsd is adopting it
            self._fail()

    def _forget_admitted(self) -> None:
        """Forget admitted processes that have ended, unless a server still lists them."""
        listed = self.client_pids
        self.admitted = {pid: each for pid, each in self.admitted.items() if pid in listed or processes.is_alive(each)}
        self.uids = {p: uid for p, uid in self.uids.items() if p in self.members or self.admitted.get(p.pid) == p}

    def fail(self) -> None:
        """Enter FAULT after a sign that no user can forge; the fault may be over before mpsd asks the server."""
        if self.state is DomainState.READY:
            self._fail()
            self.mark_stale()

    def contain(self, why: str, ends_by: float) -> None:
        """Note a contained exception: its server takes no client and answers nothing from now on."""
        self.state, self.trouble, self.ends_by = DomainState.CONTAINED, why, ends_by
        self.silenced.set()  # clients without a context leave
        self.mark_stale()

    def _fail(self) -> None:
        self.state, self.fault_since = DomainState.FAULT, trio.current_time()

    @property
    def has_recovered(self) -> bool:
        """Whether the domain is in FAULT, but its servers report neither a fault nor a client; FAULT admits no new clients."""
        still = any(server.status == "FAULT" or server.client_pids for server in self.servers.values())
        return self.state is DomainState.FAULT and not still and not self.news.is_set()

    async def _ask(self) -> dict[int, ServerView]:
        """Ask the vendor daemon for its servers; the sentinel's clients are in no view of them."""
        if self.state is DomainState.CONTAINED:
            return server_answers.living(self.servers, processes.lives)
        views = {}
        for pid, uid, status, clients in await ask_servers(self.control, self.servers.keys(), self._is_started):
            listed = tuple(each for each in clients if each not in self.sentinel.pids)
            views[pid] = ServerView(pid, uid, status, listed, self.name, self.gpus)
        return views

    def _is_started(self, pid: int) -> bool:
        """Return whether the server has started: by the log, or since it is older than mpsd or than _STARTING_SECONDS."""
        since = self._ready_since.setdefault(pid, -math.inf if self.is_adopted else trio.current_time())
        return trio.current_time() - since > _STARTING_SECONDS

    async def apply_defaults(self, defaults: Defaults) -> None:
        """Make the next server start with these defaults; with closed limits if each client gets individual ones.

        The limits are closed because a server that starts unasked gives its limits to its first client.  Raise VendorFailed;
        then the domain takes no clients until a later call succeeds.
        """
        self.applied_defaults = None
        wanted = vendor_limits.of_defaults(defaults, self.gpus)
        if self.guard.is_on:
            wanted = vendor_limits.closed(self.gpus, defaults.client_priority)
        await self.control.commands(vendor_limits.default_commands(wanted))
        self.applied_defaults = defaults
