"""What the spoke's web page is told: parts of ``status`` that are for eyes, the last hour, the map of the cache. No settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from common.web import Page, assemble

_LINKS_SHOWN = 64
_ROWS_SHOWN = 8
_FROM_STATUS = ("version", "pid", "mountpoint", "dataset", "uptime_s", "phase", "names", "reads", "prefetch", "notes")


def spoke_page(status: Callable[[], Mapping[str, Any]], more: Callable[[], Mapping[str, Any]]) -> Page:
    """``more``: series and map, as :meth:`spoke.insight.watch.Insight.page` gives them."""
    return Page(assemble("spoke", "spoke.html"), lambda: page_facts(status(), more()))


def page_facts(status: Mapping[str, Any], more: Mapping[str, Any]) -> Mapping[str, Any]:
    stalls, hub, cache = status["stalls"], status["hub"], status["cache"]
    return {
        **{name: status[name] for name in _FROM_STATUS},
        "hub": {**hub, "links": hub["links"][:_LINKS_SHOWN]},
        "cache": {
            name: cache[name] for name in ("used_bytes", "capacity_bytes", "files", "evicted_bytes", "corrupt_blocks")
        },
        "stalls": {
            "lost_s": stalls["lost_s"],
            "said": stalls["said"],
            **{name: stalls[name][:_ROWS_SHOWN] for name in ("processes", "files")},
        },
        "training": [
            {name: value for name, value in job.items() if name != "last_steps"}
            for job in status["training"][:_ROWS_SHOWN]
        ],
        "data_path": {"open_kernel_files": status["data_path"]["open_kernel_files"]},
        **more,
    }
