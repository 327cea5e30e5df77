"""What clients/slurm promises, with real Slurm: each test is a job, or several, of ordinary users.  docs/clusters.md."""

import re

import pytest

from tests.engines.slurm import ALICE, BOB, JOB_SECONDS, Cluster
from tests.engines.transcripts import Transcript
from tests.integration.host import PATIENT
from tests.integration.machine import CLIENTS, PATH, SIMULATOR
from tests.integration.process import wait_for

pytestmark = pytest.mark.root
COUNT = "exec ./smcount\n"
ENVIRONMENT = {
    "PATH": f"{PATIENT}:{PATH}:{CLIENTS}", "LD_LIBRARY_PATH": f"{SIMULATOR}/lib", "MPSD_SIM_DIR": "/run/sim-n1",
    "CUDA_MPS_PIPE_DIRECTORY": "/run/nvidia-mps-n1", "LANG": "C.UTF-8",
}  # fmt: skip
TRAIN = "#!/bin/bash\nsrun counter --seconds 600 --ms 4000\n"
RUN_ON = "echo begun; exec ./counter --seconds 600 --ms 50\n"


def sms(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"(\d+) SMs seen", output)]


@pytest.mark.parametrize(("node", "asked", "seen"), [("n1", "mps:30", 38), ("n2", "shard:2", 32)])
def test_a_job_runs_under_a_lease_of_its_part(cluster: Cluster, node: str, asked: str, seen: int) -> None:
    state, output = cluster.run(f"--gres={asked}", script=COUNT)
    assert (state, sms(output)) == ("COMPLETED", [seen])
    assert cluster.leases(node) == []


def test_a_job_with_a_whole_gpu_or_none_is_left_alone(cluster: Cluster) -> None:
    assert cluster.run("--gres=gpu:1", script=COUNT)[0] == "COMPLETED"
    state, output = cluster.run(script="env\n")
    assert state == "COMPLETED"
    assert "MPSD_LEASE" not in output


def test_prologs_that_start_together_start_one_mpsd(cluster: Cluster) -> None:
    """The loser of the race found `already running`, and its node was drained."""
    cluster.quit("n1")
    job = cluster.submit("--array=0-4", "--gres=mps:20", script=COUNT)
    assert cluster.wait(job) == "COMPLETED"
    assert [sms(cluster.output(f"{job}-{task}")) for task in range(5)] == [[26]] * 5
    assert cluster.drained() == ""


def test_the_end_of_a_job_ends_no_mpsd_under_another_users_job(cluster: Cluster) -> None:
    other = cluster.submit("--gres=mps:30", script=RUN_ON, uid=BOB)
    cluster.wait_for_output(other, "begun")
    daemon = cluster.daemon("n1")
    assert cluster.run("--gres=mps:30", script=COUNT)[0] == "COMPLETED"
    assert cluster.daemon("n1") == daemon
    assert cluster.leases("n1") == [f"slurm-{other}"]
    assert cluster.job_state(other) == "RUNNING"


def test_the_tasks_of_a_step_run_at_once(cluster: Cluster) -> None:
    """Each waits until all have a context; a lease for one process would never get there."""
    run = "./counter --json --seconds 600 --ms 50 > $1.$SLURM_PROCID &"
    task = f"{run} until [ $(grep -l ready $1.? | wc -l) = 3 ]; do sleep 0.1; done; kill $!"
    script = f"srun -n3 bash -c '{task}' task /run/out/step.$SLURM_JOB_ID\n"
    job = cluster.submit("-n3", "--gres=mps:60", script=script)
    assert cluster.wait(job) in ("COMPLETED", "FAILED")
    assert len(cluster.shell(f"ls /run/out/step.{job}.*").split()) == 3


def test_a_step_with_more_tasks_than_the_lease_is_refused(cluster: Cluster) -> None:
    state, output = cluster.run("-n1", "--gres=mps:60", script="srun -n3 --overcommit ./smcount\n")
    assert state == "FAILED"
    assert "more tasks on this node than the job's lease has processes (1)" in output


def test_a_job_without_mpsd_fails_and_the_node_is_not_drained(cluster: Cluster) -> None:
    """It ran without MPS, on all SMs, with status 0."""
    cluster.quit("n1")
    cluster.configure("MPSD_START=false")
    state, output = cluster.run("--gres=mps:30", script=COUNT)
    assert (state, sms(output)) == ("FAILED", [])
    assert "mpsd does not run on n1, and did not start" in output
    assert cluster.drained() == ""
    cluster.configure()
    assert cluster.run("--gres=mps:30", script=COUNT)[0] == "COMPLETED"


def test_a_step_fails_after_mpsd_has_gone_and_its_lease_goes_later(cluster: Cluster) -> None:
    """The Epilog cannot release it either; the next job's Prolog does."""
    script = "echo begun; until [ -e /run/out/go ]; do sleep 0.1; done; srun ./smcount\n"
    job = cluster.submit("--gres=mps:60", script=script)
    cluster.wait_for_output(job, "begun")
    cluster.shell(f"kill -9 {cluster.daemon('n1')}")
    cluster.shell("touch /run/out/go")
    assert cluster.wait(job) == "FAILED"
    assert "mpsd does not answer at /run/nvidia-mps-n1" in cluster.output(job)
    assert cluster.run("--gres=mps:60", script=COUNT)[0] == "COMPLETED"
    assert cluster.leases("n1") == []
    assert cluster.drained() == ""


def test_a_job_whose_lease_does_not_fit_is_told_why(cluster: Cluster) -> None:
    assert cluster.run("--gres=mps:10", script=COUNT)[0] == "COMPLETED"  # mpsd runs now
    cluster.mpsctl("n1", "lease", "create", "others", "--user", "bob", "--sm", "80%")
    try:
        state, output = cluster.run("--gres=mps:30", script=COUNT)
    finally:
        cluster.mpsctl("n1", "lease", "release", "others")
    assert state == "FAILED"
    assert "NO_ROOM" in output
    assert cluster.drained() == ""


def test_a_requeued_job_gets_a_lease_again(cluster: Cluster) -> None:
    job = cluster.submit("--requeue", "--gres=mps:30", script="echo begun $SLURM_RESTART_COUNT\n" + RUN_ON)
    cluster.wait_for_output(job, "begun")
    cluster.shell(f"scontrol requeue {job}")  # it starts after cred_expire; a start forced before that skips the Prolog
    cluster.wait_for_output(job, "begun 1")
    assert cluster.leases("n1") == [f"slurm-{job}"]


def test_an_array_some_of_whose_jobs_are_killed_leaves_nothing(cluster: Cluster) -> None:
    """Those that die in a kernel are not blamed on their neighbours, and the node continues."""
    script = "[ $((SLURM_ARRAY_TASK_ID % 4)) != 0 ] || exec ./faulter killed\nexec ./counter --seconds 1\n"
    job = cluster.submit("--array=0-11", "--gres=mps:15", script=script)
    wait_for("the array", lambda: not cluster.shell(f"squeue -h -j {job} 2>/dev/null; true"), 120.0)
    assert cluster.leases("n1") == []
    assert cluster.mpsctl("n1", "blame") == []
    assert cluster.drained() == ""


@pytest.mark.parametrize("uid", [ALICE, BOB], ids=["alice", "bob"])
def test_a_ticket_is_its_users_alone(cluster: Cluster, uid: int) -> None:
    job = cluster.submit("--gres=mps:30", script=RUN_ON, uid=uid)
    cluster.wait_for_output(job, "begun")
    assert cluster.shell(f"stat -c %u:%a /run/mpsd-slurm-n1/{job}.d/ticket").strip() == f"{uid}:600"


def test_no_user_can_hold_the_lock_of_the_prologs(cluster: Cluster) -> None:
    """Every user could open it, and who held it let each job of the node wait a minute and then be refused."""
    assert cluster.run("--gres=mps:30", script=COUNT)[0] == "COMPLETED"
    held = cluster.host.run("flock", "--nonblock", "/run/mpsd-slurm-n1/lock", "true", uid=BOB)
    assert "Permission denied" in held.stderr


def test_a_pipe_directory_in_a_jobs_private_tmp_is_refused(cluster: Cluster) -> None:
    """As with job_container/tmpfs, which does not start in these namespaces: the script runs here as the job's user."""
    cluster.configure(pipes="/tmp")
    job = cluster.submit("--gres=mps:30", script=RUN_ON)
    cluster.wait_for_output(job, "begun")
    variables = f"SLURM_JOB_ID={job} SLURMD_NODENAME=n1 CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=30"
    as_alice = f"setpriv --reuid={ALICE} --regid={ALICE} --clear-groups env {variables} /etc/slurm/mpsd/task-prolog"
    assert "export MPSD_LEASE=" in cluster.shell(as_alice)
    done = cluster.host.shell(f"unshare --mount sh -c 'mount -t tmpfs none /tmp && exec {as_alice}'")
    assert done.returncode == 1
    assert "if the job has a private /tmp, put the pipe directory below /run" in done.stdout


def test_a_pipe_directory_in_slurmds_private_tmp_is_refused(cluster: Cluster) -> None:
    """As with PrivateTmp in slurmd's unit."""
    cluster.stop_node("n1")
    cluster.start_node("n1", "unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /tmp && exec "$@"', "slurmd")
    try:
        cluster.configure(pipes="/tmp")
        state, output = cluster.run("--gres=mps:30", script=COUNT)
    finally:
        cluster.configure()
        cluster.stop_node("n1")
        cluster.start_node("n1")
    assert (state, sms(output)) == ("FAILED", [])
    assert "slurmd's private /tmp" in output


def test_a_user_cannot_write_a_part_of_the_gpu_into_the_job_s_texts(cluster: Cluster) -> None:
    """The prolog took the last ` GRES=` of all that Slurm prints about a job, and the comment is printed last."""
    state, output = cluster.run("--gres=shard:1", "--comment=a GRES=shard:8", "--job-name=b GRES=shard:7", script=COUNT)
    assert (state, sms(output)) == ("COMPLETED", [16])


def test_a_user_cannot_keep_the_lease_of_a_job_that_has_ended(cluster: Cluster) -> None:
    """The epilog believed what the user had written into the job's file, and left root's lease there for ever."""
    ticket = "/run/mpsd-slurm-$SLURMD_NODENAME/$SLURM_JOB_ID.d/ticket"
    state, _ = cluster.run("--gres=mps:30", script=f"echo refused by me > {ticket}\n")
    assert (state, cluster.leases("n1")) == ("COMPLETED", [])


def test_what_has_no_lease_leaves_no_file(cluster: Cluster) -> None:
    """A lease that was released by hand, or by a restart of the machine, is not looked for again by each later Prolog."""
    job = cluster.submit("--gres=mps:30", script="echo begun; until [ -e /run/out/gone ]; do sleep 0.1; done\n")
    cluster.wait_for_output(job, "begun")
    cluster.mpsctl("n1", "lease", "release", f"slurm-{job}")
    cluster.shell("touch /run/out/gone")
    cluster.wait(job)
    wait_for("its files to go", lambda: job not in cluster.shell("ls /run/mpsd-slurm-n1"))


def test_the_session_of_a_first_user(cluster: Cluster) -> None:
    home = cluster.host.file("/run/out")
    (home / "train.sh").write_text(TRAIN)
    (home / "count.sh").write_text("#!/bin/bash\nsmcount\n")
    transcript = Transcript("slurm")

    def alice(typed: str) -> str:
        done = cluster.host.shell(f"cd /run/out; {typed}", uid=ALICE, environment=ENVIRONMENT, seconds=JOB_SECONDS)
        transcript.add("alice$", typed, done.stdout + done.stderr)
        return done.stdout

    def root(typed: str) -> None:
        transcript.add("root#", typed, cluster.host.shell(typed, environment=ENVIRONMENT).stdout)

    cluster.quit("n1")  # so that the domain is the first one
    assert cluster.run("--gres=mps:10", script=COUNT)[0] == "COMPLETED"
    alice("cat train.sh")
    job = alice("sbatch --gres=mps:30 -n2 -o train.out train.sh").split()[-1]
    output = home / "train.out"
    wait_for("both tasks", lambda: output.exists() and output.read_text().count("first kernel") == 2)
    alice("squeue -o '%.6i %.9P %.9j %.6u %.2t %R'")
    root("mpsctl leases")
    marked = "watched,shield,held"
    wait_for("all marks", lambda: cluster.host.shell("mpsctl clients", environment=ENVIRONMENT).stdout.count(marked) == 2)
    root("mpsctl clients")
    alice("sbatch --wait --gres=mps:25 -o count.out count.sh; cat count.out")
    alice(f"scancel {job}")
    cluster.wait(job)
    root("mpsctl leases")
    cluster.quit("n1")
    cluster.configure("MPSD_START=false")
    alice("sbatch --wait --gres=mps:30 -o later.out count.sh; cat later.out")
    wait_for("idle nodes", lambda: not cluster.shell("squeue -h -t CG"), JOB_SECONDS)
    root("sinfo -N")
    transcript.check()


def test_no_node_was_drained(cluster: Cluster) -> None:
    """Slurm drains a node whose Prolog or Epilog fails."""
    assert cluster.drained() == ""
