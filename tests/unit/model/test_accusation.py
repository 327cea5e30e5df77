"""Incidents and blame convict the same key; the clients that an incident hurt."""

import pytest
from msgspec.structs import replace

from mpsd.faults.rules.blame import Blame
from mpsd.model.accusation import convicted_key, hurt
from mpsd.model.fault import FaultClass, Observation, Source
from tests.unit.faults.rules.test_blame import FIRST, SETTINGS, alone, incident


@pytest.mark.parametrize(("first", "guilty", "suspects"), FIRST)
def test_reports_name_the_key_that_blame_convicts(first, guilty, suspects):
    blame = Blame(SETTINGS)
    blame.take(first, 0.0)
    assert [convicted_key(first)] == ([each.key for each in blame.state.convictions] or [None])


@pytest.mark.parametrize(
    ("of", "many"),
    [
        pytest.param(incident(1, "aaa"), 2, id="of three suspects one did it"),
        pytest.param(incident(1, "a"), 0, id="the only suspect did it"),
        pytest.param(alone(1, "a"), 0, id="who did it was not hurt by it"),
        pytest.param(incident(1, "ab", fault_class=FaultClass.HOST), 1, id="one was killed, and the other is hurt"),
    ],
)
def test_all_suspects_but_one_are_hurt(of, many):
    assert hurt(of) == many
    victims = tuple(replace(each, pid=each.pid + 50) for each in of.suspects)
    assert hurt(replace(of, victims=victims)) == many + len(victims)


def test_a_suspect_that_had_ended_before_was_not_hurt():
    of = incident(1, "aab")
    ended = Observation(Source.PROCESS, 100, process=of.suspects[0])
    sign = Observation(Source.KERNEL_LOG, 200, domain="d", xid=43)
    assert (hurt(replace(of, evidence=(ended, sign))), hurt(replace(of, evidence=(sign,)))) == (1, 2)
