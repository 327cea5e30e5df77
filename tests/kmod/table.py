"""The outcome of each case, as a table, and the rows of earlier runs, which the cache keeps. No GPU has run any of it."""

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from tests.kmod.applying import CALLS, KMOD, Applied
from tests.kmod.building import Build, state_of
from tests.kmod.cases import Case
from tests.kmod.distributions import cache_directory
from tests.kmod.machine import Boot, names_of_guest_tests

HEADINGS = ("case", "driver", "kernel", "applied", "built", "warnings", "guest tests", "seconds", "sources")
NOTED = ("record", "event", "debug_locks", "kasan")  # facts of a guest that the table shows below its rows


class Step(IntEnum):
    """How far a case was taken."""

    APPLIED = 1
    BUILT = 2
    BOOTED = 3


@dataclass(frozen=True, slots=True)
class Row:
    """One case.

    cells: as HEADINGS, without the first and the last.  notes: lines below the table.  why: instead of both, why it was not
    tried.  step: the last one that was tried.  state: of kmod/ then.  is_good: nothing failed.
    """

    step: int = 0
    cells: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    why: str = ""
    state: str = ""
    is_good: bool = True

    @property
    def is_current(self) -> bool:
        return self.state == state_now()

    def shows(self, step: Step) -> bool:
        """Whether the case was taken so far with kmod/ as it is, and nothing failed."""
        return self.is_good and self.step >= step and self.is_current


def state_now() -> str:
    return state_of(KMOD)


def skipped_row(case: Case, why: str) -> Row:
    return Row(why=f"{case.driver.rstrip('.')} on {case.distribution.kernel}x: {why}")


def failed_row(case: Case, error: str) -> Row:
    """Return the row of a case whose build failed. error: the output of Root.run, with the log's end."""
    lines = error.splitlines()
    cells = (case.driver.rstrip("."), f"{case.distribution.kernel}x", "?", "NO", "-", "not run", "-")
    return Row(Step.BUILT, cells, (f"NOT BUILT: {lines[0]}", *lines[-3:]), state=state_now(), is_good=False)


def applied_row(applied: Applied) -> Row:
    cells = (applied.driver, "-", f"{applied.calls} of {CALLS}", "not tried", "-", "not run", "-")
    return Row(Step.APPLIED, cells, state=state_now(), is_good=applied.calls == CALLS)


def row_of(build: Build, boot: Boot | None) -> Row:
    """boot: None where the guest has not run."""
    cells = (build.driver, build.kernel, f"{build.calls} of {CALLS}", "yes", str(len(build.warnings)))
    is_good = build.calls == CALLS and not build.warnings
    if boot is None:
        return Row(Step.BUILT, (*cells, "not run", f"build {build.seconds:.0f}"), state=state_now(), is_good=is_good)
    outcomes = [each.outcome for each in boot.results.values()]
    skipped = f", {outcomes.count('skipped')} skipped" if "skipped" in outcomes else ""
    tests = f"{outcomes.count('passed')} of {len(outcomes)}{skipped}"
    seconds = f"build {build.seconds:.0f}, to the first result {boot.first_seconds:.0f}, to the end {boot.seconds:.0f}"
    notes = [f"{name}: {boot.facts[name]}" for name in NOTED if name in boot.facts]
    notes += [f"FAILED: {name}" for name, each in boot.results.items() if each.outcome == "failed"]
    missing = set(names_of_guest_tests()) - set(boot.results)
    if missing:
        notes.append(f"THE GUEST DID NOT COME TO ITS END, {len(missing)} tests: {' | '.join(boot.console.splitlines()[-3:])}")
    is_good = is_good and not missing and "failed" not in outcomes
    return Row(Step.BOOTED, (*cells, tests, seconds), tuple(notes), state=state_now(), is_good=is_good)


def keep(case: Case, row: Row) -> None:
    """Write the row to the cache.  A good one of fewer steps does not replace one of more."""
    before = kept(case)
    if before and row.is_good and row.step < before.step and before.shows(Step(before.step)):
        return
    file = cache_directory() / "results" / f"{case.name}.json"
    file.parent.mkdir(exist_ok=True)
    half = file.with_suffix(".half")
    half.write_text(json.dumps(dataclasses.asdict(row)))
    half.replace(file)


def kept(case: Case) -> Row | None:
    """Return the case's row from the cache, for any sources, or None."""
    try:
        read = json.loads((cache_directory() / "results" / f"{case.name}.json").read_text())
        return Row(**{**read, "cells": tuple(read["cells"]), "notes": tuple(read["notes"])})
    except (FileNotFoundError, ValueError, TypeError):
        return None


def render(rows: Mapping[str, Row]) -> list[str]:
    tried = {name: row for name, row in rows.items() if row.cells}
    whole = [HEADINGS, *((name, *row.cells, "as now" if row.is_current else "older") for name, row in tried.items())]
    widths = [max(len(cells[column]) for cells in whole) for column in range(len(HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip() for cells in whole]
    noted = [f"{name}: {note}" for name, row in rows.items() for note in row.notes]
    return [*lines, *noted, *(f"{name}: not tried: {row.why}" for name, row in rows.items() if row.why)]
