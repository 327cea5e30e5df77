"""Loading and unloading.  These tests run before the others' fixture has loaded anything, and after it unloaded."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import modules
import pytest
from device import PATH, Device, Kind, Mode, command, refusal
from fake_gpu import DEFERRED, UVM_TEST_PAGE_TREE, UVM_TEST_RANGE_TREE_DIRECTED, FakeGpu, VaSpace
from kernel_log import KernelLog
from test_sink import HOLE


@pytest.fixture(autouse=True)
def unloaded() -> Iterator[None]:
    """Nothing of nvidia-uvm before and after."""
    modules.load_stand_in()
    yield
    if modules.UVM in modules.names():
        modules.unload()


@pytest.mark.parametrize("file", [modules.PRODUCTION, modules.TEST], ids=lambda file: file.stem)
def test_it_loads_and_unloads_again_and_again(file: Path) -> None:
    for _ in range(3):
        modules.load(file)
        assert os.path.exists(PATH)
        with Device() as device:
            assert device.info().sequence == 0
            device.inject()
            assert device.info().sequence == 1
        modules.unload()
        assert not os.path.exists(PATH)


def test_the_kernel_takes_it_unforced(kernel_log: KernelLog) -> None:
    """The versions of what it imports agree with the driver's own header: nothing was forced or left unchecked."""
    modules.load(modules.PRODUCTION)
    tainted = int(Path("/proc/sys/kernel/tainted").read_text())
    assert not tainted & 1 << 1, "a module was force loaded"
    assert not any("no symbol version" in line or "disagrees about version" in line for line in kernel_log.read())


def test_production_has_no_self_test() -> None:
    modules.load(modules.PRODUCTION)
    with Device() as device:
        for number in range(0xE4, 0x100):
            for direction in (0, 1, 2, 3):
                assert refusal(device.ask, direction << 30 | 16 << 16 | ord("m") << 8 | number, command_buffer()) == "ENOTTY"


def command_buffer() -> bytearray:
    return bytearray(64)


def test_after_loading_faults_are_only_reported() -> None:
    """Until a reader sets another mode, the module contains nothing, as docs and kmod/README promise. The log reports that
    too."""
    log = KernelLog()
    modules.load(modules.PRODUCTION)
    assert any("reported until a policy says more" in line for line in log.read())
    log.close()


@pytest.mark.parametrize("file", [modules.PRODUCTION, modules.TEST], ids=lambda file: file.stem)
@pytest.mark.parametrize("number", [UVM_TEST_RANGE_TREE_DIRECTED, UVM_TEST_PAGE_TREE])
def test_upstreams_own_tests_pass(file: Path, number: int) -> None:
    modules.load(file)
    with VaSpace() as va_space:
        assert va_space.ask(number, bytes(64), 0) == 0


def test_it_cannot_go_while_a_va_space_is_open() -> None:
    modules.load(modules.PRODUCTION)
    with VaSpace():
        with pytest.raises(subprocess.CalledProcessError):
            modules.unload()


def test_a_va_space_whose_release_was_deferred_is_told_of_nowhere() -> None:
    """UVM ends it when the module goes: no process reads its last records, and they harm none."""
    modules.load(modules.TEST)
    with Device() as device, VaSpace() as va_space:
        device.set_policy(Mode.SINK)
        with FakeGpu(device, va_space, flags=DEFERRED) as gpu:
            assert gpu.access(HOLE).absorbed
            device.wait(Kind.STOPPED)
        assert device.drain() == []
    modules.unload()


def test_the_faults_of_nobody_known_are_left_to_uvm() -> None:
    """Without the owner of its memory a VA space may be an MPS server's, which is exempt, and mpsd could not end its client."""
    modules.load(modules.TEST, *modules.PARAMETERS, "uvm_enable_va_space_mm=0")
    with Device() as device, VaSpace(has_mm=False) as va_space:
        device.set_policy(Mode.SINK)
        with FakeGpu(device, va_space) as gpu:
            assert not gpu.access(HOLE).absorbed
        (record,) = device.drain()
        assert (record.story, record.tgid) == ("FAULT CANCELLED OWNER", 0)


def test_the_ioctl_numbers_are_those_of_the_header() -> None:
    """An independent reading of <linux/ioctl.h>: _IOR('m', 0xe0, 48 bytes)."""
    from device import INFO, Info

    assert INFO == 0x8030_6DE0 == command(2, 0xE0, Info)
