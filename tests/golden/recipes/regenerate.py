"""Writes loaders.json anew from the loaders themselves: ``python tests/golden/recipes/regenerate.py`` with the extra ``loaders``.

Each case's entry has, for each epoch and lane: how many reads, the first three, and a digest of all.
"""

from __future__ import annotations

import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parents[1])]

from real_loaders import real_lanes  # noqa: E402
from recipe_cases import CASES  # noqa: E402
from recipe_support import summary  # noqa: E402

PACKAGES = ("ai2-olmo-core", "litdata", "megatron-core", "mosaicml-streaming", "numpy", "torch", "webdataset")


def main(names: list[str]) -> None:
    """Only the cases named, or all."""
    path = HERE / "loaders.json"
    golden = json.loads(path.read_text()) if path.exists() and names else {"cases": {}}
    golden["made_with"] = {name: version(name).split("+")[0] for name in PACKAGES}
    for case in CASES:
        if names and case.name not in names:
            continue
        with tempfile.TemporaryDirectory() as directory:
            case.prepare(Path(directory))
            epochs = real_lanes(case, Path(directory))
        golden["cases"][case.name] = [[summary(lane) for lane in lanes] for lanes in epochs]
        print(case.name, [[entry["reads"] for entry in lanes] for lanes in golden["cases"][case.name]], flush=True)
    path.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
