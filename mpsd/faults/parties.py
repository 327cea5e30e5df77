"""Who is, and was until a moment ago, a client of each domain: what `Observation.present` is filled with.

A client that has just gone may have done it, so it counts for a while; not beyond fresh servers, which it never used.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mpsd.fault import Party
from mpsd.model import ProcessId

_KNOWN_NS = 60 * 1_000_000_000  # a core dump comes seconds after its process has gone
_MOVED_NS = 2 * 1_000_000_000  # Xids of one fault come for so long
_MOST_GONE = 4096


@dataclass(slots=True)
class _Guest:
    party: Party
    domain: str
    gone_ns: int | None = None
    counts: bool = True  # it was there since its domain's servers were renewed
    former: str = ""  # where it was placed before, without having got a context there
    moved_ns: int = 0


class Parties:
    """Guards that who was met stays known for a minute after its end, and that those who have gone are bounded.

    describe: a client as people know it, asked while it lives.  clock: nanoseconds of CLOCK_MONOTONIC.
    """

    def __init__(self, describe: Callable[[ProcessId], Party], clock: Callable[[], int]) -> None:
        self._describe = describe
        self._clock = clock
        self._guests: dict[ProcessId, _Guest] = {}
        self._by_pid: dict[int, ProcessId] = {}  # the one that was met last
        self._gone: dict[ProcessId, None] = {}  # in the order in which they went

    def meet(self, process: ProcessId, domain: str) -> bool:
        """It is placed there.  True the first time."""
        guest = self._guests.get(process)
        if guest is None:
            self._guests[process] = _Guest(self._describe(process), domain)
            self._by_pid[process.pid] = process
            return True
        if guest.domain != domain:
            guest.former, guest.moved_ns = guest.domain, self._clock()
            guest.domain, guest.counts = domain, True
        return False

    def leave(self, process: ProcessId) -> str | None:
        """It has ended; the domain it was in.  None for one that was never met, or went before."""
        guest = self._guests.get(process)
        if guest is None or guest.gone_ns is not None:
            return None
        guest.gone_ns = self._clock()
        self._gone[process] = None
        self._forget()
        return guest.domain

    def renew(self, domain: str) -> None:
        """The domain has fresh servers: who went before has not used them."""
        for process in self._gone:
            if self._guests[process].domain == domain:
                self._guests[process].counts = False

    def present(self, domain: str, now_there: Iterable[ProcessId], seconds: float) -> tuple[ProcessId, ...]:
        """Those who are there, and those who went from there within so many seconds."""
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
        """It was met, and has ended."""
        guest = self._guests.get(process)
        return guest is not None and guest.gone_ns is not None

    def of_user(self, uid: int) -> Iterable[ProcessId]:
        """Those who are there, and those who went within the last minute."""
        return [process for process, guest in self._guests.items() if guest.party.uid == uid]

    def lived(self, process: ProcessId, at_ns: int) -> bool:
        """It was met, and had not ended by then."""
        guest = self._guests.get(process)
        return guest is not None and (guest.gone_ns is None or guest.gone_ns >= at_ns)

    def by_pid(self, pid: int) -> ProcessId | None:
        """The one with this pid that is there, else the one that went last."""
        return self._by_pid.get(pid)

    def domain_of(self, process: ProcessId) -> str:
        """Where it is, or was when it ended; empty: never met, or that domain has fresh servers by now."""
        guest = self._guests.get(process)
        return guest.domain if guest is not None and guest.counts else ""

    def former_domain(self, pid: int) -> str:
        """Where it was until a moment ago; empty: where it is now."""
        process = self.by_pid(pid)
        guest = self._guests.get(process) if process else None
        is_fresh = guest is not None and guest.former and self._clock() - guest.moved_ns < _MOVED_NS
        return guest.former if guest is not None and is_fresh else ""

    def _forget(self) -> None:
        oldest = self._clock() - _KNOWN_NS
        for process in list(self._gone):
            if len(self._gone) <= _MOST_GONE and (self._guests[process].gone_ns or 0) >= oldest:
                return
            del self._gone[process], self._guests[process]
            if self._by_pid.get(process.pid) == process:
                del self._by_pid[process.pid]
