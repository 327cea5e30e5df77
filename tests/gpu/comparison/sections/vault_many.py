"""A thousand arenas with a hundred thousand allocations: the resources of mpsd and its keepers, and the time of an operation,
as they grow; mpsd killed with all of them, and one keeper; a thousand writers that die; a search for descriptors left behind.

There are two kinds of allocations. "real" ones are separate memory, 2 MiB each, as far as the GPU's memory suffices; the others
are one memory that a program gives again and again by the protocol: the cost of mpsd alone, with all hundred thousand. Each is
a descriptor; if a process may not open so many files, mpsd starts several keepers.
"""

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from tests.gpu.comparison import figures, processes, vault
from tests.gpu.comparison.clients import Event
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed
from tests.gpu.comparison.vault_wire import Wire

ARENAS, EACH = 1000, 100
SHARES = (0.01, 0.1, 1.0)
PROBE = 5  # arenas that are made to be measured, when the rest is there
CYCLES = 1000
FENCE_SECONDS = 30.0
LOOKS = 10
OPERATIONS = ("create_ms", "fill_ms", "commit_ms", "close_ms")
SLOWER = 3.0  # than with a hundredth
CONFIG = "[vault]\nmax_arenas = 4096\nuser_arenas = 4096\nmax_allocations = 200000\nuser_allocations = 200000\n"


@dataclass(frozen=True, slots=True)
class Size:
    """arenas, allocations: their numbers. memory: of mpsd and of its keepers, in MiB; likewise descriptors."""

    arenas: int
    allocations: int
    mpsd_mib: float
    keeper_mib: float
    mpsd_descriptors: int
    keepers: int
    keeper_descriptors: int
    probe: Event


def run(stage: Stage) -> list[Size]:
    """The sizes that the shared ones grew through."""
    system = stage.another("many", stage.options.front_end, stage.mpsd, config=CONFIG)
    system.start()
    system.warm(10)
    arenas = max(PROBE, round(ARENAS * min(1.0, stage.options.trials / 20)))
    if not stage.options.is_simulated:  # which has some thousand blocks, and no real memory
        room = vault.free_bytes(system) // vault.GRANULE
        _grow(stage, system, "real", arenas, max(1, min(EACH, room // (arenas + PROBE))), ())
        vault.remove_all(system)
        vault.wait_until_free(system, room * vault.GRANULE)
    found = _grow(stage, system, "shared", arenas, EACH, ("--shared",))
    _restart(stage, system, found[-1])
    _one_keeper(stage, system, found[-1])
    vault.remove_all(system)
    _crash(stage, system)
    return found


def _grow(stage: Stage, system: System, kind: str, arenas: int, each: int, how: tuple[str, ...]) -> list[Size]:
    made, found = 0, []
    for share in SHARES:
        wanted = max(1, round(arenas * share))
        if wanted > made:
            _make(system, kind, made, wanted - made, each, how)
        made = max(made, wanted)
        found.append(_size(system, made, each, how))
    _report(stage, kind, found, each)
    return found


def _make(system: System, name: str, first: int, arenas: int, each: int, how: tuple[str, ...]) -> Event:
    shape = ("--from", first, "--arenas", arenas, "--each", each)
    return vault.run(system, "many", "many", "--arena", name, *shape, *how)


def _size(system: System, arenas: int, each: int, how: tuple[str, ...]) -> Size:
    """Measure an operation by making a few more arenas."""
    probe = _make(system, "probe", 0, PROBE, each, how)
    mpsd, keepers = system.pid(), vault.keeper_pids(system)
    found = Size(
        arenas,
        arenas * each,
        processes.memory_mib(mpsd)[0],
        sum(processes.memory_mib(pid)[0] for pid in keepers),
        vault.descriptors(mpsd),
        len(keepers),
        sum(map(vault.descriptors, keepers)),
        probe,
    )
    vault.remove(system, *(f"probe-{number}" for number in range(PROBE)))
    return found


def _report(stage: Stage, kind: str, found: list[Size], each: int) -> None:
    first_size, first = found[0], found[0].probe
    for size in found:
        stage.keep(f"{kind}: {size.arenas} arenas", {name: getattr(size, name) for name in Size.__slots__})
        stage.add(
            f"{size.arenas} arenas, {size.allocations:,} {kind} allocations: resident, descriptors",
            mpsd=f"mpsd {size.mpsd_mib:.1f} MiB, {size.mpsd_descriptors}; "
            f"keepers ({size.keepers}) {size.keeper_mib:.1f} MiB, {size.keeper_descriptors}",
            goal="as many as allocations, and a few" if size is found[-1] else "",
            met=size.keeper_descriptors >= size.allocations if size is found[-1] else None,
            remark=_bytes_each(first_size, size),
        )
        slower = max(size.probe[name] / max(first[name], 0.05) for name in OPERATIONS)
        stage.add(
            f"{size.arenas} arenas, {size.allocations:,} {kind} allocations: one operation",
            mpsd=", ".join(f"{name.removesuffix('_ms')} {size.probe[name]:.3g} ms" for name in OPERATIONS),
            ratio=figures.times(slower),
            goal=f"{SLOWER:.0f} times at most" if size is found[-1] else "",
            met=slower <= SLOWER if size is found[-1] else None,
            remark=f"ratio: the slowest of them, to the first row; fill: open, and {each} allocations",
        )


def _bytes_each(first: Size, size: Size) -> str:
    if size is first:
        return ""
    each = 2**20 / (size.allocations - first.allocations)
    mpsd, keepers = (size.mpsd_mib - first.mpsd_mib) * each, (size.keeper_mib - first.keeper_mib) * each
    return f"{mpsd:.0f} and {keepers:.0f} bytes for each more"


def _restart(stage: Stage, system: System, size: Size) -> None:
    """From the start to the first answer about what an arena holds, before which mpsd has compared what it should have."""
    vault.kill_mpsd(system)
    started = system.start()
    began = time.monotonic()
    with Wire(system.pipe) as wire:
        arena = wire.ask("arena.open", name="shared-0", access="read")
        wire.ask("arena.close", id=arena["id"])
        compared = (time.monotonic() - began) * 1000
        there = _arenas(wire)
    whole = sum(each["allocations"] == size.allocations // size.arenas for each in there)
    stage.add(
        f"mpsd killed with {size.allocations:,} allocations",
        mpsd=f"{figures.ms(started + compared)} until an arena is open again; {whole} arenas whole",
        goal="all",
        met=whole == size.arenas,
        remark=f"{figures.ms(started)} until it is up",
    )


def _one_keeper(stage: Stage, system: System, size: Size) -> None:
    """The arenas that had something in it are empty; all the others are as before."""
    pids = vault.keeper_pids(system)
    if not pids:
        raise SystemFailed("there is no keeper")
    held = vault.descriptors(pids[0])
    began = time.monotonic()
    os.kill(pids[0], signal.SIGKILL)
    each = size.allocations // size.arenas
    with Wire(system.pipe) as wire:
        while all(arena["allocations"] for arena in _arenas(wire)):
            if time.monotonic() > began + vault.EVENT_SECONDS:
                raise SystemFailed("mpsd does not notice that its keeper is dead")
        noticed = (time.monotonic() - began) * 1000
        there = _arenas(wire)
    empty, whole = (sum(arena["allocations"] == count for arena in there) for count in (0, each))
    most = -(-held // each) + len(pids) * 2  # an arena may be in two of them
    stage.add(
        f"one of {len(pids)} keepers killed",
        mpsd=f"{empty} arenas lost, {whole} as before",
        goal="those that had memory in it, and no other",
        met=empty + whole == size.arenas and empty <= most,
        remark=f"it held {held:,}; noticed after {figures.ms(noticed)}",
    )


def _arenas(wire: Wire) -> list[dict[str, Any]]:
    found, after = [], None
    while True:
        page = wire.ask("arena.list", **({"after": after} if after is not None else {}))
        found += page["items"]
        if (after := page["next"]) is None:
            return found


def _crash(stage: Stage, system: System) -> None:
    """Count after the first deaths, since mpsd opens some descriptors once and keeps them."""
    cycles = stage.trials(CYCLES)
    vault.run(system, "crashed", "crash", "--arena", "crash", "--cycles", max(3, cycles // 20))
    before = _descriptors(system)
    crashed = vault.run(system, "crashed", "crash", "--arena", "crash", "--cycles", cycles)
    after = _descriptors(system)
    stage.add(
        f"{cycles} writers killed, each with memory that was not committed: descriptors of mpsd, keepers",
        mpsd=f"{before} before, {after} after",
        goal="none more",
        met=crashed["killed"] == cycles and after[0] <= before[0] + 2 and after[1] <= before[1],
        remark=f"{crashed['each_ms']:.1f} ms each, its start included",
    )
    vault.remove(system, "crash")


def _descriptors(system: System) -> tuple[int, int]:
    """When what the last writer left was given back: the next one is admitted then.  The fewest of some looks, since mpsd has
    others for a moment, as when it brings a database's log into its file."""
    with Wire(system.pipe) as wire:
        arena = wire.ask("arena.open", name="crash", access="write", wait_seconds=FENCE_SECONDS)
        wire.ask("arena.close", id=arena["id"])
    mpsd, keepers = system.pid(), vault.keeper_pids(system)
    if not mpsd or not keepers:
        raise SystemFailed("mpsd or its keepers are gone")
    fewest = vault.descriptors(mpsd)
    for _ in range(LOOKS):
        time.sleep(0.1)
        fewest = min(fewest, vault.descriptors(mpsd))
    return fewest, sum(map(vault.descriptors, keepers))
