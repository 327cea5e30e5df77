"""The shim is found by every way by which a program finds libcuda, and by no other; and programs live as without it."""

import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.native.sim_machine import CLIENTS, ROOT, SIMULATOR, sanitizer_library
from tests.seeds import seeds

SHIM = ROOT / "clients/shim/libmpsd.so"
OURS, DRIVER, NOTHING = "libmpsd.so", "libcuda.so.1", "nothing"
LIVES = [
    "fork_before",
    "fork_after",
    "fork_exec",
    pytest.param("threads", marks=pytest.mark.slow),
    "callback",
    "exit",
    "vm",
    "pitch",
    "others",
    "placed",
]
SOUND = [
    *(f"shim_life {life}" for life in LIVES if isinstance(life, str)),
    "shim_life threads",
    "shim_life reset",
    "shim_found runs 8",
    "shim_life churn 1",
    "wild use_after_free",
]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def built() -> None:
    for directory in ("clients/shim", "tests/clients"):
        subprocess.run(["make", "-s", "-C", ROOT / directory], check=True)


@pytest.fixture
def run(built: None, short_dir: Path) -> Run:
    """Run a program under the shim, on a machine with no daemon; without the shim if `shim` is empty."""

    def run(program: str, *words: str, shim: str = str(SHIM), **variables: str) -> "subprocess.CompletedProcess[str]":
        environment = {
            "LD_LIBRARY_PATH": str(SIMULATOR / "lib"),
            "LD_PRELOAD": " ".join(filter(None, (sanitizer_library(), shim))),
            "CUDA_MPS_PIPE_DIRECTORY": str(short_dir / "pipe"),
            "MPSD_SIM_DIR": str(short_dir / "machine"),
            "MPSD_SIM_FAST": "1",
            "MPSD_LOG": str(short_dir / "log"),
            "ASAN_OPTIONS": "detect_leaks=0",
        }
        done = subprocess.run(
            [CLIENTS / program, *words], env=environment | variables, capture_output=True, text=True, timeout=20, check=False
        )
        assert "Sanitizer" not in done.stderr, done.stderr
        return done

    return run


def said(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """Library and name, one a line."""
    assert (done.returncode, done.stderr) == (0, "")
    return [line.split(maxsplit=1)[1] for line in done.stdout.splitlines()]


def hooks() -> list[tuple[str, str, str, str]]:
    """Name, base, stream, and the rest of each row."""
    text = (ROOT / "clients/shim/hooks.def").read_text()
    return re.findall(r"^(?:OWN|SYNC|WATCH)\((\w+), (\w+), \d+, (LEGACY|PER_THREAD), (.*)", text, re.MULTILINE)


def exported(library: Path) -> set[str]:
    table = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout
    return {line.split()[-1] for line in table.splitlines()}


FOUND = [  # how a program asks, and what it finds; our functions are marked
    ("open cuInit", "*cuInit"),
    ("open cuMemcpyDtoH_v2", "*cuMemcpyDtoH_v2"),
    ("again cuMemAlloc_v2", "*cuMemAlloc_v2"),
    ("next cuInit", "*cuInit"),
    ("proc cuMemAlloc 13000 0", "*cuMemAlloc_v2"),
    ("proc cuMemAlloc 3020 1", "*cuMemAlloc_v2"),
    ("proc cuLaunchKernel 12000 0", "*cuLaunchKernel"),
    ("proc cuLaunchKernel 12000 1", "*cuLaunchKernel"),
    ("proc cuLaunchKernel 12000 2", "*cuLaunchKernel_ptsz"),
    ("proc cuMemcpyDtoH 13000 2", "*cuMemcpyDtoH_v2_ptds"),
    ("proc cuEventSynchronize 13000 2", "*cuEventSynchronize"),
    ("proc cuGetProcAddress 12000 0", "*cuGetProcAddress_v2"),
    ("proc1 cuStreamSynchronize 11040", "*cuStreamSynchronize"),
    ("open cuMemGetInfo_v2", "cuMemGetInfo_v2"),
    ("proc cuCtxCreate 13000 0", "cuCtxCreate_v4"),
    ("proc cuMemCreate 13000 0", "cuMemCreate"),
    ("open cuNothing", NOTHING),
    ("proc cuNothing 13000 0", NOTHING),
    ("version cuInit GLIBC_2.2.5", NOTHING),
]


@pytest.mark.parametrize("shim", [str(SHIM), ""], ids=["with", "without"])
def test_it_is_found_where_the_driver_is(run: Run, shim: str) -> None:
    """By the same name, and only in place of what it knows."""
    words = " , ".join(words for words, _ in FOUND).split()
    lines = said(run("shim_found", *words, shim=shim))
    for (asked, name), line in zip(FOUND, lines, strict=True):
        if name == NOTHING or not shim or name[0] != "*":
            assert line.split()[0] == (NOTHING if name == NOTHING else DRIVER), asked
        else:
            assert line == f"{OURS} {name[1:]}", asked


@pytest.mark.parametrize("shim", [str(SHIM), ""], ids=["with", "without"])
@pytest.mark.parametrize(("how", "before"), [("self", [NOTHING]), ("default", [NOTHING, NOTHING])])
def test_before_there_is_a_libcuda_there_is_nothing(run: Run, how: str, before: list[str], shim: str) -> None:
    """Programs ask for cuInit to find out whether libcuda exists."""
    assert said(run("shim_found", how, "cuInit", shim=shim)) == [*before, f"{OURS if shim else DRIVER} cuInit"]


def test_what_a_libcuda_lacks_stays_absent(run: Run) -> None:
    absent = sorted({name for name, *_ in hooks()} - exported(SIMULATOR / "lib/libcuda.so.1"))
    words = " , ".join(f"open {name}" for name in absent).split()
    assert not absent or set(said(run("shim_found", *words))) == {NOTHING}


def test_switched_off_it_is_not_there(run: Run) -> None:
    words = ["open", "cuInit", ",", "proc", "cuMemAlloc", "13000", "0"]
    assert said(run("shim_found", *words, MPSD_SHIM="off")) == [f"{DRIVER} cuInit", f"{DRIVER} cuMemAlloc_v2"]


@pytest.mark.parametrize("order", ["first", "last"])
def test_another_library_that_stands_in_finds_what_comes_after_it(run: Run, order: str) -> None:
    """By RTLD_NEXT, also in malloc before the libraries are initialised: a library that returned its own function would recurse
    for ever."""
    other = str(CLIENTS / "shim_next.so")
    both = f"{other} {SHIM}" if order == "first" else f"{SHIM} {other}"
    done = run("shim_life", "vm", shim=both, MPSD_SHIELD="absorb")
    assert done.stdout == "PASS\n"
    placed = order == "last"  # then we are asked first, and place it ourselves
    assert done.stderr == f"mallocs 1 allocs {0 if placed else 1}\n"


@pytest.mark.parametrize("shield", ["off", "absorb"])
@pytest.mark.parametrize("words", ["run", pytest.param("runs 8", marks=pytest.mark.slow)])
def test_the_pattern_of_the_static_runtime(run: Run, words: str, shield: str) -> None:
    done = run("shim_found", *words.split(), MPSD_SHIELD=shield)
    assert (done.returncode, done.stdout, done.stderr) == (0, "PASS\n", "")


@pytest.mark.parametrize("shield", [pytest.param("off", marks=pytest.mark.slow), "absorb"])
@pytest.mark.parametrize("life", LIVES)
def test_a_life(run: Run, life: str, shield: str) -> None:
    done = run("shim_life", life, MPSD_SHIELD=shield)
    assert (done.returncode, done.stdout.splitlines()[-1:], done.stderr) == (0, ["PASS"], "")


def test_a_fork_while_another_thread_finds_the_driver_stops_no_child(tmp_path: Path) -> None:
    """The child waited for ever for a thread that it does not have."""
    program = tmp_path / "fork"
    warnings = ("-Wall", "-Wextra", "-Werror")
    source = ROOT / "tests/native/shim_fork.c"
    # The page behind the table has to be the next in memory.
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", *warnings, "-pthread", "-fno-toplevel-reorder", "-o", program, source]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout == "the child: 0, the parent: 0\n"


def test_placed_memory_goes_with_its_context(run: Run) -> None:
    assert run("shim_life", "reset", MPSD_SHIELD="absorb").stdout == "PASS\n"


def test_what_cannot_work_is_told_once(run: Run, short_dir: Path) -> None:
    """Memory that was placed cannot be given away by cuIpcGetMemHandle; what is below MPSD_ARENA_MIN can."""
    assert run("shim_life", "ipc", MPSD_SHIELD="absorb").stdout.splitlines()[0] == "ipc 1"
    assert "cuIpcGetMemHandle" in (short_dir / "log").read_text()
    assert run("shim_life", "ipc", MPSD_SHIELD="absorb", MPSD_ARENA_MIN="5M").stdout.splitlines()[0] == "ipc 0"


@pytest.mark.parametrize("mode", ["overrun", "use_after_free", pytest.param("underrun", marks=pytest.mark.slow)])
def test_a_wild_access_beside_placed_memory_harms_nothing(run: Run, mode: str) -> None:
    """The same access without a shield ends the process's context."""
    done = run("wild", mode, "--json", MPSD_SHIELD="absorb")
    assert done.returncode == 0, done.stdout
    assert '"wrong": 0' in done.stdout
    assert run("wild", mode, "--json").returncode != 0


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in seeds(0, 18))])
def test_guards_keep_out_of_the_way_of_memory(run: Run, short_dir: Path, seed: int) -> None:
    """In any order of allocating and freeing: the driver refuses a guard over memory, and memory over a guard."""
    done = run("shim_life", "churn", str(seed), MPSD_SHIELD="absorb")
    assert (done.returncode, done.stdout, done.stderr) == (0, "PASS\n", "")
    assert not (short_dir / "log").exists()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MPSD_ARENA_MIN", "much"), ("MPSD_SHIELD", "loud"), ("MPSD_LEASE_SM_PERCENT", "-3"), ("MPSD_SHIELD_BAND", "0"),
        ("MPSD_LEASE_WAIT", "1e99"), ("MPSD_LEASE_NAME", "x" * 200), ("MPSD_LOG", "/nowhere/log"),
        ("CUDA_MPS_PIPE_DIRECTORY", "/" + "d" * 200), ("MPSD_ARENA", "../name"),
    ],
)  # fmt: skip
def test_what_is_not_understood_stops_no_program(run: Run, name: str, value: str) -> None:
    done = run("shim_found", "run", **{name: value})
    assert (done.returncode, done.stdout, done.stderr) == (0, "PASS\n", "")


def test_a_log_at_the_limit_of_files_ends_no_program(run: Run, short_dir: Path) -> None:
    """The kernel sends SIGXFSZ to who writes to such a file."""
    log = short_dir / "log"
    log.touch()
    most = 100 << 20  # the simulator has files, too
    os.truncate(log, most)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
    try:
        done = run("shim_found", "run", MPSD_LEASE_SM_PERCENT="25")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (done.returncode, done.stdout, done.stderr, log.stat().st_size) == (0, "PASS\n", "", most)


def test_required_fails_closed_where_nobody_is(run: Run) -> None:
    done = run("shim_found", "run", MPSD_REQUIRED="1")
    assert (done.returncode, done.stdout, done.stderr) == (5, "init(0): 805\n", "")


def test_required_fails_closed_in_a_child_too(run: Run) -> None:
    """It ran without the shim, and so without limits."""
    done = run("shim_life", "fork_refused", MPSD_REQUIRED="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "PASS\n", "")


def test_a_program_without_cuda_notices_nothing(run: Run, short_dir: Path) -> None:
    environment = {"LD_PRELOAD": str(SHIM), "MPSD_REQUIRED": "1", "MPSD_SHIELD": "report", "MPSD_LOG": str(short_dir / "log")}
    done = subprocess.run(["/bin/sh", "-c", "echo well"], env=environment, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr, (short_dir / "log").exists()) == ("well\n", "", False)


def test_the_exports_are_the_hooks_and_nothing_else(built: None) -> None:
    listed = [name for name, *_ in hooks()]
    assert len(listed) == len(set(listed)) > 60
    assert exported(SHIM) == {"dlsym", "dlvsym", *listed}


def test_every_hook_with_streams_has_both_functions() -> None:
    """A program compiled for per-thread default streams would go past the shim."""
    rows = hooks()
    plain = {name for name, _, stream, _ in rows if stream == "LEGACY"}
    for name, base, stream, _ in rows:
        if stream == "PER_THREAD":
            assert name.removesuffix("_ptsz").removesuffix("_ptds") in plain
            assert name.startswith(base)
    streams = {name for name, _, stream, rest in rows if stream == "LEGACY" and "CUstream stream" in rest}
    assert {f"{name}_ptsz" for name in streams} <= {name for name, *_ in rows}


@pytest.mark.slow
@pytest.mark.skipif(bool(os.environ.get("MPSD_SIM_SAN")), reason="the machine's library is sanitized in another way")
def test_a_sanitized_program_runs_under_it(run: Run, short_dir: Path) -> None:
    """Its own dlsym comes before ours, and needs ours before anything has begun."""
    program = short_dir / "sanitized"
    subprocess.run(
        ["gcc", "-D_GNU_SOURCE", "-fsanitize=address,undefined", ROOT / "tests/clients/shim_found.c", "-o", program, "-ldl"],
        check=True,
    )
    done = run(str(program), "run", shim=f"{library_of_gcc('libasan.so')} {SHIM}", MPSD_SHIELD="absorb")
    assert (done.returncode, done.stdout, done.stderr) == (0, "PASS\n", "")


@pytest.fixture(scope="module")
def sanitized(built: None) -> str:
    """The shim with sanitizers, and what has to come before it."""
    subprocess.run(["make", "-s", "-C", ROOT / "clients/shim", "SAN=address,undefined"], check=True)
    return " ".join([*map(library_of_gcc, ("libasan.so", "libubsan.so")), str(ROOT / "clients/shim/build/san/libmpsd.so")])


def library_of_gcc(name: str) -> str:
    return subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.slow
@pytest.mark.skipif(bool(os.environ.get("MPSD_SIM_SAN")), reason="the machine's library is sanitized in another way")
@pytest.mark.parametrize("words", SOUND)
def test_the_shim_itself_is_sound(run: Run, sanitized: str, words: str) -> None:
    """Sanitizers check all of its memory accesses."""
    done = run(*words.split(), shim=sanitized, MPSD_SHIELD="absorb")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["misuse", "order", "names", "fork_after_init", "overrun"])
@pytest.mark.parametrize("shield", ["off", "absorb"])
def test_a_program_in_python_sees_the_same_driver(built: None, short_dir: Path, verb: str, shield: str) -> None:
    """By ctypes: each call, each error."""

    def see(shim: str) -> dict[str, object]:
        environment = {"LD_LIBRARY_PATH": str(SIMULATOR / "lib"), "MPSD_SIM_DIR": str(short_dir / "machine"),
                       "MPSD_SIM_FAST": "1", "CUDA_MPS_PIPE_DIRECTORY": str(short_dir), "LD_PRELOAD": shim,
                       "MPSD_SHIELD": shield, "MPSD_ARENA_MIN": "1"}  # fmt: skip
        command = [sys.executable, str(ROOT / "tests/native/sim_driver.py"), verb]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=True)
        assert done.stderr == ""
        return {name: value for name, value in json.loads(done.stdout).items() if name != "ms"}

    if verb == "overrun":  # its range is laid where the driver would have put the memory
        shield = "off"
    assert see(str(SHIM)) == see("")
