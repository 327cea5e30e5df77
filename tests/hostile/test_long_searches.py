"""Clients with descriptors that take the kernel long to list: the clients of other users are watched all the same."""

import os
import resource
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mpsd_client import calls

from mpsd.host import processes
from mpsd.host.process_reader import MOST_SEARCH_SECONDS, UNREAD_SECONDS
from tests.hostile.attacker import PYTHON
from tests.integration.client import Client
from tests.integration.machine import CLIENTS, Machine
from tests.integration.process import wait_for

USER = 1000
HOARDERS = 12
DESCRIPTORS = 18_000
SECONDS = 60.0
SHARE = MOST_SEARCH_SECONDS + 0.2  # of that user's searches; the last one may begin just before the end
OTHERS_SECONDS = 0.5  # of the processor's time, for all other reads
# It opens so many descriptors of a directory with a path of nearly 4,096 bytes, and is then a client.
HOARDS = """#!{python} -IS
import os, resource, sys, tempfile, time
resource.setrlimit(resource.RLIMIT_NOFILE, [resource.getrlimit(resource.RLIMIT_NOFILE)[1]] * 2)
place = tempfile.mkdtemp(dir={place!r})
os.chdir(place)
for _ in range(1900):
    os.mkdir("d")
    os.chdir("d")
file = os.open(".", os.O_RDONLY)
for number in range(100, 100 + {descriptors}):
    os.dup2(file, number)
os.chdir("/")
open(os.path.join(place, "open"), "w").close()
while not os.path.exists({place!r} + "/go"):
    time.sleep(0.01)
os.execv({counter!r}, [{counter!r}, *sys.argv[1:]])
"""


def spent(machine: Machine) -> float:
    """How much of the processor's time mpsd's readers of processes have had: unlike a wait, it does not grow with the load."""
    children = Path(f"/proc/{machine.daemon_pid()}/task").glob("*/children")
    pids = {int(pid) for each in children for pid in each.read_text().split()}
    readers = [Path(f"/proc/{pid}") for pid in pids if processes.command(pid) == "mpsd-inspector"]
    stats = [(each / "stat").read_text() for each in readers]
    assert stats
    times = [each.rpartition(") ")[2].split()[11:13] for each in stats]
    return sum(int(user) + int(system) for user, system in times) / os.sysconf("SC_CLK_TCK")


@pytest.fixture
def shallow() -> Iterator[Path]:
    """Yield a directory with a short path, where many directories cost little, and in which every user may make some."""
    place = Path(tempfile.mkdtemp(dir="/dev/shm"))
    place.chmod(0o777)
    yield place
    subprocess.run(["rm", "-rf", place], check=True)  # too deep for shutil


def test_other_users_clients_are_watched_within_seconds(machine: Machine, shallow: Path) -> None:
    """A search through such a client took 0.5 s, and all others waited for it."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < DESCRIPTORS + 1000:
        pytest.skip("too few descriptors may be open here")
    machine.start()
    other = machine.counter(uid=USER + 1).ready()
    hoards = shallow / "hoards"
    counter = str(CLIENTS / "counter")
    hoards.write_text(HOARDS.format(python=PYTHON, place=str(shallow), descriptors=DESCRIPTORS, counter=counter))
    hoards.chmod(0o755)
    crowd = [machine.client(str(hoards), "--seconds", "600", "--ms", "500", uid=USER) for _ in range(HOARDERS)]
    wait_for("all their descriptors", lambda: len(list(shallow.glob("*/open"))) == HOARDERS, SECONDS)
    with machine.mpsd() as mpsd:

        def is_watched(of: Client) -> bool:
            return any(each.watched for each in mpsd.pages(calls.client_list()) if each.pid == of.pid)

        began, before = time.monotonic(), spent(machine)
        (shallow / "go").touch()
        wait_for("one of the crowd", lambda: any(each.events("ready") for each in crowd), SECONDS)
        victim = machine.counter(uid=USER + 2).ready(SECONDS)
        wait_for("the other user's client to be watched", lambda: is_watched(victim), SECONDS)
    took, seconds = spent(machine) - before, time.monotonic() - began
    assert took < OTHERS_SECONDS + SHARE * (1 + seconds / UNREAD_SECONDS), f"searches took {took:.1f} of {seconds:.1f} s"
    assert machine.blocks() == []
    other.end()
