"""One user who wants every fault domain."""

import itertools

import pytest
from mpsd_client import Selector, calls

from tests.hostile.attacker import NOBODY
from tests.integration.machine import UIDS, Machine
from tests.integration.process import wait_for

MOST = 4
KEPT = "kept for users without any"


@pytest.mark.parametrize("options", [(), ("-multiuser-server",)], ids=["a server for each user", "one for all"])
def test_one_user_does_not_take_all_domains(machine: Machine, options: tuple[str, ...]) -> None:
    """Leases with domains of their own are anybody's to make, and each takes one for as long as its process likes."""
    machine.configure(f"[domains]\nspares = 0\nmax_domains = {MOST}\n")
    machine.start(*options)
    with machine.mpsd(uid=NOBODY) as mpsd:
        for number in range(MOST):
            selector = Selector.of_token(f"token-of-nobody-{number}")
            mpsd.ask(calls.lease_create(f"own{number}", selector, sm_percent=5, domain="own"))
    for number in range(MOST - 1):
        machine.counter(uid=NOBODY, MPSD_LEASE=f"token-of-nobody-{number}").ready()
    machine.counter(uid=NOBODY, MPSD_LEASE=f"token-of-nobody-{MOST - 1}")
    wait_for("the greedy one to wait", lambda: any(KEPT in line["reason"] for line in machine.journal("client.waiting")))
    machine.counter(uid=UIDS[0]).ready(30)


def test_where_users_share_domains_one_does_not_fill_all(machine: Machine) -> None:
    """Without leases: a domain has room for two clients here."""
    machine.configure(f"[domains]\nspares = 0\nmax_domains = {MOST}\nclients_per_server = 2\n")
    machine.start("-multiuser-server")
    for _ in range(2 * (MOST - 1)):
        machine.counter(uid=NOBODY).ready()
    for _ in range(3):
        machine.counter(uid=NOBODY)
    wait_for("the greedy one to wait", lambda: any(KEPT in line["reason"] for line in machine.journal("client.waiting")))
    machine.counter(uid=UIDS[0]).ready(30)
    machine.counter(uid=UIDS[1]).ready(30)


def test_domains_are_bounded_on_each_gpu_whatever_sets_of_gpus_leases_name(machine: Machine) -> None:
    """The bound was of each set: with 3 GPUs one user had 7 times as many domains."""
    machine.configure(f"[domains]\nspares = 1\nmax_domains = {MOST}\n")
    machine.start(MPSD_SIM_GPUS="3")
    sets = [some for size in (1, 2, 3) for some in itertools.combinations(("0", "1", "2"), size)]
    with machine.mpsd(uid=NOBODY) as mpsd:
        for number, gpus in enumerate(sets):
            selector = Selector.of_token(f"token-of-nobody-{number}")
            mpsd.ask(calls.lease_create(f"own{number}", selector, gpus=gpus, sm_percent=5, domain="own"))
    for number in range(len(sets)):
        machine.counter(uid=NOBODY, MPSD_LEASE=f"token-of-nobody-{number}")
    wait_for("one that waits", lambda: any(KEPT in line["reason"] for line in machine.journal("client.waiting")))
    for uid, gpu in zip(UIDS, machine.uuids(), strict=False):
        machine.counter(uid=uid, CUDA_VISIBLE_DEVICES=gpu).ready(30)
    with machine.mpsd() as mpsd:
        domains = mpsd.ask(calls.domain_list())
    for gpu in machine.uuids():
        using = [each.name for each in domains.items if gpu in each.gpus]
        assert len(using) <= MOST + 2, f"{using} on {gpu}: {MOST}, the first one, and one that ends"


def test_an_empty_domain_of_other_gpus_makes_room(machine: Machine) -> None:
    """Else a spare would keep a client out for as long as it is wanted."""
    machine.configure("[domains]\nspares = 1\nmax_domains = 2\n")
    machine.start(MPSD_SIM_GPUS="2")
    machine.counter(uid=UIDS[0]).ready()
    wait_for("a spare of both GPUs", lambda: any(line["domain"] == "d2" for line in machine.journal("domain.spare_ready")))
    with machine.mpsd() as mpsd:
        for number in range(2):
            selector = Selector.of_token(f"token-of-one-gpu-{number}")
            mpsd.ask(calls.lease_create(f"own{number}", selector, gpus=("0",), sm_percent=5, domain="own"))
    for number in range(2):
        machine.counter(uid=UIDS[1], MPSD_LEASE=f"token-of-one-gpu-{number}").ready(30)
    wait_for("the end of the spare", lambda: any(line["domain"] == "d2" for line in machine.journal("domain.gone")))
