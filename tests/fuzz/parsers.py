"""The table of all readers of foreign bytes, and the target that drives each with random bytes.

A module that reads bytes is found by its calls (`reads_bytes`, `reads_bytes_in_c`). A target drives it, or NOT_FUZZED has the
reason why none does; test_parsers.py fails for a module with neither, so that a new reader cannot be missed.
"""

import ast
import functools
import re
from pathlib import Path

from tests.fuzz import client_targets
from tests.fuzz.targets import TARGETS

ROOT = Path(__file__).resolve().parents[2]
PYTHON_TARGETS = TARGETS
assert client_targets.CALLS, "its targets are in the same table"

_CLIENT = "clients/c/include/mpsd/code/"
C_TARGETS: dict[str, tuple[str, ...]] = {  # c/NAME.c, and the modules whose readers it drives
    "keeper": ("native/keeper/protocol.c", "native/keeper/table.c"),
    "keeper_peers": ("native/keeper/peers.c",),
    "unpack": (_CLIENT + "pack.h", "clients/c/include/mpsd/pack.h"),
    "answers": tuple(_CLIENT + name for name in ("wire.h", "exchange.h", "ask.h", "take.h", "give.h", "place.h")),
    "state": (_CLIENT + "state_reader.h",),
    "shim_layout": ("clients/shim/layout.c",),
    "inspector": tuple(f"native/inspector/{name}.c" for name in ("main", "facts", "identity", "texts")),
    "front_end_lines": ("clients/control/lines.c", "clients/control/options.c", "clients/control/main.c"),
    "front_end_session": ("clients/control/session.c", "clients/control/quit.c"),
}

_OWN = "reads a file that mpsd alone writes, or root"
_KERNEL = "reads a fixed structure of the kernel's, and no text of others"
_WORDS = "reads the words of whoever starts it, with their own rights"
_BESIDE = "receives; what it received is read by a module that is driven"
NOT_FUZZED: dict[str, str] = {
    "mpsd/__main__.py": _WORDS,
    "mpsd/config/value_checks.py": "reads an option of the configuration, which is root's; the tests have random ones",
    "mpsd/api/protocol_page.py": "writes and reads docs/protocol.md",
    "mpsd/host/arrivals.py": "receives of strangers to close what comes, and reads none of it",
    "mpsd/host/bare_threads.py": "receives a descriptor that mpsd itself has sent, and no bytes that mean anything",
    "mpsd/host/draining.py": "receives of strangers to close what comes, and reads none of it",
    "mpsd/storage/database.py": "reads the struct flock that the kernel fills; SQLite reads the file",
    "mpsd/config/loading.py": "reads the configuration, which is root's; the tests have random ones",
    "mpsd/host/file_handles.py": _KERNEL,
    "mpsd/host/inotify.py": _KERNEL,
    "mpsd/host/inspector_answers.py": "receives answers of mpsd's own process; inspector_messages.py reads them",
    "mpsd/host/inspector_process.py": "receives a descriptor of mpsd's own process, and looks for a word in its status",
    "mpsd/host/mounts.py": "reads the line of one number in /proc/self/mountinfo, in which the kernel escapes names",
    "mpsd/domains/orphaned_daemons.py": _OWN,
    "mpsd/domains/directories.py": "reads a pid file in a private directory",
    "mpsd/faults/store.py": _OWN,
    "mpsd/leases/rows.py": _OWN,
    "mpsd/host/boot_id.py": "reads the kernel's boot id",
    "mpsd/host/datagrams.py": _BESIDE,
    "mpsd/fairness/uid_ranges.py": "reads /etc/subuid, which is root's",
    "mpsd/config/paths.py": "reads /proc/self/mounts for a word",
    "mpsd/faults/rules/incident_json.py": _OWN,
    "mpsd/check/probes.py": "reads what the kernel says of this machine; `mpsd check` alone calls it",
    "mpsd/relay/backlog.py": "reads notes that mpsd alone put into a socket pair of its own",
    "mpsd/relay/client_connection.py": _BESIDE,
    "mpsd/relay/vendor_connection.py": "reads the kernel's count of unread bytes",
    "mpsd/relay/message.py": "passes messages on and does not read them; credentials are the kernel's",
    "mpsd/host/own_process.py": "reads mpsd's own stat",
    "mpsd/host/peers.py": _KERNEL,
    "mpsd/keeper/connections.py": _BESIDE,
    "mpsd/host/sock_diag.py": "reads the kernel's structures; a name of others is between lengths that the kernel wrote",
    "mpsd/keeper/process.py": "opens /dev/null",
    "mpsd/health/loop_watch.py": "reads numbers of its own /proc/self/task/TID/schedstat",
    "mpsd/app/descriptor_limit.py": "opens /dev/null",
    "mpsd/app/instance_lock.py": "compares its own file in the state directory as a whole",
    "mpsd/host/child_reaper.py": "reads numbers of mpsd's own children",
    "mpsd/domains/store.py": _OWN,
    "mpsd/config/schema.py": "reads words of mpsd's own command line and configuration",
    "mpsd/keeper/link.py": _BESIDE,
    "mpsd/sentinel/process.py": "opens /dev/null",
    "mpsd/sentinel/watcher.py": _BESIDE,
    "clients/python/mpsd_client/_imager.py": "reads answers of the imager, which it has started itself",
    "clients/python/mpsd_client/_restoring.py": "reads numbers of blocks that its imager gives",
    "clients/python/mpsd_client/_restored_arena.py": "reads bytes that its imager sets; the layout: _layout.py",
    "mpsd/app/wire_sentinels.py": "reads the answer of mpsd's own check, which it has started itself",
    "mpsd/check/containment_proof.py": _OWN,
    "mpsd/sentinel/self_test.py": "reads lines of the program that it has started itself; reports: sentinel/messages.py",
    "mpsd/images/__main__.py": _WORDS,
    "mpsd/images/stream.py": _BESIDE,
    "mpsd/metrics/live_page.py": "reads the token in a file that is root's or mpsd's; requests: metrics/http.py",
    "native/include/mpsd_image.h": "reads blocks of one size, whose content it hashes",
    "mpsd/images/imager/kernel.py": _OWN,
    "mpsd/services/replicas.py": "reads two numbers of a forward state; any two of them are a count of publishes",
    "clients/python/mpsd_client/_replica.py": "reads the layout that its imager gives: _layout.py",
    "mpsd/images/imager/restoring.py": "writes the files that it opens",
    "mpsd/images/imager/requests.py": "reads requests of the process that has started it, with that one's rights",
    "clients/python/mpsd_client/_peer.py": _KERNEL,
    "clients/python/mpsd_client/_vllm_loader.py": "reads options of the program that it is a part of",
    "clients/mpsctl/mpsctl/standstill.py": "reads the states of threads; the name before each ends at the last bracket",
    "clients/mpsctl/mpsctl/commands/arenas.py": _WORDS,
    "clients/mpsctl/mpsctl/commands/faults.py": _WORDS,
    "clients/mpsctl/mpsctl/commands/services.py": _WORDS,
    "clients/mpsctl/mpsctl/starter/groups.py": "reads numbers of /proc/PID/stat of the starter's own children",
    "native/keeper/main.c": _WORDS,
    "clients/control/start.c": "reads a byte of the daemon that it has started itself",
    "clients/shim/settings.c": "reads the environment of the program that it is a part of",
    "clients/shim/lease.c": "asks mpsd by the C client; what comes is read by pack.h, which is driven",
    "clients/shim/watched.c": "asks mpsd by the C client; what comes is read by pack.h, which is driven",
    "native/include/mpsd_accept.h": "passes a descriptor on; no bytes are read",
    "native/inspector/cgroups.c": "reads the kernel's text, with users' names in it, in a child of its own; questions: main.c",
}

_CALLS = {
    "unpack", "unpack_from", "iter_unpack", "unpackb", "loads", "from_bytes", "fromhex", "recv", "recv_into", "recvmsg",
    "recvmsg_into", "recv_fds", "pread", "read_text", "read_bytes", "receive_some",
}  # fmt: skip
_NAMES = ("parse", "decode", "unpack")
_IN_C = re.compile(
    r"\b(?:recv|recvmsg|recvfrom|read|pread|fread|fgets|getline|strto(?:l|ul|ull|d)|sscanf|accept4|mpsd_unpack_\w+)\("
)
PYTHON_ROOTS = ("mpsd", "clients/python/mpsd_client", "clients/mpsctl/mpsctl")
C_ROOTS = ("native/keeper", "native/inspector", "native/include", "clients/c/include", "clients/shim", "clients/control")


def reads_bytes(text: str) -> bool:
    """Whether a Python module does what readers do: it defines a function that is named like one, or calls what they call."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.lstrip("_").startswith(_NAMES):
            return True
        if isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Attribute) and function.attr in _CALLS:
                return True
            if isinstance(function, ast.Name) and function.id == "open":
                return True
    return False


def reads_bytes_in_c(text: str) -> bool:
    """Return the same for a C file; the simulator does not run in production."""
    without_comments = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return _IN_C.search(without_comments) is not None


@functools.cache
def readers() -> frozenset[str]:
    """Every module that reads bytes, as a path from the root of the checkout."""
    found = {
        path.relative_to(ROOT).as_posix()
        for root in PYTHON_ROOTS
        for path in (ROOT / root).rglob("*.py")
        if reads_bytes(path.read_text())
    }
    for root in C_ROOTS:
        for path in (ROOT / root).rglob("*.[ch]"):
            if "build" not in path.relative_to(ROOT).parts and reads_bytes_in_c(path.read_text()):
                found.add(path.relative_to(ROOT).as_posix())
    return frozenset(found)


def driven() -> set[str]:
    """Modules that a target drives."""
    in_python = (module for target in PYTHON_TARGETS.values() for module in target.modules)
    return {*in_python, *(module for modules in C_TARGETS.values() for module in modules)}
