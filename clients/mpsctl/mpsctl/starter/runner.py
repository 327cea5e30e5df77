"""The starter: its main thread processes events one by one, asks the planner what to do, and does it.

    follower   follows the state of the service       one thread, for ever
    children   waits for the end of each child, and ends children, in threads of their own
    handover   requests a handover, in a thread of its own

The other threads only put events into one queue.  While mpsd is away, children go on and no child is started.
"""

import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from queue import Empty, SimpleQueue
from typing import Any

from mpsd_client import ErrorCode, Refused, calls, values

from mpsctl.__main__ import DONE, REFUSED
from mpsctl.session import Session
from mpsctl.starter import leftovers, reservations
from mpsctl.starter.child_group import ChildGroup, Ended, Muted, Stopped
from mpsctl.starter.children import Child, Place
from mpsctl.starter.follower import Gone, Here, Seen, Stopping, follow
from mpsctl.starter.mpsd_connection import Away, MpsdConnection
from mpsctl.starter.plan import (
    SERVING,
    Deed,
    HandOver,
    Make,
    MakeWay,
    Other,
    Situation,
    Start,
    Stop,
    is_one_ending,
    is_surge,
    plan,
)
from mpsctl.starter.reports import Reporter, reservation, stopping
from mpsctl.starter.restarts import MOST_EARLY, ended, fresh, has_done_its_work
from mpsctl.starter.room import Room
from mpsctl.starter.settings import Given, Settings, Task, changes, of_service
from mpsctl.starter.signals import heard

_TICK_SECONDS = 1.0  # how often the main thread checks for due work without an event
_SETTLE_SECONDS = 5.0  # after mpsd was away: time for the members to join again
_AGAIN_SECONDS = 10.0  # from a refused handover, or lease, to the next attempt


@dataclass(frozen=True, slots=True)
class _HandedOver:
    """The result of a handover.  why: the reason of a failure; empty after a success."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class _Signal:
    number: int


class Starter:
    """Runs the members of a service.  It starts and ends none on knowledge from before mpsd went away."""

    def __init__(self, session: Session, place: Place, task: Task) -> None:
        self._mpsd, self._task = MpsdConnection(session), task
        self._reporter, self._name = Reporter(session.out, place.name), place.name
        self._news: SimpleQueue[Any] = SimpleQueue()
        self._children = ChildGroup(self._mpsd, place, task.manner, self._reporter, self._news.put)
        self._given, self._settings = task.given, task.given.of(Settings())
        self._changed_at = 0  # the revision at which this starter changed the settings; older revisions are ignored
        self._here: Here | None = None
        self._stopping: Stopping | None = None
        self._service: values.Service | None = None
        self._others: tuple[values.Member, ...] = ()
        self._knows_service = self._is_unenforced = False
        self._restarts, self._round = fresh(), 0  # of members (False) and of replicas (True)
        self._wanted, self._room = Make(), Room()  # a change of the settings resets what mpsd refused
        self._made = Make()  # how the last member was started
        self._impossible: Make | None = None  # mpsd can never grant a member this reservation
        self._settled_at = self._free_at = 0.0  # when members have joined again; when a handover may be requested
        self._status: int | None = None  # the exit status, once the starter is to end
        self._is_done = False  # the active has finished its work

    def run(self) -> int:
        """Run until a signal ends the starter or nothing is left to do.  Return the exit status."""
        threading.Thread(target=follow, args=(self._name, self._mpsd.connect, self._news.put), daemon=True).start()
        with heard(lambda number: self._news.put(_Signal(number))):
            while (status := self._is_over()) is None:
                for deed in plan(self._situation()):
                    self._do(deed)
                if self._here is not None:
                    self._children.renew()
                    has_replica = self._service is not None and self._service.replica is not None
                    self._children.miss(self._home(), has_replica=has_replica)
                self._listen()
            if self._is_done and status == DONE:
                leftovers.settle(self._mpsd, self._name, self._reporter, is_removed=self._task.removes_arena)
        return status

    # -- what happened ---------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Wait for an event, _TICK_SECONDS at most, then process all queued ones.  Of consecutive views of the service process
        only the last: a starter that is slower than they arrive would act on stale ones."""
        news: list[object] = []
        try:
            news.append(self._news.get(timeout=_TICK_SECONDS))
            while True:
                news.append(self._news.get_nowait())
        except Empty:
            pass
        for each, following in zip_longest(news, news[1:]):
            if not (isinstance(each, Seen) and isinstance(following, Seen)):
                self._take(each)

    def _take(self, news: object) -> None:
        match news:
            case Here():
                self._take_here(news)
            case Gone(why):
                if self._here is not None:
                    then = "the members continue" if self._children.children else "members are started when it is back"
                    self._reporter.report("mpsd_gone", f"mpsd is away, {then}: {why}", why=why)
                self._here = None
            case Stopping():
                self._take_stopping(news)
            case Seen(service):
                self._see(service)
            case Ended():
                self._take_end(news)
            case Stopped():
                self._children.take_stop(news)
            case Muted():
                self._children.take_silence(news)
            case _HandedOver(why):
                self._free_at = time.monotonic() + _AGAIN_SECONDS if why else 0.0
                if why:
                    self._reporter.report("handover_failed", f"no handover: {why}", why=why)
            case _Signal(number):
                self._take_signal(number)

    def _take_here(self, here: Here) -> None:
        if self._knows_service and self._here is None:
            self._reporter.report("mpsd_back", "mpsd is back")
            self._settled_at = time.monotonic() + _SETTLE_SECONDS
        self._here, self._stopping, self._knows_service, self._changed_at = here, None, False, 0
        self._given = replace(self._given, until_done=self._task.until_done)  # a restarted mpsd has lost it

    def _take_stopping(self, of: Stopping) -> None:
        """Record that mpsd is stopping.  If mpsd will end members by force, the planner ends them before that, so that they
        lose no work; otherwise people decide when the service ends."""
        self._stopping = of
        self._reporter.report("mpsd_stopping", stopping(of.ends_at, time.time()), ends_at=of.ends_at)

    def _see(self, service: values.Service | None) -> None:
        before, self._service, self._knows_service = self._service, service, True
        if not self._is_gathering(service):
            self._reporter.report_differences(before, service)
        if service is None:
            if before is not None:  # the next arena of this name gets the settings of this one
                had = before.settings
                self._given = Given(had.standbys, had.sm_percent, had.memory_bytes, self._task.until_done, had.elastic)
            self._others = self._children.see((), is_same_namespace=True)
            return
        self._take_settings(service)
        is_same = self._here is None or self._here.is_same_namespace
        self._others = self._children.see(service.members, is_same_namespace=is_same)

    def _is_gathering(self, service: values.Service | None) -> bool:
        """Return whether mpsd has just started and the running members have yet to join: the starter then does not report the
        service as unserved."""
        return (service is None or service.phase == "idle") and time.monotonic() < self._settled_at

    def _take_settings(self, service: values.Service) -> None:
        if wanted := changes(self._given, service.settings):
            try:
                service = self._mpsd.ask(calls.service_change(self._name, **wanted))
            except Away:
                return
            except Refused as exc:
                self._reporter.report("refused", f"the service keeps its settings: {exc.message}", why=exc.message)
            self._changed_at = service.revision
        self._given = Given()
        found = of_service(service)
        if service.revision >= self._changed_at and found != self._settings:
            self._settings, self._restarts = found, fresh()
            each = reservation(found.sm_percent, found.memory_bytes)
            members = f"{found.standbys + 1} members" if found.standbys else "1 member"
            text = f"wanted now: {members}" + (f", each with {each}" if each else "")
            self._reporter.report("wanted", text, members=found.standbys + 1, sm_percent=found.sm_percent,
                              memory_bytes=found.memory_bytes)  # fmt: skip

    def _take_end(self, of: Ended) -> None:
        lived = self._children.take_end(of)
        self._room.free(time.monotonic())
        if of.child.is_stopping or self._status is not None:
            return
        if self._task.until_done and of.status == 0 and self._has_done_its_work(of.child):
            self._is_done = True
            self._end("the active has done its work")
        elif self._stopping is None:
            self._count(lived, was_ready=of.child.was_ready, is_replica=of.child.make.gpu != self._home())

    def _has_done_its_work(self, child: Child) -> bool:
        """Return whether the child served and did not hand over.  Ask mpsd, since the child may have served and ended before
        the last view of the service."""
        try:
            found: values.Service | None = self._mpsd.ask(calls.service_get(self._name))
        except (Away, Refused):
            found = self._service
        return has_done_its_work(found, {child.pid, child.member_pid}, has_served=child.has_served)

    def _count(self, lived_seconds: float, *, was_ready: bool, is_replica: bool) -> None:
        """Count a child that ended unasked or could not be started."""
        before = self._restarts[is_replica]
        self._restarts[is_replica] = now = ended(before, lived_seconds, was_ready, time.monotonic())
        if now.has_given_up and not before.has_given_up:
            what = "replica" if is_replica else "member"
            text = f"{MOST_EARLY} {what}s in a row have ended early: no {what} is started until a setting is changed, or SIGHUP"
            self._reporter.report("given_up", text, is_replica=is_replica)

    def _take_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            self._round, self._restarts = self._round + 1, fresh()
            self._reporter.report("restart", "SIGHUP: all members are restarted, one after the other")
        elif self._status is None:
            self._end(signal.Signals(number).name)
        else:
            self._status = REFUSED
            self._reporter.report("kill", "second signal: the members are killed")
            self._children.kill()

    def _end(self, why: str) -> None:
        self._status = DONE
        self._reporter.report("ending", f"{why}: the members are ended, the active last", why=why)
        if self._others:
            text = f"{len(self._others)} members that were not started here stay"
            self._reporter.report("others", text, members=len(self._others))

    def _is_over(self) -> int | None:
        children = self._children.children.values()
        if self._status is not None and all(child.is_left for child in children):
            return REFUSED if children else self._status
        if self._restarts[False].has_given_up and not children:
            return DONE if self._service is not None and self._service.phase == SERVING else REFUSED
        return None

    # -- what is done ----------------------------------------------------------------------------------------------------

    def _situation(self) -> Situation:
        now, restarts = time.monotonic(), self._restarts[False]
        is_known = self._here is not None and self._knows_service and now >= self._settled_at
        home = self._home()
        wanted = Make(self._settings.sm_percent, self._settings.memory_bytes, self._round, home)
        if wanted != self._wanted:
            self._wanted, self._room = wanted, Room(freed_at=self._room.freed_at)
        self._room.look(now)
        own = tuple(child.own() for child in self._children.children.values())
        stays = own and (wanted == self._impossible or not self._room.may_make_way)
        is_ending = self._status is not None or (self._stopping is not None and self._stopping.ends_at is not None)
        may_start = is_known and self._stopping is None and now >= restarts.not_before and not restarts.has_given_up
        return Situation(
            self._settings.standbys,
            replace(self._made, gpu=home) if stays else wanted,
            own,
            tuple(Other(each.standing, each.is_writer, each.since_at) for each in self._others),
            self._service.phase if self._service else "",
            is_ending,
            may_start,
            self._room.may_surge,
            self._room.may_make_way,
            not is_known or now < self._free_at,
            *self._replica_wanted(wanted, now, is_known=is_known and self._stopping is None),
        )

    def _home(self) -> str:
        return self._task.home(self._service)

    def _replica_wanted(self, member: Make, now: float, *, is_known: bool) -> tuple[Make | None, bool]:
        """Return the wanted replica, and whether to start one now."""
        if not member.gpu:
            return None, False
        restarts = self._restarts[True]
        may_start = is_known and now >= restarts.not_before and not restarts.has_given_up
        is_there = self._service is not None and self._service.replica is not None  # perhaps another starter's
        return replace(member, gpu=self._task.away(member.gpu)), may_start and not is_there

    def _do(self, deed: Deed) -> None:
        match deed:
            case Start(is_replica):
                self._start(is_replica)
            case Stop(number, why):
                self._children.stop(number, why)
            case MakeWay(number):
                self._make_way(number)
            case HandOver(number):
                self._hand_over(number)

    def _start(self, is_replica: bool) -> None:
        situation = self._situation()
        make = situation.replica if is_replica else situation.make
        if make is None or not (situation.may_start_replica if is_replica else situation.may_start):
            return  # the start before this one failed
        is_enforced = self._here is not None and self._here.is_privileged
        if not is_enforced and not self._is_unenforced and reservations.is_wanted(make):
            self._is_unenforced = True
            self._reporter.report("not_enforced", "mpsd is not root: leases are not enforced, NOTHING LIMITS these members")
        try:
            may_wait = is_replica or not is_surge(situation)
            self._children.begin(make, self._gpus(make), is_enforced=is_enforced, may_wait=may_wait)
            self._made = self._made if is_replica else make
        except Away:
            self._settled_at = time.monotonic() + _TICK_SECONDS
        except Refused as exc:
            self._take_refusal(situation, exc, is_replica)
        except OSError as exc:
            self._reporter.report("trouble", f"a member cannot be started: {exc}", why=str(exc))
            self._count(0.0, was_ready=False, is_replica=is_replica)

    def _gpus(self, make: Make) -> Sequence[str]:
        return (make.gpu,) if make.gpu else self._task.gpus or ((self._service.gpu,) if self._service else ())

    def _take_refusal(self, situation: Situation, exc: Refused, is_replica: bool) -> None:
        if is_surge(situation) and not is_replica:
            try:
                why = self._children.why_not(situation.make, self._gpus(situation.make))
            except Away:
                return
            if why:
                self._impossible = situation.make
                self._reporter.report("impossible", f"no member can get that, so all stay as they are: {why}", why=why)
                return
            self._room.refuse(time.monotonic(), exc.message)
            if is_one_ending(situation):
                self._tell_of_room("waits_for_room", "no room for one more until another one has ended", exc.message)
        else:
            self._reporter.report("trouble", f"no lease for a member: {exc.message}", why=exc.message)
            if exc.code == ErrorCode.UNUSABLE_PATH:  # mpsd's disk is full, which is no fault of the member
                again = time.monotonic() + _AGAIN_SECONDS
                self._restarts[is_replica] = replace(self._restarts[is_replica], not_before=again)
            else:
                self._count(0.0, was_ready=False, is_replica=is_replica)

    def _make_way(self, number: int) -> None:
        """Stop the member if its end makes room for its successor."""
        try:
            why = self._children.why_no_room(number, self._wanted, self._gpus(self._wanted))
        except Away:
            return
        if why:
            self._room.refuse_way(time.monotonic())
            text = f"no room for one more, nor for a successor of member {number}: all stay as they are until then"
            self._tell_of_room("waits_for_room", text, why)
        else:
            why = self._room.why
            text = f"no room for one more, so member {number} is ended first: {why}"
            self._reporter.report("no_room", text, member=number, why=why)
            self._children.stop(number, "its successor has no room as long as it runs", yields=True)

    def _tell_of_room(self, event: str, text: str, why: str) -> None:
        if self._room.is_news(why):
            self._reporter.report(event, f"{text}: {why}", why=why)

    def _hand_over(self, number: int) -> None:
        member = self._children.children[number].member
        if member is not None:
            self._free_at = float("inf")
            text = f"member {number} (pid {member.pid}) is to take over"
            self._reporter.report("handover", text, member=number, pid=member.pid)
            ask = lambda: self._news.put(_HandedOver(self._mpsd.hand_over(self._name, to_pid=member.pid)))  # noqa: E731
            try:
                threading.Thread(target=ask, daemon=True).start()
            except RuntimeError as exc:  # no thread is left for this process
                self._news.put(_HandedOver(str(exc)))
