"""mpsd's NVML source on the simulator's NVML."""

import subprocess
import sys

import pytest

from tests.native.sim_fixtures import built_programs  # noqa: F401
from tests.native.sim_machine import ROOT, TOOL, open_machine

pytest.importorskip("pynvml", reason="needs the package nvidia-ml-py")

WATCH = """
import sys, trio, trio.testing
from pathlib import Path
from mpsd.faults.sources.nvml_events import NvmlEvents
from mpsd.gpu.nvml import read_devices

async def main():
    library = Path(sys.argv[1])
    devices = read_devices(None, library)
    send, receive = trio.open_memory_channel(100)
    source = NvmlEvents([device.uuid for device in devices], library)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.run, send.send_nowait)
        while source.absent:  # until it listens
            await trio.testing.wait_all_tasks_blocked()
        print("ready", devices[1].uuid, flush=True)
        with trio.fail_after(15):
            seen = await receive.receive()
        print(seen.xid, seen.gpu, flush=True)
        nursery.cancel_scope.cancel()
    print(source.absent, flush=True)

trio.run(main)
"""


def test_an_xid_of_the_simulator_is_heard_and_its_end_disturbs_nothing() -> None:
    """The wait that is abandoned at the end still uses the library: freed under it, the process would crash."""
    library = ROOT / "native/sim/lib/libnvidia-ml.so.1"
    with open_machine(MPSD_SIM_GPUS="2") as machine:
        environment = {**machine.library_environment(), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", WATCH, str(library)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as watcher:
            assert watcher.stdout
            word, uuid = watcher.stdout.readline().split()
            assert word == "ready"
            machine.tool("xid", "1", "79")
            assert watcher.stdout.readline().split() == ["79", uuid]
            assert watcher.stdout.readline().split() == ["stopped"]
            assert watcher.wait(20) == 0


LOSE = """
import subprocess, sys, trio
from pathlib import Path
from mpsd.faults.sources import nvml_events
from mpsd.gpu.nvml import read_devices

nvml_events._AGAIN_SECONDS = nvml_events._AGAIN_MOST_SECONDS = 0.1
nvml_events._WAIT_MS = 50

async def main():
    library = Path(sys.argv[1])
    first, second = (device.uuid for device in read_devices(None, library))
    send, receive = trio.open_memory_channel(100)
    source = nvml_events.NvmlEvents([first, second], library)

    async def until(holds):
        with trio.fail_after(15):
            while not holds():
                await trio.sleep(0.01)

    async def told(uuid, xid, state):
        with trio.fail_after(15):
            seen = await receive.receive()
        assert (seen.gpu, seen.xid, seen.gpu_state) == (uuid, xid, state), seen

    async def receives(gpu, uuid):
        subprocess.run([*sys.argv[2:], "xid", gpu, "79"], check=True)
        await told(uuid, 79, None)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(source.run, send.send_nowait)
        await until(lambda: not source.absent)
        subprocess.run([*sys.argv[2:], "lose", "0"], check=True)
        await until(lambda: source.absent)
        await told(first, None, "lost")  # once, however often NVML is asked again
        assert source.absent == f"no events of {first}: NVML says GPU is lost", source.absent
        assert source.lost == {first: "NVML says GPU is lost"}, source.lost
        await receives("1", second)
        subprocess.run([*sys.argv[2:], "return", "0"], check=True)
        await until(lambda: not source.absent)
        assert not source.lost
        await receives("0", first)
        await receives("1", second)
        subprocess.run([*sys.argv[2:], "drain", "1"], check=True)
        await told(second, None, "drained")
        await receives("0", first)  # several looks later at a state that lasts
        subprocess.run([*sys.argv[2:], "undrain", "1"], check=True)
        await trio.sleep(3 * nvml_events._WAIT_MS / 1000)
        subprocess.run([*sys.argv[2:], "drain", "1"], check=True)
        await told(second, None, "drained")
        nursery.cancel_scope.cancel()
    print("done", flush=True)

trio.run(main)
"""


def test_a_gpu_that_is_lost_or_drained_is_told_once_and_the_others_events_go_on() -> None:
    """One event set for all GPUs ended with the first that NVML lost.  The events of a lost GPU come back with it."""
    library = ROOT / "native/sim/lib/libnvidia-ml.so.1"
    with open_machine(MPSD_SIM_GPUS="2") as machine:
        environment = {**machine.library_environment(), "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", LOSE, str(library), str(TOOL)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "done"
