"""Every command and program that a page shows runs as it is printed (snippets.py), on a host with two simulated GPUs."""

import re
import sys
from itertools import pairwise

import pytest

from tests.integration.host import PATIENT, SIM_DIRECTORY, Host
from tests.integration.machine import PATH, ROOT, SIMULATOR
from tests.integration.snippets import TUTORIALS, Snippet, difference, pages, snippets_of

SNIPPETS = [each for page in pages() for each in snippets_of(page)]
SHOWN = ("", "text", "yaml", "ini")  # languages that nothing runs
COMMANDS = re.compile(r"^(\$ )?(mpsctl|mpsd (check|config)|make|pip|python3?|systemctl|echo|(tests|kmod)/\S+) ", re.MULTILINE)
SECONDS = 25  # of one block
TUTORIAL_SECONDS = 240
ENVIRONMENT = {
    "PATH": f"{PATIENT}:{PATH}",
    "HOME": "/tmp",
    "LD_LIBRARY_PATH": str(SIMULATOR / "lib"),
    "MPSD_SIM_DIR": SIM_DIRECTORY,
    "MPSD_SIM_GPUS": "2",
    "MPSD_SIM_FAST": "1",
    "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
}
# A command that is left out of a block -> why. Of `make` the test asks whether it knows the target.
ELSEWHERE = {
    "systemctl": "no systemd runs: tests/integration/test_service.py",
    "journalctl": "no systemd runs",
    "apt-get": "needs the network",
    "pip": "needs the network: tests/integration/test_packaging.py",
    "dmesg": "the kernel log is this machine's",
}
SETUP = f"""\
for each in usr/share opt srv {str(ROOT)[1:]}; do
	mkdir -p /mnt/upper/$each /mnt/scratch/$each
	mount -t overlay overlay -o lowerdir=/$each,upperdir=/mnt/upper/$each,workdir=/mnt/scratch/$each /$each
done
mkdir -p /opt/mpsd /var/log/nvidia-mps /usr/share/bash-completion/completions /usr/share/zsh/site-functions
ln -s {ROOT}/.venv /opt/mpsd/venv
printf '#!/bin/sh\\nexec {sys.executable} "$@"\\n' > /usr/bin/python3
mkdir -p {ROOT}/.venv/lib/mpsd
ln -sf {ROOT}/clients/shim/libmpsd.so {ROOT}/.venv/lib/mpsd/
ln -s {ROOT}/.venv/bin/mpsctl {ROOT}/.venv/bin/mpsd /usr/bin/
rm -f /usr/bin/python
grep -q ^alice: /etc/passwd || echo 'alice:x:1234:1234::/tmp:/bin/sh' >> /etc/passwd
"""
# What the programs of the pages leave to their reader.
EXAMPLE = '''\
import ctypes
import os
import subprocess

cuda, context = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
def make_context():
    for status in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)):
        assert status == 0

def again(command):
    """Repeat a command, and return a function instead of print: the first event ends the program."""
    subprocess.Popen(["bash", "-c", f"for n in {{1..20}}; do {command}; done >/dev/null"])
    return lambda *words: os._exit(0)
'''
PRELUDE = """\
set -eEu
trap 'echo "failed: $BASH_COMMAND" >&2' ERR
make() { command make -n "$@" >/dev/null; }
running=()
# mpsctl that ends only when it is interrupted: once it is connected, and a service serves
mpsctl() {
	case "$1 ${2-}" in
	"events "*--count*) command mpsctl "$@" ;;
	"events "* | "service run")
		command mpsctl "$@" &
		running+=($!)
		until ls -l /proc/$!/fd 2>/dev/null | grep -q socket; do kill -0 $!; done
		[ "$2" != run ] || until command mpsctl services | grep -q "^$3 .*[0-9]"; do kill -0 $!; done
		;;
	"arena make-room") command mpsctl "$@" || [ $? = 1 ] ;; # it freed less
	*) command mpsctl "$@" ;;
	esac
}
client() { # PID: it runs, and its first kernel has
	while ! kill -0 $1 2>/dev/null; do
		echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid
		tests/clients/bin/counter --seconds 600 --ms 50 --kernel-us 3000 --json > /tmp/client-$1 &
	done
	until grep -q ready /tmp/client-$1; do kill -0 $1; done
}
image_of() { # ARENA IMAGE
	command mpsctl arena create $1 --capacity 64M >/dev/null
	command mpsctl image take $1 --name $2
	command mpsctl arena remove $1
}
members_of() { # SERVICE: one serves, two stand by, the last of them has pid 4711
	member_program
	for rank in 0 1 2; do
		[ $rank != 2 ] || echo 4710 > /proc/sys/kernel/ns_last_pid
		MPSD_SERVICE=$1 python3 member.py --rank $rank --steps 1000000 --pace 0.1 --report /tmp/member-$rank &
		until grep -q "$([ $rank = 0 ] && echo first_step || echo standby)" /tmp/member-$rank; do kill -0 $!; done 2>/dev/null
	done
}
member_program() { ln -sf clients/python/examples/count_service.py member.py; }
fault_under_a_lease() { # fault 1, whose culprit had lease 1
	command mpsctl lease create faulty --user root >/dev/null
	tests/clients/bin/faulter oob_write || true
	until command mpsctl faults | grep -q faulter; do :; done
}
finish() {
	local status
	for each in "${running[@]}"; do
		status=0
		kill $each
		wait $each || status=$?
		[[ $status = 0 || $status = 143 ]]
	done
}
"""

# Of a tutorial: one shell for the whole page, and a mark before each block. Nothing is downloaded or compiled.
SESSION = """\
set -e
trap 'echo "failed: $BASH_COMMAND"' ERR
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
make() { command make -n "$@" >/dev/null; }
"""
MARK = "==== block"


@pytest.fixture
def reader(host: Host) -> Host:
    """Return the machine of a person who reads the page."""
    done = host.shell(SETUP)
    assert done.returncode == 0, done.stderr
    return host


def bash(reader: Host, script: str) -> str:
    """Run it in the checkout, as a person pastes it.  Return its output."""
    place = reader.file("/tmp/snippet")
    place.write_text(f"cd {ROOT}\n{PRELUDE}{script}\nfinish\n")
    words = ["timeout", "--kill-after=1", str(SECONDS), "sh", "-c", "exec bash /tmp/snippet > /tmp/said 2>&1"]
    done = reader.run(*words, environment=ENVIRONMENT, seconds=SECONDS + 10)
    said = reader.file("/tmp/said").read_text()
    assert done.returncode == 0, f"status {done.returncode}\n{said}"
    return said


def run_tutorial(reader: Host, blocks: list[Snippet]) -> list[str]:
    """Run the page from its first block to its last in one shell, as a reader pastes them.  Return what each block printed."""
    script = SESSION + "".join(f"{name}() {{ :; }}\n" for name in ELSEWHERE)
    for each in blocks:
        script += f"{each.given}\necho '{MARK}'\n{each.code}"
    reader.file("/tmp/snippet").write_text(f"cd {ROOT}\n{script}")
    words = ["timeout", "--kill-after=1", str(TUTORIAL_SECONDS), "sh", "-c", "exec bash /tmp/snippet > /tmp/said 2>&1"]
    done = reader.run(*words, environment={"PATH": f"{PATIENT}:{PATH}", "HOME": "/tmp"}, seconds=TUTORIAL_SECONDS + 10)
    said = reader.file("/tmp/said").read_text()
    assert done.returncode == 0, f"status {done.returncode}\n{said}"
    return said.split(f"{MARK}\n")[1:]


def start(reader: Host) -> None:
    bash(reader, "[ -e /tmp/nvidia-mps/control ] || nvidia-cuda-mps-control -d")


def run_sh(reader: Host, snippet: Snippet) -> None:
    if not re.search("nvidia-cuda-mps-control.* -d|mpsd-sim", snippet.code):
        start(reader)
    shadowed = "".join(f"{name}() {{ :; }}\n" for name in ELSEWHERE)
    bash(reader, shadowed + snippet.whole())


def run_console(reader: Host, snippet: Snippet) -> None:
    """Each line after `$` is a command, the next ones its answer; `...` stands for any text."""
    start(reader)
    bash(reader, snippet.given)
    for each in re.split(r"^\$ ", snippet.code, flags=re.MULTILINE)[1:]:
        command, _, answer = each.partition("\n")
        wanted = ".*".join(re.escape(part) for part in answer.split("..."))
        said = bash(reader, f"{command} || true")
        assert re.fullmatch(wanted, said, re.DOTALL), f"{command}\n{said}"


def run_python(reader: Host, snippet: Snippet) -> None:
    start(reader)
    reader.file("/tmp/snippet.py").write_text(snippet.whole())
    reader.file("/tmp/example.py").write_text(EXAMPLE)
    said = bash(reader, "cd /tmp; python3 /tmp/snippet.py")
    for answer in re.findall(r"^ *print\(.*\)  # (.*)$", snippet.code, re.MULTILINE):
        assert answer in said


def run_c(reader: Host, snippet: Snippet) -> None:
    start(reader)
    reader.file("/tmp/snippet.c").write_text(snippet.whole())
    compile_it = "cc -std=c11 -Wall -Wextra -Werror -Iclients/c/include /tmp/snippet.c -o /tmp/snippet.out -pthread -ldl"
    bash(reader, f"{compile_it}; /tmp/snippet.out")


def run_toml(reader: Host, snippet: Snippet) -> None:
    reader.file("/tmp/snippet.toml").write_text(snippet.whole())
    bash(reader, "mpsd config --config /tmp/snippet.toml")


RUNNERS = {"sh": run_sh, "console": run_console, "python": run_python, "c": run_c, "toml": run_toml}


def test_every_command_that_is_left_out_is_on_a_page() -> None:
    shown = "\n".join(each.code for each in SNIPPETS if each.language == "sh" and not each.not_run)
    assert not [name for name in ELSEWHERE if not re.search(rf"\b{name}\b", shown)]


def test_each_block_has_a_language_and_a_reason_if_it_is_not_run() -> None:
    for each in SNIPPETS:
        assert each.language in (*RUNNERS, *SHOWN), f"{each}: {each.language!r}"
        assert each.language in RUNNERS or not each.given + each.not_run, f"{each}: nothing runs it"
        assert each.language or not COMMANDS.search(each.code), f"{each}: these are commands"
        if each.language == "python":
            compile(each.code, str(each), "exec")
        assert not each.not_run or len(each.not_run.split()) > 2, f"{each}: why?"


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.deadline(90)
@pytest.mark.parametrize(
    "snippet",
    [each for each in SNIPPETS if each.language in RUNNERS and not each.not_run and each.page not in TUTORIALS],
    ids=str,
)
def test_what_a_page_shows_runs(snippet: Snippet, reader: Host) -> None:
    RUNNERS[snippet.language](reader, snippet)


def test_a_tutorial_has_commands_and_their_output_alone() -> None:
    for each in SNIPPETS:
        assert each.language != "text" or each.page in TUTORIALS, f"{each}: only a tutorial's output is compared"
        assert each.page not in TUTORIALS or each.language in ("", "sh", "text"), f"{each}: {each.language!r}"


@pytest.mark.parametrize(
    ("shown", "said", "is_equal"),
    [
        ("up 2s, 5 clients\n", "up   1m05s, 12 clients\n", True),
        ("took 1.5 ms\n", "took 2 s\n", True),
        ("pid 5 ... ok\n", "pid 77 of alice is ok\n", True),
        ("pid 5 is ok\n", "pid 77 is not ok\n", False),
        ("one\n", "one\ntwo\n", False),
        ("one\n...\n", "one\ntwo\nthree\n", True),
    ],
)
def test_the_output_of_a_tutorial_may_differ_in_numbers_alone(shown: str, said: str, is_equal: bool) -> None:
    assert (difference(shown, said) == "") is is_equal


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.deadline(TUTORIAL_SECONDS + 60)
@pytest.mark.parametrize("page", TUTORIALS)
def test_a_tutorial_runs_and_prints_what_it_shows(page: str, reader: Host) -> None:
    shown = snippets_of(page)
    blocks = [each for each in shown if each.language == "sh" and not each.not_run]
    said = dict(zip(blocks, run_tutorial(reader, blocks), strict=True))
    for block, after in pairwise(shown):
        if after.language == "text" and (trouble := difference(after.code, said[block])):
            pytest.fail(f"{after}, after {block}\n{trouble}")
