"""The commands clients, why, terminate and move."""

from collections.abc import Mapping, Sequence

from mpsd_client import calls, values

from mpsctl import words
from mpsctl.output import Column, facts
from mpsctl.session import Session


def list_clients(session: Session) -> int:
    found = session.all(calls.client_list(limit=1000))
    columns: Sequence[Column[values.MpsClient]] = (
        Column("PID", lambda client: client.pid, is_number=True),
        Column("USER", lambda client: session.user_name(client.uid), may_be_cut=True, least=6),
        Column("STATE", lambda client: client.state),
        Column("DOMAIN", lambda client: client.domain, may_be_cut=True, least=6),
        Column("SERVER", lambda client: client.server_pid, is_number=True),
        Column("LEASE", lambda client: client.lease_id, is_number=True),
        Column("SM", lambda client: words.sms(client.sm_count, client.sm_percent), is_number=True),
        Column("MEM", lambda client: words.memory(client.memory_bytes), is_number=True),
        Column("MARKS", words.marks, may_be_cut=True, least=5),
    )
    session.out.document(found, lambda: session.out.table(columns, found, "no clients"))
    return 0


def why(session: Session) -> int:
    found = session.ask(calls.client_why(session.asked.pid))
    session.out.document(found, lambda: facts(_facts(session, found)))
    return 0


def _trouble(session: Session, name: str | None) -> str | None:
    """Return why the domain takes no client, or stands still; None if it does not."""
    return next((each.trouble for each in session.all(calls.domain_list(limit=1000)) if each.name == name), None) or None


def _facts(session: Session, found: values.Why) -> Mapping[str, object]:
    return {
        "client": found.pid,
        "user": session.user_name(found.uid),
        "state": found.state,
        "domain": found.domain,
        "its state": _trouble(session, found.domain),
        "server": found.server_pid,
        "container": found.container,
        "cgroup": ", ".join(found.cgroups),
        "marks": words.marks(found),
        **(_grant(session, found.grant) if found.grant else {"rule": "none yet"}),
        **({"queue": f"position {found.queue.position}", "waits for": found.queue.reason} if found.queue else {}),
    }


def _grant(session: Session, grant: values.Grant) -> Mapping[str, object]:
    names = words.ordinals(session.all(calls.device_list()))
    return {
        "rule": grant.rule,
        "lease": grant.lease_id,
        "GPUs": words.gpus(grant.gpus, names),
        "SMs": _share(grant) or "no limit",
        "memory": words.memory_by_gpu(grant.memory_bytes, names) or "no limit",
        "priority": "below normal" if grant.priority else "normal",
        "domains": grant.domain_policy,
    }


def _share(grant: values.Grant) -> str | None:
    shown = words.share(grant.sm_percent)
    return f"{grant.sm_count} ({shown})" if shown and grant.sm_count is not None else shown


def terminate(session: Session) -> int:
    """Terminate a client through the vendor's command terminate_client."""
    done = session.ask(calls.client_terminate(session.asked.pid))
    said = f"client {done.pid}: its GPU work in domain {done.domain} has ended; the process continues, and gets CUDA error 810"
    session.out.document(done, lambda: said)
    return 0


def move(session: Session) -> int:
    done = session.ask(calls.client_move(session.asked.pid, session.asked.domain))
    said = f"client {done.pid} stays where it is; the next process like it goes to domain {done.domain}"
    session.out.document(done, lambda: said)
    return 0
