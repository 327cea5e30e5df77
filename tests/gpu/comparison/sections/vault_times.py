"""The time to get and to adopt memory in an arena, compared with plain CUDA memory and with reading the same bytes again."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from tests.gpu.comparison import figures, vault
from tests.gpu.comparison.clients import Event
from tests.gpu.comparison.stage import Stage

SIZES = (1, 16, 64, 120)  # GiB
COUNTS = (1, 10_000)
TRIALS = 5
MANY_TRIALS = 2
RELOADS = 1
MOST_FILE = 8  # GiB
CHUNK = 64 << 20
ARENA = "times"
ADOPTED_MS = {64: 5.0}  # the most, of so many GiB in one allocation
MOST_RATIO = 2.0  # of many allocations, each held by mpsd, to plain ones that can be used
SIMULATED_COUNT = 40  # the simulator has some thousand blocks, and is no measure


@dataclass(slots=True)
class Found:
    """Of `count` allocations of `each` bytes, trial by trial."""

    each: int
    count: int
    alloc: list[Event] = field(default_factory=list)
    vmm: list[Event] = field(default_factory=list)
    wrote: list[Event] = field(default_factory=list)
    adopted: list[Event] = field(default_factory=list)

    def ms(self, events: str, key: str) -> list[float]:
        return [float(event[key]) for event in getattr(self, events)]


def run(stage: Stage) -> None:
    for system in stage.both:
        system.renew()
        system.warm(10)
    reloads = _reload(stage)
    free = vault.free_bytes(stage.mpsd)
    for size in (number * vault.unit(stage) for number in SIZES):
        for wanted in COUNTS:
            found = _shape(stage, min(size, free), wanted)
            for _ in range(stage.trials(TRIALS if wanted == 1 else MANY_TRIALS)):
                _trial(stage, found)
                vault.wait_until_free(stage.mpsd, found.each * found.count)
            _report(stage, found, "" if size <= free else f", all that is free of {vault.size_text(stage, size)}", reloads)
            if size <= free and not stage.options.is_simulated:
                _judge(stage, found)


def _shape(stage: Stage, size: int, wanted: int) -> Found:
    """Each allocation is a multiple of 2 MiB, so that a small size has fewer."""
    wanted = min(wanted, SIMULATED_COUNT) if stage.options.is_simulated else wanted
    each = max(vault.GRANULE, size // wanted // vault.GRANULE * vault.GRANULE)
    return Found(each, max(1, min(wanted, size // each)))


def _trial(stage: Stage, found: Found) -> None:
    shape = ("--bytes", found.each, "--count", found.count)
    found.alloc.append(vault.run(stage.vendor, "plain", "plain", "alloc", *shape))
    found.vmm.append(vault.run(stage.vendor, "plain", "plain", "vmm", *shape))
    found.wrote.append(vault.run(stage.mpsd, "wrote", "write", "--arena", ARENA, *shape))
    found.adopted.append(vault.run(stage.mpsd, "adopted", "adopt", "--arena", ARENA))
    vault.remove(stage.mpsd, ARENA)


def _reload(stage: Stage) -> dict[str, float]:
    """Bytes in a millisecond, from the page cache and from the disk."""
    room = min(shutil.disk_usage(stage.work).free // 2, _available() // 3, MOST_FILE * vault.unit(stage))
    size = max(CHUNK, room // CHUNK * CHUNK)
    file = stage.work / "bytes"
    _write(file, size)
    speeds = {}
    for name, how in (("page cache", ()), ("disk", ("--cold",))):
        times = [
            float(vault.run(stage.vendor, "reloaded", "reload", "--file", file, "--bytes", size, *how)["ms"])
            for _ in range(stage.trials(RELOADS))
        ]
        stage.keep(f"reload from {name}, ms for {size} bytes", times)
        speeds[name] = size / (figures.median(times) or 1.0)
    file.unlink()
    stage.keep("reloaded bytes", size)
    return speeds


def _write(file: Path, size: int) -> None:
    block = os.urandom(CHUNK)
    with file.open("wb") as out:
        for _ in range(size // CHUNK):
            out.write(block)
        out.flush()
        os.fsync(out.fileno())


def _available() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))


def _report(stage: Stage, found: Found, remark: str, reloads: dict[str, float]) -> None:
    bytes_ = found.each * found.count
    what = f"{vault.size_text(stage, bytes_)} in {found.count}{remark}"
    stage.keep(what, {name: getattr(found, name) for name in ("alloc", "vmm", "wrote", "adopted")})
    plain, held = found.ms("alloc", "alloc_ms"), found.ms("wrote", "hold_ms")
    stage.add(
        f"{what}: allocate, and held by mpsd",
        vendor=f"cuMemAlloc {_ms(plain)}; create, map, access {_ms(found.ms('vmm', 'alloc_ms'))}",
        mpsd=f"{_ms(held)}; commit {_ms(found.ms('wrote', 'commit_ms'))}",
        ratio=figures.times(figures.ratio(held, found.ms("vmm", "alloc_ms"))),
        remark="ratio: to create, map, access",
    )
    create, us = found.ms("vmm", "create_ms"), 1e3 / found.count
    stage.add(
        f"{what}: each allocation, us",
        vendor=f"cuMemCreate {_us(create, us)}; with map and access {_us(found.ms('vmm', 'alloc_ms'), us)}",
        mpsd=_us(held, us),
        ratio=figures.times(figures.ratio(held, create)),
        remark="ratio: to cuMemCreate alone",
    )
    adopted = found.ms("adopted", "open_ms")
    again = [bytes_ / speed for speed in reloads.values()]
    stage.add(
        f"{what}: adopt",
        vendor="; ".join(f"from {name} {figures.ms(ms)}" for name, ms in zip(reloads, again, strict=True)),
        mpsd=_ms(adopted),
        ratio=f"1/{min(again) / (figures.median(adopted) or 1):,.0f}",
        goal="every word is right",
        met=all(event["wrong"] == 0 and event["is_whole"] and event["count"] == found.count for event in found.adopted),
        remark="reading again: scaled from a file's size; ratio: to the faster",
    )


def _judge(stage: Stage, found: Found) -> None:
    """What was promised of times."""
    what = f"{vault.size_text(stage, found.each * found.count)} in {found.count}"
    adopted, most = figures.median(found.ms("adopted", "open_ms")), ADOPTED_MS.get(found.each // vault.unit(stage))
    if found.count == 1 and most is not None:
        goal = f"<= {most:.0f} ms"
        stage.add(f"{what}: adopt, median", mpsd=figures.ms(adopted), goal=goal, met=adopted is not None and adopted <= most)
    if found.count == max(COUNTS):
        ratio = figures.ratio(found.ms("wrote", "hold_ms"), found.ms("vmm", "alloc_ms"))
        is_met = ratio is not None and ratio <= MOST_RATIO
        goal = f"<= {MOST_RATIO:.0f}"
        stage.add(f"{what}: held, to create, map and access", ratio=figures.times(ratio), goal=goal, met=is_met)


def _ms(values: list[float]) -> str:
    worst = max(values, default=None)
    return f"{figures.ms(figures.median(values))} (worst {figures.ms(worst)})"


def _us(values: list[float], factor: float) -> str:
    return figures.number((figures.median(values) or 0.0) * factor, "us")
