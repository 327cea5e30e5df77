"""Builds the C programs and mpsd._native with the package, and puts the front end beside the interpreter.

Everything else about the package is in pyproject.toml.
"""

import subprocess
import sysconfig
from distutils.command.build_scripts import build_scripts  # setuptools brings it, and has none of its own
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).resolve().parent


class BuildPrograms(build_scripts):
    """`make`, then the front end as it is: setuptools would take a program for a Python script."""

    def run(self) -> None:
        for directory in ("clients/control", "native"):
            if (ROOT / directory / "Makefile").exists():
                subprocess.run(["make", "-s", "-C", str(ROOT / directory)], check=True)
        self.mkpath(self.build_dir)
        for script in self.scripts:
            self.copy_file(str(ROOT / script), str(Path(self.build_dir, Path(script).name)))


setup(
    cffi_modules=["native/binding/build.py:ffi"],
    cmdclass={"build_scripts": BuildPrograms},
    scripts=["clients/control/nvidia-cuda-mps-control"],
    options={"bdist_wheel": {"plat_name": sysconfig.get_platform()}},  # a program is in it: not for "any" machine
)
