"""The vendor's log of a domain, which may contain text of others: no line of it ends mpsd, now or after a restart."""

from tests.integration.machine import Machine
from tests.integration.process import wait_for

NUMBER = b"9" * 5000  # int() raises an error for more than 4300 digits
HEAD = b"[2026-11-20 12:29:55.053 Server 1] "
LINES = (
    b"[2026-11-20 12:29:55.053 Server " + NUMBER + b"] x",
    b"[2026-11-20 12:29:55.053 Control 1] NEW SERVER " + NUMBER + b": Ready",
    b"[2026-11-20 12:29:55.053 Control 1] Server 1 exited with status " + NUMBER,
    HEAD + b"Client {PID: " + NUMBER + b", Context ID: 1} connected",
    HEAD + b"Client {PID: 1, Context ID: 1} exiting. Number of active client contexts is " + NUMBER + b".",
    HEAD + b"\0\xff\xfe\x1b[2J\r\x85\xe2\x80\xa8",
    HEAD + b"x" * 200_000,
)


def test_no_line_ends_mpsd(machine: Machine) -> None:
    machine.start()
    client = machine.counter().ready()
    log = machine.state / "domains" / machine.domain_of(client) / "log" / "server.log"
    with log.open("ab") as file:
        file.write(b"".join(line + b"\n" for line in (*LINES, HEAD + b"the last of them")))
    wait_for("mpsd to read them", lambda: any("the last of them" in line for line in machine.log("server.log")))
    daemon = machine.daemon_pid()
    client.goes_on()
    machine.counter().ready()
    assert machine.daemon_pid() == daemon
