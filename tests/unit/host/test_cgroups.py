"""The identity of a client: the contents that container runtimes, Kubernetes, Slurm and systemd write into /proc/PID/cgroup."""

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mpsd.host import cgroups, mounts, processes
from mpsd.host.cgroups import TOKEN_VARIABLE, identify, parse_cgroups
from mpsd.host.client_facts import NOTHING, ClientFacts
from mpsd.host.inspector_answers import Unreadable
from mpsd.host.inspector_messages import CgroupLook, InspectorOp, Question
from mpsd.host.process_reader import Unanswered
from mpsd.model.cgroup_path import MOST_DEPTH, PartKind, describe, lasting_name, parse_path
from mpsd.model.process import Credentials, ProcessId
from tests.inspecting import INSPECTOR
from tests.leaderless import execute, leaderless

ID = "9ec39b91f3d70e1beff50a308f77067065ea6be0d91a3378375056cd4422cf3d"
OTHER = "4f797c539e6c745de61a93ca3ff892358ecbcaccd8414d5db545c38428142970"
POD = "57e67067-89e4-4001-bdd4-8632d39ea02b"
POD_ = POD.replace("-", "_")
STATIC_POD = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"

# what a line identifies -> (for people, names that a lease may use)
LINES = [
    pytest.param(f"0::/system.slice/docker-{ID}.scope", ID, {ID, ID[:12], "system.slice"}, id="docker, systemd, v2"),
    pytest.param(f"12:memory:/docker/{ID}", ID, {ID, "docker"}, id="docker, cgroupfs, v1"),
    pytest.param(f"4:memory:/{ID}", ID, {ID}, id="docker on old Debian"),
    pytest.param(f"0::/docker/{OTHER}/docker/{ID}", ID, {ID, OTHER}, id="docker in docker: the inner one"),
    pytest.param(f"0::/default/{ID}", ID, {ID, "default"}, id="containerd, a namespace"),
    pytest.param(f"0::/system.slice/nerdctl-{ID}.scope", ID, {ID}, id="nerdctl, systemd"),
    pytest.param(
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD_}.slice/cri-containerd-{ID}.scope",
        ID,
        {ID, POD, "kubepods.slice"},
        id="kubernetes, systemd driver, containerd",
    ),
    pytest.param(
        f"11:devices:/kubepods.slice/kubepods-pod{POD_}.slice/crio-{ID}.scope", ID, {ID, POD}, id="... guaranteed, CRI-O, v1"
    ),
    pytest.param(
        f"0::/kubepods.slice/kubepods-pod{POD_}.slice/crio-{ID}.scope/container", ID, {ID, POD}, id="... CRI-O with crun"
    ),
    pytest.param(f"0::/kubepods/besteffort/pod{POD}/{ID}", ID, {ID, POD, "besteffort"}, id="kubernetes, cgroupfs driver"),
    pytest.param(f"0::/kubepods/burstable/pod{POD}/crio-{ID}", ID, {ID, POD}, id="... CRI-O"),
    pytest.param(f"0::/kubepods/burstable/pod{STATIC_POD}/{ID}", ID, {ID, STATIC_POD}, id="... a static pod"),
    pytest.param(
        f"12:cpu,cpuacct:/system.slice/containerd.service/kubepods-besteffort-pod{POD_}.slice:cri-containerd:{ID}",
        ID,
        {ID, POD, "containerd.service"},
        id="k3s: a systemd path with the cgroupfs driver",
    ),
    pytest.param(f"0::/../crio-{ID}.scope", ID, {ID}, id="seen from another cgroup namespace"),
    pytest.param(f"0::/machine.slice/libpod-{ID}.scope/container", ID, {ID, "machine.slice"}, id="podman"),
    pytest.param(f"0::/libpod_parent/libpod-{ID}", ID, {ID}, id="podman, cgroupfs"),
    pytest.param(
        f"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope",
        ID,
        {ID, "user-1000.slice"},
        id="rootless",
    ),
    pytest.param(
        f"0::/machine.slice/libpod-conmon-{ID}.scope", f"libpod-conmon-{ID}.scope", set(), id="a conmon is no container"
    ),
    pytest.param("0::/lxc.payload.web/system.slice/x.service", "web", {"web"}, id="lxc"),
    pytest.param(
        "0::/system.slice/slurmstepd.scope/job_1392969/step_0/user/task_0",
        "job_1392969/step_0",
        {"job_1392969", "job_1392969/step_0"},
        id="slurm, v2",
    ),
    pytest.param(
        "0::/system.slice/node1_slurmstepd.scope/job_7/step_batch/user/task_special",
        "job_7/step_batch",
        {"job_7"},
        id="... several slurmd",
    ),
    pytest.param(
        "10:devices:/slurm/uid_2101171/job_280678/step_interactive/task_0",
        "job_280678/step_interactive",
        {"job_280678", "uid_2101171"},
        id="slurm, v1",
    ),
    pytest.param(
        "9:cpuset:/slurm_node1/uid_1000/job_42/step_extern", "job_42/step_extern", {"job_42"}, id="... with a node's name"
    ),
    pytest.param(
        f"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/docker-{ID}.scope",
        ID,
        {"job_7", ID},
        id="a container in a job",
    ),
    pytest.param("0::/system.slice/inference.service", "inference.service", {"inference.service"}, id="a systemd unit"),
    pytest.param("1:name=systemd:/system.slice/a.service", "a.service", {"a.service"}, id="... v1"),
    pytest.param("0::/system.slice/system-gpu.slice/gpu@0.service", "gpu@0.service", {"gpu@0.service"}, id="... of a template"),
    pytest.param("0::/user.slice/user-1000.slice/session-3.scope", "session-3.scope", {"user-1000.slice"}, id="a login"),
    pytest.param(
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice/x.service (deleted)",
        "x.service",
        {"x.service"},
        id="a user's unit",
    ),
    pytest.param("0::/init.scope", "init.scope", {"init.scope"}, id="init"),
    pytest.param("0::/jobs/job_7", "", {"job_7"}, id="a directory of somebody's"),
]


@pytest.mark.parametrize(("line", "for_people", "words"), LINES)
def test_what_a_line_says(line: str, for_people: str, words: set[str]) -> None:
    [path] = parse_cgroups(f"{line}\n")
    assert describe([path]) == for_people
    assert words <= {word for part in parse_path(path) for word in part.words()}


def test_a_job_is_slurms_only_below_slurm() -> None:
    assert not [part for part in parse_path("/jobs/job_7/step_0") if part.kind in (PartKind.JOB, PartKind.STEP)]


@pytest.mark.parametrize(
    ("path", "believed", "doubted"),
    [
        (f"/user.slice/user@1000.service/docker-{ID}.scope", "user@1000.service", ID),
        (f"/docker/{OTHER}/job_7", OTHER, "job_7"),
        (f"/kubepods/pod{POD}/{OTHER}/{ID}", OTHER, ID),
        ("/user.slice/user@1000.service/slurm/job_7", "user.slice", "job_7"),
    ],
)
def test_names_from_inside_a_container_or_a_users_manager_are_told_apart(path: str, believed: str, doubted: str) -> None:
    """A user may give a cgroup any name, so also that of a container with another user's lease."""
    parts = {word: part for part in parse_path(path) for word in part.words()}
    assert not parts[believed].is_chosen_inside
    assert parts[doubted].is_chosen_inside


def test_all_hierarchies_and_no_roots() -> None:
    text = f"12:cpuset:/\n4:memory:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/\n"
    assert list(parse_cgroups(text)) == [f"/docker/{ID}"] * 2


@pytest.mark.parametrize("text", ["", "\n", "rubbish", "0::", ":", "0::relative", "\x00\n\x0b"])
def test_rubbish_says_nothing(text: str) -> None:
    assert list(parse_cgroups(text)) == []


def test_a_name_with_odd_characters_makes_no_further_line() -> None:
    """A user who may make a cgroup may put anything into its name but a slash and a newline."""
    odd = "/user.slice/user@1000.service/x\x0b0::\x85\u2028\r5:memory:"
    assert list(parse_cgroups(f"0::{odd}\n")) == [odd]


def test_a_path_of_great_depth_is_not_looked_at_to_its_end() -> None:
    assert len(parse_path("/a" * 2000)) == MOST_DEPTH


# -- processes -------------------------------------------------------------------------------------------------------


@contextmanager
def a_process_with(token: str) -> Iterator[ProcessId]:
    """It runs its program: before that, its environment cannot be read."""
    argv = [sys.executable, "-c", "print('ready', flush=True); input()"]
    child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={TOKEN_VARIABLE: token})
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == b"ready\n"
        process = processes.process_id(child.pid)
        assert process is not None
        yield process
    finally:
        child.communicate(b"\n")


async def test_a_process_is_known_by_its_cgroups_and_token() -> None:
    with a_process_with("t" * 20) as process:
        facts = ClientFacts(INSPECTOR)
        await facts.read(process)
        found = facts.identify(process, Credentials(process.pid, 17, 18))
        assert set(found.cgroups) == set(parse_cgroups(cgroups.read_cgroup(process.pid).text))
    assert (found.process, found.uid, found.gid, found.token) == (process, 17, 18, "t" * 20)


async def test_a_process_whose_cgroups_cannot_be_read_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a path of more than 4,096 bytes it was in no cgroup, and ran without the limits of a lease for its cgroup."""
    ask = INSPECTOR._ask
    too_long = OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))

    async def long_path(question: Question, **ways: int) -> tuple[bytes, list[int]]:
        if question.op is InspectorOp.CGROUP:
            raise too_long
        return await ask(question, **ways)

    def long_path_now(pid: int) -> CgroupLook:
        raise too_long

    with a_process_with("") as process:
        facts = ClientFacts(INSPECTOR)
        monkeypatch.setattr(INSPECTOR, "_ask", long_path)
        monkeypatch.setattr(processes.cgroup_reader, "cgroup", long_path_now)
        with pytest.raises(Unreadable, match="its cgroups cannot be read: File name too long"):
            await facts.read(process)
        with pytest.raises(Unreadable, match="its cgroups cannot be read: File name too long"):
            facts.identify(process, Credentials(process.pid, 17, 18))
        assert cgroups.paths(process.pid) == ()
        monkeypatch.undo()
        assert await facts.read(process)
    assert await facts.read(process) == NOTHING, "it has ended"


async def test_a_process_without_its_first_thread_is_not_read() -> None:
    """Its environment reads as empty: without its token, and what lifts its limits, it ran unlimited."""
    with leaderless(env={TOKEN_VARIABLE: "t" * 20}) as made:
        process = processes.process_id(made.pid)
        assert process is not None
        with pytest.raises(Unreadable, match="has ended its first thread"):
            await ClientFacts(INSPECTOR).read(process)


async def test_a_process_that_cannot_be_read_may_lack_its_first_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """With some kernels its user prevents the read for 5 s at a time (docs/decisions/029): it had no token and no cgroup."""

    def unread(pid: int) -> bytes:
        raise Unanswered(errno.ETIMEDOUT, "its reader waits")

    with leaderless(env={TOKEN_VARIABLE: "t" * 20}) as made:
        process = processes.process_id(made.pid)
        assert process is not None
        monkeypatch.setattr(processes.reader, "stat", unread)
        with pytest.raises(Unreadable, match="or could not be read"):
            await ClientFacts(INSPECTOR).read(process)
        with pytest.raises(Unreadable, match="or could not be read"):
            identify(process, Credentials(made.pid, 17, 18))


def test_a_process_that_has_ended_its_first_thread_since_is_in_no_known_cgroup() -> None:
    """Cgroups of version 1 show it in the root.  One of nine that ended the thread between two looks of mpsd was admitted
    without the lease of its cgroup."""
    with leaderless() as made:
        process = processes.process_id(made.pid)
        assert process is not None
        with pytest.raises(Unreadable, match="has ended its first thread"):
            identify(process, Credentials(made.pid, 17, 18))


def test_a_process_with_a_new_first_thread_was_in_no_known_cgroup_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread executed a program after its cgroups were read: it was admitted without the lease of its cgroup."""
    read_cgroup = cgroups.read_cgroup
    with leaderless() as made:
        process = processes.process_id(made.pid)
        assert process is not None

        def read_just_before(pid: int) -> CgroupLook:
            found = read_cgroup(pid)
            execute(made)
            return found

        monkeypatch.setattr(cgroups, "read_cgroup", read_just_before)
        with pytest.raises(Unreadable, match="has ended its first thread"):
            identify(process, Credentials(made.pid, 17, 18))
        monkeypatch.undo()
        assert identify(process, Credentials(made.pid, 17, 18)).process == process


def test_a_process_that_shows_no_cgroup_as_it_is_read_is_in_no_known_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first thread ended and another one took the place by executing a program, both between two looks at the thread: then
    the kernel shows no cgroup, or the root.  Four of 2,100 that tried were admitted without the lease of their cgroup."""
    process = processes.process_id(os.getpid())
    assert process is not None
    stat = processes.reader.stat(process.pid)
    looks = iter([CgroupLook("", stat), CgroupLook("1:memory:/a\n", b""), CgroupLook("1:memory:/a\n", stat)])
    monkeypatch.setattr(processes.cgroup_reader, "cgroup", lambda pid: next(looks))
    monkeypatch.setattr(cgroups, "_ARE_SHOWN", True)
    for why in ("they change, or its first thread does", "has ended its first thread"):
        with pytest.raises(Unreadable, match=why):
            identify(process, Credentials(process.pid, 17, 18))
    assert identify(process, Credentials(process.pid, 17, 18)).cgroups == ("/a",)


async def test_what_mpsd_keeps_of_a_process_is_short_and_a_longer_token_is_none() -> None:
    """16,384 processes that had been started with 60 kB each took a gigabyte of mpsd, or four if one character is no ASCII."""
    with a_process_with("t" * 3000) as process:
        facts = ClientFacts(INSPECTOR)
        assert (await facts.read(process)).variables[TOKEN_VARIABLE] == "t" * 3000
        assert sum(map(len, facts._known[process].variables.values())) == 256
        assert facts.identify(process, Credentials(process.pid, 17, 18)).token == ""


async def test_a_process_with_a_value_of_many_kilobytes_is_not_read() -> None:
    with a_process_with("t" * 60_000) as process:
        facts = ClientFacts(INSPECTOR)
        with pytest.raises(Unreadable, match=f"60000 characters in {TOKEN_VARIABLE}"):
            await facts.read(process)
        assert not facts._known


def test_a_token_that_nobody_may_have_is_none() -> None:
    with a_process_with("") as process:
        assert identify(process, Credentials(process.pid, 0, 0), "t" * 129).token == ""


def test_of_a_process_that_mpsd_cannot_see_only_the_user_is_known() -> None:
    found = identify(None, Credentials(0, 1000, 100))
    assert (found.process, found.uid, found.gid, found.cgroups, found.token) == (None, 1000, 100, (), "")


def test_a_pid_that_means_another_process_meanwhile_says_nothing() -> None:
    """Between the kernel's word and the look, a process may end and its pid be used again."""
    me = processes.process_id(os.getpid())
    assert me is not None
    found = identify(ProcessId(me.pid, me.start_time - 1), Credentials(me.pid, 5, 6))
    assert (found.cgroups, found.token, found.container) == ((), "", "")


def test_a_token_is_not_printed() -> None:
    found = identify(None, Credentials(0, 1, 1))
    assert "token" not in repr(found)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        pytest.param("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0", "job:train:python3", id="Slurm, v2"),
        pytest.param("/slurm/uid_1000/job_42/step_batch/task_0", "job:train:python3", id="Slurm, v1"),
        pytest.param(f"/kubepods/besteffort/pod{POD}/{ID}", f"pod:{POD}", id="Kubernetes, cgroupfs driver"),
        pytest.param(
            f"/kubepods.slice/kubepods-pod{POD_}.slice/cri-containerd-{ID}.scope", f"pod:{POD}", id="Kubernetes, systemd driver"
        ),
        pytest.param(f"/system.slice/containerd.service/kubepods-pod{POD_}.slice:cri-containerd:{ID}", f"pod:{POD}", id="k3s"),
        pytest.param(f"/system.slice/docker-{ID}.scope", f"container:{ID}", id="docker"),
        pytest.param(f"/docker/{OTHER}/kubepods/besteffort/pod{POD}/{ID}", f"container:{OTHER}/{POD}", id="kind"),
        pytest.param("/user.slice/user-7.slice/session-3.scope", "", id="a session is new at each login"),
        pytest.param("/user.slice/user-7.slice/user@7.service/app.slice/a.service", "", id="users name their own units"),
        pytest.param("/system.slice/llm@1.service", "unit:llm@1.service", id="a unit"),
        pytest.param("/system.slice/run-u12.service", "", id="systemd-run"),
        pytest.param("/system.slice/run-p12-i34.service", "", id="systemd-run since 256"),
        pytest.param("/system.slice/ssh@4-10.0.0.1:22-10.0.0.2:999.service", "", id="a service for one connection"),
        pytest.param("/process_api/084740a0102e4af1d9d967548f4265af", "", id="unknown"),
    ],
)
def test_a_lasting_name_is_the_same_at_the_next_start(path: str, name: str) -> None:
    assert lasting_name([path], "train", "python3") == name


def test_a_container_takes_no_other_containers_lasting_name() -> None:
    """A container that may write its own cgroups would otherwise have its faults held against the other one."""
    victim = f"/kubepods/besteffort/pod{POD}/{ID}"
    forged = f"/docker/{OTHER}{victim}"
    assert lasting_name([victim], "", "") != lasting_name([forged], "", "")
    assert lasting_name([forged], "", "").startswith(f"container:{OTHER}/")


def test_a_job_without_a_name_has_no_lasting_one() -> None:
    assert lasting_name(["/slurm/uid_1000/job_42/step_0"], "", "python3") == ""


def test_a_users_mount_at_a_path_of_any_bytes_changes_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file system in user space at a path that is no UTF-8 ended the look at stopped clients, and mpsd with it."""
    table = tmp_path / "mounts"
    monkeypatch.setattr(mounts, "_MOUNTS", table)
    users = b"x /mnt/u/\xff fuse.x rw,nosuid 0 0\n /y fuse rw\n\n"
    table.write_bytes(users + b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    assert cgroups.unified_hierarchy() == Path("/sys/fs/cgroup")
    table.write_bytes(users)
    assert cgroups.unified_hierarchy() is None


@pytest.mark.parametrize("blank", [b"\f", b"\v", b"\r"])
def test_no_name_of_a_users_mount_is_taken_for_the_cgroups(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, blank: bytes
) -> None:
    """Else mpsd writes into that directory to freeze a cgroup: through a link of the user's, into any file."""
    table = tmp_path / "mounts"
    monkeypatch.setattr(mounts, "_MOUNTS", table)
    forged = blank.join([b"a", b"/mnt/u", b"cgroup2"])
    users = b"%b /dev/shm/u fuse.%b rw 0 0\na /dev/shm/%b fuse rw 0 0\n" % (forged, forged, forged)
    table.write_bytes(users + b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n")
    assert cgroups.unified_hierarchy() == Path("/sys/fs/cgroup")
    table.write_bytes(users)
    assert cgroups.unified_hierarchy() is None


def test_a_return_in_the_name_of_a_cgroup_ends_no_line() -> None:
    """Where a user may make cgroups of version 1, one could name any cgroup of version 2 as their own."""
    shown = "1:name=systemd:/user.slice/x\r0::/system.slice/other.service\n0::/user.slice/a\rb\n"
    assert cgroups.unified_path(shown) == "/user.slice/a\rb"
