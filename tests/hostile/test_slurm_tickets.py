"""The ticket, which Slurm's Prolog gives to the job's user, lets that user neither keep a lease nor delay a script of root."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hostile.attacker import PYTHON
from tests.hostile.test_slurm_leases import JOBS_USER, Node, node  # noqa: F401
from tests.unit.api.file_server import DETACH, LIBC, READ, serve

pytestmark = [pytest.mark.root, pytest.mark.skipif(not os.access("/dev/fuse", os.R_OK), reason="no FUSE here")]
# Keeps a file locked: it writes from a mapped file, and the kernel waits for that file's server.
HOLDER = """
import mmap, os, sys
file, never = map(int, sys.argv[1:])
os.write(file, mmap.mmap(never, 4096, prot=mmap.PROT_READ))
"""


@contextmanager
def hidden(file: Path, options: str) -> Iterator[None]:
    """Mount a file system on the file that never answers, as fusermount(1) does for the file's owner."""
    device = os.open("/dev/fuse", os.O_RDWR)
    words = f"fd={device},rootmode=100000,user_id={JOBS_USER},group_id={JOBS_USER}{options}"
    if LIBC.mount(b"test", bytes(file), b"fuse.test", 0, words.encode()):
        os.close(device)
        pytest.skip(f"FUSE cannot be mounted here: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        os.close(device)  # ends each wait with an error
        LIBC.umount2(bytes(file), DETACH)


@contextmanager
def locked(file: Path, place: Path) -> Iterator[None]:
    """Keep the file's inode locked in the kernel, as its owner can."""
    place.mkdir()
    with serve(place, 0o100644, silent=READ) as server:
        files = [os.open(file, os.O_WRONLY), os.open(place / "file", os.O_RDONLY)]
        holder = subprocess.Popen([PYTHON, "-I", "-S", "-c", HOLDER, *map(str, files)], pass_fds=files, user=JOBS_USER)
        for each in files:
            os.close(each)
        assert server.heard.wait(20), holder.poll()
        yield
    holder.wait(20)  # not before the server's end: even SIGKILL does not end it


@pytest.mark.parametrize("options", ["", ",allow_other"], ids=["hidden from root", "root would wait"])
def test_a_file_system_on_the_ticket_keeps_no_lease(node: Node, options: str) -> None:  # noqa: F811
    """Root could not see the ticket, its only sign of a lease; or the Epilog waited for ever."""
    node.run("prolog", 5)
    with hidden(node.ticket(5), options):
        node.run("epilog", 5)
        assert node.leases(5) == []
        node.wait_until_nothing_is_left()


@pytest.mark.parametrize("options", ["", ",allow_other"], ids=["hidden from root", "root would wait"])
def test_a_requeued_job_whose_epilog_was_killed_gets_a_new_ticket(node: Node, options: str) -> None:  # noqa: F811
    """The file system of its user still lies on the old one."""
    node.run("prolog", 5)
    with hidden(node.ticket(5), options):
        node.run("prolog", 5)
        assert [each.selector.value for each in node.leases(5)] == [node.token(5)]
        node.run("epilog", 5)
    assert node.leases(5) == []
    node.wait_until_nothing_is_left()


def test_file_systems_one_over_the_other_leave_no_ticket(node: Node) -> None:  # noqa: F811
    node.run("prolog", 5)
    with hidden(node.ticket(5), ""), hidden(node.ticket(5), ""):
        node.run("epilog", 5)
        node.wait_until_nothing_is_left()


def test_a_locked_ticket_delays_no_script(node: Node) -> None:  # noqa: F811
    """The kernel locks a file to remove it, with its directory locked already: the Prologs of all jobs waited in state D."""
    node.run("prolog", 5)
    with locked(node.ticket(5), node.place / "mounted"):
        node.run("epilog", 5)
        assert node.leases(5) == []
        node.run("prolog", 7)
        node.run("prolog", 5)
        assert [len(node.leases(job)) for job in (5, 7)] == [1, 1]
        node.run("epilog", 5)
        node.run("epilog", 7)
    node.wait_until_nothing_is_left()


def test_a_ticket_of_an_earlier_prolog_is_still_the_sign_of_its_lease(node: Node) -> None:  # noqa: F811
    """It belonged to the job's user, and had the name that root's file has now."""
    node.run("prolog", 5)
    os.chown(node.jobs / "5", JOBS_USER, JOBS_USER)
    node.run("epilog", 5)
    assert node.leases(5) == []
