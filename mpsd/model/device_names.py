"""Find a device by its ordinal, its UUID, or a unique beginning of its UUID."""

from collections.abc import Sequence

from mpsd.errors import NoSuchDevice
from mpsd.model.device import Device
from mpsd.model.domain import ServerView

_PREFIXES = ("gpu-", "mig-")


def find_device(devices: Sequence[Device], name: str) -> Device:
    """Find the device.  Raises NoSuchDevice; its message lists the possible names."""
    found = [device for device in devices if _is_named(device, name)]
    exact = [device for device in found if device.uuid.lower() == name.lower()]
    if len(exact or found) == 1:
        return (exact or found)[0]
    why = "names several devices" if found else "names no device of this daemon"
    raise NoSuchDevice(f'"{name}" {why}: {_describe(devices)}')


def vendor_ordinal(server: ServerView, device: Device) -> int:
    """Return the ordinal of the device in the server's own daemon.  Raises NoSuchDevice if the server does not have it."""
    if not server.device_uuids:
        return device.ordinal
    try:
        return server.device_uuids.index(device.uuid)
    except ValueError:
        raise NoSuchDevice(f"server {server.pid} does not run on device {device.ordinal} ({device.uuid})") from None


def _is_named(device: Device, name: str) -> bool:
    if name.isascii() and name.isdecimal():
        return len(name) < 10 and int(name) == device.ordinal  # ten digits cannot be an ordinal, and int() has its limits
    prefix = name.lower()
    return len(prefix) > 4 and prefix.startswith(_PREFIXES) and device.uuid.lower().startswith(prefix)


def _describe(devices: Sequence[Device]) -> str:
    named = ", ".join(f"{device.ordinal} ({device.uuid})" for device in devices)
    return f"expected an ordinal, a UUID or the beginning of one, out of {named}" if named else "it has no devices"
