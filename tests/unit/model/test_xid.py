"""The table of Xids: that nothing is concluded from a number that NVIDIA's documents and measurements do not bear out."""

import re

import pytest

from mpsd.model.fault import FaultClass
from mpsd.model.xid import CONSEQUENCE, ENDS_SERVER, XIDS, meaning_of, must_drain, named_pid

MEASURED = {13, 31, 43}  # measured: after these every client of the vendor's server was lost
# Xids with a reset of the GPU or a restart of the machine as immediate action in NVIDIA's catalog.
RESETS = {46, 54, 62, 64, 79, 95, 109, 110, 119, 120, 136, 140, 143, 151}


def test_what_was_measured_to_end_servers_does():
    assert ENDS_SERVER >= MEASURED
    assert {number for number in ENDS_SERVER if XIDS[number].fault_class is not FaultClass.DEVICE} == MEASURED | {69}


def test_gpus_are_drained_where_nvidia_says_that_they_must_be_reset():
    assert {number for number in XIDS if must_drain(number)} == RESETS
    assert all(XIDS[number].fault_class is FaultClass.DEVICE for number in RESETS)


def test_the_removal_of_a_channel_means_nothing_by_itself():
    known = XIDS[CONSEQUENCE]
    assert not known.ends_server
    assert not known.drains
    assert not known.excuses


def test_every_number_that_operators_meet_is_there():
    wanted = [8, 13, 31, 32, 38, 43, 44, 45, 46, 48, 56, 57, 58, 61, 62, 63, 64, 66, 68, 69, 74, 79, 92, 94, 95, 109, 110]
    wanted += [*range(119, 129), *range(136, 155)]
    assert not [number for number in wanted if number not in XIDS]


def test_names_and_meanings_are_one_line_each():
    for known in XIDS.values():
        assert re.fullmatch(r"[^\n]{4,60}", known.name), known
        assert re.fullmatch(r"[^\n]{10,128}", known.meaning), known
        assert known.meaning != known.name


@pytest.mark.parametrize(
    ("number", "excuses"),
    [
        pytest.param(31, False, id="a page fault is somebody's"),
        pytest.param(48, True, id="lost data are the GPU's"),
        pytest.param(79, True, id="so is a GPU that is gone"),
        pytest.param(63, False, id="a row that was replaced hurt nobody"),
        pytest.param(92, False, id="nor did an error that was repaired"),
        pytest.param(999, False, id="unknown"),
    ],
)
def test_which_errors_of_the_gpu_explain_the_end_of_a_server(number, excuses):
    assert meaning_of(number).excuses is excuses


@pytest.mark.parametrize(
    ("text", "drains"),
    [
        pytest.param("Xid (PCI:0000:06): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)", True),
        pytest.param("GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", True),
        pytest.param("GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", True),
        pytest.param("GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)", False, id="only its links"),
        pytest.param("GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)", False, id="it is over"),
        pytest.param("", False, id="NVML tells no text"),
    ],
)
def test_what_154_asks_for(text, drains):
    assert must_drain(154, text) is drains


def test_an_unknown_number_is_said_to_be_unknown():
    assert meaning_of(999).name == "Xid 999"
    assert meaning_of(999).fault_class is FaultClass.UNKNOWN


@pytest.mark.parametrize(
    ("text", "pid"),
    [
        ("NVRM: Xid (PCI:0000:00:06): 31, pid=22078, name=nvidia-cuda-mps, channel 0x0000000a", 22078),
        ("NVRM: Xid (PCI:0000:00:06): 31, pid='22078', name=nvidia-cuda-mps", 22078),
        ("NVRM: Xid (PCI:0000:00:06): 13, Graphics Exception: name=x, pid=5", None),
        ("", None),
    ],
)
def test_the_process_that_a_line_names(text: str, pid: int | None) -> None:
    assert named_pid(text) == pid
