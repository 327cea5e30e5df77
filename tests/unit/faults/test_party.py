"""The parts of a client's identity that survive its restart, and the cases held against them."""

import pytest

from mpsd.model.fault import Party
from mpsd.model.process import ProcessId

PROCESS = ProcessId(4711, 99)


@pytest.mark.parametrize(
    ("party", "key"),
    [
        (Party(PROCESS, 1000, "python3", "job_1", 7), "lease:7"),
        (Party(PROCESS, 1000, "python3", "job_1", lasting="job:train:python3"), "job:train:python3:1000"),
        (Party(PROCESS, 1000, "python3", "job_1"), "user:1000:python3"),
        (Party(PROCESS, 1000, "python3"), "user:1000:python3"),
        (Party(PROCESS, 1000), "user:1000:"),
        (Party(PROCESS), "process:4711:99"),
        (Party(PROCESS, None, "", "job_1", lasting="pod:a"), "process:4711:99"),
    ],
)
def test_a_party_whose_user_nobody_knows_shares_its_key_with_no_other(party: Party, key: str) -> None:
    """All of them had the key `user:None:` once: one conviction held against every one of whom nothing was known."""
    assert party.key == key


@pytest.mark.parametrize(
    ("party", "wider"),
    [
        (Party(PROCESS, 1000, "python3", "", 7, "pod:a"), ("pod:a:1000", "user:1000:python3", "user:1000")),
        (Party(PROCESS, 1000, "python3", "", None, "pod:a"), ("user:1000:python3", "user:1000")),
        (Party(PROCESS, 1000, "python3"), ("user:1000",)),
        (Party(PROCESS), ()),
    ],
)
def test_wider_keys_stay_when_a_client_comes_under_a_new_one(party: Party, wider: tuple[str, ...]) -> None:
    assert party.wider_keys == wider
