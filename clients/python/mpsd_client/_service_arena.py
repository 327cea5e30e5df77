"""The arena of a service's member: it exists, or the member restores it from an image, or creates it."""

from dataclasses import dataclass

from mpsd_client import _calls as calls
from mpsd_client import _cuda
from mpsd_client._arena import Arena
from mpsd_client._client import Client
from mpsd_client._errors import ErrorCode, Refused
from mpsd_client._restoring import restore_if_missing
from mpsd_client._schedule import ImageSchedule


@dataclass(frozen=True, slots=True)
class ServiceArena:
    """What a member gives: see Service."""

    name: str
    capacity: int
    gpu: str | int | None
    window: int
    mode: int
    ttl: float
    path: str
    images: ImageSchedule | None

    def open(self) -> Arena:
        """Open the arena for reading; restore or create it if it does not exist."""
        if self.images:
            restore_if_missing(self.name, self._gpu(), self.path, self.images.directory, mode=self.mode, ttl=self.ttl)
        refused: Refused | None = None
        for _ in range(2):
            try:
                return Arena.read(self.name, path=self.path)
            except Refused as exc:
                if exc.code != ErrorCode.NO_SUCH_ARENA:
                    raise
                if refused is not None:
                    raise refused from None
            refused = self._create()
        return Arena.read(self.name, path=self.path)

    def _create(self) -> Refused | None:
        """Create the arena.  Return a BAD_REQUEST, since another member may have created the arena in between."""
        asked = calls.arena_create(
            self.name,
            self._gpu(),
            self.capacity,
            window_bytes=self.window or None,
            mode=self.mode,
            ttl_seconds=self.ttl or None,
        )
        try:
            with Client(self.path, program="mpsd_client") as mpsd:
                mpsd.ask(asked)
        except Refused as exc:
            if exc.code != ErrorCode.BAD_REQUEST:
                raise
            return exc
        return None

    def _gpu(self) -> str:
        return _cuda.current_gpu() if self.gpu is None else str(self.gpu)
