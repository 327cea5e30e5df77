"""Faults in a domain's server.log: that a fault happened, late but reliably; not the culprit (docs/faults.md)."""

from mpsd.domains.rules.log_lines import ClientFault, News, ServerFault
from mpsd.faults.known_clients import KnownClients
from mpsd.model.fault import Observation, Source


def observe(domain: str, news: News, parties: KnownClients, now_ns: int) -> Observation | None:
    """Return the observation in a log line; None for a line that is not about a fault.

    now_ns: used because the log's own stamps are coarse and of another clock.
    """
    match news:
        case ServerFault(pid):
            return Observation(Source.VENDOR_LOG, now_ns, domain=domain, text=f"server {pid} is handling a fatal GPU error")
        case ClientFault(pid, client_pid):
            named = parties.by_pid(client_pid)
            text = f"server {pid} reports that client {client_pid} encountered a fatal GPU error"
            return Observation(Source.VENDOR_LOG, now_ns, domain=domain, process=named, text=text)
    return None
