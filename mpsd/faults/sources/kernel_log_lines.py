"""Xid records of /dev/kmsg, as the NVIDIA driver writes them, distinguished from records into which a user can bring text.

    4,1234,5678901,c;NVRM: Xid (PCI:0000:00:06): 43, pid=22078, name=nvidia-cuda-mps, channel 0x0000000a
    | |    |       | the message
    | |    |       "-", or "c" where the caller passed KERN_CONT, as the driver does
    | |    microseconds of the kernel's clock
    | sequence number
    level, and eight times the facility: 0 is the kernel's own, which no program can write (/dev/kmsg, printk formats)

    ... Xid (PCI:0000:00:06): 31, pid=1, name=x, ... MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_6 faulted @ 0x7f9b_03754000.
    Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE

The kernel itself logs text that users choose, with facility 0: for a program that ends by SIGSEGV it logs its name (15 bytes,
at the beginning of the record) and the name of its file (255 bytes, further on).  So a record is the driver's only if

- its facility is the kernel's; its level proves nothing, and is kernel.printk's: in the open kernel modules, 535 to 595,
  krcReportXid (kernel_rc.c) prints by nv_printf (os-interface.c), which passes KERN_CONT and no level;
- the message begins with "NVRM: Xid (PCI:", the whole place in hexadecimal digits, and "): ".  A name of a process cannot
  hold that: "NVRM: Xid (PCI:" alone has 15 bytes, so what the kernel writes after the name stands where the place must begin;
- it is no continuation of another record ("+", which old kernels write).

/dev/kmsg escapes a line feed in a message, so that a name cannot begin a record.  All this makes a forgery hard, but not
impossible (nft's "log prefix" with net.netfilter.nf_log_all_netns=1 begins a record with any text, at any level).

Under MPS the pid is a server's (13, 43) or that of *any* client of the faulting server, guilty or not (31): it identifies the
fault domain, never the culprit (docs/faults.md).
"""

import re
from collections.abc import Iterable

from msgspec import Struct

from mpsd.model.device import Device
from mpsd.model.fault import TEXT_CHARACTERS, Observation, Source
from mpsd.model.xid import meaning_of, named_pid

_XID = re.compile(
    r"[0-7],\d{1,20},(?P<microseconds>\d{1,18}),[-c](?:,[^;]*)?;"
    r"NVRM: Xid \((?P<device>PCI:[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9a-f])?"
    r"(?: GPU-I:\d{2,5}(?: GPU-CI:\d{2,5})?)?)\): "
    r"(?P<code>\d{1,9})",
    re.ASCII,
)
_ADDRESS = re.compile(r"faulted @ 0x(?P<high>[0-9a-f]{1,8})_(?P<low>[0-9a-f]{8})\b")
_ACCESS = re.compile(r"ACCESS_TYPE_(?:VIRT|PHYS)_(?P<access>READ|WRITE|ATOMIC|PREFETCH)")
_PLACE = re.compile(r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<device>[0-9a-f]{2})", re.IGNORECASE)

# The kernel's clock may differ from CLOCK_MONOTONIC; if they are further apart than this, it does.
_CLOCKS_APART_NS = 2 * 1_000_000_000


class Xid(Struct, frozen=True):
    """A parsed record.  pid: None if the line names no process.  address, access: of an MMU fault.

    logged_ns: of the kernel's clock.  text: the message.
    """

    device: str
    code: int
    pid: int | None
    address: int | None = None
    access: str = ""
    logged_ns: int = 0
    text: str = ""


def parse_xid(record: str) -> Xid | None:
    """None for any record that is not the driver's."""
    match = _XID.match(record)
    if match is None:
        return None
    text = record.partition(";")[2].partition("\n")[0]
    address, access = _ADDRESS.search(text), _ACCESS.search(text)
    return Xid(
        match["device"],
        int(match["code"]),
        named_pid(text),
        int(address["high"] + address["low"], 16) if address else None,
        access["access"].lower() if access else "",
        int(match["microseconds"]) * 1000,
        "".join(each if each.isprintable() else "?" for each in text[:TEXT_CHARACTERS]),
    )


def observe(xid: Xid, domain: str, devices: Iterable[Device], now_ns: int) -> Observation:
    """Return the observation.  domain: of the named process, "" if none.

    The process itself is left out: it may be innocent.
    """
    is_stamp_good = 0 <= now_ns - xid.logged_ns <= _CLOCKS_APART_NS
    return Observation(
        Source.KERNEL_LOG,
        xid.logged_ns if is_stamp_good else now_ns,
        meaning_of(xid.code).fault_class,
        gpu=gpu_at(xid.device, devices),
        domain=domain,
        address=xid.address,
        access=xid.access,
        xid=xid.code,
        text=xid.text,
    )


def gpu_at(place: str, devices: Iterable[Device]) -> str:
    """Return the UUID of the device at a place in the kernel's notation; "" if `devices` lacks it.

    The kernel's PCI:0000:00:06 is NVML's 00000000:00:06.0.
    """
    found = _numbers(place)
    return next((device.uuid for device in devices if found and _numbers(device.pci_bus_id) == found), "")


def _numbers(place: str) -> tuple[int, int, int] | None:
    match = _PLACE.search(place)
    return (int(match["domain"], 16), int(match["bus"], 16), int(match["device"], 16)) if match else None
