"""Move the shares of running services to where they are needed.

Four times a second mpsd reads from the forward states how long each active has worked (mpsd_state.h: busy_ns, since_ns).
The policy (leases/rules/elastic_shares.py) deals the shares of a *pool*: the elastic services of one owner on one GPU, those
made in a container apart, since its root can be every owner.  A new deal changes what the services want for their members;
their starters carry it out by a planned handover, as every other change.  While a move is under way, or a service of the
pool is not served, the pool stands still; after LATE_SECONDS that service is left out, and the others are dealt what it
leaves.  Prose: docs/services.md, "Elastic shares".
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

import structlog
import trio
from msgspec import Struct, field
from msgspec.structs import replace

from mpsd.errors import UnusablePath
from mpsd.leases.rules import elastic_shares
from mpsd.leases.rules.elastic_shares import LEVELS, Elastic, FeedbackPlace
from mpsd.leases.rules.group_shares import Deal, Group, GroupMember
from mpsd.model.service import Cause, Phase, Share
from mpsd.services.coordinator import Coordinator
from mpsd.services.guard import guarded
from mpsd.services.members import ServiceRecord
from mpsd.services.views import changed_to
from mpsd.wire.forward_state import Work

log = structlog.get_logger()
LOOK_SECONDS = 0.25
WINDOW_SECONDS = 1.0  # a use is the mean over so long: requests queue for as long where a share is too small
SETTLE_SECONDS = 2.0  # of a term must have been seen before the next deal; the former member has ended by then
LATE_SECONDS = 120.0  # for so long the pool waits for one service: several times what starting a large model takes
PEAK_SECONDS = 10.0  # the largest use in so long counts: a share grows at once, and shrinks after a rest
WorkOf = Callable[[Sequence[ServiceRecord]], Awaitable[Mapping[ServiceRecord, Work | None]]]
_TENTH = 0.1  # shares are dealt in tenths of a percent; what is less than one is dealt as it is
_NAMES: Mapping[int, str] = {number: name for name, number in LEVELS.items()}


class _Usage(Struct, eq=False):
    """What was seen of a service.

    samples: time in seconds and seconds of work, of the present term, oldest first.  began: the time of its first sample.
    started: when its last active was started, in clock ticks.  uses: time, and percent of the GPU in use.
    """

    generation: int
    place: FeedbackPlace
    samples: list[tuple[float, float]] = field(default_factory=list)
    began: float = 0.0
    started: int = 0
    uses: list[tuple[float, float]] = field(default_factory=list)
    move_seconds: float | None = None
    waits_since: float | None = None  # since when the pool has waited for it
    is_told: bool = False  # that it is left out

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

    def is_falling(self, now: float) -> bool:
        """Return whether its largest recent use is about to count no more: uses of windows that saw its end count then."""
        rest = max((each for when, each in self.uses if when > now - PEAK_SECONDS + WINDOW_SECONDS), default=0.0)
        return any(each > rest for _, each in self.uses)


class ElasticShares:
    """Guards that a pool gets one deal at a time, and never more than its services' owner has set for them together."""

    def __init__(self, coordinator: Coordinator, work_of: WorkOf, policy: Callable[[], Elastic]) -> None:
        """work_of: how long the active of each service has worked in its term; None: not known."""
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
            with guarded():
                await self.look()

    async def look(self) -> None:
        """Measure all elastic services, and deal each pool."""
        works = await self._work_of(tuple(self._elastic()))
        pools: dict[tuple[int, int | None, str], list[ServiceRecord]] = {}
        # Once: to measure one can change whether it makes way.
        elastic = tuple(each for each in self._elastic() if each in works)
        for record in elastic:
            arena = record.arena
            made_in = None if arena.is_of_owner else arena.pid_namespace
            pools.setdefault((arena.owner_uid, made_in, arena.gpu), []).append(record)
        for record in self._usage.keys() - set(elastic):
            del self._usage[record]
        for pool in pools.values():
            with guarded(*pool):
                for record in pool:
                    self._measure(record, works[record])
                self._deal(pool)

    def _elastic(self) -> Iterator[ServiceRecord]:
        """Return the elastic services that have members, or make way: what another one without them had is its owner's."""
        elastic = (each for each in self._coordinator.records.values() if each.share is not None)
        return (each for each in elastic if each.service.members or self._makes_way(each))

    def _makes_way(self, record: ServiceRecord) -> bool:
        """Return whether its active has ended for a successor with the new share, which is not there yet, and not too late."""
        usage, dealt = self._usage.get(record), record.dealt
        if usage is None or dealt is None or usage.started >= dealt.ticks:
            return False
        return usage.waits_since is None or trio.current_time() - usage.waits_since < LATE_SECONDS

    # -- to measure ------------------------------------------------------------------------------------------------------

    def _measure(self, record: ServiceRecord, work: Work | None) -> None:
        now, generation = trio.current_time(), record.arena.generation
        usage, first = self._usage.get(record), elastic_shares.begin(record.settings.elastic.value, now)
        if usage is None or usage.place.home != first.home:
            usage = self._usage[record] = _Usage(generation, first)
        if record.service.writer is not None:
            usage.started = record.service.writer.start_time
        if (last := record.last) is not None and last.cause is Cause.ASKED and last.promote_ms is not None:
            usage.move_seconds = ((last.fence_ms or 0.0) + last.promote_ms) / 1000
        if usage.generation != generation or work is None or (usage.samples and work.seconds < usage.samples[-1][1]):
            usage.generation, usage.samples = generation, []
            usage.place = replace(usage.place, spent=0.0, rested=0.0)  # with another share it is judged anew
        if work is None:
            return
        usage.began = usage.began if usage.samples else now
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
        """Deal the pool, without the services that it has waited for too long."""
        hindrances = {each: why for each in pool if (why := self._hindrance(each))}
        late = [each for each in pool if self._is_late(each, hindrances.get(each, ""))]
        rest = [each for each in pool if each not in late]
        for each in late:
            self._show([each], f"left out for now: {hindrances[each]}")
        if why := next((hindrances[each] for each in rest if each in hindrances), ""):
            self._show(rest, f"stands still: {why}")
        elif rest:
            self._weigh(rest, sum(map(_part, pool)) - sum(map(_most, late)))

    def _weigh(self, rest: Sequence[ServiceRecord], total: float) -> None:
        members, policy = [self._member(each) for each in rest], self._policy()
        if total < policy.floor * sum(each.part for each in members):
            self._show(rest, "stands still: the services that are left out may have the rest")
            return
        group = Group(total, members)
        weighed = elastic_shares.weigh(group, policy)
        deal, why = weighed.deal, weighed.why
        if sum(each.in_force for each in members) > total + _TENTH:  # it may be for a while: one was left out, or changed
            deal, why = elastic_shares.aim(group, policy), f"they have {total:.1f} % together now"
        elif not weighed.is_new:
            self._show(rest, f"stands still: {why}")
            return
        elif falling := next((each for each in rest if self._falls(each, deal)), None):
            self._show(rest, f"stands still: the use of service {falling.arena.name} is falling")
            return
        percent = {each: _rounded(deal[each.arena.id]) for each in rest}
        try:
            self._give(percent, f"moved: {why}")
        except UnusablePath as exc:
            log.error("store.failed", statement="the shares of services", why=str(exc))
            self._show(rest, f"stands still: {exc}")

    def _falls(self, record: ServiceRecord, deal: Deal) -> bool:
        """Return whether this service would lose a part of its share now, and more of it a moment later."""
        share, usage = record.share, self._usage[record]
        is_interactive = usage.place.level == elastic_shares.INTERACTIVE
        is_less = share is not None and deal[record.arena.id] < share.sm_percent
        return is_interactive and is_less and usage.is_falling(trio.current_time())

    def _give(self, percent: Mapping[ServiceRecord, float], why: str) -> None:
        """Give these services other shares, all or none: their starters carry it out.  Raises UnusablePath."""
        coordinator = self._coordinator
        moved = [(each, of) for each, of in percent.items() if each.share is not None and each.share.sm_percent != of]
        ticks = coordinator.parts.ticks()
        # A service whose share would be nothing keeps what it has: that is too little for a difference.
        deals = {each: dealt for each, of in moved if (dealt := changed_to(each, of, ticks)) is not None}
        coordinator.store.deal({each.arena.id: dealt for each, dealt in deals.items()})
        for record, (busy, level) in self._usages(deals).items():
            before, share = record.share, deals[record].sm_percent
            assert before is not None
            record.dealt = deals[record]
            record.share = Share(share, busy, level, why, coordinator.parts.clock(), before.moves + 1)
            facts = {"from_percent": before.sm_percent, "to_percent": share, "busy": busy, "level": level, "why": why}
            coordinator.events.publish(record, "share", **facts)
            coordinator.show(record)

    def _is_late(self, record: ServiceRecord, hindrance: str) -> bool:
        """Return whether the pool has waited too long for this service.

        Its starter may have died, or its program may not report its work.
        """
        usage, now = self._usage[record], trio.current_time()
        if not hindrance:
            usage.waits_since = None
            return False
        if usage.waits_since is None:
            usage.waits_since = now
        is_late = now - usage.waits_since >= LATE_SECONDS
        if is_late and not usage.is_told:
            log.warning("service.left_out", service=record.arena.name, why=hindrance)
        usage.is_told = is_late
        return is_late

    def _hindrance(self, record: ServiceRecord) -> str:
        """Return why no share of the pool may be changed now; empty if it may."""
        usage, name, writer = self._usage[record], record.arena.name, record.service.writer
        if record.service.phase is not Phase.SERVING or writer is None:
            return f"service {name} is {record.service.phase}"
        if record.dealt is not None and writer.start_time < record.dealt.ticks:
            return f"service {name} has not been moved to its last share yet, by a handover of its starter"
        if not usage.samples or usage.samples[-1][0] - usage.began < SETTLE_SECONDS:
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

    def _usages(self, pool: Iterable[ServiceRecord]) -> Mapping[ServiceRecord, tuple[float | None, str]]:
        """Return how busy each service is, and its level."""
        return {each: (self._usage[each].busy, _NAMES[self._usage[each].place.level]) for each in pool}

    def _show(self, pool: Sequence[ServiceRecord], why: str) -> None:
        for record, (busy, level) in self._usages(pool).items():
            assert record.share is not None
            tenths = None if busy is None else round(busy, 1)
            shown: Share = replace(record.share, busy=tenths, level=level, why=why)
            if shown != record.share:
                record.share = shown
                self._coordinator.show(record)


def _rounded(percent: float) -> float:
    """Round down, so that a pool is never dealt more than it has, and not to nothing, which would be no share."""
    return math.floor(percent * 10) / 10 or percent


def _part(record: ServiceRecord) -> float:
    return record.settings.sm_percent or 0.0


def _most(record: ServiceRecord) -> float:
    """Return the most that its active may have: which share it was started with is not known if it waits for a move."""
    dealt = record.dealt
    return max(_part(record), dealt.sm_percent, dealt.before) if dealt else _part(record)
