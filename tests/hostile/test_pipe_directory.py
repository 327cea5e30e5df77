"""A pipe directory that another user made, or takes away: root follows them nowhere, and no program is led to them.

The links lie where mpsd makes its temporary pid file, and where it sets the mode of a socket.
"""

import json
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpsd_client import Selector, calls

from tests.hostile.attacker import NOBODY, attack, attacking
from tests.integration.host import Host
from tests.integration.machine import PROGRAM, Machine
from tests.integration.process import is_running, wait_for

DEFAULT = "/tmp/nvidia-mps"
CHECK = ("-I", "-m", "mpsd", "check", "--json")

# Makes the directory whenever it is missing, and puts links to a target under all file names that mpsd uses.
LINKS = """
import os, sys
directory, target = sys.argv[1:]
os.umask(0)
names = (".nvidia-cuda-mps-control.pid.new", "control", "control_privileged", "mpsd-ui", "mpsd.sock", ".control.new")
paths = [os.path.join(directory, name) for name in names]
said = False
while True:
    try:
        os.mkdir(directory)
    except OSError:
        pass
    for path in paths:
        try:
            os.symlink(target, path)
        except OSError:
            pass
    if not said:
        said = True
        print("ready", flush=True)
"""


@pytest.fixture
def precious(tmp_path: Path) -> Iterator[Path]:
    """Make a file that only root may read, in a place that every user can reach."""
    directory = Path(tempfile.mkdtemp(prefix="mpsd-precious-", dir="/tmp"))
    directory.chmod(0o755)
    file = directory / "secret"
    file.touch(0o600)
    file.write_text("secret")
    try:
        yield file
        assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("secret", 0o600)
    finally:
        shutil.rmtree(directory)


def check(machine: Machine) -> dict[str, list[str]]:
    """What `mpsd check` calls bad, by area."""
    done = machine.run(*CHECK, program=Path(machine.variables["MPSD_PYTHON"]))
    bad: dict[str, list[str]] = {}
    for each in json.loads(done.stdout)["findings"]:
        if each["grade"] == "bad":
            bad.setdefault(each["area"], []).append(each["found"])
    return bad


@pytest.fixture
def shared_place(machine: Machine) -> Machine:
    """Its directories are in one that every user may write to, as /tmp is; the pipe directory is not there yet."""
    machine.pipe.rmdir()
    machine.place.chmod(0o1777)
    return machine


def test_root_follows_no_link_in_a_directory_that_a_user_made(shared_place: Machine, precious: Path) -> None:
    """mpsd refuses the directory, and reports its owner and the remedy; so does `check`."""
    with attacking(LINKS, shared_place.pipe, precious):
        for _ in range(3):
            done = shared_place.run("-d")
            assert done.returncode == 1
            assert f"CUDA_MPS_PIPE_DIRECTORY={shared_place.pipe}: {shared_place.pipe} (uid {NOBODY}, mode 0777)" in done.stdout
            assert f"rm -r {shared_place.pipe}" in done.stdout
    [said] = check(shared_place)["pipe directory"]
    assert said.partition(": ")[2] in done.stdout


def test_a_directory_of_roots_that_everybody_may_write_to_is_tightened(machine: Machine, precious: Path) -> None:
    """Callers' scripts make such ones; what a user put there before is replaced, not followed."""
    with attacking(LINKS, machine.pipe, precious):
        machine.start()
        assert stat.S_IMODE(machine.pipe.stat().st_mode) == 0o711
        [said] = [each for each in machine.journal("directory.tightened") if each["path"] == str(machine.pipe)]
        assert (said["was"], said["now"]) == ("0777", "0711")
        listing = subprocess.run(["ls", machine.pipe], user=NOBODY, group=NOBODY, extra_groups=[], stderr=subprocess.DEVNULL)
        assert listing.returncode != 0, "a user who lists a directory can keep it locked"
        assert machine.daemon_pid() in machine.processes()
        for name in ("control", "control_privileged", "mpsd-ui", "mpsd.sock"):
            assert stat.S_ISSOCK((machine.pipe / name).lstat().st_mode), name
        machine.counter(uid=NOBODY).ready()


def test_who_takes_the_directory_is_not_served_by_root(shared_place: Machine, precious: Path) -> None:
    """As after a tmp cleaner. Once the user's directory is gone, mpsd makes its own again; running clients continue."""
    machine = shared_place
    machine.start()
    pid, running = machine.daemon_pid(), machine.counter().ready()
    with attacking(LINKS, machine.pipe, precious):
        shutil.rmtree(machine.pipe, ignore_errors=True)
        said = machine.wait_for_journal("pipe_directory.missing")
        assert f"{machine.pipe} (uid {NOBODY}, mode 0777) belongs to another user" in said["why"]
        assert is_running(pid)
    assert not (machine.pipe / f"{PROGRAM}.pid").exists()
    shutil.rmtree(machine.pipe)
    machine.wait_for_journal("pipe_directory.restored")
    machine.counter().ready()
    running.goes_on()


def test_a_directory_that_is_moved_away_is_noticed(machine: Machine) -> None:
    """Everything that was made in it is still there: programs come to the other one."""
    machine.start()
    machine.pipe.rename(machine.place / "before")
    machine.pipe.mkdir()
    found = machine.wait_for_journal("pipe_directory.restored")["found_missing"]
    assert {os.path.basename(each) for each in found} == {"control", "control_privileged", "mpsd-ui", "mpsd.sock"}
    machine.counter().ready()


@pytest.mark.parametrize("area", ["pipe", "log", "state"])
@pytest.mark.parametrize("above", [False, True], ids=["itself", "above"])
def test_the_start_and_the_check_refuse_the_same(machine: Machine, area: str, above: bool) -> None:
    """A directory of another user's, or one in such a directory."""
    place = machine.place / "theirs"
    attack_place = place / area if above else place
    attack_place.mkdir(parents=True)
    os.chown(place, NOBODY, NOBODY)
    place.chmod(0o755)
    machine.pipe.chmod(0o755)
    if area == "state":
        machine.state = attack_place
        machine.configure("")
    else:
        machine.variables[f"CUDA_MPS_{area.upper()}_DIRECTORY"] = str(attack_place)
    done = machine.run("-d")
    assert done.returncode == 1
    [said] = check(machine)[f"{area} directory"]
    reason = said.partition(": ")[2]
    assert f"{place} (uid {NOBODY}, mode 0755) belongs to another user" in reason
    assert reason in done.stdout


def test_logs_go_to_no_file_that_a_user_left(machine: Machine, precious: Path) -> None:
    """A link and a file of another user, in a log directory that had mode 0777."""
    attack("import os, sys; os.symlink(sys.argv[1], sys.argv[2] + '/control.log')", precious, machine.log_directory)
    theirs = machine.log_directory / "audit.log"
    attack("import sys; open(sys.argv[1], 'w')", theirs)
    machine.start()
    assert "Starting control daemon" in "\n".join(machine.log("control.log"))
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("any", Selector.of_uid(1000)))
    wait_for("the audit", lambda: theirs.exists() and theirs.stat().st_uid == 0 and theirs.read_text())
    assert stat.S_IMODE(theirs.stat().st_mode) == 0o640


def test_the_default_directory_of_another_user(host: Host) -> None:
    """What a program without any variable comes to: /tmp/nvidia-mps."""
    assert host.run("/bin/mkdir", DEFAULT, uid=NOBODY).returncode == 0
    done = host.run(f"/usr/bin/{PROGRAM}", "-d")
    assert (done.returncode, f"{DEFAULT} (uid {NOBODY}, mode 0755) belongs to another user" in done.stdout) == (1, True)
    host.run("/bin/rm", "-r", DEFAULT)
    assert host.run(f"/usr/bin/{PROGRAM}", "-d").returncode == 0
    assert host.file(DEFAULT).stat().st_uid == 0
    assert host.ask("get_server_list") == ""


def test_a_link_of_roots_at_the_default_directory(host: Host) -> None:
    """Sites that keep the directory in /run have such a link; mpsd follows no user's link."""
    host.shell(f"mkdir -p -m 755 /run/nvidia-mps && ln -s /run/nvidia-mps {DEFAULT}")
    assert host.run(f"/usr/bin/{PROGRAM}", "-d").returncode == 0
    assert host.file("/run/nvidia-mps/control").is_socket()
    host.counter().ready()
    assert host.run(f"/usr/bin/{PROGRAM}", typed="quit -t 0\n").returncode == 0
    host.run("/bin/rm", DEFAULT)
    host.run("/bin/ln", "-s", "/run/nvidia-mps", DEFAULT, uid=NOBODY)
    done = host.run(f"/usr/bin/{PROGRAM}", "-d")
    assert (done.returncode, f"{DEFAULT} (uid {NOBODY}, mode 0777) belongs to another user" in done.stdout) == (1, True)


def test_a_users_own_daemon_in_tmp(strangers: Machine) -> None:
    """Without root: what it makes in a directory that everybody may write to is its own."""
    strangers.pipe.rmdir()
    strangers.place.chmod(0o1777)
    os.chown(strangers.place, 0, 0)
    strangers.start()
    assert strangers.pipe.stat().st_uid == strangers.uid
    strangers.counter().ready()
    assert strangers.ask("get_server_list").returncode == 0
