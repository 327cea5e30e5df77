"""What is wanted: what the command line says, until the service has been told; then what the service says.  Pure."""

from dataclasses import asdict, dataclass, replace
from typing import Any

from mpsd_client import values


@dataclass(frozen=True, slots=True)
class Settings:
    standbys: int = 1
    sm_percent: float | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Given:
    """On the command line.  None: nothing was said of it."""

    standbys: int | None = None
    sm_percent: float | None = None
    memory_bytes: int | None = None
    until_done: bool | None = None

    def of(self, settings: Settings) -> Settings:
        """These, where it says nothing else."""
        return replace(settings, **{name: value for name, value in self.said().items() if hasattr(settings, name)})

    def said(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


def of_service(found: values.ServiceSettings) -> Settings:
    return Settings(found.standbys, found.sm_percent or None, found.memory_bytes or None)


def changes(given: Given, found: values.ServiceSettings) -> dict[str, Any]:
    """What the service has to be told."""
    return {name: value for name, value in given.said().items() if getattr(found, name) != value}
