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

PURE = (
    "errors", "model", "arena", "fault", "lease", "service", "stop", "options", "vault_options",
    "failover_options", "log_options", "accept", "schema", "visible", "wire", "legacy", "policy",
)  # fmt: skip
# Modules that would let a pure module wait, or do I/O.
IMPURE = {
    "trio", "structlog", "asyncio", "os", "io", "pathlib", "shutil", "socket", "select", "selectors", "signal", "subprocess",
    "sqlite3", "tempfile", "threading", "multiprocessing", "time", "fcntl", "mmap", "ctypes", "logging", "random", "sys",
}  # fmt: skip
ONLY_IN = {"pynvml": "mpsd/gpu/", "cuda": "mpsd/gpu/", "mpsd._native": "mpsd/native.py"}
MEANINGLESS = {"utils", "helpers", "common", "misc", "core", "manager", "util", "helper"}

SEAM_LINES = 250  # look for a seam
MOST_LINES = 400
MOST_FUNCTION_LINES = 60


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text())


def layer(path: Path) -> str:
    """The name of the module or package directly under mpsd."""
    return path.parts[1].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """Dotted names of everything imported anywhere in a module; `from mpsd import x` gives mpsd.x."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module or '.'}.{each.name}" for each in node.names)


def imports() -> Iterator[tuple[Path, str]]:
    for path in MODULES:
        for name in imported(path):
            yield path, name


def test_a_pure_layer_does_not_touch_the_world() -> None:
    """A decision must be testable with values alone."""
    assert not [
        f"{path} is pure and imports {name}"
        for path, name in imports()
        if layer(path) in PURE
        and (name.partition(".")[0] in IMPURE or (name.startswith("mpsd.") and name.split(".")[1] not in PURE))
    ]


def test_drivers_of_devices_are_imported_in_one_place() -> None:
    assert not [
        f"{path} imports {name}, which belongs in {home}"
        for path, name in imports()
        for package, home in ONLY_IN.items()
        if (name + ".").startswith(package + ".") and not str(path).startswith(home)
    ]


def test_only_the_command_line_imports_app() -> None:
    """`app` joins the other modules; none of them may reach into it"""
    joining = {"mpsd/__main__.py", "mpsd/app.py"}
    assert not [f"{path} imports {name}" for path, name in imports() if is_app(name) and str(path) not in joining]


def is_app(name: str) -> bool:
    return name.split(".")[:2] == ["mpsd", "app"]


def test_signals_go_by_pidfd() -> None:
    """A pid may be another process's by the time that a signal reaches it (processes.kill)."""
    assert not [
        f"{path}:{node.lineno}"
        for path in MODULES
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Attribute) and node.attr in ("kill", "killpg") and ast.unparse(node.value) == "os"
    ]


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
        for node in ast.walk(parse(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MOST_FUNCTION_LINES
    ]


def test_every_module_says_what_it_knows() -> None:
    assert not [str(path) for path in MODULES if not ast.get_docstring(parse(path))]
