"""A container whose seccomp filter answers a system call with EPERM: unshare(2), so that mpsd makes no mount namespaces."""

from collections.abc import Mapping
from pathlib import Path

from tests.integration.machine import FRONT_END, START_SECONDS, Machine

UNSHARE = {"x86_64": 272, "aarch64": 97}
PIDFD_GETFD = {"x86_64": 438, "aarch64": 438}
_SCRIPT = """\
#!{python} -ISB
import ctypes, os, struct, sys
CALL = {call}[os.uname().machine]
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06  # BPF_LD|W|ABS, BPF_JMP|JEQ|K, BPF_RET|K
ALLOW, REFUSE = 0x7FFF0000, 0x00050001  # SECCOMP_RET_ALLOW; SECCOMP_RET_ERRNO with EPERM
steps = [(LOAD, 0, 0, 0), (EQUAL, 0, 1, CALL), (RETURN, 0, 0, REFUSE), (RETURN, 0, 0, ALLOW)]
code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
class Filter(ctypes.Structure):
    _fields_ = [("count", ctypes.c_ushort), ("code", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
chosen = Filter(len(steps), ctypes.addressof(code))
if libc.prctl(22, 2, ctypes.byref(chosen), 0, 0):  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER
    raise OSError(ctypes.get_errno(), "prctl")
os.execv({front_end!r}, ["nvidia-cuda-mps-control", *sys.argv[1:]])
"""


def make_refusing(script: Path, front_end: Path, python: str = "/usr/bin/python3", call: Mapping[str, int] = UNSHARE) -> Path:
    """A program that is the front end, where this system call is refused."""
    script.write_text(_SCRIPT.format(python=python, front_end=str(front_end), call=dict(call)))
    script.chmod(0o755)
    return script


def start_exposed(machine: Machine) -> None:
    """mpsd, where it may not make mount namespaces; it must come up."""
    done = machine.run("-d", program=make_refusing(Path(machine.place, "refusing"), FRONT_END), seconds=START_SECONDS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), done
