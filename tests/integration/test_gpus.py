"""Which GPUs are served: several of them, the daemon's CUDA_VISIBLE_DEVICES, the clients', compute modes."""

from collections.abc import Iterator

import pytest
from mpsd_client import calls

from tests.integration.machine import SIMULATOR, Machine, open_machine
from tests.integration.process import wait_for

pytestmark = pytest.mark.root
TOOL = SIMULATOR / "bin/mpsd-sim"
MIB = 4096  # what a client allocates to be found by


def gpu_in_use(machine: Machine, **variables: str) -> int:
    """The GPU, as the machine counts them, on which a new client of these variables allocates."""
    before = [gpu["used_mib"] for gpu in machine.status()["gpus"]]
    client = machine.client("hold", "--mem", str(MIB), **variables).ready()
    after = [gpu["used_mib"] for gpu in machine.status()["gpus"]]
    client.end()
    [found] = [at for at, used in enumerate(after) if used - before[at] >= MIB]
    return found


@pytest.fixture(scope="module")
def two_gpus(programs: None) -> Iterator[Machine]:
    """One for all tests that leave nothing behind."""
    with open_machine() as made:
        made.start(MPSD_SIM_GPUS="2")
        yield made


def test_a_client_that_names_one_gpu_by_uuid_gets_a_domain_of_that_gpu(machine: Machine) -> None:
    """So a fault on one GPU leaves the clients of the other alone."""
    machine.start(MPSD_SIM_GPUS="2")
    first, second = machine.uuids()
    on_first = machine.counter(CUDA_VISIBLE_DEVICES=first).ready()
    on_second = machine.counter(CUDA_VISIBLE_DEVICES=second).ready()
    anywhere = machine.counter().ready()
    assert len({machine.domain_of(client) for client in (on_first, on_second, anywhere)}) == 3
    machine.client("faulter", "trap", CUDA_VISIBLE_DEVICES=first).status()
    assert on_first.error() == 719
    on_second.goes_on()
    anywhere.goes_on()


@pytest.mark.parametrize("by", ["ordinal", "UUID"])
@pytest.mark.parametrize("gpu", [0, 1])
def test_a_client_gets_the_gpu_that_it_names(two_gpus: Machine, by: str, gpu: int) -> None:
    name = str(gpu) if by == "ordinal" else two_gpus.uuids()[gpu]
    assert gpu_in_use(two_gpus, CUDA_VISIBLE_DEVICES=name) == gpu


@pytest.mark.parametrize("by", [pytest.param("ordinal", marks=pytest.mark.slow), "UUID"])
def test_the_daemons_own_choice_of_gpus_is_the_clients_world(machine: Machine, by: str) -> None:
    """Ordinal 0 of a client is the first GPU of the daemon."""
    second = machine.uuids(MPSD_SIM_GPUS="2")[1]
    machine.start(CUDA_VISIBLE_DEVICES="1" if by == "ordinal" else second)
    assert machine.tell("device_query --csv").splitlines()[-1].split(",")[2] == second
    assert gpu_in_use(machine) == 1
    assert gpu_in_use(machine, CUDA_VISIBLE_DEVICES="0") == 1


@pytest.mark.parametrize("visible", ["", pytest.param("7", marks=pytest.mark.slow), "GPU-00000000"])
def test_a_daemon_without_a_gpu_does_not_start_and_says_why(machine: Machine, visible: str) -> None:
    """The clients of one that did would run without MPS."""
    done = machine.run("-d", CUDA_VISIBLE_DEVICES=visible)
    assert done.returncode != 0
    assert "CUDA_VISIBLE_DEVICES" in done.stdout
    wait_for("its end", lambda: not machine.processes())


@pytest.mark.slow
def test_a_gpu_that_nvml_loses_is_named_and_the_others_go_on(machine: Machine) -> None:
    """Its events ended those of all GPUs, and no GPU got a spare."""
    machine.start(MPSD_SIM_GPUS="2")
    first, second = machine.uuids()
    assert machine.run("lose", first, program=TOOL).returncode == 0
    with machine.mpsd() as mpsd:
        problem = f"NVML reports no errors of GPU {first} any more, and clients there may fail: NVML says GPU is lost"
        wait_for("health to name it", lambda: any(problem in each for each in mpsd.ask(calls.health()).problems))
    machine.wait_for_journal("gpu.drained")
    machine.counter(CUDA_VISIBLE_DEVICES=second).ready()
    wait_for("a spare", lambda: machine.journal("domain.spare_ready"))
    assert machine.run("return", first, program=TOOL).returncode == 0
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.blame_pardon(first))
        wait_for("health to be well", lambda: mpsd.ask(calls.health()).ok)


def test_a_client_that_cannot_use_a_drained_gpu_need_not_wait(machine: Machine) -> None:
    """One that names its GPUs by UUID; ordinals mean other GPUs once one is missing."""
    machine.start(MPSD_SIM_GPUS="3")
    first, second, third = machine.uuids()
    assert machine.run("drain", "0", program=TOOL).returncode == 0
    machine.wait_for_journal("gpu.drained")
    machine.counter(CUDA_VISIBLE_DEVICES=f"{third},{second}").ready()
    machine.counter(CUDA_VISIBLE_DEVICES=second).ready()
    kept = [machine.counter(CUDA_VISIBLE_DEVICES=each) for each in ("1,2", f"{second},{first}", first)]
    reason = f"GPU {first} takes no clients"
    wait_for("them to wait", lambda: sum(each["reason"].startswith(reason) for each in machine.journal("client.waiting")) == 3)
    assert all(each.is_silent() for each in kept)


def test_limits_of_one_gpu_are_kept_apart_from_the_others(machine: Machine) -> None:
    machine.start(MPSD_SIM_GPUS="2")
    first, second = machine.uuids()
    machine.tell("set_default_device_pinned_mem_limit 1 1G")
    for name, status in ((first, 0), ("0", 0), (second, 5), ("1", 5)):
        assert machine.client("memlimit", "2048", CUDA_VISIBLE_DEVICES=name).status() == status


@pytest.mark.parametrize("visible", [None, pytest.param("0", marks=pytest.mark.slow)])
def test_an_exclusive_gpu_has_one_domain_and_no_spare_and_serves_its_clients(machine: Machine, visible: str | None) -> None:
    """One process may use such a GPU: one server, then."""
    machine.set_compute_mode("0", "EXCLUSIVE_PROCESS")
    machine.start(**({"CUDA_VISIBLE_DEVICES": visible} if visible else {}))
    clients = [machine.counter().ready() for _ in range(3)]
    wait_for("the list of all", lambda: machine.clients() == {client.pid for client in clients})
    assert len(machine.servers()) == 1
    assert machine.domains() == ["default"]
    for client in clients:
        client.goes_on()
    assert machine.domains() == ["default"]


def test_a_gpu_made_exclusive_under_a_running_daemon_gets_no_spare(machine: Machine) -> None:
    """`nvidia-smi -c` between the start and the first client."""
    machine.start()
    machine.set_compute_mode("0", "EXCLUSIVE_PROCESS")
    machine.counter().ready()
    machine.counter().ready().goes_on(seconds=5.0)
    assert not machine.journal("domain.upkeep_failed")
    assert machine.domains() == ["default"]
