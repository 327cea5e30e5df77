"""A program of another user of the machine, without rights: the files and sockets that it can reach, write to, or exhaust.

Attacks are Python programs that use only the standard library, run by the system's interpreter with an environment of only
PATH, as NOBODY unless another user is named. Proofs that hang /proc, fill disks or exhaust the machine run in namespaces or a
virtual machine.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

NOBODY = 65534
# One that every user may run, also where the tests run on a root-only build.
PYTHON = next(filter(os.path.exists, ("/usr/bin/python3", "/usr/local/bin/python3", os.path.realpath(sys.executable))))
ATTACK_SECONDS = 60.0
_ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
# The beginning of an attack that speaks the simulated vendor daemon's command language on `made`, a connection.
GREETS = """
import socket, struct, sys, time
HEAD = struct.Struct("<IIiiiiII")
GREETING, UI, UI_READY, COMMAND, END = 1, 10, 11, 12, 14
def say(kind, text=b""):
    made.send(HEAD.pack(0x4C4B0001, kind, 0, 0, 0, 0, len(text), 0) + text)
def hear(last):
    while HEAD.unpack_from(made.recv(1 << 17))[1] != last:
        pass
hear(GREETING)
say(UI)
hear(UI_READY)
print("ready", flush=True)
"""
# The beginning of an attack by root of separate user and pid namespaces, which may name every process there as its own.
IN_NAMESPACES = """
import ctypes, os, sys
mine = os.getuid()
libc = ctypes.CDLL(None, use_errno=True)
if libc.unshare(0x30000000):  # CLONE_NEWUSER | CLONE_NEWPID
    sys.exit("no namespaces")
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"0 {mine} 1")
open("/proc/self/gid_map", "w").write(f"0 {mine} 1")
if os.fork():
    os.wait()
    sys.exit()
libc.prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL: it ends with the attack, and its namespace with it
"""
CONNECTS = """
import socket, sys
def connected():
    made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    made.connect(sys.argv[1])
    return made
"""
SPEAKS_COMMANDS = CONNECTS + "made = connected()" + GREETS


def _command(program: str, words: tuple[object, ...]) -> list[str]:
    return [PYTHON, "-I", "-S", "-c", program, *map(str, words)]


def attack(program: str, *words: object, uid: int = NOBODY, seconds: float = ATTACK_SECONDS) -> str:
    """Run an attack to its end.  Returns its output; raises AssertionError with it where the attack itself broke."""
    done = subprocess.run(
        _command(program, words), env=_ENVIRONMENT, cwd="/", capture_output=True, text=True, timeout=seconds, check=False,
        user=uid, group=uid, extra_groups=[],
    )  # fmt: skip
    assert done.returncode == 0, f"the attack itself failed: {done.stdout}{done.stderr}"
    return done.stdout


@contextmanager
def attacking(program: str, *words: object, uid: int = NOBODY) -> Iterator["subprocess.Popen[str]"]:
    """An attack that goes on inside the block, from its first line of output on, "ready"; killed at the end of the block."""
    process = subprocess.Popen(
        _command(program, words), env=_ENVIRONMENT, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, user=uid, group=uid, extra_groups=[],
    )  # fmt: skip
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said == "ready\n", f"the attack itself failed: {said}{process.stdout.read()}"
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
