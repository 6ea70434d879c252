"""Asks a Prometheus every query of the dashboard: ``python ask_dashboard.py http://127.0.0.1:9090``. Standard library alone.

Exit 0 when all are answered without an error, 1 when one is refused or none has a value, 2 for wrong use. A query without a value is
named: some have none while nothing happens (no refusals, no rate limit), others until two scrapes are in.
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

DASHBOARD = Path(__file__).with_name("grafana-dashboard.json")


def queries(dashboard: dict[str, Any]) -> list[tuple[str, str]]:
    """Panel and query, with the dashboard's variables filled in."""
    found = [(panel["title"], target["expr"]) for panel in dashboard["panels"] for target in panel.get("targets", ())]
    found += [(note["name"], note["expr"]) for note in dashboard["annotations"]["list"] if "expr" in note]
    words = {"$__rate_interval": "1m", "$hub": ".*", "$spoke": ".*"}
    for name, value in words.items():
        found = [(title, expression.replace(name, value)) for title, expression in found]
    return found


def ask(server: str, expression: str) -> int:
    """How many series answer. Raises urllib.error.URLError; HTTPError when the query is refused."""
    url = f"{server.rstrip('/')}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
    with urllib.request.urlopen(url, timeout=10) as response:
        return len(json.load(response)["data"]["result"])


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not arguments[0].startswith("http"):
        sys.stderr.write("usage: python ask_dashboard.py http://HOST:9090\n")
        return 2
    asked = queries(json.loads(DASHBOARD.read_text()))
    refused, empty = [], []
    for title, expression in asked:
        try:
            if not ask(arguments[0], expression):
                empty.append(f"{title}: {expression}")
        except urllib.error.HTTPError as error:
            refused.append(f"{title}: {expression}: {error.read().decode('utf-8', 'replace')}")
        except (OSError, ValueError) as error:
            sys.stderr.write(f"no Prometheus answers at {arguments[0]}: {error}\n")
            return 1
    for line in (*(f"refused   {line}" for line in refused), *(f"no value  {line}" for line in empty)):
        sys.stdout.write(f"{line}\n")
    sys.stdout.write(f"{len(asked) - len(refused) - len(empty)} of {len(asked)} queries have a value\n")
    return 1 if refused or len(empty) == len(asked) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
