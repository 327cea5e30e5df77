"""The values in mpsd's answers, frozen.  Units are in the names; times without a unit are seconds since the epoch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mpsd_client._arena_values import Arena as Arena
from mpsd_client._arena_values import ArenaLayout as ArenaLayout
from mpsd_client._arena_values import ArenaUse as ArenaUse
from mpsd_client._arena_values import Committed as Committed
from mpsd_client._arena_values import KeptState as KeptState
from mpsd_client._arena_values import RoomMade as RoomMade
from mpsd_client._arena_values import StateKept as StateKept
from mpsd_client._arena_values import Taken as Taken
from mpsd_client._daemon_values import Device as Device
from mpsd_client._daemon_values import Domain as Domain
from mpsd_client._daemon_values import Drained as Drained
from mpsd_client._daemon_values import Fault as Fault
from mpsd_client._daemon_values import Health as Health
from mpsd_client._daemon_values import Hello as Hello
from mpsd_client._daemon_values import Keeper as Keeper
from mpsd_client._daemon_values import Limits as Limits
from mpsd_client._daemon_values import Recycled as Recycled
from mpsd_client._daemon_values import Server as Server
from mpsd_client._daemon_values import Status as Status
from mpsd_client._fault_values import Deed as Deed
from mpsd_client._fault_values import Evidence as Evidence
from mpsd_client._fault_values import Guarded as Guarded
from mpsd_client._fault_values import Incident as Incident
from mpsd_client._fault_values import IncidentReport as IncidentReport
from mpsd_client._fault_values import Party as Party
from mpsd_client._fault_values import Reported as Reported
from mpsd_client._fault_values import Standing as Standing
from mpsd_client._fault_values import Xid as Xid
from mpsd_client._lease_values import Grant as Grant
from mpsd_client._lease_values import Lease as Lease
from mpsd_client._lease_values import Moved as Moved
from mpsd_client._lease_values import MpsClient as MpsClient
from mpsd_client._lease_values import Place as Place
from mpsd_client._lease_values import Stopped as Stopped
from mpsd_client._lease_values import StoppedProcess as StoppedProcess
from mpsd_client._lease_values import Terminated as Terminated
from mpsd_client._lease_values import Waiting as Waiting
from mpsd_client._lease_values import Why as Why
from mpsd_client._selector import Selector as Selector
from mpsd_client._service_values import Enlisted as Enlisted
from mpsd_client._service_values import HandedOver as HandedOver
from mpsd_client._service_values import Instruction as Instruction
from mpsd_client._service_values import Loss as Loss
from mpsd_client._service_values import Member as Member
from mpsd_client._service_values import Promotion as Promotion
from mpsd_client._service_values import Service as Service
from mpsd_client._service_values import ServiceSettings as ServiceSettings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Event:
    topic: str
    time: float
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lost:
    """Marks missing events: `count` were dropped because this client was too slow."""

    count: int


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list; `next` is where the rest begins, None at the end."""

    items: tuple[T, ...]
    next: int | None
