"""A LeaseBook with two GPUs, processes that are only numbers, and a note of everything that it publishes."""

import errno
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from msgspec.structs import replace

from mpsd.errors import Refused
from mpsd.fairness.uid_ranges import NO_RANGES, UidRanges
from mpsd.leases.lease_book import LeaseBook
from mpsd.leases.rules.settings import AdmissionSettings
from mpsd.leases.store import LeaseStore
from mpsd.model.device import Device
from mpsd.model.lease import Grant, Identity, Lease, LeaseSpec, Selector, SelectorKind
from mpsd.model.process import Credentials, ProcessId

GIB = 1 << 30
GPU_A, GPU_B = "GPU-aaaaaaaa", "GPU-bbbbbbbb"
DEVICES = (Device(0, GPU_A, "A", 80 * GIB, "0:1:0"), Device(1, GPU_B, "B", 80 * GIB, "0:2:0"))
ROOT, ALICE, BOB = 0, 1000, 1001
TOKEN = "a-token-of-16-or-more"


def by_uid(uid: int = ALICE) -> Selector:
    return Selector(SelectorKind.UID, str(uid))


def by_token(token: str = TOKEN) -> Selector:
    return Selector(SelectorKind.TOKEN, token)


def by_pid(pid: int) -> Selector:
    return Selector(SelectorKind.PID, str(pid))


def spec(sm: float = 50.0, selector: Selector | None = None, **fields: Any) -> LeaseSpec:
    return LeaseSpec("a lease", selector or by_uid(), sm_percent=sm, **fields)


def process(pid: int) -> ProcessId:
    return ProcessId(pid, 1000 + pid)


class World:
    """The surroundings of a book: processes, tokens, the clock, and the disk, which outlives the book."""

    def __init__(self, path: Path, settings: AdmissionSettings | None = None, ranges: UidRanges = NO_RANGES) -> None:
        self.path = path
        self.settings = settings or AdmissionSettings()
        self.ranges = ranges
        self.now = 1_000_000.0
        self.dead: set[int] = set()
        self.unread: set[int] = set()
        self.contained: set[int] = set()  # in a domain with a contained exception: their memory outlives them
        self.identities: dict[int, Identity] = {}
        self.events: list[tuple[str, Mapping[str, Any]]] = []
        self.identified = 0
        self.devices = DEVICES
        self.book = self.restarted()

    def restarted(self) -> LeaseBook:
        """Another mpsd, after the first was killed: nothing was closed."""
        self.store = LeaseStore(self.path / "leases.db", "this boot")
        self.book = LeaseBook(
            self.store,
            lambda: self.devices,
            self.settings,
            self._identify,
            lambda topic, facts: self.events.append((topic, facts)),
            self.clock,
            find_process=self._find_process,
            ranges=self.ranges,
            is_retained=lambda each: each.pid in self.contained,
        )
        return self.book

    def _find_process(self, pid: int) -> ProcessId | None:
        if pid in self.unread:
            raise OSError(errno.ETIMEDOUT, "it was not read")
        return None if pid in self.dead else process(pid)

    def clock(self) -> float:
        try:
            return self.now + trio.current_time()
        except RuntimeError:  # no trio: time stands still
            return self.now

    def change(self, **settings: Any) -> None:
        self.settings = replace(self.settings, **settings)
        self.book.configure(self.settings)

    def topics(self) -> list[str]:
        return [topic for topic, _ in self.events]

    def facts(self, topic: str) -> Mapping[str, Any]:
        """Return the facts of the last event of this topic."""
        return next(facts for each, facts in reversed(self.events) if each == topic)

    def _identify(self, process: ProcessId | None, credentials: Credentials) -> Identity:
        self.identified += 1
        found = self.identities.get(process.pid if process else 0, Identity(process, credentials.uid, credentials.gid))
        return replace(found, process=process, uid=credentials.uid)

    async def admit(self, pid: int, uid: int = ALICE) -> Grant:
        return await self.book.admit(process(pid), Credentials(pid, uid, uid), lambda reason: None)

    @asynccontextmanager
    async def running(self):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.book.run)
            await trio.testing.wait_all_tasks_blocked()
            yield nursery
            nursery.cancel_scope.cancel()


class Arrival:
    """A client that asks in a task of its own."""

    def __init__(self, world: World, nursery: trio.Nursery, pid: int, uid: int = ALICE) -> None:
        self.world = world
        self.pid = pid
        self.uid = uid
        self.grant: Grant | None = None
        self.refused: Exception | None = None
        self.told: list[str] = []
        self.scope = trio.CancelScope()
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        with self.scope:
            try:
                credentials = Credentials(self.pid, self.uid, self.uid)
                self.grant = await self.world.book.admit(process(self.pid), credentials, self.told.append)
            except Refused as exc:
                self.refused = exc


def ids(leases: list[Lease]) -> list[int]:
    return [lease.id for lease in leases]
