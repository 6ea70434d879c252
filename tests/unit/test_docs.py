"""The pages: links lead somewhere, anchors exist, every alert has its entry, and what commands the pages name there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
import yaml

from hub import cli as hub_cli
from spoke import cli as spoke_cli

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md"), *(ROOT / "spoke").rglob("*.md"),
                 *(ROOT / "common").rglob("*.md"))
)  # fmt: skip
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """As they are made of headings: lower case, spaces to dashes, all else but letters, digits, dashes and underscores left out."""
    found = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), f"{target} in {page}"
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{target} in {page}"
        assert there.is_relative_to(ROOT)
        if anchor and there.suffix == ".md":
            assert anchor in anchors(there), f"{target} in {page}: the headings are {sorted(anchors(there))}"


def test_every_page_is_in_the_table_of_pages() -> None:
    named = {(ROOT / "docs" / target).resolve() for target in LINK.findall((ROOT / "docs/README.md").read_text())}
    assert {page for page in (ROOT / "docs").glob("*.md") if page.name != "README.md"} <= named
    named = {(ROOT / "docs" / target).resolve() for target in LINK.findall((ROOT / "docs/loaders.md").read_text())}
    assert set((ROOT / "docs/loaders").glob("*.md")) <= named


def test_every_alert_has_a_place_in_the_playbook_and_none_is_left_over() -> None:
    groups = yaml.safe_load((ROOT / "deploy/prometheus/headrace.rules.yml").read_text())["groups"]
    alerts = {rule["alert"] for group in groups for rule in group["rules"] if "alert" in rule}
    page = (ROOT / "docs/operating.md").read_text()
    assert set(re.findall(r"^### (Headrace\w+)$", page, re.MULTILINE)) == alerts
    severity = {
        rule["alert"]: rule["labels"]["severity"] for group in groups for rule in group["rules"] if "alert" in rule
    }
    for name, said in re.findall(r"^### (Headrace\w+)\n\*(page|ticket)", page, re.MULTILINE):
        assert severity[name] == said, name


def known_words(application: typer.Typer) -> tuple[set[str], set[str]]:
    """Commands (of groups: the group's name) and all options, as the command line knows them."""
    command = typer.main.get_command(application)
    commands, options = set(), {"--help", "--version", "--install-completion", "--show-completion"}
    queue = [("", command)]
    while queue:
        name, one = queue.pop()
        for parameter in one.params:
            options |= set(parameter.opts) | set(parameter.secondary_opts)
        for word, below in getattr(one, "commands", {}).items():
            commands.add(f"{name} {word}".strip())
            queue.append((f"{name} {word}".strip(), below))
    return commands, options


@pytest.mark.parametrize(("program", "application"), [("headrace-hub", hub_cli.app), ("headrace-spoke", spoke_cli.app)])
def test_commands_named_in_the_pages_exist(program: str, application: typer.Typer) -> None:
    commands, options = known_words(application)
    first = {command.split()[0] for command in commands}
    for page in PAGES:
        if page.name == "RECIPES.md":
            continue  # options of recipes are the loaders'
        text = page.read_text().replace("\\\n", " ")
        for words in re.findall(rf"(?:`|^|/|\$ ){program} ([^`\n|)]*)", text, re.MULTILINE):
            word = words.split()[0] if words.split() else ""
            if re.fullmatch(r"[a-z]+", word) and re.search(
                rf"[`/]{program} {word}|^\$? *{program} {word}", text, re.MULTILINE
            ):
                assert word in first, f"{program} {word} in {page}"
            if "recipe" not in words:
                for option in re.findall(r"(?<!\S)(--[a-z][a-z-]*)", words.partition(" #")[0]):
                    assert option in options, f"{program} … {option} in {page}"
