"""Observations of a fault as the sources make them, and what receives them.

Times are milliseconds after the launch of the bad kernel; the usual ones are those measured on an H200.
"""

from msgspec.structs import replace

from mpsd.faults.rules.fusion import Fusion
from mpsd.model.fault import Confidence, FaultClass, Observation, Party, Source
from mpsd.model.process import ProcessId

MS = 1_000_000
EPOCH = 1.8e9
A, B, C, D = (ProcessId(pid, 7) for pid in (101, 102, 103, 104))
STRANGER = ProcessId(999, 7)
EVERYBODY = (A, B, C)
PROVEN, ALONE, LEFT = Confidence.PROVEN, Confidence.ALONE, Confidence.LEFT
SUSPECTED, UNKNOWN = Confidence.SUSPECTED, Confidence.UNKNOWN
DOMAIN, GPU = "default", "GPU-a"


def at(ms: float) -> int:
    return 10**12 + int(ms * MS)


def seen(source, ms=0.0, **facts) -> Observation:
    facts = {"domain": DOMAIN, "present": EVERYBODY} | facts
    return Observation(source, at(ms), **facts)


def xid(number, ms=125.0, **facts):
    return seen(Source.KERNEL_LOG, ms, **{"xid": number, "gpu": GPU} | facts)


def nvml(number, ms=126.0, **facts):
    return seen(Source.NVML, ms, **{"xid": number, "gpu": GPU, "domain": "", "present": ()} | facts)


def uvm(who, ms=1.3, **facts):
    more = {"process": who, "is_proof": True, "fault_class": FaultClass.MMU, "address": 0x7F00, "access": "write"}
    return seen(Source.UVM_EVENTS, ms, **more | facts)


def kmod(who, ms=1.0, **facts):
    return replace(uvm(who, ms, **facts), source=Source.KMOD)


def server_log(ms=330.0, **facts):
    return seen(Source.VENDOR_LOG, ms, **facts)


def dump(who, ms=400.0, **facts):
    more = {"process": who, "is_proof": True, "fault_class": FaultClass.SM, "kernel": "bad_kernel", "pc": 0x1F0}
    return seen(Source.CORE_DUMP, ms, **more | facts)


def clean(who, ms=400.0, **facts):
    return seen(Source.CORE_DUMP, ms, **{"process": who, "clears": True} | facts)


def report(who, ms=12.0, **facts):
    return seen(Source.REPORT, ms, **{"process": who, "fault_class": FaultClass.SM, "kernel": "innocent"} | facts)


def ended(who, ms, **facts):
    """Report that the process was ended by another one."""
    return seen(Source.PROCESS, ms, **{"process": who, "fault_class": FaultClass.HOST} | facts)


def exited(who, ms, **facts):
    return ended(who, ms, fault_class=FaultClass.UNKNOWN, **facts)


def failed(who, ms):
    return exited(who, ms, is_failure=True)


def sentinel(who=None, ms=4.0, **facts):
    """Report a contained exception, or its culprit."""
    more = {"process": who, "is_proof": who is not None, "fault_class": FaultClass.SM, "is_contained": True}
    return seen(Source.SENTINEL, ms, **more | facts)


class FaultSetup:
    """A fusion, and the last revision of each incident."""

    def __init__(self, party_of=lambda process: Party(process, 1000, f"p{process.pid}")) -> None:
        self.fusion = Fusion(1, lambda ns: EPOCH + (ns - at(0)) / 1e9, party_of)
        self.incidents = {}

    def hear(self, *observations, late_ms=0.0):
        for each in observations:
            self.keep(self.fusion.take(each, each.seen_ns + int(late_ms * MS)))
        return self

    def recover(self, ms):
        self.keep(self.fusion.domain_recovered(DOMAIN, at(ms)))
        return self

    def settle(self, ms):
        self.keep(self.fusion.settle(at(ms)))
        return self

    def keep(self, changed):
        for each in changed:
            before = self.incidents.get(each.number)
            assert each.revision == (before.revision + 1 if before else 1)
            self.incidents[each.number] = each

    @property
    def one(self):
        (only,) = self.incidents.values()
        return only
