"""A move of a service to the replica on another GPU: how far it is, and what the replica has to have before it serves."""

from msgspec import Struct
from msgspec.structs import replace

from mpsd.model.process import ProcessId
from mpsd.model.service import LastRecord, MoveState, MoveView, ReplicaReport

ROUNDS = 2  # images that the replica has copied: the second one, and so the last, is of what changed during a copy


class MoveRecord(Struct, eq=False):
    """A move, under way or over.

    to_id: the replica's arena, which `to_process` keeps.  began, until, over: trio time; `until`: of the rounds, and later of
    the replica that has to serve.  image_at: the moment of the last image that counts as a round.  last: where the writer has
    stopped.
    """

    from_gpu: str
    to_gpu: str
    from_process: ProcessId
    to_process: ProcessId
    to_id: int
    began_at: float
    began: float
    until: float
    state: MoveState = MoveState.COPYING
    rounds: int = 0
    image_at: float = 0.0
    steps: int | None = None
    behind_bytes: int = 0
    last: LastRecord | None = None
    stopped_ns: int = 0
    pause_ms: float | None = None
    over: float | None = None
    why: str = ""

    @property
    def is_under_way(self) -> bool:
        return self.state not in (MoveState.DONE, MoveState.CANCELLED)

    def hear(self, report: ReplicaReport, steps: int | None) -> None:
        """Take a report of the replica."""
        self.steps, self.behind_bytes = steps, report.behind_bytes
        if report.at is not None and not report.behind_bytes and report.at > max(self.image_at, self.began_at):
            self.image_at, self.rounds = report.at, self.rounds + 1

    def is_complete(self, report: ReplicaReport) -> bool:
        """Return whether the replica lacks nothing of the last barrier."""
        return report.at is not None and not report.behind_bytes and self.is_last(report)

    def is_last(self, of: ReplicaReport | LastRecord) -> bool:
        """Return whether it is of the record of the last barrier."""
        return self.last is not None and (self.last.generation, self.last.sequence) == (of.generation, of.sequence)

    def end(self, state: MoveState, now: float, why: str = "") -> None:
        self.state, self.over, self.why = state, now, why

    def view(self) -> MoveView:
        """Return what changes the revision of the service."""
        pids = self.from_process.pid, self.to_process.pid
        return MoveView(
            self.state, self.from_gpu, self.to_gpu, *pids, self.began_at, self.rounds, pause_ms=self.pause_ms, why=self.why
        )

    def view_at(self, now: float) -> MoveView:
        seconds = (now if self.over is None else self.over) - self.began
        return replace(self.view(), steps=self.steps, behind_bytes=self.behind_bytes, seconds=round(seconds, 3))
