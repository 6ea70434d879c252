"""What doctor prints and how it ends: exit codes, JSON, and lines for people."""

from __future__ import annotations

from dataclasses import replace

import pytest
from typer.testing import CliRunner

from spoke.cli import app
from spoke.doctor import report
from spoke.doctor.examine import judged
from spoke.doctor.findings import Level
from tests.unit.spoke.doctor.doctor_support import DISK, HUB, with_path


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["/"], "is not a mount of Headrace"),
        (["--rtt", "soon"], "is not a duration"),
        (["--rate", "10pigs"], "is not a rate"),
        (["--rate", "0bit"], "rate 0"),
        (["--hub", "nowhere:port"], "is not an address"),
        (["--hub", "h", "--dataset", "a b"], "dataset name"),
    ],
)
def test_wrong_use(arguments: list[str], said: str) -> None:
    answer = CliRunner().invoke(app, ["doctor", *arguments])
    assert answer.exit_code == 2
    assert said in answer.stderr


def test_a_host_alone_can_be_looked_at() -> None:
    answer = CliRunner().invoke(app, ["doctor", "--rtt", "60ms", "--rate", "1gbit"])
    assert answer.exit_code in (0, 1)
    assert answer.stdout.startswith("this host: 60 ms (given), 1 Gbit/s (given)\n")
    assert answer.stderr == ""


def test_people_read_the_worst_first_and_what_is_fine_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    facts = replace(
        with_path(0.9, 10), disk=replace(DISK, error="Input/output error", directory="/nvme/[bold]x[/]"), hub=HUB
    )
    report.show(facts, judged(facts), everything=False)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "/mnt/c4 hub 10.0.1.5:7420: 900 ms (given), 10 Gbit/s (given)"
    assert lines[1].split()[:3] == ["problem", "cache", "disk"]
    assert "/nvme/[bold]x[/] cannot be written: Input/output error" in lines[1]
    assert any(line.strip().startswith("→ give a directory") for line in lines)
    fine = next(line for line in lines if line.startswith("ok"))
    assert "mount, kernel" in fine
    report.show(facts, judged(facts), everything=True)
    assert "Linux 6.18.1" in capsys.readouterr().out


def test_programs_read_names_numbers_and_the_worst() -> None:
    facts = with_path(0.25, 10)
    told = report.as_json(facts, judged(facts), 1.5)
    assert (told["worst"], told["hub"], told["mountpoint"]) == ("problem", "10.0.1.5:7420", "/mnt/c4")
    assert told["took_s"] == 1.5
    assert told["path"] == {
        "rtt_s": 0.25, "rtt_source": "given", "rate_bytes_per_s": 1.25e9, "rate_source": "given",
    }  # fmt: skip
    assert all(set(found) == {"check", "level", "seen", "cost", "mend", "figures"} for found in told["findings"])
    (buffers,) = [found for found in told["findings"] if found["check"] == "tcp buffers"]
    assert (buffers["level"], round(buffers["figures"]["share"], 3)) == ("problem", 0.301)
    assert report.worst([]) is Level.OK
