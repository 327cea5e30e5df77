"""What a domain's server.log tells of a fault: that there is one, late and reliably; not whose it was (FACTS.md)."""

from mpsd.domains.log_lines import ClientFault, News, ServerFault
from mpsd.fault import Observation, Source
from mpsd.faults.parties import Parties


def observe(domain: str, news: News, parties: Parties, now_ns: int) -> Observation | None:
    """None for what is about no fault.  now_ns: its own stamps are of another clock, and coarse."""
    match news:
        case ServerFault(pid):
            return Observation(Source.VENDOR_LOG, now_ns, domain=domain, text=f"server {pid} is handling a fatal GPU error")
        case ClientFault(pid, client_pid):
            named = parties.by_pid(client_pid)
            text = f"server {pid} says that client {client_pid} encountered a fatal GPU error"
            return Observation(Source.VENDOR_LOG, now_ns, domain=domain, process=named, text=text)
    return None
