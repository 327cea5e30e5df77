"""How processes are ended: every manner's steps, who may be signalled, and who is in a cgroup or a container."""

import pytest

from mpsd.model.process import ProcessId
from mpsd.model.reach import EVERYTHING, NOTHING, Bound, bound_of
from mpsd.model.stop import Asker, Manner, Step, Stopped, Target, TargetKind, Way
from mpsd.stop import rules

ID = "0123456789abcdef" * 4
POD = "/kubepods.slice/kubepods-pod11111111_2222_3333_4444_555555555555.slice"
OPERATOR, USER = Asker(None, 10), Asker(1000, 11)

# way, grace, has GPU work, what is done with it
PLANS = [
    (Way.TERMINATE, 0, False, "sigkill"),
    (Way.TERMINATE, 5, False, "sigterm sigkill"),
    (Way.DRAIN, 0, False, "sigkill"),
    (Way.DRAIN, 5, False, "sigterm sigkill"),
    (Way.TERMINATE, 0, True, "terminate sigkill"),
    (Way.TERMINATE, 5, True, "terminate sigterm sigkill"),
    (Way.DRAIN, 0, True, "freeze drain thaw terminate sigkill"),
    (Way.DRAIN, 5, True, "freeze drain thaw terminate sigterm sigkill"),
]


@pytest.mark.parametrize(("way", "grace", "is_client", "steps"), PLANS)
def test_a_manner_has_its_steps(way: Way, grace: float, is_client: bool, steps: str) -> None:
    assert " ".join(rules.plan(Manner(way, grace_seconds=grace, drain_seconds=1), is_client)) == steps


@pytest.mark.parametrize("way", Way)
@pytest.mark.parametrize("grace", [0, 5])
@pytest.mark.parametrize("force", [False, True])
def test_no_signal_that_ends_comes_before_the_gpu_work_has_ended(way: Way, grace: float, force: bool) -> None:
    """SIGTERM with its default action harms co-runners as SIGKILL does."""
    steps = rules.plan(Manner(way, grace, 1, force), is_client=True)
    assert steps.index(Step.TERMINATE) < min(steps.index(each) for each in (Step.SIGTERM, Step.SIGKILL) if each in steps)


def test_every_step_is_in_the_order_in_which_it_is_declared() -> None:
    for way, grace, is_client, _ in PLANS:
        steps = rules.plan(Manner(way, grace), is_client)
        assert list(steps) == [step for step in Step if step in steps]


@pytest.mark.parametrize(
    ("refusals", "force", "may"),
    [([], False, True), ([], True, True), (["d1 does not answer"], False, False), (["server 5 says '999'"], True, True)],
)
def test_who_has_work_that_was_not_ended_is_killed_by_force_alone(refusals: list[str], force: bool, may: bool) -> None:
    why = rules.why_not_kill(refusals, Manner(force=force))
    assert (why == "") is may
    assert may or refusals[0] in why


def test_one_that_was_left_has_not_ended() -> None:
    assert not Stopped(ProcessId(1, 1), "d", (), "because").has_ended
    assert Stopped(ProcessId(1, 1), "d", (Step.SIGKILL,)).has_ended


BRANCHES = [
    # kind, value, paths of the process, the target's directory
    ("cgroup", "/a/b", ["/a/b"], "/a/b"),
    ("cgroup", "/a/b/", ["/a/b/c"], "/a/b"),
    ("cgroup", "/a/b", ["/a/bc"], None),
    ("cgroup", "/a/b", ["/a"], None),
    ("cgroup", "/", ["/a"], None),
    ("cgroup", "job_7", ["/system.slice/slurmstepd.scope/job_7/step_0/user/task_0"], "/system.slice/slurmstepd.scope/job_7"),
    ("cgroup", "job_7", ["/slurm/uid_1000/job_70/step_0"], None),
    ("cgroup", "train.service", ["/memory", "/system.slice/train.service"], "/system.slice/train.service"),
    ("container", ID, [f"/system.slice/docker-{ID}.scope"], f"/system.slice/docker-{ID}.scope"),
    ("container", ID[:12], [f"{POD}/cri-containerd-{ID}.scope"], f"{POD}/cri-containerd-{ID}.scope"),
    ("container", ID[:11], [f"/docker/{ID}"], None),
    ("container", "train.service", ["/system.slice/train.service"], None),
    ("container", ID, [f"/docker/{ID}/inner"], f"/docker/{ID}"),
    ("cgroup", "job_7", [], None),
]


@pytest.mark.parametrize(("kind", "value", "paths", "expected"), BRANCHES)
def test_who_is_in_a_target(kind: str, value: str, paths: list[str], expected: str | None) -> None:
    assert rules.branch(paths, Target(TargetKind(kind), value), OPERATOR) == expected


def test_a_name_that_was_chosen_inside_counts_for_ones_own_processes_alone() -> None:
    """A user in a container could give a cgroup the name of another job."""
    paths, target = [f"/docker/{ID}/slurm/job_7"], Target(TargetKind.CGROUP, "slurm")
    assert rules.branch(paths, target, OPERATOR) is None
    assert rules.branch(paths, target, USER) == f"/docker/{ID}/slurm"


def test_the_container_of_a_process_is_the_innermost() -> None:
    inner = ID[::-1]
    assert rules.container_of([f"/docker/{ID}/docker/{inner}"]) == inner
    assert rules.container_of(["/", "/system.slice/x.service"]) is None


OURS, CONTAINER, NESTED, OTHER = (1,), (5, 1), (7, 5, 1), (6, 1)
INSIDE = Asker(1000, 11, 5)


@pytest.mark.parametrize(
    ("asker", "owner", "namespaces", "may"),
    [
        (OPERATOR, 1000, (), True),
        (OPERATOR, None, OURS, True),
        (USER, 1000, OURS, True),
        (USER, 1000, CONTAINER, True),
        (USER, 1001, OURS, False),
        (USER, None, OURS, False),
        (INSIDE, 1000, CONTAINER, True),
        (INSIDE, 1000, NESTED, True),
        (INSIDE, 1000, OURS, False),
        (INSIDE, 1000, OTHER, False),
        (INSIDE, 1000, (), False),
        (INSIDE, 1001, CONTAINER, False),
        (Asker(1000, 0, NOTHING), 1000, OURS, False),
        (Asker(1000, 0, NOTHING), 1000, (), False),
    ],
)
def test_who_may_end_whom(asker: Asker, owner: int | None, namespaces: tuple[int, ...], may: bool) -> None:
    """A user's own processes; from inside a container those of its own pid namespace and below."""
    assert asker.may_end(owner, namespaces) is may


@pytest.mark.parametrize(("namespaces", "bound"), [((), NOTHING), (OURS, EVERYTHING), (CONTAINER, 5), (NESTED, 7)])
def test_a_caller_is_bound_by_its_own_pid_namespace(namespaces: tuple[int, ...], bound: Bound) -> None:
    assert bound_of(namespaces) == bound


@pytest.mark.parametrize(
    ("directory", "asker", "may_name", "may_freeze"),
    [
        ("/kubepods.slice", INSIDE, False, False),
        (f"/docker/{ID[::-1]}", INSIDE, False, False),
        (f"/docker/{ID}", INSIDE, True, True),
        (f"/docker/{ID}/inner", INSIDE, True, True),
        (f"/docker/{ID}x", INSIDE, False, False),
        ("/kubepods.slice", USER, True, False),
        ("/kubepods.slice", OPERATOR, True, True),
    ],
)
def test_which_cgroups_may_be_stopped_and_frozen(directory: str, asker: Asker, may_name: bool, may_freeze: bool) -> None:
    """A cgroup above the caller's own is not frozen as a whole: other users' processes may enter it meanwhile."""
    own = rules.territory([f"/docker/{ID}/job"])
    assert own == [f"/docker/{ID}"]
    assert (asker.may_name(directory, own), asker.may_freeze(directory, own)) == (may_name, may_freeze)


def test_who_is_in_no_container_has_its_own_cgroup() -> None:
    assert rules.territory(["/user.slice/session-3.scope", "/x"]) == ["/user.slice/session-3.scope", "/x"]
    assert rules.territory([]) == []
