"""How many errors each process has reported by mpsd.sock.  Prose: docs/faults.md."""

from msgspec import Struct, field

from mpsd.model.process import ProcessId

REPORTS = 4  # of one process: after its first error every call fails, and adds no information
REPORTERS = 4096  # processes whose count is kept


class Reports(Struct):
    """Guards that only the first reports of a process count, and that the number of remembered processes is bounded."""

    _counts: dict[ProcessId, int] = field(default_factory=dict)

    def left(self, process: ProcessId) -> int:
        return REPORTS - self._counts.get(process, 0)

    def count(self, process: ProcessId) -> None:
        self._counts[process] = self._counts.pop(process, 0) + 1  # moved to the end: the last to report is forgotten last
        if len(self._counts) > REPORTERS:
            del self._counts[next(iter(self._counts))]
