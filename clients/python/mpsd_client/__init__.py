"""A client of mpsd's socket: `Client` blocks, `AsyncClient` is for trio, `calls` has what can be asked.

    from mpsd_client import Client, Selector, calls

    with Client() as mpsd:
        lease = mpsd.ask(calls.lease_create("training", Selector.of_self(), sm_percent=30, ttl_seconds=60))
"""

from typing import TYPE_CHECKING, Any

from mpsd_client import _calls as calls
from mpsd_client import _values as values
from mpsd_client._calls import Call
from mpsd_client._client import Client
from mpsd_client._errors import Disconnected, ErrorCode, MpsdError, ProtocolError, Refused
from mpsd_client._values import Event, Lease, Lost, Page, Selector

if TYPE_CHECKING:
    from mpsd_client._async_client import AsyncClient

__all__ = [
    "AsyncClient",
    "Call",
    "Client",
    "Disconnected",
    "ErrorCode",
    "Event",
    "Lease",
    "Lost",
    "MpsdError",
    "Page",
    "ProtocolError",
    "Refused",
    "Selector",
    "calls",
    "values",
]


def __getattr__(name: str) -> Any:
    """AsyncClient needs trio, which who only wants Client need not have."""
    if name == "AsyncClient":
        from mpsd_client._async_client import AsyncClient

        return AsyncClient
    raise AttributeError(f"module {__name__} has no attribute {name}")
