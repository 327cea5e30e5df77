"""The clients of each domain, now and until a moment ago, for `Observation.present`.

A client that has just ended may be the culprit, so it counts for a while; but not for new servers, which it never used.
"""

import os
from collections.abc import Callable, Collection, Iterable

from msgspec import Struct, field

from mpsd.model.fault import Party
from mpsd.model.process import ProcessId

_KNOWN_NS = 60 * 1_000_000_000  # a core dump comes seconds after its process has ended
_MOVED_NS = 2 * 1_000_000_000  # the Xids of one fault come within this time
_MOST_GONE = 4096
Owner = tuple[int | None, str]  # a user, and the outermost container or pod
_UNSEEN: Owner = (None, "another pid namespace")  # all clients there: mpsd cannot tell them apart


class _History(Struct):
    """The servers of a domain, and whose clients they have served, also ended ones: two owners at most.

    owners: each with the time of its last channel, 0: a server listed its client.
    is_whole: False: they served clients before this mpsd, which it cannot know.
    """

    servers: frozenset[int] = frozenset()
    owners: dict[Owner, int] = field(default_factory=dict)
    is_whole: bool = True


class _Guest(Struct):
    party: Party
    domain: str
    gone_ns: int | None = None
    listed_ns: int = 0  # when a server still listed it
    counts: bool = True  # it was present since its domain's servers were renewed
    former: str = ""  # where it was placed before, without having had a context there
    moved_ns: int = 0


class KnownClients:
    """Guards that a client stays known for a minute after its end, and that the number of ended ones is bounded.

    describe: returns a client's facts for people; called while it lives.  clock: nanoseconds of CLOCK_MONOTONIC.
    """

    def __init__(self, describe: Callable[[ProcessId], Party], clock: Callable[[], int]) -> None:
        self._describe = describe
        self._clock = clock
        self._guests: dict[ProcessId, _Guest] = {}
        self._by_pid: dict[int, ProcessId] = {}  # the latest process with this pid
        self._gone: dict[ProcessId, None] = {}  # in the order of their ends, or of their last listing
        self._histories: dict[str, _History] = {}  # by domain

    def meet(self, process: ProcessId, domain: str) -> bool:
        """Record that the process is placed in the domain.  Returns True the first time."""
        guest, is_new = self._guests.get(process), process not in self._guests
        if guest is None:
            guest = self._guests[process] = _Guest(self._describe(process), domain)
            self._by_pid[process.pid] = process
        elif guest.domain != domain:
            guest.former, guest.moved_ns = guest.domain, self._clock()
            guest.domain, guest.counts = domain, True
        return is_new

    def serve(self, process: ProcessId, domain: str, at_ns: int = 0) -> None:
        """Record that the process, which was met, may have a channel to a server of the domain; at_ns: it is passed now."""
        history, guest = self._histories.setdefault(domain, _History()), self._guests.get(process)
        if guest is None:
            return
        owner = _owner_of(guest.party)
        last_ns = max(at_ns, history.owners.pop(owner, 0))
        history.owners[owner] = last_ns
        if len(history.owners) > 2:
            del history.owners[min(history.owners, key=history.owners.__getitem__)]

    def note_unseen(self, domain: str, listed: Collection[int]) -> None:
        """Record whether a server of the domain lists clients that mpsd does not see: then no seen one is there alone."""
        if os.getpid() in listed:  # mpsd/domains/listed.py
            self._histories.setdefault(domain, _History()).owners[_UNSEEN] = self._clock()

    def part(self, process: ProcessId) -> None:
        """Record that the process, which lives, is in no domain any more."""
        if (guest := self._guests.get(process)) is not None:
            guest.domain = ""

    def leave(self, process: ProcessId) -> str | None:
        """Record the end of a client and return its domain.  None if it was never met, or has ended before."""
        guest = self._guests.get(process)
        if guest is None or guest.gone_ns is not None:
            return None
        guest.gone_ns = self._clock()
        self._gone[process] = None
        self._forget()
        return guest.domain

    def keep(self, process: ProcessId | None) -> None:
        """Keep an ended client known that a server lists: its GPU work may go on, as a child of it has its connection."""
        if process in self._gone:
            del self._gone[process]
            self._gone[process] = None
            self._guests[process].listed_ns = self._clock()

    def renew(self, domain: str, served: Collection[ProcessId] = (), members: Collection[ProcessId] | None = None) -> None:
        """Record that the domain has new servers, which no client has used that ended before.

        served: the processes that may have a channel to these servers.  members: those that are placed there; None: all.
        """
        for process, guest in self._guests.items():
            if guest.domain == domain and guest.gone_ns is not None:
                guest.counts = False
            elif guest.domain == domain and members is not None and process not in members and process not in served:
                guest.domain = ""
        self._histories[domain] = _History(self._histories.get(domain, _History()).servers)
        for process in served:
            self.serve(process, domain)

    def note_servers(
        self, domain: str, servers: Collection[int], served: Collection[ProcessId], first_started_ns: Callable[[], int]
    ) -> int | None:
        """Note the pids of the domain's servers.  If all are new, return when the first one was started, else None.

        Clients that ended before that had other servers.  One that got its channel since then may have ended, too.
        served: the processes that may have a channel to these servers.  first_started_ns: called only if all are new.
        """
        history = self._histories.get(domain, _History())
        if not servers or not history.servers or not history.servers.isdisjoint(servers):
            history.servers = frozenset(servers) or history.servers
            self._histories[domain] = history
            return None
        started_ns = first_started_ns()
        owners = {owner: at_ns for owner, at_ns in history.owners.items() if at_ns >= started_ns}
        self._histories[domain] = _History(frozenset(servers), owners)
        for process in served:
            self.serve(process, domain)
        for guest in map(self._guests.__getitem__, self._gone):
            guest.counts &= guest.domain != domain or guest.gone_ns is None or guest.gone_ns >= started_ns
        return started_ns

    def adopt(self, domain: str) -> None:
        """Record that the domain has the servers of an earlier mpsd; call it after `renew`."""
        self._histories.setdefault(domain, _History()).is_whole = False

    def forget_domains_but(self, domains: Collection[str]) -> None:
        """Forget whom the servers of other domains have served: these have ended."""
        for gone in self._histories.keys() - domains:
            del self._histories[gone]

    def have_one_owner(self, domain: str, present: Iterable[ProcessId] = ()) -> bool:
        """Return whether all clients that the domain's servers have served, and those present, are of one user and container.

        GPU work of one that has ended can go on, unseen: a child, or any process, can have the descriptors that it runs on.
        One that is present may only be connecting, and so not be served yet.
        """
        history, parties = self._histories.get(domain, _History()), map(self.find, present)
        owners = set(history.owners).union(_owner_of(each) for each in parties if each is not None)
        return history.is_whole and len(owners) < 2

    def present(self, domain: str, now_there: Iterable[ProcessId], seconds: float) -> tuple[ProcessId, ...]:
        """Return the clients in the domain now, and those that ended there within so many seconds."""
        since = self._clock() - int(seconds * 1e9)
        found = set(now_there)
        for process in self._gone:
            guest = self._guests[process]
            if guest.domain == domain and guest.counts and (guest.gone_ns or 0) >= since:
                found.add(process)
        return tuple(sorted(found))

    def find(self, process: ProcessId | None) -> Party | None:
        guest = self._guests.get(process) if process else None
        return guest.party if guest else None

    def is_gone(self, process: ProcessId) -> bool:
        """Return whether the client was met, and has ended."""
        guest = self._guests.get(process)
        return guest is not None and guest.gone_ns is not None

    def was_there(self, pid: int, process: ProcessId | None) -> bool:
        """Return whether the client, or the latest one with this pid, lives as far as mpsd knows, or ended a moment ago."""
        client = self._by_pid.get(pid) if process is None else process
        guest = None if client is None else self._guests.get(client)
        return guest is not None and (guest.gone_ns is None or self._clock() - guest.gone_ns < _MOVED_NS)

    def of_user(self, uid: int) -> Iterable[ProcessId]:
        """Return the user's clients, including those that ended within the last minute."""
        return [process for process, guest in self._guests.items() if guest.party.uid == uid]

    def by_pid(self, pid: int) -> ProcessId | None:
        """Return the living client with this pid, else the one that ended last."""
        return self._by_pid.get(pid)

    def domain_of(self, process: ProcessId) -> str:
        """Return the client's domain, or its last one; empty: never met, or that domain has had new servers since."""
        guest = self._guests.get(process)
        return guest.domain if guest is not None and guest.counts else ""

    def is_placed(self, process: ProcessId) -> bool:
        """Return whether the client was met, and not forgotten since, whether or not it has ended."""
        guest = self._guests.get(process)
        return guest is not None and bool(guest.domain)

    def former_domain(self, pid: int) -> str:
        """Return the domain that the client left a moment ago; empty if it did not move."""
        process = self.by_pid(pid)
        guest = self._guests.get(process) if process else None
        is_fresh = guest is not None and guest.former and self._clock() - guest.moved_ns < _MOVED_NS
        return guest.former if guest is not None and is_fresh else ""

    def _forget(self) -> None:
        oldest = self._clock() - _KNOWN_NS
        for process in list(self._gone):
            guest = self._guests[process]
            if len(self._gone) <= _MOST_GONE and max(guest.gone_ns or 0, guest.listed_ns) >= oldest:
                return
            del self._gone[process], self._guests[process]
            if self._by_pid.get(process.pid) == process:
                del self._by_pid[process.pid]


def _owner_of(party: Party) -> Owner:
    uid, _, container = party.owner
    return uid, container
