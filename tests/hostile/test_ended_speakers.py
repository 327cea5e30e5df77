"""A process that ends in its handshake, and another one that goes on with the connection in its name."""

import signal

from mpsd_client import Selector, calls

from tests.hostile.attacker import IN_NAMESPACES, attacking
from tests.hostile.test_held_windows import ATTACKER, CONNECTS_AS_CLIENT
from tests.integration.machine import Machine
from tests.integration.process import wait_for

# begun(): the pid of a child, and the connection on which it has greeted; attaches: it asks for a channel, too, and lives on.
BEGINS_IN_A_CHILD = (
    CONNECTS_AS_CLIENT
    + """
def begun(attaches):
    ours, theirs = socket.socketpair()
    child = os.fork()
    if not child:
        made = connected()
        hear(made, 1)
        say(made, HELLO)
        hear(made, WELCOME)
        if attaches:
            say(made, ATTACH, 1)
        socket.send_fds(theirs, [b"."], [made.fileno()])
        if attaches:
            time.sleep(600)
        os._exit(0)
    return child, socket.socket(fileno=socket.recv_fds(ours, 1, 1)[1][0])
"""
)
# It may name every process of its pid namespace, also one that has ended and was not waited for.
GOES_ON = (
    IN_NAMESPACES
    + BEGINS_IN_A_CHILD
    + """
kept = []
for _ in range(3):
    ended, made = begun(False)
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
    BEGINS_IN_A_CHILD
    + """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
ended, made = begun(True)
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
