"""The report: one self-contained HTML page, and the figures behind it as JSON."""
# ruff: noqa: E501 the page itself is text

from __future__ import annotations

import base64
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench.experiment.measures import (
    RESULTS,
    RUN_LENGTHS,
    STALL,
    Pair,
    Phase,
    per_second,
    read_percentiles,
    reads_series,
)
from bench.experiment.pictures import has, named
from bench.quantiles import quantile

RATIO_TARGET = 0.99
NO_STEP_TARGET = 0.97
"""Without a step nothing hides what the mount itself costs; the same share as for warm reads without a job."""
BATCHES_TARGET = 2
LOST_TARGET = 0.0001
CARRIES_SHARE = 0.95
"""A link carries a job that asks for no more than this share of its rate."""
CAPTIONS = {
    "phases": "Every run, one row each, in the order in which they ran. Colour: the job computes; red: it stands without data. "
    "Local runs (grey) stand between the others, and each run is held against those beside it. The first red is the start of the loader's workers.",
    "cold": "The first pass over data that was never here, started anew with an empty cache each time. The band is what the reference published "
    "for its own cold start.",
    "seconds": "The same cold start by the second: reads by result (late: the prefetch was on its way), how long a sample took in the "
    "loader, what crossed the link before and after compression, and how far the spoke ran ahead.",
    "cut": "Nothing passes the link between the dashed lines. The job goes on as far as the spoke had run ahead, then stands, and "
    "goes on when the link is back. It does not fail.",
    "latency": "Each sample of each run, from asking to having it in the loader's worker.",
    "wan": "Bytes over the link since the moment one wanted to train, for the mount and for a copy of everything first.",
    "cost": "What the first pass costs in bytes and in GPUs that stand idle, with the prices given. Idle time of the copy grows with the "
    "dataset; a cold mount's does not.",
    "losses": "The real model, trained on the local directory and on the mount with the same seed.",
}


@dataclass(frozen=True)
class Result:
    """What there is to report on. ``failures``: (run, why). ``settings``: what ``__main__`` says of how it was run."""

    phases: Sequence[Phase]
    settings: Mapping[str, Any]
    pairs: Sequence[Pair] = ()
    failures: Sequence[tuple[str, str]] = ()
    interrupted: bool = False

    @property
    def cold_starts(self) -> list[Phase]:
        return [phase for phase in self.phases if phase.name == "cold" or phase.name.startswith("cold-")]

    @property
    def warm_ratios(self) -> list[float]:
        """Of the runs; of the pairs, which are less noisy, where no run has a step."""
        if self.settings["mode"] == "no step" and self.pairs:
            return [pair.ratio for pair in self.pairs]
        return [phase.ratio for phase in self.phases if phase.name in WARM_RUNS and phase.ratio is not None]

    @property
    def asked_bytes_per_s(self) -> float:
        """Of storage by the local job."""
        batches_per_s = named(self.phases, "local").epoch.sweep.level_samples_per_s / float(self.settings["samples"])
        return float(self.settings["step_bytes"]) * batches_per_s

    @property
    def link_carries(self) -> bool:
        return self.asked_bytes_per_s <= CARRIES_SHARE * float(self.settings["rate_bytes_per_s"])

    @property
    def same(self) -> bool:
        return all(phase.same for phase in self.phases)


WARM_RUNS = ("warm", "warm-job", "warm-spoke")


class Verdict(NamedTuple):
    """``met``: None where the target does not apply; ``target`` then says why."""

    name: str
    value: str
    detail: str
    target: str
    met: bool | None


def verdicts(result: Result) -> list[Verdict]:
    found = []
    if ratios := result.warm_ratios:
        found.append(_ratios("warm / local, samples per second", ratios, RATIO_TARGET))
    if starts := [phase for phase in result.cold_starts if phase.ratio is not None]:
        afters = [math.inf if phase.full_speed_after is None else phase.full_speed_after for phase in starts]
        after, count = statistics.median_low(afters), len(starts)
        each = ", ".join("never" if one == math.inf else f"{one:g}" for one in afters)
        shares = [phase.lost_share(100_000) or 0.0 for phase in starts]
        lost = statistics.median(shares)
        lost_s = ", ".join(f"{phase.lost_s:+.2f}" for phase in starts)
        carried = (
            ""
            if result.link_carries
            else f"no target: the job asks {result.asked_bytes_per_s / 1e6:,.0f} MB/s, the link carries "
            f"{result.settings['rate_bytes_per_s'] / 1e6:,.0f}"
        )
        found += [
            Verdict("batches until a cold job runs at full speed", "never" if after == math.inf else f"{after:g}",
                    f"median of {count} cold starts: {each}", carried or f"at most {BATCHES_TARGET}",
                    None if carried else after <= BATCHES_TARGET),
            Verdict("of 100,000 batches lost by a cold start", percent(max(0.0, lost)), f"median of {count}: {lost_s} s against local",
                    carried or f"at most {percent(LOST_TARGET)}", None if carried else lost <= LOST_TARGET),
        ]  # fmt: skip
    trained = [phase for phase in result.phases if phase.epoch.losses[0] and phase.gained is not None]
    if trained:
        same = all(phase.same for phase in trained)
        found.append(
            Verdict(
                "losses, mount and local",
                "equal" if same else "DIFFERENT",
                f"bit by bit, {len(trained)} runs",
                "equal",
                same,
            )
        )
    if result.pairs and result.settings["mode"] != "no step":
        found.append(
            _ratios("warm / local, reading as fast as it can", [pair.ratio for pair in result.pairs], NO_STEP_TARGET)
        )
    others = [phase for phase in result.phases if not phase.name.startswith("local")]
    wrong = [phase.title for phase in others if not phase.same]
    if others:
        found.append(
            Verdict("tokens and their order, against local", "DIFFERENT" if wrong else "the same",
                    f"in {', '.join(wrong)}" if wrong else f"by checksum, batch by batch, {len(others)} runs", "the same", not wrong)
        )  # fmt: skip
    return found


def _ratios(name: str, ratios: Sequence[float], target: float) -> Verdict:
    median = statistics.median(ratios)
    detail = f"median of {len(ratios)}, {min(ratios):.3f} to {max(ratios):.3f}"
    return Verdict(name, f"{median:.3f}", detail, f"at least {target:g}", median >= target)


def percent(share: float) -> str:
    return f"{100 * share:.4f} %" if abs(share) < 0.001 else f"{100 * share:.2f} %"


def _percent(share: float, digits: int) -> str:
    return f"{100 * share:.{digits}f} %"


def table_rows(phases: Sequence[Phase]) -> list[list[str]]:
    rows = []
    for phase in phases:
        after, lost = phase.full_speed_after, phase.lost_s
        waits = phase.epoch.wait_s[1:] or phase.epoch.wait_s
        rows.append(
            [
                phase.title,
                str(len(phase.epoch.wait_s)),
                f"{phase.epoch.sweep.level_samples_per_s:,.1f}",
                "" if phase.ratio is None else f"{phase.ratio:.3f}",
                f"{_percent(phase.epoch.utilisation, 1)}",
                "" if phase.ratio is None else ("never" if after is None else str(after)),
                f"{quantile(waits, 0.5) * 1000:.1f} / {max(waits) * 1000:.0f}",
                "" if lost is None else f"{lost:+.2f}",
                f"{_percent(phase.fast_reads, 2)}",
                "" if phase.without_wait is None else f"{_percent(phase.without_wait, 1)}",
                f"{phase.wan_bytes / 1e6:,.1f}" if phase.gained is not None or phase.before_bytes else "",
            ]
        )
    return rows


HEAD = [
    "run", "batches", "samples/s", "/ local", "computing", "batches to 98 %", "wait, ms, median / max", "time lost, s",
    "samples < 5 ms", "reads without wait", "WAN, MB",
]  # fmt: skip
SHOWN = (0, 2, 3, 4, 5, 7, 10)
"""The columns that fit a terminal."""


def against_reference(result: Result) -> list[list[str]]:
    phases, rows = result.phases, []
    if has(phases, "warm-job"):
        warm = named(phases, "warm-job")
        rows.append(["samples per second, warm", "115\u2013116 of 116\u2013117 (0.99)",
                     f"{warm.epoch.sweep.level_samples_per_s:,.0f} of {warm.local_level:,.0f} ({warm.ratio:.3f})"])  # fmt: skip
    if has(phases, "cold"):
        cold, told = named(phases, "cold"), {one.name: one for one in verdicts(result)}
        full = told["batches until a cold job runs at full speed"]
        lost = [
            statistics.median(start.lost_share(count) or 0.0 for start in result.cold_starts) for count in RUN_LENGTHS
        ]
        rows += [
            ["batches until full speed, cold", "100\u2013150", f"{full.value} ({full.detail})"],
            ["computing while cold", "80\u201390 %",
             f"{_percent(cold.epoch.utilisation, 1)} over {len(cold.epoch.wait_s)} batches, the start of the workers included"],
            *[[f"cold start, share of {count:,} batches", reference, percent(max(0.0, share))]
              for count, reference, share in zip(RUN_LENGTHS, ("0.81 %", "0.08 %", "0.008 %"), lost, strict=True)],
        ]  # fmt: skip
    if has(phases, "warm-job"):
        warm = named(phases, "warm-job")
        answered = (
            "no read reached the spoke, the kernel answered them"
            if warm.without_wait is None
            else f"{_percent(warm.without_wait, 1)} of the reads at the spoke did not wait"
        )
        rows.append(
            [
                "served locally after warm-up, below 5 ms",
                "94\u201396 %",
                f"{_percent(warm.fast_reads, 2)} of samples; {answered}",
            ]
        )
    if has(phases, "cold", "copy-first"):
        less = 1 - named(phases, "cold").wan_bytes / named(phases, "copy-first").wan_bytes
        rows.append(
            [
                "WAN bytes",
                "\u201cover 30 % less\u201d",
                f"{_percent(less, 0)} less than a copy ({result.settings['dtype']} tokens)",
            ]
        )
    return rows


def scale_notes(result: Result) -> list[str]:
    settings = result.settings
    return [
        "Reference: a vendor's hub and spoke in two cloud regions 60 ms apart, LLaMA 1 B on 16 GPUs, C4 in windows of 4,096 tokens.",
        f"Here: one machine of {settings['machine']}; hub, link, spoke and job share it. The link, by {settings['link']}: {settings['link_words']}.",
        settings["mode_words"],
        f"Asked of storage: {result.asked_bytes_per_s / 1e6:,.1f} MB/s here; the reference's 116 samples a second are about 2 MB/s at 4 bytes a token. "
        f"A step here takes {settings['step_s'] * 1000:,.0f} ms, there about 3.3 s, so a second lost weighs more here than there.",
        f"The dataset: {settings['data_words']}. The reference's is far larger; a cold start does not depend on that, a copy first does.",
        "The hub's files and the local directory are in the page cache, so local runs are as fast as local can be.",
        "The reference's figures are as published and were not measured again.",
    ]


STYLE = """
:root{color-scheme:light dark;--ink:#1d2733;--dim:#5d6875;--line:#dfe4ea;--back:#f6f8fa;--paper:#fff;--good:#2e7d4f;--bad:#c0262d;--warn:#fff4e5}
@media(prefers-color-scheme:dark){:root{--ink:#dde3ea;--dim:#9aa5b1;--line:#2c343e;--back:#0f1318;--paper:#171c23;--good:#5fc48a;--bad:#ff7b83;--warn:#3a2b18}}
*{box-sizing:border-box}body{margin:0;font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;color:var(--ink);background:var(--back)}
main{max-width:1080px;margin:0 auto;padding:36px 28px 60px;background:var(--paper)}h1{font-size:27px;line-height:1.25;margin:0 0 6px}
h2{font-size:19px;margin:42px 0 8px;padding-top:18px;border-top:1px solid var(--line)}p.lead{font-size:17px;margin:0 0 10px;max-width:820px}
p.small{color:var(--dim);font-size:13.5px;max-width:860px;margin:8px 0 20px}.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(290px,1fr));gap:14px}
.card{border:1px solid var(--line);border-radius:8px;padding:14px 16px}.card b{display:block;font-size:26px;line-height:1.2;margin-bottom:4px;font-variant-numeric:tabular-nums}
.card small{color:var(--dim);display:block}.met b{color:var(--good)}.missed b{color:var(--bad)}.alert{background:var(--warn);border-radius:8px;padding:12px 16px;margin:0 0 18px}
table{border-collapse:collapse;width:100%;font-size:12.5px;margin:10px 0;font-variant-numeric:tabular-nums}th,td{padding:6px 8px;border-bottom:1px solid var(--line);text-align:right;vertical-align:top}
th{font-weight:600;color:var(--dim);vertical-align:bottom}th:first-child,td:first-child{text-align:left}table.words td{text-align:left;font-size:14px;overflow-wrap:anywhere}
table.words th{text-align:left}tr.local td{color:var(--dim)}figure{margin:22px 0}figure img{width:100%;height:auto;display:block}
figcaption{color:var(--dim);font-size:13.5px;max-width:860px}.wide{overflow-x:auto}li{margin:4px 0}code{overflow-wrap:anywhere}details{margin:8px 0}summary{cursor:pointer}
@media(max-width:700px){main{padding:22px 14px 40px}h1{font-size:22px}figure img{width:680px;max-width:none}table.runs{min-width:820px}.cards{grid-template-columns:1fr}}
@media print{main{max-width:none}figure,tr{break-inside:avoid}}
"""


def lead(result: Result) -> str:
    """What a reader takes away who reads one sentence only."""
    told = {one.name: one for one in verdicts(result)}
    parts = []
    if (warm := told.get("warm / local, samples per second")) is not None:
        parts.append(f"Once the data are here, the job runs at {warm.value} of its speed on local files")
    if starts := [start.lost_s for start in result.cold_starts if start.lost_s is not None]:
        lost_s = max(0.0, statistics.median(starts))
        parts.append(
            f"{'its' if parts else 'The'} first start, with nothing here, cost {lost_s:.1f} s against local files"
        )
    if has(result.phases, "copy-first"):
        copy = named(result.phases, "copy-first")
        parts.append(
            f"copying everything first cost {copy.before_s:.1f} s for {copy.before_bytes / 1e6:,.0f} MB, and grows with the data"
        )
    return "; ".join(parts) + "." if parts else ""


def happenings(result: Result) -> list[str]:
    phases, told = result.phases, []
    if has(phases, "cut"):
        cut = named(phases, "cut")
        told.append(
            f"With the link cut for {result.settings['cut_s']:g} s in a cold run the job lost {cut.lost_s or 0:.1f} s and went on; no read failed."
            if len(cut.marks) == 2
            else "The run in which the link was to be cut was over before that: more batches would show it."
        )
    if has(phases, "changed"):
        changed = named(phases, "changed")
        told.append(
            f"A file of {changed.notes['changed_bytes'] / 1e6:,.0f} MB replaced at the source was seen at the mount after "
            f"{changed.notes['seen_after_s'] * 1000:,.0f} ms; the job then read {changed.wan_bytes / 1e6:,.1f} MB over the link, and "
            f"{'the same' if changed.same else 'NOT the same'} tokens as the local job on the new data."
        )
    if has(phases, "cold", "no-prefetch"):
        bare, cold = named(phases, "no-prefetch"), named(phases, "cold")
        told.append(
            f"Without prefetch the same cold job runs at {bare.ratio or 0:.2f} of local; with it, at {cold.ratio or 0:.3f}."
        )
    if has(phases, "half-again"):
        half = named(phases, "half-again")
        told.append(
            f"With a cache of half the data the second pass runs at {half.ratio or 0:.3f} of local and fetches {half.wan_bytes / 1e6:,.0f} MB again."
        )
    if has(phases, "checkpoints"):
        told.append(
            f"With checkpoints written to local disk meanwhile a cold job runs at {named(phases, 'checkpoints').ratio or 0:.3f} of local."
        )
    return told


def page(result: Result, pictures: Mapping[str, Path]) -> str:
    """The whole page as text, its pictures inside. Raises OSError when a picture cannot be read."""
    settings = result.settings
    marks = {True: ("met", ""), False: ("missed", ", missed"), None: ("", "")}
    cards = "".join(
        f'<div class="card {marks[one.met][0]}"><b>{escape(one.value)}</b>{escape(one.name)}<small>{escape(one.detail)}</small>'
        f"<small>{'' if one.met is None else 'target: '}{escape(one.target)}{marks[one.met][1]}</small></div>"
        for one in verdicts(result)
    )
    figures = {name: _figure(pictures, name) for name in CAPTIONS}
    alerts = [f"{run}: {why}" for run, why in result.failures]
    if result.interrupted:
        alerts.append("interrupted: the runs after the last one shown did not take place")
    alert = f'<div class="alert">Not all runs came to their end: {escape("; ".join(alerts))}</div>' if alerts else ""
    happened = "".join(f"<li>{escape(text)}</li>" for text in happenings(result))
    reference = against_reference(result)
    sections = [
        ("The cold start", figures["cold"] + figures["seconds"]),
        (
            "Against the published reference",
            reference
            and _table(["", "reference, published", "here"], reference, "words")
            + f"<p>What differs in scale:</p><ul>{''.join(f'<li>{escape(note)}</li>' for note in scale_notes(result))}</ul>",
        ),
        ("Latency", figures["latency"]),
        ("Bytes and cost, against copying first", figures["wan"] + figures["cost"]),
        ("When something happens", (happened and f"<ul>{happened}</ul>") + figures["cut"]),
        ("The same losses", figures["losses"]),
        ("All runs", f'<div class="wide">{_table(HEAD, table_rows(result.phases), "runs")}</div>'),
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>Headrace: one training job, beside the data and {settings["rtt_ms"]:g} ms away</title><style>{STYLE}</style></head><body><main>
<h1>One training job, beside the data and {settings["rtt_ms"]:g} ms away</h1>
<p class="lead">{escape(lead(result))}</p>
<p class="small">{escape(settings["summary"])} {escape(settings["mode_words"])}</p>
{alert}<div class="cards">{cards}</div>
{figures["phases"]}
{"".join(f"<h2>{title}</h2>{inside}" for title, inside in sections if inside)}
<h2>How it was measured</h2><p>{escape(MEASURED)}</p>
<h2>How it was run</h2><p><code>{escape(settings["command"])}</code></p>
<details><summary>All settings</summary>{_table(["setting", "value"], [[name, str(value)] for name, value in settings["flags"].items()], "words")}</details>
</main></body></html>
"""


MEASURED = (
    "Samples per second is a run's level: the median over steps of ten batches, the first step (start of the workers) left out, so that one "
    "hiccup of the machine counts once and a stall that comes back counts in full. Each run is held against the mean level of the local run before "
    "it and the one after it, so that a machine that grows slower meanwhile does not count against the mount. Warm: the median of the runs in the "
    "same process, after a restart of the job, and after a restart of the spoke. Cold starts are made several times, each with an empty cache, and "
    "the median counts. Full speed: after so many batches the ten that follow run at 98 % of local or more. Time lost: from "
    "wanting to train to the last batch, less what as many batches took in the local runs beside it; below zero is noise. Reading as fast as it can: "
    "the job without any step, local and mount in turns, each two neighbours a pair; the median of the pairs counts. Computing: the step as a "
    "share of step and wait. Reads without wait: of those that reached the spoke; the kernel answers the others itself."
)


def _figure(pictures: Mapping[str, Path], name: str) -> str:
    """Nothing when it was not drawn."""
    if name not in pictures:
        return ""
    light, dark = (base64.b64encode(pictures[name + suffix].read_bytes()).decode() for suffix in ("", "-dark"))
    return (
        f'<figure><div class="wide"><picture><source media="(prefers-color-scheme: dark)" srcset="data:image/png;base64,{dark}">'
        f'<img alt="{escape(CAPTIONS[name])}" src="data:image/png;base64,{light}"></picture></div>'
        f"<figcaption>{escape(CAPTIONS[name])}</figcaption></figure>"
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr{' class=local' if row[0].startswith('local') else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def as_json(result: Result) -> dict[str, Any]:
    return {
        "settings": dict(result.settings),
        "verdicts": [one._asdict() for one in verdicts(result)],
        "against_reference": against_reference(result),
        "scale": scale_notes(result),
        "happenings": happenings(result),
        "failures": [list(one) for one in result.failures],
        "interrupted": result.interrupted,
        "pairs": [
            {"local_samples_per_s": one.local, "mount_samples_per_s": one.mount, "ratio": one.ratio}
            for one in result.pairs
        ],
        "phases": [_phase_json(phase) for phase in result.phases],
    }


def _phase_json(phase: Phase) -> dict[str, Any]:
    epoch, gained = phase.epoch, phase.gained or {}
    took = [seconds for _, seconds in epoch.reads]
    return {
        "name": phase.name,
        "title": phase.title,
        "mode": phase.mode,
        "samples_per_batch": epoch.samples,
        "level_samples_per_s": epoch.sweep.level_samples_per_s,
        "local_level_samples_per_s": phase.local_level if phase.local else None,
        "ratio": phase.ratio,
        "same_data": phase.same,
        "utilisation": epoch.utilisation,
        "full_speed_after_batches": phase.full_speed_after,
        "lost_s": phase.lost_s,
        "lost_share": {str(count): phase.lost_share(count) for count in RUN_LENGTHS},
        "before_s": phase.before_s,
        "wan_bytes": phase.wan_bytes,
        "reads": {result: gained.get(reads_series(result)) for result in RESULTS},
        "stall_s": gained.get(STALL),
        "samples_below_5_ms": phase.fast_reads,
        "sample_s": {f"p{share:g}": quantile(took, share / 100) for share in (50, 95, 99, 99.9, 100)},
        "notes": dict(phase.notes),
        "marks": [[at_s - epoch.started_s, what] for at_s, what in phase.marks],
        "losses": [[float.fromhex(loss) for loss in rank] for rank in epoch.losses],
        "losses_hex": [list(rank) for rank in epoch.losses],
        "checksums": [list(rank) for rank in epoch.checksums],
        "batches": [
            {"wait_s": wait, "step_s": step, "samples_per_s": epoch.samples / (wait + step), "utilisation": step / (wait + step)}
            for wait, step in zip(epoch.wait_s, epoch.step_s, strict=True)
        ],
        "seconds": per_second(phase.seconds, epoch.started_s),
        "sample_percentiles": [
            {"second": second, "p50_s": p50, "p95_s": p95, "p99_s": p99}
            for second, p50, p95, p99 in read_percentiles(epoch.reads, epoch.started_s)
            if not math.isnan(p50)
        ],
    }  # fmt: skip
