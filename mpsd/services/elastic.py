"""Move the shares of running services to where they are needed.

Each second mpsd reads from the forward states how long each active has worked (mpsd_state.h: busy_ns, since_ns).  The policy
(leases/rules/elastic_shares.py) deals the shares of a *pool*: the elastic services of one owner on one GPU.  A new deal changes
what the services want for their members; their starters carry it out by a planned handover, as every other change.  While a
move is under way, or a service of the pool is not served, the pool stands still.  Prose: docs/services.md, "Elastic shares".
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

import structlog
import trio
from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.errors import UnusablePath
from mpsd.leases.rules import elastic_shares
from mpsd.leases.rules.elastic_shares import LEVELS, Elastic, FeedbackPlace
from mpsd.leases.rules.group_shares import Group, GroupMember
from mpsd.model.service import Cause, Phase, Share
from mpsd.services.coordinator import Coordinator
from mpsd.services.members import ServiceRecord
from mpsd.wire.forward_state import Work

log = structlog.get_logger()
LOOK_SECONDS = 1.0
WINDOW_SECONDS = 2.0  # a use is the mean over so long
SETTLE_SECONDS = 2.0  # of a term must have been seen before the next deal
PEAK_SECONDS = 10.0  # the largest use in so long counts: a share grows at once, and shrinks after a rest
_NAMES: Mapping[int, str] = {number: name for name, number in LEVELS.items()}


class _Usage(Struct, eq=False):
    """What was seen of a service.

    samples: time in seconds and seconds of work, of the present term, oldest first.  uses: time, and percent of the GPU in use.
    """

    generation: int
    place: FeedbackPlace
    samples: list[tuple[float, float]] = field(default_factory=list)
    uses: list[tuple[float, float]] = field(default_factory=list)
    move_seconds: float | None = None

    @property
    def seconds(self) -> float:
        return self.samples[-1][0] - self.samples[0][0] if self.samples else 0.0

    @property
    def busy(self) -> float | None:
        """Return the fraction of the window in which the active worked.  What it claims is bounded by the time itself."""
        if not self.seconds:
            return None
        return min(1.0, max(0.0, (self.samples[-1][1] - self.samples[0][1]) / self.seconds))


    def peak(self, sm_percent: float) -> float | None:
        """Return the largest recent use, as a fraction of this share, of which all may have been used."""
        used = max((each for _, each in self.uses), default=0.0)
        return None if self.busy is None else max(self.busy, min(1.0, used / sm_percent))


class ElasticShares:
    """Guards that a pool gets one deal at a time, and never more than its services' owner has set for them together."""

    def __init__(
        self, coordinator: Coordinator, work_of: Callable[[ServiceRecord], Work | None], policy: Callable[[], Elastic]
    ) -> None:
        """work_of: how long the active has worked in its term; None: not known."""
        self._coordinator, self._work_of, self._policy = coordinator, work_of, policy
        self._usage: dict[ServiceRecord, _Usage] = {}

    async def run(self) -> None:
        """Run as long as mpsd."""
        while True:
            if not any(self._elastic()):
                self._usage.clear()
                await self._coordinator.woken.wait()
                continue
            await trio.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Measure all elastic services, and deal each pool."""
        pools: dict[tuple[int, str], list[ServiceRecord]] = {}
        for record in self._elastic():
            self._measure(record)
            pools.setdefault((record.arena.owner_uid, record.arena.gpu), []).append(record)
        for record in self._usage.keys() - set(self._elastic()):
            del self._usage[record]
        for pool in pools.values():
            self._deal(pool)

    def _elastic(self) -> Iterator[ServiceRecord]:
        """Return the elastic services that have members: what a service without them had is its owner's."""
        return (each for each in self._coordinator.records.values() if each.share is not None and each.service.members)

    # -- to measure ------------------------------------------------------------------------------------------------------

    def _measure(self, record: ServiceRecord) -> None:
        now, work, generation = trio.current_time(), self._work_of(record), record.arena.generation
        usage = self._usage.get(record)
        if usage is None:
            place = elastic_shares.begin(record.settings.elastic.value, now)
            usage = self._usage[record] = _Usage(generation, place)
        if (last := record.last) is not None and last.cause is Cause.ASKED and last.promote_ms is not None:
            usage.move_seconds = ((last.fence_ms or 0.0) + last.promote_ms) / 1000
        if usage.generation != generation or work is None or (usage.samples and work.seconds < usage.samples[-1][1]):
            usage.generation, usage.samples = generation, []
            usage.place = replace(usage.place, spent=0.0, rested=0.0)  # with another share it is judged anew
        if work is None:
            return
        usage.samples.append((now, work.seconds))
        while len(usage.samples) > 2 and usage.samples[-1][0] - usage.samples[1][0] >= WINDOW_SECONDS:
            del usage.samples[0]
        if usage.busy is not None and record.share is not None:
            passed = usage.samples[-1][0] - usage.samples[-2][0]
            usage.uses = [each for each in usage.uses if each[0] > now - PEAK_SECONDS]
            usage.uses.append((now, usage.busy * record.share.sm_percent))
            usage.place = elastic_shares.feed(usage.place, usage.busy, passed, now, self._policy())

    # -- to deal ---------------------------------------------------------------------------------------------------------

    def _deal(self, pool: Sequence[ServiceRecord]) -> None:
        if why := next(filter(None, map(self._hindrance, pool)), ""):
            self._show(pool, f"stands still: {why}")
            return
        members = [self._member(each) for each in pool]
        weighed = elastic_shares.weigh(Group(sum(each.part for each in members), members), self._policy())
        if not weighed.is_new:
            self._show(pool, f"stands still: {weighed.why}")
            return
        percent = {each: math.floor(weighed.deal[each.arena.id] * 10) / 10 for each in pool}
        try:
            self._coordinator.deal(percent, f"moved: {weighed.why}", self._usages(pool))
        except UnusablePath as exc:
            log.error("store.failed", statement="the shares of services", why=str(exc))
            self._show(pool, f"stands still: {exc}")

    def _hindrance(self, record: ServiceRecord) -> str:
        """Return why no share of the pool may be changed now; empty if it may."""
        share, usage, name = record.share, self._usage[record], record.arena.name
        if record.service.phase is not Phase.SERVING:
            return f"service {name} is {record.service.phase}"
        if share is not None and share.moved_at and (record.last is None or record.last.at < share.moved_at):
            return f"service {name} has not been moved to its last share yet, by a handover of its starter"
        if usage.seconds < SETTLE_SECONDS:
            return f"the use of service {name} has been seen for less than {SETTLE_SECONDS:g} s"
        return ""

    def _member(self, record: ServiceRecord) -> GroupMember:
        usage, share = self._usage[record], record.share
        assert share is not None
        assert record.settings.sm_percent is not None
        return GroupMember(
            record.arena.id, record.settings.sm_percent, dealt=share.sm_percent, held=(share.sm_percent,),
            level=usage.place.level, busy=usage.peak(share.sm_percent), move_seconds=usage.move_seconds,
        )  # fmt: skip

    def _usages(self, pool: Sequence[ServiceRecord]) -> Mapping[ServiceRecord, tuple[float | None, str]]:
        return {each: (self._usage[each].busy, _NAMES[self._usage[each].place.level]) for each in pool}

    def _show(self, pool: Sequence[ServiceRecord], why: str) -> None:
        for record, (busy, level) in self._usages(pool).items():
            assert record.share is not None
            tenths = None if busy is None else round(busy, 1)
            shown: Share = replace(record.share, busy=tenths, level=level, why=why)
            if shown != record.share:
                record.share = shown
                self._coordinator.show(record)
