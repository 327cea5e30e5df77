"""What a starter makes of a lease that mpsd refuses, or whose answer is lost."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from mpsctl.starter.mpsd_connection import MpsdConnection
from mpsctl.starter.plan import Make, Situation
from mpsctl.starter.reservations import reserve
from mpsctl.starter.restarts import fresh
from mpsctl.starter.runner import Starter
from mpsctl.starter.settings import Given, Task
from mpsd_client import Call, Disconnected, ErrorCode, Refused

from tests.unit.ctl.test_starter_threads import Reports


def starter() -> Any:
    made: Any = Starter.__new__(Starter)
    made._reporter, made._restarts, made._task, made._service = Reports(), fresh(), Task(Given()), None
    made._settled_at = 0.0
    return made


@pytest.mark.parametrize(("code", "counts"), [(ErrorCode.UNUSABLE_PATH, False), (ErrorCode.NO_ROOM, True)])
def test_a_full_disk_of_mpsds_is_no_fault_of_a_member(code: ErrorCode, counts: bool) -> None:
    """After ten members that ended early in a row a starter gives up; a full disk may last longer."""
    made = starter()
    for _ in range(12):
        made._take_refusal(Situation(1, Make(30.0)), Refused(code, code.name, "why"), is_replica=False)
    assert made._restarts[False].has_given_up is counts
    assert made._restarts[False].not_before > time.monotonic()
    assert made._restarts[True].not_before == 0.0
    assert not made._is_gathering(None), "it would not report the service as unserved meanwhile"
    assert made._reporter.made[0] == ("trouble", "no lease for a member: why")


def test_a_lease_whose_answer_is_lost_is_made_once() -> None:
    """The second request made another lease, and the first one held its share until its ttl was over."""
    asked: list[Call[Any]] = []

    def ask(call: Call[Any]) -> Any:
        asked.append(call)
        if len(asked) == 1:
            raise Disconnected(None)
        return "a lease"

    session: Any = SimpleNamespace(mpsd=SimpleNamespace(timeout_seconds=0.0), ask=ask, close=lambda: None)
    made: Any = reserve(MpsdConnection(session), "llm-1", Make(30.0), ("0",), may_wait=True)
    assert made == "a lease"
    first, second = (each.params for each in asked)
    assert first == second
    assert first["request_key"]
