"""Clients in frozen cgroups, and users whose cgroups do not answer those who look at them."""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from mpsd.domains import awaited_client
from mpsd.domains.domain import Domain
from mpsd.domains.frozen_clients import FROZEN, UNREAD, FrozenClients, how_frozen
from mpsd.domains.terminate_client import terminate_client
from mpsd.domains.vendor_control import VendorControl, VendorProgram
from mpsd.domains.vital_signs import watch_vital_signs
from mpsd.errors import VendorFailed
from mpsd.host import processes
from mpsd.host.cgroups import unified_hierarchy
from mpsd.host.inspector import Inspector
from mpsd.model.domain import DomainState, ServerView
from tests.cgroup_files import CgroupFiles
from tests.inspecting import INSPECTOR
from tests.integration.cgroup import open_cgroup
from tests.leaderless import leaderless
from tests.unit.conftest import child
from tests.unit.domains.test_ending_strangers import GPUS, SERVER, Vendor
from tests.unit.vault.machine import until

AN_HOUR = 3600.0
Child = subprocess.Popen[bytes]
another = child


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> CgroupFiles:
    return CgroupFiles(tmp_path_factory.mktemp("kernel"))


@pytest.fixture
def patient(files: CgroupFiles) -> Iterator[Inspector]:
    """An inspector whose reads end when the file answers, and not before."""
    made = files.inspector(20.0)
    made.start()
    yield made
    made.close()


@pytest.fixture
def impatient(files: CgroupFiles) -> Iterator[Inspector]:
    made = files.inspector(0.1)
    made.start()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("frozen", "expected"),
    [
        pytest.param({"a/b": "1\n"}, FROZEN, id="its own"),
        pytest.param({"a/b": "0\n", "a": "1\n"}, FROZEN, id="one above"),
        pytest.param({"a/b": "0\n", "a": "0\n"}, None, id="none"),
        pytest.param({"a/b": ""}, None, id="a kernel without a freezer"),
        pytest.param({"": "1\n"}, None, id="the root has no such file"),
    ],
)
async def test_a_frozen_cgroup(files: CgroupFiles, patient: Inspector, frozen: dict[str, str], expected: str | None) -> None:
    """Its processes have the state of others that wait; cgroup.events has `frozen 0` while one waits for a FUSE file."""
    case = f"case{len(os.listdir(files.root))}"
    (files.make(f"{case}/a/b", "") / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    for name, state in frozen.items():
        files.make(f"{case}/{name}", state)
    files.put(os.getpid(), "/a/b")
    assert (await how_frozen(patient, files.root / case, [os.getpid()])).get(os.getpid()) == expected


async def test_a_process_without_its_first_thread_is_in_the_cgroup_of_another() -> None:
    """The kernel moves no thread that has ended."""
    with open_cgroup() as cgroup, leaderless() as made:
        (cgroup / "cgroup.procs").write_text(str(made.pid))
        assert await how_frozen(INSPECTOR, unified_hierarchy(), [made.pid]) == {}
        (cgroup / "cgroup.freeze").write_text("1")
        assert await how_frozen(INSPECTOR, unified_hierarchy(), [made.pid]) == {made.pid: FROZEN}


async def test_a_cgroup_outside_of_mpsds_namespace_is_not_read(files: CgroupFiles, patient: Inspector) -> None:
    files.make("outside/b", "1\n")
    files.make("outside/a/..c", "1\n")
    files.put(os.getpid(), "/../b")
    assert await how_frozen(patient, files.root / "outside/a", [os.getpid()]) == {}
    files.put(os.getpid(), "/..c")
    assert await how_frozen(patient, files.root / "outside/a", [os.getpid()]) == {os.getpid(): FROZEN}


async def test_more_than_one_question_has_room_for(files: CgroupFiles, patient: Inspector) -> None:
    files.make("many", "1\n")
    pids = list(range(500_000, 500_150))
    for pid in pids[::2]:
        files.put(pid, "/many")
    assert (await how_frozen(patient, files.root, [os.getpid(), *pids])).keys() == set(pids[::2])


async def test_one_that_does_not_answer_may_be_frozen(files: CgroupFiles, impatient: Inspector) -> None:
    files.make("silent", None)
    files.put(os.getpid(), "/silent")
    assert await how_frozen(impatient, files.root, [os.getpid()]) == {os.getpid(): UNREAD}


async def test_many_questions_about_one_users_clients_wait_for_each_other(files: CgroupFiles, patient: Inspector) -> None:
    """A stop of a job with many clients asks about all at once: the ninth was refused, and counted as frozen.  No other
    read of that user's had room while one of its cgroups did not answer."""
    directory, asked = files.make("slow", None), 12
    files.put(os.getpid(), "/slow")
    found: list[Any] = []

    async def ask() -> None:
        found.append(await how_frozen(patient, files.root, [os.getpid()]))

    with trio.fail_after(15):
        async with trio.open_nursery() as nursery:
            for _ in range(asked):
                nursery.start_soon(ask)
            await trio.testing.wait_all_tasks_blocked()
            await patient.facts(os.getpid(), ())  # raises if there is no room
            assert not found
            pipe = os.open(directory / "cgroup.freeze", os.O_RDWR)
            (directory / "new").write_text("0\n")
            (directory / "new").replace(directory / "cgroup.freeze")
            os.close(pipe)
    assert found == [{}] * asked


@pytest.mark.parametrize("file", ["a link to itself", "a directory"])
async def test_one_whose_freezer_cannot_be_opened_or_read_may_be_frozen(
    files: CgroupFiles, patient: Inspector, file: str
) -> None:
    """Where files or memory are short, a frozen client counted as one that runs: its server was asked, and waited for it."""
    freeze = files.make(file, "") / "cgroup.freeze"
    if file == "a directory":
        freeze.mkdir()
    else:
        freeze.symlink_to(freeze)
    files.put(os.getpid(), f"/{file}")
    assert await how_frozen(patient, files.root, [os.getpid()]) == {os.getpid(): UNREAD}


async def test_no_process_has_a_number_that_large(files: CgroupFiles, patient: Inspector) -> None:
    """A command named it, or a vendor daemon's list: mpsd met an error of its own."""
    assert await how_frozen(patient, files.root, [0, 1 << 32, 9_999_999_999]) == {}


async def test_one_with_a_path_that_is_too_long_to_look_at_may_be_frozen(files: CgroupFiles, patient: Inspector) -> None:
    """A user makes cgroups as deep as that user likes."""
    files.put(os.getpid(), "/deep" * 1000)
    assert await how_frozen(patient, files.root, [os.getpid()]) == {os.getpid(): UNREAD}


async def test_a_cgroup_that_never_answers_delays_no_look_at_another_users_client(
    files: CgroupFiles, patient: Inspector, child: Child, another: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All domains were looked at in one thread, which waited for ever: no stopped client or daemon was seen any more."""
    monkeypatch.setattr(Vendor, "socket_path", lambda self, name: "/", raising=False)
    files.make("attacker", None)
    victims = files.make("victim", "0\n")
    published: list[tuple[str, Any]] = []
    theirs, mine = child.pid, another.pid
    monkeypatch.setattr(processes, "effective_uid", {theirs: 1000, mine: 1001}.__getitem__)
    files.put(theirs, "/attacker")
    files.put(mine, "/victim")
    frozen = FrozenClients(patient, files.root)
    with trio.fail_after(15):
        async with trio.open_nursery() as nursery:
            ways = (lambda: None, lambda event, facts: published.append((event, facts["pid"])), frozen, lambda uid: uid)
            nursery.start_soon(watch_vital_signs, {"default": silent_domain(theirs, mine)}, *ways)
            await until(lambda: frozen._busy == {1000})  # the other user's look has ended
            (victims / "cgroup.freeze").write_text("1\n")
            await until(lambda: bool(published))
            assert 1000 in frozen._busy, "it waits still"
            nursery.cancel_scope.cancel()
    assert published == [("client.stopped", mine)]


async def a_refusal(domain: Domain, client: int) -> str:
    with pytest.raises(VendorFailed) as refused:
        await terminate_client(domain, SERVER, client)
    return str(refused.value)


async def test_for_one_that_mpsd_may_not_kill_the_end_is_not_asked_for_and_others_are_ended(
    files: CgroupFiles, impatient: Inspector, child: Child, another: Child, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each request waited in a thread, of which a domain had two, for ever: no client of that domain could be ended then."""
    monkeypatch.setattr(processes, "effective_uid", {child.pid: 1000, another.pid: 1001}.__getitem__)
    files.make("held", None)
    files.put(child.pid, "/held")
    files.put(another.pid, "/")
    control = VendorControl(VendorProgram(Path("/nothing"), {}, 1.0, 1.0, impatient, unified=files.root), tmp_path)
    monkeypatch.setattr(Vendor, "how_frozen", lambda self, pid: control.how_frozen(pid))
    domain = silent_domain(child.pid, another.pid)
    for _ in range(3):
        assert UNREAD in await a_refusal(domain, child.pid)
    await terminate_client(domain, SERVER, another.pid)
    vendor: Any = domain.control
    assert vendor.told == [f"terminate_client {SERVER} {another.pid}"]


@pytest.fixture
def admit(files: CgroupFiles, impatient: Inspector, child: Child, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Domain]:
    """Return what returns a domain with the child as a client that mpsd admitted."""

    async def how_frozen_now(self: Vendor, pid: int) -> str:
        return (await how_frozen(impatient, files.root, [pid])).get(pid, "")

    def domain_with_it() -> Domain:
        domain, process = silent_domain(child.pid), processes.process_id(child.pid)
        assert process is not None
        domain.admit(process)
        domain.uids[process] = os.geteuid()
        return domain

    monkeypatch.setattr(Vendor, "how_frozen", how_frozen_now)
    return domain_with_it


async def test_one_that_runs_in_a_held_cgroup_is_ended(files: CgroupFiles, admit: Callable[[], Domain], child: Child) -> None:
    """A user who could list the directory of its cgroup kept it from being fenced, moved and stopped."""
    domain = admit()
    files.make("held/by/another", None)
    files.put(child.pid, "/held/by/another")
    await terminate_client(domain, SERVER, child.pid)
    vendor: Any = domain.control
    assert vendor.told == [f"terminate_client {SERVER} {child.pid}"]
    assert child.poll() is None


@pytest.mark.parametrize("cgroup", ["/", "/held/always"], ids=["once its server was asked", "always"])
async def test_one_whose_cgroup_and_server_do_not_answer_is_killed(
    files: CgroupFiles, admit: Callable[[], Domain], child: Child, monkeypatch: pytest.MonkeyPatch, cgroup: str
) -> None:
    """It is frozen, and its server and all co-runners wait for it."""

    async def command(self: Vendor, line: str, seconds: float | None = None, check: Any = None) -> str:
        await check()
        files.put(child.pid, "/held/always")
        await until(lambda: child.poll() is not None)
        return "0\n"

    monkeypatch.setattr(Vendor, "command", command)
    monkeypatch.setattr(awaited_client, "_PATIENCE_SECONDS", 0.1)  # as long as mpsd waits for the cgroup
    if not (files.root / "held/always").exists():
        files.make("held/always", None)
    files.put(child.pid, cgroup)
    with capture_logs() as logs, trio.fail_after(15):
        await terminate_client(admit(), SERVER, child.pid)
    assert child.returncode == -signal.SIGKILL
    assert [line["signal"] for line in logs if line["event"] == "client.signalled"] == ["SIGCONT", "SIGKILL"]


def silent_domain(*pids: int) -> Domain:
    """Return a domain with these clients, whose server does not answer."""
    domain = Domain("default", 1, GPUS, Vendor(), 48, state=DomainState.READY)  # type: ignore[arg-type]
    domain._believe({SERVER: ServerView(SERVER, 0, "ACTIVE", frozenset(pids), "default", GPUS)}, trio.current_time())
    domain.unanswered_since = trio.current_time() - AN_HOUR
    return domain
