// What is taken away: the view as SVG, the data as CSV and JSON.

function save(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type: type + ";charset=utf-8" }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

const KEPT = ["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin", "opacity", "font-size", "font-weight", "text-anchor", "paint-order"];
const FONT = "system-ui, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif";

// Elements of the page as one SVG, as they are seen: their drawings, their letters line by line, their coloured boxes.
function pictureOf(nodes) {
  const boxes = nodes.map((n) => n.getBoundingClientRect());
  const room = 20, left = Math.min(...boxes.map((b) => b.left)) - room, top = Math.min(...boxes.map((b) => b.top)) - room;
  const W = Math.ceil(Math.max(...boxes.map((b) => b.right)) - left + room), H = Math.ceil(Math.max(...boxes.map((b) => b.bottom)) - top + room);
  const paper = getComputedStyle(document.documentElement).backgroundColor;
  const root = svg("svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, "font-family": FONT }, svg("rect", { width: W, height: H, fill: paper }));
  for (const node of nodes) walk(node, root, left, top);
  return new XMLSerializer().serializeToString(root);
}

function walk(node, into, left, top) {
  if (node.nodeType === Node.TEXT_NODE) return letters(node, into, left, top);
  if (node.nodeType !== Node.ELEMENT_NODE) return;
  const look = getComputedStyle(node), box = node.getBoundingClientRect();
  if (look.display === "none" || look.visibility === "hidden" || !box.width || !box.height || node.matches("button, select, input, label, .hidden, .row:not(:has(h2))") && !node.matches(".token, .overview button")) return;
  const at = { x: (box.left - left).toFixed(1), y: (box.top - top).toFixed(1), width: box.width.toFixed(1), height: box.height.toFixed(1) };
  if (node.localName === "svg") return into.append(drawn(node, at));
  if (node.localName === "canvas") return into.append(svg("image", { ...at, href: node.toDataURL(), preserveAspectRatio: "none" }));
  if (!/^(transparent|rgba\(0, 0, 0, 0\))$/.test(look.backgroundColor)) into.append(svg("rect", { ...at, fill: look.backgroundColor, rx: parseFloat(look.borderRadius) || null }));
  if (parseFloat(look.borderTopWidth) && node.matches("tr")) into.append(svg("rect", { ...at, height: 1, fill: look.borderTopColor }));
  if (node.scrollWidth > node.clientWidth + 1 || node.scrollHeight > node.clientHeight + 1) { // what is scrolled away stays away
    const window = svg("svg", { ...at, viewBox: `${at.x} ${at.y} ${at.width} ${at.height}`, overflow: "hidden" });
    if (look.overflowX !== "visible") { into.append(window); into = window; }
  }
  for (const child of node.childNodes) walk(child, into, left, top);
}

function drawn(node, at) {
  const copy = node.cloneNode(true), from = [node, ...node.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((a, i) => {
    const look = getComputedStyle(a);
    to[i].removeAttribute("style");
    for (const name of KEPT) {
      const x = look.getPropertyValue(name);
      if (x) to[i].setAttribute(name, x);
    }
    for (const name of ["class", "tabindex", "role", "id"]) to[i].removeAttribute(name);
  });
  for (const [name, x] of Object.entries(at)) copy.setAttribute(name, x);
  copy.setAttribute("overflow", "hidden");
  return copy;
}

function letters(node, into, left, top) {
  const look = getComputedStyle(node.parentElement), range = document.createRange();
  const size = parseFloat(look.fontSize);
  let line = null;
  const put = () => line && into.append(svg("text", { x: (line.left - left).toFixed(1), y: (line.bottom - top - size * 0.24 - (line.height - size * 1.17) / 2).toFixed(1), "font-size": size, "font-weight": look.fontWeight, fill: look.color, "xml:space": "preserve", text: line.text.trimEnd() }));
  for (const word of node.data.matchAll(/\S+\s*/g)) {
    range.setStart(node, word.index);
    range.setEnd(node, word.index + word[0].trimEnd().length);
    const box = range.getClientRects()[0];
    if (!box) continue;
    if (!line || Math.abs(line.top - box.top) > 3) { put(); line = { left: box.left, top: box.top, bottom: box.bottom, height: box.height, text: "" }; }
    line.left = Math.min(line.left, box.left);
    line.text += word[0].replace(/\s+/g, " ");
  }
  put();
}

const quoted = (x) => (/[",\r\n]/.test(x) ? `"${x.replaceAll('"', '""')}"` : x);
const lines = (rows) => rows.map((row) => row.map((x) => quoted(String(x))).join(",")).join("\r\n") + "\r\n";

// A run as one line for each frame; a head, or all, as one line for each weight.
function csvOfRun(run) {
  const series = Object.entries(run.series).flatMap(([panel, of]) => Object.entries(of).map(([name, y]) => [panel === name ? name : `${panel} ${name}`, y]));
  const D = run.q[0].map((_, d) => d + 1), frames = run.steps.map((_, f) => f);
  const heads = ["frame", "step", ...D.map((d) => `q_${d}`), ...run.labels.map((name) => `weight ${name}`), ...series.map(([name]) => name), ...run.labels.flatMap((name) => D.map((d) => `k_${d} ${name}`))];
  return lines([heads, ...frames.map((f) => [f, run.steps[f], ...run.q[f], ...run.weights[f], ...series.map(([, y]) => y[f]), ...(run.frozen ? run.k : run.k[f]).flat()])]);
}

function csvOfWeights(parts) {
  const rows = [["layer", "head", "query", "key", "query token", "key token", "weight"]];
  for (const part of parts) {
    if (part.kind === "weights") deep(part.weights).forEach((row, t) => row.forEach((w, s) => rows.push(["", "", t, s, part.rows[t], part.columns[s], w])));
    if (part.kind !== "heads") continue;
    const [, H, T, S] = part.shape, numbers = floats(part.weights);
    numbers.forEach((w, i) => {
      const s = i % S, t = Math.floor(i / S) % T, h = Math.floor(i / S / T) % H, l = Math.floor(i / S / T / H);
      rows.push([l, h, t, s, part.rows[t], part.columns[s], w]);
    });
  }
  return lines(rows);
}
