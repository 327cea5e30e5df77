"""Quotas of arenas, and a user who makes pid namespaces."""

import json

from mpsd_client import calls

from tests.hostile.attacker import attack
from tests.hostile.frames import frames
from tests.integration.machine import Machine

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
