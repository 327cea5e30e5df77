"""The recognition of descriptors from other processes."""

import fcntl
import os
import resource
import socket
from contextlib import nullcontext

import pytest

from mpsd.errors import BadRequest
from mpsd.model.arena import MOST_LAYOUT_BYTES
from mpsd.vault import descriptor_checks
from mpsd.vault.descriptor_checks import check_exported, check_simulated, read_layout
from tests.descriptors import descriptors as open_descriptors
from tests.unit.vault.machine import SEALS, allocate_beyond, memory


@pytest.fixture
def control_device(monkeypatch):
    """/dev/null stands for /dev/nvidiactl: a character device that everybody may open."""
    monkeypatch.setattr(descriptor_checks, "CONTROL_DEVICE", "/dev/null")


def opened(kind: str) -> int:
    match kind:
        case "memory file":
            return memory()
        case "directory":
            return os.open("/", os.O_RDONLY)
        case "socket":
            return socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach()
        case "pipe":
            ours, theirs = os.pipe()
            os.close(theirs)
            return ours
    return os.open(kind, os.O_RDONLY)


def test_another_opening_of_the_control_device_is_gpu_memory(control_device):
    """An exported handle is such a descriptor; only CUDA can find out whether it has memory."""
    descriptor = opened("/dev/null")
    check_exported(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("kind", ["/dev/zero", "memory file", "directory", "socket", "pipe", "/etc/passwd"])
def test_anything_else_is_not(control_device, kind):
    descriptor = opened(kind)
    with pytest.raises(BadRequest, match="not exported GPU memory"):
        check_exported(descriptor)
    os.close(descriptor)


def test_a_machine_without_the_device_has_no_gpu_memory(monkeypatch):
    monkeypatch.setattr(descriptor_checks, "CONTROL_DEVICE", "/dev/absent")
    descriptor = opened("/dev/null")
    with pytest.raises(BadRequest, match="no /dev/absent"):
        check_exported(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("kind", ["/dev/zero", "directory", "socket", "pipe", "/etc/passwd"])
def test_what_a_stranger_serves_is_neither_simulated_memory_nor_a_layout(kind):
    """Reading it could wait for ever."""
    descriptor = opened(kind)
    with pytest.raises(BadRequest, match="not a memory file"):
        check_simulated(descriptor)
    with pytest.raises(BadRequest, match="comes in a memory file"):
        read_layout(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize(
    ("size", "seals", "why"),
    [
        (20, SEALS, ""),
        (1 << 30, SEALS, "of 1073741824 bytes"),
        (20, 0, "still change"),
        (20, SEALS & ~fcntl.F_SEAL_GROW, "still change"),
    ],
)
def test_simulated_memory_is_a_file_that_takes_no_memory(size, seals, why):
    """A gigabyte that was put as 2 MiB would be the host's, and stay in the keeper."""
    descriptor = os.memfd_create("ticket", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    with pytest.raises(BadRequest, match=why) if why else nullcontext():
        check_simulated(descriptor)
    os.close(descriptor)


def test_memory_beyond_the_end_of_a_file_is_refused():
    """It counts in no size, and stays in the keeper."""
    descriptor = os.memfd_create("ticket", os.MFD_ALLOW_SEALING)
    os.write(descriptor, b"7")
    allocate_beyond(descriptor, 1 << 28)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, SEALS)
    with pytest.raises(BadRequest, match="of 1 bytes takes 268435456 bytes of memory"):
        check_simulated(descriptor)
    os.close(descriptor)


@pytest.mark.parametrize("size", [1, 4096, 1 << 20, (1 << 20) + 1, MOST_LAYOUT_BYTES])
def test_a_layout_is_copied_to_its_last_byte(size):
    text = os.urandom(size)
    theirs = memory(text)
    layout = read_layout(theirs)
    assert layout.bytes == size
    assert os.pread(layout.descriptor, size + 1, 0) == text
    os.close(theirs)
    os.close(layout.descriptor)


@pytest.mark.parametrize("size", [0, MOST_LAYOUT_BYTES + 1, 1 << 50])
def test_a_layout_has_a_size(size):
    theirs = memory(seals=0)
    os.ftruncate(theirs, size)
    with pytest.raises(BadRequest, match=f"a layout of {size} bytes"):
        read_layout(theirs)
    os.close(theirs)


def test_a_layout_that_becomes_shorter_is_refused(monkeypatch):
    """A stranger truncates it while it is read: no signal, no half of a layout."""
    theirs = memory(b"x" * 100, seals=0)
    pread = os.pread

    def truncating(descriptor: int, size: int, place: int) -> bytes:
        part = pread(descriptor, min(size, 10), place)
        os.ftruncate(theirs, 10)
        return part

    before = open_descriptors()
    monkeypatch.setattr(os, "pread", truncating)
    with pytest.raises(BadRequest, match="became shorter"):
        read_layout(theirs)
    assert open_descriptors() == before
    os.close(theirs)


def test_no_copy_of_a_layout_is_shorter_than_the_layout():
    """The kernel takes a page of a write, and refuses the rest with the next one, as where memory ends."""
    theirs = memory(bytes(8192))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            read_layout(theirs)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        os.close(theirs)
