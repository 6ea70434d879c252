"""How ``status`` reads at a terminal; the facts themselves come from the running spoke as JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from common.terminal import printable
from common.units import format_rate, format_size


def _scrub(scrub: Mapping[str, Any]) -> str:
    if not scrub["rate_bytes_per_s"]:
        return "off (--scrub-rate 0)"
    last = scrub["last_pass"]
    seen = f", last pass {format_size(last['checked_bytes'])}, {last['bad_blocks']} bad blocks" if last else ""
    return (
        f"{100 * scrub['progress']:.0f} % of this pass at {format_size(scrub['rate_bytes_per_s'])}/s, "
        f"{scrub['bad_blocks']} bad blocks found{seen}"
    )


def render(facts: Mapping[str, Any]) -> str:
    """Facts as :meth:`spoke.daemon.Spoke.status` gives them, to some twenty lines."""
    hub, names, cache = facts["hub"], facts["names"], facts["cache"]
    reads, prefetch, path = facts["reads"], facts["prefetch"], facts["data_path"]
    ahead = path["read_ahead"]
    rtt = "?" if hub["rtt_s"] is None else f"{hub['rtt_s'] * 1000:.1f} ms"
    stale = "never heard" if names["staleness_s"] is None else f"{names['staleness_s']:.1f} s ago"
    total_reads = reads["hit"] + reads["late"] + reads["miss"]
    hit_rate = f"{100 * reads['hit'] / total_reads:.1f} %" if total_reads else "no reads yet"
    kept = facts["supervision"]
    lines = [
        f"{facts['mountpoint']}  {facts['dataset']} from {hub['address']}  (spoke {facts['version']}, pid {facts['pid']}, "
        f"up {facts['uptime_s']:.0f} s)",
        f"  phase      {facts['phase']['name']}: {facts['phase']['why']}",
        f"  hub        {'linked' if hub['connected'] else 'NOT LINKED: ' + hub['in_words']}, {len(hub['links'])} links, "
        f"round trip {rtt}, best rate lately {format_rate(hub['rate_bytes_per_s'])}",
        f"  names      {names['entries']} names, {format_size(names['file_bytes'])}, revision {names['revision']}, "
        + (f"pinned to {names['pinned']}" if names["pinned"] else f"confirmed {stale}"),
        f"  cache      {format_size(cache['used_bytes'])} of {format_size(cache['capacity_bytes'])} in {cache['directory']}, "
        f"{format_size(cache['evicted_bytes'])} evicted, {cache['corrupt_blocks']} corrupt blocks",
        f"  scrub      {_scrub(cache['scrub'])}",
        f"  reads      {total_reads} ({hit_rate} without waiting), {reads['stall_s']:.1f} s waited for the hub, "
        f"{reads['waiting']} waiting now"
        + (
            f", {reads['waiting_long']} of them for up to {reads['longest_wait_s']:.0f} s"
            if reads["waiting_long"]
            else ""
        ),
        f"  data path  {'passthrough' if path['passthrough'] else 'plain: ' + path['reason']}, "
        f"{path['passthrough_opens']} of {reads['opens']} opens by the kernel itself",
        f"  prefetch   {format_size(prefetch['asked_bytes'])} asked, {format_size(prefetch['used_bytes'])} used, "
        f"{format_size(prefetch['wasted_bytes'])} wasted, {format_size(prefetch['outstanding_bytes'])} on the way",
        f"  learned    {_learned(facts['learned'])}",
        f"  readahead  {ahead['kib']} KiB for files opened now ({ahead['reason']})"
        + (f"; {ahead['wished_kib']} KiB would be better, but {ahead['failure']}" if ahead["failure"] else ""),
        f"  WAN        {format_size(hub['received_bytes'])} received",
    ]
    by = f", at the port of {facts['metrics_served_by']}" if facts["metrics_served_by"] else ""
    lines.append(
        f"  metrics    {'http://' + facts['metrics'] + '/metrics' if facts['metrics'] else 'none: the port is taken'}{by}"
    )
    if kept is not None:
        ended = f", the last {kept['last_end']}" if kept["last_end"] else ""
        lines.append(
            f"  processes  supervisor {kept['supervisor_pid']} keeps the mount, worker {kept['worker_pid']} serves it; "
            f"{kept['restarts']} restarts{ended}; {kept['upgrades']} upgrades"
            + ("" if kept["resend"] else "; no re-send on this kernel: reads in a dying worker's hand get EIO")
        )
    stalls = facts["stalls"]
    lines.extend(f"  stalls     {said}" for said in stalls["said"][:3])
    lines.extend(f"  training   {_training(job)}" for job in facts["training"][:8])
    memory = facts["memory"]
    lines.append(
        f"  memory     {format_size(memory['own_bytes'])} of {format_size(memory['limit_bytes'])} ({memory['origin']}), "
        f"{format_size(memory['held_bytes']['names'] + memory['held_bytes']['index'])} more for names and what is cached, "
        f"{memory['open_descriptors']} of {memory['most_descriptors']} descriptors"
    )
    pins = facts["pins"]
    if pins["path_count"] or pins["failure"]:
        left = f", {pins['left_out_files']} files fit no more" if pins["left_out_files"] else ""
        lines.append(
            f"  pins       {pins['path_count']} paths, {pins['files']} files, {format_size(pins['bytes'])} of at most "
            f"{format_size(pins['most_bytes'])}{left}" + (f"; {pins['failure']}" if pins["failure"] else "")
        )
    lines.extend(
        f"  warm       {job['what']}: {job['state']}, {format_size(job['verified_bytes'])} of {format_size(job['total_bytes'])}"
        + (f": {job['error']}" if job["error"] else "")
        for job in facts["warm"]
    )
    held = names.get("held")
    if held:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - held["for_s"]))
        lines.append(f"  HELD       the hub holds its names as they were since {since}: {printable(held['reason'])}")
    if names["suspicious"]:
        lines.append(f"  SUSPICIOUS {names['suspicious']}; if it is real: headrace-spoke accept {facts['mountpoint']}")
    lines.extend(f"  NOTE       {note}" for note in facts["notes"])
    chosen = [f"{name}={entry['value']} ({entry['source']})" for name, entry in facts["settings"].items()
              if entry["source"] != "default"]  # fmt: skip
    lines.append(f"  settings   {', '.join(chosen) if chosen else 'all default'}")
    return "\n".join(lines)


def _learned(facts: Mapping[str, Any]) -> str:
    if not facts["enabled"]:
        return "off"
    job = facts["last_job"]
    last = f"; the last job read {format_size(job['bytes'])} of {job['files']} files" if job["files"] else ""
    return (
        f"{facts['orders']} orders kept, {facts['proven_orders']} of them followed before; {facts['recorded_steps']} steps of this "
        f"epoch recorded, {facts['epochs_seen']} epochs seen{last}"
    ) + _shared(facts["shared"])


def _shared(facts: Mapping[str, Any]) -> str:
    """What goes to other spokes and comes from them."""
    if not facts["enabled"]:
        return "; not shared with other spokes"
    held = [f"\n             {order['name']}, {order['origin']}" + (", followed before" if order["proven"] else "")
            for order in facts["held"]]  # fmt: skip
    why = (
        f" ({facts['last_error']})"
        if facts["last_error"]
        else ""
        if facts["hub_keeps_orders"]
        else " (no hub that keeps orders)"
    )
    return f"; {facts['told']['told']} told to the hub, {len(held)} of other spokes{why}" + "".join(held)


def render_loss(loss: Mapping[str, Any]) -> str:
    """What accepting a loss would take away, as the spoke's command ``loss`` tells it."""
    more = loss["files"] - len(loss["examples"])
    lines = [
        str(loss["suspicious"]),
        f"  lost would be {loss['files']} files of {format_size(loss['file_bytes'])}, of which {format_size(loss['cached_bytes'])} "
        f"are cached here, and {loss['others']} directories and links",
        *(f"    {path}" for path in loss["examples"]),
        *([f"    and {more} more"] if more else []),
    ]
    return "\n".join(lines)


def _training(job: Mapping[str, Any]) -> str:
    recent = job["recent"]
    if recent["step_s_median"] is None:
        return f"{job['who']}: no step yet"
    waited, stalled = recent["data_wait_share"], recent["mount_stall_share"]
    return (
        f"{job['who']}: {job['steps']} steps, {recent['step_s_median']:.3g} s each, "
        + ("" if waited is None else f"{100 * waited:.1f} % without data, ")
        + ("" if stalled is None else f"{100 * stalled:.1f} % stalled at this mount ")
        + f"(the last {recent['steps']})"
    )
