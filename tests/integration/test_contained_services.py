"""Services in a domain in which an SM exception was contained: they move by a planned handover, and never by a failover."""

import pytest

from tests.integration.client import Client
from tests.integration.machine import Machine
from tests.integration.process import is_running, wait_for
from tests.integration.test_contained import LEAVE, ORDERS, XID
from tests.integration.test_sentinels import started
from tests.integration.test_services import check_well, look, member, two, until_served_by

pytestmark = pytest.mark.root


def domain_of(machine: Machine, who: Client) -> str:
    view = look(machine)
    assert view
    return next(each.domain for each in view.members if each.pid == who.pid)


def fault_beside(machine: Machine, who: Client) -> Client:
    """Return a client that has faulted in the same domain; the exception is contained."""
    culprit = machine.client("faulter", "trap", "--after", "0.2", "--linger", "60").ready()
    assert machine.wait_for_journal("domain.contained")["domain"] == domain_of(machine, who)
    return culprit


@pytest.mark.parametrize("delays", ORDERS.values(), ids=ORDERS)
def test_a_service_is_handed_over_to_a_standby_elsewhere(machine: Machine, delays: dict[str, str]) -> None:
    """Its active yields, and is not killed, in whichever order the Xid and the sentinel's report come."""
    started(machine, LEAVE, **XID, **delays)
    active, standby = two(machine)
    fault_beside(machine, active)
    view = until_served_by(machine, standby)
    assert view.last
    assert (view.last.cause, view.last.from_pid) == ("contained", active.pid)
    assert is_running(active.pid)
    wait_for("the Xid", lambda: [each for each in machine.journal("fault.xid") if each["xid"] == 43])
    assert not [each for each in machine.journal("service.event") if each["what"] == "fencing"]
    until_served_by(machine, standby)
    check_well(machine, active, standby)


@pytest.mark.parametrize("delays", ORDERS.values(), ids=ORDERS)
def test_a_service_without_a_standby_stays_until_it_has_one(machine: Machine, delays: dict[str, str]) -> None:
    started(machine, LEAVE, **XID, **delays)
    active = member(machine)
    until_served_by(machine, active)
    fault_beside(machine, active)
    wait_for("the Xid", lambda: [each for each in machine.journal("fault.xid") if each["xid"] == 43])
    assert until_served_by(machine, active).generation == 1
    standby = member(machine)
    view = until_served_by(machine, standby)
    assert view.last
    assert view.last.cause == "contained"
    assert is_running(active.pid)
    check_well(machine, active, standby)
