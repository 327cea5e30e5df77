"""One user whose command sessions all wait for an answer: they make room for those of others."""

from tests.hostile.attacker import NOBODY, attacking
from tests.integration.machine import UIDS, Machine

SESSIONS = 16
PROMPT_SECONDS = 5.0
# Sessions that each give one command and wait for the answer; as many again, whenever mpsd has closed one.
COMMAND = """
import socket, sys, threading, time
path, count, line = sys.argv[1], int(sys.argv[2]), sys.argv[3].encode()
def keep():
    while True:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            sock.connect(path)
            sock.send(b"mpsd-ui 1")
            if sock.recv(65536) == b"mpsd-ui 1":
                asked.release()
                while True:
                    sock.send(line)
                    while (answer := sock.recv(65536)) and not answer.startswith(b"X"):
                        pass
                    if not answer:
                        break
        except OSError:
            pass
        sock.close()
        time.sleep(0.1)
asked = threading.Semaphore(0)
for _ in range(count):
    threading.Thread(target=keep, daemon=True).start()
for _ in range(count):
    asked.acquire()
print("ready", flush=True)
time.sleep(600)
"""


def test_sessions_that_wait_for_a_server_lock_no_other_user_out(machine: Machine) -> None:
    """Each command waited 30 s for a domain; no session was idle, so no other front end got one, not even root's."""
    machine.configure(f"[domains]\nspares = 0\nmax_domains = 1\n[ui]\nmax_sessions = {SESSIONS}\n")
    machine.start()
    machine.counter(uid=UIDS[0]).ready()
    with attacking(COMMAND, machine.pipe / "mpsd-ui", SESSIONS, f"start_server -uid {NOBODY}"):
        for uid in (UIDS[0], 0):
            done = machine.ask("get_server_list", uid=uid, seconds=PROMPT_SECONDS)
            assert done.returncode == 0, done.stdout + done.stderr
