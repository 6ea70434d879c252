"""A headless Chromium for tests of pages, over its DevTools protocol: sizes, colour schemes, keys, screenshots, the accessibility tree."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import re
import shutil
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

TIMEOUT_S = 30.0


def chromium() -> str | None:
    """Its path, or None where there is none."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class Tab:
    """One page. ``errors``: what its script and the browser's console complained of."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.errors: list[str] = []
        self.requested: list[str] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self._socket:
            heard = json.loads(message.data)
            if "id" in heard:
                self._answers.pop(heard["id"]).set_result(heard)
            elif heard.get("method") == "Runtime.exceptionThrown":
                self.errors.append(str(heard["params"]["exceptionDetails"]))
            elif heard.get("method") == "Log.entryAdded" and heard["params"]["entry"]["level"] == "error":
                self.errors.append(str(heard["params"]["entry"]))
            elif heard.get("method") == "Network.requestWillBeSent":
                self.requested.append(heard["params"]["request"]["url"])

    async def call(self, method: str, **parameters: Any) -> Any:
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        heard = await asyncio.wait_for(answer, TIMEOUT_S)
        assert "error" not in heard, heard
        return heard["result"]

    async def begin(self) -> None:
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            await self.call(f"{domain}.enable")

    async def look(self, width: int, height: int, scheme: str) -> None:
        """Be a screen of this size that prefers light or dark."""
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    async def run(self, script: str) -> Any:
        """The value of an expression; a promise is awaited."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, condition: str) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not await self.run(condition):  # the page tells nobody: look again
                await asyncio.sleep(0.05)

    async def key(self, name: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            await self.call(
                "Input.dispatchKeyEvent",
                type=kind,
                key=name,
                code=name,
                windowsVirtualKeyCode={"Tab": 9, "ArrowLeft": 37}[name],
            )

    async def screenshot(self, path: Path) -> None:
        """The whole page, however long."""
        shot = await self.call("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))

    async def close(self) -> None:
        await self._socket.close()
        await self._reader


@contextlib.asynccontextmanager
async def browsing(url: str) -> AsyncIterator[Tab]:
    """A tab with this page, in a browser of its own that is gone afterwards."""
    program = chromium()
    assert program is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = await asyncio.create_subprocess_exec(
            program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--mute-audio",
            "--disable-extensions", "--disable-background-networking",
            "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert browser.stderr is not None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                while (found := re.search(rb"ws://([^/]+)/", line := await browser.stderr.readline())) is None:
                    assert line, "the browser ended"
            drain = asyncio.create_task(browser.stderr.read())
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://{found[1].decode()}/json/list") as answer:
                    target = next(target for target in await answer.json() if target["type"] == "page")
                async with session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                    tab = Tab(socket)
                    await tab.begin()
                    await tab.call("Page.navigate", url=url)
                    yield tab
                    await tab.close()
        finally:
            with contextlib.suppress(ProcessLookupError):
                browser.kill()
            await browser.wait()
            with contextlib.suppress(UnboundLocalError):
                drain.cancel()
