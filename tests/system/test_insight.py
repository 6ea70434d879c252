"""What stalls a job, why a read was slow, and the commands and pages that show it, on a real pair over a long link."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pair import Pair, Spoke, eventually, pair_in
from typer.testing import CliRunner, Result

from hub import cli as hub_cli
from spoke.cli import app
from tests import browser

pytestmark = pytest.mark.mount

MIB = 1 << 20
HUB_SCHEMA = json.loads((Path(__file__).parents[2] / "hub/status.schema.json").read_text())
SCHEMA = json.loads((Path(__file__).parents[2] / "spoke/status.schema.json").read_text())

JOB = """
import os, sys, time
from spoke import hints

def batches(path):
    with open(path, "rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for number in (5, 2, 9, 0, 7, 3):
            yield os.pread(file.fileno(), 65536, number * (1 << 20))

for batch in hints.steps(batches(sys.argv[1]), sys.argv[1]):
    time.sleep(0.01)
"""


def command(*words: object) -> Result:
    """The command as a user types it, in this process."""
    return CliRunner().invoke(app, [str(word) for word in words], prog_name="headrace-spoke")


def read_in_another_process(path: Path, length_bytes: int, at_bytes: int = 0) -> None:
    """What the kernel still holds of the file is dropped first, so that the spoke is asked."""
    code = (
        "import os, sys; fd = os.open(sys.argv[1], os.O_RDONLY); os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED); "
        "os.pread(fd, int(sys.argv[2]), int(sys.argv[3]))"
    )
    subprocess.run([sys.executable, "-S", "-c", code, path, str(length_bytes), str(at_bytes)], check=True, timeout=60)


def live(address: str) -> tuple[dict[str, Any], int]:
    with urllib.request.urlopen(f"http://{address}/live", timeout=10) as answer:
        data = answer.read()
    return json.loads(data), len(data)


def test_a_rank_that_waits_the_steps_it_marks_and_a_hub_that_dies(pair: Pair, far: Callable[..., str]) -> None:
    (pair.data / "shard-17").write_bytes(os.urandom(12 * MIB))
    hub = pair.hub()
    spoke = pair.spoke(far(hub.address), extra=["--no-prefetch", "--read-timeout", "1s"])
    environment = {**os.environ, "RANK": "3", "PYTHONPATH": os.getcwd()}
    subprocess.run(
        [sys.executable, "-S", "-c", JOB, spoke.mountpoint / "shard-17"], check=True, timeout=60, env=environment
    )
    facts = spoke.facts()
    jsonschema.validate(facts, SCHEMA)
    assert facts["phase"]["name"] == "cold"
    (row,) = facts["stalls"]["processes"]
    assert (row["rank"], row["waits"]) == (3, 6)
    assert row["name"].startswith("python")
    assert row["lost_s"] == pytest.approx(facts["reads"]["stall_s"], rel=0.05)
    assert 6 * 0.04 < row["lost_s"] < 6 * 0.4
    assert facts["stalls"]["said"][0].startswith("rank 3 lost ")
    assert facts["stalls"]["said"][0].endswith(" waiting for shard-17")
    (job,) = facts["training"]
    assert (job["who"], job["rank"], job["steps"], job["recent"]["reads"]["miss"]) == ("rank 3", 3, 6, 6)
    # Three clocks of one wait: the job's own, the mount's beside it, and the step they are part of. A mark says how long ago its
    # step was, so what it takes to arrive moves the mount's clock by as much.
    for step in job["last_steps"]:
        assert 0.02 < step["mount_stall_s"] <= step["data_wait_s"] + 0.005 < step["step_s"] + 0.005

    shown = command("status", spoke.mountpoint).stdout
    assert "stalls     rank 3 lost" in shown
    assert "training   rank 3: 6 steps" in shown
    once = json.loads(command("top", spoke.mountpoint, "--once", "--json", "--interval", "200ms").stdout)
    assert once["stalls"]["recent"]["who"][0]["who"] == "rank 3"
    assert once["training"][0]["steps"] == 6
    frame = command("top", spoke.mountpoint, "--once", "--interval", "200ms").stdout
    assert "rank 3 lost" in frame
    assert "shard-17" in frame
    listed = json.loads((spoke.mountpoint / ".headrace/explain").read_text())
    assert {tuple(slow["causes"][:1]) for slow in listed["slow_reads"]} == {("never-fetched",)}

    hub.kill()
    eventually(lambda: not spoke.facts()["hub"]["connected"])
    with pytest.raises(subprocess.CalledProcessError):
        read_in_another_process(spoke.mountpoint / "shard-17", 4096, 11 * MIB)
    (slow, *_) = json.loads(command("explain", spoke.mountpoint, "--json").stdout)["slow_reads"]
    assert {"no-link", "queue", "error"} <= set(slow["causes"])
    assert slow["waited_s"] > 0.9


def test_explain_tells_what_was_evicted_and_for_whom(pair: Pair, far: Callable[..., str]) -> None:
    (pair.data / "a.bin").write_bytes(os.urandom(14 * MIB))
    (pair.data / "b.bin").write_bytes(os.urandom(14 * MIB))
    (pair.data / "odd:7").write_bytes(b"x" * 5000)
    spoke = pair.spoke(far(pair.hub().address), extra=["--cache-size", "16MiB", "--no-passthrough"])
    mount = spoke.mountpoint
    for name in ("a.bin", "b.bin"):
        read_in_another_process(mount / name, 14 * MIB)
        spoke.settled()
    facts = json.loads(command("explain", mount, "a.bin", "--json").stdout)
    evicted = [note for note in facts["history"] if note["what"] == "evicted"]
    assert {note["for"] for note in evicted} == {"b.bin"}
    assert any(note["what"] == "ahead" and note["why"] == "sequential" for note in facts["history"])
    gone_at = evicted[0]["extent"] * MIB + 4096
    told = command("explain", f"{mount}/a.bin:{gone_at}")
    assert told.exit_code == 0
    assert f"a.bin:{gone_at}: not present: the next read of it waits for the hub" in told.stdout
    assert "for b.bin" in told.stdout
    read_in_another_process(mount / "a.bin", 4096, gone_at)
    facts = json.loads(command("explain", mount, f"a.bin:{gone_at}", "--json").stdout)
    assert facts["place"]["present"] or facts["place"]["in_memory"]
    assert "evicted" in facts["slow_reads"][0]["causes"]
    assert "for b.bin" in facts["slow_reads"][0]["said"]
    late = json.loads(command("explain", mount, "b.bin", "--json").stdout)
    assert any("late-prefetch" in slow["causes"] for slow in late["slow_reads"])

    assert json.loads(command("explain", mount, "odd:7", "--json").stdout)["offset_bytes"] is None
    assert json.loads(command("explain", mount, "odd:7:4KiB", "--json").stdout)["offset_bytes"] == 4096
    for words, why in (
        ((mount, "no.bin"), "is not in the dataset"),
        ((mount, "a.bin:99GiB"), "there is none at"),
        ((mount, "a.bin:here"), "is not a size"),
        ((mount, "/etc/passwd"), "is not below"),
        ((pair.work_dir / "data/a.bin",), "on no Headrace mount"),
    ):
        refused = command("explain", *words)
        assert (refused.exit_code, why in refused.output) == (2, True), refused.output


def offered(application: Any, program: str, line: str) -> list[str]:
    """What bash is told for a line that ends here."""
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    environment = {f"_{program.upper().replace('-', '_')}_COMPLETE": "complete_bash", **words}
    return CliRunner().invoke(application, [], prog_name=program, env=environment).stdout.split()


def assert_completion(mount: Path) -> None:
    assert offered(app, "headrace-spoke", "headrace-spoke ex") == ["explain"]
    assert {"ls", "du", "pin", "unpin", "evict"} <= set(offered(app, "headrace-spoke", "headrace-spoke cache "))
    assert "--once" in offered(app, "headrace-spoke", "headrace-spoke top --")
    assert str(mount) in offered(app, "headrace-spoke", f"headrace-spoke status {str(mount)[:-1]}")
    assert "serve" in offered(hub_cli.app, "headrace-hub", "headrace-hub s")


def test_cache_commands_and_a_bug_report(pair: Pair) -> None:
    (pair.data / "train").mkdir()
    for name, size in (("train/a.bin", 3 * MIB), ("train/b.bin", MIB), ("val.bin", 2 * MIB)):
        (pair.data / name).write_bytes(os.urandom(size))
    spoke = pair.spoke(pair.hub().address)
    mount = spoke.mountpoint
    assert command("warm", mount, "train", "--quiet").exit_code == 0
    listed = command("cache", "ls", mount).stdout
    assert [line.split()[-1] for line in listed.splitlines()[:-1]] == ["train/a.bin", "train/b.bin"]
    assert "verified  100.0 %" in listed
    everything = json.loads(command("cache", "ls", mount, "--all", "--sort", "size", "--json").stdout)
    assert [(row["path"], row["state"]) for row in everything["rows"]] == [
        ("train/a.bin", "verified"), ("val.bin", "absent"), ("train/b.bin", "verified"),
    ]  # fmt: skip
    assert "1 not shown" in command("cache", "ls", mount, "--most", "1").stdout
    used = json.loads(command("cache", "du", mount, "--json").stdout)
    assert [(row["path"], row["cached_files"], row["files"]) for row in used["rows"]] == [
        ("train/", 2, 2),
        ("val.bin", 0, 1),
    ]
    assert used["total"]["cached_bytes"] == 4 * MIB
    assert "in all" in command("cache", "du", mount, "train").stdout

    assert command("cache", "pin", mount, "train/b.bin").exit_code == 0
    kept = command("cache", "evict", mount, ".")
    assert (kept.exit_code, "train/b.bin" in kept.output) == (1, True)
    assert "1 files taken out" in kept.output
    assert json.loads(command("cache", "ls", mount, "--json").stdout)["files"] == 1
    assert command("cache", "unpin", mount, "--all").exit_code == 0
    assert command("cache", "evict", mount, "train/b.bin").exit_code == 0
    assert json.loads(command("cache", "ls", mount, "--json").stdout)["files"] == 0
    assert (mount / "train/a.bin").read_bytes() == (pair.data / "train/a.bin").read_bytes()  # fetched again, and right
    assert command("cache", "evict", mount, "nothing").exit_code == 2
    assert command("cache", "ls", mount, "--most", "0").exit_code == 2

    assert_completion(mount)
    target = pair.work_dir / "report.tar.gz"
    assert command("bugreport", mount, "--output", target).exit_code == 0
    with tarfile.open(target) as archive:
        assert {Path(name).name for name in archive.getnames()} == {
            "README.txt", "status.json", "explain.json", "metrics.txt", "doctor.json", "host.json", "log.txt",
        }  # fmt: skip
        member = archive.extractfile("report/host.json")
        assert member is not None
        assert json.load(member)["fuse"]["max_background"]
    assert command("bugreport", mount, "--output", target).exit_code == 1
    assert command("bugreport", pair.work_dir).exit_code == 2


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Spoke]]:
    """A pair with some traffic: the hub's address for pages, and the spoke."""
    with pair_in(tmp_path_factory.mktemp("pages")) as pair:
        for number in range(4):
            (pair.data / f"shard-{number:05}.tar").write_bytes(os.urandom(3 * MIB))
        (pair.data / "<b>odd & ends.bin").write_bytes(os.urandom(MIB))
        hub = pair.hub()
        spoke = pair.spoke(hub.address, extra=["--no-passthrough"])
        for path in sorted(spoke.mountpoint.iterdir()):
            path.read_bytes()
        eventually(lambda: (live(hub.metrics)[0]["spokes"] or [{}])[0].get("version") is not None, timeout_s=15)
        yield hub.metrics, spoke


def test_what_the_pages_are_told_is_bounded_and_without_settings(worked: tuple[str, Spoke]) -> None:
    hub_address, spoke = worked
    for address in (hub_address, spoke.facts()["metrics"]):
        with urllib.request.urlopen(f"http://{address}/", timeout=10) as answer:
            html = answer.read().decode()
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
        assert "http://" not in html.replace("http://www.w3.org/", "")
        assert "https://" not in html
        facts, size_bytes = live(address)
        assert size_bytes < 256 * 1024
        assert "settings" not in facts
        assert "cache_dir" not in json.dumps(facts)
    with urllib.request.urlopen(f"http://{hub_address}/status", timeout=10) as answer:
        jsonschema.validate(json.load(answer), HUB_SCHEMA)
    assert live(hub_address)[0]["spokes"][0]["version"] == spoke.facts()["version"]


@pytest.mark.skipif(browser.chromium() is None, reason="no Chromium")
@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_the_pages_in_a_browser(worked: tuple[str, Spoke], tmp_path: Path) -> None:
    hub_address, spoke = worked
    for name, address in (("spoke", spoke.facts()["metrics"]), ("hub", hub_address)):
        async with browser.browsing(f"http://{address}/") as tab:
            await tab.until("document.body?.dataset.drawn === 'yes'")
            grounds = {}
            for width, scheme in ((390, "light"), (390, "dark"), (1280, "light"), (1280, "dark")):
                await tab.look(width, 844, scheme)
                assert await tab.run("document.documentElement.scrollWidth") <= width, "nothing sticks out sideways"
                grounds[scheme] = await tab.run("getComputedStyle(document.body).backgroundColor")
                await tab.screenshot(tmp_path / f"{name}-{width}-{scheme}.png")
                assert (tmp_path / f"{name}-{width}-{scheme}.png").stat().st_size > 10_000
            assert grounds["light"] != grounds["dark"]
            assert await tab.run(CONTRAST) >= 4.5
            # By keyboard: the link that skips to the figures comes first, tables and curves can be reached, curves read out.
            await tab.key("Tab")
            assert await tab.run("document.activeElement.className") == "skip"
            await tab.run("document.querySelector('figure svg').focus()")
            await tab.key("ArrowLeft")
            assert " ago: " in await tab.run("document.querySelector('figure [role=status]').textContent")
            tree = (await tab.call("Accessibility.getFullAXTree"))["nodes"]
            roles = [node["role"]["value"] for node in tree if not node.get("ignored")]
            assert {"banner", "main", "contentinfo", "heading", "table", "columnheader", "rowheader"} <= set(roles)
            images = [node for node in tree if node.get("role", {}).get("value") == "image" and not node.get("ignored")]
            assert images
            assert all(node["name"]["value"] for node in images)
            assert await tab.run("document.querySelectorAll('td b, th b, li b, .map b').length") == 0
            assert tab.errors == []
            assert {url.split("/")[2] for url in tab.requested if url.startswith("http")} == {address}
            if name == "spoke":
                text = await tab.run("document.body.innerText")
                for word in ("Cache map", "<b>odd & ends.bin", "lost", "Round trip", "Window", "Lead"):
                    assert word in text, word
                spoke.terminate()
                await tab.until("!document.getElementById('lost').hidden")


CONTRAST = """(() => {
  const linear = part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  const light = color => {
    const [r, g, b] = color.match(/[0-9.]+/g).map(part => linear(part / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = light(getComputedStyle(document.querySelector("section")).backgroundColor);
  const seen = node => !node.children.length && node.textContent.trim() && node.getClientRects().length;
  const texts = [...document.querySelectorAll("section *")].filter(seen).map(node => light(getComputedStyle(node).color));
  return Math.min(...texts.map(text => (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05)));
})()"""
"""The least contrast of a text with the ground of its section; 4.5 is what WCAG 2 asks for (AA)."""
