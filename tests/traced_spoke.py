"""``python -m traced_spoke`` is the command headrace-spoke, and writes each READ that reached the spoke to the file $READ_TRACE."""

from __future__ import annotations

import json
import os
from typing import Any

from spoke import ahead, cli


def main() -> None:
    out = open(os.environ["READ_TRACE"], "w", buffering=1)  # noqa: SIM115 (as long as the process)
    original = ahead.Ahead.read

    def read(self: Any, handle: Any, task_id: int, offset_bytes: int, length_bytes: int, result: Any) -> None:
        out.write(json.dumps([os.fsdecode(handle.path), offset_bytes, length_bytes, result]) + "\n")
        original(self, handle, task_id, offset_bytes, length_bytes, result)

    ahead.Ahead.read = read  # type: ignore[method-assign]
    cli.main()


if __name__ == "__main__":
    main()
