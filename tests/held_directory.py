"""Hold the lock of a directory below /proc, as any user can: one process lists it into memory that a file server does not send,
and another one waits to make a directory there, which the kernel refuses once it has the lock.

Run as a program it does that: DIRECTORY PLACE SECONDS.  It lets go after these seconds, also if the test itself waits for the
lock by then.
"""

import ctypes
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.unit.api.file_server import serve

MOST_SECONDS = 20.0  # that it holds; a test whose code waits for the lock takes so long, and fails
_ROOT = Path(__file__).parents[1]
_DETACH = 2  # umount2(2)
_LIST = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
file = os.open(sys.argv[2] + "/file", os.O_RDWR)
memory = libc.mmap(None, 4096, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, file, 0)
folder = os.open(sys.argv[1], os.O_RDONLY)
os.setgroups([])
os.setresuid(65534, 65534, 65534)  # any user can
print("ready", flush=True)
sys.stdin.readline()
libc.getdents64(folder, ctypes.c_void_p(memory), 4096)
"""
_MAKE = """
import os, sys
os.setgroups([])
os.setresuid(65534, 65534, 65534)  # any user can
print("ready", flush=True)
sys.stdin.readline()
os.mkdir(sys.argv[1] + "/x")
"""


@contextmanager
def held(folder: str, place: Path) -> Iterator[None]:
    """Hold the lock of this directory until the block ends.  Only of a process of the test's: the machine is not its alone.

    place: where a directory for the file server's mount is made.  It skips the test where nothing can be mounted.
    """
    place.mkdir()
    command = [sys.executable, "-m", "tests.held_directory", folder, str(place), str(MOST_SECONDS)]
    with subprocess.Popen(command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            if (said := holder.stdout.readline()) != "held\n":
                pytest.skip(f"the lock cannot be held here: {said}")
            yield
        finally:
            holder.communicate()
            ctypes.CDLL(None).umount2(bytes(place), _DETACH)  # if it was killed


def _hold(folder: str, place: str, seconds: float) -> None:
    try:
        with serve(Path(place), 0o100666) as server:
            lister = _start(_LIST, folder, place)
            server.is_silent = True
            _go_on(lister)
            if not server.heard.wait(seconds):
                print("the listing needed no memory")
                return
            maker = _start(_MAKE, folder)
            _go_on(maker)
            while "\nState:\tD" not in Path(f"/proc/{maker.pid}/status").read_text():
                if maker.poll() is not None:
                    print("nothing waits for the lock")
                    return
            print("held", flush=True)
            select.select([sys.stdin], [], [], seconds)
    except OSError as exc:
        print(exc)


def _start(code: str, *words: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-IS", "-c", code, *words]
    made = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert made.stdout is not None
    assert made.stdout.readline() == b"ready\n"
    return made


def _go_on(process: "subprocess.Popen[bytes]") -> None:
    assert process.stdin is not None
    process.stdin.write(b"\n")
    process.stdin.flush()


if __name__ == "__main__":
    _hold(sys.argv[1], sys.argv[2], float(sys.argv[3]))
