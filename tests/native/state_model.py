"""The protocol of a forward state as a model: every order in which a writer's stores can become visible to a reader's loads.

The machine is weakly ordered: between two barriers stores arrive, and loads are made, in any order.  The digest is left out: it
is there for strangers' writes, and a writer's own updates must not need it.  The barriers are those of mpsd/code/state.h and
state_reader.h; a model without one of them must be found wrong.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

SLOTS = 2  # MPSD_STATE_SLOTS
WORDS = 2  # of a record; in update n each is n, so that any mixture shows


class Wrong(Exception):
    """The reader returned a wrong record."""


class Part(StrEnum):
    """What writer and reader do about order."""

    MARK_BEFORE = "the mark that says an update is being written"
    MARKS_IN_ORDER = "its release: the update before is seen first"
    FENCE_OF_WRITER = "the fence behind it: no word is seen before it"
    RELEASE_AT_END = "the release of the mark that says it is complete"
    LOOK_AGAIN = "the reader's second look at the mark"
    FENCE_OF_READER = "the fence before that: no word is loaded after it"
    TWO_SCANS = "damage is what two scans have found alike"


ALL = frozenset(Part)


@dataclass(frozen=True, slots=True)
class Store:
    """Of `value` at `place`; `needs`: the stores, as bits, that are visible before it is."""

    place: tuple[str, int]
    value: int
    needs: int


def stores_of(updates: int, parts: frozenset[Part]) -> list[Store]:
    """What a writer does, in its program's order."""
    made: list[Store] = []

    def store(place: tuple[str, int], value: int, needs: int) -> None:
        same = sum(1 << at for at, each in enumerate(made) if each.place == place)  # coherence: one place, one order
        made.append(Store(place, value, needs | same))

    for n in range(1, updates + 1):
        slot = n % SLOTS
        before = 0  # what the fence puts before the words
        if Part.MARK_BEFORE in parts:
            store(("mark", slot), 2 * n - 1, _all(made) if Part.MARKS_IN_ORDER in parts else 0)
            before = _all(made) if Part.FENCE_OF_WRITER in parts else 0
        for word in range(WORDS):
            store(("word", slot * WORDS + word), n, before)
        store(("mark", slot), 2 * n, _all(made) if Part.RELEASE_AT_END in parts else 0)
    return made


def _all(made: list[Store]) -> int:
    return (1 << len(made)) - 1


@dataclass(frozen=True, slots=True)
class Reader:
    """The state of a reader. floor: the updates that were complete when it began; scan: marks seen so far; before: the scan
    before, if that was implausible; wants: the update whose words it loads, `got`; mark: the second look."""

    floor: int
    scan: tuple[int, ...] = ()
    before: tuple[int, ...] | None = None
    wants: int = 0
    got: tuple[int | None, ...] = ()
    mark: int | None = None


def last_complete(marks: tuple[int, ...]) -> int | None:
    """mpsd_state_scan: which update was complete last; None: no update leaves such marks behind."""
    last = max(each // 2 for each in marks)
    for slot, mark in enumerate(marks):
        age = (last - slot) % SLOTS
        whole = 2 * (last - age) if age < last else 0
        if mark != whole and not (age == SLOTS - 1 and mark == 2 * last + 1):
            return None
    return last


class Model:
    """A writer and a reader; states are (stores visible as bits, Reader)."""

    def __init__(self, updates: int, parts: frozenset[Part] = ALL) -> None:
        self.parts = parts
        self.stores = stores_of(updates, parts)
        marks = [(each.value, 1 << at) for at, each in enumerate(self.stores) if each.place[0] == "mark"]
        self.ends = {value // 2: bit for value, bit in marks if value % 2 == 0}

    def see(self, visible: int, place: tuple[str, int]) -> int:
        values = [each.value for at, each in enumerate(self.stores) if each.place == place and visible >> at & 1]
        return values[-1] if values else 0

    def complete(self, visible: int) -> int:
        return max((n for n, bit in self.ends.items() if visible & bit), default=0)

    def arrivals(self, visible: int) -> Iterator[int]:
        for at, each in enumerate(self.stores):
            if not visible >> at & 1 and each.needs & visible == each.needs:
                yield visible | 1 << at

    def loads(self, visible: int, reader: Reader) -> Iterator[Reader | int]:
        """Return the reader's possible next steps: another state, or the update it ends with (0: none)."""
        if not reader.wants:
            yield self._look(visible, reader)
            return
        for word, value in enumerate(reader.got):
            if value is None:
                found = self.see(visible, ("word", reader.wants % SLOTS * WORDS + word))
                got = (*reader.got[:word], found, *reader.got[word + 1 :])
                yield self._end(Reader(reader.floor, (), None, reader.wants, got, reader.mark))
        if reader.mark is None and (None not in reader.got or Part.FENCE_OF_READER not in self.parts):
            mark = self.see(visible, ("mark", reader.wants % SLOTS))
            yield self._end(Reader(reader.floor, (), None, reader.wants, reader.got, mark))

    def _look(self, visible: int, reader: Reader) -> Reader | int:
        scan = (*reader.scan, self.see(visible, ("mark", len(reader.scan))))
        if len(scan) < SLOTS:
            return Reader(reader.floor, scan, reader.before)
        last = last_complete(scan)
        if last is None:
            if scan == reader.before or Part.TWO_SCANS not in self.parts:
                raise Wrong(f"damage, where there are the marks {scan}")
            return Reader(reader.floor, (), scan)
        if last == 0:
            return self._told(reader, 0)
        return Reader(reader.floor, (), None, last, (None,) * WORDS, None if Part.LOOK_AGAIN in self.parts else 2 * last)

    def _end(self, reader: Reader) -> Reader | int:
        if None in reader.got or reader.mark is None:
            return reader
        if reader.mark != 2 * reader.wants:
            return Reader(reader.floor)
        if set(reader.got) != {reader.wants}:
            raise Wrong(f"{reader.got}, said to be update {reader.wants}")
        return self._told(reader, reader.wants)

    def _told(self, reader: Reader, update: int) -> int:
        if update < reader.floor:
            raise Wrong(f"update {update}, when {reader.floor} was complete before")
        return update

    def walk(self) -> tuple[int, set[int]]:
        """Walk all possible interleavings; return the number of states, and the updates that readers ended with. Raises
        Wrong."""
        started, seen, ends = {0}, set[tuple[int, Reader]](), set[int]()
        waiting: list[tuple[int, Reader]] = [(0, Reader(0))]
        while waiting:
            state = waiting.pop()
            if state in seen:
                continue
            seen.add(state)
            visible, reader = state
            for after in self.arrivals(visible):
                waiting.append((after, reader))
                if after not in started:  # a reader may begin at any moment
                    started.add(after)
                    waiting.append((after, Reader(self.complete(after))))
            for step in self.loads(visible, reader):
                if isinstance(step, Reader):
                    waiting.append((visible, step))
                else:
                    ends.add(step)
        return len(seen), ends

    def read_alone(self, visible: int) -> int:
        """What a reader ends with when the writer does nothing any more."""
        step: Reader | int = Reader(0)
        while isinstance(step, Reader):
            step = next(self.loads(visible, step))
        return step
