"""A thousand arenas with a hundred thousand allocations: what mpsd and its keeper need, and how long an operation takes, as
they grow; a thousand writers that die; whether a descriptor is left anywhere.

Of the two kinds, "real" allocations are memory of their own, 2 MiB each, as far as the GPU's memory goes; the others are one
memory that is given again and again, by whoever speaks the protocol by hand: what mpsd alone costs, with all hundred thousand.
"""

import resource
from contextlib import suppress
from dataclasses import dataclass

from tests.gpu.comparison import figures, processes, vault
from tests.gpu.comparison.clients import Event
from tests.gpu.comparison.stage import Stage
from tests.gpu.comparison.system import System, SystemFailed

ARENAS, EACH = 1000, 100
SHARES = (0.01, 0.1, 1.0)
MOST_DESCRIPTORS, OWN_DESCRIPTORS = 250_000, 200
PROBE = 5  # arenas that are made to be measured, when the rest is there
CYCLES = 1000
OPERATIONS = ("create_ms", "fill_ms", "commit_ms", "close_ms")
SLOWER = 3.0  # than with a hundredth
CONFIG = "[vault]\nmax_arenas = 4096\nuser_arenas = 4096\nmax_allocations = 200000\nuser_allocations = 200000\n"


@dataclass(frozen=True, slots=True)
class Size:
    """arenas, allocations: as many as there were.  memory: of mpsd and of its keeper, in MiB; descriptors likewise."""

    arenas: int
    allocations: int
    mpsd_mib: float
    keeper_mib: float
    mpsd_descriptors: int
    keeper_descriptors: int
    probe: Event


def run(stage: Stage) -> list[Size]:
    """The sizes that the shared ones grew through."""
    most = _most_descriptors()
    system = stage.another("many", stage.options.front_end, stage.mpsd, config=CONFIG)
    system.start()
    system.warm(10)
    arenas = max(PROBE, round(ARENAS * min(1.0, stage.options.trials / 20)))
    if not stage.options.is_simulated:  # which knows some thousand blocks, and has no memory
        room = min(vault.free_bytes(system) // vault.GRANULE, most)
        _grow(stage, system, "real", arenas, _each(room, arenas), ())
        vault.wait_until_free(system, room * vault.GRANULE)
    found = _grow(stage, system, "shared", arenas, _each(most, arenas), ("--shared",))
    _crash(stage, system)
    return found


def _each(most: int, arenas: int) -> int:
    """Allocations of each arena, whose layout is a descriptor too."""
    return max(1, min(EACH, most // (arenas + PROBE) - 1))


def _most_descriptors() -> int:
    """That the keeper can hold: the limit that it inherits, where the machine does not let us raise it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, MOST_DESCRIPTORS))
        return MOST_DESCRIPTORS
    return hard - OWN_DESCRIPTORS


def _grow(stage: Stage, system: System, kind: str, arenas: int, each: int, how: tuple[str, ...]) -> list[Size]:
    made, found = 0, []
    for share in SHARES:
        wanted = max(1, round(arenas * share))
        if wanted > made:
            _make(system, kind, made, wanted - made, each, how)
        made = max(made, wanted)
        found.append(_size(system, made, each, how))
    _report(stage, kind, found, each)
    vault.remove_all(system)
    return found


def _make(system: System, name: str, first: int, arenas: int, each: int, how: tuple[str, ...]) -> Event:
    shape = ("--from", first, "--arenas", arenas, "--each", each)
    return vault.run(system, "many", "many", "--arena", name, *shape, *how)


def _size(system: System, arenas: int, each: int, how: tuple[str, ...]) -> Size:
    """A few more are made, which tells what one costs beside all the others."""
    probe = _make(system, "probe", 0, PROBE, each, how)
    mpsd, keeper = system.pid(), vault.keeper_pid(system)
    found = Size(
        arenas,
        arenas * each,
        processes.memory_mib(mpsd)[0],
        processes.memory_mib(keeper)[0],
        vault.descriptors(mpsd),
        vault.descriptors(keeper),
        probe,
    )
    vault.remove(system, *(f"probe-{number}" for number in range(PROBE)))
    return found


def _report(stage: Stage, kind: str, found: list[Size], each: int) -> None:
    first = found[0].probe
    for size in found:
        stage.keep(f"{kind}: {size.arenas} arenas", {name: getattr(size, name) for name in Size.__slots__})
        stage.add(
            f"{size.arenas} arenas, {size.allocations:,} {kind} allocations: resident, descriptors",
            mpsd=f"mpsd {size.mpsd_mib:.1f} MiB, {size.mpsd_descriptors}; "
            f"keeper {size.keeper_mib:.1f} MiB, {size.keeper_descriptors}",
            goal="as many as allocations, and a few" if size is found[-1] else "",
            met=size.keeper_descriptors >= size.allocations if size is found[-1] else None,
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


def _crash(stage: Stage, system: System) -> None:
    """Counted after some have died: what is opened once and kept belongs to nobody's death."""
    cycles = stage.trials(CYCLES)
    vault.run(system, "crashed", "crash", "--arena", "crash", "--cycles", max(3, cycles // 20))
    before = _descriptors(system)
    crashed = vault.run(system, "crashed", "crash", "--arena", "crash", "--cycles", cycles)
    after = _descriptors(system)
    stage.add(
        f"{cycles} writers killed, each with memory that was not committed: descriptors of mpsd, keeper",
        mpsd=f"{before} before, {after} after",
        goal="none more",
        met=crashed["killed"] == cycles and after[0] <= before[0] + 2 and after[1] <= before[1],
        remark=f"{crashed['each_ms']:.1f} ms each, its start included",
    )
    vault.remove(system, "crash")


def _descriptors(system: System) -> tuple[int, int]:
    mpsd, keeper = system.pid(), vault.keeper_pid(system)
    if not mpsd or not keeper:
        raise SystemFailed("mpsd or its keeper is gone")
    return vault.descriptors(mpsd), vault.descriptors(keeper)
