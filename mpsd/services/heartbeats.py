"""Whether the writers of services make progress: each step changes the marks in its forward state.

mpsd asks no process and maps no memory: it has a descriptor of the state, and reads one line from it
(native/include/mpsd_state.h).  It does so in threads, those of one user together: the line can be in swap.
"""

import math
import os
from collections.abc import Callable, Sequence

import structlog
import trio
from msgspec import Struct

from mpsd.errors import BadRequest, MpsdError
from mpsd.model.service import MemberState, Phase
from mpsd.services.coordinator import Coordinator
from mpsd.services.guard import guarded
from mpsd.services.members import ServiceRecord
from mpsd.services.rules.promotion_types import Ready, Silent
from mpsd.wire.forward_state import CONTROL_AT, CONTROL_BYTES, HEAD, Work, parse_control, parse_head

log = structlog.get_logger()
_LOOKS = 4  # in the time after which a writer is silent
_ELASTIC_SECONDS = 1.0  # between looks at an elastic service without a heartbeat
_LEAST_SECONDS = 0.005  # the cost of a round grows with the services: one user may have some hundred


class _Pulse(Struct, eq=False):
    """The last reading of one kept state; owns the descriptor.  generation: in which the state was given.

    reads: that are under way; a pulse that is over is closed after them.
    still_seconds: how long the marks have not changed while mpsd was looking: when the whole machine stops, no writer is
    silent.  heartbeat_seconds: the one that this is compared with: another one counts from its announcement.
    """

    generation: int
    state_serial: int
    descriptor: int
    marks: bytes
    looked_at: float  # trio time
    still_seconds: float = 0.0
    heartbeat_seconds: float = 0.0
    reads: int = 0
    is_over: bool = False
    is_looked_at: bool = False  # the present look has not been judged yet

    def close(self) -> None:
        self.is_over = True
        if not self.reads:
            os.close(self.descriptor)


_Line = tuple[bytes, int] | OSError  # and the time (CLOCK_MONOTONIC, in ns) just before it was read


class _Look(Struct, eq=False):
    """One look.  passed_seconds: since the one before, as far as they count."""

    record: ServiceRecord
    pulse: _Pulse
    passed_seconds: float


class Heartbeats:
    """Guards that a state is read only while its writer serves, and that a writer without progress is reported silent once."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._pulses: dict[ServiceRecord, _Pulse] = {}
        self._unread: set[ServiceRecord] = set()  # state cannot be read: logged once
        self._fetching: set[ServiceRecord] = set()  # state is being fetched: a slow one delays no other

    async def run(self) -> None:
        """Run as long as mpsd."""
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await self._round(nursery)
        finally:
            for pulse in self._pulses.values():
                pulse.close()

    async def work_of(self, records: Sequence[ServiceRecord]) -> dict[ServiceRecord, Work | None]:
        """Return how long the active of each service has worked in its term, as it reports; None: not known."""
        found: dict[ServiceRecord, Work | None] = dict.fromkeys(records)
        by_share: dict[int, list[ServiceRecord]] = {}
        for record in records:
            by_share.setdefault(self._coordinator.vault.share(record.arena), []).append(record)
        async with trio.open_nursery() as nursery:
            for some in by_share.values():
                nursery.start_soon(self._read_work, some, found)
        return found

    async def _read_work(self, records: Sequence[ServiceRecord], found: dict[ServiceRecord, Work | None]) -> None:
        known = {record: pulse for record in records if (pulse := self._known(record)) is not None}
        if not known:
            return
        for record, line in zip(known, await self._read(records[0], list(known.values())), strict=True):
            try:
                found[record] = _parse(line)[1]
            except (BadRequest, OSError) as exc:
                self._cannot_read(record, exc)

    async def _read(self, record: ServiceRecord, pulses: Sequence[_Pulse]) -> list[_Line]:
        """Return the lines of states of this service's owner."""
        for pulse in pulses:
            pulse.reads += 1
        descriptors, clock_ns = [each.descriptor for each in pulses], self._coordinator.parts.clock_ns
        try:
            return await self._coordinator.vault.read_state(record.arena, _read_lines, descriptors, clock_ns)
        finally:
            for pulse in pulses:
                pulse.reads -= 1
                if pulse.is_over:
                    pulse.close()

    async def _round(self, nursery: trio.Nursery) -> None:
        expected = [record for record in self._coordinator.records.values() if _is_expected(record)]
        self._unread &= set(expected)
        for record in self._pulses.keys() - set(expected):
            self._pulses.pop(record).close()
        now, due = trio.current_time(), math.inf
        looks: dict[int, list[_Look]] = {}  # by the share of the user
        for record in expected:
            pause = max((record.heartbeat_seconds or _ELASTIC_SECONDS * _LOOKS) / _LOOKS, _LEAST_SECONDS)
            pause = min(pause, _ELASTIC_SECONDS) if record.share is not None else pause
            pulse = self._known(record)
            if pulse is None and record not in self._fetching:
                self._fetching.add(record)
                nursery.start_soon(self._fetch, record)
            elif pulse is not None and now >= pulse.looked_at + pause and not pulse.is_looked_at:
                passed = min(now - pulse.looked_at, 2 * pause)  # the writer may have been stopped too
                pulse.looked_at, pulse.is_looked_at = now, True  # whatever follows, the next look is later
                looks.setdefault(self._coordinator.vault.share(record.arena), []).append(_Look(record, pulse, passed))
            due = min(due, now + pause if pulse is None else max(now, pulse.looked_at + pause))
        for some in looks.values():
            nursery.start_soon(self._look_at, some)
        self._absolve()
        with trio.move_on_at(max(due, now + _LEAST_SECONDS)):
            await self._coordinator.woken.wait()

    def _absolve(self) -> None:
        """Clear the silence of writers from which no heartbeat is expected any more."""
        for record in list(self._coordinator.records.values()):
            writer = record.service.writer
            member = record.service.member(writer) if writer is not None else None
            is_silent = member is not None and member.standing is MemberState.SILENT
            if writer is not None and is_silent and record.service.phase is Phase.SERVING and not record.heartbeat_seconds:
                with guarded(record):
                    self._coordinator.tell(record, Ready(writer))

    async def _look_at(self, looks: Sequence[_Look]) -> None:
        """Read the lines of one user's states, and judge each."""
        looks = [look for look in looks if not look.pulse.is_over]  # since the round
        if not looks:
            return
        lines = await self._read(looks[0].record, [look.pulse for look in looks])
        for look, line in zip(looks, lines, strict=True):
            look.pulse.is_looked_at = False
            with guarded(look.record):
                if self._known(look.record) is look.pulse:
                    self._judge(look, line)

    def _judge(self, look: _Look, line: _Line) -> None:
        record, pulse, passed = look.record, look.pulse, look.passed_seconds
        writer = record.service.writer
        member = record.service.member(writer)
        try:
            marks, _ = _parse(line)
        except (BadRequest, OSError) as exc:
            self._cannot_read(record, exc)
            return
        if writer is None or member is None:
            return
        if pulse.heartbeat_seconds != record.heartbeat_seconds:
            pulse.heartbeat_seconds, pulse.still_seconds, passed = record.heartbeat_seconds, 0.0, 0.0
        is_silent = member.standing is MemberState.SILENT
        if marks != pulse.marks:
            pulse.marks, pulse.still_seconds = marks, 0.0
            if is_silent:
                self._coordinator.tell(record, Ready(writer))
            return
        pulse.still_seconds += passed
        if not is_silent and pulse.still_seconds >= (record.heartbeat_seconds or math.inf):
            since_ns = self._coordinator.parts.clock_ns() - round(pulse.still_seconds * 1e9)
            self._coordinator.tell(record, Silent(writer), since_ns)

    def _known(self, record: ServiceRecord) -> _Pulse | None:
        """Return the reading of the state that the writer made for this term, if any."""
        known = self._pulses.get(record)
        wanted = (record.arena.state_serial, record.arena.generation)
        return known if known is not None and (known.state_serial, known.generation) == wanted else None

    async def _fetch(self, record: ServiceRecord) -> None:
        with guarded(record):
            try:
                await self._fetch_now(record)
                self._unread.discard(record)
            except (MpsdError, OSError) as exc:  # the keeper has died
                self._cannot_read(record, exc)
            finally:
                self._fetching.discard(record)

    def _cannot_read(self, record: ServiceRecord, exc: Exception) -> None:
        if record not in self._unread:
            log.warning("service.no_heartbeat", service=record.arena.name, why=str(exc))
        self._unread.add(record)

    async def _fetch_now(self, record: ServiceRecord) -> None:
        arena = record.arena
        if not arena.state_serial:
            return
        descriptor = await self._coordinator.vault.state_descriptor(record.arena.id)
        if descriptor < 0:
            return
        try:
            parse_head(await self._coordinator.vault.read_state(arena, os.pread, descriptor, HEAD.size, 0))
        except (BadRequest, OSError):
            os.close(descriptor)
            raise
        if arena.state_generation != record.arena.generation or not _is_expected(record):
            os.close(descriptor)
            return
        if (last := self._pulses.pop(record, None)) is not None:
            last.close()
        self._pulses[record] = _Pulse(arena.state_generation, arena.state_serial, descriptor, b"", trio.current_time())


def _parse(line: _Line) -> tuple[bytes, Work | None]:
    """Return the marks, and the work up to the time of the read.  Raise BadRequest or OSError."""
    if isinstance(line, OSError):
        raise line
    return parse_control(*line)


def _read_lines(descriptors: Sequence[int], clock_ns: Callable[[], int]) -> list[_Line]:
    """Return the control line of each state, or why it cannot be read.  Blocks while a line comes from swap."""
    found: list[_Line] = []
    for each in descriptors:
        now_ns = clock_ns()
        try:
            found.append((os.pread(each, CONTROL_BYTES, CONTROL_AT), now_ns))
        except OSError as exc:
            found.append(exc)
    return found


def _is_expected(record: ServiceRecord) -> bool:
    is_served = record.service.phase in (Phase.SERVING, Phase.YIELDING) and not record.is_removed
    return is_served and (record.heartbeat_seconds > 0 or record.share is not None)
