"""Whether the writers of services make progress: each step changes the marks in its forward state.

mpsd asks no process and maps no memory: it has a descriptor of the state, and reads one line from it
(native/include/mpsd_state.h).
"""

import math
import os

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
                os.close(pulse.descriptor)

    def work_of(self, record: ServiceRecord) -> Work | None:
        """Return how long the active has worked in its term, as it reports; None: not known."""
        pulse = self._known(record)
        if pulse is None:
            return None
        try:
            return self._read(pulse)[1]
        except (BadRequest, OSError) as exc:
            self._cannot_read(record, exc)
            return None

    def _read(self, pulse: _Pulse) -> tuple[bytes, Work | None]:
        """Return the marks, and the work up to this moment.  Raise BadRequest or OSError."""
        line = os.pread(pulse.descriptor, CONTROL_BYTES, CONTROL_AT)
        return parse_control(line, self._coordinator.parts.clock_ns())

    async def _round(self, nursery: trio.Nursery) -> None:
        expected = [record for record in self._coordinator.records.values() if _is_expected(record)]
        self._unread &= set(expected)
        for record in self._pulses.keys() - set(expected):
            os.close(self._pulses.pop(record).descriptor)
        now, due = trio.current_time(), math.inf
        for record in expected:
            pause = max((record.heartbeat_seconds or _ELASTIC_SECONDS * _LOOKS) / _LOOKS, _LEAST_SECONDS)
            pause = min(pause, _ELASTIC_SECONDS) if record.share is not None else pause
            pulse = self._known(record)
            if pulse is None and record not in self._fetching:
                self._fetching.add(record)
                nursery.start_soon(self._fetch, record)
            elif pulse is not None and now >= pulse.looked_at + pause:
                with guarded(record):
                    self._look(record, pulse, 2 * pause)
            due = min(due, now + pause if pulse is None else max(now, pulse.looked_at + pause))
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

    def _look(self, record: ServiceRecord, pulse: _Pulse, most_seconds: float) -> None:
        """Read the marks.

        most_seconds: the largest time since the last look that counts, as the writer may have been stopped too.
        """
        writer = record.service.writer
        member = record.service.member(writer)
        now = trio.current_time()
        passed, pulse.looked_at = min(now - pulse.looked_at, most_seconds), now  # whatever follows, the next look is later
        try:
            marks, _ = self._read(pulse)
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
            parse_head(os.pread(descriptor, HEAD.size, 0))
        except (BadRequest, OSError):
            os.close(descriptor)
            raise
        if arena.state_generation != record.arena.generation or not _is_expected(record):
            os.close(descriptor)
            return
        if (last := self._pulses.pop(record, None)) is not None:
            os.close(last.descriptor)
        self._pulses[record] = _Pulse(arena.state_generation, arena.state_serial, descriptor, b"", trio.current_time())


def _is_expected(record: ServiceRecord) -> bool:
    is_served = record.service.phase in (Phase.SERVING, Phase.YIELDING) and not record.is_removed
    return is_served and (record.heartbeat_seconds > 0 or record.share is not None)
