"""A pytest plugin (``-p bench.fuzz``) that turns the property tests into a longer search: fresh seeds, more examples.

Only tests made with hypothesis run. Each gets ``HEADRACE_FUZZ_FACTOR`` times the examples it asks for, and a new random
seed; a failure prints the ``@reproduce_failure`` line that repeats it.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import is_hypothesis_test, settings

SETTINGS_ATTRIBUTE = "_hypothesis_internal_use_settings"
"""Where hypothesis keeps what @settings gave a test; there is no public way to change it after the fact."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    factor = float(os.environ.get("HEADRACE_FUZZ_FACTOR", "50"))
    chosen = [item for item in items if is_hypothesis_test(getattr(item, "function", None))]
    changed: set[int] = set()
    for item in chosen:
        item.add_marker(pytest.mark.timeout(0))
        owner, attribute = getattr(item, "cls", None), "settings"
        if not isinstance(getattr(owner, attribute, None), settings):  # no state machine, which keeps them in its class
            function = getattr(item, "function")  # noqa: B009 an Item in general has none
            owner, attribute = getattr(function, "__func__", function), SETTINGS_ATTRIBUTE
        if id(owner) in changed:  # a parametrized test is many items with one function
            continue
        changed.add(id(owner))
        given = getattr(owner, attribute, None) or settings()
        examples = max(1, int(given.max_examples * factor))
        setattr(owner, attribute, settings(given, max_examples=examples, derandomize=False, print_blob=True))
    config.hook.pytest_deselected(items=[item for item in items if item not in set(chosen)])
    items[:] = chosen
