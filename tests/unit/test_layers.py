"""Import rules and size limits of the project, read from the syntax trees.

One test for each rule; its failure lists every place.
"""

import ast
import functools
import warnings
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted(path.relative_to(ROOT) for path in ROOT.glob("mpsd/**/*.py"))
SOURCES = sorted(
    path.relative_to(ROOT)
    for folder in ("mpsd", "native", "clients", "tests", "kmod")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".py", ".c", ".h") and not {"build", "bin", "_native"} & set(path.relative_to(ROOT).parts)
)

# Who may import whom: a package imports only from packages of a lower rank.  mpsd/__init__.py is free to all.
LAYERS = (
    ("errors", "native", "notify", "threads"),
    ("model", "storage", "fairness"),
    ("wire", "gpu", "host"),
    ("config",),
    ("log",),
    ("keeper", "domains", "leases", "uvm", "check", "images"),
    ("relay", "commands", "stop", "vault", "health", "sentinel"),
    ("faults",),
    ("services",),
    ("api",),
    ("metrics",),
    ("app",),
    ("__main__",),
)
RANK = {package: rank for rank, packages in enumerate(LAYERS, 1) for package in packages}

PURE_PACKAGES = {"errors", "model", "wire", "fairness"}
PURE_FOLDERS = {"rules", "language"}
PURE_MODULES = {
    "config/value_checks.py", "config/schema.py", "config/options.py", "config/log_options.py", "config/vault_options.py",
    "config/service_options.py", "config/sentinel_options.py", "host/inspector_messages.py", "keeper/messages.py",
    "sentinel/messages.py", "stop/rules.py",
}  # fmt: skip
# Modules that would let a pure module wait, or do I/O.
IMPURE = {
    "trio", "structlog", "asyncio", "os", "io", "pathlib", "shutil", "socket", "select", "selectors", "signal", "subprocess",
    "sqlite3", "tempfile", "threading", "multiprocessing", "time", "fcntl", "mmap", "ctypes", "logging", "random", "sys",
}  # fmt: skip
IMAGER = "mpsd/images/imager/"  # a process of its own: the daemon has no CUDA
ONLY_IN = {"pynvml": "mpsd/gpu/", "cuda": IMAGER, "mpsd.images.imager": IMAGER, "mpsd._native": "mpsd/native.py"}
MEANINGLESS = {"utils", "helpers", "common", "misc", "core", "manager", "util", "helper"}

SEAM_LINES = 250  # look for a seam
MOST_LINES = 400
MOST_FUNCTION_LINES = 60


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


@functools.cache
def nodes(path: Path) -> list[ast.AST]:
    return list(ast.walk(parse(path)))


def package_of(path: Path) -> str:
    """The name of the package, or of the module, directly under mpsd."""
    return path.parts[1].removesuffix(".py")


def is_pure(path: Path) -> bool:
    """Whether a module, as a path from the root, decides without I/O."""
    inside = Path(*path.parts[1:])
    return (
        package_of(path) in PURE_PACKAGES
        or bool(PURE_FOLDERS & set(inside.parts[:-1]))
        or str(inside) in PURE_MODULES
        or inside.name == "__init__.py"
    )


@functools.cache
def module_of(name: str) -> Path:
    """The file of a dotted name: of the module itself, or of the module that has the name."""
    while not ((path := Path(*name.split("."))).with_suffix(".py") in MODULES or path / "__init__.py" in MODULES):
        name = name.rpartition(".")[0]
    return path.with_suffix(".py") if path.with_suffix(".py") in MODULES else path / "__init__.py"


def imported(path: Path) -> Iterator[str]:
    """Dotted names of everything imported anywhere in a module; `from mpsd import x` gives mpsd.x."""
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or '.'}.{each.name}" for each in node.names)


def imports() -> Iterator[tuple[Path, str]]:
    for path in MODULES:
        for name in imported(path):
            yield path, name


def imports_of_mpsd() -> Iterator[tuple[Path, Path]]:
    """The modules of mpsd, each with a module of mpsd that it imports."""
    for path, name in imports():
        if name.startswith("mpsd.") and not name.startswith("mpsd._native"):
            yield path, module_of(name)


def test_every_package_has_a_rank() -> None:
    assert {package_of(path) for path in MODULES} - {"__init__"} == set(RANK)


def test_a_package_imports_only_from_lower_ranks() -> None:
    """So the packages form no cycle, and each can be read with those below it alone."""
    assert not [
        f"{path} imports {other}"
        for path, other in imports_of_mpsd()
        if package_of(path) != package_of(other) != "__init__" and RANK[package_of(other)] >= RANK[package_of(path)]
    ]


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    below: dict[Path, set[Path]] = {path: set() for path in MODULES}
    for path, other in imports_of_mpsd():
        below[path] |= {other} - {path}
    while free := [path for path, others in below.items() if not others]:
        for path in free:
            del below[path]
        below = {path: others - set(free) for path, others in below.items()}
    assert not below, "those that are in a circle or import one that is"


def test_a_pure_module_does_not_touch_the_world() -> None:
    """A decision must be testable with values alone."""
    assert not [
        f"{path} is pure and imports {name}" for path, name in imports() if is_pure(path) and name.partition(".")[0] in IMPURE
    ]
    assert not [
        f"{path} is pure and imports {other}" for path, other in imports_of_mpsd() if is_pure(path) and not is_pure(other)
    ]


def test_the_pure_modules_exist() -> None:
    assert not [name for name in PURE_MODULES if Path("mpsd", name) not in MODULES]


def test_drivers_of_devices_are_imported_in_one_place() -> None:
    assert not [
        f"{path} imports {name}, which belongs in {home}"
        for path, name in imports()
        for package, home in ONLY_IN.items()
        if (name + ".").startswith(package + ".") and not str(path).startswith(home)
    ]


def test_signals_go_by_pidfd() -> None:
    """A pid may be another process's by the time that a signal reaches it (processes.kill).  Only clients signal groups: those
    of their own children, whose pids they have not given back."""
    clients = [path for path in SOURCES if path.suffix == ".py" and path.parts[0] == "clients"]
    assert not [
        f"{path}:{node.lineno}"
        for path in (*MODULES, *clients)
        for node in nodes(path)
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os"
        if node.attr == "kill" or (node.attr == "killpg" and path in MODULES)
    ]


def test_mpsd_executes_no_program_while_it_serves_clients() -> None:
    """A client's file that is open in mpsd at that moment can delay the exec for ever: Inspector.start_program."""
    # at the start; and in a process of their own
    before = {Path("mpsd/host/inspector_process.py"), Path("mpsd/check/probes.py"), Path("mpsd/sentinel/self_test.py")}
    before.add(Path("mpsd/images/sending.py"))  # a program of the user
    names = ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen", "Popen", "run_process", "open_process")
    attributes = ((path, node) for path in MODULES for node in nodes(path) if isinstance(node, ast.Attribute))
    found = {path for path, node in attributes if node.attr in names}
    using = {path for path, name in imports() if name.split(".")[0] in ("subprocess", "multiprocessing")}
    assert (found | using) & set(MODULES) == before


def test_what_can_wait_is_read_by_a_process_that_can_be_killed() -> None:
    """Any file of another process below /proc: any user can hold the lock of its directory there (docs/decisions/029)."""
    assert not [f"{path}:{line} reads {name}" for path, line, name in read_of_processes()]


def test_no_file_of_a_cgroup_is_opened_by_mpsd_itself() -> None:
    """Its user makes that wait, and no signal ends the wait: mpsd/host/cgroup_directory.py."""
    files = ("cgroup.freeze", "cgroup.events", "cgroup.procs")
    constants = ((path, node) for path in MODULES for node in nodes(path) if isinstance(node, ast.Constant))
    assert not [f"{path}:{node.lineno}" for path, node in constants if node.value in files]


def test_mounts_are_read_at_the_start_alone() -> None:
    """A user who copies mount namespaces delays that read as long as the user likes (mpsd/host/mounts.py)."""
    tables = ("/proc/self/mounts", "/proc/self/mountinfo")
    reading = {path for path in MODULES for node in nodes(path) if isinstance(node, ast.Constant) and node.value in tables}
    assert reading == {Path("mpsd/host/mounts.py")}
    # besides the start: `mpsd check`, a process of its own
    users = {path for path, name in imports() if name.startswith("mpsd.host.mounts.")}
    assert users == {Path("mpsd/config/paths.py"), Path("mpsd/host/cgroups.py"), Path("mpsd/check/probes.py")}
    calls = ((path, node) for path in MODULES for node in nodes(path) if isinstance(node, ast.Call))
    asking = {path for path, node in calls if ast.unparse(node.func).endswith("unified_hierarchy")}
    assert asking == {Path("mpsd/app/build.py")}


def read_of_processes() -> Iterator[tuple[Path, int, str]]:
    """The names in `f"/proc/{pid}/NAME"`."""
    for path in MODULES:
        for node in nodes(path):
            match node:
                case ast.JoinedStr(values=[ast.Constant("/proc/"), _, ast.Constant(str(rest)), *_]) if rest != "/":
                    yield path, node.lineno, rest.split("/")[1]


def test_imports_are_absolute() -> None:
    assert not [f"{path}: {name}" for path, name in imports() if name.startswith(".")]


def test_a_name_means_something() -> None:
    assert not [str(path) for path in SOURCES if MEANINGLESS & {part.partition(".")[0] for part in path.parts}]


def test_no_file_is_too_long() -> None:
    lengths = {path: len((ROOT / path).read_text().splitlines()) for path in SOURCES}
    large = [f"{path} ({lines})" for path, lines in lengths.items() if SEAM_LINES < lines <= MOST_LINES]
    with warnings.catch_warnings():  # a warning, which pytest would turn into an error
        warnings.simplefilter("default")
        if large:
            warnings.warn(f"over {SEAM_LINES} lines, is there a seam? {', '.join(large)}", stacklevel=1)
    assert not [f"{path} has {lines} lines: find a seam" for path, lines in lengths.items() if lines > MOST_LINES]


def test_no_function_is_too_long() -> None:
    assert not [
        f"{path}: {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in MODULES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MOST_FUNCTION_LINES
    ]


def test_every_module_says_what_it_knows() -> None:
    assert not [str(path) for path in MODULES if not ast.get_docstring(parse(path))]
