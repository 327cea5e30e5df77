"""Xid lines of the kernel log, as the NVIDIA driver writes them (NVIDIA's "XID Errors" documentation; measured with 580).

    3,1234,5678901,-;NVRM: Xid (PCI:0000:00:06): 43, pid=22078, name=nvidia-cuda-mps, channel 0x0000000a
    | |    |         what follows is the same in the log of any program
    | |    microseconds of the kernel's clock
    | sequence number
    priority, and eight times the facility: 0 is the kernel's own, which nobody else can write (/dev/kmsg, printk formats)

    ... Xid (PCI:0000:00:06): 31, pid=1, name=x, ... MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_6 faulted @ 0x7f9b_03754000.
    Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE

Under MPS the pid is a server's (13, 43) or that of *any* client of the faulting server, guilty or not (31): it tells the fault
domain, never the culprit (FACTS.md).
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mpsd.fault import TEXT_CHARACTERS, Observation, Source
from mpsd.model import Device
from mpsd.policy.xids import meaning_of

_RECORD = re.compile(r"(?P<priority>\d{1,4}),\d+,(?P<microseconds>\d{1,18}),[^;]*;")
_XID = re.compile(r"NVRM: Xid \((?P<device>[^)]*)\): (?P<code>\d{1,9})(?:, pid='?(?P<pid>\d{1,9})'?)?")
_ADDRESS = re.compile(r"faulted @ 0x(?P<high>[0-9a-f]{1,8})_(?P<low>[0-9a-f]{8})\b")
_ACCESS = re.compile(r"ACCESS_TYPE_(?:VIRT|PHYS)_(?P<access>READ|WRITE|ATOMIC|PREFETCH)")
_PLACE = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})", re.IGNORECASE)

# The kernel's clock may be another one than CLOCK_MONOTONIC; further apart than this, it is.
_CLOCKS_APART_NS = 2 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Xid:
    """`pid` is None where the line names no process; address and access of an MMU fault.

    logged_ns: of the kernel's clock, None where the line has no stamp.  text: the line without what comes before it.
    """

    device: str
    code: int
    pid: int | None
    address: int | None = None
    access: str = ""
    logged_ns: int | None = None
    text: str = ""


def parse_xid(line: str) -> Xid | None:
    """None for any other line, and for one that a program wrote into the kernel's log."""
    match = _XID.search(line)
    record = _RECORD.match(line)
    if match is None or (record and int(record["priority"]) >> 3):
        return None
    text = line[match.start() :].partition("\n")[0]
    address, access = _ADDRESS.search(text), _ACCESS.search(text)
    return Xid(
        match["device"],
        int(match["code"]),
        int(match["pid"]) if match["pid"] else None,
        int(address["high"] + address["low"], 16) if address else None,
        access["access"].lower() if access else "",
        int(record["microseconds"]) * 1000 if record else None,
        "".join(each if each.isprintable() else "?" for each in text[:TEXT_CHARACTERS]),
    )


def observe(xid: Xid, domain: str, devices: Iterable[Device], now_ns: int) -> Observation:
    """domain: of the process that it names, "" if none.  That process is not passed on: it may be an innocent."""
    is_stamp_good = xid.logged_ns is not None and 0 <= now_ns - xid.logged_ns <= _CLOCKS_APART_NS
    return Observation(
        Source.KERNEL_LOG,
        xid.logged_ns if is_stamp_good and xid.logged_ns is not None else now_ns,
        meaning_of(xid.code).fault_class,
        gpu=gpu_at(xid.device, devices),
        domain=domain,
        address=xid.address,
        access=xid.access,
        xid=xid.code,
        text=xid.text,
    )


def gpu_at(place: str, devices: Iterable[Device]) -> str:
    """The UUID of the device that the kernel calls PCI:0000:00:06 and NVML 00000000:00:06.0; "" if it is none of these."""
    found = _numbers(place)
    return next((device.uuid for device in devices if found and _numbers(device.pci_bus_id) == found), "")


def _numbers(place: str) -> tuple[int, int, int] | None:
    match = _PLACE.search(place)
    return (int(match["domain"], 16), int(match["bus"], 16), int(match["device"], 16)) if match else None
