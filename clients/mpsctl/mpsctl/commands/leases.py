"""The commands leases, lease create, lease renew, lease release, lease show, and queue."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from mpsd_client import ErrorCode, Lease, Refused, Selector, calls, values

from mpsctl import words
from mpsctl.output import Column, facts
from mpsctl.quantities import show_duration, show_percent
from mpsctl.session import Session

_TOKEN_BYTES = 16


def list_leases(session: Session) -> int:
    found = session.all(calls.lease_list(state=session.asked.state, limit=1000))
    session.out.document(found, lambda: session.out.table(_columns(session), found, "no leases"))
    return 0


def _columns(session: Session) -> Sequence[Column[Lease]]:
    names = words.ordinals(session.all(calls.device_list()))
    return (
        Column("ID", lambda lease: lease.id, is_number=True),
        Column("NAME", lambda lease: lease.name, may_be_cut=True, least=12),
        Column("OWNER", lambda lease: session.user_name(lease.owner_uid), may_be_cut=True, least=6),
        Column("STATE", lambda lease: lease.state),
        Column("SM", _sms, is_number=True),
        Column("MEM", lambda lease: words.memory(lease.memory_bytes), is_number=True),
        Column("GPU", lambda lease: words.gpus(lease.gpus, names), may_be_cut=True, least=3),
        Column("DOMAIN", words.domain, may_be_cut=True, least=6),
        Column("RUN", lambda lease: f"{lease.clients}/{lease.processes}", is_number=True),
        Column("LEFT", lambda lease: _left(session, lease.expires_at), is_number=True),
        Column("FOR", lambda lease: words.selector(lease.selector), may_be_cut=True, least=8),
    )


def _sms(lease: Lease) -> str | None:
    return show_percent(lease.sm_percent) if lease.sm_count is None else str(lease.sm_count)


def _left(session: Session, moment: float | None) -> str | None:
    seconds = session.until(moment)
    return None if seconds is None else show_duration(seconds)


def create(session: Session) -> int:
    asked = session.asked
    selector = _selector(asked)
    gpus = [gpu for words in asked.gpu or () for gpu in words.split(",")]
    lease = session.ask(
        calls.lease_create(
            asked.name,
            selector,
            gpus=gpus,
            sm_percent=asked.sm and asked.sm.percent,
            sm_count=asked.sm and asked.sm.count,
            memory_bytes=asked.memory and words.spread(asked.memory, session.all(calls.device_list()), gpus),
            priority=asked.priority,
            domain=asked.domain or ("group" if asked.group else "shared"),
            group=asked.group or "",
            processes=asked.processes,
            ttl_seconds=asked.ttl,
            wait_seconds=asked.wait or 0.0,
            level=asked.level,
            owner_uid=asked.owner,
        )
    )
    session.out.document(lease, lambda: _sentence(session, lease) + _how_to_use(lease))
    return 0


def _selector(asked: Any) -> Selector:
    if asked.new_token:
        return Selector.of_token(secrets.token_hex(_TOKEN_BYTES))
    if asked.token is not None:
        return Selector.of_token(asked.token)
    if asked.cgroup is not None:
        return Selector.of_cgroup(asked.cgroup)
    return Selector.of_uid(asked.user) if asked.pid is None else Selector.of_pid(asked.pid)


def _sentence(session: Session, lease: Lease) -> str:
    size, left = words.memory(lease.memory_bytes), _left(session, lease.expires_at)
    parts = [words.reserved_sms(lease), size and f"{size} of memory", left and f"for {left}"]
    return f"lease {lease.id} is {lease.state}: {', '.join(filter(None, parts))}"


def _how_to_use(lease: Lease) -> str:
    if lease.selector.kind != "token":
        return ""
    return f"\nstart its processes with {words.selector_in_full(lease.selector)} in their environment"


def renew(session: Session) -> int:
    lease = session.ask(calls.lease_renew(session.asked.id, session.asked.ttl))
    session.out.document(lease, lambda: _sentence(session, lease))
    return 0


def release(session: Session) -> int:
    word: int | str = session.asked.lease
    if isinstance(word, int):
        lease = session.ask(calls.lease_release(word))
        session.out.document(lease, lambda: _end(lease))
        return 0
    leases, refusals = _release_each(session, _ids_of(session, word))
    if leases:
        session.out.document(leases, lambda: "\n".join(map(_end, leases)))
    left = [refused for refused in refusals if refused.code != ErrorCode.NO_SUCH_LEASE]
    if left or not leases:
        raise (left or refusals)[0]
    return 0


def _release_each(session: Session, ids: Sequence[int]) -> tuple[list[Lease], list[Refused]]:
    """Release each lease, also after a refusal: a lease may have ended since it was listed, and a process that gave its own
    lease the same name must not keep an operator from releasing the others."""
    leases, refusals = [], []
    for each in ids:
        try:
            leases.append(session.ask(calls.lease_release(each)))
        except Refused as refused:
            refusals.append(refused)
    return leases, refusals


def _ids_of(session: Session, name: str) -> list[int]:
    """Return the ids of the leases of that name that the user owns, by mpsd's view of its uid.  Raises Refused."""
    owner = session.mpsd.hello.uid if session.asked.owner is None else session.asked.owner
    found = [lease.id for lease in session.all(calls.lease_list(limit=1000)) if (lease.name, lease.owner_uid) == (name, owner)]
    if not found:
        code = ErrorCode.NO_SUCH_LEASE
        raise Refused(code, code.name, f"user {session.user_name(owner)} has no lease with the name {name}")
    return found


def _end(lease: Lease) -> str:
    return f"lease {lease.id} is released; {_those_who_run(lease)}"


def _those_who_run(lease: Lease) -> str:
    if lease.clients == 1:
        return "its client keeps what it has until it ends"
    return f"its {lease.clients} clients keep what they have until they end" if lease.clients else "no client had it"


def show(session: Session) -> int:
    lease = session.ask(calls.lease_get(session.asked.id))
    session.out.document(lease, lambda: facts(_facts(session, lease, session.all(calls.device_list()))))
    return 0


def _facts(session: Session, lease: Lease, devices: Sequence[values.Device]) -> Mapping[str, object]:
    names = words.ordinals(devices)
    return {
        "lease": lease.id,
        "name": lease.name,
        "state": lease.state,
        "owner": session.user_name(lease.owner_uid),
        "for": words.selector_in_full(lease.selector) + (", of any user" if lease.for_all_users else ""),
        "GPUs": words.gpus_in_full(lease.gpus, devices),
        "SMs": words.reserved_sms(lease),
        "memory": words.memory_by_gpu(lease.memory_bytes, names),
        "priority": "below normal" if lease.priority else "normal",
        "domain": words.domain(lease),
        "group": lease.group,
        "level": lease.level,
        "processes": f"{lease.clients} of {lease.processes}",
        "lasts": _left(session, lease.expires_at) or "until it is released",
        "may wait": show_duration(lease.wait_seconds) if lease.state == "queued" else None,
    }


def list_queue(session: Session) -> int:
    found = session.all(calls.queue_list(limit=1000))
    columns: Sequence[Column[values.Waiting]] = (
        Column("POS", lambda entry: entry.position, is_number=True),
        Column("USER", lambda entry: session.user_name(entry.uid), may_be_cut=True, least=6),
        Column("WHO", _who),
        Column("WAITED", lambda entry: show_duration(entry.waited_seconds), is_number=True),
        Column("LEFT", lambda entry: _left(session, entry.deadline), is_number=True),
        Column("FOR", lambda entry: entry.reason, may_be_cut=True, least=20),
    )
    session.out.document(found, lambda: session.out.table(columns, found, "no one waits"))
    return 0


def _who(entry: values.Waiting) -> str:
    if entry.pid is None:
        return f"lease {entry.lease_id}"
    return f"pid {entry.pid}" + (f" of lease {entry.lease_id}" if entry.lease_id is not None else "")
