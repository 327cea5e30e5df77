"""What placement knows of services: their members are kept in different domains (mpsd/services/registry.py)."""

from collections.abc import Callable, Collection, Hashable
from typing import Protocol

from mpsd.model.process import ProcessId

DomainsOf = Callable[[Collection[ProcessId]], Collection[str]]  # those in which any of these processes is


class ServicesPort(Protocol):
    def service_of(self, process: ProcessId | None) -> Hashable:
        """Return the service for which the process has enlisted; None: none."""

    def domains_of_others(self, process: ProcessId | None, domains_of: DomainsOf) -> frozenset[str]:
        """Return the domains of the other members of the process's service."""


class NoServices:
    """Stands for the services where nobody enlists."""

    def service_of(self, process: ProcessId | None) -> Hashable:
        return None

    def domains_of_others(self, process: ProcessId | None, domains_of: DomainsOf) -> frozenset[str]:
        return frozenset()
