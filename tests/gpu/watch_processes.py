"""Prints the processes that NVML sees on the GPUs, at each change: a JSON object a line, until it is ended. Needs pynvml."""

import json
import os
import time

import pynvml

PAUSE_SECONDS = 0.02


def main() -> None:
    pynvml.nvmlInit()
    devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    told = None
    while True:
        seen = {"plain": pids(devices, "Compute"), "mps": pids(devices, "MPSCompute")}
        if seen != told:
            told = seen
            event = {"event": "processes", "pid": os.getpid(), "monotonic_ns": time.monotonic_ns()}
            print(json.dumps(event | seen), flush=True)
        time.sleep(PAUSE_SECONDS)


def pids(devices: list, kind: str) -> list[int]:
    """Return the pids of the processes of one kind; none if the driver does not report them."""
    ask = getattr(pynvml, f"nvmlDeviceGet{kind}RunningProcesses")
    found: set[int] = set()
    for device in devices:
        try:
            found |= {process.pid for process in ask(device)}
        except pynvml.NVMLError:
            pass
    return sorted(found)


if __name__ == "__main__":
    main()
