"""The simulator's NVML, seen through the real `nvidia-ml-py` package."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import Machine, open_machine

pytest.importorskip("pynvml", reason="needs the package nvidia-ml-py")

LOOK = """
import json, pynvml as n
n.nvmlInit()
devices = []
for index in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(index)
    memory, pci = n.nvmlDeviceGetMemoryInfo(h), n.nvmlDeviceGetPciInfo(h)
    devices.append({
        "uuid": n.nvmlDeviceGetUUID(h), "name": n.nvmlDeviceGetName(h), "mode": n.nvmlDeviceGetComputeMode(h),
        "total_mib": memory.total >> 20, "used_mib": memory.used >> 20, "bus": pci.busId,
        "compute": [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
        "mps": [[p.pid, p.usedGpuMemory >> 20] for p in n.nvmlDeviceGetMPSComputeRunningProcesses(h)],
        "capability": n.nvmlDeviceGetCudaComputeCapability(h),
    })
    assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(devices[-1]["uuid"])) == index
    assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(pci.busId)) == index
print(json.dumps({"devices": devices, "cuda": n.nvmlSystemGetCudaDriverVersion(), "driver": n.nvmlSystemGetDriverVersion()}))
n.nvmlShutdown()
"""

WAIT = """
import pynvml as n
n.nvmlInit()
events = n.nvmlEventSetCreate()
n.nvmlDeviceRegisterEvents(n.nvmlDeviceGetHandleByIndex(0), n.nvmlEventTypeXidCriticalError, events)
print("ready", flush=True)
data = n.nvmlEventSetWait_v2(events, 15000)
print(data.eventType, data.eventData, flush=True)
try:
    n.nvmlEventSetWait_v2(events, 10)
except n.NVMLError_Timeout:
    print("timeout", flush=True)
n.nvmlEventSetFree(events)
"""


def look(machine: Machine) -> dict[str, Any]:
    command = [sys.executable, "-c", LOOK]
    done = subprocess.run(command, env=machine.library_environment(), capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_devices_are_h200s_with_uuids_that_stay() -> None:
    with open_machine(MPSD_SIM_GPUS="2") as machine, open_machine(MPSD_SIM_GPUS="2") as other:
        found = look(machine)
        assert [device["name"] for device in found["devices"]] == ["NVIDIA H200"] * 2
        assert [device["total_mib"] for device in found["devices"]] == [143771] * 2
        assert found["cuda"] == 13000
        assert found["driver"].startswith("580.")
        assert [d["uuid"] for d in found["devices"]] == [gpu["uuid"] for gpu in machine.status()["gpus"]]
        assert found == look(other)


def test_clients_of_mps_are_apart_from_other_processes(mps: Machine) -> None:
    client = mps.client("hold", "--mem", "100")
    client.wait_for("ready")
    (device,) = look(mps)["devices"]
    assert device["compute"] == [int(mps.server())]
    assert device["mps"] == [[client.pid, 616]]


def test_the_compute_mode_is_the_machines(machine: Machine) -> None:
    machine.tool("set-compute-mode", "0", "EXCLUSIVE_PROCESS")
    assert look(machine)["devices"][0]["mode"] == 3


def test_an_xid_is_an_event_once(mps: Machine) -> None:
    command = [sys.executable, "-c", WAIT]
    with subprocess.Popen(command, env=mps.library_environment(), stdout=subprocess.PIPE, text=True) as waiter:
        assert waiter.stdout
        assert waiter.stdout.readline() == "ready\n"
        mps.run("faulter", "oob_write")
        assert waiter.stdout.read().splitlines() == ["8 31", "timeout"]
