"""A handover, from the end of one writer's term to the start of the next: its cause and its duration."""


from msgspec import Struct

from mpsd.model.process import ProcessId
from mpsd.model.service import Cause, Promotion


class HandoverRecord(Struct):
    """The times of a handover; nanoseconds of CLOCK_MONOTONIC, None: not known, or not yet."""

    cause: Cause
    writer: ProcessId | None
    happened_ns: int | None
    decided_ns: int
    fenced_ns: int | None = None
    begun_ns: int | None = None

    def over(self, at: float, to: ProcessId, generation: int, now_ns: int) -> Promotion:
        had_writer = self.writer is not None
        return Promotion(
            at,
            self.cause,
            self.writer.pid if self.writer else None,
            to.pid,
            generation,
            _ms(self.happened_ns, self.decided_ns),
            _ms(self.decided_ns, self.fenced_ns) if had_writer else None,
            _ms(self.begun_ns, now_ns),
        )


def _ms(since_ns: int | None, until_ns: int | None) -> float | None:
    return None if since_ns is None or until_ns is None else round(max(0, until_ns - since_ns) / 1e6, 3)
