"""The module's settings and their times: the table of kmod_policy.py. The servers are the test's own processes."""

import errno
import os
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest
import structlog
import trio
import trio.testing

from mpsd.app import settings
from mpsd.config.options import Config, FaultOptions
from mpsd.domains.rules.log_lines import ClientGone, ServerExited, ServerReady, ServerStarting
from mpsd.faults.sources.kmod_policy import KmodPolicy
from mpsd.faults.sources.kmod_records import EXEMPT, SET_POLICY, Mode
from mpsd.host.processes import process_id
from mpsd.model.domain import DomainState, ServerView
from tests.unit.faults.incident_world import IncidentWorld
from tests.unit.faults.sources.fake_module import FakeModule

MODES = {mode.word: mode for mode in Mode}


class Scene:
    """A pool with `servers` in its first domain, and a module."""

    def __init__(self, world: IncidentWorld, wanted: Mode = Mode.CONTAIN) -> None:
        self.pool = world.pool
        self.domain = world.domain()
        self.domain.servers = {}
        self.module = FakeModule()
        self.policy = KmodPolicy(self.pool, wanted)

    def runs(self, *pids: int) -> None:
        self.domain.servers = {pid: ServerView(pid, 0, "ACTIVE", (), "default", ()) for pid in pids}

    def open(self) -> None:
        self.policy.open(self.module.take)

    @property
    def told(self) -> list[tuple[str, int]]:
        return self.module.told


@pytest.fixture
def children():
    made = [subprocess.Popen(["sleep", "600"]) for _ in range(3)]
    yield made
    for each in made:
        each.kill()
        each.wait()


@pytest.fixture
def pids(children):
    return [each.pid for each in children]


def test_the_words_of_the_option_are_the_modes():
    assert MODES == {
        "off": Mode.OFF, "report": Mode.REPORT, "contain": Mode.CONTAIN, "contain-and-kill": Mode.CONTAIN_AND_KILL
    }  # fmt: skip


@pytest.mark.parametrize("word", MODES)
def test_the_option_is_the_mode_that_it_says(word):
    assert settings.kmod_mode(replace(Config(), faults=FaultOptions(kmod_policy=word))) is MODES[word]


async def test_servers_and_control_daemons_are_exempt_before_the_policy_is_set(tmp_path, pids):
    scene = Scene(IncidentWorld(tmp_path))
    scene.runs(pids[0], pids[1])
    scene.domain.control = SimpleNamespace(process=process_id(pids[2]))
    assert scene.policy.absent == "the module is not loaded"
    scene.open()
    assert scene.told == [("exempt", pids[0]), ("exempt", pids[1]), ("exempt", pids[2]), ("policy", Mode.CONTAIN)]
    assert scene.policy.absent == ""


@pytest.mark.parametrize("wanted", Mode)
async def test_each_policy_is_told_as_it_is(tmp_path, wanted):
    scene = Scene(IncidentWorld(tmp_path), wanted)
    scene.open()
    assert scene.told == [("policy", wanted)]
    assert scene.policy.absent == ""


async def test_nothing_is_contained_before_it_is_known_who_runs(tmp_path, pids):
    """Domains of an earlier mpsd are being adopted: their servers are not listed yet."""
    scene = Scene(IncidentWorld(tmp_path))
    scene.domain.state = DomainState.STARTING
    async with trio.open_nursery() as nursery:
        scene.open()
        nursery.start_soon(scene.policy.run, lambda seen: None)
        await trio.testing.wait_all_tasks_blocked()
        scene.policy.hear(scene.domain, ServerReady(pids[1]))
        assert scene.told == [("exempt", pids[1])]
        assert scene.policy.absent == "the domains are not known yet"
        scene.runs(pids[0])
        scene.domain.state = DomainState.READY
        scene.pool.notify()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert scene.told == [("exempt", pids[1]), ("exempt", pids[0]), ("policy", Mode.CONTAIN)]


async def test_without_any_domain_nothing_is_told(tmp_path):
    scene = Scene(IncidentWorld(tmp_path))
    scene.pool.domains.clear()
    scene.open()
    assert scene.told == []


async def test_one_that_does_not_start_holds_up_nothing(tmp_path):
    scene = Scene(IncidentWorld(tmp_path))
    scene.domain.state, scene.domain.trouble = DomainState.STARTING, "no device"
    scene.open()
    assert scene.told == [("policy", Mode.CONTAIN)]


@pytest.mark.parametrize("line", [lambda pid: ServerStarting(pid, 0), ServerReady], ids=["starting", "ready"])
async def test_a_new_server_is_exempt_with_its_log_line(tmp_path, pids, line):
    scene = Scene(IncidentWorld(tmp_path))
    scene.open()
    scene.policy.hear(scene.domain, line(pids[0]))
    assert scene.told == [("policy", Mode.CONTAIN), ("exempt", pids[0])]


async def test_other_lines_and_servers_that_are_known_tell_it_nothing(tmp_path, pids):
    scene = Scene(IncidentWorld(tmp_path))
    scene.runs(pids[0])
    scene.open()
    before = list(scene.told)
    for news in (ServerReady(pids[0]), ServerExited(pids[0], 0), ClientGone(pids[0], pids[1])):
        scene.policy.hear(scene.domain, news)
    scene.policy.look()
    assert scene.told == before


async def test_a_server_that_only_the_list_knows_is_exempt(tmp_path, pids):
    """Its log line was missed."""
    scene = Scene(IncidentWorld(tmp_path))
    async with trio.open_nursery() as nursery:
        scene.open()
        nursery.start_soon(scene.policy.run, lambda seen: None)
        await trio.testing.wait_all_tasks_blocked()
        scene.runs(pids[0])
        scene.pool.notify()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert scene.told == [("policy", Mode.CONTAIN), ("exempt", pids[0])]


@pytest.mark.parametrize("wanted", [Mode.CONTAIN, Mode.CONTAIN_AND_KILL])
async def test_a_server_that_cannot_be_exempted_means_that_nothing_is_contained(tmp_path, children, pids, wanted):
    """Until the server has gone, or a place becomes free."""
    scene = Scene(IncidentWorld(tmp_path), wanted)
    scene.open()
    scene.module.full = {pids[0]}
    with structlog.testing.capture_logs() as logs:
        scene.policy.hear(scene.domain, ServerStarting(pids[0], 0))
        scene.policy.hear(scene.domain, ServerReady(pids[0]))
        scene.runs(pids[0])
        scene.policy.look()
    assert scene.told == [("policy", wanted), ("policy", Mode.REPORT)]
    assert [entry["event"] for entry in logs if entry["log_level"] == "error"] == ["faults.kmod_not_exempt"]
    why = os.strerror(errno.ENOSPC)
    assert scene.policy.absent == (
        f"the policy is report, not {wanted.word}: MPS servers could not be exempted (pid {pids[0]}: {why})"
    )
    children[0].kill()
    children[0].wait()
    scene.policy.look()
    assert scene.told[2:] == [("policy", wanted)]
    assert scene.policy.absent == ""


async def test_when_there_is_a_place_for_it_faults_are_contained_again(tmp_path, pids):
    scene = Scene(IncidentWorld(tmp_path))
    scene.module.full = {pids[0]}
    scene.runs(pids[0])
    scene.open()
    assert scene.told == [("policy", Mode.REPORT)]
    scene.module.full = set()
    scene.policy.look()
    assert scene.told[1:] == [("exempt", pids[0]), ("policy", Mode.CONTAIN)]


@pytest.mark.parametrize("wanted", [Mode.OFF, Mode.REPORT])
async def test_where_nothing_is_contained_nobody_needs_to_be_exempt(tmp_path, pids, wanted):
    scene = Scene(IncidentWorld(tmp_path), wanted)
    scene.module.full = {pids[0]}
    scene.runs(pids[0])
    scene.open()
    assert scene.told == [("policy", wanted)]
    assert scene.policy.absent == ""


async def test_a_server_that_has_gone_meanwhile_is_no_failure(tmp_path, children, pids):
    scene = Scene(IncidentWorld(tmp_path))
    scene.runs(pids[0])
    children[0].kill()
    children[0].wait()
    scene.open()
    assert scene.told == [("policy", Mode.CONTAIN)]


async def test_a_reload_tells_everything_anew_and_who_is_exempt_first(tmp_path, pids):
    """Another process may have changed the settings in between."""
    scene = Scene(IncidentWorld(tmp_path))
    scene.runs(pids[0])
    scene.open()
    scene.told.clear()
    scene.policy.configure(Mode.CONTAIN)
    assert scene.told == [("exempt", pids[0]), ("policy", Mode.CONTAIN)]
    scene.policy.configure(Mode.OFF)
    assert scene.told[2:] == [("exempt", pids[0]), ("policy", Mode.OFF)]
    assert scene.policy.absent == ""


async def test_a_reload_while_a_domain_starts_is_not_put_off(tmp_path):
    scene = Scene(IncidentWorld(tmp_path))
    scene.open()
    scene.domain.state = DomainState.STARTING
    scene.policy.configure(Mode.OFF)
    assert scene.module.mode is Mode.OFF


async def test_a_reload_without_a_module_is_for_when_there_is_one(tmp_path):
    scene = Scene(IncidentWorld(tmp_path))
    scene.policy.configure(Mode.REPORT)
    scene.open()
    assert scene.told == [("policy", Mode.REPORT)]


@pytest.mark.parametrize("error", [errno.EBADF, errno.EPERM, errno.EINVAL])
async def test_a_policy_that_is_refused_is_said_once_and_tried_again(tmp_path, error):
    """EBADF: the device could be opened to read alone."""
    scene = Scene(IncidentWorld(tmp_path))
    scene.module.refuses[SET_POLICY] = error
    with structlog.testing.capture_logs() as logs:
        scene.open()
        scene.policy.look()
    (said,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert (said["event"], said["wanted"], said["why"]) == ("faults.kmod_no_policy", "contain", os.strerror(error))
    assert scene.policy.absent == f"the policy is not contain: {os.strerror(error)}"
    del scene.module.refuses[SET_POLICY]
    scene.policy.look()
    assert (scene.told, scene.policy.absent) == ([("policy", Mode.CONTAIN)], "")


async def test_where_it_may_be_told_nothing_both_are_said(tmp_path, pids):
    scene = Scene(IncidentWorld(tmp_path))
    scene.module.refuses |= {SET_POLICY: errno.EBADF, EXEMPT: errno.EBADF}
    scene.runs(pids[0])
    with structlog.testing.capture_logs() as logs:
        scene.open()
        scene.policy.look()
    assert [entry["event"] for entry in logs] == ["faults.kmod_not_exempt", "faults.kmod_no_policy"]
    assert scene.told == []
    assert scene.policy.absent.startswith("the policy is not contain: ")


async def test_a_channel_that_is_lost_is_told_nothing_more(tmp_path, pids):
    scene = Scene(IncidentWorld(tmp_path))
    scene.open()
    scene.policy.close()
    scene.policy.hear(scene.domain, ServerReady(pids[0]))
    scene.policy.configure(Mode.OFF)
    assert scene.told == [("policy", Mode.CONTAIN)]
    assert scene.policy.absent == "the module is not loaded"


@pytest.mark.parametrize("wanted", Mode)
async def test_once_mpsd_has_quit_nothing_is_contained(tmp_path, wanted):
    """Without mpsd no process would freeze and end a client that reads zeros."""
    scene = Scene(IncidentWorld(tmp_path), wanted)
    scene.open()
    scene.pool.stopping.set()
    scene.policy.close()
    assert scene.module.mode is min(wanted, Mode.REPORT)


async def test_a_module_that_has_gone_when_mpsd_quits_is_no_failure(tmp_path):
    scene = Scene(IncidentWorld(tmp_path))
    scene.open()
    scene.module.refuses[SET_POLICY] = errno.ENODEV
    scene.pool.stopping.set()
    scene.policy.close()
    assert scene.told == [("policy", Mode.CONTAIN)]


async def test_a_module_that_is_new_is_told_everything(tmp_path, pids):
    scene = Scene(IncidentWorld(tmp_path))
    scene.runs(pids[0])
    scene.open()
    scene.policy.close()
    scene.told.clear()
    scene.open()
    assert scene.told == [("exempt", pids[0]), ("policy", Mode.CONTAIN)]
