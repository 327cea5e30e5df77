"""What people and their programs see of a real daemon: mpsctl, the numbers for Prometheus, the health check."""

import json
import os
import signal
import socket
import statistics
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.machine import Machine
from tests.integration.process import wait_for

HEALTH_SECONDS = 0.1  # promised, independent of the vendor daemons


def mpsctl(machine: Machine, *words: str) -> Any:
    """The document that it prints."""
    done = machine.run("-m", "mpsctl", *words, "--json", program=Path(sys.executable))
    assert (done.returncode, done.stderr) == (0, ""), done
    return json.loads(done.stdout)


@contextmanager
def stopped(pids: list[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with suppress(ProcessLookupError):  # mpsd replaces a silent spare
                os.kill(pid, signal.SIGCONT)


@pytest.fixture
def address(machine: Machine) -> str:
    """Return the metrics page of a daemon. The port was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    machine.configure(f'[metrics]\nlisten = "127.0.0.1:{port}"\n')
    machine.start()
    machine.wait_for_journal("metrics.listening")
    return f"http://127.0.0.1:{port}"


def get(address: str, page: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(address + page, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def numbers(address: str) -> dict[tuple[str, ...], float]:
    """By name and values of labels."""
    status, text = get(address, "/metrics")
    assert status == 200
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


@pytest.mark.slow
@pytest.mark.root
def test_a_lease_made_by_hand_is_what_its_client_gets(machine: Machine) -> None:
    machine.start()
    lease = mpsctl(machine, "lease", "create", "mine", "--new-token", "--sm", "25%", "--memory", "8G")
    assert (lease["state"], lease["sm_percent"]) == ("active", 25.0)
    client = machine.counter(MPSD_LEASE=lease["selector"]["value"]).ready()
    other = machine.counter().ready()
    wait_for("both to be listed as running", lambda: [c["state"] for c in mpsctl(machine, "clients")] == ["running"] * 2)
    why = mpsctl(machine, "why", str(client.pid))
    given = pytest.approx(100 * 32 / 132)  # in whole pairs of SMs
    assert (why["grant"]["lease_id"], why["grant"]["sm_percent"]) == (lease["id"], given)
    assert set(why["grant"]["memory_bytes"].values()) == {8 << 30}
    rows = {row["pid"]: row for row in mpsctl(machine, "top", "--once")["clients"]}
    assert (rows[client.pid]["sm_asked_percent"], rows[client.pid]["sm_held_percent"]) == (25.0, given)
    assert rows[other.pid]["lease_id"] is None
    shown = machine.run("-m", "mpsctl", "top", program=Path(sys.executable)).stdout
    assert f"{client.pid}" in shown
    assert "running" in shown
    assert mpsctl(machine, "terminate", str(client.pid))["pid"] == client.pid
    assert mpsctl(machine, "lease", "release", str(lease["id"]))["clients"] <= 1
    assert mpsctl(machine, "leases") == []
    other.goes_on()


@pytest.mark.slow
@pytest.mark.root
def test_the_numbers_follow_what_happens(machine: Machine, address: str) -> None:
    before = numbers(address)
    assert before["mpsd_healthy",] == 1
    assert before["mpsd_build_info", "sim", "true", mpsctl(machine, "status")["version"]] == 1
    client = machine.counter().ready()
    wait_for("a client that runs", lambda: numbers(address)["mpsd_clients", "running"] == 1)
    found = numbers(address)
    assert found["mpsd_clients_admitted_total", "no"] == 1
    assert found["mpsd_admission_seconds_count",] == 1
    assert found["mpsd_handshake_seconds_count",] >= 1
    assert 0 < found["mpsd_handshake_seconds_sum",] < 60
    lease = mpsctl(machine, "lease", "create", "x", "--user", "0", "--sm", "30%")
    given = pytest.approx(38 / 132)  # 30 %, in whole pairs of SMs
    share = "mpsd_sm_reserved_ratio"
    wait_for("a reserved share", lambda: sum(v for k, v in numbers(address).items() if k[0] == share) == given)
    mpsctl(machine, "lease", "release", str(lease["id"]))
    machine.kill_vendor(machine.domain_of(client))
    wait_for("a vendor daemon to be started again", lambda: numbers(address)["mpsd_vendor_restarts_total",] >= 1)


@pytest.mark.root
def test_health_is_told_while_every_vendor_daemon_is_stopped(machine: Machine, address: str) -> None:
    client = machine.counter().ready()
    machine.with_spare()
    vendors = [machine.vendor_pid(domain) for domain in machine.domains()]
    seconds: dict[float, float] = {}  # of the request that began each look, by its uptime; mpsd looks once a second
    with stopped(vendors):
        while len(seconds) < 4:
            begun = time.monotonic()
            status, body = get(address, "/healthz")
            assert status in (200, 503)
            get(address, "/metrics")
            seconds.setdefault(json.loads(body)["uptime_seconds"], time.monotonic() - begun)
    assert statistics.median(seconds.values()) <= HEALTH_SECONDS
    client.goes_on()


@pytest.mark.root
def test_a_port_that_is_taken_keeps_no_client_from_running(machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        machine.configure(f'[metrics]\nlisten = "127.0.0.1:{server.getsockname()[1]}"\n')
        machine.start()
        assert machine.wait_for_journal("metrics.unusable")["why"]
        machine.counter().ready().goes_on()
