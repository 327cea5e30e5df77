"""What is done about an incident: the table of response.py, row by row, and what must not be done."""

from dataclasses import replace

import pytest

from mpsd.fault import Confidence, FaultClass, Incident, Observation, Party, Source
from mpsd.model import ProcessId
from mpsd.policy.fault_settings import FaultSettings
from mpsd.policy.response import (
    Drain,
    End,
    Notify,
    Occasion,
    Quarantine,
    Recycle,
    Situation,
    Terminate,
    plan,
)

A, B = ProcessId(1, 1), ProcessId(2, 1)
DEFAULT = FaultSettings()
OPENED, KNOWN, SETTLED = (Notify(each) for each in Occasion)
ALIVE, GONE = Situation(is_culprit_alive=True), Situation()
TERMINATE, QUARANTINE = Terminate(A, "default"), Quarantine("lease:7")


def incident(confidence=Confidence.PROVEN, fault_class=FaultClass.SM, **facts):
    culprit = A if confidence in (Confidence.PROVEN, Confidence.ALONE, Confidence.LEFT) else None
    suspects = (A, B) if confidence is Confidence.SUSPECTED else ()
    parties = (Party(A, 1000, "train", lease_id=7), Party(B, 1000, "serve"))
    made = Incident(
        1, 1, 0, 0.0, False, fault_class, "GPU-a", "default", culprit, confidence, suspects, (B,),
        None, "", "", None, (), (), (), parties,
    )  # fmt: skip
    return replace(made, **facts)


def device(number, text=""):
    seen = Observation(Source.KERNEL_LOG, 0, xid=number, text=text)
    return incident(Confidence.UNKNOWN, FaultClass.DEVICE, domain="", victims=(), evidence=(seen,))


ALONE, SETTLED_ALONE = incident(Confidence.ALONE), incident(Confidence.ALONE, is_settled=True)
SUSPECTED = incident(Confidence.SUSPECTED, is_settled=True)

ROWS = [
    pytest.param(incident(), DEFAULT, ALIVE, (OPENED, KNOWN, TERMINATE, QUARANTINE), id="a proof: at once"),
    pytest.param(incident(), DEFAULT, GONE, (OPENED, KNOWN, QUARANTINE), id="it has gone: there is nothing to end"),
    pytest.param(incident(), FaultSettings(culprit="off"), ALIVE, (OPENED, KNOWN, QUARANTINE), id="not to be ended"),
    pytest.param(incident(), FaultSettings(quarantine=False), GONE, (OPENED, KNOWN), id="nor placed apart"),
    pytest.param(
        incident(), FaultSettings(culprit="end"), ALIVE, (OPENED, KNOWN, TERMINATE, QUARANTINE), id="not by a signal first"
    ),
    pytest.param(incident(parties=()), DEFAULT, GONE, (OPENED, KNOWN), id="nobody knows who it was"),
    pytest.param(ALONE, DEFAULT, ALIVE, (OPENED,), id="alone: evidence may come still"),
    pytest.param(SETTLED_ALONE, DEFAULT, ALIVE, (OPENED, KNOWN, SETTLED, TERMINATE, QUARANTINE), id="alone, settled"),
    pytest.param(SUSPECTED, DEFAULT, ALIVE, (OPENED, SETTLED), id="nothing is done to suspects"),
    pytest.param(incident(Confidence.UNKNOWN), DEFAULT, ALIVE, (OPENED,), id="nobody is accused"),
    pytest.param(
        incident(Confidence.ALONE, FaultClass.HOST, is_settled=True),
        DEFAULT,
        ALIVE,
        (OPENED, KNOWN, SETTLED),
        id="it was killed",
    ),
    pytest.param(
        SUSPECTED, DEFAULT, Situation(frozenset(), False, 30.0, 1), (OPENED, SETTLED, Recycle("default")), id="lingering"
    ),
    pytest.param(SUSPECTED, DEFAULT, Situation(frozenset(), False, 29.9, 1), (OPENED, SETTLED), id="not for long enough"),
    pytest.param(SUSPECTED, DEFAULT, Situation(frozenset(), False, 99.0, 0), (OPENED, SETTLED), id="nobody lingers"),
    pytest.param(
        SUSPECTED,
        FaultSettings(recycle_seconds=0),
        Situation(frozenset(), False, 99.0, 1),
        (OPENED, SETTLED),
        id="never renewed",
    ),
    pytest.param(device(79), DEFAULT, GONE, (OPENED, Drain("GPU-a")), id="the GPU is gone"),
    pytest.param(device(79), FaultSettings(drain_on_device_fault=False), GONE, (OPENED,), id="it is not to be drained"),
    pytest.param(device(63), DEFAULT, GONE, (OPENED,), id="a row of memory was replaced"),
    pytest.param(
        device(154, "changed from 0x0 (None) to 0x1 (GPU Reset Required)"), DEFAULT, GONE, (OPENED,), id="another text"
    ),
    pytest.param(
        device(154, "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"),
        DEFAULT,
        GONE,
        (OPENED, Drain("GPU-a")),
        id="154 says that it must be reset",
    ),
    pytest.param(replace(device(79), gpu=""), DEFAULT, GONE, (OPENED,), id="it is not known which GPU"),
]


@pytest.mark.parametrize(("of", "settings", "now", "expected"), ROWS)
def test_what_is_done(of, settings, now, expected):
    assert plan(of, settings, now) == expected


@pytest.mark.parametrize(("of", "settings", "now", "expected"), ROWS)
def test_nothing_is_done_twice(of, settings, now, expected):
    """Whatever came of it."""
    again = plan(of, settings, replace(now, done=frozenset(expected)))
    assert not set(again) & set(expected)


def test_a_process_is_ended_only_after_its_work():
    settings = FaultSettings(culprit="end")
    tried = replace(ALIVE, done=frozenset({OPENED, KNOWN, TERMINATE, QUARANTINE}))
    assert plan(incident(), settings, tried) == (End(A),)
    assert plan(incident(), settings, replace(tried, is_culprit_alive=False)) == ()
    assert plan(incident(), DEFAULT, tried) == ()
