"""What came of each case, as a table.  No GPU has run any of it."""

from collections.abc import Mapping
from dataclasses import dataclass

from tests.kmod.building import CALLS, Build
from tests.kmod.cases import Case
from tests.kmod.machine import Boot

HEADINGS = ("case", "driver", "kernel", "applied", "built", "warnings", "guest tests", "seconds")


@dataclass(frozen=True, slots=True)
class Row:
    """cells: as HEADINGS, without the first.  notes: lines below it.  why: instead of both, why it was not tried."""

    cells: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    why: str = ""


def skipped_row(case: Case, why: str) -> Row:
    return Row(why=f"{case.driver.rstrip('.')} on {case.distribution.kernel}x: {why}")


def row_of(build: Build, boot: Boot | None) -> Row:
    """boot: None before the guest has run."""
    applied = f"{build.calls} of {CALLS}"
    cells = (build.driver, build.kernel, applied, "yes", str(len(build.warnings)))
    if boot is None:
        return Row((*cells, "not run", f"build {build.seconds:.0f}"))
    outcomes = [each.outcome for each in boot.results.values()]
    skipped = f", {outcomes.count('skipped')} skipped" if "skipped" in outcomes else ""
    tests = f"{outcomes.count('passed')} of {len(outcomes)}{skipped}"
    seconds = f"build {build.seconds:.0f}, to the first result {boot.first_seconds:.0f}, to the end {boot.seconds:.0f}"
    notes = tuple(f"{name}: {boot.facts[name]}" for name in ("record", "event", "debug_locks") if name in boot.facts)
    return Row((*cells, tests, seconds), notes)


def render(rows: Mapping[str, Row]) -> list[str]:
    whole = [HEADINGS, *((name, *row.cells) for name, row in rows.items() if row.cells)]
    widths = [max(len(cells[column]) for cells in whole) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in whole]
    noted = [f"{name}: {note}" for name, row in rows.items() for note in row.notes]
    return [*lines, *noted, *(f"{name}: not tried: {row.why}" for name, row in rows.items() if row.why)]
