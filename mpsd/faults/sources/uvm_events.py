"""The event queues of clients as a source: the culprit and the address of an MMU fault, 0.2 to 0.4 ms after the launch
(measured).

mpsd/uvm has the queues, and all other uses of clients' UVM descriptors.  Prose: docs/faults.md.
"""

from collections.abc import Callable

from mpsd.model.fault import Observation
from mpsd.uvm.attachments import Attachments


class UvmEvents:
    """Publishes through the attachments, which got their listener when they were built."""

    def __init__(self, attachments: Attachments) -> None:
        self._attachments = attachments

    @property
    def absent(self) -> str:
        return self._attachments.absent

    async def run(self, publish: Callable[[Observation], None]) -> None:
        """Run until cancelled."""
        await self._attachments.run()
