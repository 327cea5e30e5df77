"""What clients were started with: their program, their token, and variables that bear on their limits.

It is read when a client connects, by the inspector, because such a read may never end; whoever needs it later finds it here
and does not wait.  Prose: docs/relay.md, "A client that cannot be read".
"""

from collections import OrderedDict

from mpsd import cgroups, processes
from mpsd.inspector import Inspector
from mpsd.lease import Identity
from mpsd.model import Credentials, ProcessId
from mpsd.wire.inspector import Facts

PINNED_VARIABLE, DEVICES_VARIABLE = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_VISIBLE_DEVICES"
_VARIABLES = (cgroups.TOKEN_VARIABLE, PINNED_VARIABLE, DEVICES_VARIABLE)
_MOST = 16384  # processes; over it the one that was not asked about for longest is forgotten
NOTHING = Facts("", {})


class ClientFacts:
    """Guards that what is known of a process was read of it, and of none that had its pid before or after it."""

    def __init__(self, inspector: Inspector) -> None:
        self._inspector = inspector
        self._known: OrderedDict[ProcessId, Facts] = OrderedDict()

    async def read(self, process: ProcessId) -> Facts:
        """As it is now; another program may run in the process since it was read last.  Raises Unreadable."""
        found = await self._inspector.facts(process.pid, _VARIABLES)
        if found is None or not processes.is_alive(process):
            return NOTHING
        self._known[process] = found
        self._known.move_to_end(process)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return found

    def identify(self, process: ProcessId | None, credentials: Credentials) -> Identity:
        """With its token, where it was read."""
        known = self._known.get(process, NOTHING) if process else NOTHING
        return cgroups.identify(process, credentials, known.variables.get(cgroups.TOKEN_VARIABLE, ""))

    def program_of(self, process: ProcessId) -> str:
        """The name of its program; where it was not read, what the kernel has of it."""
        known = self._known.get(process)
        return known.program if known and known.program else processes.command(process.pid)

    def forget(self, process: ProcessId) -> None:
        """It has ended."""
        self._known.pop(process, None)
