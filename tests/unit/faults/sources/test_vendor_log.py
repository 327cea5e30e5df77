"""What a line of a domain's log shows about a fault."""

import pytest

from mpsd.domains.rules import log_lines
from mpsd.faults.known_clients import KnownClients
from mpsd.faults.sources.vendor_log import observe
from mpsd.model.fault import FaultClass, Party, Source
from mpsd.model.process import ProcessId

A = ProcessId(101, 7)
OTHERS = [
    log_lines.ServerStarting(5, 0),
    log_lines.ServerReady(5),
    log_lines.ServerExited(5, 1),
    log_lines.ContextOpened(5, 101),
    log_lines.ContextClosed(5, 101, 0),
    log_lines.ClientGone(5, 101),
    log_lines.ClientArrived(5, 101),
]


@pytest.fixture
def parties():
    made = KnownClients(lambda process: Party(process), lambda: 0)
    made.meet(A, "d2")
    return made


def test_a_server_says_that_it_faults(parties):
    seen = observe("default", log_lines.ServerFault(5), parties, 77)
    assert (seen.source, seen.seen_ns, seen.domain, seen.process) == (Source.VENDOR_LOG, 77, "default", None)
    assert seen.text == "server 5 is handling a fatal GPU error"


@pytest.mark.parametrize(("pid", "process"), [(101, A), (102, None)])
def test_the_client_that_it_names_is_no_culprit(parties, pid, process):
    """It can be an innocent (measured); and it may be of another domain by now."""
    seen = observe("default", log_lines.ClientFault(5, pid), parties, 77)
    assert (seen.domain, seen.process, seen.is_proof, seen.fault_class) == ("default", process, False, FaultClass.UNKNOWN)
    assert seen.text == f"server 5 reports that client {pid} encountered a fatal GPU error"


@pytest.mark.parametrize("news", OTHERS, ids=lambda news: type(news).__name__)
def test_any_other_line_is_about_no_fault(parties, news):
    assert observe("default", news, parties, 77) is None
