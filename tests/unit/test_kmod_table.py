"""The table of tests/kmod: which cases run by default, and which rows the cache keeps."""

from pathlib import Path

import pytest

from tests.kmod.applying import CALLS, Applied
from tests.kmod.building import Build
from tests.kmod.cases import ALL_WANTED, CASES, DEBUG_WANTED, DRIVERS, Case
from tests.kmod.distributions import Unavailable
from tests.kmod.machine import Boot, Result, names_of_guest_tests
from tests.kmod.table import HEADINGS, Row, Step, applied_row, failed_row, keep, kept, render, row_of

CASE = next(each for each in CASES if each.name == "debian12-580")


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, no release archive, and no variable."""
    for name in (ALL_WANTED, DEBUG_WANTED):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MPSD_KMOD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(DRIVERS, str(tmp_path))
    return tmp_path


def built(place: Path, calls: int = CALLS, log: str = "") -> Build:
    (place / "build.log").write_text(log)
    return Build(place, place / "vmlinuz", "6.1.0-1-amd64", "580.142", 99.6, calls, 15)


def booted(outcome: str = "passed", left_out: int = 0) -> Boot:
    names = names_of_guest_tests()
    return Boot({each: Result(outcome, 1.0, "") for each in names[left_out:]}, {}, "the console", 60.4, 10.2)


def default_cases() -> set[str]:
    def runs(case: Case) -> bool:
        try:
            case.check()
        except Unavailable:
            return False
        return True

    return {each.name for each in CASES if runs(each)}


def test_without_release_archives_the_distributions_own_drivers_run() -> None:
    assert default_cases() == {"debian12", "debian13"}


def test_with_them_the_releases_run_once_on_each_kernel(machine: Path) -> None:
    for driver in ("570.211.01", "580.142", "595.45.04"):
        (machine / f"{driver}.tar.xz").touch()
    assert default_cases() == {"debian12-580", "debian13-595"}


def test_a_row_of_fewer_steps_does_not_replace_a_good_one(tmp_path: Path) -> None:
    whole = row_of(built(tmp_path), booted())
    keep(CASE, whole)
    keep(CASE, row_of(built(tmp_path), None))
    keep(CASE, applied_row(Applied("580.142", CALLS, 15)))
    assert kept(CASE) == whole
    assert whole.shows(Step.BOOTED)


def test_a_failure_replaces_what_was_good(tmp_path: Path) -> None:
    keep(CASE, row_of(built(tmp_path), booted()))
    keep(CASE, failed_row(CASE, "kmod/build: exit status 2; the log ends:\nuvm_mpsd.c:1: error: no"))
    row = kept(CASE)
    assert row is not None
    assert not row.shows(Step.APPLIED)
    assert any("error: no" in each for each in row.notes)


def test_a_row_of_other_sources_shows_nothing(tmp_path: Path) -> None:
    whole = row_of(built(tmp_path), booted())
    keep(CASE, Row(whole.step, whole.cells, state="of before"))
    row = kept(CASE)
    assert row is not None
    assert not row.shows(Step.APPLIED)
    assert render({CASE.name: row})[1].endswith("older")


@pytest.mark.parametrize(
    ("calls", "log", "boot"),
    [
        (CALLS - 1, "", booted()),
        (CALLS, "nvidia-uvm/uvm_mpsd.c:1:2: warning: unused", booted()),
        (CALLS, "", booted("failed")),
        (CALLS, "", booted(left_out=1)),
    ],
    ids=["a call fewer", "a warning", "a failed test", "a guest that stopped early"],
)
def test_what_is_not_whole_is_not_good(tmp_path: Path, calls: int, log: str, boot: Boot) -> None:
    assert not row_of(built(tmp_path, calls, log), boot).is_good


def test_a_row_has_a_cell_for_each_heading(tmp_path: Path) -> None:
    rows = {
        "booted": row_of(built(tmp_path), booted()),
        "failed": failed_row(CASE, "no"),
        "applied": applied_row(Applied("1", 7, 1)),
    }
    assert all(len(row.cells) == len(HEADINGS) - 2 for row in rows.values())
    total = len(names_of_guest_tests())
    assert f"{total} of {total}" in render(rows)[1]
