"""The client library of mpsd: its socket, with `Client` (blocking), `AsyncClient` (trio) and the requests in `calls`; arenas,
which are GPU memory that outlives a process, with `Arena`, `adopt` and mpsd_client.torch; and services, in which a standby
takes over such memory within moments, with `Service`.

    from mpsd_client import Client, Selector, calls

    with Client() as mpsd:
        lease = mpsd.ask(calls.lease_create("training", Selector.of_self(), sm_percent=30, ttl_seconds=60))
"""

import importlib
from typing import TYPE_CHECKING, Any

from mpsd_client import _calls as calls
from mpsd_client import _values as values
from mpsd_client._calls import Call
from mpsd_client._client import Client
from mpsd_client._errors import Disconnected, Dismissed, ErrorCode, MpsdError, ProtocolError, Refused
from mpsd_client._layout import Layout, LayoutError, TensorSpec
from mpsd_client._lease_queue import leased, release, until_granted
from mpsd_client._record import Record, Schema
from mpsd_client._values import Event, Lease, Lost, Page, Selector

if TYPE_CHECKING:
    from mpsd_client._arena import Arena, adopt
    from mpsd_client._async_client import AsyncClient
    from mpsd_client._image import Epoch
    from mpsd_client._imager import ImageError, Imager, image_name, images_directory, start_imager
    from mpsd_client._restored_arena import RestoredArena, restore_arena
    from mpsd_client._restoring import restore_image
    from mpsd_client._schedule import ImageSchedule
    from mpsd_client._service import Service
    from mpsd_client._session import CudaError
    from mpsd_client._state import State
    from mpsd_client._state_reader import StateError, StateReader
    from mpsd_client._tensor import Tensor
    from mpsd_client._term import Term
    from mpsd_client._window import Block

__all__ = [
    "Arena",
    "AsyncClient",
    "Block",
    "Call",
    "Client",
    "CudaError",
    "Disconnected",
    "Dismissed",
    "Epoch",
    "ErrorCode",
    "Event",
    "ImageError",
    "ImageSchedule",
    "Imager",
    "Layout",
    "LayoutError",
    "Lease",
    "Lost",
    "MpsdError",
    "Page",
    "ProtocolError",
    "Record",
    "Refused",
    "RestoredArena",
    "Schema",
    "Selector",
    "Service",
    "State",
    "StateError",
    "StateReader",
    "Tensor",
    "TensorSpec",
    "Term",
    "adopt",
    "calls",
    "image_name",
    "images_directory",
    "leased",
    "release",
    "restore_arena",
    "restore_image",
    "start_imager",
    "until_granted",
    "values",
]

# Names that need trio or the C part; a program that uses only Client may lack both.
_LAZY = {
    "Arena": "_arena",
    "AsyncClient": "_async_client",
    "Block": "_window",
    "CudaError": "_session",
    "Epoch": "_image",
    "ImageError": "_imager",
    "ImageSchedule": "_schedule",
    "Imager": "_imager",
    "RestoredArena": "_restored_arena",
    "Service": "_service",
    "State": "_state",
    "StateError": "_state_reader",
    "StateReader": "_state_reader",
    "Tensor": "_tensor",
    "Term": "_term",
    "adopt": "_arena",
    "image_name": "_imager",
    "images_directory": "_imager",
    "restore_arena": "_restored_arena",
    "restore_image": "_restoring",
    "start_imager": "_imager",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"mpsd_client.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__} has no attribute {name}")
