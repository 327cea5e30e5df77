"""The surroundings of a member of the LLM example, without processes: memory and a record that outlive it, and a front end."""

import json
from array import array
from collections import deque
from collections.abc import Callable
from typing import Any

from asked import Request
from engine import Engine
from mpsd_client import State, StateReader
from record import PUBLISHED, Forward, schema, slots_of
from scheduler import Phase, Scheduler, Size
from serving import Serving
from streams import Streams
from toy import PlainMemory, ToyEngine


class Death(Exception):
    """The death of a member, at any point of its work."""


class Fate:
    """Lets a member do so many things: writes of memory, publishes, messages.  None: as many as it likes."""

    def __init__(self, left: int | None) -> None:
        self.left = left

    def step(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Death


class MortalMemory:
    """The toy engine's memory. writes: the number of writes."""

    def __init__(self, memory: PlainMemory) -> None:
        self._memory, self.fate, self.writes = memory, Fate(None), 0

    def read(self, first: int, count: int) -> "array[int]":
        return self._memory.read(first, count)

    def write(self, first: int, cells: "array[int]") -> None:
        self.fate.step()
        self.writes += 1
        self._memory.write(first, cells)


class ToyMemory:
    def __init__(self, size: Size) -> None:
        self.size = size
        self.cache, self.history = (MortalMemory(PlainMemory(n)) for n in (size.pages * size.page, size.slots * size.length))

    def engine(self, fate: Fate) -> Engine:
        self.cache.fate = self.history.fate = fate
        return ToyEngine(self.size, self.cache, self.history)


class NoReport:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, event: str, **facts: Any) -> None:
        self.said.append(event)

    def step(self, number: int) -> None:
        pass


class FakeService:
    """engine: makes one for a new member, on memory that is the same for all."""

    def __init__(self, size: Size, engine: Callable[[Fate], Engine]) -> None:
        self.size, self.engine = size, engine
        self.heard: deque[str] = deque()  # the front end's messages to the connected member
        self.trouble: list[str] = []
        self.streams = Streams(99, self.tell, lambda request, index: None, self.trouble.append)
        self.state: State | None = None
        self.report = NoReport()
        self.member: Link | None = None

    def tell(self, key: str, value: object) -> None:
        if self.member is not None:
            self.heard.append(json.dumps({key: value}))

    def begin(self, prompt: list[int], count: int, **options: Any) -> Any:
        """A stream."""
        return self.streams.begin(Request(self.streams.number(), tuple(prompt), count, **options), lambda: None)

    def record(self) -> Any:
        """Return the record published last; None: none was published."""
        if self.state is None:
            return None
        with StateReader.open(self.state.fd, self.state.schema) as reader:
            return reader.read()

    def serve(self, fate: Fate, late: int = 0) -> bool:
        """A term: until its member dies, or all that is asked is answered: True.  late: how often it finds no front end."""
        scheduler, step, record = Scheduler(self.size), 0, self.record()
        state = State.create(schema(self.size), generation=1)
        if record is not None:
            state.fill(record)
            state.publish()
            scheduler.restore(slots_of(record, self.size))
            step = record["step"]

        published = state.publisher(*PUBLISHED)

        def publish(*values: int) -> None:
            fate.step()
            published(*values)
            self.state = state

        self.member = Link(self, fate, late)
        journal = Forward(state, publish, self.size)
        serving = Serving(self.engine(fate), scheduler, journal, self.member, self.report, step=step)  # type: ignore[arg-type]
        try:
            serving.run(lambda: not self.streams and not self.heard and all(s.phase is Phase.FREE for s in scheduler.slots))
        except Death:
            return False
        finally:
            self.member = None
            self.heard.clear()
        return True


class Link:
    """Behaves like link.Link, without a socket."""

    def __init__(self, service: FakeService, fate: Fate, late: int) -> None:
        self._service, self._fate, self._late = service, fate, late
        self.connections = 0

    def hear(self) -> list[tuple[str, Any]]:
        if not self.connections and self._late:
            self._late -= 1
            return []
        if not self.connections:
            self.connections = 1
            for request in self._service.streams.open():
                self._service.tell("request", request.facts())
            self._service.tell("all", {})
        said, self._service.heard = self._service.heard, deque()
        return [item for line in said for item in json.loads(line).items()]

    def say(self, key: str, value: Any) -> None:
        self._fate.step()
        streams = self._service.streams
        if self.connections and key == "tokens":
            streams.take(value)
        elif self.connections:
            streams.refuse(*value)

    def wait(self, seconds: float) -> None:
        self._fate.step()

    def finish(self, seconds: float) -> None:
        pass
