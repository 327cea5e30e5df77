"""Xid lines of the kernel log, as the NVIDIA driver writes them (NVIDIA's "XID Errors" documentation; measured with 580).

    NVRM: Xid (PCI:0000:00:06): 43, pid=22078, name=nvidia-cuda-mps, channel 0x0000000a

Under MPS the pid is a server's (13, 43) or that of *any* client of the faulting server, guilty or not (31): it tells the fault
domain, never the culprit (FACTS.md).
"""

import re
from dataclasses import dataclass

_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<code>\d+)(?:, pid='?(?P<pid>\d+)'?)?")

# Those after which a vendor server ends every one of its clients: 13 graphics engine exception, 31 MMU fault, 43 channel
# stopped by the driver, 69 graphics engine class error.
ENDS_SERVER = frozenset({13, 31, 43, 69})


@dataclass(frozen=True, slots=True)
class Xid:
    """`pid` is None where the line names no process."""

    device: str
    code: int
    pid: int | None


def parse_xid(line: str) -> Xid | None:
    """None for any other line."""
    match = _XID.search(line)
    if match is None:
        return None
    return Xid(match["device"], int(match["code"]), int(match["pid"]) if match["pid"] else None)
