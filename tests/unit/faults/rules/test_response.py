"""Reactions to an incident: the table of response.py, row by row, and the reactions that are forbidden."""

import pytest
from msgspec.structs import replace

from mpsd.faults.rules.response import Drain, End, Finish, Freeze, is_stopped, plan
from mpsd.faults.rules.settings import FaultSettings
from mpsd.model.fault import Confidence, FaultClass, GpuState, Incident, Observation, Source
from mpsd.model.process import ProcessId

A, B = ProcessId(1, 1), ProcessId(2, 1)
DEFAULT, LEAVE, NO_DRAIN = FaultSettings(), FaultSettings(ends_culprit=False), FaultSettings(drain_on_device_fault=False)
RESET = "GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)"


def incident(confidence=Confidence.PROVEN, fault_class=FaultClass.SM, **facts):
    culprit = A if confidence in (Confidence.PROVEN, Confidence.ALONE, Confidence.LEFT) else None
    suspects = (A, B) if confidence is Confidence.SUSPECTED else ()
    made = Incident(
        1, 1, 0, 0.0, False, fault_class, "GPU-a", "default", culprit, confidence, suspects, (B,), None, "", "", None, (), (),
    )  # fmt: skip
    return replace(made, **facts)


def xid(number, text=""):
    return Observation(Source.KERNEL_LOG, 0, xid=number, text=text)


def device(number, text=""):
    return incident(Confidence.UNKNOWN, FaultClass.DEVICE, domain="", victims=(), evidence=(xid(number, text),))


def by_nvml(state):
    seen = Observation(Source.NVML, 0, FaultClass.DEVICE, gpu="GPU-a", gpu_state=state)
    return replace(device(63), evidence=(seen,), xids=())


def contained(process=A, **facts):
    """Return an incident contained by the module."""
    return Observation(Source.KMOD, 0, FaultClass.MMU, process=process, **{"is_proof": True, "is_contained": True} | facts)


def told(process=A, source=Source.KMOD):
    """Return STOPPED or GONE, if the module reported it."""
    return Observation(source, 0, process=process)


BOTH = (Freeze(A), Finish(A))
LOST = incident(Confidence.UNKNOWN, FaultClass.DEVICE, evidence=(contained(), xid(95)))

ROWS = [
    pytest.param(incident(evidence=(contained(),)), DEFAULT, True, BOTH, id="contained: it never runs on, and has no time"),
    pytest.param(incident(evidence=(contained(),)), LEAVE, True, BOTH, id="contained, and culprits are left alone"),
    pytest.param(incident(evidence=(contained(),)), DEFAULT, False, (), id="contained, and it has gone"),
    pytest.param(incident(evidence=(contained(), told())), DEFAULT, True, BOTH, id="contained, and off the GPU already"),
    pytest.param(incident(evidence=(contained(is_contained=False),)), DEFAULT, True, (End(A),), id="not contained"),
    pytest.param(
        incident(evidence=(contained(), contained(is_contained=False))), DEFAULT, True, BOTH, id="contained at first, then not"
    ),
    pytest.param(incident(evidence=(contained(), contained(B))), DEFAULT, True, BOTH, id="another has an incident of its own"),
    pytest.param(LOST, DEFAULT, True, BOTH, id="contained, and excused: it reads zeros all the same"),
    pytest.param(
        incident(evidence=(contained(None, is_proof=False),)), DEFAULT, True, (End(A),), id="contained, of nobody knows whom"
    ),
    pytest.param(incident(), DEFAULT, True, (End(A),), id="a proof"),
    pytest.param(incident(), DEFAULT, False, (), id="it has gone"),
    pytest.param(incident(), LEAVE, True, (), id="not to be ended"),
    pytest.param(incident(Confidence.ALONE), DEFAULT, True, (), id="alone: evidence may come still"),
    pytest.param(incident(Confidence.ALONE, is_settled=True), DEFAULT, True, (End(A),), id="alone, settled"),
    pytest.param(incident(Confidence.LEFT, is_settled=True), DEFAULT, True, (End(A),), id="the only one left, settled"),
    pytest.param(incident(Confidence.SUSPECTED, is_settled=True), DEFAULT, True, (), id="suspects are left alone"),
    pytest.param(incident(Confidence.UNKNOWN, is_settled=True), DEFAULT, True, (), id="nobody is accused"),
    pytest.param(incident(Confidence.ALONE, FaultClass.HOST, is_settled=True), DEFAULT, True, (), id="it was killed"),
    pytest.param(incident(fault_class=FaultClass.DEVICE), DEFAULT, True, (), id="the GPU did it"),
    pytest.param(device(79), DEFAULT, False, (Drain("GPU-a"),), id="the GPU is gone"),
    pytest.param(by_nvml(GpuState.LOST), DEFAULT, False, (Drain("GPU-a"),), id="NVML has lost it"),
    pytest.param(by_nvml(GpuState.DRAINED), DEFAULT, False, (Drain("GPU-a"),), id="an administrator drains it"),
    pytest.param(by_nvml(None), DEFAULT, False, (), id="an Xid drains nothing by its source"),
    pytest.param(device(79), NO_DRAIN, False, (), id="it is not to be drained"),
    pytest.param(device(63), DEFAULT, False, (), id="a row of memory was replaced"),
    pytest.param(device(154, RESET), DEFAULT, False, (Drain("GPU-a"),), id="154 says that it must be reset"),
    pytest.param(device(154), DEFAULT, False, (), id="154 from NVML, which has no text"),
    pytest.param(replace(device(79), gpu=""), DEFAULT, False, (), id="it is not known which GPU"),
    pytest.param(incident(evidence=(xid(79),)), LEAVE, True, (), id="the GPU's own incident drains it"),
]


@pytest.mark.parametrize(("of", "settings", "is_alive", "expected"), ROWS)
def test_what_is_done(of, settings, is_alive, expected):
    assert plan(of, settings, frozenset(), lambda process: is_alive) == expected


@pytest.mark.parametrize(("of", "settings", "is_alive", "expected"), ROWS)
def test_nothing_is_done_twice(of, settings, is_alive, expected):
    """Regardless of the outcome."""
    assert plan(replace(of, revision=9), settings, frozenset(expected), lambda process: is_alive) == ()


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        pytest.param((contained(),), False, id="the fault alone"),
        pytest.param((contained(), told()), True, id="its channels have left, or its address space is gone"),
        pytest.param((contained(), told(B)), False, id="somebody else's"),
        pytest.param((contained(), told(source=Source.PROCESS)), False, id="another source"),
    ],
)
def test_whether_its_channels_have_left_the_gpu(evidence, expected):
    assert is_stopped(incident(evidence=evidence), A) is expected
