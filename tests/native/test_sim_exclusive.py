"""Compute modes on the simulator: in EXCLUSIVE_PROCESS the device has one process, which may be an MPS server."""

from tests.native.sim_fixtures import bare_machine, built_programs, machine_with_daemon  # noqa: F401
from tests.native.sim_machine import Machine, eventually


def test_one_plain_process_keeps_the_others_out(machine: Machine) -> None:
    machine.tool("set-compute-mode", "0", "EXCLUSIVE_PROCESS")
    first = machine.client("hold")
    first.wait_for("ready")
    assert machine.run("hold")["code"] == 46
    first.kill()
    assert machine.run("hold", "--seconds", "0")["event"] == "ready"


def test_the_clients_of_one_server_share_and_others_stay_out(mps: Machine) -> None:
    mps.tool("set-compute-mode", "0", "EXCLUSIVE_PROCESS")
    clients = [mps.client("hold") for _ in range(2)]
    for client in clients:
        client.wait_for("ready")
    outside = mps.run("hold", CUDA_MPS_PIPE_DIRECTORY="/nowhere")
    assert (outside["call"], outside["code"]) == ("cuDevicePrimaryCtxRetain", 46)


def test_a_second_server_exits_is_tried_again_and_its_client_gets_805(mps: Machine) -> None:
    mps.tool("set-compute-mode", "0", "EXCLUSIVE_PROCESS")
    outside = mps.client("hold", CUDA_MPS_PIPE_DIRECTORY="/nowhere")
    outside.wait_for("ready")
    assert mps.run("hold")["code"] == 805
    log = mps.log("control.log")
    assert log.count("Starting new server") == 6
    assert log.count("exited with status 1") == 6
    outside.kill()
    assert mps.run("hold", "--seconds", "0")["event"] == "ready"


def test_prohibited_lets_nobody_in(machine: Machine) -> None:
    machine.tool("set-compute-mode", "0", "PROHIBITED")
    assert machine.run("hold")["code"] == 46
    machine.tool("reset")
    assert machine.run("hold", "--seconds", "0")["event"] == "ready"


def test_the_dead_do_not_count(machine: Machine) -> None:
    client = machine.client("hold", "--mem", "1000")
    client.wait_for("ready")
    assert [process["pid"] for process in machine.status()["processes"]] == [client.pid]
    client.kill()
    eventually(lambda: machine.status()["processes"] == [])
    assert machine.used_mib() == 0
