"""Connections of a container without a user namespace: its root can take any uid."""

import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

FLOOD = """
import os, socket, sys
path, *uids = sys.argv[1:]
held = []
for uid in map(int, uids):
    os.seteuid(uid)
    held.append(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    held[-1].connect(path)
    os.seteuid(0)
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def flood_of_a_container(path: Path, uids: Iterable[int]) -> Iterator[None]:
    """Connect once as each of these users, and stay connected; returns when all have connected."""
    words = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-I", "-S", "-c", FLOOD, str(path), *map(str, uids)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as flood:
        assert flood.stdout is not None
        assert flood.stdout.readline() == b"ready\n"
        yield
        flood.communicate()
