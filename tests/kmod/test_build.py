"""What kmod/apply and kmod/build make of each distribution's driver source."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.kmod.applying import CALLS, apply_to
from tests.kmod.building import Build
from tests.kmod.cases import CASES, Case
from tests.kmod.distributions import Root, Unavailable

DRIVERS = {case.driver: case for case in reversed(CASES)}  # of each driver the first case: no debug kernel has to be compiled
MOST_LINES = 17  # that kmod/apply inserts into upstream's files


def symbols(root: Root, build: Build, name: str, *options: str) -> str:
    return subprocess.run(
        ["nm", *options, build.directory / name], capture_output=True, text=True, check=True, cwd=root.path
    ).stdout


def section(build: Build, file: str, name: str) -> str:
    return subprocess.run(["modinfo", "-F", name, build.directory / file], capture_output=True, text=True, check=True).stdout


def calls_in_uvm(root: Root, case: Case, name: str) -> int:
    """How many calls the driver's nvidia-uvm has of a function of RM's."""
    (folder,) = (root.path / "build" / case.archive().name.removesuffix(".tar.xz") / "source").glob("**/nvidia-uvm")
    return sum(len(re.findall(rf"\b{name}\(", file.read_text())) for file in folder.glob("*.c"))


@pytest.fixture
def archive(request: pytest.FixtureRequest) -> Path:
    """The sources of the driver that the parameter names; a distribution's come with its root, which takes minutes to make."""
    try:
        return DRIVERS[request.param].archive()
    except Unavailable as exc:
        pytest.skip(str(exc))


@pytest.mark.skipif(not shutil.which("spatch"), reason="no Coccinelle")
@pytest.mark.parametrize(("driver", "archive"), [(each, each) for each in DRIVERS], ids=list(DRIVERS), indirect=["archive"])
def test_the_calls_are_applied_to_each_drivers_sources(driver: str, archive: Path) -> None:
    """Also of those that are built on request only: this takes seconds."""
    applied = apply_to(archive)
    assert applied.driver.startswith(driver)
    assert (applied.calls, applied.inserted <= MOST_LINES) == (CALLS, True)


def test_it_is_the_driver_and_the_kernel_that_are_meant(case: Case, build: Build) -> None:
    """A distribution that moved on wants a look, and another row in the README."""
    assert build.driver.startswith(case.driver)
    assert build.kernel.startswith(case.distribution.kernel)


def test_the_calls_and_few_lines_are_inserted(build: Build) -> None:
    assert build.calls == CALLS
    assert build.inserted <= MOST_LINES


def test_our_files_compile_without_a_warning(build: Build) -> None:
    assert not build.warnings


def test_the_module_is_for_this_kernel_and_open(build: Build) -> None:
    for file in ("nvidia-uvm.ko", "nvidia-uvm-test.ko"):
        assert section(build, file, "vermagic").split()[0] == build.kernel
        assert section(build, file, "license").strip() == "Dual MIT/GPL"
        assert section(build, file, "depends").strip() == "nvidia"


def test_production_has_nothing_of_the_tests_in_it(root: Root, build: Build) -> None:
    assert "mpsd_test" not in symbols(root, build, "nvidia-uvm.ko")
    assert "mpsd_test_range_vec_create" in symbols(root, build, "nvidia-uvm-test.ko")


def test_it_imports_of_nvidia_only_what_upstream_does(root: Root, build: Build) -> None:
    """The stand-in exports exactly those: one more, and the module would not have been linked."""
    wanted = set(re.findall(r"\bnvUvm\w+", symbols(root, build, "nvidia-uvm.ko", "-u")))
    exported = set(re.findall(r"__ksymtab_(nvUvm\w+)", symbols(root, build, "nvidia.ko")))
    assert wanted == exported
    assert wanted


def test_each_address_space_of_a_client_comes_from_rm_by_one_call(root: Root, case: Case, build: Build) -> None:
    """RM refuses that call for a VA space in which its firmware keeps page tables (kmod/README.md, "The firmware's page
    tables"). The other call makes the VA space that UVM's own channels use."""
    assert calls_in_uvm(root, case, "nvUvmInterfaceDupAddressSpace") == 1
    assert calls_in_uvm(root, case, "nvUvmInterfaceAddressSpaceCreate") == 1
