"""Shares as the hardware gives them, leases of memory alone, and what a GPU of a lease is called: with a real daemon."""

import pytest
from mpsd_client import Refused, Selector, calls

from tests.integration.client import Client
from tests.integration.machine import Machine
from tests.integration.test_leases import token

pytestmark = pytest.mark.root
GIB = 1 << 30
MEASURED = {4: 8, 7: 8, 13: 16, 29: 38}  # SMs of 132; together 70


def create(machine: Machine, name: str, percent: float | None, *, gib: int = 0, gpus: tuple[str, ...] = ("0",)) -> int:
    with machine.mpsd() as mpsd:
        memory = dict.fromkeys(gpus, gib * GIB) if gib else None
        made = mpsd.ask(
            calls.lease_create(name, Selector.of_token(token(name)), gpus=gpus, sm_percent=percent, memory_bytes=memory)
        )
        return made.sm_count


def hold(machine: Machine, name: str, **variables: str) -> Client:
    return machine.client("hold", MPSD_LEASE=token(name), **variables)


def sms(machine: Machine, name: str) -> int:
    client = machine.client("quota", "--most", "1024", MPSD_LEASE=token(name))
    assert client.status() == 0, client.events("error")
    return int(client.wait("quota")["seen"])


def test_what_is_counted_and_shown_is_what_a_kernel_runs_on(machine: Machine) -> None:
    machine.start()
    assert {percent: create(machine, str(percent), percent) for percent in MEASURED} == MEASURED
    assert {percent: sms(machine, str(percent)) for percent in MEASURED} == MEASURED
    with pytest.raises(Refused, match=r"SMs: 64 asked, 70 of 132 taken by 4 leases"):
        create(machine, "much", 49.0)
    assert create(machine, "47", 47.0) == sms(machine, "47") == 62
    client = hold(machine, "4").ready()
    with machine.mpsd() as mpsd:
        why = mpsd.ask(calls.client_why(client.pid))
    assert why.grant.sm_count == 8
    assert "4 % was asked, and the GPU gives 8 of 132 SMs: 8 at least, and of more whole multiples of 2" in why.grant.rule
    client.end()


def test_a_lease_of_memory_alone_has_the_sms_that_nobody_reserved(machine: Machine) -> None:
    machine.start()
    create(machine, "most", 60.0)
    assert create(machine, "memory", None, gib=4) == 0
    assert sms(machine, "memory") == 54
    create(machine, "rest", 40.0)
    assert (sms(machine, "rest"), sms(machine, "most"), sms(machine, "memory")) == (52, 78, 8)


def test_a_gpu_of_a_lease_is_called_what_mps_calls_it(machine: Machine) -> None:
    """As on two H200s: the client's GPU 0 is the lease's GPU 1, and it has no GPU 1."""
    machine.start(MPSD_SIM_GPUS="2")
    create(machine, "second", 25.0, gpus=("1",))
    before = [gpu["used_mib"] for gpu in machine.status()["gpus"]]
    client = machine.client("hold", "--mem", "1024", MPSD_LEASE=token("second"), CUDA_VISIBLE_DEVICES="0").ready()
    after = [gpu["used_mib"] for gpu in machine.status()["gpus"]]
    assert after[0] - before[0] < 1024 <= after[1] - before[1]
    with machine.mpsd() as mpsd:
        assert "CUDA_VISIBLE_DEVICES counts only its own GPUs: GPU 1 is 0," in mpsd.ask(calls.client_why(client.pid)).grant.rule
    client.end()
    assert hold(machine, "second", CUDA_VISIBLE_DEVICES="1").error() == 100
