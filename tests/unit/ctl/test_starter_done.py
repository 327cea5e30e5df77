"""Which end of a member is the end of a service's work, with --until-done."""

from dataclasses import replace

import pytest
from mpsctl.starter.restarts import has_done_its_work
from mpsd_client import values

SETTINGS = values.ServiceSettings(1, None, None, 0.0, until_done=True, elastic="off")
SERVICE = values.Service(1, "llm", 0, "GPU-1", "serving", 7, 587, 3, SETTINGS, (), 0, None, "", 0, None, None, None, None)
MOVE = values.Move("done", "GPU-0", "GPU-1", 586, 587, 1.0, 2, 0, 0, 1.5, 40.0, "")


def promoted(cause: str, from_pid: int | None, to_pid: int) -> values.Service:
    return replace(SERVICE, last=values.Promotion(9.0, cause, from_pid, to_pid, 8, 0.4, 12.5, 0.9))


@pytest.mark.parametrize(
    ("service", "has_served", "is_done"),
    [
        pytest.param(None, True, True, id="mpsd is away"),
        pytest.param(SERVICE, True, True, id="it served"),
        pytest.param(SERVICE, False, False, id="a standby"),
        pytest.param(promoted("first", None, 586), False, True, id="it served for a moment"),
        pytest.param(promoted("ended", 586, 587), False, True, id="it has a successor, which mpsd did not know to be too many"),
        pytest.param(promoted("asked", 586, 587), True, False, id="it handed over"),
        pytest.param(promoted("contained", 586, 587), True, False, id="it handed over in a domain that ends"),
        pytest.param(replace(SERVICE, move=MOVE), True, False, id="it handed over to another GPU"),
        pytest.param(replace(SERVICE, move=replace(MOVE, state="handing")), True, False, id="the other one does not serve yet"),
        pytest.param(replace(SERVICE, move=replace(MOVE, state="cancelled")), True, True, id="it was not moved"),
        pytest.param(replace(SERVICE, move=replace(MOVE, from_pid=5, to_pid=586)), True, True, id="it was moved to"),
        pytest.param(
            replace(promoted("first", None, 587), move=MOVE), True, False, id="and the other one has been promoted since"
        ),
    ],
)
def test_whose_end_is_the_end_of_the_work(service: values.Service | None, has_served: bool, is_done: bool) -> None:
    assert has_done_its_work(service, {586, 0}, has_served=has_served) is is_done
