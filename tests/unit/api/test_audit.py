"""The audit: a file of its own with its own mode and bounded lines; a disk that hangs delays no caller."""

import json
import os
import re
import socket
import stat
import threading
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from mpsd.api.audit import Audit, Trail, open_audit
from mpsd.config.log_options import LogOptions
from mpsd.fairness.uid_ranges import parse
from mpsd.log.sink import LogFile, Rotation
from mpsd.log.syslog import Severity, send_lines
from tests.unit.api.fake_daemon import OPERATOR, OWNER, STRANGER, audit_in, open_daemon

USERS = Trail.USERS.value


def lines(directory: Path, trail: Trail) -> list[dict[str, object]]:
    path = directory / trail.value
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_a_line_says_who_did_what_and_what_came_of_it(tmp_path: Path) -> None:
    audit = audit_in(tmp_path)
    audit.record(OWNER, "lease.release", {"id": 7}, "done")
    audit.close()
    file = tmp_path / USERS
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
    audit = audit_in(tmp_path)
    audit.record(OWNER, "lease.create", {"name": "x\n" * 40000}, "BAD_REQUEST: \x1b[2J\n")
    audit.close()
    text = (tmp_path / USERS).read_text()
    assert len(text) < 10000
    assert text.count("\n") == 1
    assert "\x1b" not in text


def test_what_operators_changed_users_changed_and_what_was_refused_are_apart(tmp_path: Path) -> None:
    audit = audit_in(tmp_path)
    audit.record(OPERATOR, "limits.set", {}, "done")
    audit.record(OWNER, "lease.create", {}, "done")
    audit.record(OWNER, "limits.set", {}, "NOT_ALLOWED: no", is_refused=True)
    audit.record(OPERATOR, "lease.get", {}, "NO_SUCH_LEASE: 7", is_refused=True)
    audit.close()
    found = {trail: [(line["event"], line["uid"]) for line in lines(tmp_path, trail)] for trail in Trail}
    assert found == {
        Trail.OPERATORS: [("change", OPERATOR.uid)],
        Trail.USERS: [("change", OWNER.uid)],
        Trail.REFUSED: [("refusal", OWNER.uid), ("refusal", OPERATOR.uid)],
    }


def test_one_user_cannot_fill_a_trail_and_what_is_left_out_is_counted(tmp_path: Path) -> None:
    """Forty thousand refusals were enough to rotate everything else out."""
    now = 0.0
    files = {trail: LogFile(str(tmp_path / trail.value), Rotation()) for trail in Trail}
    audit = Audit(files, clock=lambda: now)
    for number in range(8000):
        audit.record(STRANGER, "limits.set", {"number": number}, "NOT_ALLOWED: no", is_refused=True)
    audit.record(OWNER, "limits.set", {}, "NOT_ALLOWED: no", is_refused=True)
    audit.record(OPERATOR, "limits.set", {}, "NOT_ALLOWED: no", is_refused=True)
    audit.close()
    found = lines(tmp_path, Trail.REFUSED)
    assert (tmp_path / Trail.REFUSED.value).stat().st_size < 300_000
    assert found[-1]["event"] == "lines_suppressed"
    assert (found[-1]["uid"], found[-1]["lines"]) == (STRANGER.uid, 8000 - len(found) + 3)
    assert [line["uid"] for line in found[-3:-1]] == [OWNER.uid, OPERATOR.uid]


def test_the_uids_of_one_range_are_one_user_and_all_users_have_a_bound(tmp_path: Path) -> None:
    now = 0.0
    files = {trail: LogFile(str(tmp_path / trail.value), Rotation()) for trail in Trail}
    audit = Audit(files, ranges=parse("eve:100000:65536\n"), clock=lambda: now)
    what = {"name": "x" * 4000}
    for uid in range(100_000, 100_400):
        audit.record(replace(OWNER, uid=uid), "lease.create", what, "done")
    audit.record(OWNER, "lease.create", what, "done")
    for uid in range(200_000, 206_000):
        audit.record(replace(OWNER, uid=uid), "lease.create", what, "done")
    audit.close()
    found = [line for line in lines(tmp_path, Trail.USERS) if line["event"] == "change"]
    of_range = sum(100_000 <= int(str(line["uid"])) < 165_536 for line in found)
    assert 200 < of_range < 300, "a megabyte"
    assert any(line["uid"] == OWNER.uid for line in found)
    assert (tmp_path / USERS).stat().st_size < 18 << 20, "sixteen users' part"


def test_a_syslog_daemon_gets_what_must_not_be_lost(tmp_path: Path) -> None:
    """The lines go to syslog even if the files cannot be written."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslogd:
        syslogd.settimeout(20)
        syslogd.bind(str(tmp_path / "log"))
        (tmp_path / "no directory").touch()  # a directory that is only missing would be made again
        audit = open_audit(str(tmp_path / "no directory"), LogOptions(audit_socket=str(tmp_path / "log")))
        audit.record(OPERATOR, "limits.set", {}, "done")
        head, _, text = syslogd.recv(65536).partition(b": ")
        assert re.fullmatch(rb"<85>[A-Z][a-z]{2} [ 1-3][0-9] [0-9:]{8} mpsd\[%d\]" % os.getpid(), head)
        assert json.loads(text)["method"] == "limits.set"
        audit.record(STRANGER, "limits.set", {}, "NOT_ALLOWED: no", is_refused=True)
        assert syslogd.recv(65536).startswith(b"<86>")
        audit.close()
    assert audit.lost == 2  # of the files


def test_a_syslog_daemon_that_comes_back_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "log"
    send = partial(send_lines, str(path), Severity.NOTICE)
    with pytest.raises(OSError, match="No such file"):
        send(b"lost\n")
    for text in (b"one", b"two"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as syslogd:
            syslogd.bind(str(path))
            send(text + b"\n")
            assert syslogd.recv(65536).endswith(text)
        path.unlink()


def test_it_is_renamed_when_it_is_large(tmp_path: Path) -> None:
    audit = open_audit(str(tmp_path), LogOptions(max_bytes=65536))
    for number in range(1000):
        audit.record(OWNER, "lease.release", {"id": number}, "done")
    audit.close()
    assert (tmp_path / USERS).stat().st_size <= 65536
    assert (tmp_path / f"{USERS}.1").exists()


class HungFile(LogFile):
    """A disk that answers only when the test allows it."""

    def __init__(self, path: str) -> None:
        super().__init__(path, Rotation())
        self.may_go_on = threading.Event()

    def append(self, line: bytes) -> None:
        self.may_go_on.wait(20)
        super().append(line)


async def test_a_disk_that_hangs_holds_nobody_up(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        file = HungFile(str(tmp_path / USERS))
        daemon.audit = daemon.api._audit = Audit(dict.fromkeys(Trail, file))
        caller = await daemon.call_as(OWNER)
        for _ in range(50):
            await caller.ask("lease.renew", id=1)
        assert not (tmp_path / USERS).exists()
        file.may_go_on.set()
        daemon.audit.close()
    assert len((tmp_path / USERS).read_text().splitlines()) == 50


async def test_a_disk_that_fails_costs_lines_that_are_counted(tmp_path: Path) -> None:
    (tmp_path / "no directory").touch()
    async with open_daemon(tmp_path / "no directory") as daemon:
        caller = await daemon.call_as(OWNER)
        await caller.ask("lease.renew", id=1)
        daemon.audit.close()
        assert (await caller.ask("status"))["audit_lines_lost"] == 1
