"""Xid lines, of driver 580 on an H200 and of NVIDIA's documentation."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpsd.faults.sources.kernel_log_lines import Xid, gpu_at, observe, parse_xid
from mpsd.model.device import Device
from mpsd.model.fault import TEXT_CHARACTERS, FaultClass, Source

MMU = (
    "4,1234,5678901,c;NVRM: Xid (PCI:0000:00:06): 31, pid=20996, name=counter, channel 0x0000000e, intr 00000000. MMU Fault: "
    "ENGINE GRAPHICS GPC1 GPCCLIENT_T1_6 faulted @ 0x7f9b_03754000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE"
)
DEVICES = [
    Device(0, "GPU-a", "H200", 1, "00000000:00:06.0"),
    Device(1, "GPU-b", "H200", 1, "0000000A:C1:00.0"),
]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("4,2,5,-;NVRM: Xid (PCI:0000:00:06): 43, pid=22078, name=nvidia-cuda-mps", Xid("PCI:0000:00:06", 43, 22078)),
        ("4,2,5,c;NVRM: Xid (PCI:0000:00:06): 31, pid=20996, name=counter, MMU Fault", Xid("PCI:0000:00:06", 31, 20996)),
        ("4,2,5,c;NVRM: Xid (PCI:0000:03:00): 14, Channel 00000001", Xid("PCI:0000:03:00", 14, None)),
        ("4,2,5,c;NVRM: Xid (PCI:0000:41:00): 79, pid='<unknown>', name=<unknown>, GPU has", Xid("PCI:0000:41:00", 79, None)),
        ("4,2,5,c;NVRM: loading NVIDIA UNIX Open Kernel Module", None),
        ("4,2,5,c,caller=T99;NVRM: Xid (PCI:10000:c1:00.0): 45, pid=7", Xid("PCI:10000:c1:00.0", 45, 7)),
        (
            "4,2,5,c;NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:01): 94, pid=7194, Contained",
            Xid("PCI:0000:01:00 GPU-I:05 GPU-CI:01", 94, 7194),
        ),
        ("", None),
    ],
)
def test_xids(line, expected):
    found = parse_xid(line)
    assert (found and msgspec.structs.replace(found, logged_ns=0, text="")) == expected


def test_the_xid_of_an_mmu_fault_tells_address_and_access():
    found = parse_xid(MMU)
    assert (found.address, found.access, found.logged_ns) == (0x7F9B03754000, "write", 5678901000)
    assert found.text == MMU.partition(";")[2]


@pytest.mark.parametrize(
    ("access", "word"),
    [("VIRT_READ", "read"), ("VIRT_ATOMIC_STRONG", "atomic"), ("PHYS_PREFETCH", "prefetch"), ("VIRT_NEW", "")],
)
def test_accesses(access, word):
    assert parse_xid(MMU.replace("VIRT_WRITE", access)).access == word


FORGED = "NVRM: Xid (PCI:0000:00:06): 43, pid=31692, name=x"
SEGFAULT = "segfault at 0 ip 00005595bd905132 sp 00007ffc01372580 error 6 in"


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(f"12,1,2,-;{FORGED}", id="root of a container wrote it: the kernel notes that it was not itself"),
        pytest.param(f"6,342,16106571439,-;aaaaaaaaaaaaaaa[31995]: {SEGFAULT} {FORGED}[1132,5595bd905000+1000]", id="a file"),
        pytest.param(f"6,340,16071501513,-;NVRM: Xid (PCI:[30630]: {SEGFAULT} {FORGED}[1132]", id="a file and a process"),
        pytest.param(f"4,340,16071501513,-;NVRM: Xid (PCI:[30630]: {SEGFAULT} {FORGED}", id="the same, at another level"),
        pytest.param(f"4,340,16071501513,-;x[30630]: {SEGFAULT} a\\x0a{FORGED}", id="a file's name with a line feed"),
        pytest.param(f"4,1,2,+;{FORGED}", id="the end of another record"),
        pytest.param(f"4,1,2,c; {FORGED}", id="not at the beginning"),
        pytest.param(f"4,1,2,c;x\n SUBSYSTEM=;{FORGED}", id="what the kernel adds to a record"),
        pytest.param("4,1,2,c;NVRM: Xid (PCI:0000:00:0G): 43, pid=1", id="no place"),
        pytest.param("4,1,2,c;NVRM: Xid (PCI:0000:00:06 x): 43, pid=1", id="more than a place"),
        pytest.param(FORGED, id="no record"),
    ],
)
def test_what_others_bring_into_the_kernel_log_is_not_the_drivers_word(record):
    """Any user can have the kernel log the names of a process and of its file."""
    assert parse_xid(record) is None


def test_the_name_of_a_process_cannot_hold_the_beginning_of_an_xid():
    """The kernel cuts it after 15 bytes, and the shortest beginning that is taken has more."""
    shortest = "NVRM: Xid (PCI:0000:00:06): 8"
    assert parse_xid(f"4,1,2,c;{shortest}") is not None
    assert not any(parse_xid(f"4,1,2,c;{shortest[:15]}{more}{shortest[15:]}") for more in ("[1]: ", ": ", "(1) ", " "))


@pytest.mark.parametrize("level", range(8))
def test_the_level_is_kernel_printks_and_proves_nothing(level):
    assert parse_xid(MMU.replace("4,", f"{level},", 1)) is not None


def test_a_record_ends_before_what_the_kernel_adds_to_it():
    assert parse_xid(MMU + "\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:06.0\n").text == MMU.partition(";")[2]


def test_text_is_short_and_cannot_write_to_a_terminal():
    """A process chooses its name."""
    text = parse_xid("4,1,2,c;NVRM: Xid (PCI:0000:00:06): 43, pid=1, name=\x1b[2J" + "x" * 1000).text
    assert "name=?[2J" in text
    assert len(text) == TEXT_CHARACTERS


def test_an_observation_tells_everything_but_who():
    seen = observe(parse_xid(MMU), "default", DEVICES, 5679000000)
    assert (seen.source, seen.xid, seen.fault_class) == (Source.KERNEL_LOG, 31, FaultClass.MMU)
    assert (seen.gpu, seen.domain, seen.address, seen.access) == ("GPU-a", "default", 0x7F9B03754000, "write")
    assert (seen.process, seen.is_proof, seen.seen_ns) == (None, False, 5678901000)


@pytest.mark.parametrize(
    "now_ns",
    [pytest.param(5678900999, id="the kernel's clock is ahead"), pytest.param(10**13, id="it is another clock")],
)
def test_a_stamp_that_cannot_be_is_not_believed(now_ns):
    assert observe(parse_xid(MMU), "", DEVICES, now_ns).seen_ns == now_ns


@pytest.mark.parametrize(
    ("place", "uuid"),
    [("PCI:0000:00:06", "GPU-a"), ("PCI:000a:c1:00", "GPU-b"), ("PCI:0000:c1:00", ""), ("", ""), ("0", "")],
)
def test_gpus_by_their_place(place, uuid):
    assert gpu_at(place, DEVICES) == uuid


@given(st.text(max_size=200))
def test_any_line_is_read_or_not(rest):
    found = parse_xid(f"4,1,2,c;NVRM: Xid (PCI:0000:00:06): 31, pid=1, faulted @ {rest}")
    assert found.code == 31
    assert observe(found, "", DEVICES, 1).text.isprintable()
