"""What callers of nvidia-cuda-mps-control rely on, item by item; docs/compatibility.md has the list, with these names.

Each test shows its item and no more; what callers do with it is replayed in test_callers_*.py.
"""

import os
import re
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.host import Host
from tests.integration.machine import FRONT_END, PROGRAM, ROOT, SIMULATOR, UIDS, Machine
from tests.integration.process import wait_for

pytestmark = [pytest.mark.root, pytest.mark.slow]
PROBE_SECONDS = 3.0  # the least patient caller's
PAGE = ROOT / "docs/compatibility.md"


def test_the_page_lists_these_tests_in_their_order() -> None:
    chapter = PAGE.read_text().partition("## What callers rely on\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| \d+ \| .+ \| `(test_\d+_\w+)` \|$", chapter, re.MULTILINE)
    assert listed == re.findall(r"^def (test_\d+_\w+)", Path(__file__).read_text(), re.MULTILINE)


def test_1_a_command_may_end_without_a_newline(machine: Machine) -> None:
    machine.start()
    assert machine.run(typed="get_default_client_priority").stdout == "0\n"
    assert machine.run(typed="get_default_client_priority\nget_default_active_thread_percentage").stdout == "0\n100.0\n"
    assert machine.run(typed="").returncode == 0


def test_2_it_runs_without_path_home_and_lang(machine: Machine) -> None:
    """The locale does not change the format of numbers."""
    del machine.variables["PATH"]
    machine.start()
    environ = Path(f"/proc/{machine.daemon_pid()}/environ").read_bytes().split(b"\0")
    assert not {b"PATH", b"HOME", b"LANG"} & {entry.partition(b"=")[0] for entry in environ}
    assert machine.run(typed="set_default_active_thread_percentage 12.5", LC_ALL="de_DE.UTF-8").stdout == "12.5\n"
    machine.counter().ready()


def test_3_the_front_end_needs_nothing_in_its_root_directory(host: Host) -> None:
    """No shell, no C library, no Python: a driver root that holds this one file and the pipe directory."""
    assert host.run(f"/usr/bin/{PROGRAM}", "-d").returncode == 0
    host.shell(f"mkdir -p /mnt/bare/tmp/nvidia-mps && cp /usr/bin/{PROGRAM} /mnt/bare/")
    host.shell("mount --bind /tmp/nvidia-mps /mnt/bare/tmp/nvidia-mps")
    done = host.run("chroot", "/mnt/bare", f"/{PROGRAM}", typed="get_default_active_thread_percentage")
    assert (done.returncode, done.stdout, done.stderr) == (0, "100.0\n", "")


def test_4_d_returns_when_it_listens_and_holds_nothing_of_its_callers(machine: Machine) -> None:
    reader, writer = os.pipe()
    environment = machine.variables
    done = subprocess.run([FRONT_END, "-d"], env=environment, pass_fds=[writer], capture_output=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (machine.log_directory / "control.log").exists()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.connect(str(machine.pipe / "control"))
    assert os.read(reader, 1) == b"", "nobody has the other end any more"
    os.close(reader)


def test_5_the_process_looks_like_the_vendors(machine: Machine) -> None:
    """Its name, its pid file, its environment; and it finds its own Python all the same."""
    machine.start()
    pid = (machine.pipe / f"{PROGRAM}.pid").read_text()
    first = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert os.path.basename(first) == PROGRAM.encode()
    assert f"CUDA_MPS_PIPE_DIRECTORY={machine.pipe}".encode() in environ
    shown = subprocess.run(["ps", "-o", "args=", "-p", pid], capture_output=True, text=True, check=True).stdout
    assert f"/{PROGRAM} " in shown


def test_6_the_exit_status_says_whether_somebody_answered(machine: Machine) -> None:
    absent = machine.ask("get_server_list")
    assert (absent.returncode, absent.stdout, absent.stderr) == (1, "", "Cannot find MPS control daemon process\n")
    machine.start()
    bad = machine.ask("bogus")
    assert (bad.returncode, bad.stdout, bad.stderr) == (0, 'Unknown command "bogus"\n', "")
    assert machine.quit("quit") == 0


def test_7_the_health_probe_is_answered_in_a_fault_and_while_a_vendor_daemon_hangs(machine: Machine) -> None:
    machine.start()
    machine.counter().ready()
    machine.client("faulter", "trap", "--linger", "60").wait("result")
    assert machine.tell("get_default_active_thread_percentage", seconds=PROBE_SECONDS) == "100.0\n"
    os.kill(machine.vendor_pid("default"), signal.SIGSTOP)
    assert machine.tell("get_default_active_thread_percentage", seconds=PROBE_SECONDS) == "100.0\n"


def test_8_overlapping_queries_all_succeed(machine: Machine) -> None:
    machine.start()
    client = machine.counter().ready()
    server = machine.server_of(client)
    questions = {f"get_client_list {server}": f"{client.pid}\n", f"get_server_status {server}": "ACTIVE\n"}
    with ThreadPoolExecutor(4) as pollers:
        answers = list(pollers.map(machine.tell, [*questions] * 50))
    assert answers == [*questions.values()] * 50


@pytest.mark.parametrize("line", ["quit", "quit -t 0"])
def test_9_nothing_is_left_when_quit_returns(machine: Machine, line: str) -> None:
    machine.start()
    client = machine.counter().ready()
    if line == "quit":
        client.end()
    assert machine.quit(line) == 0
    assert not [pid for pid in machine.processes() if pid != client.pid]


@pytest.mark.parametrize("spelling", ["-multiuser-server", "--multiuser-server"])
def test_10_limits_are_set_by_ordinal_and_by_uuid_and_hold_for_all_users(machine: Machine, spelling: str) -> None:
    machine.start(spelling)
    for device, value in (("0", "2G"), (machine.uuids()[0], "1024M")):
        assert machine.tell(f"set_default_device_pinned_mem_limit {device} {value}") == ""
    assert machine.tell("get_default_device_pinned_mem_limit 0") == "1G\n"
    for uid in (0, UIDS[0]):
        assert machine.client("memlimit", "1500", uid=uid).error() == 2
    assert machine.server()


def test_11_commands_may_be_arguments(machine: Machine) -> None:
    """Driver 580 answers with its usage; Slurm's and NVIDIA's own samples do it all the same."""
    machine.start()
    assert machine.run("set_default_active_thread_percentage", "25").stdout == "25.0\n"
    version = machine.run("-v")
    assert version.returncode == 0
    assert version.stdout.startswith("CUDA MPS Control for Linux/Unix/QNX.")


PARTITIONS = """\
GPU           Partition free  used  free  used  clients
                        chunks chunks SM   SM
GPU-74d43ed3  -         3     7     24    56    -
"""
ANSWERS = {
    "lspart": PARTITIONS,
    "sm_partition add GPU-74d43ed3 10": "Partition GPU-74d43ed3/Dx4/AAA= created\n",
    "sm_partition add GPU-74d43ed3 9": "GPU-74d43ed3/Dx4AAA\n",
    "sm_partition rm GPU-74d43ed3 Dx4AAA": "Partition %s in use. Terminate all clients before removing.\n",
}


NEWER_DRIVER = """\
#!/bin/sh
[ $# -gt 0 ] && exec {simulator} "$@"
read -r line
case $line in
{cases}
*) echo "$line" | {simulator} ;;
esac
"""


def test_12_the_vendors_partition_commands_are_passed_on_unchanged(machine: Machine) -> None:
    """A driver that has them, in this vendor program's mouth; callers read both printed forms, format bugs included."""
    cases = []
    for number, (line, answer) in enumerate(ANSWERS.items()):
        (machine.place / str(number)).write_text(answer)
        cases.append(f'"{line}") cat "{machine.place}/{number}" ;;')
    program = machine.place / PROGRAM
    program.write_text(NEWER_DRIVER.format(simulator=SIMULATOR / "bin" / PROGRAM, cases="\n".join(cases)))
    program.chmod(0o755)
    machine.configure(f'[vendor]\ncontrol = "{program}"\n')
    machine.start()
    assert {line: machine.tell(line) for line in ANSWERS} == ANSWERS


def test_13_what_cannot_be_limited_does_not_run_free(machine: Machine) -> None:
    """mpsd refuses a limit for a GPU that does not exist; a program for such a GPU finds none; and on an EXCLUSIVE_PROCESS GPU
    a program with a wrong pipe directory gets an error."""
    machine.set_compute_mode("0", "EXCLUSIVE_PROCESS")
    machine.start()
    machine.counter().ready()
    done = machine.ask("set_default_device_pinned_mem_limit GPU-00000000 1G")
    assert done.returncode == 1
    assert done.stdout.startswith("Memory limit not set: ")
    assert machine.client("smcount", CUDA_VISIBLE_DEVICES="GPU-00000000").error() == 100
    assert machine.client("smcount", CUDA_MPS_PIPE_DIRECTORY="/nowhere").error() == 46


def test_14_what_the_machine_lacks_is_said_at_the_start_in_one_line(host: Host) -> None:
    long = "/tmp/" + "x" * 100
    host.run("mkdir", long)
    refused = host.run(f"/usr/bin/{PROGRAM}", "-d", environment={"CUDA_MPS_PIPE_DIRECTORY": long})
    assert refused.returncode == 1
    assert "at most 88 bytes" in refused.stdout
    assert refused.stdout.count("\n") == 1
    host.shell("mount -t tmpfs -o size=64k shm /dev/shm")
    assert host.run(f"/usr/bin/{PROGRAM}", "-d").returncode == 0
    log = host.file("/var/log/nvidia-mps/mpsd.log")
    for what in ("/dev/shm", "pid namespace"):
        wait_for(what, lambda what=what: f'"event":"machine.unfit","what":"{what}"' in log.read_text())
