"""Loading and unloading: the stand-in for nvidia.ko, and nvidia-uvm with or without the self test."""

import os
import subprocess
from pathlib import Path

DIRECTORY = Path(os.environ["MPSD_KMOD_MODULES"])
PRODUCTION = DIRECTORY / "nvidia-uvm.ko"
TEST = DIRECTORY / "nvidia-uvm-test.ko"
STAND_IN = DIRECTORY / "nvidia.ko"
UVM = "nvidia_uvm"
PARAMETERS = ("uvm_enable_builtin_tests=1",)


def names() -> set[str]:
    return {line.split()[0] for line in Path("/proc/modules").read_text().splitlines()}


def users() -> int:
    """How many hold nvidia-uvm; 0: it can be unloaded."""
    return next(int(line.split()[2]) for line in Path("/proc/modules").read_text().splitlines() if line.startswith(f"{UVM} "))


def insert(file: Path, *parameters: str) -> None:
    subprocess.run(["insmod", str(file), *parameters], check=True, capture_output=True, text=True)


def load_stand_in() -> None:
    if "nvidia" not in names():
        insert(STAND_IN)


def load(file: Path, *parameters: str) -> None:
    insert(file, *(parameters or PARAMETERS))


def unload() -> None:
    """Unload a module. CalledProcessError if a process holds it."""
    subprocess.run(["rmmod", UVM], check=True, capture_output=True, text=True)
