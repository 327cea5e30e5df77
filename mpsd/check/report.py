"""`mpsd check`: is the configuration valid, and is this machine fit for it?  A report for people, or JSON.

probes.py has the individual checks.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import asdict

from mpsd import __version__
from mpsd.check.probes import Finding, Grade, probe_machine
from mpsd.config.loading import ConfigError, Invocation, file_used
from mpsd.config.options import Config
from mpsd.model.visible_text import visible

Probe = Callable[[Config, Mapping[str, str]], Iterator[Finding]]
_SIGNS = {Grade.GOOD: "ok", Grade.NOTE: "note", Grade.BAD: "BAD"}


def main(invocation: Invocation, environ: Mapping[str, str], more: Sequence[Probe] = (), *, as_json: bool) -> int:
    """Print the report; return 0 if mpsd can work here, 1 if a finding is bad.  more: probes that change something."""
    findings = examine(invocation, environ, more)
    print(render_json(findings) if as_json else render_text(findings))
    return int(has_bad(findings))


def examine(invocation: Invocation, environ: Mapping[str, str], more: Sequence[Probe] = ()) -> list[Finding]:
    """Return all findings.  If the configuration is refused, the machine is checked against the defaults."""
    file = file_used(invocation.config_file, environ)
    try:
        config = invocation.load(environ)
        found = file if os.path.exists(file) else f"the defaults; {file} does not exist"
        findings = [Finding("configuration", Grade.GOOD, found)]
    except ConfigError as exc:
        config = Config()
        advice = "see docs/configuration.md; the rest of this report assumes the defaults"
        findings = [Finding("configuration", Grade.BAD, str(problem), advice) for problem in exc.problems]
    findings.append(Finding("backend", Grade.GOOD, config.backend))
    return [*findings, *(found for probe in (probe_machine, *more) for found in probe(config, environ))]


def has_bad(findings: Sequence[Finding]) -> bool:
    return any(each.grade is Grade.BAD for each in findings)


def render_json(findings: Sequence[Finding]) -> str:
    report = {"version": __version__, "good": not has_bad(findings), "findings": [asdict(each) for each in findings]}
    return json.dumps(report, indent=2)


def render_text(findings: Sequence[Finding]) -> str:
    """Render one line for each finding, the advice under it, the verdict last."""
    lines = []
    for each in findings:
        lines.append(f"{_SIGNS[each.grade]:<5} {each.area:<16} {each.found}")
        if each.advice:
            lines.append(f"{'':<22} -> {each.advice}")
    bad = sum(each.grade is Grade.BAD for each in findings)
    notes = sum(each.grade is Grade.NOTE for each in findings)
    verdict = f"{bad} of these must be fixed before mpsd can serve here" if bad else "mpsd can serve here"
    return "\n".join([*(visible(line, keep="\n") for line in lines), "", f"{verdict}; {notes} to know about"])
