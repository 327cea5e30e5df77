"""The children of a starter: start them with their reservations, end them, and recognize them among the members."""

import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from mpsd_client import Lease, Refused, values

from mpsctl.starter import ending, reservations
from mpsctl.starter.children import MISSED_SECONDS, Child, Place, free_number
from mpsctl.starter.groups import groups, share_out
from mpsctl.starter.mpsd_connection import MpsdConnection
from mpsctl.starter.plan import Make
from mpsctl.starter.reports import Reporter, reservation
from mpsctl.starter.room import lacking


@dataclass(frozen=True, slots=True)
class Ended:
    """A child has ended.  status: as subprocess has it."""

    child: Child
    status: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """An attempt to end a child is over.  trouble: what did not work; empty if all did."""

    child: Child
    trouble: str


@dataclass(frozen=True, slots=True)
class Muted:
    """The output of a child cannot be written."""

    child: Child
    why: str


class ChildGroup:
    """Keeps each child in `children`, and its lease alive, from its start until its end was processed."""

    def __init__(
        self,
        connection: MpsdConnection,
        place: Place,
        manner: ending.Manner,
        reporter: Reporter,
        put: Callable[[Ended | Stopped | Muted], None],
    ) -> None:
        """put: takes the events of children; called from other threads."""
        self._mpsd, self._place, self._manner, self._reporter, self._put = connection, place, manner, reporter, put
        self._renewed_at = time.monotonic()
        self.children: dict[int, Child] = {}

    def begin(self, make: Make, gpus: Sequence[str], *, is_enforced: bool, may_wait: bool) -> None:
        """Start a child, with a lease if it is to have a reservation that mpsd enforces.  Raises Away, Refused, OSError."""
        number, lease = free_number(self.children), None
        if is_enforced and reservations.is_wanted(make):
            lease = reservations.reserve(self._mpsd, f"{self._place.name}-{number}", make, gpus, may_wait=may_wait)
        try:
            child = self._place.begin(
                number,
                make,
                lease,
                lambda child, status: self._put(Ended(child, status)),
                lambda child, why: self._put(Muted(child, why)),
            )
        except OSError:
            if lease:
                reservations.release(self._mpsd, lease.id)
            raise
        self.children[number] = child
        where = f" on {make.gpu}" if make.gpu else ""
        self._reporter.report("started", f"member {number} has started{where}, pid {child.pid}{_with(lease, make)}",
                          member=number, pid=child.pid, lease_id=child.lease_id, gpu=make.gpu or None)  # fmt: skip

    def why_not(self, make: Make, gpus: Sequence[str]) -> str:
        """Return why mpsd can never grant the reservation; empty if it can in time.  Raises Away."""
        return self._why_refused(make, gpus, may_wait=True)

    def why_no_room(self, number: int, make: Make, gpus: Sequence[str]) -> str:
        """Return why mpsd could not grant the reservation now even if child `number` had ended; empty if it could.  Raises
        Away."""
        more = lacking(self.children[number].make, make)
        return "" if more is None else self._why_refused(more, gpus, may_wait=False)

    def _why_refused(self, make: Make, gpus: Sequence[str], may_wait: bool) -> str:
        try:
            lease = reservations.reserve(self._mpsd, self._place.name, make, gpus, may_wait=may_wait)
        except Refused as exc:
            return exc.message
        reservations.release(self._mpsd, lease.id)
        return ""

    def miss(self, gpu: str, *, has_replica: bool) -> None:
        """Report each child that has run for MISSED_SECONDS without joining, once: its program may not support services, or
        no replicas.  gpu: of the members; empty: any."""
        for child in self.children.values():
            is_replica = child.make.gpu != gpu
            if child.is_stopping or (is_replica and has_replica) or not child.miss():
                continue
            if is_replica:
                late = "has not become the replica after {:.0f} s: does its program make a Service with replica_lag?"
            else:
                late = "has not joined after {:.0f} s: does its program make a Service and open it?"
            self._tell_of(child, "not_joined", late.format(MISSED_SECONDS))

    def stop(self, number: int, why: str, *, yields: bool = False) -> None:
        """Begin to end a child.  A Stopped follows, and an Ended if the child has ended; neither without a thread for this
        process: the next call tries again.  yields: an active first hands over, so that its step is not lost."""
        child = self.children[number]
        pid = child.member.pid if yields and child.member is not None and child.member.is_writer else None
        end = lambda: self._put(Stopped(child, self._end(child, pid)))  # noqa: E731
        try:
            threading.Thread(target=end, daemon=True).start()
        except RuntimeError as exc:
            self._tell_of(child, "trouble", f"cannot be ended now: {exc}", why=str(exc))
            return
        child.is_stopping = True
        self._tell_of(child, "stopping", f"is ended: {why}", why=why)

    def _end(self, child: Child, active_pid: int | None) -> str:
        """End a child; this takes seconds.  active_pid: it is the active, which yields and leaves first.  Return what went
        wrong; empty if nothing did."""
        lost = ""
        if active_pid is not None:
            if why := self._mpsd.hand_over(self._place.name, from_pid=active_pid):
                lost = f"has not yielded, and may lose a step: {why}"
            else:
                child.has_ended.wait(self._manner.drain_seconds)  # mpsd has ordered it to leave
        return "; ".join(filter(None, (lost, ending.end(child, self._mpsd.connect, self._manner))))

    def kill(self) -> None:
        for child in self.children.values():
            child.is_left = not ending.send(child, signal.SIGKILL)

    def take_end(self, of: Ended) -> float:
        """Remove an ended child and release its lease.  Return its lifetime in seconds."""
        child, lived = of.child, time.monotonic() - of.child.began_at
        del self.children[child.number]
        if child.lease_id is not None:
            reservations.release(self._mpsd, child.lease_id)
        how = f"with status {of.status}" if of.status >= 0 else f"by signal {-of.status}"
        self._tell_of(child, "ended", f"has ended {how} after {lived:.3g} s", status=of.status, seconds=lived)
        return lived

    def take_stop(self, of: Stopped) -> None:
        if of.trouble:
            self._tell_of(of.child, "trouble", of.trouble, why=of.trouble)
        of.child.is_left = bool(of.trouble) and not of.child.has_ended.is_set()

    def take_silence(self, of: Muted) -> None:
        path = self._place.log(of.child.number)
        text = f"continues, but ITS OUTPUT IS LOST: {path} cannot be written: {of.why}"
        self._tell_of(of.child, "output_lost", text, path=path, why=of.why)

    def renew(self) -> None:
        """Renew all leases if they are due."""
        now = time.monotonic()
        if now >= self._renewed_at + reservations.RENEW_SECONDS:
            self._renewed_at = now
            for child in self.children.values():
                if child.lease_id is not None:
                    reservations.renew(self._mpsd, child.lease_id)

    def see(self, members: Iterable[values.Member], *, is_same_namespace: bool) -> tuple[values.Member, ...]:
        """Record which member each child is.  Return the members that are not children of this starter."""
        found = groups(child.pid for child in self.children.values())
        for child in self.children.values():
            child.look(found[child.pid])
        known = {number: child.processes for number, child in self.children.items()}
        own, others = share_out(members, known, is_same_namespace=is_same_namespace)
        for number, child in self.children.items():
            child.see(own.get(number))
        return others

    def _tell_of(self, child: Child, event: str, text: str, **facts: object) -> None:
        text = f"member {child.number} (pid {child.pid}) {text}"
        self._reporter.report(event, text, member=child.number, pid=child.pid, **facts)


def _with(lease: Lease | None, make: Make) -> str:
    """Return the reservation as text, and whether the child waits for it; empty without a lease."""
    if lease is None:
        return ""
    queued = ", for which it waits in the queue" if lease.state == "queued" else ""
    return f", with {reservation(lease.sm_percent, make.memory_bytes)} by lease {lease.id}{queued}"
