"""stop: end client processes; exit status 1 if mpsd left a process running."""

import functools
from collections.abc import Sequence

from mpsd_client import calls, values

from mpsctl.__main__ import DONE, REFUSED
from mpsctl.arguments import Argument, Command
from mpsctl.output import Column
from mpsctl.quantities import parse_duration, parse_number_of, parse_whole
from mpsctl.session import Session

_MARGIN_SECONDS = 120.0  # extra time for vendor daemons that do not answer, and for processes that end slowly
_ROUNDS = 3  # mpsd stops the processes of a cgroup or container in up to three rounds


def stop(session: Session) -> int:
    asked = session.asked
    grace, drain = asked.grace or 0.0, asked.drain or 0.0
    session.mpsd.timeout_seconds = _ROUNDS * (grace + drain) + _MARGIN_SECONDS
    way = "terminate" if asked.drain is None else "drain"
    call = calls.client_stop(
        asked.pid, cgroup=asked.cgroup, container=asked.container, start_time=asked.start_time or 0, way=way,
        grace_seconds=grace, drain_seconds=drain, force=asked.force,
    )  # fmt: skip
    found = session.ask(call)
    columns: Sequence[Column[values.StoppedProcess]] = (
        Column("PID", lambda each: each.pid, is_number=True),
        Column("DOMAIN", lambda each: each.domain, may_be_cut=True, least=6),
        Column("ENDED", lambda each: "yes" if each.has_ended else "no"),
        Column("STEPS", lambda each: ", ".join(each.steps)),
        Column("WHY", lambda each: each.why, may_be_cut=True, least=12),
    )
    session.out.document(found, lambda: session.out.table(columns, found.processes, _nobody(session, found)))
    return DONE if all(each.has_ended for each in found.processes) else REFUSED


def _nobody(session: Session, found: values.Stopped) -> str:
    place = session.asked.cgroup or session.asked.container
    if found.others:
        return f"no client of yours in {place}; {found.others} there belong to other users"
    return f"no client found in {place}"


COMMAND = Command("stop", "End client processes without harm to their co-runners: their GPU work first", stop, (
    Argument("--pid", "a process, client or not", parse=functools.partial(parse_number_of, 1, 2**31 - 1), instead="whom"),
    Argument("--cgroup", "the clients in a cgroup and all below it: a path, a name in one, or self", metavar="PATH",
             instead="whom"),
    Argument("--container", "the clients in a container: its id, or self", metavar="ID", instead="whom"),
    Argument("--start-time", "of --pid: field 22 of /proc/PID/stat, to be sure that it is this process and no later one",
             metavar="N", parse=parse_whole),
    Argument("--drain", "freeze the process and let its queued work run so long first; for work that ends by itself",
             metavar="DURATION", parse=parse_duration),
    Argument("--grace", "send SIGTERM before SIGKILL, and wait so long between them", metavar="DURATION",
             parse=parse_duration),
    Argument("--force", "kill also a client whose GPU work could not be ended: its co-runners may die", is_flag=True),
), "Returns when all have ended or were left. Exit status 1 if one was left; the table has the reason.")  # fmt: skip
