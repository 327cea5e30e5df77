"""NVML's Xid events, on the simulator's NVML and without one."""

import threading

import pytest
import structlog
import trio

from mpsd.faults.sources.nvml_events import NvmlEvents, observe
from mpsd.model.fault import FaultClass, GpuState, Source
from mpsd.model.xid import must_drain
from tests.running import running

xid_events = pytest.importorskip("mpsd.gpu.xid_events", reason="needs the package nvidia-ml-py")


def test_an_xid_tells_the_gpu_and_the_class_and_nobody():
    seen = observe("GPU-1", "XID", 31, 12)
    assert (seen.source, seen.gpu, seen.xid, seen.fault_class) == (Source.NVML, "GPU-1", 31, FaultClass.MMU)
    assert (seen.process, seen.domain, seen.is_proof, seen.seen_ns) == (None, "", False, 12)
    assert seen.text == "Xid 31, GPU memory page fault"


async def test_without_nvml_it_is_absent_and_says_why(tmp_path):
    """A machine without the driver, or a library that is not one."""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    source = NvmlEvents(["GPU-1"], tmp_path / "libnvidia-ml.so.1")
    with structlog.testing.capture_logs() as logs:
        async with running(source.run, lambda seen: None):
            with trio.fail_after(20):
                while not logs:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            assert source.absent.startswith("NVML says")
            assert not source.lost, "it never had events"
    assert [(entry["event"], entry["gpu"]) for entry in logs] == [("faults.no_nvml_events", "GPU-1")]


@pytest.mark.parametrize(
    ("action", "drains"), [(0, 0), (1, 1), (2, 1), (3, 0), (4, 1), (5, 0), (6, 1), (7, 1), (8, 0), (-1, 0)]
)
def test_a_recovery_action_drains_the_gpu_as_its_line_of_the_kernel_log_does(action, drains):
    seen = observe("GPU-1", "RECOVERY_ACTION", action, 12)
    assert (seen.xid, seen.fault_class, seen.gpu) == (154, FaultClass.DEVICE, "GPU-1")
    assert must_drain(seen.xid, seen.text) == bool(drains)


@pytest.mark.parametrize(
    ("kind", "state", "text"),
    [
        ("UNAVAILABLE", GpuState.LOST, "NVML reports that the GPU is unavailable"),
        ("LOST", GpuState.LOST, "NVML says GPU is lost"),
        ("DRAINED", GpuState.DRAINED, "an administrator drains the GPU (nvidia-smi drain): it takes no new process"),
    ],
)
def test_a_gpu_to_be_used_no_more_is_told_and_no_xid_is_made_up(kind, state, text):
    seen = observe("GPU-1", kind, 0, 12, "NVML says GPU is lost")
    assert (seen.xid, seen.fault_class, seen.gpu_state, seen.text) == (None, FaultClass.DEVICE, state, text)


async def test_an_nvml_that_does_not_free_a_lost_gpu_blocks_no_task(monkeypatch):
    begun, may_end, ended_in_time = threading.Event(), threading.Event(), []

    class Lost:
        def __init__(self, gpu, library):
            pass

        def wait(self, milliseconds):
            raise xid_events.GpuLost("NVML says GPU is lost")

        def close(self):
            begun.set()
            ended_in_time.append(may_end.wait(10))

    monkeypatch.setattr(xid_events, "XidEvents", Lost)
    async with running(NvmlEvents(["GPU-1"]).run, lambda seen: None):
        with trio.fail_after(20):
            while not begun.is_set():  # noqa: ASYNC110
                await trio.sleep(0.01)
            may_end.set()
            while not ended_in_time:  # noqa: ASYNC110
                await trio.sleep(0.01)
    assert ended_in_time[0]


async def test_an_nvml_that_does_not_register_a_gpu_delays_no_end(monkeypatch):
    begun, may_end, ended_in_time = threading.Event(), threading.Event(), []

    def hang(gpu, library):
        begun.set()
        ended_in_time.append(may_end.wait(10))

    monkeypatch.setattr(xid_events, "XidEvents", hang)
    try:
        async with running(NvmlEvents(["GPU-1"]).run, lambda seen: None):
            with trio.fail_after(20):
                while not begun.is_set():  # noqa: ASYNC110
                    await trio.sleep(0.01)
        assert not ended_in_time, "the thread still waits"
    finally:
        may_end.set()
