"""The weight of a line in a vendor's log before another source confirms it."""

import pytest

from mpsd.domains.rules.line_alarm import LINE_PAUSE_SECONDS, LINE_SECONDS, LineAlarm
from mpsd.faults.rules.unconfirmed_lines import CONFIRM_NS, Unconfirmed, confirms_fault
from mpsd.model.fault import Observation, Source
from mpsd.model.process import ProcessId

MS = 1_000_000


def line(ms: int, domain: str = "default") -> Observation:
    return Observation(Source.VENDOR_LOG, ms * MS, domain=domain)


def test_lines_alone_keep_newcomers_out_for_a_moment_and_seldom() -> None:
    """However often they are repeated: a tenth of the time at most."""
    alarm, closed, until = LineAlarm(), 0, -1.0
    for tenth in range(10 * 100):
        now = tenth / 10
        until = max(until, alarm.until(now) or -1.0)
        closed += now < until
    assert closed / 10 == pytest.approx(100 * LINE_SECONDS / LINE_PAUSE_SECONDS, abs=LINE_SECONDS)


def test_a_line_is_passed_on_with_what_confirms_it_and_as_of_then() -> None:
    """As of then: one that was made up before the fault would date it too early."""
    lines = Unconfirmed()
    assert not lines.hear(line(0))
    assert not lines.hear(line(5, "d2"))
    assert lines.confirm("default", 300 * MS) == (line(300),)
    assert lines.confirm("default", 301 * MS) == ()
    assert lines.hear(line(400))
    assert not lines.hear(line(400, "d2"))


@pytest.mark.parametrize(("after_ns", "is_passed_on"), [(CONFIRM_NS, True), (CONFIRM_NS + 1, False)])
def test_a_confirmation_holds_for_the_lines_of_a_moment(after_ns: int, is_passed_on: bool) -> None:
    lines = Unconfirmed()
    lines.hear(line(0))
    assert bool(lines.confirm("default", after_ns)) == is_passed_on
    late = Unconfirmed()
    late.confirm("default", 0)
    assert late.hear(Observation(Source.VENDOR_LOG, after_ns, domain="default")) == is_passed_on


def test_what_nothing_confirms_is_dropped_and_counted() -> None:
    lines = Unconfirmed()
    for ms in (0, 1, 1000):
        lines.hear(line(ms))
    assert lines.next_drop_ns() == CONFIRM_NS + 1
    assert lines.drop_late(CONFIRM_NS + 1) == {"default": 1}
    assert lines.drop_late(CONFIRM_NS + 2 * MS) == {"default": 1}
    assert lines.confirm("default", CONFIRM_NS + 2 * MS) == (line(2002),)
    assert lines.next_drop_ns() is None


def test_no_domain_can_fill_memory() -> None:
    lines = Unconfirmed()
    for ms in range(1000):
        lines.hear(line(ms))
    assert len(lines.confirm("default", 1000 * MS)) == 64
    lines.hear(line(10_000))
    lines.forget_but(())
    assert lines.next_drop_ns() is None
    assert not lines.hear(line(10_001))


PROOF = {"process": ProcessId(101, 7), "is_proof": True}


@pytest.mark.parametrize(
    ("source", "facts", "expected"),
    [
        pytest.param(Source.KERNEL_LOG, {"xid": 31}, True, id="an Xid that ends servers"),
        pytest.param(Source.NVML, {"xid": 13}, True, id="the same by NVML"),
        pytest.param(Source.KERNEL_LOG, {"xid": 63}, False, id="another Xid"),
        pytest.param(Source.KERNEL_LOG, {"xid": 31, "domain": ""}, False, id="of no domain"),
        pytest.param(Source.UVM_EVENTS, PROOF, True, id="a fatal event"),
        pytest.param(Source.UVM_EVENTS, PROOF | {"is_contained": True}, False, id="a contained one"),
        pytest.param(Source.CORE_DUMP, PROOF, False, id="a dump, which its author can make up"),
        pytest.param(Source.REPORT, {"process": ProcessId(101, 7)}, False, id="a client's word"),
        pytest.param(Source.VENDOR_LOG, {}, False, id="another line"),
    ],
)
def test_the_kernel_confirms_a_line(source: Source, facts: dict[str, object], expected: bool) -> None:
    assert confirms_fault(Observation(source, 0, **{"domain": "default"} | facts)) is expected  # type: ignore[arg-type]
