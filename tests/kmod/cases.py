"""The cases: the driver's sources, the kernel, and the condition of each.

A distribution's own driver source is in its root. Others are release archives of NVIDIA's open-gpu-kernel-modules, called
VERSION.tar.xz, in ../shared/drivers next to the checkout or in MPSD_KMOD_DRIVERS. They are not part of this project; a case
without its archive is skipped.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.kmod.distributions import DEBIAN11, DEBIAN12, DEBIAN13, DEBUG, SOURCE_TARBALL, Distribution, Unavailable, root_of

CHECKOUT = Path(__file__).resolve().parents[2]
DRIVERS = "MPSD_KMOD_DRIVERS"
ALL_WANTED = "MPSD_KMOD_ALL"  # "1": every case but those of the debug kernel
DEBUG_WANTED = "MPSD_KMOD_DEBUG"  # "1": the debug kernel's cases; it is compiled if the cache has none


@dataclass(frozen=True, slots=True)
class Case:
    """driver: how its version begins.  is_own: the distribution ships its source.  wanted: the variable that asks for it."""

    distribution: Distribution
    driver: str
    is_own: bool = False
    wanted: str = ""

    @property
    def name(self) -> str:
        return self.distribution.name if self.is_own else f"{self.distribution.name}-{self.driver.partition('.')[0]}"

    def archive(self) -> Path:
        """The driver's sources, packed.  Raises Unavailable."""
        if self.is_own:
            return root_of(self.distribution).path / SOURCE_TARBALL
        file = drivers_directory() / f"{self.driver}.tar.xz"
        if not file.exists():
            raise Unavailable(f"no {file.name} in {file.parent} ({DRIVERS}): a release of NVIDIA's open-gpu-kernel-modules")
        return file

    def check(self, is_asked: bool = False) -> None:
        """Raises Unavailable where it was not asked for, here or by its variable, or has no sources."""
        if not is_asked and not self.is_wanted():
            raise Unavailable(f"{self.wanted}=1 asks for it")
        if not self.is_own:
            self.archive()

    def is_wanted(self) -> bool:
        """Whether its variable asks for it, or it is the only one of its distribution: no release archive is there."""
        if not self.wanted or os.environ.get(self.wanted) == "1":
            return True
        usual = [each for each in CASES if each.distribution == self.distribution and not each.wanted]
        return self.is_own and bool(usual) and not any(each.has_sources() for each in usual)

    def has_sources(self) -> bool:
        try:
            self.archive()
        except Unavailable:
            return False
        return True


def drivers_directory() -> Path:
    return Path(os.environ.get(DRIVERS) or CHECKOUT.parent / "shared/drivers")


CASES = (
    Case(DEBIAN12, "580.142"),
    Case(DEBIAN13, "595.45.04"),
    Case(DEBIAN12, "535.", is_own=True, wanted=ALL_WANTED),
    Case(DEBIAN13, "550.", is_own=True, wanted=ALL_WANTED),
    Case(DEBIAN12, "570.211.01", wanted=ALL_WANTED),
    Case(DEBIAN13, "570.211.01", wanted=ALL_WANTED),
    Case(DEBIAN13, "580.142", wanted=ALL_WANTED),
    Case(DEBIAN12, "590.48.01", wanted=ALL_WANTED),
    Case(DEBIAN13, "590.48.01", wanted=ALL_WANTED),
    Case(DEBIAN12, "595.45.04", wanted=ALL_WANTED),
    Case(DEBIAN12, "545.29.06", wanted=ALL_WANTED),
    Case(DEBIAN12, "555.58.02", wanted=ALL_WANTED),
    Case(DEBIAN12, "560.35.03", wanted=ALL_WANTED),
    Case(DEBIAN12, "565.77", wanted=ALL_WANTED),
    Case(DEBIAN12, "575.64.05", wanted=ALL_WANTED),
    Case(DEBIAN11, "580.142", wanted=ALL_WANTED),
    Case(DEBIAN11, "595.45.04", wanted=ALL_WANTED),
    Case(DEBUG, "535.", is_own=True, wanted=DEBUG_WANTED),
    Case(DEBUG, "580.142", wanted=DEBUG_WANTED),
    Case(DEBUG, "595.45.04", wanted=DEBUG_WANTED),
)
