"""Whether those who serve get on: the marks of their forward states (native/include/mpsd_state.h) change with each step.

Nobody is asked and nothing is mapped: mpsd has a descriptor of the state, and reads sixteen bytes of it.
"""

import math
import os
from dataclasses import dataclass

import structlog
import trio

from mpsd.errors import BadRequest, MpsdError
from mpsd.failover.desk import Desk
from mpsd.failover.seats import Entry
from mpsd.policy.succession_words import Phase, Ready, Silent, Standing
from mpsd.wire.state import CONTROL_AT, HEAD, parse_head

log = structlog.get_logger()
_MARKS_BYTES = 16
_LOOKS = 4  # in the time after which it is silent
_LEAST_SECONDS = 0.001


@dataclass(slots=True, eq=False)
class _Pulse:
    """Owns the descriptor of one kept state.  generation: of the term that it is of.  changed_at: trio time."""

    generation: int
    state_serial: int
    descriptor: int
    marks: bytes
    changed_at: float


class Heartbeats:
    """Guards that a state is read only while its writer serves, and that who stands still is told to be silent once."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._pulses: dict[Entry, _Pulse] = {}
        self._unread: set[Entry] = set()  # whose state cannot be read: that is said once

    async def run(self) -> None:
        """Lives as long as mpsd."""
        try:
            while True:
                expected = [entry for entry in self._desk.entries.values() if _is_expected(entry)]
                self._unread &= set(expected)
                for entry in self._pulses.keys() - set(expected):
                    os.close(self._pulses.pop(entry).descriptor)
                for entry in expected:
                    await self._look(entry)
                self._absolve()
                pause = min((entry.heartbeat_seconds / _LOOKS for entry in expected), default=math.inf)
                with trio.move_on_after(max(pause, _LEAST_SECONDS)):
                    await self._desk.woken()
        finally:
            for pulse in self._pulses.values():
                os.close(pulse.descriptor)

    def _absolve(self) -> None:
        """Of whom no heartbeat is expected any more, nobody can know that they are silent."""
        for entry in list(self._desk.entries.values()):
            writer = entry.service.writer
            member = entry.service.member(writer) if writer is not None else None
            is_silent = member is not None and member.standing is Standing.SILENT
            if writer is not None and is_silent and entry.service.phase is Phase.SERVING and not entry.heartbeat_seconds:
                self._desk.tell(entry, Ready(writer))

    async def _look(self, entry: Entry) -> None:
        try:
            pulse = await self._pulse(entry)
            marks = b"" if pulse is None else os.pread(pulse.descriptor, _MARKS_BYTES, CONTROL_AT)
        except (MpsdError, OSError) as exc:  # the keeper has died
            if entry not in self._unread:
                log.warning("service.no_heartbeat", service=entry.arena.name, why=str(exc))
            self._unread.add(entry)
            return
        self._unread.discard(entry)
        writer = entry.service.writer
        member = entry.service.member(writer)
        if pulse is None or writer is None or member is None:
            return
        now, is_silent = trio.current_time(), member.standing is Standing.SILENT
        if marks != pulse.marks:
            pulse.marks, pulse.changed_at = marks, now
            if is_silent:
                self._desk.tell(entry, Ready(writer))
        elif not is_silent and now - pulse.changed_at >= entry.heartbeat_seconds:
            since_ns = self._desk.around.clock_ns() - round((now - pulse.changed_at) * 1e9)
            self._desk.tell(entry, Silent(writer), since_ns)

    async def _pulse(self, entry: Entry) -> _Pulse | None:
        """Of the state that its writer made for this term; None: it has made none yet."""
        serial, term = entry.arena.state_serial, entry.arena.generation
        known = self._pulses.get(entry)
        if known is not None and (known.state_serial, known.generation) == (serial, term):
            return known
        if not serial:
            return None
        descriptor = await self._desk.vault.state_descriptor(entry.arena.id)
        if descriptor < 0:
            return None
        try:
            generation = parse_head(os.pread(descriptor, HEAD.size, 0)).generation
        except (BadRequest, OSError):
            os.close(descriptor)
            raise
        if generation != entry.arena.generation or not _is_expected(entry):
            os.close(descriptor)
            return None
        if (last := self._pulses.pop(entry, None)) is not None:
            os.close(last.descriptor)
        self._pulses[entry] = made = _Pulse(generation, serial, descriptor, b"", trio.current_time())
        return made


def _is_expected(entry: Entry) -> bool:
    is_served = entry.service.phase in (Phase.SERVING, Phase.YIELDING) and not entry.is_removed
    return is_served and entry.heartbeat_seconds > 0
