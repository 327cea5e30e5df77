"""What the methods `service.*` act on (mpsd/failover/failover.py); a type, as in services.py."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from mpsd.model import ProcessId
from mpsd.service import HandedOver, Instruction, ServiceSettings, ServiceView


class Failover(Protocol):
    """Services.  Every method may raise MpsdError.

    A process is whoever asks.  Who may what was checked before (dispatch.py); that it is a member, and is the writer of this
    generation, is checked here: NotAllowed, StaleGeneration.
    """

    async def enlist(self, name: str, owner_uid: int, process: ProcessId, uid: int) -> Mapping[str, str]:
        """What has to be in its environment before CUDA begins.  uid: whose process it is.  Raises TooMany, Stopping."""

    async def join(self, arena_id: int, process: ProcessId, rank: int, heartbeat_seconds: float) -> Instruction:
        """Who is a member already is one still.  Raises NotAllowed (it has the arena not open), BadRequest, TooMany."""

    def ready(self, arena_id: int, process: ProcessId) -> Instruction: ...

    async def follow(
        self,
        arena_id: int,
        process: ProcessId,
        after: int | None,
        wait_seconds: float,
        answer: Callable[[Instruction], None],
    ) -> Instruction:
        """Once its serial is above `after`, or the time is up.  answer: called before that where it is to serve: neither waits
        nor raises, and what comes back then is that or something newer."""

    def serving(self, arena_id: int, generation: int, process: ProcessId) -> None: ...

    def yielded(self, arena_id: int, generation: int, process: ProcessId) -> Instruction:
        """It is a reader now."""

    def failed(self, arena_id: int, process: ProcessId, why: str) -> None: ...

    def leave(self, arena_id: int, process: ProcessId) -> None:
        """Whoever writes has stopped, and is a reader then."""

    async def get(self, arena_id: int, after: int | None, wait_seconds: float) -> ServiceView:
        """Once its revision is above `after`, or the time is up.  Raises NoSuchArena for an arena without a service."""

    def services(self) -> Sequence[ServiceView]:
        """By id."""

    async def handover(self, arena_id: int, to_pid: int | None, wait_seconds: float) -> HandedOver:
        """Returns when the next one serves.  Raises ArenaBusy where it cannot be, or is not in time; BadRequest."""

    def settings(self, arena_id: int) -> ServiceSettings: ...

    def change(self, arena_id: int, settings: ServiceSettings) -> ServiceView:
        """Durable when the call returns."""
