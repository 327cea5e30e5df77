"""The parts of a client's identity that survive its restart, and the cases held against them."""

import pytest

from mpsd.model.cgroup_path import describe, lasting_name
from mpsd.model.fault import Party
from mpsd.model.fault_signs import are_of_one
from mpsd.model.process import ProcessId
from tests.unit.host.test_cgroups import ID, OTHER, POD

PROCESS = ProcessId(4711, 99)


@pytest.mark.parametrize(
    ("party", "key"),
    [
        (Party(PROCESS, 1000, "python3", "job_1", 7), "lease:7:1000"),
        (Party(PROCESS, 2000, "python3", "job_1", 7), "lease:7:2000"),
        (Party(PROCESS, None, "python3", "job_1", 7), "process:4711:99"),
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
    ("path", "is_of_one"),
    [
        pytest.param(f"/docker/{OTHER}", True, id="the same container"),
        pytest.param(f"/docker/{ID}", False, id="another one"),
        pytest.param(f"/docker/{ID}/docker/{OTHER}", False, id="a cgroup in another one, with its name"),
        pytest.param(f"/kubepods/pod{POD}/{ID}/{OTHER}", False, id="the same in a pod"),
    ],
)
def test_a_name_given_inside_a_container_makes_no_client_one_of_another_container(path: str, is_of_one: bool) -> None:
    """Where all clients count as one owner's, their dumps clear each other: the last one left is convicted."""
    parties = [
        Party(PROCESS, 0, "a", describe([each]), lasting=lasting_name([each], "", "a")) for each in (f"/docker/{OTHER}", path)
    ]
    assert are_of_one(parties) is is_of_one


def test_programs_of_one_job_are_of_one() -> None:
    assert are_of_one([Party(PROCESS, 1000, name, "job_1/step_0", lasting=f"job:train:{name}") for name in ("a", "b")])


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
