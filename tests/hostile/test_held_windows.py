"""A user who keeps a server that several users share: by speaking without a pause, or by silence."""

import pytest
from mpsd_client import Selector, calls

from tests.hostile.attacker import CONNECTS, GREETS, attacking
from tests.integration.machine import UIDS, Machine
from tests.integration.process import wait_for

ATTACKER, OTHER = UIDS
WITHOUT_A_PAUSE = """
while True:
    say(COMMAND, b"get_server_list")
    hear(END)
"""
SPEAKS_ON_MANY = (
    CONNECTS
    + """
import threading
for made in [connected() for _ in range(int(sys.argv[2]))]:
    threading.Thread(target=exec, args=(sys.argv[3], {"made": made})).start()
"""
)
# A handshake as of CUDA, with a pause once it has its channel to the server; in the protocol of native/sim.
CONNECTS_AS_CLIENT = (
    CONNECTS
    + """
import os, struct, time
HEAD = struct.Struct("<IIiiiiII")
HELLO, WELCOME, ATTACH, GRANT, DONE, ACCEPT = 4, 5, 6, 7, 9, 24
def hear(made, kind):
    data, descriptors, _, _ = socket.recv_fds(made, 1 << 17, 1)
    assert HEAD.unpack_from(data)[1] == kind, data
    return descriptors
def say(made, kind, context=0):
    made.send(HEAD.pack(0x4C4B0001, kind, os.getpid(), 0, context, 0, 0, 0))
def attached(context, pause):
    made = connected()
    hear(made, 1)
    say(made, HELLO)
    hear(made, WELCOME)
    say(made, ATTACH, context)
    [channel] = hear(made, GRANT)
    pause()
    say(made, DONE)
    made.close()
    channel = socket.socket(fileno=channel)
    hear(channel, ACCEPT)
    return channel
"""
)
IS_SILENT = (
    CONNECTS_AS_CLIENT
    + """
def keep():
    os.write(channels[1], b"1")
    time.sleep(600)
channels = os.pipe()
for _ in range(int(sys.argv[2])):
    if not os.fork():
        attached(0, keep)
os.read(channels[0], 1)
print("ready", flush=True)
time.sleep(600)
"""
)
IS_SLOW = (
    CONNECTS_AS_CLIENT
    + """
kept = [attached(context, lambda: time.sleep(float(sys.argv[2]))) for context in (0, 1)]
print("ready", flush=True)
time.sleep(600)
"""
)
LEAVES_IN_TIME = (
    CONNECTS_AS_CLIENT
    + """
import threading
def leave_in_time():
    while True:
        attached(0, lambda: time.sleep(float(sys.argv[2]))).close()
        begun.set()
begun = threading.Event()
for _ in range(2):
    threading.Thread(target=leave_in_time, daemon=True).start()
begun.wait()
print("ready", flush=True)
time.sleep(600)
"""
)
CONNECTIONS = 60
WINDOWS = 15  # of the attacker: about one for each connection of the client, and those that pass while it makes none
PROCESSES = 8
SHORT_SECONDS = 4.0  # less than that, so that no single stay is an offence
SLOW_SECONDS = 6.0  # longer than a window lasts where others wait for it
READY_SECONDS = 20.0  # a client has two connections, and may wait for one window before each


def start(machine: Machine, processes: int = 2, has_leases: bool = True) -> None:
    machine.start("-multiuser-server")
    if not has_leases:
        return
    with machine.mpsd() as mpsd:
        for uid in (ATTACKER, OTHER):
            mpsd.ask(calls.lease_create(f"job-{uid}", Selector.of_uid(uid), sm_percent=10, processes=processes, owner_uid=uid))


def test_who_speaks_on_many_connections_keeps_others_waiting_for_one_window(machine: Machine) -> None:
    """Each connection had a window before the other user's client: 47 s for sixty of them."""
    start(machine)
    with attacking(SPEAKS_ON_MANY, machine.pipe / "control", CONNECTIONS, GREETS + WITHOUT_A_PAUSE, uid=ATTACKER):
        machine.counter(uid=OTHER).ready()
        assert len(machine.journal("relay.detached")) <= WINDOWS


@pytest.mark.parametrize("has_leases", [True, False])
def test_who_is_silent_with_a_channel_keeps_no_window(machine: Machine, has_leases: bool) -> None:
    """Another user's client waited for 30 s."""
    start(machine, PROCESSES, has_leases)
    with attacking(IS_SILENT, machine.pipe / "control", PROCESSES, uid=ATTACKER):
        machine.counter(uid=OTHER).ready(READY_SECONDS)
        assert not machine.journal("relay.dropped"), "a client whose connection is closed runs without MPS"


def test_who_leaves_just_before_the_time_is_over_does_not_do_so_all_the_time(machine: Machine) -> None:
    """Each connection of another user's client waited for such a stay."""
    start(machine, PROCESSES)
    with attacking(LEAVES_IN_TIME, machine.pipe / "control", SHORT_SECONDS, uid=ATTACKER):
        for _ in range(3):
            machine.counter(uid=OTHER).ready(READY_SECONDS)
        assert machine.journal("relay.detached")


def test_a_slow_client_has_its_time_where_no_other_waits(machine: Machine) -> None:
    start(machine)
    with attacking(IS_SLOW, machine.pipe / "control", SLOW_SECONDS, uid=ATTACKER) as slow:
        assert wait_for("the slow client", machine.clients) == {slow.pid}
        assert not machine.journal("relay.detached")
