"""From facts to problems: each names what was found, and what to do."""

import pytest
from msgspec.structs import replace

from mpsd.domains.rules.placement import Create, Join, Wait
from mpsd.health.rules.problems import LEAST_FREE_BYTES, LEAST_FREE_FILES, HealthFacts, Storage, problems, warnings
from mpsd.model.arena import KeeperView
from mpsd.model.domain import DomainState, DomainView

GPUS = frozenset({"GPU-1"})


def view(state: DomainState, trouble: str = "") -> DomainView:
    return DomainView("d1", state, GPUS, None, 0, 48, True, 1, trouble=trouble)


MUTE = replace(view(DomainState.READY), is_answering=False)
STORAGE = Storage("/run/mpsd/x")
WELL = HealthFacts((view(DomainState.READY),), Join("d1"), storage=STORAGE, has_keeper=True)


def test_all_is_well() -> None:
    assert problems(WELL) == []
    assert problems(replace(WELL, placement=Create(GPUS))) == []
    assert problems(replace(WELL, waiting=3, waited_seconds=4.0, waits_for="its fault domain is starting")) == []


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(WELL, is_stopping=True), "quitting"),
        (replace(WELL, domains=()), "no fault domain exists"),
        (replace(WELL, domains=(view(DomainState.SILENT, "pid 7 is stopped"),)), "d1 is silent (pid 7 is stopped)"),
        (replace(WELL, domains=(MUTE,)), "no fault domain takes clients: d1 does not answer"),
        (replace(WELL, domains=(MUTE, view(DomainState.READY))), "d1 does not answer, and clients that are placed there wait"),
        (replace(WELL, placement=Wait("all 8 domains are taken")), "all 8 domains are taken"),
        (
            replace(WELL, domains=(view(DomainState.READY), view(DomainState.DEAD, "no room")), placement=Create(GPUS)),
            "d1 is dead (no room)",
        ),
        (replace(WELL, missing=("/tmp/nvidia-mps/control",)), "/tmp/nvidia-mps/control is missing"),
        (replace(WELL, has_keeper=False), "no keeper"),
        (replace(WELL, seen_seconds=60.0), "has not answered for 60 s"),
        (replace(WELL, storage=Storage("/run/mpsd/x", "was removed")), "/run/mpsd/x was removed"),
        (replace(WELL, storage=replace(STORAGE, is_read_only=True)), "/run/mpsd/x is read-only"),
        (replace(WELL, storage=replace(STORAGE, free_bytes=LEAST_FREE_BYTES - 1)), "/run/mpsd/x is full: 255 KiB"),
        (replace(WELL, storage=replace(STORAGE, free_files=LEAST_FREE_FILES - 1)), "31 more files"),
        (replace(WELL, storage=replace(STORAGE, free_files=0)), "0 more files"),
        (replace(WELL, storage=replace(STORAGE, damaged=("mpsd.db",))), "/run/mpsd/x/mpsd.db was removed"),
        (replace(WELL, unwritten="database is locked"), "database is locked"),
        (replace(WELL, queued=4, places=4), "the queue is full: 4 wait"),
        (
            replace(WELL, waiting=3, waited_seconds=6.0, waits_for="the others are kept"),
            "clients that wait for a fault domain: 3, one for 6 s: the others are kept",
        ),
        (replace(WELL, clients=5, most_clients=5), "5 clients run, as many as mpsd takes on"),
        (replace(WELL, barred=("no client starts",)), "no client starts"),
    ],
)
def test_each_problem_is_named_alone(facts: HealthFacts, words: str) -> None:
    [problem] = problems(facts)
    assert words in problem


def test_problems_of_several_kinds_are_all_named() -> None:
    facts = replace(WELL, domains=(), has_keeper=False, storage=replace(STORAGE, free_bytes=0), queued=1)
    assert len(problems(facts)) == 4


BLOCKED = replace(view(DomainState.SILENT, "a client is stopped"), name="d2", clients=2, is_blocked=True)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (replace(WELL, domains=(*WELL.domains, BLOCKED)), "domain d2: a client is stopped"),
        (replace(WELL, domains=(*WELL.domains, BLOCKED), placement=Create(GPUS)), "domain d2: a client is stopped"),
        (replace(WELL, domains=(*WELL.domains, replace(MUTE, name="d2", clients=2))), "d2 does not answer"),
        (replace(WELL, unprotected=("domain d2 has no sentinel",)), "domain d2 has no sentinel"),
    ],
    ids=["it stopped one client while another faulted", "it did, and no spare is there", "mute", "it killed its sentinel"],
)
def test_what_one_user_does_to_its_own_domain_keeps_no_further_user_out(facts: HealthFacts, words: str) -> None:
    """The device plugin for Kubernetes starts no container while mpsd is not well: one tenant could keep all others out."""
    [warning] = warnings(facts)
    assert (problems(facts), words in warning) == ([], True)
    assert warnings(WELL) == []


@pytest.mark.parametrize(
    ("vault", "words"),
    [
        (KeeperView("it does not answer", (4711,)), "keepers (pid 4711): it does not answer, and arenas"),
        (KeeperView("1 of 2 do not answer", (4711, 4712), 7), "(pid 4711, 4712): 1 of 2 do not answer"),
    ],
)
def test_a_silent_keeper_of_arenas_keeps_no_client_out(vault: KeeperView, words: str) -> None:
    facts = replace(WELL, vault=vault)
    [warning] = warnings(facts)
    assert (problems(facts), words in warning) == ([], True)
    assert warnings(replace(WELL, vault=KeeperView("none runs, since the vault is empty"))) == []
