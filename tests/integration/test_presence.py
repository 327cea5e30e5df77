"""The pipe directory is removed under a running mpsd: new programs find it again, and running ones notice nothing."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from mpsd_client import calls

from tests.integration.machine import PROGRAM, Machine
from tests.integration.process import is_running, wait_for

LIST_SECONDS = 3.0  # less than mpsd waits until it makes a door again

pytestmark = [pytest.mark.root, pytest.mark.slow]


def remove_files_in(directory: Path) -> None:
    for each in directory.iterdir():
        if not each.is_dir():
            each.unlink()


def check_found_again(machine: Machine, remove: Callable[[Path], None]) -> None:
    pid = machine.daemon_pid()
    running = machine.counter().ready()
    remove(machine.pipe)
    missing = machine.wait_for_journal("pipe_directory.restored")["found_missing"]
    assert {"mpsd-ui", "mpsd.sock"} <= {os.path.basename(each) for each in missing}  # links are made whenever a domain changes
    newcomer = machine.counter().ready()
    wait_for("the newcomer in the list", lambda: newcomer.pid in machine.clients(), LIST_SECONDS)
    running.goes_on()
    assert machine.daemon_pid() == pid
    with machine.mpsd() as mpsd:
        assert mpsd.ask(calls.status()).state == "running"
    assert machine.quit() == 0
    wait_for("its end", lambda: not is_running(pid))
    assert set(os.listdir(machine.pipe)) <= {"cores"}


def test_all_is_found_again(machine: Machine) -> None:
    machine.start()
    check_found_again(machine, shutil.rmtree)


def test_without_root(strangers: Machine) -> None:
    strangers.start()
    wait_for("the link", (strangers.pipe / "control").is_symlink)
    check_found_again(strangers, remove_files_in)


def test_the_next_mpsd_listens_where_this_one_did_in_the_end(machine: Machine) -> None:
    machine.start()
    running = machine.counter().ready()
    (machine.pipe / "control").unlink()
    assert machine.wait_for_journal("pipe_directory.restored")["found_missing"] == [str(machine.pipe / "control")]
    inode = (machine.pipe / "control").stat().st_ino
    machine.kill_daemon()
    machine.start()
    assert (machine.pipe / "control").stat().st_ino == inode
    machine.counter().ready()
    running.goes_on()
    assert (machine.pipe / f"{PROGRAM}.pid").exists()


def is_removed(directory: Path) -> bool:
    """Remove the directory, and return whether it has gone: mpsd may make a link in it meanwhile."""
    shutil.rmtree(directory, ignore_errors=True)
    return not directory.exists()


def test_without_root_it_lives_on_where_the_directory_cannot_be_made(strangers: Machine) -> None:
    """Also when the links are to lead elsewhere."""
    strangers.start()
    pid = strangers.daemon_pid()
    strangers.counter().ready()
    strangers.with_spare()
    wait_for("the link", (strangers.pipe / "control").is_symlink)
    os.chown(strangers.place, 0, 0)
    wait_for("the directory's end", lambda: is_removed(strangers.pipe))
    missing = strangers.wait_for_journal("pipe_directory.missing")
    assert "Permission denied" in missing["why"]
    strangers.kill_vendor("default")
    assert "No such file or directory" in strangers.wait_for_journal("door.not_led")["why"]
    assert is_running(pid)
    strangers.pipe.mkdir()
    os.chown(strangers.pipe, *[os.stat(f"/proc/{pid}").st_uid] * 2)
    strangers.wait_for_journal("pipe_directory.restored")
    newcomer = strangers.counter().ready()
    wait_for("the newcomer in the list", lambda: newcomer.pid in strangers.clients(), LIST_SECONDS)
