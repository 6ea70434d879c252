"use strict";
// What both pages share. Text goes in by textContent alone: names of files and processes are other people's.
const $ = id => document.getElementById(id);
function el(tag, attributes, ...children) {
  const node = document.createElementNS(/^(svg|path|line)$/.test(tag) ? "http://www.w3.org/2000/svg" : "http://www.w3.org/1999/xhtml", tag);
  for (const [name, value] of Object.entries(attributes || {})) if (value !== null && value !== undefined) node.setAttribute(name, value);
  node.append(...children.map(child => child instanceof Node ? child : String(child)));
  return node;
}
function fill(node, ...children) { node.replaceChildren(...children); }
function say(node, text) { if (node.textContent !== text) node.textContent = text; }
function scaled(value, units, step) {
  let unit = 0;
  while (Math.abs(value) >= step && unit < units.length - 1) { value /= step; unit++; }
  return `${value >= 100 || unit === 0 ? Math.round(value) : value.toPrecision(3)} ${units[unit]}`;
}
const size = bytes => bytes === null ? "–" : scaled(bytes, ["B", "KiB", "MiB", "GiB", "TiB", "PiB"], 1024);
const rate = bytes => bytes === null ? "–" : scaled(bytes * 8, ["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"], 1000);
const share = part => part === null || part === undefined ? "–" : `${(100 * part).toFixed(part > 0 && part < 1 ? 1 : 0)} %`;
const ms = seconds => seconds === null || seconds === undefined ? "–" : seconds < 10 ? `${(1000 * seconds).toPrecision(3)} ms` : span(seconds);
function span(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 10) return `${seconds < 0.001 ? 0 : Number(seconds.toPrecision(2))} s`;
  if (seconds < 100) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 120 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
const count = number => number === null ? "–" : number.toLocaleString("en");
function tiles(node, entries) {
  fill(node, ...entries.map(([name, value, note, kind]) =>
    el("div", {}, el("dt", {}, name), el("dd", { class: kind }, value, ...(note ? [el("small", {}, note)] : [])))));
}
function table(node, caption, columns, rows) {
  if (!rows.length) { fill(node, el("p", { class: "quiet" }, caption + ": none.")); return; }
  const focused = node.contains(document.activeElement);
  const head = el("tr", {}, ...columns.map(([title, , kind]) => el("th", { scope: "col", class: kind }, title)));
  const body = rows.map(row => el("tr", {}, ...columns.map(([, of, kind], number) => {
    const text = String(of(row));
    return number ? el("td", { class: kind, title: kind === "wide" ? text : null }, text)
      : el("th", { scope: "row", class: kind }, text);
  })));
  const region = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", {}, caption), el("thead", {}, head), el("tbody", {}, ...body)));
  fill(node, region);
  if (focused) region.focus({ preventScroll: true });
}
// A curve of the last hour. Arrow keys move a cursor over its points; what stands there is written below, and read out.
function chart(node, title, ago, lines, format, least) {
  if (!node.made) {
    node.made = true;
    node.caption = el("figcaption", {});
    node.svg = el("svg", { class: "chart", viewBox: "0 0 600 96", preserveAspectRatio: "none", tabindex: "0", role: "img" });
    node.said = el("span", { class: "hidden", role: "status" });
    node.oldest = el("span", {});
    node.top = el("span", {});
    node.append(node.caption, node.svg, el("div", { class: "axis", "aria-hidden": "true" }, node.oldest, node.top, el("span", {}, "now")), node.said);
    const move = step => { node.at = Math.max(0, Math.min(node.points - 1, (node.at ?? node.points - 1) + step)); node.draw(); say(node.said, node.caption.textContent); };
    node.svg.addEventListener("keydown", event => {
      const step = { ArrowLeft: -1, ArrowRight: 1, PageUp: -12, PageDown: 12, Home: -1e9, End: 1e9 }[event.key];
      if (step) { event.preventDefault(); move(step); } else if (event.key === "Escape") { node.at = null; node.draw(); }
    });
    node.svg.addEventListener("pointermove", event => {
      const box = node.svg.getBoundingClientRect();
      node.at = Math.round((event.clientX - box.left) / box.width * (node.points - 1)); node.draw();
    });
    node.svg.addEventListener("pointerleave", () => { node.at = null; node.draw(); });
    node.svg.addEventListener("blur", () => { node.at = null; node.draw(); });
  }
  node.points = ago.length;
  const most = Math.max(least, ...lines.flatMap(line => line.values.filter(value => value !== null)));
  const x = i => ago.length < 2 ? 600 : 600 * i / (ago.length - 1), y = value => 92 - 88 * value / most;
  node.draw = () => {
    const at = node.at ?? ago.length - 1;
    const when = node.at === null || node.at === undefined ? "" : ` ${span(ago[at])} ago`;
    fill(node.caption, el("span", {}, `${title}${when}: `), ...lines.flatMap((line, number) => [
      number ? ", " : "", el("span", { class: line.kind }, line.name ? `${line.name} ` : "", el("b", {}, ago.length ? format(line.values[at]) : "–"))]));
    const paths = lines.map(line => {
      let d = "", pen = "M";
      line.values.forEach((value, i) => { if (value === null) { pen = "M"; } else { d += `${pen}${x(i).toFixed(1)} ${y(value).toFixed(1)}`; pen = "L"; } });
      return el("path", { class: line.kind, d });
    });
    const cursor = when ? [el("line", { class: "cursor", x1: x(at), x2: x(at), y1: 0, y2: 96 })] : [];
    fill(node.svg, el("line", { class: "grid", x1: 0, x2: 600, y1: 92, y2: 92 }), el("line", { class: "grid", x1: 0, x2: 600, y1: 4, y2: 4 }), ...paths, ...cursor);
  };
  node.draw();
  say(node.oldest, ago.length ? `${span(ago[0])} ago` : "");
  say(node.top, `top ${format(most)}`);
  node.svg.setAttribute("aria-label", `${title}, the last ${ago.length ? span(ago[0]) : "hour"}: ` +
    lines.map(line => `${line.name || title} now ${ago.length ? format(line.values[ago.length - 1]) : "none"}, most ${format(Math.max(0, ...line.values))}`).join("; ") +
    ". Arrow keys read single points.");
}
// Ask every two seconds while somebody looks; say so when nobody answers.
function live(draw) {
  let timer = null, failures = 0;
  async function look() {
    clearTimeout(timer);
    try {
      const answer = await fetch("live" + location.search, { cache: "no-store", signal: AbortSignal.timeout(5000) });
      if (!answer.ok) throw new Error(`status ${answer.status}`);
      const facts = await answer.json();
      failures = 0; $("lost").hidden = true;
      draw(facts);
      document.body.dataset.drawn = "yes";
    } catch (error) {
      failures++;
      if (failures > 1) { $("lost").hidden = false; say($("lost"), `No answer from the daemon (${error.message}); what stands here is old. Trying again.`); }
    }
    if (!document.hidden) timer = setTimeout(look, failures ? 4000 : 2000);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
  look();
}
