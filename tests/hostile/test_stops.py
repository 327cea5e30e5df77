"""client.stop ends the right processes, even if a process changes its name or program."""

import os
import shutil
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from mpsd_client import Refused, calls, values

from tests.hostile.attacker import NOBODY, PYTHON, attack
from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for
from tests.leaderless import leaderless

SLEEP = "/bin/sleep"
# Lives on after SIGTERM, as a program of root's.
BECOME_ANOTHERS = "import os, signal, sys; signal.signal(15, lambda *_: os.execv(sys.argv[1], ['sleep', '600']))\n"
BECOME_ANOTHERS += "print('ready', flush=True)\nwhile True: signal.pause()"


@pytest.mark.parametrize("name", ["nvidia-cuda-mps-server", "nvidia-cuda-mps-control", "mpsd-keeper"])
def test_a_name_protects_nobody(shared: Machine, name: str) -> None:
    """The first word of a command line is the caller's choice."""
    process = subprocess.Popen([name, "600"], executable=SLEEP, user=NOBODY)
    with shared.mpsd() as mpsd:
        done = mpsd.ask(calls.client_stop(process.pid))
    assert [each.has_ended for each in done.processes] == [True]
    assert process.wait() == -signal.SIGKILL


def test_a_process_is_ended_also_without_its_first_thread(shared: Machine) -> None:
    """Any program may end its first thread, and go on with the others."""
    with leaderless(user=NOBODY) as process, shared.mpsd() as mpsd:
        done = mpsd.ask(calls.client_stop(process.pid))
        assert [each.has_ended for each in done.processes] == [True]
        assert process.wait(10) == -signal.SIGKILL


def test_those_that_clients_need_are_known_by_mpsds_records(shared: Machine) -> None:
    """Also to an operator: the vendor's daemon and server, both keepers, mpsd itself."""
    client = shared.counter().ready()
    needed = [shared.daemon_pid(), shared.keeper_pid(), shared.vendor_pid(shared.domain_of(client)), shared.server_of(client)]
    with shared.mpsd() as mpsd:
        for pid in needed:
            with pytest.raises(Refused, match="clients need"):
                mpsd.ask(calls.client_stop(pid))
    client.goes_on()


@pytest.fixture
def roots_sleep(short_dir: Path) -> Path:
    """A program that runs as root for any user who starts it."""
    made = short_dir / "sleep"
    shutil.copy(SLEEP, made)
    made.chmod(0o4755)
    if os.statvfs(made).f_flag & os.ST_NOSUID:
        pytest.skip(f"{short_dir} is mounted nosuid")
    return made


def test_what_has_become_another_users_is_not_ended(shared: Machine, roots_sleep: Path) -> None:
    """Its own user asks for it with a grace; at the end of the grace it runs a program of root's."""
    process = subprocess.Popen(
        [PYTHON, "-I", "-S", "-c", BECOME_ANOTHERS, str(roots_sleep)], stdout=subprocess.PIPE, user=NOBODY, group=NOBODY
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    answers: list[values.Stopped] = []
    with shared.mpsd(NOBODY) as mpsd:
        asking = threading.Thread(target=lambda: answers.append(mpsd.ask(calls.client_stop(process.pid, grace_seconds=1))))
        asking.start()
        wait_for("it to be root's", lambda: Path(f"/proc/{process.pid}").stat().st_uid == 0)
        asking.join()
    [left] = answers[0].processes
    assert (left.has_ended, left.why, list(left.steps)) == (False, "it is another user's by now", ["sigterm"])
    assert is_running(process.pid)
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("become", ["os.seteuid(65534)", "os.setresuid(65534, 65534, 0)"])
def test_a_program_of_roots_that_acts_as_a_user_for_a_moment_is_not_ended(shared: Machine, become: str) -> None:
    """sshd, slurmstepd and file servers do; kill(2) does not let that user signal them either."""
    program = f"import os, signal; {become}; print('ready', flush=True); signal.pause()"
    process = subprocess.Popen([PYTHON, "-I", "-S", "-c", program], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    try:
        with shared.mpsd(NOBODY) as mpsd, pytest.raises(Refused, match="no client has pid"):
            mpsd.ask(calls.client_stop(process.pid))
        assert is_running(process.pid)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


CGROUPS = 20_000  # it took 2 s to look at them


def test_a_cgroup_with_any_number_of_cgroups_in_it_blocks_nobody(machine: Machine, cgroup: Path) -> None:
    """systemd gives each user a cgroup in which the user may make others."""
    machine.start()
    os.chown(cgroup, NOBODY, NOBODY)
    attack("import os, sys; os.chdir(sys.argv[1]); [os.mkdir(f'{each}') for each in range(int(sys.argv[2]))]", cgroup, CGROUPS)
    doomed = machine.counter(uid=NOBODY).ready()
    (cgroup / "cgroup.procs").write_text(str(doomed.pid))
    with machine.mpsd() as mpsd:
        done = mpsd.ask(calls.client_stop(cgroup=f"/{cgroup.name}", way="drain", drain_seconds=0.1))
    assert [each.has_ended for each in done.processes] == [True]
    assert [entry for entry in machine.journal("loop.blocked") if entry["ms"] > 1000] == []
