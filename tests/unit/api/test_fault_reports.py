"""fault.report: what a client may report about itself, and how often it counts."""

from pathlib import Path
from typing import Any

import pytest

from mpsd.api.authority import Peer
from mpsd.api.fault_reports import REPORTERS, REPORTS, Reports
from mpsd.model.fault import FirstError
from mpsd.model.process import ProcessId
from tests.unit.api.fake_daemon import OWNER, open_daemon
from tests.unit.api.fake_incidents import ALICES

BOB = Peer(700, 2000, False)
ERROR = {
    "code": 700, "name": "CUDA_ERROR_ILLEGAL_ADDRESS", "kernel": "oob_write", "pc": 2**64 - 1, "address": 0, "text": "x" * 400,
}  # fmt: skip


async def test_a_client_reports_its_own_error(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        told = await (await daemon.call_as(OWNER)).ask("fault.report", **ERROR)
        assert told == {"pid": 586, "start_time": 5860, "counts": True, "left": REPORTS - 1}
        assert list(daemon.fakes.faults.reported) == [(ALICES, FirstError(*ERROR.values()))]


@pytest.mark.parametrize(
    "peer",
    [
        pytest.param(Peer(0, 1000, False), id="of another pid namespace"),
        pytest.param(Peer(999, 1000, False), id="no client"),
        pytest.param(Peer(586, 2000, False), id="another user's connection, whose pid is now a client's"),
        pytest.param(Peer(586, 0, True), id="even root's"),
        pytest.param(Peer(588, 1000, False), id="a process that is not there"),
    ],
)
async def test_nobody_reports_for_another(peer: Peer, tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[999] = 1
        assert await (await daemon.call_as(peer)).refusal("fault.report", **ERROR) == "NO_SUCH_CLIENT"
        assert not daemon.fakes.faults.reported


async def test_a_later_process_with_the_pid_of_a_client_is_not_that_client(tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        daemon.fakes.processes[586] = 99999
        assert await (await daemon.call_as(OWNER)).refusal("fault.report", **ERROR) == "NO_SUCH_CLIENT"


async def test_the_first_reports_of_a_process_count_and_no_more(tmp_path: Path) -> None:
    """On however many connections; another process has its own."""
    async with open_daemon(tmp_path) as daemon:
        for number in range(REPORTS + 3):
            told = await (await daemon.call_as(OWNER)).ask("fault.report", code=700 + number)
            assert (told["counts"], told["left"]) == (number < REPORTS, max(0, REPORTS - number - 1))
        assert [error.code for _, error in daemon.fakes.faults.reported] == [700, 701, 702, 703]
        assert (await (await daemon.call_as(BOB)).ask("fault.report", code=700))["counts"]


@pytest.mark.parametrize(
    "said",
    [{}, {"code": 0}, {"code": "700"}, {"code": 2**31}, {"code": 700.0}, {"code": 700, "pid": 700},
     {"code": 700, "text": "x" * 401}, {"code": 700, "text": "a\nb"}, {"code": 700, "name": "\x1b[2J"},
     {"code": 700, "kernel": "\u202e"}, {"code": 700, "pc": -1},
     {"code": 700, "address": 2**64 - 1, "name": "x" * 65}],
)  # fmt: skip
async def test_a_report_that_is_none_is_refused(said: dict[str, Any], tmp_path: Path) -> None:
    async with open_daemon(tmp_path) as daemon:
        caller = await daemon.call_as(OWNER)
        assert await caller.refusal("fault.report", **said) == "BAD_REQUEST"
        assert not daemon.fakes.faults.reported
        assert (await caller.ask("fault.report", code=700))["left"] == REPORTS - 1


def test_only_so_many_reporters_are_remembered() -> None:
    reports = Reports()
    for pid in range(REPORTERS + 10):
        reports.count(ProcessId(pid, 1))
        reports.count(ProcessId(0, 1))
    assert len(reports._counts) == REPORTERS
    assert reports.left(ProcessId(0, 1)) < 0
    assert reports.left(ProcessId(1, 1)) == REPORTS
