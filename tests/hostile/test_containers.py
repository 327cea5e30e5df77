"""A process in a container without a user namespace: it can take any uid, and reaches no process outside by that."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgpack
import pytest
from mpsd_client import Refused, Selector, calls

from tests.hostile.attacker import PYTHON, SPEAKS_COMMANDS
from tests.hostile.frames import frames
from tests.integration.machine import FRONT_END, UIDS, Machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_services import two

CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", PYTHON, "-I", "-S", "-c")
# Becomes a user, starts a child, sends each of the datagrams on its input, and prints the answers.
PROGRAM = """
import os, socket, subprocess, sys
uid = int(sys.argv[2])
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
child = subprocess.Popen(["/bin/sleep", "600"])
print("ready", flush=True)
made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
made.connect(sys.argv[1])
for line in sys.stdin:
    made.send(bytes.fromhex(line))
    print(made.recv(1 << 16).hex(), flush=True)
"""
# Becomes a user, says a command on a connection to `control`, and stays until its input ends.
TAKES_UID = """
import os, sys
uid = int(sys.argv[2])
os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)
"""
GIVES_COMMAND = (
    TAKES_UID
    + SPEAKS_COMMANDS
    + """
say(COMMAND, sys.argv[3].encode())
sys.stdin.read()
"""
)


class Container:
    """`ask` returns the result of each call: "done", or the refusal."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        [self.first] = children(process.pid)

    def ask(self, *wanted: calls.Call[object]) -> list[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        said = []
        for frame in frames(*wanted):
            self._process.stdin.write(frame + "\n")
            self._process.stdin.flush()
            said.append(msgpack.unpackb(bytes.fromhex(self._process.stdout.readline())))
        return ["done" if error is None else str(error["message"]) for _, _, error, _ in said[1:]]


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def container(machine: Machine, uid: int) -> Iterator[Container]:
    """Start a container that shares the machine's pipe directory, and none of its processes."""
    words = [*CONTAINER, PROGRAM, str(machine.pipe / "mpsd.sock"), str(uid)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield Container(process)
    finally:
        process.stdin.close()
        process.kill()
        process.wait()
        process.stdout.close()


@pytest.mark.parametrize("uid", [0, UIDS[0]])
def test_a_container_ends_no_process_outside(shared: Machine, uid: int) -> None:
    """As root of the container, and as a user of the host whose uid it took; a process that computes, and one that does not."""
    idle = subprocess.Popen(["/bin/sleep", "600"], user=uid)
    client = shared.counter(uid=uid).ready()
    try:
        with container(shared, uid) as inside:
            said = inside.ask(
                calls.client_stop(idle.pid),
                calls.client_stop(client.pid),
                calls.client_terminate(client.pid),
                calls.lease_create("theirs", Selector("pid", str(idle.pid)), sm_percent=1),
                calls.lease_create("theirs", Selector("uid", str(uid)), sm_percent=1),
                calls.lease_create("theirs", Selector("cgroup", "user.slice"), sm_percent=1),
            )
        outside = "outside of your container"
        assert said[:3] == [f"no client has pid {pid}" for pid in (idle.pid, client.pid, client.pid)]
        assert all(text in each for text, each in zip([outside, "by uid", "by cgroup"], said[3:], strict=True)), said
        assert is_running(idle.pid)
        client.goes_on()
    finally:
        idle.kill()
        idle.wait()


def test_a_container_stops_no_cgroup_that_has_others_in_it(shared: Machine) -> None:
    client = shared.counter(uid=UIDS[0]).ready()
    paths = {line.split(":", 2)[2] for line in Path(f"/proc/{client.pid}/cgroup").read_text().splitlines()} - {"/"}
    if not paths:
        pytest.skip("the tests are in no cgroup")
    with container(shared, UIDS[0]) as inside:
        wanted = [calls.client_stop(cgroup=each) for path in paths for each in (path, str(Path(path).parent)) if each != "/"]
        assert set(inside.ask(*wanted)) == {"done"}
    client.goes_on()


def test_a_container_changes_no_server_by_the_command_language(shared: Machine) -> None:
    """Its servers are those of the uid, and have clients of other containers."""
    client = shared.counter(uid=UIDS[0]).ready()
    server = shared.server_of(client)
    ask = "import os, sys; os.setresgid({0}, {0}, {0}); os.setresuid({0}, {0}, {0}); os.execv(sys.argv[1], sys.argv[1:2])"
    for line in (f"terminate_client {server} {client.pid}", f"shutdown_server {server} -f"):
        done = subprocess.run(
            [*CONTAINER, ask.format(UIDS[0]), str(FRONT_END)], env=shared.variables, input=line + "\n", capture_output=True,
            text=True, check=False, timeout=30,
        )  # fmt: skip
        assert "rivilege" in done.stdout, done
    client.goes_on()


@pytest.mark.parametrize(
    ("words", "uid", "command"),
    [
        (["-multiuser-server"], 0, "quit -t 0"),
        (["-multiuser-server"], 0, "set_default_active_thread_percentage 1"),
        ([], 0, "quit -t 0"),
        ([], UIDS[0], "shutdown_server {server} -f"),
        ([], UIDS[0], "terminate_client {server} {client}"),
        ([], UIDS[0], "set_active_thread_percentage {server} 1"),
    ],
)
def test_a_container_changes_no_server_on_a_connection_to_control(
    machine: Machine, words: list[str], uid: int, command: str
) -> None:
    """Root of a container is root to the vendor's daemon: its `quit` ended the clients of all users there."""
    machine.start(*words)
    client = machine.counter(uid=UIDS[1] if words else uid).ready()
    said = command.format(server=machine.server_of(client), client=client.pid)
    arguments = (str(machine.pipe / "control"), str(uid), said)
    with subprocess.Popen([*CONTAINER, GIVES_COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as inside:
        try:
            assert f"the command {command.split()[0]} " in machine.wait_for_journal("relay.held")["why"]
        finally:
            inside.kill()
    client.goes_on()


def test_a_container_whose_root_is_an_operator_gives_commands_there(machine: Machine) -> None:
    machine.configure("[ui]\ncontainer_operators = true")
    machine.start()
    client = machine.counter(uid=0).ready()
    arguments = (str(machine.pipe / "control"), "0", f"shutdown_server {machine.server_of(client)} -f")
    with subprocess.Popen([*CONTAINER, GIVES_COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as inside:
        try:
            assert client.error() != 0
        finally:
            inside.kill()
    assert not machine.journal("relay.held")


def test_a_reload_takes_its_commands_from_a_container_there_too(machine: Machine) -> None:
    """mpsd's own sockets refused them from then on, but a connection to `control` passed them until a restart."""
    machine.configure("[ui]\ncontainer_operators = true")
    machine.start()
    client = machine.counter(uid=0).ready()
    machine.configure("[ui]\ncontainer_operators = false")
    machine.signal_daemon("SIGHUP")
    assert machine.wait_for_journal("reload.done")["changed"] == ["ui.container_operators"]
    arguments = (str(machine.pipe / "control"), "0", "quit -t 0")
    with subprocess.Popen([*CONTAINER, GIVES_COMMAND, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as inside:
        try:
            assert "the command quit " in machine.wait_for_journal("relay.held")["why"]
        finally:
            inside.kill()
    client.goes_on()


def test_a_container_ends_its_own_processes(shared: Machine) -> None:
    """Also those of namespaces below its own."""
    with container(shared, UIDS[0]) as inside:
        [child] = wait_for("its child", lambda: children(inside.first))
        assert inside.ask(calls.client_stop(child)) == ["done"]
        wait_for("the child to end", lambda: not is_running(child))


def test_root_of_a_container_has_no_lease_of_roots_of_the_host(shared: Machine) -> None:
    """As a device plugin makes for all pods: a pod's root saw the tokens of the others, and released their leases."""
    with shared.mpsd() as root, container(shared, 0) as inside:
        lease = root.ask(calls.lease_create("of-a-pod", Selector.of_token("the-token-of-a-pod"), sm_percent=1))
        gone = f"no lease has id {lease.id}"
        said = inside.ask(calls.lease_get(lease.id), calls.lease_renew(lease.id), calls.lease_release(lease.id))
        assert said == [gone] * 3
        assert root.ask(calls.lease_get(lease.id)).selector.value == "the-token-of-a-pod"
        root.ask(calls.lease_release(lease.id))


BYTES = 2 << 20


@pytest.mark.parametrize("uid", [0, UIDS[0]])
def test_an_arena_of_a_container_is_nobody_elses_own(shared: Machine, uid: int) -> None:
    """Its maker took root's uid, or the user's: the name alone meant it, and the maker reads what is committed."""
    name = f"llm-{uid}"
    made_there = f"arena {name} of user {uid} was made in another container: name it {uid}:{name} to use it"
    with container(shared, uid) as inside, container(shared, uid) as other:
        assert inside.ask(calls.arena_create(name, "0", BYTES, mode=0o666), calls.arena_open(name, "read")) == ["done"] * 2
        uses = (calls.arena_open(name, "read"), calls.arena_open(name, "write"), calls.service_enlist(name))
        assert other.ask(*uses) == [made_there] * 3
        for user in (uid, UIDS[1]):
            with shared.mpsd(user) as mpsd:
                for call in (calls.arena_open(name, "read"), calls.service_enlist(name)):
                    with pytest.raises(Refused, match=made_there):
                        mpsd.ask(call)
                opened = mpsd.ask(calls.arena_open(f"{uid}:{name}", "read"))
                mpsd.ask(calls.arena_close(opened.id))


def test_a_container_uses_an_arena_of_roots_of_the_host_by_its_name(shared: Machine) -> None:
    with shared.mpsd() as root:
        root.ask(calls.arena_create("of-root", "0", BYTES, mode=0o644))
    with container(shared, UIDS[0]) as inside:
        assert inside.ask(calls.arena_open("of-root", "read")) == ["done"]


def test_root_of_a_container_has_the_quota_of_one_user_whatever_uids_it_takes(machine: Machine) -> None:
    """It had none, as root, and the quota of each uid that it took."""
    machine.configure("[vault]\nuser_arenas = 3\n")
    machine.start()
    with container(machine, 0) as inside, container(machine, UIDS[0]) as other:
        said = inside.ask(*(calls.arena_create(f"mine-{number}", "0", BYTES) for number in range(4)))
        assert said[:3] == ["done"] * 3
        assert "(its pid namespace) has 3 arenas" in said[3]
        assert other.ask(calls.arena_create("other", "0", BYTES)) == ["done"]
    with machine.mpsd(0) as root:
        for number in range(4):
            root.ask(calls.arena_create(f"root-{number}", "0", BYTES))


def test_a_container_ends_no_member_of_a_service_outside(machine: Machine) -> None:
    """A handover ends a writer that does not yield, and a short heartbeat one that is slow."""
    machine.start()
    active, standby = two(machine)
    with container(machine, 0) as inside:
        said = inside.ask(
            calls.service_handover("count", wait_seconds=1),
            calls.service_change("count", heartbeat_seconds=0.1),
            calls.service_change("count", standbys=0),
        )
    assert all("outside of your container" in each for each in said), said
    assert is_running(active.pid)
    assert is_running(standby.pid)
