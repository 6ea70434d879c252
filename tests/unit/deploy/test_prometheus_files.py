"""Rules, dashboard and page: they name metrics that exist, and promtool's own tests of the rules pass."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from common.metrics import Metric
from hub.metrics import METRICS as HUB
from spoke.metrics import METRICS as SPOKE

ROOT = Path(__file__).parents[3]
FILES = ROOT / "deploy/prometheus"
PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
TABLES: tuple[Metric[Any], ...] = (*HUB, *SPOKE)
EXPOSED = {metric.name + ("_total" if metric.kind == "counter" else ""): metric for metric in TABLES}


def rules() -> list[dict[str, Any]]:
    return [
        rule
        for group in yaml.safe_load((FILES / "headrace.rules.yml").read_text())["groups"]
        for rule in group["rules"]
    ]


def dashboard_queries() -> list[str]:
    dashboard = json.loads((FILES / "grafana-dashboard.json").read_text())
    found = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    return found + [note["expr"] for note in dashboard["annotations"]["list"]]


def expressions() -> list[str]:
    return [rule["expr"] for rule in rules()] + dashboard_queries()


def test_every_expression_names_metrics_that_exist() -> None:
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    for expression in expressions():
        for name in re.findall(r"\bheadrace_(?:hub|spoke)[a-z0-9_:]*", expression):
            assert name in EXPOSED or name in recorded, f"{name} in {expression}"


def test_every_label_in_a_matcher_is_one_of_its_metric() -> None:
    for expression in expressions():
        for name, matchers in re.findall(r"\b(headrace_[a-z_]+)\{([^}]*)\}", expression):
            labels = set(re.findall(r"(\w+)\s*[=!]", matchers)) - {"instance", "job", "mount"}
            assert labels <= set(EXPOSED[name].labels), expression


def test_every_alert_says_what_to_do_and_is_tested() -> None:
    tested = {
        case["alertname"]
        for test in yaml.safe_load((FILES / "headrace.rules.test.yml").read_text())["tests"]
        for case in test["alert_rule_test"]
        if case["exp_alerts"]
    }
    for rule in rules():
        if "alert" in rule:
            assert rule["alert"] in tested
            assert rule["labels"]["severity"] in {"page", "ticket"}
            assert set(rule["annotations"]) == {"summary", "action"}


def test_no_panel_lies_on_another() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads((FILES / "grafana-dashboard.json").read_text())["panels"]:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_the_page_is_what_the_tables_say() -> None:
    spec = importlib.util.spec_from_file_location("metrics_page", FILES / "metrics_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    search = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = search
    assert (ROOT / "docs/metrics.md").read_text() == module.page(), "run: python deploy/prometheus/metrics_page.py"


def test_names_follow_the_rules() -> None:
    for name, metric in EXPOSED.items():
        assert re.fullmatch(r"headrace_(hub|spoke)_[a-z0-9_]+", name)
        assert metric.meaning.endswith(".")
        assert set(metric.labels) <= {
            "source", "result", "outcome", "place", "reason", "priority", "code", "kind", "dataset", "spoke",
            "owner", "trouble", "rank", "origin",
        }, "a new label must be bounded, and described in metrics_page.py"  # fmt: skip
    assert len(EXPOSED) == len(TABLES)


@needs_promtool
def test_promtool_s_tests_of_the_rules() -> None:
    for arguments in (("check", "config", "prometheus.yml"), ("test", "rules", "headrace.rules.test.yml")):
        done = subprocess.run(
            [str(PROMTOOL), *arguments], cwd=FILES, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
