"""Which process a server means by a pid that it lists."""

import os

import pytest

from mpsd.domains.domain import Domain
from mpsd.domains.listed import listed_process
from mpsd.host import processes
from mpsd.model.process import ProcessId

OURS = processes.process_id(os.getpid())
BEFORE = ProcessId(os.getpid(), 7)  # an ended client, which had our pid


@pytest.mark.parametrize(
    ("admitted", "found"),
    [
        pytest.param(None, OURS, id="a client that bypassed mpsd"),
        pytest.param(OURS, OURS, id="an admitted client"),
        pytest.param(BEFORE, None, id="an ended one, of which a child has the connection"),
    ],
)
def test_the_process_of_a_listed_pid(admitted: ProcessId | None, found: ProcessId | None) -> None:
    domain = Domain("default", 1, (), None, 48)  # type: ignore[arg-type]
    if admitted:
        domain.admit(admitted)
    assert listed_process(domain.admitted, os.getpid()) == found


def test_a_process_that_has_gone() -> None:
    domain = Domain("default", 1, (), None, 48)  # type: ignore[arg-type]
    assert listed_process(domain.admitted, 4_194_305) is None
