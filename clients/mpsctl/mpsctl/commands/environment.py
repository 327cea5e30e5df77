"""env: print the environment for starting a program.  It works without mpsd."""

import os
import shlex
from collections.abc import Mapping

from mpsctl.arguments import Argument, Command
from mpsctl.session import Session

_DEFAULT_DIRECTORY = "/tmp/nvidia-mps"
CORES = "cores"  # in the pipe directory: docs/faults.md, "Core dumps"
# Without these flags a dump contains GPU memory, takes a second, and ends the program.
FLAGS = (
    "skip_nonrelocated_elf_images", "skip_global_memory", "skip_shared_memory", "skip_local_memory", "skip_constbank_memory",
    "skip_abort",
)  # fmt: skip


# Measured on an H200, with and without mpsd: docs/faults.md, "Core dumps".
CAUTION = (
    "with core dumps on, a program's cudaDeviceSynchronize can return success after a failed kernel (18 of 28 faults "
    "measured): the next CUDA call fails, up to 250 ms later, so check one more call before you believe a result"
)


def env(session: Session) -> int:
    found = variables(directory(session), core_dumps=session.asked.core_dumps)
    if session.asked.core_dumps:  # on standard error: the shell evaluates standard output, and not every shell accepts comments
        print(f"mpsctl env: {CAUTION}", file=session.out.surroundings.stderr)
    session.out.document(found, lambda: "\n".join(f"export {name}={shlex.quote(value)}" for name, value in found.items()))
    return 0


def variables(directory: str, *, core_dumps: bool) -> Mapping[str, str]:
    found = {"CUDA_MPS_PIPE_DIRECTORY": directory}
    if core_dumps:
        found["CUDA_ENABLE_COREDUMP_ON_EXCEPTION"] = "1"
        found["CUDA_COREDUMP_FILE"] = os.path.join(directory, CORES, "core.%h.%p")
        found["CUDA_COREDUMP_GENERATION_FLAGS"] = ",".join(FLAGS)
    return found


def directory(session: Session) -> str:
    """Return the directory of the socket that mpsctl itself uses."""
    socket: str | None = getattr(session.asked, "socket", None)
    if socket is not None:
        return os.path.dirname(os.path.abspath(socket))
    environ = session.out.surroundings.environ
    return environ.get("MPSD_PIPE_DIRECTORY") or environ.get("CUDA_MPS_PIPE_DIRECTORY") or _DEFAULT_DIRECTORY


COMMAND = Command("env", "Print the environment that a program has to be started with, for a shell", env, (
    Argument("--core-dumps", "with CUDA core dumps, by which mpsd knows who made an exception of an SM", is_flag=True),
), 'For a shell: eval "$(mpsctl env --core-dumps)". No mpsd is asked: the directory is that of mpsctl itself. '
   f"Take care: {CAUTION}.")  # fmt: skip
