"""The event queues of clients as a source: who made an MMU fault, and where, 0.2 to 0.4 ms after the launch (measured).

The queues, and all else that mpsd does with the UVM descriptors of its clients, are mpsd/uvm's.  Prose: docs/faults.md.
"""

from collections.abc import Callable

from mpsd.fault import Observation
from mpsd.uvm.attachments import Attachments


class UvmEvents:
    """Tells through the attachments, which were given their listener when they were made."""

    def __init__(self, attachments: Attachments) -> None:
        self._attachments = attachments

    @property
    def absent(self) -> str:
        return self._attachments.absent

    async def run(self, publish: Callable[[Observation], None]) -> None:
        """Until cancelled."""
        await self._attachments.run()
