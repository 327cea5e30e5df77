"""What is wanted: what the command line says, until the service has been told; then what the service says.  Pure."""

from dataclasses import dataclass, replace
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

    def of(self, settings: Settings) -> Settings:
        """These, where it says nothing else."""
        return replace(settings, **self.said())

    def said(self) -> dict[str, Any]:
        known = {"standbys": self.standbys, "sm_percent": self.sm_percent, "memory_bytes": self.memory_bytes}
        return {name: value for name, value in known.items() if value is not None}


def of_service(found: values.ServiceSettings) -> Settings:
    return Settings(found.standbys, found.sm_percent or None, found.memory_bytes or None)


def changes(given: Given, found: values.ServiceSettings) -> dict[str, Any]:
    """What the service has to be told."""
    return {name: value for name, value in given.said().items() if getattr(found, name) != value}
