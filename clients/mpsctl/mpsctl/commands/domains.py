"""The commands domains, domain create, domain drain, domain recycle, and devices."""

import time
from collections.abc import Sequence

from mpsd_client import calls, values

from mpsctl import words
from mpsctl.output import Column
from mpsctl.quantities import show_size
from mpsctl.session import Session


def list_domains(session: Session) -> int:
    found = session.all(calls.domain_list(limit=1000))
    session.out.document(found, lambda: session.out.table(_columns(session), found, "no fault domains"))
    return 0


def _state(domain: values.Domain) -> str:
    if domain.ends_at is None:
        return domain.state
    return f"{domain.state} until {time.strftime('%H:%M:%S', time.localtime(domain.ends_at))}"


def _columns(session: Session) -> Sequence[Column[values.Domain]]:
    names = words.ordinals(session.all(calls.device_list()))
    return (
        Column("DOMAIN", lambda domain: domain.name, may_be_cut=True, least=8),
        Column("STATE", _state),
        Column("USER", lambda domain: "spare" if domain.is_spare else session.user_name(domain.uid), may_be_cut=True, least=6),
        Column("CLIENTS", lambda domain: f"{domain.clients}/{domain.capacity}", is_number=True),
        Column("GPU", lambda domain: words.gpus(domain.gpus, names), may_be_cut=True, least=3),
        Column("SERVERS", lambda domain: ", ".join(f"{s.pid} {s.status}" for s in domain.servers), may_be_cut=True, least=12),
    )


def create(session: Session) -> int:
    gpus = [gpu for words in session.asked.gpu or () for gpu in words.split(",")]
    made = session.ask(calls.domain_create(gpus))
    session.out.document(made, lambda: f"domain {made.name} is {made.state}")
    return 0


def drain(session: Session) -> int:
    done = session.ask(calls.domain_drain(session.asked.name))
    when = f"when its {done.clients} clients have ended" if done.clients else "now"
    session.out.document(done, lambda: f"domain {done.name} takes no new clients, and is removed {when}")
    return 0


def recycle(session: Session) -> int:
    done = session.ask(calls.domain_recycle(session.asked.name))
    session.out.document(done, lambda: f"domain {done.name} gets fresh servers")
    return 0


def list_devices(session: Session) -> int:
    found = session.all(calls.device_list(limit=1000))
    columns: Sequence[Column[values.Device]] = (
        Column("GPU", lambda device: device.ordinal, is_number=True),
        Column("UUID", lambda device: device.uuid),
        Column("NAME", lambda device: device.name, may_be_cut=True, least=6),
        Column("MEM", lambda device: show_size(device.total_bytes), is_number=True),
        Column("SMS", lambda device: device.sm_count, is_number=True),
        Column("MODE", lambda device: device.compute_mode, may_be_cut=True, least=7),
    )
    session.out.document(found, lambda: session.out.table(columns, found, "no GPUs"))
    return 0
