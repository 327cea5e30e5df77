"""A process that ends in its handshake, and another one that goes on with the connection in its name."""

import signal

from mpsd_client import Selector, calls

from tests.hostile.attacker import attacking
from tests.hostile.test_held_windows import ATTACKER, CONNECTS_AS_CLIENT
from tests.integration.machine import Machine
from tests.integration.process import wait_for

# As root of separate user and pid namespaces, where it may name every process, also one that has ended and was not waited for.
GOES_ON = (
    CONNECTS_AS_CLIENT
    + """
import ctypes
mine = os.getuid()
if ctypes.CDLL(None, use_errno=True).unshare(0x30000000):  # CLONE_NEWUSER | CLONE_NEWPID
    sys.exit("no namespaces")
open("/proc/self/setgroups", "w").write("deny")
open("/proc/self/uid_map", "w").write(f"0 {mine} 1")
open("/proc/self/gid_map", "w").write(f"0 {mine} 1")
if os.fork():
    os.wait()
    sys.exit()
ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
kept = []
for _ in range(3):
    ours, theirs = socket.socketpair()
    ended = os.fork()
    if not ended:
        made = connected()
        hear(made, 1)
        say(made, HELLO)
        hear(made, WELCOME)
        socket.send_fds(theirs, [b"."], [made.fileno()])
        os._exit(0)
    made = socket.socket(fileno=socket.recv_fds(ours, 1, 1)[1][0])
    time.sleep(0.3)  # so long mpsd takes to forget it
    words = HEAD.pack(0x4C4B0001, ATTACH, ended, 0, 1, 0, 0, 0)
    made.sendmsg([words], [(socket.SOL_SOCKET, 2, struct.pack("iII", ended, 0, 0))])
    made.settimeout(3.0)
    try:
        kept += hear(made, GRANT)
        say(made, DONE)
    except OSError:
        pass
    kept.append(made)
print("ready", flush=True)
time.sleep(600)
"""
)
# Its child is ended at SIGUSR1, before it has its channel.
ENDS_ITS_CHILD = (
    CONNECTS_AS_CLIENT
    + """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
ours, theirs = socket.socketpair()
ended = os.fork()
if not ended:
    made = connected()
    hear(made, 1)
    say(made, HELLO)
    hear(made, WELCOME)
    say(made, ATTACH, 1)
    socket.send_fds(theirs, [b"."], [made.fileno()])
    time.sleep(600)
made = socket.socket(fileno=socket.recv_fds(ours, 1, 1)[1][0])
print("ready", flush=True)
signal.sigwait({signal.SIGUSR1})
os.kill(ended, 9)
os.wait()
print("ended", flush=True)
kept = hear(made, GRANT)
time.sleep(600)
"""
)


def test_a_process_that_has_ended_gets_no_channel(machine: Machine) -> None:
    """mpsd had freed its place in its lease, and no list had it then: so a user had as many contexts as processes that end."""
    machine.start()
    with machine.mpsd() as mpsd:
        mpsd.ask(calls.lease_create("job", Selector.of_uid(ATTACKER), sm_percent=10, processes=1, owner_uid=ATTACKER))
    with attacking(GOES_ON, machine.pipe / "control", uid=ATTACKER):
        wait_for("no client", lambda: machine.servers() and not machine.clients())


def test_a_process_that_has_ended_before_a_restart_gets_no_channel(machine: Machine) -> None:
    """The next mpsd did not know which process it was, and passed the channel on to the one that had its connection."""
    machine.misbehave(control="slow@attach=8000")
    machine.start()
    log = machine.state / "domains/default/log/control.log"
    with attacking(ENDS_ITS_CHILD, machine.pipe / "control", uid=ATTACKER) as attacker:
        wait_for("its message to reach the daemon", lambda: "NEW CLIENT" in log.read_text())
        machine.kill_daemon()
        attacker.send_signal(signal.SIGUSR1)
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == "ended\n"
        machine.start()
        wait_for("its connection to be held", lambda: machine.journal("relay.held"))
        wait_for("no client", lambda: not machine.clients())
