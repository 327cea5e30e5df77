"""What the daemon runs for faults: the coordinator, the sources and the reactions."""


import trio
from msgspec import Struct

from mpsd.faults.incidents import Incidents
from mpsd.faults.low_latency import LatencyNeed
from mpsd.faults.reactions import Reactions
from mpsd.faults.sources.kmod_policy import KmodPolicy
from mpsd.faults.sources.runner import Sources
from mpsd.uvm.attachments import Attachments


class Faults(Struct, frozen=True):
    """The parts that see faults and react.  haste: set by the services."""

    desk: Incidents
    sources: Sources
    reactions: Reactions
    attachments: Attachments
    kmod_policy: KmodPolicy
    haste: LatencyNeed

    async def run(self) -> None:
        """Run as long as mpsd."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.desk.run)
            nursery.start_soon(self.reactions.run)
            nursery.start_soon(self.sources.run, self.desk.see)
