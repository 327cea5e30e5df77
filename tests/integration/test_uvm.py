"""The simulated driver and mpsd's use of its clients' UVM descriptors, with the simulated vendor's daemon but without mpsd's
relay."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import trio

from mpsd.host import processes
from mpsd.model.client import ShieldState
from mpsd.model.fault import Observation
from mpsd.model.process import ProcessId
from mpsd.uvm.attachments import Attachments
from mpsd.uvm.simulator import SimulatedDevices
from mpsd.uvm.status import UvmSettings
from tests.descriptors import descriptors
from tests.inspecting import INSPECTOR
from tests.integration.client import Client
from tests.integration.machine import CLIENTS, PROGRAM, SIMULATOR
from tests.integration.process import wait_for

LOW_BYTES = 0x3F0000


@dataclass
class Stage:
    """The vendor's daemon, its clients, and those who listen to them."""

    place: Path
    observations: list[Observation]
    children: list[subprocess.Popen[bytes]]

    @property
    def environment(self) -> dict[str, str]:
        return {
            "PATH": os.defpath,
            "LD_LIBRARY_PATH": str(SIMULATOR / "lib"),
            "CUDA_MPS_PIPE_DIRECTORY": str(self.place / "pipe"),
            "CUDA_MPS_LOG_DIRECTORY": str(self.place / "log"),
            "MPSD_SIM_DIR": str(self.place / "machine"),
            "MPSD_SIM_FAST": "1",
        }

    def command(self, line: str, *words: str) -> None:
        program = SIMULATOR / "bin" / PROGRAM
        subprocess.run(
            [program, *words], input=line.encode(), env=self.environment, check=True, capture_output=True, timeout=20
        )

    def begin(self, program: str, *words: str) -> "subprocess.Popen[bytes]":
        return subprocess.Popen([CLIENTS / program, *words], env=self.environment, stdout=subprocess.DEVNULL)

    def client(self, program: str, *words: str) -> Client:
        output = self.place / f"client-{len(self.children)}.jsonl"
        with output.open("wb") as file:
            child = subprocess.Popen(
                [CLIENTS / program, "--json", *words], stdin=subprocess.PIPE, stdout=file, stderr=file, env=self.environment
            )
        self.children.append(child)
        return Client(child, output).ready()

    def counter(self) -> Client:
        return self.client("counter", "--seconds", "600", "--ms", "20", "--kernel-us", "3000")

    def attachments(self, **settings: object) -> Attachments:
        wanted = UvmSettings(**settings)  # type: ignore[arg-type]
        devices = SimulatedDevices(self.place / "machine", INSPECTOR)
        made = Attachments(wanted, devices.open_spaces, INSPECTOR)
        made.observed.subscribe(self.observations.append)
        return made


@pytest.fixture
def stage(programs: None) -> Iterator[Stage]:
    place = Path(tempfile.mkdtemp(prefix="mpsd-", dir="/tmp"))
    for name in ("pipe", "log"):
        (place / name).mkdir()
    stage = Stage(place, [], [])
    stage.command("", "-d")
    yield stage
    for child in stage.children:
        child.kill()
        child.communicate()
    stage.command("quit -t 1\n")
    shutil.rmtree(place, ignore_errors=True)


async def until(what: str, is_so: Callable[[], object]) -> None:
    await trio.to_thread.run_sync(wait_for, what, is_so)


def process_of(client: Client) -> ProcessId:
    found = processes.process_id(client.pid)
    assert found is not None
    return found


@asynccontextmanager
async def watched(made: Attachments, *clients: Client) -> AsyncIterator[None]:
    """All of them, until the end of the block."""
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        for client in clients:
            process = process_of(client)
            made.watch(process, "default", ("GPU-00000000-0000-0000-0000-000000000000",), lambda: made.count > 1)
            await until(f"{client.pid} to be watched", lambda process=process: made.standing(process).watched)
        yield
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    ("mode", "access"),
    [
        ("oob_write", "write"),
        ("oob_read", "read"),
        ("oob_atomic", "atomic"),
        ("use_after_free", "write"),
        ("ro_write", "write"),
    ],
)
async def test_the_culprit_and_nobody_else_is_proven(stage: Stage, mode: str, access: str) -> None:
    innocent, culprit = stage.counter(), stage.client("faulter", mode, "--gate", "--linger", "60")
    async with watched(stage.attachments(), innocent, culprit):
        assert culprit.process.stdin
        culprit.process.stdin.close()
        await until("the fault", lambda: stage.observations)
    assert {(seen.process, seen.is_proof, seen.access) for seen in stage.observations} == {(process_of(culprit), True, access)}


@pytest.mark.parametrize("mode", ["array_null_read", "array_null_write"])
async def test_behind_the_shield_nobody_notices(stage: Stage, mode: str) -> None:
    innocent, culprit = stage.counter(), stage.client("faulter", mode, "--gate")
    made = stage.attachments()
    async with watched(made, innocent, culprit):
        standing = made.standing(process_of(culprit))
        await until("the shield", lambda: made.standing(process_of(culprit)).shielded_bytes == LOW_BYTES)
        assert standing.watched
        assert culprit.process.stdin
        culprit.process.stdin.close()
        assert await trio.to_thread.run_sync(culprit.status) == 0  # contained
        await trio.to_thread.run_sync(innocent.goes_on)
    assert stage.observations == []


@pytest.mark.parametrize(
    ("mode", "setting", "standing"),
    [
        pytest.param("array_null_write", "off", ShieldState.OFF, id="without it"),
        pytest.param("near_null_write", "low", ShieldState.ON, id="below it: the driver covers nothing under 64 KiB"),
    ],
)
async def test_what_is_not_behind_it_is_told(stage: Stage, mode: str, setting: str, standing: ShieldState) -> None:
    culprit = stage.client("faulter", mode, "--gate", "--linger", "60")
    made = stage.attachments(shield=setting)
    async with watched(made, culprit):
        await until("the shield", lambda: made.standing(process_of(culprit)).shield is standing)
        assert culprit.process.stdin
        culprit.process.stdin.close()
        await until("the fault", lambda: stage.observations)
    assert 0 < (stage.observations[0].address or 0) < 4 << 20


@pytest.mark.slow
@pytest.mark.parametrize(("hold", "survives"), [(True, True), (False, False)])
async def test_what_holding_saves(stage: Stage, hold: bool, survives: bool) -> None:
    """Start a kernel of half a second whose process is killed half-way."""
    innocent, killed = stage.counter(), stage.client("faulter", "killed", "--kernel-ms", "500", "--gate")
    made = stage.attachments(hold=hold, hold_seconds=1.5)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        process = process_of(killed)
        made.watch(process, "default", ("GPU-00000000-0000-0000-0000-000000000000",), lambda: innocent.process.poll() is None)
        await until("it to be watched", lambda: made.standing(process).watched)
        assert killed.process.stdin
        killed.process.stdin.close()
        await trio.to_thread.run_sync(killed.process.wait)
        if survives:
            await trio.to_thread.run_sync(innocent.goes_on)
            await until("the end of the holding", lambda: made.count == 0)
            await trio.to_thread.run_sync(innocent.goes_on)
        else:
            assert await trio.to_thread.run_sync(innocent.error) == 700
        nursery.cancel_scope.cancel()


@pytest.mark.slow
async def test_a_hundred_clients_leave_nothing(stage: Stage) -> None:
    """Ended by themselves or by a signal; some before they were found."""
    before = descriptors()
    made = stage.attachments(hold_seconds=0.1)
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        for number in range(100):
            child = stage.begin("hold", "--init-only")
            found = processes.process_id(child.pid)
            assert found is not None
            made.watch(found, "default", (), lambda: True)
            if number % 3:
                await until("it to be held", lambda found=found: made.standing(found).held)
            child.kill()
            await trio.to_thread.run_sync(child.wait)
        await until("all to be let go", lambda: made.count == 0)
        nursery.cancel_scope.cancel()
    assert descriptors() == before
