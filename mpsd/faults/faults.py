"""What the daemon runs of all this: the desk, its sources, what is done about incidents."""

from dataclasses import dataclass

import trio

from mpsd.faults.desk import FaultDesk
from mpsd.faults.haste import Haste
from mpsd.faults.kmod_policy import KmodPolicy
from mpsd.faults.reactions import Reactions
from mpsd.faults.sources import Sources
from mpsd.uvm.attachments import Attachments


@dataclass(frozen=True, slots=True)
class Faults:
    """haste: for whom it concerns to say."""

    desk: FaultDesk
    sources: Sources
    reactions: Reactions
    attachments: Attachments
    kmod_policy: KmodPolicy
    haste: Haste

    async def run(self) -> None:
        """Lives as long as mpsd."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.desk.run)
            nursery.start_soon(self.reactions.run)
            nursery.start_soon(self.sources.run, self.desk.see)
