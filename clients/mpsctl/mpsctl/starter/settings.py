"""The desired settings: those of the command line until mpsd has stored them, then those that mpsd has stored.  Pure."""

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


def of_service(found: values.Service) -> Settings:
    """Return the settings to follow: of an elastic service, the share that it was dealt."""
    asked = found.settings
    sm_percent = asked.sm_percent if found.share is None else found.share.sm_percent
    return Settings(asked.standbys, sm_percent or None, asked.memory_bytes or None)


def changes(given: Given, found: values.ServiceSettings) -> dict[str, Any]:
    """Return the given options that differ from the service's settings."""
    return {name: value for name, value in given.said().items() if getattr(found, name) != value}
