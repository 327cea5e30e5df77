"""NVML's Xid events, on the simulator's NVML and where there is none."""

import pytest
import structlog

from mpsd.fault import FaultClass, Source
from mpsd.faults.nvml_events import NvmlEvents, observe

pytest.importorskip("pynvml", reason="needs the package nvidia-ml-py")


def test_an_xid_tells_the_gpu_and_the_class_and_nobody():
    seen = observe("GPU-1", 31, 12)
    assert (seen.source, seen.gpu, seen.xid, seen.fault_class) == (Source.NVML, "GPU-1", 31, FaultClass.MMU)
    assert (seen.process, seen.domain, seen.is_proof, seen.seen_ns) == (None, "", False, 12)
    assert seen.text == "Xid 31, GPU memory page fault"


async def test_without_nvml_it_is_absent_and_says_why(tmp_path):
    """A machine without the driver, or a library that is not one."""
    (tmp_path / "libnvidia-ml.so.1").write_bytes(b"no library")
    source = NvmlEvents(["GPU-1"], tmp_path / "libnvidia-ml.so.1")
    with structlog.testing.capture_logs() as logs:
        await source.run(lambda seen: None)
    assert [entry["event"] for entry in logs] == ["faults.no_nvml_events"]
    assert "NVML says" in source.absent
