"""Give the meaning of Xid numbers: NVIDIA's name, an explanation for operators, and mpsd's conclusions.

Names are the descriptions of NVIDIA's "Xid Catalog" (docs.nvidia.com/deploy/xid-errors, "Analyzing Xid Errors with the Xid
Catalog", as of October 2025), and of its catalog for older GPUs where the newer one calls a number unused; meanings are in our
words, from the same pages.  `drains` follows the catalog's immediate action: RESET_GPU and restarts of the machine.
`ends_server`: 13, 31 and 43 were measured to end every client of the vendor's server (H200, driver 580), 69 is handled as 13
is; for uncorrectable memory errors and a GPU off the bus it follows the documents.  mpsd concludes nothing from other Xids: it
relies on the vendor's own log.  Prose: docs/faults.md.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

from mpsd.model.fault import FaultClass

CONSEQUENCE = 45  # a channel was removed because of another error: it opens no incident by itself
RECOVERY_ACTION = 154


class XidMeaning(Struct, frozen=True):
    """ends_server: the affected MPS server loses its clients.  drains: the GPU takes no new client until it is reset."""

    number: int
    name: str
    meaning: str
    fault_class: FaultClass
    ends_server: bool = False
    drains: bool = False

    @property
    def excuses(self) -> bool:
        """Whether the GPU itself can have ended servers: then no present client is suspected."""
        return self.fault_class is FaultClass.DEVICE and (self.ends_server or self.drains)


_MMU, _SM, _DEVICE, _UNKNOWN = FaultClass.MMU, FaultClass.SM, FaultClass.DEVICE, FaultClass.UNKNOWN
_COPY = "a copy engine refused a command: restart the program; if other programs see it too, suspect the hardware"
_VIDEO = "a video engine failed, which compute work does not use: restart the program that does"
_NVLINK5 = "an NVLink unit of the GPU reports an error: see its sub-code in the kernel log; 154 reports if a reset is needed"
_SPI = "the chip that holds the GPU's firmware could not be accessed: the GPU runs on; have it looked at if it recurs"
_OLD_DISPLAY = "concerns displays; unused on compute GPUs"

# number, name, class, whether it ends servers and drains the GPU, meaning
_ROWS = (
    (8, "GPU stopped processing", _UNKNOWN, "", "work did not end within the driver's time limit: restart the program"),
    (13, "Graphics Engine Exception", _SM, "ends",
     "a kernel did what an SM refuses: trap, assert, misaligned or illegal instruction, stack overflow"),
    (31, "GPU memory page fault", _MMU, "ends",
     "a kernel or a copy used an address that is not mapped for it; under MPS the pid is that of any client of the server"),
    (32, "Invalid or corrupted push buffer stream", _UNKNOWN, "",
     "commands for the GPU were damaged on their way: a bug of program or driver, or a bad PCIe link"),
    (38, "Driver firmware error", _UNKNOWN, "",
     "the firmware that switches contexts missed its time limit: ignore it once, report it if it recurs"),
    (39, "Copy Engine Exception", _UNKNOWN, "", _COPY),
    (40, "Copy Engine Exception", _UNKNOWN, "", _COPY),
    (41, "Copy Engine Exception", _UNKNOWN, "", _COPY),
    (43, "GPU stopped processing", _SM, "ends", "the driver stopped a program's channels after its error; the GPU is well"),
    (44, "Graphics Engine fault during context switch", _UNKNOWN, "",
     "an error while contexts were switched: ignore it once, report it if it recurs"),
    (45, "Preemptive cleanup, due to previous errors", _UNKNOWN, "",
     "a channel was removed because of another error, or because its process was ended: look at the Xid before it"),
    (46, "GPU stopped processing", _DEVICE, "drains", "the GPU answers no more: it has to be reset"),
    (48, "Double Bit ECC Error", _DEVICE, "ends",
     "ECC could not restore data, and the processes that used them end; 94 or 95 reports the extent, 154 what to do"),
    (54, "Auxiliary power is not connected to the GPU board", _DEVICE, "drains",
     "a power cable is missing: look at the machine"),
    (56, "Display Engine error", _UNKNOWN, "", _OLD_DISPLAY),
    (57, "Error programming video memory interface", _DEVICE, "",
     "the link to the GPU's memory could not be set up; unused on newer GPUs"),
    (58, "Unstable video memory interface detected", _DEVICE, "", "the GPU's memory is not stable; unused on newer GPUs"),
    (61, "Internal micro-controller breakpoint/warning", _DEVICE, "", "the power controller warns; unused on newer GPUs"),
    (62, "Internal micro-controller halt", _DEVICE, "drains", "the power controller stopped: the GPU has to be reset"),
    (63, "GPU memory remapping event", _DEVICE, "",
     "a bad row of memory was replaced by a spare one, in effect after the next reset: nothing to do now"),
    (64, "GPU memory remapping failure", _DEVICE, "drains",
     "a bad row of memory could not be replaced: reset the GPU; if it recurs, have it exchanged"),
    (66, "Illegal access by driver", _UNKNOWN, "", "the driver used a register that it may not: a bug of the driver"),
    (68, "NVDEC0 Exception", _UNKNOWN, "", _VIDEO),
    (69, "Graphics Engine class error", _SM, "ends", "a command that the engine does not know: a bug of program or driver"),
    (74, "NVLink Error", _DEVICE, "",
     "a link between GPUs failed: look at the registers in the kernel log, and at the GPU at its other end"),
    (79, "GPU has fallen off the bus", _DEVICE, "ends drains",
     "the GPU cannot be reached over PCIe: restart the machine; if it recurs, look at seat, power and heat"),
    (92, "High single-bit ECC error rate", _DEVICE, "", "memory errors that ECC repairs come often: watch the GPU"),
    (94, "Contained memory error", _DEVICE, "ends",
     "an uncorrectable memory error that ended one program; others are well: restart it"),
    (95, "Uncontained memory error", _DEVICE, "ends drains",
     "an uncorrectable memory error that may have reached every program of the GPU: reset it"),
    (109, "Context Switch Timeout Error", _DEVICE, "drains", "contexts can no longer be switched: the GPU has to be reset"),
    (110, "Security Fault Error", _DEVICE, "drains", "the GPU refused an access for security: it has to be reset"),
    (119, "GSP RPC Timeout", _DEVICE, "drains", "the GPU's system processor does not answer the driver: reset the GPU"),
    (120, "GSP Error", _DEVICE, "drains", "the GPU's system processor failed: reset the GPU"),
    (121, "C2C Error", _DEVICE, "",
     "the link between GPU and CPU chip had an error that was repaired: report it if it recurs"),
    (122, "SPI PMU RPC read failure", _DEVICE, "", _SPI),
    (123, "SPI PMU RPC write failure", _DEVICE, "", _SPI),
    (124, "SPI PMU RPC erase failure", _DEVICE, "", _SPI),
    (125, "Inforom FS error", _DEVICE, "", "the GPU's own records are damaged: it runs on; have it looked at"),
    (126, "CE10: Unknown Error", _UNKNOWN, "", _COPY),
    (127, "CE11: Unknown Error", _UNKNOWN, "", _COPY),
    (128, "CE12: Unknown Error", _UNKNOWN, "", _COPY),
    (136, "Link Training Failed", _DEVICE, "drains",
     "an NVLink did not come up: reset the GPU; if it recurs, look at cables and switches"),
    (137, "NVLink Privilege Error", _UNKNOWN, "",
     "another GPU used memory over NVLink that it may not, often because a program there was ended: look for an Xid there"),
    (138, "DLA error", _UNKNOWN, "", "concerns an engine that data-centre GPUs do not have"),
    (139, "OFA1 Error", _UNKNOWN, "", _VIDEO),
    (140, "ECC Unrecovered Error", _DEVICE, "ends drains",
     "an uncorrectable memory error that the driver could not set aside: reset the GPU"),
    (141, "CUDA Fast Path Error", _UNKNOWN, "",
     "work that was handed over without the driver's help was refused: ignore it once, report it if it recurs"),
    (142, "NVENC3 Error", _UNKNOWN, "", _VIDEO),
    (143, "GPU Initialization Error", _DEVICE, "drains", "the GPU could not be started: reset it"),
    (144, "NVLINK: SAW Error", _DEVICE, "", _NVLINK5),
    (145, "NVLINK: RLW Error", _DEVICE, "", _NVLINK5),
    (146, "NVLINK: TLW Error", _DEVICE, "", _NVLINK5),
    (147, "NVLINK: TREX Error", _DEVICE, "", _NVLINK5),
    (148, "NVLINK: NVLPW_CTRL Error", _DEVICE, "", _NVLINK5),
    (149, "NVLINK: NETIR Error", _DEVICE, "", _NVLINK5),
    (150, "NVLINK: MSE Error", _DEVICE, "", _NVLINK5),
    (151, "Key rotation Error", _DEVICE, "drains",
     "keys of confidential computing could not be changed: restart the virtual machine"),
    (152, "DLA SMMU Error", _UNKNOWN, "", "concerns an engine that data-centre GPUs do not have"),
    (153, "DLA timeout Error", _UNKNOWN, "", "concerns an engine that data-centre GPUs do not have"),
    (154, "GPU Recovery Action Changed", _DEVICE, "",
     "reports what the Xids before it require: nothing, a reset of the GPU, or a restart of the machine"),
)  # fmt: skip
XIDS: Mapping[int, XidMeaning] = {
    number: XidMeaning(number, name, meaning, fault_class, "ends" in flags, "drains" in flags)
    for number, name, fault_class, flags, meaning in _ROWS
}
ENDS_SERVER = frozenset(number for number, known in XIDS.items() if known.ends_server)

_ACTION = re.compile(r"recovery action changed (from .* )?to 0x[0-9a-f]+ \((?P<action>[^)]*)\)", re.IGNORECASE)
_NAMED = re.compile(r"NVRM: Xid \([^)]*\): \d{1,9}, pid='?(?P<pid>\d{1,9})", re.ASCII)
_DRAINING_ACTIONS = frozenset(
    {"drain and reset", "gpu reset required", "node reboot required", "bus reset required", "system reboot required"}
)
# NVML_GPU_RECOVERY_ACTION_..., in the words of the kernel log where it has them
_ACTIONS = (
    "None", "GPU Reset Required", "Node Reboot Required", "Drain P2P", "Drain and Reset", "Recover IMEX Domain",
    "Bus Reset Required", "System Reboot Required",
)  # fmt: skip


def meaning_of(number: int) -> XidMeaning:
    """Return the meaning of the number; for an unknown one, a meaning that refers to NVIDIA's catalog."""
    known = XIDS.get(number)
    return known or XidMeaning(number, f"Xid {number}", "not in mpsd's table: see NVIDIA's Xid catalog", _UNKNOWN)


def recovery_text(action: int) -> str:
    """Return NVML's recovery action in the words of the kernel log's Xid 154."""
    if action < 0:
        return "GPU recovery action changed, NVML does not report it"
    name = _ACTIONS[action] if action < len(_ACTIONS) else "not known to mpsd"
    return f"GPU recovery action changed to 0x{action:x} ({name})"


def must_drain(number: int, text: str = "") -> bool:
    """Return whether the GPU has to be drained.  text: the line of the kernel log; that of a 154 names the required action."""
    if number == RECOVERY_ACTION:
        found = _ACTION.search(text)
        return found is not None and found["action"].lower() in _DRAINING_ACTIONS
    return meaning_of(number).drains


def named_pid(text: str) -> int | None:
    """Return the pid in a line of the kernel log about an Xid; None without one."""
    found = _NAMED.match(text)
    return int(found["pid"]) if found else None
