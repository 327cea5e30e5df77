"""Carry out the reactions to incidents that faults/rules/response.py decides, and note the results.

Reactions to the patched module's records have never run with a real GPU: the tests make the records up.
"""

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import structlog
import trio

from mpsd.domains.domain import Domain
from mpsd.domains.listed import is_meant
from mpsd.domains.pool import Pool
from mpsd.errors import MpsdError, NoSuchClient, NoSuchFault, NotAllowed, TooMany
from mpsd.fairness.places import Places
from mpsd.faults.incidents import SUSPECT_SECONDS, Incidents
from mpsd.faults.rules.response import STOPPED_SECONDS, Act, Drain, End, Finish, Freeze, is_known, is_stopped, plan
from mpsd.host import process_reader, processes
from mpsd.host.ownership import ANOTHERS, USER_UNREAD, is_anothers, is_ones_own, on_account_of
from mpsd.host.polling import until_ended
from mpsd.model.domain import DomainState
from mpsd.model.fault import Incident, Source
from mpsd.model.process import ProcessId
from mpsd.model.stop import Manner, Report, Target, TargetKind
from mpsd.notify import Changed
from mpsd.stop.stopper import Stopper

log = structlog.get_logger()
_MOST = 256  # remembered incidents and strangers
_PLACES = Places(most=512, per_user=128, operators=16, first=128, few=4)  # for reactions, from the decision to the end
_NO_USER = -1  # has the reactions against GPUs


class _Unread(Exception):
    """mpsd cannot read the process now: its user may hold its /proc at any moment, for any time."""


class Reactions:
    """Guards that mpsd carries out each reaction to an incident once, and that the number of reactions is bounded.

    They have places by user, also those that are tried again: a user with many culprits keeps no other user's from being ended.

    release: releases what mpsd holds for a process.  holds: whether mpsd will hold a process's GPU address space after its end.
    """

    def __init__(
        self,
        incidents: Incidents,
        pool: Pool,
        stopper: Stopper,
        publish: Callable[[str, Mapping[str, Any]], None],
        release: Callable[[ProcessId], None],
        holds: Callable[[ProcessId], bool],
    ) -> None:
        self._incidents, self._pool, self._stopper = incidents, pool, stopper
        self._publish, self._release, self._holds = publish, release, holds
        self._done: dict[int, set[Act]] = {}
        self._strangers: dict[ProcessId, int | None] = {}  # not met before their faults: their uids then
        self._unread: set[tuple[int, Act]] = set()  # that are tried again
        self._places: Counter[int | None] = Counter()  # of each user; None: of unknown users
        self._send, self._receive = trio.open_memory_channel[tuple[Incident, Act, int | None]](_PLACES.most)
        self._revised = Changed()  # any incident

    def consider(self, incident: Incident) -> None:
        """Start the reactions to a new revision of an incident.

        A process that must be frozen is frozen when this returns: what it reads from the GPU is already wrong.
        """
        done = self._done[incident.number] = self._done.pop(incident.number, set())
        for act in plan(incident, self._incidents.settings, frozenset(done), processes.is_alive):
            if not isinstance(act, Drain):
                self._note_stranger(act.process)
            if isinstance(act, Freeze) and not self._freezes(incident, act):
                continue
            share = self._share(act)
            own, total = self._places[share], self._places.total()
            if _PLACES.hindrance(own, total, is_operator=share == _NO_USER) is None:
                self._places[share] += 1
                self._send.send_nowait((incident, act, share))
                done.add(act)
            else:  # the incident's next revision, if one comes, tries again
                why = f"{own} others of its user, of {total}, come first"
                log.error("fault.not_answered", number=incident.number, act=repr(act), why=why)
        while len(self._done) > _MOST:
            del self._done[next(iter(self._done))]
        self._revised.notify()

    async def run(self) -> None:
        """Run as long as mpsd."""
        async with trio.open_nursery() as nursery:
            async for incident, act, share in self._receive:
                nursery.start_soon(self._do, incident, act, share)

    async def _do(self, incident: Incident, act: Act, share: int | None) -> None:
        """Carry out one reaction.  Its failure ends no other reaction."""
        why = ""
        try:
            match act:
                case End(process):
                    await self._end(incident, process)
                case Freeze(process):
                    self._note_frozen(incident, process)
                case Finish(process):
                    await self._finish(incident, process)
                case Drain(gpu):
                    self._drain(incident, gpu)
        except _Unread as exc:
            why = str(exc)
        except Exception:
            log.exception("faults.bug", source="reactions", number=incident.number, act=repr(act))
        key = incident.number, act
        if not why:
            self._unread.discard(key)
            self._places -= Counter([share])  # forgets those who have none
            return
        if key not in self._unread:
            self._unread.add(key)
            log.error("fault.not_ended", number=incident.number, act=repr(act), why=why, effect="it is tried again")
        await trio.sleep(process_reader.UNREAD_SECONDS)  # until the process can be read or has ended
        await self._send.send((incident, act, share))

    def _share(self, act: Act) -> int | None:
        if isinstance(act, Drain):
            return _NO_USER
        uid = self._uid(act.process)
        return None if uid is None else self._pool.ranges.share_of(uid)

    def _drain(self, incident: Incident, gpu: str) -> None:
        xids = f"Xid {', '.join(map(str, incident.xids))} (fault {incident.number})"
        why = f"after {xids if incident.xids else f'fault {incident.number}'}; `mpsctl pardon {gpu}` ends it"
        self._pool.drain_gpu(gpu, why)
        log.critical("gpu.drained", gpu=gpu, number=incident.number, xids=list(incident.xids))
        self._publish("gpu.drained", {"gpu": gpu, "number": incident.number, "xids": list(incident.xids)})
        self._incidents.note(incident, "the GPU takes no new clients: it has to be reset or looked at")

    async def _end(self, incident: Incident, process: ProcessId) -> None:
        """End the culprit after culprit_seconds, unless it ends before: it can clean up in that time."""
        pidfd = _open(process)
        if pidfd is None:
            return
        try:
            seconds = self._incidents.settings.culprit_seconds
            with trio.move_on_after(seconds):
                await until_ended(pidfd)
                return  # it has ended by itself
            if not self._is_still_to_end(incident, process):
                return
            told = await self._end_now(process, pidfd)
            self._incidents.note(incident, f"the culprit, pid {process.pid}, {told}, {seconds:g} s after it was known")
        except (OSError, MpsdError) as exc:
            self._incidents.note(incident, f"the culprit, pid {process.pid}, could not be ended: {exc}")
        finally:
            os.close(pidfd)

    async def _finish(self, incident: Incident, process: ProcessId) -> None:
        """End a frozen process that the module is stopping, without time to clean up.

        GPU work may still run when the channels are stopped.  If the process's GPU address space is destroyed first, that work
        ends every client of the domain.  So mpsd either holds the address space for a while, or ends the work first.
        """
        pidfd = _open(process)
        if pidfd is None:
            return
        try:
            self._freeze_late(incident, process)
            has_stopped = await self._has_stopped(incident, process)
            if not processes.is_alive(process):  # as when the module kills it
                return
            if has_stopped and self._holds(process):
                self._check_theirs(process)
                told = _kill_held(pidfd)
            else:
                told = await self._end_frozen(incident, process, pidfd)
            self._incidents.note(incident, f"pid {process.pid}, whose fault was contained, {told}")
        except NotAllowed as exc:
            self._incidents.note(incident, f"pid {process.pid}, whose fault was contained, could not be ended: {exc}")
        except (OSError, MpsdError) as exc:
            self._tell_left(incident, process, str(exc))
        finally:
            os.close(pidfd)

    async def _has_stopped(self, incident: Incident, process: ProcessId) -> bool:
        """Return whether the channels stopped within STOPPED_SECONDS; False if the module reports nothing."""
        if not any(seen.source is Source.KMOD for seen in incident.evidence):
            return False
        with trio.move_on_after(STOPPED_SECONDS):
            while not is_stopped(self._latest(incident), process):
                await self._revised.wait()
            return True
        return False

    async def _end_frozen(self, incident: Incident, process: ProcessId, pidfd: int) -> str:
        """End a frozen process that may still have running GPU work.

        The stopper continues the process right before it ends the work: the vendor's daemon hangs when it is asked to terminate
        a frozen client (measured).  If that fails, the process is frozen again.
        """
        if not await self._is_at_work(process):
            return self._kill(process, pidfd)
        try:
            report = await self._stop(process)
        except NoSuchClient:  # it is not a client any more
            return self._kill(process, pidfd)
        finally:
            if not is_anothers(process, self._uid(process)):
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        told = _describe(report)
        if any(not each.has_ended for each in report.stopped):
            self._tell_left(incident, process, told)
        return told

    def _tell_left(self, incident: Incident, process: ProcessId, why: str) -> None:
        log.error("fault.contained_left", number=incident.number, pid=process.pid, why=why, effect="it stays frozen")

    def _kill(self, process: ProcessId, pidfd: int) -> str:
        """Kill a process without GPU work, and release its GPU address space at once."""
        self._check_theirs(process)
        self._release(process)
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        return "was ended by SIGKILL"

    async def _stop(self, process: ProcessId) -> Report:
        self._check_theirs(process)
        target = Target(TargetKind.PID, str(process.pid), process.start_time)
        try:
            return await self._stopper.stop(target, Manner(), on_account_of(self._uid(process)))
        except TooMany as exc:
            raise _Unread(str(exc)) from None

    def _uid(self, process: ProcessId) -> int | None:
        """Return the uid of a client when it connected, or of another process when its fault was heard of; None: not known."""
        party = self._incidents.parties.find(process)
        return self._strangers.get(process) if party is None else party.uid

    def _note_stranger(self, process: ProcessId) -> None:
        if self._incidents.parties.find(process) is None and process not in self._strangers:
            self._strangers[process] = processes.sole_uid(process.pid)
        while len(self._strangers) > _MOST:
            del self._strangers[next(iter(self._strangers))]

    def _check_theirs(self, process: ProcessId) -> None:
        """Raise NotAllowed if the process runs another user's program by now: no fault of a user's ends that."""
        is_own = is_ones_own(on_account_of(self._uid(process)), process.pid)
        if not is_own and processes.is_alive(process):
            raise NotAllowed(ANOTHERS) if is_own is False else _Unread(USER_UNREAD)

    def _freezes(self, incident: Incident, act: Freeze) -> bool:
        """Freeze a process now; return False if it is left running.  If it is unread, `_freeze_late` tries again."""
        try:
            is_frozen = self._freeze(incident, act.process)
        except _Unread as exc:
            log.error("fault.not_frozen", number=incident.number, pid=act.process.pid, why=str(exc))
            return False
        if not is_frozen:
            self._done[incident.number].add(act)
        return is_frozen

    def _freeze_late(self, incident: Incident, process: ProcessId) -> None:
        """Freeze a process that was unread when it had to be frozen; it may have ended since.  Raises _Unread."""
        done, act = self._done.get(incident.number), Freeze(process)
        if done is not None and act not in done:
            is_frozen = self._freeze(incident, process)
            done.add(act)
            if is_frozen:
                self._note_frozen(incident, process)

    def _note_frozen(self, incident: Incident, process: ProcessId) -> None:
        deed = f"pid {process.pid}, whose fault was contained, was sent SIGSTOP: it reads zeros"
        self._incidents.note(incident, deed)

    def _freeze(self, incident: Incident, process: ProcessId) -> bool:
        """Send SIGSTOP now; the process may have ended.  Returns False if it is another user's by now.  Raises _Unread."""
        try:
            self._check_theirs(process)
        except NotAllowed as exc:
            log.error("fault.not_frozen", number=incident.number, pid=process.pid, why=str(exc))
            return False
        _freeze(incident, process)
        return True

    async def _end_now(self, process: ProcessId, pidfd: int) -> str:
        """End a process: through the stopper if it has GPU work, otherwise by SIGKILL.

        In a domain in FAULT a process has lost its GPU work, so that SIGKILL harms no other client.
        """
        if await self._is_at_work(process):
            return _describe(await self._stop(process))
        return self._kill(process, pidfd)

    async def _is_at_work(self, process: ProcessId) -> bool:
        """Return whether the process is connected to a healthy domain.

        Wait while a domain may be about to fault: its vendor daemon would hang if mpsd asked it to end a client then.
        """
        with trio.move_on_after(SUSPECT_SECONDS + 1.0) as waiting:
            while any(_is_suspect(domain) for domain in self._domains_of(process)):
                await self._pool.changed()
        return not waiting.cancelled_caught and bool(self._domains_of(process))

    def _domains_of(self, process: ProcessId) -> list[Domain]:
        """Return the domains that the process is connected to, except faulty ones."""
        ready = (each for each in self._pool.domains.values() if each.state is DomainState.READY)
        return [each for each in ready if process.pid in each.pids_at_work and is_meant(each.admitted, process)]

    def _is_still_to_end(self, incident: Incident, process: ProcessId) -> bool:
        """Return whether the latest revision still blames the process, and the settings end culprits."""
        latest = self._latest(incident)
        return self._incidents.settings.ends_culprit and latest.culprit == process and is_known(latest)

    def _latest(self, incident: Incident) -> Incident:
        try:
            return self._incidents.incident(incident.number)
        except NoSuchFault:
            return incident


def _open(process: ProcessId) -> int | None:
    """Open a pidfd; None if the process has ended.  Raises _Unread, also if mpsd has no free descriptor."""
    try:
        return processes.open_pidfd(process)
    except OSError as exc:
        raise _Unread(exc.strerror) from None


def _freeze(incident: Incident, process: ProcessId) -> None:
    """Send SIGSTOP now; the process may have ended.  Raises _Unread."""
    pidfd = _open(process)
    if pidfd is None:
        return
    try:
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)
        log.warning("fault.contained", number=incident.number, pid=process.pid, did="frozen: what it reads on the GPU is wrong")
    except ProcessLookupError:
        pass
    except OSError as exc:
        log.error("fault.not_frozen", number=incident.number, pid=process.pid, why=exc.strerror)
    finally:
        os.close(pidfd)


def _kill_held(pidfd: int) -> str:
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    return "was ended by SIGKILL, and its GPU address space is held for what may still run"


def _is_suspect(domain: Domain) -> bool:
    return trio.current_time() < domain.suspect_until


def _describe(report: Report) -> str:
    told = "; ".join(each.why or f"was ended by {', '.join(each.steps)}" for each in report.stopped)
    return told or "was not found"
