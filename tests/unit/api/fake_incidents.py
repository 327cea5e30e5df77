"""Three faults as they may be: one that is proven, one with suspects, one of the GPU itself; and what is held against whom."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from mpsd.errors import NoSuchFault
from mpsd.model.blame import BlameKind, BlameStatus
from mpsd.model.fault import Confidence, Deed, FaultClass, FirstError, Incident, Observation, Party, Source
from mpsd.model.process import ProcessId
from tests.unit.commands.language.fake_board import DEVICES

NOW = 1_700_000_000.0
BEGAN_NS = 7_000_000_000_000
MS = 1_000_000
GPU, OTHER_GPU = (device.uuid for device in DEVICES[:2])
ALICES, ALICES_SECOND, BOBS = ProcessId(586, 5860), ProcessId(587, 5870), ProcessId(700, 7000)
PARTIES = (
    Party(ALICES, 1000, "python3", "train.service", 1),
    Party(BOBS, 2000, "trainer", "3f2a9c0d1e2f", None),
)
ADDRESS, PC = 0x7F3A_0000_1000, 0x7F3B_0000_02A0


def proven() -> Incident:
    """Alice's wrote where nothing is; Bob's was in the same domain."""
    seen = {"gpu": GPU, "domain": "d1", "fault_class": FaultClass.MMU, "present": (ALICES, BOBS)}
    return Incident(
        number=1, revision=4, began_ns=BEGAN_NS, began_at=NOW - 60, is_settled=True, fault_class=FaultClass.MMU, gpu=GPU,
        domain="d1", culprit=ALICES, confidence=Confidence.PROVEN, suspects=(), victims=(BOBS,), address=ADDRESS,
        access="write", kernel="oob_write", pc=PC, xids=(31,),
        evidence=(
            Observation(Source.UVM_EVENTS, BEGAN_NS, process=ALICES, is_proof=True, address=ADDRESS, access="write",
                        text="a write to an address without a mapping", **seen),
            Observation(Source.KERNEL_LOG, BEGAN_NS + 127 * MS, process=BOBS, xid=31, text="Xid 31, pid=700", **seen),
            Observation(Source.VENDOR_LOG, BEGAN_NS + 148 * MS, text="Server is handling a fatal GPU error.", **seen),
            Observation(Source.REPORT, BEGAN_NS + 151 * MS, process=ALICES, kernel="oob_write", pc=PC,
                        text="CUDA_ERROR_ILLEGAL_ADDRESS (700)", **seen),
        ),
        deeds=(
            Deed(BEGAN_NS + 2 * MS, "terminate_client: the GPU work of python3[586] is ended"),
            Deed(BEGAN_NS + 410 * MS, "domain d1 is recycled"),
        ),
        parties=PARTIES,
    )  # type: ignore[arg-type]  # fmt: skip


def suspected() -> Incident:
    """An exception of an SM without a core dump; both are Alice's, and one could be cleared."""
    seen = {"gpu": GPU, "domain": "d1", "fault_class": FaultClass.SM, "present": (ALICES, ALICES_SECOND)}
    return Incident(
        number=2, revision=2, began_ns=BEGAN_NS, began_at=NOW - 30, is_settled=False, fault_class=FaultClass.SM, gpu=GPU,
        domain="d1", culprit=None, confidence=Confidence.SUSPECTED, suspects=(ALICES, ALICES_SECOND), victims=(), address=None,
        access="", kernel="", pc=None, xids=(13, 43),
        evidence=(
            Observation(Source.KERNEL_LOG, BEGAN_NS, xid=13, text="Xid 13", **seen),
            Observation(Source.KERNEL_LOG, BEGAN_NS + 3 * MS, xid=43, text="Xid 43", **seen),
        ),
        deeds=(Deed(BEGAN_NS + 10 * MS, "suspects are placed apart"),),
        parties=(PARTIES[0], Party(ALICES_SECOND, 1000, "python3", "train.service", None)),
    )  # type: ignore[arg-type]  # fmt: skip


def of_the_gpu() -> Incident:
    fallen = Observation(Source.NVML, BEGAN_NS, fault_class=FaultClass.DEVICE, gpu=OTHER_GPU, xid=79, text="Xid 79")
    return Incident(
        number=3, revision=1, began_ns=BEGAN_NS, began_at=NOW - 5, is_settled=True, fault_class=FaultClass.DEVICE,
        gpu=OTHER_GPU, domain="", culprit=None, confidence=Confidence.UNKNOWN, suspects=(), victims=(), address=None, access="",
        kernel="", pc=None, xids=(79,), evidence=(fallen,), deeds=(Deed(BEGAN_NS + MS, "the GPU is drained"),),
    )  # fmt: skip


@dataclass(slots=True)
class FaultsInMemory:
    """Faults (mpsd/faults/incidents.py) kept in memory, without correlation and without a database."""

    kept: dict[int, Incident] = field(default_factory=dict)
    held: dict[str, BlameStatus] = field(default_factory=dict)
    reported: deque[tuple[ProcessId, FirstError]] = field(default_factory=deque)

    def keep(self, incident: Incident) -> None:
        """Store a new incident, or a newer revision of one."""
        self.kept[incident.number] = incident

    def hold(self, standing: BlameStatus) -> None:
        self.held[standing.key] = standing

    def incidents(self, after: int) -> Iterable[Incident]:
        return [incident for number, incident in sorted(self.kept.items()) if number > after]

    def incidents_before(self, before: int | None) -> Iterable[Incident]:
        return [incident for number, incident in sorted(self.kept.items(), reverse=True) if before is None or number < before]

    def incident(self, number: int) -> Incident:
        if number not in self.kept:
            raise NoSuchFault(f"no fault has number {number}")
        return self.kept[number]

    def report(self, process: ProcessId, error: FirstError) -> None:
        self.reported.append((process, error))

    async def guard(self, process: ProcessId, base: int, length: int) -> bool:
        """Return False: no guards are watched."""
        return False

    def standings(self) -> Iterable[BlameStatus]:
        return tuple(self.held.values())

    def pardon(self, key: str) -> BlameStatus:
        if key not in self.held:
            raise NoSuchFault(f"nothing is held against {key}")
        return self.held.pop(key)


def known_faults() -> FaultsInMemory:
    faults = FaultsInMemory()
    for incident in (proven(), suspected(), of_the_gpu()):
        faults.keep(incident)
    faults.hold(BlameStatus("lease:1:1000", BlameKind.CONVICTED, NOW - 60, NOW + 3540, faults=2))
    faults.hold(BlameStatus("container:train.service:1000", BlameKind.SUSPECTED, NOW - 30, NOW + 570, 1, case=2, group=0))
    faults.hold(BlameStatus("user:1000:crasher", BlameKind.PAUSED, NOW - 8, NOW + 52, faults=5))
    return faults
