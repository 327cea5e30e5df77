"""The audit: a file of its own with its own mode, bounded lines, and a disk that hangs holds nobody up."""

import json
import os
import stat
import threading
from pathlib import Path

from mpsd.api.audit import FILE_NAME, Audit, open_audit
from mpsd.sink import LogFile
from tests.unit.api.house import OWNER, open_house


def test_a_line_says_who_did_what_and_what_came_of_it(tmp_path: Path) -> None:
    audit = open_audit(str(tmp_path), 0)
    audit.record(OWNER, "lease.release", {"id": 7}, "done")
    audit.close()
    file = tmp_path / FILE_NAME
    line = json.loads(file.read_text())
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "event": "change", "uid": 1000, "pid": 586, "method": "lease.release", "what": {"id": 7}, "outcome": "done",
    }  # fmt: skip
    assert stat.S_IMODE(file.stat().st_mode) == 0o640 & ~_umask()


def _umask() -> int:
    present = os.umask(0)
    os.umask(present)
    return present


def test_a_line_is_bounded_and_is_one_line(tmp_path: Path) -> None:
    audit = open_audit(str(tmp_path), 0)
    audit.record(OWNER, "lease.create", {"name": "x\n" * 40000}, "BAD_REQUEST: \x1b[2J\n")
    audit.close()
    text = (tmp_path / FILE_NAME).read_text()
    assert len(text) < 10000
    assert text.count("\n") == 1
    assert "\x1b" not in text


def test_it_is_renamed_when_it_is_large(tmp_path: Path) -> None:
    audit = open_audit(str(tmp_path), 65536)
    for number in range(1000):
        audit.record(OWNER, "lease.release", {"id": number}, "done")
    audit.close()
    assert (tmp_path / FILE_NAME).stat().st_size <= 65536
    assert (tmp_path / f"{FILE_NAME}.1").exists()


class HungFile(LogFile):
    """As a disk that answers only when told to."""

    def __init__(self, path: str) -> None:
        super().__init__(path, 0)
        self.may_go_on = threading.Event()

    def append(self, line: bytes) -> None:
        self.may_go_on.wait(20)
        super().append(line)


async def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    async with open_house(tmp_path) as house:
        file = HungFile(str(tmp_path / FILE_NAME))
        house.audit = house.api._audit = Audit(file)
        caller = await house.call_as(OWNER)
        for _ in range(50):
            await caller.ask("lease.renew", id=1)
        assert not (tmp_path / FILE_NAME).exists()
        file.may_go_on.set()
        house.audit.close()
    assert len((tmp_path / FILE_NAME).read_text().splitlines()) == 50


async def test_a_disk_that_fails_costs_lines_that_are_counted(tmp_path: Path) -> None:
    async with open_house(tmp_path / "not there") as house:
        caller = await house.call_as(OWNER)
        await caller.ask("lease.renew", id=1)
        house.audit.close()
        assert (await caller.ask("status"))["audit_lines_lost"] == 1
