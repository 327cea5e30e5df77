"""domain.list, create, drain, recycle; device.list."""

from functools import partial
from typing import Any

from mpsd.api.call import Call, Rows
from mpsd.errors import BadRequest, NoSuchDomain
from mpsd.model.device import Device
from mpsd.model.device_names import find_device
from mpsd.model.domain import DomainView
from mpsd.wire import daemon_results
from mpsd.wire.fields import Map
from mpsd.wire.messages import CreateDomain, DomainName, Page


def list_domains(call: Call[Page]) -> Rows[DomainView]:
    """List the domains.  Every user sees all of them, as in the command language; the rows have no pids of clients."""
    views = sorted(call.services.domains.views(), key=lambda view: view.number)
    return Rows(((view.number, None, view) for view in views), partial(_show, call))


def list_devices(call: Call[Page]) -> Rows[Device]:
    return Rows(((device.ordinal, None, device) for device in call.services.board.devices), daemon_results.device)


async def create(call: Call[CreateDomain]) -> Map:
    devices = call.services.board.devices
    wanted = {find_device(devices, name).uuid for name in call.ask.gpus} or {device.uuid for device in devices}
    name = await call.services.domains.create(tuple(device.uuid for device in devices if device.uuid in wanted))
    return _show(call, _find(call, name))


async def drain(call: Call[DomainName]) -> Map:
    view = _find(call, call.ask.name)
    await call.services.domains.drain(view.name)
    return {"name": view.name, "clients": view.clients}


async def recycle(call: Call[DomainName]) -> Map:
    view = _find(call, call.ask.name)
    if view.clients:
        raise BadRequest(f"domain {view.name} has {view.clients} clients, and recycling would end them: drain it first")
    await call.services.domains.recycle(view.name)
    return {"name": view.name}


def _find(call: Call[Any], name: str) -> DomainView:
    for view in call.services.domains.views():
        if view.name == name:
            return view
    raise NoSuchDomain(f"no fault domain is called {name}")


def _show(call: Call[Any], view: DomainView) -> Map:
    return daemon_results.domain(view, list(call.services.domains.servers(view.name)))
