"""Print the Grafana dashboard of mpsd's metrics: `python3 clients/grafana/dashboard.py >mpsd.json`.

It needs Python alone.  A query is written without the choice of instances; `_query` adds it to each metric.
"""

import json
import re
from typing import Any

Panel = dict[str, Any]
Line = tuple[str, str]  # the query and the legend

DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
INSTANCE = 'instance=~"$instance"'
METRIC = re.compile(r"\b((?:mpsd|process)_\w+)(?:\{(.*?)\})?")
FULL_WIDTH = 24


def _query(text: str) -> str:
    """Return the query for the chosen instances."""
    return METRIC.sub(lambda found: f"{found[1]}{{{', '.join(filter(None, (INSTANCE, found[2])))}}}", text)


def row(title: str) -> Panel:
    return {"type": "row", "title": title, "collapsed": False, "gridPos": {"h": 1, "w": FULL_WIDTH}, "panels": []}


def stat(title: str, description: str, query: str, *colours: str, is_yes_or_no: bool = False) -> Panel:
    """Return a panel with one number; the second colour is for 1 and more."""
    answers = {"type": "value", "options": {"0": {"text": "no"}, "1": {"text": "yes"}}}
    steps = [{"color": colour, "value": least} for colour, least in zip(colours, (None, 1), strict=False)]
    return _panel("stat", title, description, 4, 4, [(query, "")]) | {
        "fieldConfig": {
            "defaults": {
                "unit": "none",
                "mappings": [answers] if is_yes_or_no else [],
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "options": {
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "background",
            "graphMode": "none",
            "textMode": "value",
        },
    }


def graph(
    title: str,
    description: str,
    *lines: Line,
    unit: str = "short",
    width: int = 12,
    most: "int | None" = None,
    is_stacked: bool = False,
) -> Panel:
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 20 if is_stacked else 0,
        "showPoints": "never",
        "stacking": {"mode": "normal" if is_stacked else "none"},
    }
    defaults = {"unit": unit, "min": 0, "custom": custom} | ({} if most is None else {"max": most})
    return _panel("timeseries", title, description, width, 8, lines) | {
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def quantiles(metric: str, labels: str, window: str, median: str, worst: str) -> tuple[Line, Line]:
    """Return the lines of the median and of the 99th percentile of a histogram."""
    rate = f"sum by ({labels}) (rate({metric}_bucket[{window}]))"
    return (f"histogram_quantile(0.5, {rate})", median), (f"histogram_quantile(0.99, {rate})", worst)


def _panel(kind: str, title: str, description: str, width: int, height: int, lines: "list[Line] | tuple[Line, ...]") -> Panel:
    targets = [
        {"datasource": DATASOURCE, "expr": _query(query), "legendFormat": legend, "refId": chr(ord("A") + at)}
        for at, (query, legend) in enumerate(lines)
    ]
    if kind == "stat":
        targets[0]["instant"] = True
    about = {"description": description} if description else {}
    place = {"h": height, "w": width}
    return {"type": kind, "title": title, **about, "datasource": DATASOURCE, "gridPos": place, "targets": targets}


PANELS = (
    row("Now"),
    stat("Healthy", "Whether a client that comes would be served.", "min(mpsd_healthy)", "red", "green", is_yes_or_no=True),
    stat("Clients that run", "", 'sum(mpsd_clients{state="running"})', "blue"),
    stat("Waiting", "Clients and leases in the queue.", "sum(mpsd_queue_length)", "green", "orange"),
    stat("Active leases", "", 'sum(mpsd_leases{state="active"})', "blue"),
    stat("Domains in fault", "Take nobody until their clients have gone.", 'sum(mpsd_domains{state="fault"})', "green", "red"),
    stat("Spare domains", "Ready, and serving nobody yet.", "sum(mpsd_domains_spare)", "orange", "green"),
    row("Clients"),
    graph("Clients", "By state.", ("sum by (state) (mpsd_clients)", "{{state}}"), is_stacked=True),
    graph(
        "Let in and refused, a minute", "",
        ("60 * sum by (lease) (rate(mpsd_clients_admitted_total[$__rate_interval]))", "let in, lease: {{lease}}"),
        ("60 * sum by (way) (rate(mpsd_clients_refused_total[$__rate_interval]))", "refused: {{way}}"),
    ),
    graph("Queue", "How many wait.", ("sum by (kind) (mpsd_queue_length)", "{{kind}}"), is_stacked=True),
    graph(
        "Longest wait", "How long the one has waited that came first.",
        ("max by (instance) (mpsd_queue_oldest_wait_seconds)", "{{instance}}"),
        unit="s",
    ),
    graph(
        "Handshakes", "A connection's time with its domain, its turn there included.",
        *quantiles("mpsd_handshake_seconds", "le", "$__rate_interval", "median", "99 of 100"),
        unit="s",
    ),
    graph(
        "Admissions", "From a client's arrival to its grant.",
        *quantiles("mpsd_admission_seconds", "le", "$__rate_interval", "median", "99 of 100"),
        unit="s",
    ),
    row("Leases and GPUs"),
    graph(
        "SM share reserved", "By active leases; 100 %: the whole GPU.",
        ("mpsd_sm_reserved_ratio * on (instance, UUID) group_left (ordinal) mpsd_gpu_info", "{{instance}} GPU {{ordinal}}"),
        unit="percentunit",
    ),
    graph(
        "Memory reserved", "By active leases, of what the GPU has.",
        (
            "mpsd_memory_reserved_bytes / mpsd_gpu_memory_bytes * on (instance, UUID) group_left (ordinal) mpsd_gpu_info",
            "{{instance}} GPU {{ordinal}}",
        ),
        unit="percentunit",
    ),
    graph("Leases", "By state.", ("sum by (state) (mpsd_leases)", "{{state}}"), is_stacked=True),
    graph(
        "What happens to leases, a minute", "",
        ('60 * sum by (topic) (rate(mpsd_events_total{topic=~"lease[.].*"}[$__rate_interval]))', "{{topic}}"),
    ),
    row("Fault domains"),
    graph("Domains", "By state.", ("sum by (state) (mpsd_domains) > 0", "{{state}}"), is_stacked=True),
    graph(
        "Places taken", "Of each domain, of those it has.",
        ("mpsd_domain_clients / mpsd_domain_places", "{{instance}} {{domain}}"),
        unit="percentunit", most=1,
    ),
    graph(
        "Faults", "Domains that faulted, and GPU errors of the kernel log.",
        ("sum by (instance) (increase(mpsd_domain_faults_total[$__rate_interval]))", "{{instance}} domains"),
        ("sum by (instance, xid) (increase(mpsd_xids_total[$__rate_interval]))", "{{instance}} Xid {{xid}}"),
    ),
    graph(
        "Vendor daemons started again", "After they had died.",
        ("sum by (instance) (increase(mpsd_vendor_restarts_total[$__rate_interval]))", "{{instance}}"),
    ),
    row("Arenas"),
    graph(
        "Memory of arenas", "By who has them open; the line is what they may hold.",
        ("sum by (instance, state) (mpsd_arena_memory_bytes)", "{{instance}} {{state}}"),
        ("sum by (instance) (mpsd_arena_capacity_bytes)", "{{instance}} may hold"),
        unit="bytes",
    ),
    graph(
        "Arenas, by who has them open", "Unheld ones stay until their time is over, or room is wanted.",
        ("sum by (instance, state) (mpsd_arenas)", "{{instance}} {{state}}"),
        ("increase(mpsd_arenas_evicted_total[1h])", "{{instance}} evicted in an hour"),
        ("increase(mpsd_arenas_lost_total[1h])", "{{instance}} lost in an hour"),
    ),
    graph(
        "The keeper", "What it holds for arenas; it works: 1.",
        ("mpsd_keeper_descriptors", "{{instance}} descriptors"),
        ("sum by (instance) (mpsd_arena_allocations)", "{{instance}} committed allocations"),
        ("mpsd_keeper_works", "{{instance}} works"),
        ("mpsd_keeper_processes", "{{instance}} keepers"),
    ),
    graph(
        "Fencing", "From the end of a process that held an arena to the end of the process's GPU work.",
        *quantiles("mpsd_fence_seconds", "instance, le", "15m", "{{instance}} half", "{{instance}} 99 %"),
        unit="s",
    ),
    row("Services"),
    graph(
        "Services, by phase", "",
        ("sum by (instance, phase) (mpsd_services)", "{{instance}} {{phase}}"),
        ("mpsd_services_unserved", "{{instance}} nobody serves"),
        ("mpsd_services_unprotected", "{{instance}} unprotected"),
        ("mpsd_services_replicated", "{{instance}} with a replica"),
    ),
    graph("Their processes", "", ("sum by (instance, standing) (mpsd_service_members)", "{{instance}} {{standing}}")),
    graph(
        "Promotions, an hour", "",
        ("sum by (instance, cause) (increase(mpsd_service_promotions_total[1h]))", "{{instance}} {{cause}}"),
    ),
    graph(
        "What a promotion takes", "",
        *quantiles(
            "mpsd_service_promotion_seconds", "instance, part, le", "1h",
            "{{instance}} {{part}} half", "{{instance}} {{part}} 99 %",
        ),
        unit="s",
    ),
    row("mpsd itself"),
    graph(
        "Connections", "",
        ("sum(mpsd_relay_connections)", "CUDA processes"),
        ("sum(mpsd_api_connections)", "mpsd.sock"),
        ("sum(mpsd_api_subscribers)", "of these, subscribers"),
        width=8,
    ),
    graph("Processor", "", ("rate(process_cpu_seconds_total[$__rate_interval])", "{{instance}} cores"), width=8),
    graph(
        "Lost", "Lines of logs, and events that slow subscribers did not get.",
        ("sum by (file) (increase(mpsd_log_lines_lost_total[$__rate_interval]))", "lines: {{file}}"),
        ("sum(increase(mpsd_events_lost_total[$__rate_interval]))", "events"),
        width=8,
    ),
    graph("Memory of mpsd", "", ("process_resident_memory_bytes", "{{instance}}"), unit="bytes"),
    graph("Up since", "Falls where mpsd was started again.", ("time() - mpsd_start_time_seconds", "{{instance}}"), unit="s"),
)  # fmt: skip


def _placed() -> list[Panel]:
    """Return the panels with their numbers and places: from left to right, and a new line where the width is used up."""
    placed, left, top = [], 0, 0
    for number, panel in enumerate(PANELS, 1):
        size = panel["gridPos"]
        placed.append({"id": number, **panel, "gridPos": {**size, "x": left, "y": top}})
        left += size["w"]
        if left == FULL_WIDTH:
            left, top = 0, top + size["h"]
    return placed


def dashboard() -> Panel:
    started = {
        "name": "mpsd started",
        "datasource": DATASOURCE,
        "enable": True,
        "iconColor": "blue",
        "expr": _query("changes(mpsd_start_time_seconds[2m]) > 0"),
        "titleFormat": "mpsd started",
        "textFormat": "{{instance}}",
    }
    instances = {
        "name": "instance",
        "label": "Instance",
        "type": "query",
        "datasource": DATASOURCE,
        "query": {"query": "label_values(mpsd_build_info, instance)", "refId": "instance"},
        "includeAll": True,
        "multi": True,
        "refresh": 2,
        "current": {"text": "All", "value": "$__all"},
    }
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0}
    return {
        "title": "mpsd",
        "uid": "mpsd",
        "description": "CUDA MPS with fault domains: clients, leases, domains, faults. docs/monitoring.md explains them.",
        "tags": ["mpsd", "gpu"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": [started]},
        "templating": {"list": [source, instances]},
        "panels": _placed(),
    }


if __name__ == "__main__":
    print(json.dumps(dashboard(), indent=1))
