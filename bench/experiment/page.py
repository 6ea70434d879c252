"""The report: one self-contained HTML page, and the figures behind it as JSON."""
# ruff: noqa: E501 the page itself is text

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from bench.experiment.measures import (
    RESULTS,
    RUN_LENGTHS,
    STALL,
    Phase,
    per_second,
    quantile,
    read_percentiles,
    reads_series,
)
from bench.experiment.pictures import named

RATIO_TARGET = 0.99
BATCHES_TARGET = 2
LOST_TARGET = 0.0001
CAPTIONS = {
    "phases": "Every run, one row each, in the order in which they ran. Colour: the job computes; red: it stands without data. "
    "Local runs (grey) stand between the others, and each run is held against those beside it.",
    "cold": "The first pass over data that was never here. The band is what the reference published for its own cold start.",
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


class Verdict(NamedTuple):
    name: str
    value: str
    target: str
    met: bool


def verdicts(phases: Sequence[Phase]) -> list[Verdict]:
    cold = named(phases, "cold")
    warm = [named(phases, name) for name in ("warm", "warm-job", "warm-spoke")]
    ratio = min(phase.ratio or 0.0 for phase in warm)
    after, lost = cold.full_speed_after, cold.lost_share(100_000) or 0.0
    trained = sum(1 for phase in phases if phase.epoch.losses[0] and phase.gained is not None)
    found = [
        Verdict("warm / local, samples per second", f"{ratio:.3f}", f"at least {RATIO_TARGET}", ratio >= RATIO_TARGET),
        Verdict("batches until a cold job runs at full speed", "never" if after is None else str(after),
                f"at most {BATCHES_TARGET}", after is not None and after <= BATCHES_TARGET),
        Verdict("cold start, share of 100,000 batches", percent(max(0.0, lost)), f"at most {percent(LOST_TARGET)}", lost <= LOST_TARGET),
    ]  # fmt: skip
    if trained:  # runs whose losses differ end the experiment before there is a report
        found.append(Verdict("losses, mount and local", "equal bit by bit", f"equal, {trained} runs", True))
    return found


def percent(share: float) -> str:
    return f"{100 * share:.4f} %" if abs(share) < 0.001 else f"{100 * share:.2f} %"


def table_rows(phases: Sequence[Phase]) -> list[list[str]]:
    rows = []
    for phase in phases:
        after, lost = phase.full_speed_after, phase.lost_s
        waits = phase.epoch.wait_s[1:] or phase.epoch.wait_s
        rows.append(
            [
                phase.title,
                phase.mode,
                str(len(phase.epoch.wait_s)),
                f"{phase.epoch.sweep.level_samples_per_s:,.1f}",
                "" if phase.ratio is None else f"{phase.ratio:.3f}",
                f"{phase.epoch.utilisation:.1%}",
                "" if phase.ratio is None else ("never" if after is None else str(after)),
                f"{quantile(waits, 0.5) * 1000:.1f} / {max(waits) * 1000:.0f}",
                "" if lost is None else f"{lost:+.2f}",
                f"{phase.fast_reads:.2%}",
                "" if phase.without_wait is None else f"{phase.without_wait:.1%}",
                f"{phase.wan_bytes / 1e6:,.1f}" if phase.gained is not None or phase.before_bytes else "",
            ]
        )
    return rows


HEAD = [
    "run", "mode", "batches", "samples/s", "/ local", "compute busy", "batches to 98 %", "wait a batch, median / max ms", "time lost, s",
    "samples < 5 ms", "reads without wait", "WAN, MB",
]  # fmt: skip


def against_reference(phases: Sequence[Phase], settings: Mapping[str, Any]) -> list[list[str]]:
    cold, warm = named(phases, "cold"), named(phases, "warm-job")
    after = cold.full_speed_after
    utilised = cold.epoch.utilisation
    lost = [max(0.0, cold.lost_share(count) or 0.0) for count in RUN_LENGTHS]
    answered = (
        "the kernel answered all"
        if warm.without_wait is None
        else f"{warm.without_wait:.1%} of reads at the spoke without a wait"
    )
    return [
        ["samples per second, warm", "115-116 of 116-117 (0.99)",
         f"{warm.epoch.sweep.level_samples_per_s:,.0f} of {warm.local_level:,.0f} ({warm.ratio:.3f})"],
        ["batches until full speed, cold", "100-150", "never" if after is None else str(after)],
        ["compute busy while cold", "80-90 %", f"{utilised:.1%} over all {len(cold.epoch.wait_s)} batches, the start of the workers included"],
        ["served locally after warm-up, below 5 ms", "94-96 %", f"{warm.fast_reads:.2%} of samples; {answered}"],
        *[[f"cold start as a share of {count:,} batches", reference, percent(share)]
          for count, reference, share in zip(RUN_LENGTHS, ("0.81 %", "0.08 %", "0.008 %"), lost, strict=True)],
        ["WAN bytes", "\u201cover 30 % less\u201d",
         f"{1 - cold.wan_bytes / named(phases, 'copy-first').wan_bytes:.0%} less than a copy ({settings['dtype']} tokens)"],
    ]  # fmt: skip


def scale_notes(settings: Mapping[str, Any]) -> list[str]:
    read_rate = settings["step_bytes"] / settings["step_s"] / 1e6
    return [
        "Reference: a vendor's hub and spoke in two cloud regions 60 ms apart, LLaMA 1 B on 16 GPUs, C4 in windows of 4,096 tokens.",
        f"Here: {settings['machine']}; hub, link, spoke and job share it. The link is {settings['link']}: {settings['link_words']}.",
        settings["mode_words"],
        f"Asked of storage: {read_rate:,.1f} MB/s here; the reference's 116 samples a second are about 2 MB/s at 4 bytes a token. A step here "
        f"takes {settings['step_s'] * 1000:,.0f} ms, there about 3.3 s, so a second lost weighs more here than there.",
        f"The dataset: {settings['data_words']}. The reference's is far larger; a cold start does not depend on that, a copy first does.",
        "The hub's files and the local directory are in the page cache, so local runs are as fast as local can be.",
        "The reference's figures are as published and were not measured again.",
    ]


STYLE = """
:root{--ink:#1d2733;--dim:#5d6875;--line:#dfe4ea;--accent:#1f6f8b;--good:#2e7d4f;--bad:#c0262d}
*{box-sizing:border-box}body{margin:0;font:15px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;color:var(--ink);background:#f6f8fa}
main{max-width:1080px;margin:0 auto;padding:36px 28px 60px;background:#fff}h1{font-size:27px;line-height:1.25;margin:0 0 6px}
h2{font-size:19px;margin:42px 0 8px;padding-top:18px;border-top:1px solid var(--line)}p.lead{color:var(--dim);margin:0 0 22px;max-width:820px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(215px,1fr));gap:14px}.card{border:1px solid var(--line);border-radius:8px;padding:14px 16px}
.card b{display:block;font-size:25px;line-height:1.2;margin-bottom:4px}.card small{color:var(--dim);display:block}.met b{color:var(--good)}.missed b{color:var(--bad)}
table{border-collapse:collapse;width:100%;font-size:12.5px;margin:10px 0}th,td{padding:6px 8px;border-bottom:1px solid var(--line);text-align:right;vertical-align:top}
th{font-weight:600;color:var(--dim);vertical-align:bottom}th:first-child,td:first-child{text-align:left}table.words td{text-align:left;font-size:14px}
table.words th{text-align:left}tr.local td{color:var(--dim)}figure{margin:22px 0}figure img{width:100%;height:auto;display:block}
figcaption{color:var(--dim);font-size:13.5px;max-width:860px}.wide{overflow-x:auto}li{margin:4px 0}
"""


def page(phases: Sequence[Phase], pictures: Mapping[str, Path], settings: Mapping[str, Any]) -> str:
    """The whole page as text, its pictures inside. Raises OSError when a picture cannot be read."""
    cards = "".join(
        f'<div class="card {"met" if one.met else "missed"}"><b>{escape(one.value)}</b>{escape(one.name)}'
        f"<small>target: {escape(one.target)}{'' if one.met else ', missed'}</small></div>"
        for one in verdicts(phases)
    )
    figures = {name: _figure(path, CAPTIONS[name]) for name, path in pictures.items()}
    cut, changed, cold = named(phases, "cut"), named(phases, "changed"), named(phases, "cold")
    happened = [
        f"With the link cut for {settings['cut_s']:g} s in a cold run the job lost {cut.lost_s or 0:.1f} s and went on; no read failed."
        if len(cut.marks) == 2
        else "The run in which the link was to be cut was over before that: more batches would show it.",
        f"A shard of {changed.notes['changed_bytes'] / 1e6:,.0f} MB replaced at the source was seen at the mount after "
        f"{changed.notes['seen_after_s'] * 1000:,.0f} ms; the job then read {changed.wan_bytes / 1e6:,.1f} MB over the link, and the same "
        "tokens as the local job on the new data.",
        f"Without prefetch the same cold job runs at {named(phases, 'no-prefetch').ratio or 0:.2f} of local; with it, at {cold.ratio or 0:.3f}.",
        "Every run saw the same tokens in the same order as the local runs, by checksum, batch by batch.",
    ]
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>Headrace: one training job, beside the data and {settings["rtt_ms"]:g} ms away</title><style>{STYLE}</style></head><body><main>
<h1>One training job, beside the data and {settings["rtt_ms"]:g} ms away</h1>
<p class="lead">{escape(settings["summary"])}</p>
<div class="cards">{cards}</div>
{figures["phases"]}
<h2>The cold start</h2>{figures["cold"]}{figures["seconds"]}
<h2>Against the published reference</h2>{_table(["", "reference, published", "here"], against_reference(phases, settings), "words")}
<p>What differs in scale:</p><ul>{"".join(f"<li>{escape(note)}</li>" for note in scale_notes(settings))}</ul>
<h2>Latency</h2>{figures["latency"]}
<h2>Bytes and cost, against copying first</h2>{figures["wan"]}{figures["cost"]}
<h2>When something happens</h2><ul>{"".join(f"<li>{escape(text)}</li>" for text in happened)}</ul>{figures["cut"]}
{"<h2>The same losses</h2>" + figures["losses"] if "losses" in figures else ""}
<h2>All runs</h2><div class="wide">{_table(HEAD, table_rows(phases))}</div>
<p class="lead">Samples per second: the median of steps of ten batches, the first step left out. Time lost: from wanting to train to the last batch, less
what as many batches took in the local runs beside it; below zero is noise. Reads without wait: of those that reached the spoke; the kernel answers
the others itself. Time lost in the cold start, as a share of a run: {", ".join(f"{percent(max(0.0, cold.lost_share(n) or 0.0))} of {n:,} batches" for n in RUN_LENGTHS)}.</p>
<h2>How it was run</h2><p><code>{escape(settings["command"])}</code></p>
{_table(["setting", "value"], [[name, str(value)] for name, value in settings["flags"].items()], "words")}
</main></body></html>
"""


def _figure(path: Path, caption: str) -> str:
    data = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}"><figcaption>{escape(caption)}</figcaption></figure>'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr{' class=local' if row[0].startswith('local') else ''}>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>"
        for row in rows
    )
    return f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'


def as_json(phases: Sequence[Phase], settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "settings": dict(settings),
        "verdicts": [one._asdict() for one in verdicts(phases)],
        "against_reference": against_reference(phases, settings),
        "scale": scale_notes(settings),
        "phases": [_phase_json(phase) for phase in phases],
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
