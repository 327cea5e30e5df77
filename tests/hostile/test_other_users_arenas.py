"""Another user and an arena: no method, no file and no process leads to its memory or to its forward state."""

import json
import os
import time
from collections.abc import Sequence
from typing import Any

from mpsd_client import Client, Refused, State, calls

from tests.hostile.attacker import NOBODY, attack
from tests.integration.machine import Machine
from tests.integration.test_arena_socket import GRANULE, fill
from tests.integration.test_vault import vault_keeper

# Prints what of a process can be opened by any way that /proc or the kernel has.
REACHES = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
SYS_PIDFD_OPEN, SYS_PIDFD_GETFD, SYS_PROCESS_VM_READV = 434, 438, 310
reached = []
for pid in map(int, sys.argv[2:]):
    for path in (f"/proc/{pid}/fd", f"/proc/{pid}/map_files", f"/proc/{pid}/fdinfo"):
        try:
            reached += [f"{path}/{name}" for name in os.listdir(path)]
        except OSError:
            pass
    for number in range(256):
        for path in (f"/proc/{pid}/fd/{number}", f"/proc/{pid}/fdinfo/{number}"):
            try:
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                reached.append(path)
            except OSError:
                pass
    for path in (f"/proc/{pid}/mem", f"/proc/{pid}/environ", f"/proc/{pid}/maps", f"/proc/{pid}/pagemap"):
        try:
            with open(path, "rb") as file:
                file.read(1) and reached.append(path)
        except OSError:
            pass
    pidfd = libc.syscall(SYS_PIDFD_OPEN, pid, 0)
    if pidfd >= 0:
        for number in range(256):
            if libc.syscall(SYS_PIDFD_GETFD, pidfd, number, 0) >= 0:
                reached.append(f"pidfd_getfd {pid} {number}")
    if os.getuid() and libc.ptrace(16, pid, 0, 0) == 0:  # PTRACE_ATTACH
        reached.append(f"ptrace {pid}")
for directory, _, files in os.walk(sys.argv[1]):
    for name in files:
        path = os.path.join(directory, name)
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
            reached.append(path)
        except OSError:
            pass
print(*reached, sep="\\n")
"""


def tried(machine: Machine, asked: Sequence[calls.Call[Any]]) -> dict[str, str]:
    """Return mpsd's answer to a process of another user: the code of its refusal, or "" for success."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            with Client(machine.pipe / "mpsd.sock") as mpsd:
                told = {"arena.list": "".join(each.name for each in mpsd.pages(calls.arena_list()))}
                told |= {f"{number} {each.method}": refused(mpsd, each) for number, each in enumerate(asked)}
            os.write(writer, json.dumps(told).encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as file:
        said = file.read()
    os.waitpid(pid, 0)
    return dict(json.loads(said))


def refused(mpsd: Client, call: calls.Call[Any]) -> str:
    try:
        mpsd.ask(call)
    except Refused as exc:
        return exc.name
    return ""


def test_another_user_reaches_no_memory_of_an_arena(machine: Machine) -> None:
    """By the methods: an arena of mode 0600 is not there.  By the descriptors of the keeper, mpsd and the writer: neither."""
    machine.start()
    with machine.mpsd() as owner:
        owner.ask(calls.arena_create("kv", "0", 4 * GRANULE))
        owner.ask(calls.service_enlist("kv"))
        arena = owner.ask(calls.arena_open("kv", "write"))
        fill(owner, arena, {0: b"secret"}, b"{}")
        state = State.create({"n": "uint64"}, generation=1)
        owner.ask(calls.arena_keep_state(arena.id, 1, state.fd))
        told = tried(machine, [
            calls.arena_get("kv"), calls.arena_open("kv", "read"), calls.arena_open("kv", "write"), calls.arena_take(arena.id),
            calls.arena_layout(arena.id), calls.arena_state(arena.id), calls.arena_keep_state(arena.id, 1, state.fd),
            calls.arena_seal(arena.id, 1), calls.arena_remove("kv"), calls.arena_change(arena.id, mode=0o666),
            calls.service_join(arena.id), calls.service_ready(arena.id), calls.service_get("kv"),
            calls.service_follow(arena.id), calls.service_serving(arena.id, 1), calls.service_handover("kv"),
        ])  # fmt: skip
        assert told.pop("arena.list") == ""
        assert len(told) == 16
        assert set(told.values()) <= {"NO_SUCH_ARENA", "NOT_ALLOWED"}, told
        found = attack(REACHES, machine.state, vault_keeper(machine), machine.keeper_pid(), machine.daemon_pid(), os.getpid())
        assert found.split() == []
        assert os.pread(owner.ask(calls.arena_take(arena.id)).fds[0], 6, 0) == b"secret"
        kept = owner.ask(calls.arena_state(arena.id))
        assert (kept.generation, kept.state_serial > 0) == (1, True)


def test_the_same_looks_find_what_root_can_reach(machine: Machine) -> None:
    """So that the test above can fail."""
    machine.start()
    with machine.mpsd() as owner:
        owner.ask(calls.arena_create("kv", "0", 4 * GRANULE))
        arena = owner.ask(calls.arena_open("kv", "write"))
        fill(owner, arena, {0: b"secret"}, b"{}")
        found = attack(REACHES, machine.state, vault_keeper(machine), uid=0)
        assert any("pidfd_getfd" in line for line in found.splitlines())


READ_LOGS = """
import os, sys
for name in os.listdir(sys.argv[1]):
    try:
        print(open(os.path.join(sys.argv[1], name)).read())
    except PermissionError:
        pass
"""


def test_the_logs_do_not_name_an_arena_to_other_users(machine: Machine) -> None:
    """mpsd.log has each arena's name, each change and its caller, and who did which fault: it could be read by all users.

    control.log, which was everybody's as the vendor's, has the programs and commands of all users.
    """
    machine.start()
    with machine.mpsd(uid=1000) as mpsd:
        mpsd.ask(calls.arena_create("unheard-of", "0", GRANULE))
    machine.wait_for_journal("audit")
    names = {"control.log", "server.log", "mpsd.log", "audit-users.log"}
    assert names <= {each.name for each in machine.log_directory.iterdir()}
    assert attack(READ_LOGS, machine.log_directory) == ""


def test_a_user_who_may_write_removes_no_sealed_arena(machine: Machine) -> None:
    """Nor gives its name to another one: as a replica of it whose GPU, as this user says, has failed."""
    machine.start(MPSD_SIM_GPUS="2")
    with machine.mpsd() as owner:
        for name, gpu in (("weights", "0"), ("spare", "1")):
            owner.ask(calls.arena_create(name, gpu, 4 * GRANULE, mode=0o666))
        weights = owner.ask(calls.arena_open("weights", "write"))
        fill(owner, weights, {0: b"secret"}, b"{}")
        owner.ask(calls.arena_seal(weights.id, 1))
        owner.ask(calls.arena_close(weights.id))
        spare = owner.ask(calls.arena_get("spare"))
        told = tried(machine, [
            calls.arena_open("weights", "write"), calls.arena_remove("weights"), calls.arena_open("spare", "write"),
            calls.service_replicate(spare.id, 1, "weights", time.time(), has_gpu_failed=True),
        ])  # fmt: skip
        del told["arena.list"]
        assert list(told.values()) == ["ARENA_SEALED", "NOT_ALLOWED", "", "ARENA_SEALED"]
        found = owner.ask(calls.arena_get("weights"))
        assert (found.id, found.ttl_seconds, found.used_bytes) == (weights.id, None, GRANULE)
