"""A standby on another GPU: real processes, the real daemon, the simulator with two GPUs."""

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from mpsd_client import Refused, calls, values

from mpsd.images.rules.retention import Limits
from mpsd.images.store import Images
from tests.integration.machine import SIMULATOR, Machine
from tests.integration.process import wait_for
from tests.integration.test_image_deaths import deadly_program
from tests.integration.test_vault import vault_keeper
from tests.seeds import seeds

BLOCKS = 4  # of the program
PROGRAM = Path(__file__).with_name("replica_member.py")
TOOL = SIMULATOR / "bin/mpsd-sim"
SECONDS = 30.0

pytestmark = [
    pytest.mark.root,
    pytest.mark.deadline(180),
    pytest.mark.skipif(not importlib.util.find_spec("cuda"), reason="needs cuda-python and NVRTC (pip install '.[images]')"),
]


class Member:
    """A process, and what it has printed."""

    def __init__(self, machine: Machine, directory: Path, device: int, **variables: str) -> None:
        words = [sys.executable, str(PROGRAM), "llm", str(directory), str(device)]
        self.process = subprocess.Popen(
            words, env=machine.variables | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.said: list[dict[str, Any]] = []
        self.errors = ""
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._read, self._read_errors)]
        for each in self._threads:
            each.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.said.append(json.loads(line))

    def _read_errors(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            self.errors += line

    @property
    def pid(self) -> int:
        return self.process.pid

    def all(self, event: str) -> list[dict[str, Any]]:
        return [each for each in list(self.said) if each["event"] == event]

    def first(self, event: str, seconds: float = SECONDS) -> dict[str, Any]:
        self.wait(f"`{event}`", lambda: bool(self.all(event)), seconds)
        return self.all(event)[0]

    def wait(self, what: str, is_so: Callable[[], bool], seconds: float = SECONDS) -> None:
        def look() -> bool:
            assert is_so() or self.process.poll() is None, f"{self.said[-3:]}\n{self.errors}"
            return is_so()

        try:
            wait_for(what, look, seconds)
        except AssertionError:
            raise AssertionError(f"{what}: {self.said[-3:]}\n{self.errors}") from None

    @property
    def step(self) -> int:
        steps = self.all("step")
        return steps[-1]["step"] if steps else 0

    def imagers(self) -> list[int]:
        return [int(each) for each in Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()]

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGCONT)
        with self.process:
            self.process.kill()
            for each in self._threads:
                each.join()


class Cast:
    """A machine with two GPUs, and the members on it."""

    def __init__(self, machine: Machine, directory: Path) -> None:
        self.machine, self.directory = machine, directory
        self.members: list[Member] = []

    def start(self, device: int, **variables: str) -> Member:
        variables["CUDA_VISIBLE_DEVICES"] = self.machine.uuids()[device]
        self.members.append(Member(self.machine, self.directory, 0, **variables))
        return self.members[-1]

    def pair(self) -> tuple[Member, Member]:
        """Start an active on the first GPU, and a replica on the second one that has an image."""
        active = self.start(0)
        active.first("step")
        standby = self.start(1)
        standby.wait("a replica", lambda: is_replicated(self.machine))
        return active, standby


@pytest.fixture
def cast(machine: Machine, tmp_path: Path) -> Iterator[Cast]:
    machine.start(MPSD_SIM_GPUS="2")
    directory = tmp_path / "images"
    with Images.open(directory) as images:
        images.set_limits(Limits(keep=3))
    made = Cast(machine, directory)
    yield made
    for each in made.members:
        each.kill()


def expected(step: int) -> list[int]:
    """Return what the program's blocks hold after the step."""
    return [next((at for at in range(step, max(0, step - BLOCKS), -1) if at % BLOCKS == block), 0) for block in range(BLOCKS)]


def view(machine: Machine) -> values.Service:
    with machine.mpsd() as mpsd:
        return mpsd.ask(calls.service_get("llm"))


def replica(machine: Machine) -> values.Replica:
    found = view(machine).replica
    assert found is not None
    return found


def is_replicated(machine: Machine, since: float = 0.0) -> bool:
    try:
        found = view(machine).replica
    except Refused:  # mpsd has been restarted: the members join again in a moment
        return False
    return found is not None and (found.at or 0.0) > since


def events(machine: Machine, what: str) -> list[dict[str, Any]]:
    return [each for each in machine.journal("service.event") if each["what"] == what]


def fail(machine: Machine, gpu: str, xid: int) -> None:
    assert machine.run("xid", gpu, str(xid), program=TOOL).returncode == 0


@pytest.mark.slow
def test_a_replica_follows_and_its_lag_is_visible(cast: Cast) -> None:
    machine = cast.machine
    _, standby = cast.pair()
    first, second = machine.uuids()
    assert standby.first("open") == {"event": "open", "pid": standby.pid, "arena": "llm.replica", "gpu": second}
    assert standby.first("adopted")["names"] == ["words"]
    found = replica(machine)
    assert view(machine).gpu == first
    assert (found.arena, found.gpu, found.pid, found.is_behind) == ("llm.replica", second, standby.pid, False)
    assert found.steps is not None
    at = found.at or 0.0
    wait_for("a later image", lambda: is_replicated(machine, at), SECONDS)
    standby.wait("a look at several images", lambda: len({each["step"] for each in standby.all("has")}) > 3)
    for each in standby.all("has"):
        assert each["found"] == expected(each["step"])
    assert not events(machine, "behind")
    os.kill(standby.pid, signal.SIGSTOP)
    wait_for("the event", lambda: bool(events(machine, "behind")), SECONDS)
    assert replica(machine).is_behind
    os.kill(standby.pid, signal.SIGCONT)
    wait_for("the replica to be up to date", lambda: not replica(machine).is_behind, SECONDS)
    assert not standby.all("term")


@pytest.mark.parametrize("xid", [79, pytest.param(48, marks=pytest.mark.slow)])
def test_the_replica_serves_when_the_gpu_is_lost(cast: Cast, xid: int) -> None:
    machine = cast.machine
    active, standby = cast.pair()
    first, second = machine.uuids()
    fail(machine, first, xid)
    term = standby.first("term")
    assert term["found"] == expected(term["step"])
    assert (term["gpu"], term["name"]) == (second, "llm")
    assert 0 < term["step"] <= active.step
    standby.first("step")
    found = view(machine)
    assert (found.gpu, found.writer_pid, found.replica) == (second, standby.pid, None)
    [moved] = events(machine, "moved")
    assert (moved["from_gpu"], moved["to_gpu"], moved["pid"]) == (first, second, standby.pid)
    assert moved["steps"] >= active.step - term["step"] - 1
    assert term["generation"] > active.all("term")[-1]["generation"]
    with machine.mpsd() as mpsd:
        [fault] = [each for each in mpsd.pages(calls.fault_list()) if each.fault_class == "device" and not each.domain]
        done = " ".join(each.text for each in mpsd.ask(calls.fault_get(fault.number)).deeds)
    assert f"was moved to {second}, where pid {standby.pid} serves" in done
    assert f"Publishes lost at most: {moved['steps']}:" in done or not moved["steps"]
    assert not machine.bugs()


@pytest.mark.parametrize("verb", ["drain", pytest.param("lose", marks=pytest.mark.slow)])
def test_the_replica_serves_after_the_active_on_a_gpu_that_nvml_reports(cast: Cast, verb: str) -> None:
    """`nvidia-smi drain`, or a GPU that NVML has lost: the active goes on as long as it can, and no member follows it there."""
    machine = cast.machine
    active, standby = cast.pair()
    first, second = machine.uuids()
    assert machine.run(verb, first, program=TOOL).returncode == 0
    assert machine.wait_for_journal("gpu.drained")["gpu"] == first
    before = active.step
    active.wait("more steps", lambda: active.step > before + 5)
    assert not standby.all("term")
    active.kill()
    term = standby.first("term")
    assert (term["gpu"], term["right"]) == (second, True)
    assert not machine.bugs()


@pytest.mark.slow
def test_the_service_returns_to_the_first_gpu_when_the_second_one_is_lost(cast: Cast) -> None:
    machine = cast.machine
    _, standby = cast.pair()
    first, second = machine.uuids()
    fail(machine, first, 48)  # it need not be reset
    away = standby.first("term")
    standby.first("step")
    at = time.time()
    back = cast.start(0)
    assert back.first("open") == {"event": "open", "pid": back.pid, "arena": "llm.replica", "gpu": first}
    back.wait("a replica of what the second GPU has", lambda: is_replicated(machine, at))
    fail(machine, second, 79)
    term = back.first("term")
    assert term["found"] == expected(term["step"])
    assert term["step"] > away["step"]
    assert (term["gpu"], term["name"]) == (first, "llm")
    assert term["generation"] > away["generation"]
    back.first("step")
    assert not machine.bugs()


def test_a_fault_that_a_standby_on_the_same_gpu_survives_does_not_move_the_service(cast: Cast) -> None:
    machine = cast.machine
    active, replica_ = cast.pair()
    near = cast.start(0)
    near.wait("a ready standby", lambda: any(each.standing == "ready" and not each.is_writer for each in view(machine).members))
    active.kill()
    near.first("step")
    assert near.first("term")["right"]
    near.kill()
    wait_for("a service without members", lambda: not view(machine).members, SECONDS)
    at = replica(machine)
    assert at.pid == replica_.pid
    again = cast.start(0)  # all processes ended, and no fault of the GPU: its memory is still there
    assert again.first("term")["step"] >= near.step
    assert not replica_.all("term")
    assert not events(machine, "moved")


def test_a_replica_that_sees_the_gpu_of_the_service_is_refused(cast: Cast) -> None:
    cast.start(0).first("step")
    both = Member(cast.machine, cast.directory, 1)
    cast.members.append(both)
    both.process.wait(SECONDS)
    wait_for("its error", lambda: "must not see GPU-" in both.errors)


def test_a_replica_begins_anew_whose_imager_was_killed_while_it_gave_memory(cast: Cast, tmp_path: Path) -> None:
    """mpsd has some of the memory then, which nothing of the replica has mapped, and no commit has."""
    cast.start(0).first("step")
    once = tmp_path / "once"
    deadly = {"MPSD_IMAGER": str(deadly_program(tmp_path)), "DEADLY_CALL": "make.2", "DEADLY_VICTIMS": "imager"}
    standby = cast.start(1, **deadly, DEADLY_ONCE=str(once))
    wait_for("an imager to be killed", once.exists, SECONDS)
    standby.wait("a replica", lambda: is_replicated(cast.machine))
    assert standby.first("has")["right"]


def strike(cast: Cast, what: str, active: Member, standby: Member) -> None:
    """End a part with SIGKILL."""
    match what:
        case "active" | "standby":
            os.kill((active if what == "active" else standby).pid, signal.SIGKILL)
        case "active's imager" | "standby's imager":
            for pid in (active if what == "active's imager" else standby).imagers():
                os.kill(pid, signal.SIGKILL)
        case "mpsd":
            cast.machine.kill_daemon()
            cast.machine.start(MPSD_SIM_GPUS="2")
        case "keeper":
            os.kill(vault_keeper(cast.machine), signal.SIGKILL)


PARTS = ("active", "standby", "active's imager", "standby's imager", "mpsd", "keeper")


def is_kept(machine: Machine) -> bool:
    """Return whether the vault has the service's memory: a keeper that died took it."""
    with machine.mpsd() as mpsd:
        return bool(mpsd.ask(calls.arena_get("llm")).layout_hash)


def settle(machine: Machine, active: Member, standby: Member, before: int) -> int:
    """Wait until the service works as before, and the replica has an image of that; return a step that this has."""
    active.wait("more steps", lambda: active.step > before + 5)
    step, at = active.step, time.time()
    wait_for("the vault to have the memory", lambda: is_kept(machine), SECONDS)
    standby.wait("a replica", lambda: is_replicated(machine, at), 2 * SECONDS)
    return step


@pytest.mark.slow
@pytest.mark.deadline(600)
@pytest.mark.parametrize("seed", seeds(0, 1))
def test_parts_killed_at_random_moments_cost_a_bounded_number_of_steps(cast: Cast, seed: int) -> None:
    """Each part is killed three times, and then the GPU fails, at once after a kill of mpsd, the keeper or an imager."""
    chosen = random.Random(seed)
    machine, (active, standby), kept = cast.machine, cast.pair(), 0
    for what in chosen.sample(PARTS * 3, len(PARTS) * 3):
        time.sleep(chosen.uniform(0, 1.0))
        before = active.step
        strike(cast, what, active, standby)
        if what == "active":
            active.kill()
            active = cast.start(0)
            term = active.first("term")
            assert term["step"] >= before, "the memory of the GPU outlives the process"
            assert term["right"]
        if what == "standby":
            standby.kill()
            standby = cast.start(1)
        kept = settle(machine, active, standby, before)
    strike(cast, chosen.choice(PARTS[2:]), active, standby)
    fail(machine, machine.uuids()[0], 79)
    term = standby.first("term", 2 * SECONDS)
    assert term["found"] == expected(term["step"])
    assert term["step"] >= kept > 0, "an earlier image than the replica had"
    standby.first("step")
    assert not machine.bugs()


@pytest.mark.slow
@pytest.mark.deadline(400)
@pytest.mark.parametrize("seed", seeds(2, 1))
def test_parts_killed_during_the_move_leave_a_complete_barrier(cast: Cast, seed: int) -> None:
    """The GPU fails, and within a second another part is killed too: mpsd, the keeper, the standby or its imager."""
    chosen = random.Random(seed)
    machine, (active, standby) = cast.machine, cast.pair()
    fail(machine, machine.uuids()[0], 79)
    time.sleep(chosen.uniform(0, 1.0))
    what = ("mpsd", "keeper", "standby", "standby's imager")[seed % 4]
    strike(cast, what, active, standby)
    if what in ("standby", "keeper"):  # of the keeper's end a replica may end too, as any process that its supervisor restarts
        standby.kill()
        standby = cast.start(1)
    term = standby.first("term", 3 * SECONDS)
    assert term["right"]  # a standby that was killed may have served already, and begun a step
    assert term["step"] > 0
    standby.first("step")
    assert not machine.bugs()
