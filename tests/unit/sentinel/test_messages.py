"""Reports of a sentinel: what is not one is refused, and a failure is put into words."""

import struct

import pytest

from mpsd.errors import ProtocolError
from mpsd.sentinel.messages import VERSION, SentinelKind, SentinelOp, SentinelReport, pack_request, parse_report

REPORT = struct.Struct("=IIIiQQIIIIQ")  # native/include/mpsd_sentinel.h
HOLDS = (VERSION, 3, 101, 0, 5, 0x7F00, 0, 0, 4, 1, 4096)


def test_a_report_is_parsed() -> None:
    expected = SentinelReport(SentinelKind.HOLDS, 101, 0, 5, 0x7F00, 0, 0, 4, True, 4096)
    assert parse_report(REPORT.pack(*HOLDS)) == expected


@pytest.mark.parametrize(
    "data",
    [
        REPORT.pack(*HOLDS)[:-1],
        REPORT.pack(*HOLDS) + b"\0",
        REPORT.pack(VERSION + 1, *HOLDS[1:]),
        REPORT.pack(VERSION, 99, *HOLDS[2:]),
    ],
    ids=["short", "long", "another version", "unknown kind"],
)
def test_what_is_no_report_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        parse_report(data)


def test_a_request_names_the_process() -> None:
    assert pack_request(SentinelOp.ADD, 101) == struct.pack("=IIII", VERSION, 1, 101, 0)


@pytest.mark.parametrize(
    ("step", "status", "words"),
    [
        (1, 500, "no usable libcuda.so.1"),
        (3, -2, "ENOENT"),
        (7, 0x56, "status 0x56"),
        (9, 0, "had other warps"),
        (99, 1, "step 99"),
    ],
)
def test_a_failure_is_put_into_words(step: int, status: int, words: str) -> None:
    assert words in SentinelReport(SentinelKind.FAILED, status=status, count=step).why
