"""mpsd accepts only as much as its descriptors allow."""

import pytest

from mpsd.host.rules.descriptor_budget import BESIDE, LEAST, OF_A_CLIENT, OF_A_CONNECTION, Budget, budget, refusal


@pytest.mark.parametrize("limit", [LEAST, 256, 1024, 4096, 20_000, 1 << 20])
def test_all_of_it_together_fits(limit: int) -> None:
    found = budget(limit, 4096)
    assert BESIDE + found.connections * OF_A_CONNECTION + found.clients * OF_A_CLIENT <= limit
    assert found.connections >= 10
    assert found.clients >= 4


def test_with_enough_of_them_everything_is_as_configured() -> None:
    assert budget(1 << 20, 4096) == Budget(4096, 4096)
    assert budget(1024, 4096) == Budget(144, 61, is_short=True)


def test_with_too_few_it_does_not_start() -> None:
    assert refusal(LEAST) == ""
    assert "may open 64 files and needs 224" in refusal(64)
