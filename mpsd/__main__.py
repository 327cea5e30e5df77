"""The command line: argv becomes an Invocation and a Config, then one of four commands runs.

    serve     the daemon; what the front end runs for -d and -f         mpsd/app/start.py
    check     checks the machine and the configuration                  mpsd/check/report.py
    config    every option, annotated                                   mpsd/config/help_text.py
    --version
"""

import argparse
import gc
import os
import sys
from collections.abc import Sequence

from mpsd import __version__
from mpsd.app import readiness
from mpsd.config.loading import ConfigError, Invocation
from mpsd.config.options import Config
from mpsd.host.command_line import Parser


def main(argv: Sequence[str]) -> int:
    """Run the command line `argv` and return the exit status."""
    arguments, unknown = parse_arguments(argv)
    if arguments.command == "serve":
        return serve(arguments)  # unknown words are ignored, as the vendor's program ignores them
    if unknown:
        print(f'mpsd: unknown argument "{unknown[0]}"; see mpsd --help', file=sys.stderr)
        return 2
    if arguments.command == "check" or arguments.check:
        return check(arguments)
    if arguments.command == "config":
        return show_config(arguments)
    print("mpsd: missing: COMMAND, one of serve, check and config; see mpsd --help", file=sys.stderr)
    return 2


def parse_arguments(argv: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the parsed known words, and the unknown ones.

    Exits for --help, --version, and a known option with a bad value.
    """
    shared = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    shared.add_argument("--config", metavar="FILE", help="read this instead of /etc/mpsd/mpsd.toml")
    shared.add_argument("--backend", help="gpu or sim, over environment and file")
    report = Parser(add_help=False, argument_default=argparse.SUPPRESS)
    report.add_argument("--json", action="store_true", help="check: print JSON")
    tested = "check: cause an SM exception among clients of mpsd's own, and test that a sentinel contains it"
    report.add_argument("--gpu", action="store_true", help=tested)
    title = "The daemon behind nvidia-cuda-mps-control, which starts it: see that program's --help.  mpsctl asks it things."
    parser = Parser(prog="mpsd", description=title, parents=[shared, report], allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"mpsd {__version__}")
    parser.add_argument("--check", action="store_true", help="the same as the command check")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    serving = commands.add_parser("serve", help="Run the daemon", parents=[shared], allow_abbrev=False)
    place = serving.add_mutually_exclusive_group()
    place.add_argument("--foreground", action="store_true", help="log to standard error (the default)")
    place.add_argument("--background", action="store_true", help="log to LOG_DIR/mpsd.log")
    serving.add_argument("--multiuser-server", action="store_true", help="one server for all users")
    serving.add_argument("--static-partitioning", action="store_true", help="as the vendor's -S, which drivers from 590 know")
    serving.add_argument("--ready-devices", action="store_true", help="as the vendor's -q")
    serving.add_argument("--ready-fd", type=int, metavar="N", help="descriptor to answer when ready; the front end's")
    commands.add_parser("check", help="Check configuration and machine", parents=[shared, report], allow_abbrev=False)
    showing = commands.add_parser("config", help="Show every option", parents=[shared], allow_abbrev=False)
    showing.add_argument("--print", action="store_true", help="annotated TOML: values in force (the default)")
    showing.add_argument("--defaults", action="store_true", help="the sample file: annotated TOML, every value commented out")
    showing.add_argument("--markdown", action="store_true", help="docs/configuration.md")
    return parser.parse_known_args(argv)


def parse_invocation(arguments: argparse.Namespace) -> Invocation:
    overrides = {"backend": arguments.backend} if "backend" in arguments else {}
    return Invocation(
        foreground=not getattr(arguments, "background", False),
        multiuser_server=getattr(arguments, "multiuser_server", False),
        static_partitioning=getattr(arguments, "static_partitioning", False),
        ready_devices=getattr(arguments, "ready_devices", False),
        ready_fd=getattr(arguments, "ready_fd", None),
        config_file=getattr(arguments, "config", None),
        overrides=overrides,
    )


def serve(arguments: argparse.Namespace) -> int:
    """Run the daemon.  A reason why it cannot start is printed, and sent to the front end, which shows it to the user."""
    invocation = parse_invocation(arguments)
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]  # structlog would import it if installed: 4 MiB for nothing
    try:
        config = invocation.load(os.environ)
        gc.disable()  # modules stay loaded: collecting garbage while they load is a tenth of the time of a start
        from mpsd.app import start  # --version does not need the time to import trio and the rest

        gc.freeze()  # later collections, during requests or at the end, do not scan them either
    except (ConfigError, ImportError) as exc:
        why = str(exc) if isinstance(exc, ConfigError) else f"mpsd is not installed completely: {exc}"
        print(why, file=sys.stderr)
        readiness.answer_ready(invocation.ready_fd, 1, f"{why}\n")
        return 1
    except BaseException as exc:  # without memory, for one: in the background, no user sees what Python prints
        readiness.answer_ready(invocation.ready_fd, 1, f"mpsd failed: {exc!r}\n")
        raise
    finally:
        gc.enable()
    return start.main(config, invocation)


def check(arguments: argparse.Namespace) -> int:
    from mpsd.check import report as check

    more: list[check.Probe] = []
    if "gpu" in arguments:
        from mpsd.sentinel.self_test import probe_containment

        more.append(probe_containment)
    return check.main(parse_invocation(arguments), os.environ, more, as_json="json" in arguments)


def show_config(arguments: argparse.Namespace) -> int:
    from mpsd.config import help_text

    if arguments.markdown:
        print(help_text.render_markdown(), end="")
        return 0
    if arguments.defaults:
        print(help_text.render_toml(Config(), commented=True), end="")
        return 0
    try:
        print(help_text.render_toml(parse_invocation(arguments).load(os.environ)), end="")
    except ConfigError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


def run() -> None:
    """Run the entry point that pip installs."""
    sys.exit(main(sys.argv[1:]))


if __name__ == "__main__":
    run()
