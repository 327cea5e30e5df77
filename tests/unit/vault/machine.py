"""Fixtures of the vault tests: a vault with a real keeper, memory to put in, processes that hold and end."""

import fcntl
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import trio

from mpsd.host import processes
from mpsd.host.programs import native_directory
from mpsd.keeper.memory_keepers import VaultKeepers
from mpsd.model.arena import GRANULE, Access, Allocation, Arena, ArenaSpec
from mpsd.model.device import Device
from mpsd.model.process import ProcessId
from mpsd.vault.allocations import Allocations
from mpsd.vault.arenas import Arenas
from mpsd.vault.catalog import Catalog, VaultParts
from mpsd.vault.descriptor_checks import check_simulated
from mpsd.vault.fencing import ArenaHolders
from mpsd.vault.lifecycle import Vault
from mpsd.vault.reclaim import Reclaimer
from mpsd.vault.rules.settings import VaultSettings
from mpsd.vault.store import VaultStore
from mpsd.vault.writers import Writers
from tests.inspecting import INSPECTOR
from tests.running import running

PROGRAM = native_directory() / "keeper" / "mpsd-keeper"
GPU = "GPU-00000000-1111-2222-3333-444444444444"
OTHER_GPU = "GPU-99999999-1111-2222-3333-444444444444"
DEVICES = (Device(0, GPU, "", 80 << 30, ""), Device(1, OTHER_GPU, "", 80 << 30, ""))
USER, STRANGER = 1000, 1001
SPEC = ArenaSpec("model", GPU, 1 << 30)
SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE


@dataclass
class FakeHolding:
    """The held descriptors of clients, as the test sets them."""

    held: dict[ProcessId, trio.Event] = field(default_factory=dict)
    released: list[ProcessId] = field(default_factory=list)

    def hold(self, process: ProcessId) -> None:
        self.held[process] = trio.Event()

    def release(self, process: ProcessId) -> None:
        self.released.append(process)

    async def wait_over(self, process: ProcessId) -> None:
        if process in self.held:
            await self.held[process].wait()


class AskedKeepers(VaultKeepers):
    """Keepers that a test can ask for what they hold: `held` is what mpsd believes."""

    async def names(self) -> list[str]:
        found: list[str] = []
        for keeper in list(self._keepers.values()):
            async with keeper._talk():
                found += await keeper._list()
        return found


@dataclass
class Machine:
    """Directories and surroundings of one vault, which may be opened again and again."""

    directory: Path
    settings: VaultSettings = field(default_factory=VaultSettings)
    holding: FakeHolding = field(default_factory=FakeHolding)
    events: list[tuple[str, Mapping[str, object]]] = field(default_factory=list)
    leases: dict[ProcessId, int] = field(default_factory=dict)
    lease_bytes: dict[tuple[int, str], int] = field(default_factory=dict)
    now: float = 1e9
    most: int = 4096
    program: Path = PROGRAM  # the program of its keepers
    boot: str = "this boot"
    before: Mapping[ProcessId, int] = field(default_factory=dict)  # earlier mpsds, and until when each had the vault
    is_served: Callable[[int], bool] = lambda arena_id: False
    made: list[Vault] = field(default_factory=list)

    def make(self) -> Vault:
        store = VaultStore(self.directory / "vault.db", self.boot)
        parts = VaultParts(
            lambda: DEVICES,
            lambda lease_id, gpu: self.lease_bytes.get((lease_id, gpu)),
            lambda topic, facts: self.events.append((topic, facts)),
            lambda: self.now,
        )
        catalog = Catalog(store, parts, self.settings)
        keeper = AskedKeepers(INSPECTOR, self.program, self.directory / "keeper", self.most, catalog.compare, store)
        reclaimer = Reclaimer(keeper, store, catalog.account.share)

        def is_awaited(process: ProcessId) -> bool:
            return catalog.settings.is_prompt and any(e.queue and e.arena.writer == process for e in catalog.by_id.values())

        holders = ArenaHolders(self.holding, is_awaited)
        allocations = Allocations(catalog, store, keeper, reclaimer, check_simulated)
        writers = Writers(catalog, store, allocations, holders, self.is_served)
        arenas = Arenas(catalog, store, allocations, writers, holders, reclaimer, self.leases.get)
        self.made.append(Vault(arenas, catalog, store, keeper, holders, reclaimer, self.before))
        return self.made[-1]

    @asynccontextmanager
    async def vault(self) -> AsyncIterator[Vault]:
        """At the end it stops like after `kill -9`: without a message to the keeper, and without storing anything."""
        made = self.make()
        try:
            async with running(made.run):
                await made.arenas.ready.wait()
                yield made
        finally:
            made.keeper.close()
            made.store.close()

    def topics(self, name: str) -> list[Mapping[str, object]]:
        return [facts for topic, facts in self.events if topic == name]

    @property
    def pidfds(self) -> int:
        """The pidfds of keepers that are open.  The kernel closes them when mpsd is killed; `end_keepers` needs them here."""
        return sum(len(vault.keeper._processes) for vault in self.made)

    def end_keepers(self) -> None:
        for vault in self.made:
            while vault.keeper._processes:
                process = vault.keeper._processes.pop()
                process.kill()
                process.reap()

    def small_keepers(self, most: int) -> None:
        """None of them holds more than so many descriptors, as where the kernel lets no process open more."""
        self.program = self.directory / PROGRAM.name
        self.program.write_text(f'#!/bin/sh\nexec {PROGRAM} "$@" --max {most}\n')
        self.program.chmod(0o700)


class Holder:
    """A process.  is_of_root: it has root's effective uid, as after a user has executed su."""

    def __init__(self, uid: int | None = None, *, is_of_root: bool = False) -> None:
        become = partial(os.setresuid, uid, 0, 0) if uid is not None and is_of_root else None
        self._child = subprocess.Popen(["sleep", "600"], user=None if is_of_root else uid, preexec_fn=become)
        found = processes.process_id(self._child.pid)
        assert found is not None
        self.process: ProcessId = found

    def kill(self) -> None:
        """Kill the process, which stays a zombie."""
        self._child.kill()

    def end(self) -> None:
        """The same, and it has ended when this returns."""
        self._child.kill()
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def collect(self) -> None:
        self._child.kill()
        self._child.wait()


@contextmanager
def a_process(uid: int | None = None, *, is_of_root: bool = False) -> Iterator[Holder]:
    made = Holder(uid, is_of_root=is_of_root)
    try:
        yield made
    finally:
        made.collect()


def memory(text: bytes = b"", seals: int = SEALS) -> int:
    """A descriptor that the simulator's check takes for GPU memory."""
    made = os.memfd_create("memory", os.MFD_ALLOW_SEALING)
    os.write(made, text)
    fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
    return made


def allocate_beyond(descriptor: int, size: int) -> None:
    """Give the file this much memory, without changing its size."""
    path = f"/proc/self/fd/{descriptor}"
    subprocess.run(["fallocate", "--keep-size", "--length", str(size), path], pass_fds=[descriptor], check=True)


def read(descriptor: int) -> bytes:
    """Read the text that `memory` was made with, and close the descriptor."""
    try:
        return os.pread(descriptor, 4096, 0)
    finally:
        os.close(descriptor)


def at(*places: int, size: int = 1) -> list[Allocation]:
    """Allocations of `size` granules, at these granules."""
    return [Allocation(place * GRANULE, size * GRANULE, 0) for place in places]


async def opened(vault: Vault, process: ProcessId, spec: ArenaSpec = SPEC, uid: int = USER) -> Arena:
    """Return a new arena that this process writes."""
    made = await vault.arenas.create(spec, uid, uid, process)
    return await vault.arenas.open(made.id, Access.WRITE, process, 0)


async def put(vault: Vault, arena: Arena, process: ProcessId, *places: int, text: bytes = b"") -> Arena:
    fds = [memory(text or b"%d" % place) for place in places]
    return await vault.arenas.put(arena.id, arena.generation, process, at(*places), fds)


async def committed(
    vault: Vault, process: ProcessId, spec: ArenaSpec = SPEC, uid: int = USER, places: Sequence[int] = (0,)
) -> Arena:
    """A new arena, which this process writes, and committed these granules to."""
    arena = await opened(vault, process, spec, uid)
    await put(vault, arena, process, *places)
    return await vault.arenas.commit(arena.id, arena.generation, process, None)


async def taken(vault: Vault, arena: Arena, process: ProcessId) -> dict[int, bytes]:
    """Return the process's allocations by granule."""
    found: dict[int, bytes] = {}
    after: int | None = None
    while True:
        taken = await vault.arenas.take(arena.id, process, after, 128)
        found |= {item.offset // GRANULE: read(fd) for item, fd in zip(taken.allocations, taken.fds, strict=True)}
        if not taken.has_more:
            return found
        after = taken.allocations[-1].offset


def impatient_with_keepers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait a second for a keeper instead of ten.  Less is too little for one that is well on a busy machine."""
    monkeypatch.setattr("mpsd.keeper.link.SECONDS", 1.0)
    monkeypatch.setattr("mpsd.keeper.memory_keeper._AGAIN_SECONDS", 0.01)


async def until(is_so: Callable[[], bool]) -> None:
    """Real time: the kernel and another process bring it about.  The test's own deadline ends the wait."""
    while not is_so():  # noqa: ASYNC110 nobody tells
        await trio.sleep(0.001)  # others of this process have their turn
