"""Clients on the simulator: who is listed, what share and how much memory they get, how many there may be."""

from pathlib import Path

import pytest

from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import Machine, eventually, open_machine

CONTEXT_MIB = 516
SERVER_MIB = 72


def test_a_client_without_a_daemon_runs_without_mps(machine: Machine) -> None:
    end = machine.run("counter", "--seconds", "0.1")
    assert (end["event"], end["count"]) == ("end", end["kernels"])


def test_a_client_starts_a_server_and_is_listed(mps: Machine) -> None:
    client = mps.client("hold")
    client.wait_for("ready")
    server = mps.server()
    assert mps.ask(f"get_client_list {server}") == f"{client.pid}\n"
    assert mps.ask("get_device_client_list") == f"[0] 00:00.0, NVIDIA H200\n{client.pid}.1\n"
    header, row = mps.ask("ps").splitlines()
    assert header == "PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND        "
    uuid = mps.status()["gpus"][0]["uuid"]
    assert row.split()[:4] == [str(client.pid), "1", server, uuid[:22]]
    client.kill()
    eventually(lambda: mps.ask(f"get_client_list {server}") == "")


def test_a_process_with_no_context_is_not_listed_but_keeps_the_server(mps: Machine) -> None:
    """So it is on the device: measured with cuInit and nothing more."""
    client = mps.client("hold", "--init-only")
    client.wait_for("ready")
    server = mps.server()
    assert mps.ask(f"get_client_list {server}") == ""
    assert mps.ask("ps") == ""
    mps.ask(f"shutdown_server {server}")
    assert f"Server {server} has 1 active worker threads. Server will not shutdown.\n" in mps.log("control.log")


@pytest.mark.parametrize(
    ("percent", "sms"),
    [
        ("0.1", 8),
        ("1", 8),
        ("7", 8),
        ("10", 12),
        ("12", 14),
        ("20", 26),
        ("25", 32),
        ("40", 52),
        ("50", 66),
        ("99", 130),
        ("100", 132),
    ],
)
def test_a_share_gives_the_sms_it_gives_on_the_device(mps: Machine, percent: str, sms: int) -> None:
    server = mps.start_server()
    mps.ask(f"set_active_thread_percentage {server} {percent}")
    seen = mps.run("smcount")
    assert (seen["seen"], seen["attribute"]) == (sms, sms)


def test_the_environment_can_only_lower_the_share(mps: Machine) -> None:
    server = mps.start_server()
    mps.ask(f"set_active_thread_percentage {server} 25")
    assert mps.run("smcount", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="10")["seen"] == 12
    assert mps.run("smcount", CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="50")["seen"] == 32


def test_defaults_hold_for_the_next_server_only(mps: Machine) -> None:
    mps.start_server()
    mps.ask("set_default_active_thread_percentage 25")
    assert mps.run("smcount")["seen"] == 132
    first = mps.server()
    mps.ask(f"shutdown_server {first}")
    eventually(lambda: mps.ask("get_server_list") == "")
    assert mps.run("smcount")["seen"] == 32


def test_no_limits_without_mps(machine: Machine) -> None:
    limits = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "10", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G"}
    assert machine.run("smcount", **limits)["seen"] == 132
    assert machine.run("memlimit", "4096", **limits)["event"] == "allocated"


@pytest.mark.parametrize("how", [[], ["--vmm"]], ids=["cuMemAlloc", "cuMemCreate"])
def test_a_memory_limit_counts_the_context_too(mps: Machine, how: list[str]) -> None:
    server = mps.start_server()
    mps.ask(f"set_device_pinned_mem_limit {server} 0 1G")
    room = 1024 - CONTEXT_MIB
    assert mps.run("memlimit", str(room), *how)["event"] == "allocated"
    assert mps.run("memlimit", str(room + 2), *how)["code"] == 2


def test_the_environment_can_only_lower_the_memory_limit(mps: Machine) -> None:
    server = mps.start_server()
    mps.ask(f"set_device_pinned_mem_limit {server} 0 2G")
    assert mps.run("memlimit", "1000", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=1G")["code"] == 2
    assert mps.run("memlimit", "2000", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=8G")["code"] == 2
    assert mps.run("memlimit", "1000", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=8G")["event"] == "allocated"


def test_a_limit_of_one_megabyte_refuses_the_context_and_zero_is_none(mps: Machine) -> None:
    server = mps.start_server()
    mps.ask(f"set_device_pinned_mem_limit {server} 0 1M")
    refused = mps.run("hold")
    assert (refused["call"], refused["code"]) == ("cuDevicePrimaryCtxRetain", 2)
    mps.ask(f"set_device_pinned_mem_limit {server} 0 0M")
    assert mps.run("memlimit", "1000")["event"] == "allocated"


def test_memory_is_shared_by_all_processes_and_comes_back(mps: Machine) -> None:
    holder = mps.client("hold", "--mem", "100000")
    holder.wait_for("ready")
    mps.run("hold", "--seconds", "0")
    eventually(lambda: mps.used_mib() == SERVER_MIB + CONTEXT_MIB + 100000)
    assert mps.run("memlimit", "50000")["code"] == 2
    holder.kill()
    eventually(lambda: mps.used_mib() == SERVER_MIB)
    assert mps.run("memlimit", "140000")["event"] == "allocated"


def test_100_gib_cost_no_memory_of_the_host(machine: Machine) -> None:
    holder = machine.client("hold", "--mem", "102400")
    holder.wait_for("ready")
    status = Path(f"/proc/{holder.pid}/status").read_text()
    resident_kib = int(status.split("VmRSS:")[1].split()[0])
    assert resident_kib < 256 * 1024


def test_the_49th_context_of_a_server_is_refused() -> None:
    with open_machine(MPSD_SIM_MAX_CLIENTS="3") as mps:
        mps.start()
        holders = [mps.client("hold") for _ in range(3)]
        for holder in holders:
            holder.wait_for("ready")
        refused = mps.run("hold")
        assert (refused["call"], refused["code"]) == ("cuDevicePrimaryCtxRetain", 808)
        assert "Failed to accept new client. Maximum number of clients (3) reached.\n" in mps.log("server.log")
        holders[0].kill()
        assert mps.run("hold", "--seconds", "0")["event"] == "ready"


def test_contexts_of_one_process_count_each(mps: Machine) -> None:
    events = mps.client("contexts", "50")
    end = events.end()
    assert (end["code"], len(events.events)) == (808, 49)


def test_a_client_may_choose_devices_among_those_of_the_daemon() -> None:
    with open_machine(MPSD_SIM_GPUS="3") as mps:
        uuids = [gpu["uuid"] for gpu in mps.status()["gpus"]]
        mps.start(CUDA_VISIBLE_DEVICES=f"2,{uuids[0]}")
        holder = mps.client("hold", CUDA_VISIBLE_DEVICES="1")
        holder.wait_for("ready")
        assert mps.ask("get_device_client_list").startswith("[0] 00:00.0")
        assert mps.run("hold", "--seconds", "0", CUDA_VISIBLE_DEVICES=uuids[2][:12])["event"] == "ready"
        for bad in ("2", uuids[1], "GPU-bogus"):
            assert mps.run("hold", CUDA_VISIBLE_DEVICES=bad)["code"] == 100
        eventually(
            lambda: (
                "Client requested 2 which is not a valid GPU ID in the MPS visible set of devices\n" in mps.log("server.log")
            )
        )


@pytest.mark.parametrize("devices", ["", "1", "GPU-bogus"])
def test_no_device_to_see_is_error_100(machine: Machine, devices: str) -> None:
    assert machine.run("hold", CUDA_VISIBLE_DEVICES=devices)["code"] == 100
