"""A state directory that becomes read-only, and a log directory that is removed, under a running mpsd and at its start."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from mpsd_client import Refused, Selector, calls

from tests.hostile.test_full_disk import READY_SECONDS, leave_mount_namespace
from tests.hostile.test_stopped_components import wait_for_problem
from tests.integration.machine import START_SECONDS, Machine
from tests.integration.process import wait_for

Break = Callable[[Machine], None]


def mount(*words: object) -> None:
    subprocess.run(["mount", *map(str, words)], check=True)


def fail_ext4(machine: Machine) -> None:
    """As after an error of the disk."""
    command = ["findmnt", "-no", "SOURCE", str(machine.state)]
    device = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    Path("/sys/fs/ext4", Path(device).name, "trigger_fs_error").write_text("1\n")


def cover(machine: Machine) -> None:
    """Files that are open stay writable, and no other one."""
    mount("--bind", machine.state, machine.state)
    mount("-o", "remount,bind,ro", machine.state)


@pytest.fixture
def own(machine: Machine) -> Iterator[Machine]:
    """A machine with a file system for its state."""
    leave_mount_namespace()
    machine.state.mkdir()
    yield machine
    machine.end_children()
    machine.end_processes()
    while subprocess.run(["mountpoint", "-q", machine.state], check=False).returncode == 0:
        subprocess.run(["umount", machine.state], check=True)


def mount_ext4(machine: Machine) -> None:
    if shutil.which("mkfs.ext4") is None or not os.access("/sys/fs/ext4", os.W_OK):
        pytest.skip("this machine cannot make an ext4, or not fail one")
    image = machine.place / "image"
    subprocess.run(["truncate", "-s", "64M", image], check=True)
    subprocess.run(["mkfs.ext4", "-q", "-F", image], check=True)
    if subprocess.run(["mount", "-o", "loop,errors=remount-ro", image, machine.state], check=False).returncode:
        pytest.skip("this machine has no loop device for an ext4 of the test's own")
    machine.state.chmod(0o711)


def mount_tmpfs(machine: Machine) -> None:
    mount("-t", "tmpfs", "-o", "size=32m,mode=711", "none", machine.state)


@pytest.mark.parametrize(("make", "ruin"), [(mount_ext4, fail_ext4), (mount_tmpfs, cover)])
def test_a_read_only_state_directory_is_named_and_running_clients_go_on(own: Machine, make: Break, ruin: Break) -> None:
    make(own)
    own.start()
    client = own.counter(uid=1000).ready()
    own.with_spare()
    ruin(own)
    wait_for_problem(own, f"the state directory {own.state} is read-only")
    own.counter(uid=1000).ready(READY_SECONDS)
    other = own.counter(uid=1001).ready(READY_SECONDS)
    late = own.counter(uid=1002)
    with own.mpsd() as mpsd:
        [entry] = wait_for("the reason", lambda: [e for e in mpsd.ask(calls.queue_list()).items if "Read-only" in e.reason])
        assert entry.pid == late.pid
        if ruin is fail_ext4:
            with pytest.raises(Refused, match=r"leases\.db cannot be written"):
                mpsd.ask(calls.lease_create("job", Selector.of_uid(0), sm_percent=10))
    own.kill_daemon()
    done = own.run("-d", seconds=START_SECONDS)
    assert (done.returncode, "Read-only file system" in done.stdout) == (1, True)
    client.goes_on()
    other.goes_on()


def test_one_that_is_writable_again_is_used_again(own: Machine) -> None:
    mount_tmpfs(own)
    own.start()
    client = own.counter(uid=1000).ready()
    own.with_spare()
    cover(own)
    wait_for_problem(own, "is read-only")
    own.kill_daemon()
    subprocess.run(["umount", "-l", own.state], check=True)
    own.start()
    client.goes_on()
    own.counter(uid=1000).ready()
    with own.mpsd() as mpsd:
        wait_for("health", lambda: not [each for each in mpsd.ask(calls.health()).problems if "read-only" in each])
    assert own.quit() == 0


def test_mpsd_does_not_start_with_a_read_only_state_directory_and_says_why(own: Machine) -> None:
    mount("-t", "tmpfs", "-o", "ro,mode=711", "none", own.state)
    done = own.run("-d", seconds=START_SECONDS)
    assert done.stdout == f"the state directory {own.state} cannot be used: Read-only file system\n"
    assert done.returncode == 1
    wait_for("its end", lambda: not own.processes())


def test_a_removed_log_directory_is_made_anew(machine: Machine) -> None:
    """Lines went to files that had no name any more, until SIGHUP, and not even then."""
    machine.start()
    client = machine.counter().ready()
    shutil.rmtree(machine.log_directory)
    machine.counter(uid=1000).ready()
    client.goes_on()
    for name in ("mpsd.log", "control.log", "server.log"):
        wait_for(f"{name} with a line", lambda name=name: machine.log(name))
    assert not [path for path in machine.log_directory.iterdir() if path.stat().st_mode & 0o022]
