"""What a sentinel's looks at the clients say about them: every row of the table."""

import pytest

from mpsd.model.process import ProcessId
from mpsd.sentinel.messages import SentinelKind, SentinelReport
from mpsd.sentinel.rules.blame import judge_clients

ONE, TWO, THREE = (ProcessId(pid, 1) for pid in (101, 102, 103))
PC = 0x7F0000001000


def look(process: ProcessId, has_it: bool, status: int = 0) -> SentinelReport:
    return SentinelReport(SentinelKind.HOLDS, process.pid, status, pc=PC, is_culprit=has_it)


@pytest.mark.parametrize(
    ("pc", "looks", "proven", "cleared"),
    [
        pytest.param(PC, {ONE: True, TWO: False, THREE: False}, {ONE}, set(), id="one has it"),
        pytest.param(PC, {ONE: True, TWO: True, THREE: False}, set(), {THREE}, id="two have it"),
        pytest.param(PC, {ONE: False, TWO: False, THREE: False}, set(), set(), id="none has it"),
        pytest.param(PC, {ONE: True, TWO: False}, set(), set(), id="one was not looked at"),
        pytest.param(0, {ONE: True, TWO: False, THREE: False}, set(), set(), id="a trap has no program counter"),
    ],
)
def test_the_looks_at_the_clients(
    pc: int, looks: dict[ProcessId, bool], proven: set[ProcessId], cleared: set[ProcessId]
) -> None:
    fault = SentinelReport(SentinelKind.FAULT, pc=pc, time_ns=5)
    holds = {process: look(process, has_it) for process, has_it in looks.items()}
    seen = judge_clients(fault, holds, (ONE, TWO, THREE), "d2", "GPU-1")
    assert {each.process for each in seen if each.is_proof} == proven
    assert {each.process for each in seen if each.clears} == cleared
    assert all(each.is_contained and each.domain == "d2" and each.seen_ns == 5 for each in seen)


def test_a_look_that_failed_counts_as_none() -> None:
    fault = SentinelReport(SentinelKind.FAULT, pc=PC)
    holds = {ONE: look(ONE, True), TWO: look(TWO, False, status=-13)}
    assert judge_clients(fault, holds, (ONE, TWO), "d2", "GPU-1") == []
