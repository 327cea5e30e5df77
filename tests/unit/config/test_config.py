"""The configuration: every option checked, all mistakes at once, later layers win, and the pages agree with the options."""

import dataclasses
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mpsd
from mpsd.config import help_text, schema
from mpsd.config.loading import ConfigError, Invocation, changed, load
from mpsd.config.log_options import LogOptions
from mpsd.config.options import OPTIONS, Config, DomainOptions

ROOT = Path(__file__).resolve().parents[3]
NOTHING: dict[str, str] = {"MPSD_CONFIG": os.devnull}  # an empty file, wherever the tests run

SECONDS = "accepted: a number, more than 0, at most 1e9"


def load_text(text: str, directory: Path, environ: dict[str, str] | None = None, **overrides: Any) -> Config:
    file = directory / "mpsd.toml"
    file.write_text(text)
    return load(str(file), environ or {}, overrides)


def refusal(text: str, directory: Path) -> str:
    """The one problem that `text` has, without the name of the file."""
    with pytest.raises(ConfigError) as caught:
        load_text(text, directory)
    (problem,) = caught.value.problems
    assert problem.source == str(directory / "mpsd.toml") or problem.source == "configuration"
    return str(problem).removeprefix(f"{problem.source}: ")


def test_without_a_file_everything_has_its_default() -> None:
    assert load(None, NOTHING) == Config()


def test_the_file_is_read_and_numbers_become_what_they_are_declared_to_be(tmp_path: Path) -> None:
    text = '[domains]\nspares = 2\nidle_seconds = 5\n[limits]\ndefault_device_pinned_mem_limit = {"0" = "4G"}'
    config = load_text(text, tmp_path)
    assert config.domains.spares == 2
    assert config.domains.idle_seconds == 5.0
    assert isinstance(config.domains.idle_seconds, float)
    assert config.limits.default_device_pinned_mem_limit == {"0": "4G"}


def test_later_layers_win(tmp_path: Path) -> None:
    """Default, file, environment, command line."""
    text = 'backend = "gpu"\npipe_directory = "/from/file"\nlog_directory = "/from/file"'
    environ = {"MPSD_BACKEND": "gpu", "CUDA_MPS_PIPE_DIRECTORY": "/from/environ"}
    config = load_text(text, tmp_path, environ, backend="sim")
    assert (config.backend, config.pipe_directory, config.log_directory) == ("sim", "/from/environ", "/from/file")


def test_an_empty_variable_is_an_absent_one() -> None:
    environ = {**NOTHING, "CUDA_MPS_PIPE_DIRECTORY": "", "MPSD_BACKEND": ""}
    assert load(None, environ) == Config()


def test_no_visible_device_is_refused() -> None:
    """Clients of a daemon that sees no device would run without MPS and without limits."""
    with pytest.raises(ConfigError, match='CUDA_VISIBLE_DEVICES: visible_devices: found ""'):
        load(None, {**NOTHING, "CUDA_VISIBLE_DEVICES": ""})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spare = 1", "spare: no such option; did you mean domains.spares?"),
        ("[domain]\nspares = 1", "domain: no such option; did you mean [domains]?"),
        ("[domains]\nspars = 1", "domains.spars: no such option; did you mean domains.spares?"),
        ("[ui]\nspares = 1", "ui.spares: no such option; did you mean domains.spares?"),
        (
            "xyzzy = 1",
            "xyzzy: no such option; accepted: backend, pipe_directory, log_directory, state_directory, visible_devices, nice",
        ),
        (
            "[ui]\nxyzzy = 1",
            "ui.xyzzy: no such option; accepted: ui.max_sessions, ui.admin_group, ui.container_operators, ui.idle_seconds",
        ),
        ("domains = 1", "domains: this is a section: write [domains] and its options below it"),
        ('[domains]\nspares = "two"', 'domains.spares: found "two"; accepted: a whole number, 0 to 8'),
        ("[domains]\nspares = 1.0", "domains.spares: found 1.0 (a number); accepted: a whole number, 0 to 8"),
        ("[domains]\nspares = true", "domains.spares: found true (a boolean); accepted: a whole number, 0 to 8"),
        ("[domains]\nspares = -1", "domains.spares: found -1 (a whole number); accepted: a whole number, 0 to 8"),
        ("[domains]\nspares = [1]", "domains.spares: found [1] (a list); accepted: a whole number, 0 to 8"),
        ("[domains]\nspares = 1979-05-27", "domains.spares: found 1979-05-27 (date); accepted: a whole number, 0 to 8"),
        ("[domains]\nidle_seconds = nan", f"domains.idle_seconds: found nan (a number); {SECONDS}"),
        ("[domains]\nidle_seconds = inf", f"domains.idle_seconds: found inf (a number); {SECONDS}"),
        ("[domains]\nidle_seconds = 0", f"domains.idle_seconds: found 0 (a whole number); {SECONDS}"),
        ('[log]\nlevel = "loud"', 'log.level: found "loud"; accepted: one of "debug", "info", "warning", "error"'),
        ("[log]\nmax_bytes = 1", "log.max_bytes: found 1 (a whole number); accepted: a whole number, 0, or 65536 or more"),
        ('pipe_directory = "mps"', 'pipe_directory: found "mps"; accepted: an absolute path of at most 88 bytes'),
        ('pipe_directory = "/a\\u0000b"', 'pipe_directory: found "/a\\u0000b"; accepted: an absolute path of at most 88 bytes'),
        ('visible_devices = "0;1"', 'visible_devices: found "0;1"; accepted: "all", or ordinals or UUIDs joined by commas'),
        ("[domains]\nspares = 8", "domains.spares: found 8; accepted: less than domains.max_domains, which is 8"),
        (
            "[domains]\nrestart_seconds = 60",
            "domains.restart_seconds: found 60.0; accepted: at most domains.restart_max_seconds, which is 30.0",
        ),
        (
            '[limits]\ndefault_device_pinned_mem_limit = {"0" = "4"}',
            "limits.default_device_pinned_mem_limit: found {'0': '4'} (a table); accepted: a device ordinal or UUID with a "
            'whole number and G or M, as "0" = "4G"',
        ),
    ],
    ids=lambda value: value.replace("\n", " ") if "=" in value else "",
)  # fmt: skip
def test_a_mistake_is_refused_with_what_was_found_and_what_is_accepted(text: str, message: str, tmp_path: Path) -> None:
    assert refusal(text, tmp_path) == message


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "mpsd.toml").write_text('backend = "cpu"\nspare = 1\n[log]\nlevel = 3\n')
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path / "mpsd.toml"), {"CUDA_MPS_LOG_DIRECTORY": "logs"}, {"backend": "tpu"})
    assert [problem.key for problem in caught.value.problems] == ["backend", "spare", "log.level", "log_directory", "backend"]
    assert [problem.source.split()[0] for problem in caught.value.problems[-2:]] == ["environment", "command"]
    assert str(caught.value).count("\n") == 4


@pytest.mark.parametrize("path", ["/nonexistent/mpsd.toml", "/", "/proc/self/mem"])
def test_a_named_file_that_cannot_be_read_is_an_error(path: str) -> None:
    """Otherwise a typing slip would start a daemon with the defaults."""
    for arguments in ((path, {}), (None, {"MPSD_CONFIG": path})):
        with pytest.raises(ConfigError, match=path):
            load(*arguments)


@pytest.mark.parametrize(
    "content",
    [
        b"a = ",
        b"\xff\xfe",
        b"a = 1\na = 2",
        b"[" * 5000,
        b"a = " + b"[" * 50000,
        b"a = " + b"9" * 5000,  # more digits than Python converts
        b"a = 0x" + b"f" * 9999,
    ],
    ids=range(7),
)
def test_a_file_that_is_no_good_toml_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "mpsd.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=r"mpsd\.toml: "):
        load(str(file), {})


@given(st.text(max_size=200))
def test_any_text_in_the_environment_is_accepted_or_refused(text: str) -> None:
    environ = {**NOTHING, **{each.environ: text for each in OPTIONS.values() if each.environ}}
    try:
        config = load(None, environ)
    except ConfigError as exc:
        assert exc.problems
    else:
        assert config.pipe_directory.startswith("/")


leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
values = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
)


@given(st.sampled_from(sorted(OPTIONS)), values)
def test_any_value_of_any_option_is_accepted_or_refused(key: str, value: object) -> None:
    """Every accepted value makes a configuration; every other one a message; nothing else happens."""
    problem = schema.check("here", key, value, OPTIONS)
    if problem is None:
        config = schema.build(Config, {key: value})
        assert schema.value_at(config, key) == value
    else:
        assert "accepted: " in str(problem)


def test_every_option_has_help_and_a_default_that_it_accepts() -> None:
    for each in OPTIONS.values():
        assert each.help.endswith("."), each.key
        assert schema.check("default", each.key, each.default, OPTIONS) is None


def test_every_option_is_read_somewhere() -> None:
    """An option that no code reads is a broken promise."""
    sources = [path.read_text() for path in (ROOT / "mpsd").rglob("*.py") if path.name != "loading.py"]
    unread = [
        key for key in OPTIONS if not any(re.search(rf"(config|new|settings)\.{key_in_code(key)}\b", text) for text in sources)
    ]
    assert not unread


def key_in_code(key: str) -> str:
    """`log` is handed over as a whole; the others are read as config.section.option."""
    return re.escape(key.removeprefix("log."))


def test_the_sample_file_names_every_option_and_changes_nothing(tmp_path: Path) -> None:
    """Values are commented out: an installation that never edits the file follows the defaults of later versions."""
    sample = help_text.render_toml(Config(), commented=True)
    assert load_text(sample, tmp_path) == Config()
    assert all(f"\n#{key.rpartition('.')[2]} = " in sample for key in OPTIONS)


def test_the_values_in_force_can_be_read_back(tmp_path: Path) -> None:
    config = dataclasses.replace(
        Config(),
        pipe_directory="/tmp/ä b",
        domains=DomainOptions(spares=3),
        limits=dataclasses.replace(Config().limits, default_device_pinned_mem_limit={"0": "4G", "GPU-1f": "512M"}),
    )
    assert load_text(help_text.render_toml(config), tmp_path) == config


def test_the_page_agrees_with_the_options() -> None:
    """Generated by `make docs`."""
    assert (ROOT / "docs/configuration.md").read_text() == help_text.render_markdown()


def test_changes_are_told_apart_by_whether_they_need_a_restart() -> None:
    new = dataclasses.replace(
        Config(), backend="sim", domains=DomainOptions(spares=2, per_gpu="never"), log=LogOptions(level="debug")
    )
    assert changed(Config(), new) == (("domains.spares", "log.level"), ("backend", "domains.per_gpu"))
    assert changed(new, new) == ((), ())


def test_a_reload_reads_the_same_layers_again(tmp_path: Path) -> None:
    file = tmp_path / "mpsd.toml"
    file.write_text("[domains]\nspares = 1\n")
    invocation = Invocation(config_file=str(file), overrides={"backend": "sim"})
    first = invocation.load({})
    file.write_text("[domains]\nspares = 2\n")
    assert changed(first, invocation.load({})) == (("domains.spares",), ())


def test_the_version_is_the_same_everywhere() -> None:
    for path in ("pyproject.toml", "clients/kubernetes/pyproject.toml"):
        project = tomllib.loads((ROOT / path).read_text())["project"]
        assert project["version"] == mpsd.__version__
