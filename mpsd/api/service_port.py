"""What the methods `service.*` act on (mpsd/services/requests.py); a type, as in ports.py."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mpsd.model.process import ProcessId
from mpsd.model.service import HandedOver, Instruction, ServiceSettings, ServiceView


class ServicePort(Protocol):
    """The failover services.  Every method may raise MpsdError.

    `process` is the caller.  dispatch.py has checked the privilege; these methods check that the caller is a member, and the
    writer of this generation: NotAllowed, StaleGeneration.
    """

    async def enlist(self, name: str, owner_uid: int, process: ProcessId, uid: int) -> Mapping[str, str]:
        """Return the variables that the process has to set before it initializes CUDA.  uid: of the process.

        Raises TooMany, Stopping.
        """

    async def join(self, arena_id: int, process: ProcessId, rank: int, heartbeat_seconds: float) -> Instruction:
        """Make the process a member; no effect if it is one.

        Raises NotAllowed (it does not have the arena open), BadRequest, TooMany.
        """

    def ready(self, arena_id: int, process: ProcessId) -> Instruction: ...

    async def follow(
        self,
        arena_id: int,
        process: ProcessId,
        after: int | None,
        wait_seconds: float,
        answer: Callable[[Instruction], None],
    ) -> Instruction:
        """Return the instruction once its serial is above `after`, or the time is up.

        answer: called first if the member is to serve; it neither waits nor raises, and the method then returns the same
        instruction or a newer one.
        """

    def serving(self, arena_id: int, generation: int, process: ProcessId) -> None: ...

    def yielded(self, arena_id: int, generation: int, process: ProcessId) -> Instruction:
        """Record that the process has stopped writing; it is a reader now."""

    def failed(self, arena_id: int, process: ProcessId, why: str) -> None: ...

    def leave(self, arena_id: int, process: ProcessId) -> None:
        """End the membership; a writer has stopped writing, and becomes a reader."""

    async def get(self, arena_id: int, after: int | None, wait_seconds: float) -> ServiceView:
        """Return the view once its revision is above `after`, or the time is up.

        Raises NoSuchArena for an arena without a service.
        """

    def services(self) -> Sequence[ServiceView]:
        """Return all services, by id."""

    async def handover(self, arena_id: int, to_pid: int | None, wait_seconds: float) -> HandedOver:
        """Return when the next member serves.  Raises ArenaBusy if no member can, or not in time; BadRequest."""

    def settings(self, arena_id: int) -> ServiceSettings: ...

    def change(self, arena_id: int, settings: ServiceSettings) -> ServiceView:
        """Change the settings; durable when the call returns."""
