"""Collecting dead processes: orphans at once, unknown ones at the second look, and none that another task waits for."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, subprocess, sys, time
from mpsd.host import processes
from mpsd.host.child_reaper import Reaper, become_reaper, reap_all, reap_orphans

def dead(pid):
    return open(f"/proc/{pid}/stat").read().split(") ")[1][0] == "Z"

def children():
    found = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    return [each for each in found if int(each) != processes.reader.pid]

assert become_reaper()
daemon = subprocess.Popen(["sh", "-c", "setsid sh -c 'exit 3' & exec true"], start_new_session=True)
daemon.wait()
while not (found := children()) or not dead(found[0]):
    time.sleep(0.005)
reaper = Reaper()
assert (reap_orphans(), reaper.look(), len(children())) == (0, 0, 1), "a session leader may be somebody's"
assert (reaper.look(), children()) == (1, [])

awaited = subprocess.Popen(["sh", "-c", "exit 7"], start_new_session=True)
while not dead(awaited.pid):
    time.sleep(0.005)
assert reaper.look() == 0
assert awaited.wait() == 7
assert reaper.look() == 0

last = os.spawnlp(os.P_NOWAIT, "true", "true")
while not dead(last):
    time.sleep(0.005)
assert (reap_all(), children()) == (1, [])
"""


def test_who_is_collected_and_when(tmp_path: Path) -> None:
    """In a process of its own: the children of this one are pytest's."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stderr) == (0, "")
