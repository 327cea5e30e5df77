"""Builds the C programs and mpsd._native with the package: the front end goes beside the interpreter, the programs that mpsd
starts, the simulator and the shim into lib/mpsd of the environment, all without their symbols for a debugger.

Everything else about the package is in pyproject.toml and MANIFEST.in.
"""

import platform
import subprocess
import sysconfig
from distutils.command.build_scripts import build_scripts  # setuptools brings it, and has none of its own
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent
STRIPPED = Path("build/programs")
SHIM = ["clients/shim"] if platform.machine() == "x86_64" else []
# The directory below lib/mpsd, and what is built into it.
PROGRAMS = {
    **{each: [f"native/{each}/mpsd-{each}"] for each in ("keeper", "inspector", "launcher", "sentinel")},
    "sim/bin": [f"native/sim/bin/{each}" for each in ("nvidia-cuda-mps-control", "nvidia-cuda-mps-server", "mpsd-sim")],
    "sim/lib": [f"native/sim/lib/{each}" for each in ("libcuda.so.1", "libnvidia-ml.so.1")],
    ".": [f"{each}/libmpsd.so" for each in SHIM],
}


class BuildPrograms(build_scripts):
    """`make`, then the front end as it is: setuptools would take a program for a Python script."""

    def run(self) -> None:
        for directory in ("clients/control", "native", *SHIM):
            subprocess.run(["make", "-s", "-C", str(ROOT / directory)], check=True)
        for script in self.scripts:
            strip(ROOT / script, Path(self.build_dir, Path(script).name))
        for folder, programs in PROGRAMS.items():
            for each in programs:
                strip(ROOT / each, ROOT / STRIPPED / folder / Path(each).name)


def strip(built: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["strip", "--strip-unneeded", "-o", str(target), str(built)], check=True)


setup(
    cffi_modules=["native/binding/build.py:ffi"],
    cmdclass={"build_scripts": BuildPrograms},
    scripts=["clients/control/nvidia-cuda-mps-control"],
    data_files=[
        (str(Path("lib/mpsd", folder)), [str(STRIPPED / folder / Path(each).name) for each in programs])
        for folder, programs in PROGRAMS.items()
    ],
    # Not for "any" machine, as programs are in it; for any Python, as cffi's module uses the limited API alone.
    options={"bdist_wheel": {"plat_name": sysconfig.get_platform(), "py_limited_api": "cp311"}},
)
