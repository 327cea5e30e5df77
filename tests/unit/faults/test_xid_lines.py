"""Xid lines, of driver 580 on an H200 and of NVIDIA's documentation."""

import pytest

from mpsd.faults.xid_lines import Xid, parse_xid


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("3,2,5,-;NVRM: Xid (PCI:0000:00:06): 43, pid=22078, name=nvidia-cuda-mps", Xid("PCI:0000:00:06", 43, 22078)),
        ("NVRM: Xid (PCI:0000:00:06): 31, pid=20996, name=counter, MMU Fault", Xid("PCI:0000:00:06", 31, 20996)),
        ("NVRM: Xid (PCI:0000:03:00): 14, Channel 00000001", Xid("PCI:0000:03:00", 14, None)),
        ("NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has", Xid("PCI:0000:41:00", 79, None)),
        ("NVRM: loading NVIDIA UNIX Open Kernel Module", None),
        ("", None),
    ],
)
def test_xids(line, expected):
    assert parse_xid(line) == expected
