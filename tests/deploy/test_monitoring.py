"""Alerts and dashboard use metrics, labels and buckets that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry

from perdure.runtime.metrics import Metrics

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus-rules.yaml"
DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"

SELECTOR = re.compile(r"\b(perdure_\w+)(?:\{([^}]*)\})?")
GROUPED = re.compile(r"by \(([^)]*)\)")


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for rule in rules():
        yield rule["expr"]
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel["targets"]:
            yield target["expr"]


@pytest.fixture
def series() -> dict[str, set[str]]:
    """The name of each series, with its labels."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    out: dict[str, set[str]] = {}
    for held in vars(metrics).values():
        for each in held.values() if isinstance(held, dict) else [held]:
            name, labels = getattr(each, "_name", None), set(getattr(each, "_labelnames", ()))
            if name is None:
                continue
            kind = each._type
            if kind == "counter":
                out[f"{name}_total"] = labels
            elif kind == "histogram":
                out[f"{name}_bucket"] = {*labels, "le"}
                out[f"{name}_count"] = out[f"{name}_sum"] = labels
            else:
                out[name] = labels
    return out


def test_every_expression_uses_what_there_is(series: dict[str, set[str]]) -> None:
    found = list(expressions())
    assert len(found) > 25
    for expression in found:
        used = SELECTOR.findall(expression)
        assert used, expression
        for name, selected in used:
            assert name in series, f"{name} is not a series: {expression}"
            wanted = set(re.findall(r"(\w+)\s*(?:=~|=|!=)", selected))
            assert wanted <= series[name], expression
        labels = set().union(*(series[name] for name, _ in used))
        for group in GROUPED.findall(expression):
            assert {label.strip() for label in group.split(",")} <= labels, expression


def test_a_bucket_that_an_alert_names_exists() -> None:
    registry = CollectorRegistry()
    Metrics(registry).event(
        "checkpoint.stored", {"graph": "g", "tenant": "", "thread": "t", "channels": {"c": 1}, "bytes": 1}
    )
    for expression in expressions():
        for le in re.findall(r'le="([^"]+)"', expression):
            labels = {"graph": "g", "channel": "c", "le": le}
            assert registry.get_sample_value("perdure_checkpoint_bytes_bucket", labels) == 1, expression


def test_the_file_has_the_alerts_of_the_page() -> None:
    page = (ROOT / "docs" / "observing.md").read_text()
    table = page[page.index("### What to alert on") : page.index("### State that grows")]
    rows = re.findall(r"^\| ([^|`]+) \| `([^`]+)` \|", table, re.MULTILINE)
    assert {(title, expression.replace(r"\|", "|")) for title, expression in rows} == {
        (rule["annotations"]["summary"], rule["expr"]) for rule in rules()
    }
    assert all({"alert", "expr", "for", "labels", "annotations"} <= set(rule) for rule in rules())


def test_the_dashboard_shows_every_metric_that_grows_with_trouble() -> None:
    text = DASHBOARD.read_text()
    for name in ("sweep_last_success", "queue_age", "run_duration", "deliveries", "database_unavailable"):
        assert f"perdure_{name}" in text
    panels = json.loads(text)["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len(panels)
