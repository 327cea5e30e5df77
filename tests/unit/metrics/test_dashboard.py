"""The dashboard, the alert rules and docs/monitoring.md name exactly the existing metrics."""

import functools
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from prometheus_client import Metric

from mpsd.metrics.counters import MOST_VALUES
from tests.unit.metrics.fake_daemon import FakeDaemon

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/monitoring.md").read_text()
ALERTS = (ROOT / "clients/grafana/alerts.yml").read_text()
DASHBOARD = ROOT / "clients/grafana/dashboard.py"
NAME = re.compile(r"\b((?:mpsd|process)_[a-z_]+)\b(?!\()")
SELECTOR = re.compile(r"\b((?:mpsd|process)_[a-z_]+)\{([^}]*)\}")
LABEL = re.compile(r"(\w+)\s*(?:=~|!=|!~|=)")
ROW = re.compile(r"^\| `(mpsd_[a-z_]+)` \| (\w+) \| ([A-Za-z_, ]*) \| (.+) \|$", re.MULTILINE)


def families() -> dict[str, Metric]:
    """Of a daemon in which everything has happened."""
    daemon = FakeDaemon.furnish()
    daemon.bus.publish("fault.xid", {"xid": 31})
    return daemon.families()


def samples() -> dict[str, set[str]]:
    """Labels by the name of the sample; `instance` and `job` are Prometheus' own."""
    found: dict[str, set[str]] = {}
    for family in families().values():
        for sample in family.samples:
            found.setdefault(sample.name, {"instance", "job"}).update(sample.labels)
    return found


@functools.cache
def dashboard() -> Any:
    return json.loads(subprocess.run([sys.executable, "-I", DASHBOARD], capture_output=True, check=True, timeout=20).stdout)


def expressions() -> list[str]:
    found = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    found += [each["expr"] for each in dashboard()["annotations"]["list"] if "expr" in each]
    found += [each["query"]["query"] for each in dashboard()["templating"]["list"] if each["type"] == "query"]
    return found


def rules() -> list[str]:
    return re.findall(r"^\s+expr: (.+)$", ALERTS, re.MULTILINE)


def test_every_number_that_is_drawn_or_alarmed_on_exists() -> None:
    known = samples()
    assert len(expressions()) > 30
    assert len(rules()) > 10
    assert not [name for text in (*expressions(), *rules()) for name in NAME.findall(text) if name not in known]


def test_every_label_that_is_asked_for_exists() -> None:
    known = samples()
    wrong = []
    for text in (*expressions(), *rules()):
        for name, selector in SELECTOR.findall(text):
            wrong += [f"{name}: {label}" for label in LABEL.findall(selector) if label not in known[name]]
    assert not wrong


def test_every_value_of_a_state_that_is_asked_for_exists() -> None:
    known = {(s.name, s.labels["state"]) for f in families().values() for s in f.samples if "state" in s.labels}
    asked = re.findall(r'\b(mpsd_[a-z_]+)\{[^}]*state="(\w+)"', "\n".join((*expressions(), *rules())))
    assert asked
    assert not set(asked) - known


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    """As far as can be checked without Grafana: numbers of panels and letters of queries are unique, no panels overlap."""
    found = dashboard()
    panels = found["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert found["id"] is None if "id" in found else True
    for panel in panels:
        letters = [target["refId"] for target in panel.get("targets", ())]
        assert len(set(letters)) == len(letters), panel["title"]
    taken = Counter(
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    )
    assert max(taken.values()) == 1
    assert max(x for x, _ in taken) < 24


def test_every_number_of_ours_is_drawn_or_alarmed_on() -> None:
    """A metric that is not watched is not worth collecting."""
    used = {name for text in (*expressions(), *rules()) for name in NAME.findall(text)}
    ours = {name for name in samples() if name.startswith("mpsd_") and not name.endswith(("_sum", "_count"))}
    assert ours <= used


def test_the_page_lists_every_number_with_its_type_and_labels() -> None:
    listed = [(name, kind, labels, text) for name, kind, labels, text in ROW.findall(PAGE)]
    there = []
    for name, family in families().items():
        if name.startswith("mpsd_"):
            labels = sorted({label for sample in family.samples for label in sample.labels} - {"le"})
            full = f"{name}_total" if family.type == "counter" else name
            there.append((full, family.type, ", ".join(labels), family.documentation))
    assert listed == there


def test_every_alert_is_explained() -> None:
    alerts = re.findall(r"- alert: (\w+)$", ALERTS, re.MULTILINE)
    assert len(set(alerts)) == len(alerts)
    assert re.findall(r"^\| `(Mpsd\w+)` \|", PAGE, re.MULTILINE) == alerts


def test_the_rules_are_indented_as_yaml_wants_it() -> None:
    """No reader of YAML is needed for that: the file uses four kinds of lines."""
    kinds = (
        r"groups:",
        r"  - name: \w+",
        r"    rules:",
        r"      - alert: \w+",
        r"        (expr|for): .+",
        r"        annotations:",
        r"        labels: \{severity: (info|warning|critical)\}",
        r"          (summary|description): \".+\"",
        r"#.*",
    )
    assert not [line for line in ALERTS.splitlines() if not any(re.fullmatch(kind, line) for kind in kinds)]


def test_the_page_tells_the_bound_of_labels() -> None:
    assert f"at most {MOST_VALUES} values" in PAGE
