"""The desired settings: those of the command line until mpsd has stored them, then those that mpsd has stored.  Pure."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from mpsd_client import values

from mpsctl.starter.ending import Manner


@dataclass(frozen=True, slots=True)
class Settings:
    standbys: int = 1
    sm_percent: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """The options of the command line.  None: not given."""

    standbys: int | None = None
    sm_percent: float | None = None
    memory_bytes: int | None = None
    until_done: bool | None = None
    elastic: str | None = None

    def of(self, settings: Settings) -> Settings:
        """Return the settings with the given options in place of theirs."""
        return replace(settings, **{name: value for name, value in self.said().items() if hasattr(settings, name)})

    def said(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class Task:
    """The task from the command line.  gpus: empty: the GPU of the service.  until_done: end all members when the active has
    ended with status 0.  removes_arena: then remove the arena too.  replica_gpu: the UUID of the GPU for a replica, of a
    service that begins on the one GPU in `gpus`, a UUID too; empty: no replica."""

    given: Given
    gpus: Sequence[str] = ()
    manner: Manner = Manner()
    until_done: bool = False
    removes_arena: bool = False
    replica_gpu: str = ""

    def home(self, service: values.Service | None) -> str:
        """Return the only GPU that members see if there is to be a replica; else empty: they see what the starter sees."""
        if not self.replica_gpu:
            return ""
        return service.gpu if service else self.gpus[0]

    def away(self, home: str) -> str:
        """Return the GPU of the replica while the members are on this one."""
        return self.gpus[0] if home == self.replica_gpu else self.replica_gpu


def of_service(found: values.Service) -> Settings:
    """Return the settings to follow: of an elastic service, the share that it was dealt."""
    asked = found.settings
    sm_percent = asked.sm_percent if found.share is None else found.share.sm_percent
    return Settings(asked.standbys, sm_percent or None, asked.memory_bytes or None)


def changes(given: Given, found: values.ServiceSettings) -> dict[str, Any]:
    """Return the given options that differ from the service's settings."""
    return {name: value for name, value in given.said().items() if getattr(found, name) != value}
