"""What the daemon runs for faults: the coordinator, the sources and the reactions."""


import trio
from msgspec import Struct

from mpsd.faults.incidents import Incidents
from mpsd.faults.reactions import Reactions
from mpsd.faults.sources.core_dumps import CoreDumps
from mpsd.faults.sources.kernel_log import KernelLog
from mpsd.faults.sources.kmod_policy import KmodPolicy
from mpsd.faults.sources.runner import Sources
from mpsd.notify import Outbox
from mpsd.uvm.attachments import Attachments


class Faults(Struct, frozen=True):
    """The parts that see faults and react.  core_dumps: None: they are off.  outbox: what can wait for a promotion."""

    incidents: Incidents
    outbox: Outbox
    sources: Sources
    kernel_log: KernelLog
    core_dumps: CoreDumps | None
    reactions: Reactions
    attachments: Attachments
    kmod_policy: KmodPolicy

    async def run(self) -> None:
        """Run as long as mpsd."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.outbox.run)
            nursery.start_soon(self.incidents.run)
            nursery.start_soon(self.reactions.run)
            nursery.start_soon(self.sources.run)
