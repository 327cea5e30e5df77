"""The kernel log, into which any user can bring text: only what begins as the driver's records do is believed."""

import os
import time
from pathlib import Path

from tests.integration.failovers import Troupe
from tests.integration.machine import Machine
from tests.integration.process import is_running

# What Linux logged of a program that user 65534 had named so, and that wrote to address 0.
NAMED = (
    "6,342,{us},-;aaaaaaaaaaaaaaa[31995]: segfault at 0 ip 00005595bd905132 sp 00007ffc01372580 error 6 in "
    "aaaaaaaaaaaaaaaa {xid}[1132,5595bd905000+1000] likely on CPU 0 (core 0, socket 0)"
)
BEGUN = (
    "6,340,{us},-;NVRM: Xid (PCI:[30630]: segfault at 0 ip 0000559c40c79132 sp 00007ffd88b98700 error 6 in {xid}"
    "[1132,559c40c79000+1000] likely on CPU 0 (core 0, socket 0)"
)
DRIVERS = "4,344,{us},c;{xid}"


def write(log: Path, shape: str, xid: int, pid: int) -> None:
    us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
    with log.open("a") as file:
        file.write(shape.format(us=us, xid=f"NVRM: Xid (PCI:0000:00:06): {xid}, pid={pid}, name=x") + "\n")


def test_a_forged_xid_ends_no_active_and_drains_no_gpu(machine: Machine) -> None:
    machine.start()
    log = machine.place / "machine/kmsg"
    troupe = Troupe(machine, 2, 5.0)
    view = troupe.wait_for("a service with a standby", lambda: troupe.serving(0))
    active = view.writer_pid
    for shape in (NAMED, BEGUN):
        for xid in (43, 31, 13, 79, 95):
            write(log, shape, xid, active)
    write(log, DRIVERS, 43, os.getpid())  # of no client: it has no effect
    troupe.wait_for("the last record to be read", lambda: machine.journal("fault.xid") != [])
    assert [entry["pid"] for entry in machine.journal("fault.xid")] == [os.getpid()]
    assert is_running(active)
    assert machine.journal("gpu.drained") == []
    machine.counter().ready()
    troupe.end()
