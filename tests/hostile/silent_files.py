"""Programs of a user who sends mpsd files of a FUSE server that never answers: no close of them ends."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hostile.attacker import PYTHON

# hang.py without its own start, and then the user's: UID DOOR and what the rest wants.
HANG = (Path(__file__).parent / "guest" / "hang.py").read_text().rpartition("\nmain(")[0]
MOUNTS = (
    HANG
    + """
uid, door = int(sys.argv[1]), sys.argv[2]
try:
    device, place = mount(uid)
except OSError as exc:
    raise SystemExit(f"skip: {exc}")
os.setgroups([])
os.setresgid(uid, uid, uid)
os.setresuid(uid, uid, uid)
server = os.fork()
"""
)
BRINGS_A_FILE = (
    MOUNTS
    + """
if not server:
    serve(device)  # prints the thread that waits
os.close(device)
file = os.open(place + "/file", os.O_RDONLY)
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.connect(door)
socket.send_fds(made, [b"x"], [file])
sys.stdin.read()
os.kill(server, 9)
"""
)


@contextmanager
def sent(program: str, *arguments: object) -> Iterator[str]:
    """Run such a program in a mount namespace of its own until the end of the `with`; yield the line that it prints first."""
    if not os.access("/dev/fuse", os.R_OK):
        pytest.skip("no FUSE here")
    command = ["unshare", "--mount", PYTHON, "-I", "-S", "-c", program, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if said.startswith("skip: "):
            pytest.skip(f"FUSE cannot be mounted here: {said}")
        yield said
    finally:
        process.communicate(timeout=30)
