"""Who a client is: its cgroups and its token, from /proc; cgroup v1 and v2.

The kernel has translated the ids before they come here: SCM_CREDENTIALS and SO_PEERCRED carry pid and uid as mpsd's own
namespaces count them, so a process in a container is found under the pid it has outside.  One that mpsd cannot see at all
has process None, and then nothing but its uid is known.  Prose: docs/leases.md, "Who a client is".
"""

from collections.abc import Iterator

from mpsd import processes
from mpsd.lease import Identity
from mpsd.model import Credentials, ProcessId
from mpsd.policy.cgroup_paths import describe

TOKEN_VARIABLE = "MPSD_LEASE"
_TOKEN_CHARACTERS = 128  # policy/specs.py lets nobody make a longer one
_MOST_BYTES = 1 << 16  # of /proc/PID/cgroup; a line a hierarchy
_DELETED = " (deleted)"  # the kernel's word for a cgroup that was removed under its processes


def identify(process: ProcessId | None, credentials: Credentials, token: str = "") -> Identity:
    """Of a process that has ended meanwhile, or was replaced by another with its pid, no more than its ids.

    token: from its environment, which was read before (client_facts.py).
    """
    if process is None:
        return Identity(None, credentials.uid, credentials.gid)
    cgroups = paths(process.pid)
    if not processes.is_alive(process):
        return Identity(process, credentials.uid, credentials.gid)
    return Identity(
        process,
        credentials.uid,
        credentials.gid,
        cgroups,
        token if len(token) <= _TOKEN_CHARACTERS else "",
        describe(cgroups),
    )


def paths(pid: int) -> tuple[str, ...]:
    """Of each hierarchy that the process is in, as they are now; none of one that has gone."""
    return tuple(dict.fromkeys(parse_cgroups(processes.read_cgroup(pid, _MOST_BYTES))))


def parse_cgroups(text: str) -> Iterator[str]:
    """The paths of /proc/PID/cgroup, ID:CONTROLLERS:PATH a line; the root of a hierarchy says nothing and is left out."""
    for line in text.split("\n"):  # and nothing else ends a line: names may hold any other character
        path = line.split(":", 2)[-1].removesuffix(_DELETED)
        if path.startswith("/") and path != "/":
            yield path
