"""Track the contents of one arena: which allocations exist, and their states.

    put ---> fresh ---commit---> committed ---drop---> dropped ---commit---> gone
              | drop, rollback                            | rollback
              v                                           v
             gone                                     committed

Pure: serials are given, and no memory is held here.  The cost of each step grows with the change, not with the contents.
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence

from msgspec import Struct

from mpsd.errors import BadRequest
from mpsd.model.arena import Allocation
from mpsd.vault.rules.windows import is_granular

_FEW = 256  # up to this number, items are removed from or inserted into a sorted list one by one


class Put(Struct, frozen=True):
    """What a put would change.  replaced: fresh allocations with the same offsets and sizes."""

    added: tuple[Allocation, ...]
    replaced: tuple[Allocation, ...]

    @property
    def growth_bytes(self) -> int:
        return sum(each.bytes for each in self.added) - sum(each.bytes for each in self.replaced)


class Drop(Struct, frozen=True):
    gone: tuple[Allocation, ...]  # at once
    marked: tuple[Allocation, ...]  # with the next commit


class Contents:
    """Guards that no two allocations overlap, and that a committed one stays until a later commit."""

    def __init__(
        self, committed: Iterable[Allocation] = (), fresh: Iterable[Allocation] = (), dropped: Iterable[int] = ()
    ) -> None:
        self._committed = {each.offset: each for each in committed}
        self._fresh = {each.offset: each for each in fresh}
        self._dropped = set(dropped)  # offsets of committed ones
        self._committed_offsets = sorted(self._committed)
        self._fresh_offsets = sorted(self._fresh)
        self.used_bytes = sum(each.bytes for each in (*self._committed.values(), *self._fresh.values()))

    @property
    def count(self) -> int:
        return len(self._committed) + len(self._fresh)

    @property
    def committed_count(self) -> int:
        return len(self._committed)

    @property
    def all(self) -> list[Allocation]:
        return [*self._committed.values(), *self._fresh.values()]

    @property
    def newest(self) -> Allocation | None:
        """The latest allocation; None if the arena is empty."""
        for known in (self._fresh, self._committed):
            for each in reversed(known.values()):
                return each
        return None

    # -- plans and views ---------------------------------------------------------------------------------------------------

    def plan_put(self, allocations: Sequence[Allocation], window_bytes: int) -> Put:
        """Check a put and return its effect, without changing anything.  Raise BadRequest."""
        replaced = []
        behind = 0
        for each in sorted(allocations, key=lambda one: one.offset):
            if each.bytes <= 0 or each.offset < 0 or not is_granular(each.offset, each.bytes):
                raise BadRequest(f"{_words(each)}: offsets and sizes are multiples of 2 MiB")
            if each.offset + each.bytes > window_bytes:
                raise BadRequest(f"{_words(each)}: it ends behind the window's {window_bytes} bytes")
            if each.offset < behind:
                raise BadRequest(f"{_words(each)}: it overlaps another one of the same request")
            behind = each.offset + each.bytes
            same = self._fresh.get(each.offset)
            if same is not None and same.bytes == each.bytes:
                replaced.append(same)
            elif (found := self._overlapping(each)) is not None:
                raise BadRequest(f"{_words(each)}: {_words(found)} is there{self._why(found)}")
        return Put(tuple(allocations), tuple(replaced))

    def plan_drop(self, offsets: Iterable[int]) -> Drop:
        """Plan a drop.  Unknown offsets count as dropped before, so that a repeated request gets the same answer."""
        wanted = dict.fromkeys(offsets)
        gone = tuple(self._fresh[offset] for offset in wanted if offset in self._fresh)
        marked = (self._committed[each] for each in wanted if each in self._committed and each not in self._dropped)
        return Drop(gone, tuple(marked))

    def committed_after(self, after: int | None, limit: int) -> list[Allocation]:
        start = 0 if after is None else bisect_right(self._committed_offsets, after)
        return [self._committed[offset] for offset in self._committed_offsets[start : start + limit]]

    @property
    def fresh(self) -> list[Allocation]:
        return list(self._fresh.values())

    @property
    def dropped(self) -> list[Allocation]:
        return [self._committed[offset] for offset in self._dropped]

    # -- changes -----------------------------------------------------------------------------------------------------------

    def put(self, change: Put) -> None:
        for each in change.added:
            if each.offset not in self._fresh:
                insort(self._fresh_offsets, each.offset)
            self._fresh[each.offset] = each
        self.used_bytes += change.growth_bytes

    def drop(self, change: Drop) -> None:
        for each in change.gone:
            del self._fresh[each.offset]
            del self._fresh_offsets[bisect_left(self._fresh_offsets, each.offset)]
            self.used_bytes -= each.bytes
        self._dropped.update(each.offset for each in change.marked)

    def commit(self) -> None:
        for offset in self._dropped:
            self.used_bytes -= self._committed.pop(offset).bytes
        self._committed_offsets = _without(self._committed_offsets, self._dropped)
        self._committed_offsets = _with(self._committed_offsets, self._fresh_offsets)
        self._committed.update(self._fresh)
        self._dropped = set()
        self._fresh, self._fresh_offsets = {}, []

    def roll_back(self) -> None:
        """Return to the state after the last commit."""
        self.used_bytes -= sum(each.bytes for each in self._fresh.values())
        self._dropped = set()
        self._fresh, self._fresh_offsets = {}, []

    def _overlapping(self, one: Allocation) -> Allocation | None:
        for offsets, known in ((self._committed_offsets, self._committed), (self._fresh_offsets, self._fresh)):
            behind = bisect_left(offsets, one.offset + one.bytes)
            if behind and (before := known[offsets[behind - 1]]).offset + before.bytes > one.offset:
                return before
        return None

    def _why(self, found: Allocation) -> str:
        return ", dropped: its place is free after the next commit" if found.offset in self._dropped else ""


def _without(offsets: list[int], gone: set[int]) -> list[int]:
    if len(gone) > _FEW:
        return [offset for offset in offsets if offset not in gone]
    for offset in gone:
        del offsets[bisect_left(offsets, offset)]
    return offsets


def _with(offsets: list[int], more: list[int]) -> list[int]:
    if len(more) > _FEW:
        return sorted(offsets + more)
    for offset in more:
        insort(offsets, offset)
    return offsets


def _words(one: Allocation) -> str:
    return f"an allocation of {one.bytes} bytes at {one.offset:#x}"
