"""Quotas of arenas: a user who makes pid namespaces, and root of a container who is many users."""

import json
import subprocess

from mpsd_client import calls

from tests.hostile.attacker import PYTHON, attack
from tests.hostile.frames import frames
from tests.integration.machine import FRONT_END, Machine

USER = 64321
GRANULE = 2 << 20
QUOTA = 3
# One arena in each of several pid namespaces, which every user may make inside a user namespace.
MAKE = """
import json, socket, subprocess, sys
path, plans = sys.argv[1], json.loads(sys.argv[2])
CHILD = '''
import json, socket, sys
end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
end.connect(sys.argv[1])
for frame in json.loads(sys.argv[2]):
    end.send(bytes.fromhex(frame))
    said = end.recv(65536)
print("made" if b"capacity_bytes" in said else "refused")
'''
said = []
for plan in plans:
    words = ["unshare", "-Urpf", sys.executable, "-I", "-S", "-c", CHILD, path, json.dumps(plan)]
    done = subprocess.run(words, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    said.append(done.stdout.strip())
print(json.dumps(said))
"""


def test_a_user_with_many_pid_namespaces_has_the_quota_of_one_user(machine: Machine) -> None:
    machine.configure(f"[vault]\nuser_arenas = {QUOTA}\n")
    machine.start()
    plans = [frames(calls.arena_create(f"mine-{number}", "0", GRANULE)) for number in range(2 * QUOTA)]
    said = json.loads(attack(MAKE, machine.pipe / "mpsd.sock", json.dumps(plans), uid=USER))
    assert said == ["made"] * QUOTA + ["refused"] * QUOTA


# One arena as each of several users; each connects in a process that then ends, or lives until all have asked.
MAKE_AS_MANY = """
import json, os, signal, socket, sys
path, is_to_end, plans = sys.argv[1], sys.argv[2] == "end", json.loads(sys.argv[3])
answers = []
for uid, plan in plans:
    ours, theirs = socket.socketpair()
    if not os.fork():
        os.setresuid(uid, uid, uid)
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.connect(path)
        socket.send_fds(ours, [b"x"], [end.fileno()])
        if not is_to_end:
            signal.pause()
        os._exit(0)
    end = socket.socket(fileno=socket.recv_fds(theirs, 1, 1)[1][0])
    if is_to_end:
        os.wait()
    for frame in plan:
        end.send(bytes.fromhex(frame))
        answer = end.recv(65536)
    answers.append("made" if b"capacity_bytes" in answer else "refused")
print(json.dumps(answers))
"""


def make_as_many(machine: Machine, until: str) -> list[str]:
    """The answers to root of a container that makes an arena as each of more users than a user may have arenas."""
    plans = [(USER + each, frames(calls.arena_create(f"as-{each}", "0", GRANULE))) for each in range(2 * QUOTA)]
    words = [PYTHON, "-I", "-S", "-c", MAKE_AS_MANY, str(machine.pipe / "mpsd.sock"), until, json.dumps(plans)]
    done = subprocess.run(["unshare", "--pid", "--fork", "--kill-child", *words], capture_output=True, text=True)
    assert not done.returncode, done.stderr
    return list(json.loads(done.stdout))


def test_a_container_has_the_quota_of_one_user_also_by_connections_of_processes_that_have_ended(machine: Machine) -> None:
    """Its root can be any user: with a quota for each it made all arenas that mpsd has, and all other users could make none."""
    machine.configure(f"[vault]\nuser_arenas = {QUOTA}\n")
    machine.start()
    assert make_as_many(machine, "end").count("made") <= QUOTA


def test_so_it_has_if_mpsd_cannot_read_its_pid_namespace(machine: Machine) -> None:
    """An mpsd without CAP_SYS_PTRACE cannot; others cannot for the moment in which a process keeps their reader waiting."""
    machine.configure(f"[vault]\nuser_arenas = {QUOTA}\n")
    words = ["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", str(FRONT_END), "-d"]
    subprocess.run(words, env=machine.variables, timeout=60, check=True)
    assert make_as_many(machine, "live") == ["made"] * QUOTA + ["refused"] * QUOTA
