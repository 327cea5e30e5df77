"""Where a user's newcomers go after several of them got no context in a domain with clients of others."""

import pytest
from msgspec.structs import replace

from mpsd.domains.rules.placement import Create, Join, PlacementRequest, Rules, place
from mpsd.model.domain import DomainState
from tests.unit.domains.rules.test_placement import GPU, view

WORN = replace(view("d1", clients=9, uid=8, users=[8]), failing=frozenset({7}))


@pytest.mark.parametrize(
    ("domains", "uid", "expected"),
    [
        pytest.param([WORN], 7, Create(GPU), id="to a new one"),
        pytest.param([WORN, view("d2")], 7, Join("d2"), id="or an empty one"),
        pytest.param([WORN], 8, Join("d1"), id="others stay there"),
        pytest.param([WORN], 9, Join("d1"), id="or come"),
        pytest.param([WORN, view("d2", clients=48, uid=8)], 7, Join("d1"), id="there once more without another one"),
    ],
)
def test_a_user_whose_newcomers_get_no_context_in_a_domain_gets_another(domains, uid, expected):
    assert place(PlacementRequest(uid, GPU), domains, Rules(2, is_multiuser=True)) == expected


def test_it_starts_no_further_one_where_others_do_not_start():
    """Its clients waited, and each start took the place of a domain that could serve others, up to the GPU's last."""
    domains = [WORN, view("d2", DomainState.DEAD), view("d3", DomainState.DEAD)]
    assert place(PlacementRequest(7, GPU), domains, Rules(8, is_multiuser=True)) == Join("d1")
