"""Builds mpsd_client._native with the package.  Everything else about the package is in pyproject.toml."""

import shutil
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.sdist import sdist

sys.path.insert(0, str(Path(__file__).resolve().parent / "native"))

from build import CHECKOUT, HERE, NEEDED


class SourceDistribution(sdist):
    """Has with it the files of the checkout that the module is built from; setuptools takes none from above the package."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        for each in NEEDED:
            for source in sorted(CHECKOUT.glob(each)):
                target = Path(base_dir, HERE.name, "checkout", source.relative_to(CHECKOUT))
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)


setup(
    cffi_modules=["native/build.py:ffi"],
    cmdclass={"sdist": SourceDistribution},
    options={"bdist_wheel": {"py_limited_api": "cp311"}},  # cffi's module uses the limited API alone
)
