"""A Slurm cluster on one machine: slurmctld, munge and two nodes, real ones, in the namespaces of a Host; two users.

Each node has a simulated GPU and an mpsd of its own.  Slurm gives no search path to its scripts, and no variable of slurmd's.
"""

import json
import re
import shutil
import socket
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.integration.host import PATIENT, Host
from tests.integration.machine import CLIENTS, PATH, PROGRAM, ROOT, SIMULATOR
from tests.integration.process import wait_for

NODES = ("n1", "n2")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "munged")
SCRIPTS = ROOT / "clients/slurm"
ALICE, BOB = 2001, 2002
SETTLE_SECONDS, JOB_SECONDS = 30.0, 60.0
OVER = frozenset(["COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"])

SLURM_CONF = """\
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
CredType=cred/munge
StateSaveLocation=/run/slurm/state
SlurmdSpoolDir=/run/slurm/spool-%n
SlurmctldPidFile=/run/slurm/slurmctld.pid
SlurmdPidFile=/run/slurm/slurmd-%n.pid
SlurmctldLogFile=/run/slurm/slurmctld.log
SlurmdLogFile=/run/slurm/slurmd-%n.log
ReturnToService=2
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu,mps,shard
KillWait=2
MessageTimeout=30
PrologFlags=Alloc,Contain
Prolog=/etc/slurm/mpsd/prolog
Epilog=/etc/slurm/mpsd/epilog
TaskProlog=/etc/slurm/mpsd/task-prolog
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} CPUs=64 Gres=gpu:1,mps:100
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} CPUs=64 Gres=gpu:1,shard:8
PartitionName=all Nodes=ALL Default=YES
"""
GRES_CONF = """\
NodeName=n1 Name=gpu File=/dev/null
NodeName=n1 Name=mps Count=100 File=/dev/null
NodeName=n2 Name=gpu File=/dev/null
NodeName=n2 Name=shard Count=8 File=/dev/null
"""
SETTINGS = """\
CUDA_MPS_PIPE_DIRECTORY={pipes}/nvidia-mps-$SLURMD_NODENAME
MPSD_JOBS=/run/mpsd-slurm-$SLURMD_NODENAME
MPSD_SHARDS=8
{more}
export CUDA_MPS_LOG_DIRECTORY=/var/log/nvidia-mps-$SLURMD_NODENAME MPSD_SIM_DIR=/run/sim-$SLURMD_NODENAME MPSD_SIM_FAST=1
"""
SET_UP = f"""\
printf 'alice:x:{ALICE}:{ALICE}::/:/bin/bash\\nbob:x:{BOB}:{BOB}::/:/bin/bash\\n' >> /etc/passwd
printf 'alice:x:{ALICE}:\\nbob:x:{BOB}:\\n' >> /etc/group
mkdir -p /run/slurm/state /run/munge /run/out /etc/slurm/mpsd /var/log/munge
chmod 1777 /run/out
install -o munge -m 400 /dev/null /etc/munge/munge.key
head -c 64 /dev/urandom > /etc/munge/munge.key
chown munge: /run/munge /etc/munge /var/log/munge
cp {SCRIPTS}/* /etc/slurm/mpsd/
ln -sf {Path(sys.executable).with_name("mpsctl")} /usr/bin/mpsctl
setpriv --reuid=munge --regid=munge --clear-groups munged --force
slurmctld
"""
PRELUDE = f"""\
#!/bin/bash
export PATH={PATIENT}:{PATH} LD_LIBRARY_PATH={SIMULATOR}/lib MPSD_SIM_DIR=/run/sim-$SLURMD_NODENAME
cd {CLIENTS}
"""


def missing() -> str:
    """Return what this machine lacks for a cluster; empty: nothing."""
    lacking = [program for program in PROGRAMS if not shutil.which(program)]
    return f"needs {', '.join(lacking)}: apt-get install slurm-wlm munge" if lacking else ""


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]


class Cluster:
    """Guards that a wait ends, and that what the nodes run is configured by the files that clients/slurm ships."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._jobs = 0

    # -- the nodes ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self.host.file("/etc/slurm/gres.conf").write_text(GRES_CONF)
        self.host.file("/etc/slurm/cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.host.file("/etc/slurm/slurm.conf").write_text(SLURM_CONF.format(ports=_free_ports(1 + len(NODES))))
        self.shell(SET_UP)
        self.configure()
        for node in NODES:
            self.start_node(node)

    def start_node(self, node: str, *before: str) -> None:
        """before: a command that starts slurmd, as `unshare` with its words."""
        done = self.host.run(*before, "slurmd", "-N", node)
        assert done.returncode == 0, done
        wait_for(f"node {node}", lambda: self.state_of(node) in ("idle", "mix"), SETTLE_SECONDS)

    def stop_node(self, node: str) -> None:
        pid = self.host.file(f"/run/slurm/slurmd-{node}.pid").read_text().strip()
        self.shell(f"kill {pid}; while kill -0 {pid} 2>/dev/null && ! grep -q '^State:.Z' /proc/{pid}/status; do :; done")

    def configure(self, more: str = "", pipes: str = "/run") -> None:
        """Write the settings of the scripts."""
        self.host.file("/etc/slurm/mpsd/settings").write_text(SETTINGS.format(more=more, pipes=pipes))

    def state_of(self, node: str) -> str:
        """Return its state as sinfo has it; nothing while slurmctld starts."""
        return self.host.shell(f"sinfo -h -n {node} -o %t").stdout.strip()

    def drained(self) -> str:
        """Return the nodes that take no jobs, with the reasons."""
        return self.shell("sinfo -h -R -o '%n %E'")

    def shell(self, script: str, uid: int = 0) -> str:
        done = self.host.shell(script, uid=uid, seconds=JOB_SECONDS)
        assert done.returncode == 0, done
        return done.stdout

    # -- mpsd --------------------------------------------------------------------------------------------------------

    def mpsctl(self, node: str, *words: str) -> Any:
        """Return the document of a command."""
        environment = {"CUDA_MPS_PIPE_DIRECTORY": f"/run/nvidia-mps-{node}"}
        done = self.host.run("/usr/bin/mpsctl", *words, "--json", environment=environment)
        assert done.returncode == 0, done
        return json.loads(done.stdout)

    def leases(self, node: str) -> list[str]:
        return [lease["name"] for lease in self.mpsctl(node, "leases")]

    def daemon(self, node: str) -> str:
        """Return the pid of the node's mpsd, in the host's pid namespace."""
        return self.host.file(f"/run/nvidia-mps-{node}/{PROGRAM}.pid").read_text().strip()

    def quit(self, node: str) -> None:
        """End the node's mpsd, if it runs."""
        self.host.shell(f"echo quit | CUDA_MPS_PIPE_DIRECTORY=/run/nvidia-mps-{node} {PROGRAM}")

    # -- jobs --------------------------------------------------------------------------------------------------------

    def submit(self, *words: str, script: str, uid: int = ALICE) -> str:
        """Return the job's number."""
        self._jobs += 1
        file = self.host.file(f"/run/out/job-{self._jobs}.sh")
        file.write_text(PRELUDE + script)
        is_array = any(word.startswith("--array") for word in words)
        output = ["-o", f"/run/out/{'%A-%a' if is_array else '%j'}.out"]
        done = self.host.run("sbatch", "--parsable", *output, *words, f"/run/out/{file.name}", uid=uid)
        assert done.returncode == 0, done
        return done.stdout.strip()

    def job_state(self, job: str) -> str:
        """Return the state of a job, of an array once it is the same for all."""
        found = re.findall(r"JobState=(\S+)", self.shell(f"scontrol -o show job {job}"))
        return found[0] if len(set(found)) == 1 else ""

    def wait(self, job: str) -> str:
        """Return the job's last state, once its Epilog has ended too."""
        state = wait_for(f"the end of job {job}", lambda: self.job_state(job) in OVER and self.job_state(job), JOB_SECONDS)
        wait_for("idle nodes", lambda: not self.shell("squeue -h -t CG"), JOB_SECONDS)
        return state

    def run(self, *words: str, script: str, uid: int = ALICE) -> tuple[str, str]:
        """Return the last state of a job, and its output."""
        job = self.submit(*words, script=script, uid=uid)
        return self.wait(job), self.output(job)

    def output(self, job: str) -> str:
        return self.host.file(f"/run/out/{job}.out").read_text()

    def wait_for_output(self, job: str, words: str) -> None:
        path = self.host.file(f"/run/out/{job}.out")
        wait_for(f"{words} of job {job}", lambda: path.exists() and words in path.read_text(), JOB_SECONDS)

    def cancel_all(self) -> None:
        self.shell("squeue -h -o %A | sort -u | xargs -r scancel")
        wait_for("an empty queue", lambda: not self.shell("squeue -h"), JOB_SECONDS)
