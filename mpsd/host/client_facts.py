"""Facts from the start of a client: its program, its token, its cgroups, and variables that affect its limits.

The inspector reads them when a client connects, because such a read may never end; later uses find them here and do not
wait.  Prose: docs/relay.md, "A client that cannot be read".
"""

from collections import OrderedDict

from mpsd.host import cgroups, processes
from mpsd.host.inspector import Inspector
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.inspector_messages import CgroupLook, StartFacts
from mpsd.model.lease import Identity
from mpsd.model.process import Credentials, ProcessId

PINNED_VARIABLE, DEVICES_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_VISIBLE_DEVICES"
JOB_NAME_VARIABLE = "SLURM_JOB_NAME"  # users choose the names of their jobs, so a false one is of no use to them
_VARIABLES = (cgroups.TOKEN_VARIABLE, PINNED_VARIABLE, DEVICES_VARIABLE, JOB_NAME_VARIABLE)
_MOST = 16384  # processes; beyond that mpsd forgets the facts that were read least recently
# Users choose these values, and how many of their processes connect: without bounds they could take gigabytes of mpsd's memory.
_READ_CHARACTERS = 4096  # of a value; 16 GPUs by UUID take 656
_KEPT_CHARACTERS = 256  # of what is kept of a process beyond its connections; a longer token does not count (cgroups.py)
_CGROUP_CHARACTERS = 1 << 25  # of the cgroups of all; those of one process have 16,384 at most, and with Kubernetes 2,500
NOTHING = StartFacts("", {})


class ClientFacts:
    """Guards that the facts of a process were read from it, not from an earlier or later process with its pid."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._known: OrderedDict[ProcessId, StartFacts] = OrderedDict()
        self._characters = 0  # of the known cgroups

    async def read(self, process: ProcessId) -> StartFacts:
        """Read the facts now: the process may run another program since the last read.

        Raises Unreadable, also for a value that is too long: cut, it could hide what lifts a limit.  The kernel shows no cgroup
        where one path has more than 4,096 bytes: a process with nested ones of its own would be in none that a lease names.
        """
        lacked = processes.lacks_first_thread(process)
        look = await self._inspector.cgroup(process.pid)
        found = await self._inspector.facts(process.pid, _VARIABLES) or NOTHING
        if trouble := cgroups.why_not_known(process, lacked, look):
            raise Unreadable(trouble)
        if not processes.is_alive(process):
            return NOTHING
        for name, value in found.variables.items():
            if len(value) > _READ_CHARACTERS:
                raise Unreadable(f"pid {process.pid} has {len(value)} characters in {name}, and mpsd reads {_READ_CHARACTERS}")
        self.forget(process)
        kept = self._known[process] = _kept(found, look)
        self._characters += _characters(kept)
        while len(self._known) > _MOST or self._characters > _CGROUP_CHARACTERS:
            self.forget(next(iter(self._known)))
        return found

    def identify(self, process: ProcessId | None, credentials: Credentials) -> Identity:
        """Return the identity, with its token if its facts were read, and the cgroups of then.  Raise Unreadable."""
        known = self._known.get(process, NOTHING) if process else NOTHING
        return cgroups.identify(process, credentials, known.variables.get(cgroups.TOKEN_VARIABLE, ""), known.cgroups)

    def program_of(self, process: ProcessId) -> str:
        """Return the program's name; if that was not read, the kernel's command name."""
        known = self._known.get(process)
        return known.program if known and known.program else processes.command(process.pid)

    def job_name_of(self, process: ProcessId) -> str:
        """Return the name of the process's Slurm job, which repeats although the job's number does not; empty if it was not
        read."""
        return self._known.get(process, NOTHING).variables.get(JOB_NAME_VARIABLE, "")

    def forget(self, process: ProcessId) -> None:
        if (known := self._known.pop(process, None)) is not None:
            self._characters -= _characters(known)


def _kept(found: StartFacts, look: CgroupLook) -> StartFacts:
    names = (cgroups.TOKEN_VARIABLE, JOB_NAME_VARIABLE)
    variables = {name: found.variables[name][:_KEPT_CHARACTERS] for name in names if name in found.variables}
    return StartFacts(found.program[:_KEPT_CHARACTERS], variables, cgroups.parsed(look.text))


def _characters(facts: StartFacts) -> int:
    return sum(map(len, facts.cgroups or ()))
