// Pieces of pictures: frames of panels, lines over time, bars, tables.

let panels = 0;
function panel(title, size = "", note = "") {
  const heading = el("h2", { text: title, id: `panel-${++panels}` });
  const tools = el("div", { class: "row" });
  const body = el("div");
  const node = el("section", { class: ("panel " + size).trim(), "aria-labelledby": heading.id },
    el("div", { class: "head" }, heading, tools), note ? el("p", { class: "note", text: note }) : null, body);
  tools.append(el("button", {
    type: "button", class: "wordy", text: "SVG", "aria-label": `Save “${title}” as SVG`,
    onclick: () => save(title.toLowerCase().replaceAll(/[^\p{L}\p{N}]+/gu, "-") + ".svg", "image/svg+xml", pictureOf([node])),
  }));
  return { node, body, tools, heading };
}

const swatch = (j) => {
  const mark = svg("svg", { class: "swatch", viewBox: "0 0 10 10", "aria-hidden": "true" });
  mark.append(shape(j, 5, 5, hollow(j) ? 3.8 : 4.6)); // with its line as large
  return mark;
};

// A shape goes with each colour, so that neither is needed to tell the keys apart.
function shape(j, x, y, r) {
  const at = (points) => svg("polygon", { points: points.map(([a, b]) => `${x + a * r},${y + b * r}`).join(" ") });
  const made = [
    () => svg("circle", { cx: x, cy: y, r }),
    () => at([[-0.88, -0.88], [0.88, -0.88], [0.88, 0.88], [-0.88, 0.88]]),
    () => at([[0, -1.1], [1, 0.75], [-1, 0.75]]),
    () => at([[0, -1.2], [1.1, 0], [0, 1.2], [-1.1, 0]]),
    () => at([[0, 1.1], [1, -0.75], [-1, -0.75]]),
    () => at([[-0.4, -1.1], [0.4, -1.1], [0.4, -0.4], [1.1, -0.4], [1.1, 0.4], [0.4, 0.4], [0.4, 1.1], [-0.4, 1.1], [-0.4, 0.4], [-1.1, 0.4], [-1.1, -0.4], [-0.4, -0.4]]),
    () => at([[-1, -0.6], [0, -1.2], [1, -0.6], [1, 0.6], [0, 1.2], [-1, 0.6]]),
  ][j % 7]();
  made.setAttribute("fill", hollow(j) ? "var(--panel)" : hue(j));
  made.setAttribute("stroke", hollow(j) ? hue(j) : "none");
  made.setAttribute("stroke-width", r * 0.36);
  return made;
}

// The keys at their places in a plane, each with its name where there is room.
function marks(drawing, labels, places, W) {
  const taken = [];
  places.forEach(([x, y], j) => {
    if (!(Number.isFinite(x) && Number.isFinite(y))) return;
    const dotted = shape(j, x, y, 5.2);
    dotted.setAttribute("data-key", j);
    if (!hollow(j)) dotted.setAttribute("stroke", "var(--panel)");
    drawing.append(dotted);
    const name = labels[j], half = 3.6 * Math.min([...name].length, 16) + 3, at = clamp(x, half, W - half);
    const up = [-11, 21, -26, 36, -41, 51].find((dy) => taken.every(([cx, cy, w]) => Math.abs(at - cx) > half + w || Math.abs(y + dy - cy) > 13));
    if (up === undefined) return; // no room: the shape and the table still tell which it is
    taken.push([at, y + up, half]);
    const text = svg("text", { class: "rim", x: at, y: y + up, "text-anchor": "middle", text: shortened(name, 16) });
    text.style.fill = hue(j);
    drawing.append(text);
  });
}

function arrow(drawing, a, b, ink, width) {
  const [dx, dy] = [b[0] - a[0], b[1] - a[1]], size = Math.hypot(dx, dy);
  if (!(size > 0.8 && size < Infinity)) return;
  const [u, v] = [dx / size, dy / size], head = Math.min(4.2 * width, size * 0.7), neck = [b[0] - u * head, b[1] - v * head];
  drawing.append(svg("line", { x1: a[0], y1: a[1], x2: neck[0], y2: neck[1], stroke: ink, "stroke-width": width }),
    svg("polygon", { points: `${b} ${neck[0] + v * head * 0.5},${neck[1] - u * head * 0.5} ${neck[0] - v * head * 0.5},${neck[1] + u * head * 0.5}`, fill: ink }));
}

// Lines over the steps of a run, each named at its right end. Returns what moves the cursor.
function chart(host, { title, lines, steps, low, high, dots = false, choose }) {
  const reading = el("p");
  const drawing = svg("svg", { role: "img" });
  host.replaceChildren(el("h3", { text: title }), reading, drawing);
  const finite = lines.flatMap((line) => line.y.filter(Number.isFinite));
  let bottom = low ?? Math.min(...finite), top = high ?? Math.max(...finite);
  if (!finite.length) [bottom, top] = [0, 1];
  const least = 1e-6 * Math.max(1, Math.abs(bottom), Math.abs(top)); // rounding is not drawn as a movement
  if (top - bottom < least) [bottom, top] = [(top + bottom - least) / 2, (top + bottom + least) / 2];
  const named = lines.length > 1 && lines.length <= 9;
  let x, cursor, spots, W;

  function draw(log) {
    W = Math.max(host.clientWidth, 200);
    const H = 138, left = 44, right = named ? 74 : 10, above = 6, below = 24;
    const time = (s) => (log ? Math.log10(1 + s - steps[0]) : s - steps[0]);
    const end = time(steps.at(-1)) || 1;
    x = (f) => left + (time(steps[f]) / end) * (W - left - right);
    const y = (v) => H - below - ((v - bottom) / (top - bottom)) * (H - above - below);
    drawing.setAttribute("viewBox", `0 0 ${W} ${H}`);
    drawing.setAttribute("height", H);
    drawing.replaceChildren();
    for (const t of ticks(bottom, top, 3)) {
      drawing.append(svg("line", { class: "axis", x1: left, x2: W - right, y1: y(t), y2: y(t) }));
      drawing.append(svg("text", { class: "soft", x: left - 6, y: y(t) + 4, "text-anchor": "end", text: tick(t) }));
    }
    const decades = Math.floor(end + 0.05), every = Math.ceil(decades / Math.max(1, Math.floor((W - left - right) / 58)));
    const powers = [0, ...Array.from({ length: Math.max(decades, 0) }, (_, i) => (i % every ? NaN : 10 ** (decades - i)))];
    const marks = log ? powers.filter((s) => time(s + steps[0]) <= end * 1.001) : ticks(0, end, 3);
    for (const t of marks) {
      const at = left + ((log ? time(t + steps[0]) : t) / end) * (W - left - right);
      if (log && t && at < left + 30) continue;
      const label = Math.abs(t) >= 1e4 ? (t / 1000).toLocaleString("en") + "k" : grouped(t + steps[0]);
      drawing.append(svg("text", { class: "soft", x: at, y: H - 7, "text-anchor": t === 0 ? "start" : at > W - right - 14 ? "end" : "middle", text: label }));
    }
    spots = [];
    const ends = lines.map((line) => y(line.y.findLast(Number.isFinite) ?? bottom));
    const order = ends.map((_, i) => i).sort((a, b) => ends[a] - ends[b]);
    order.forEach((i, n) => { if (n) ends[i] = Math.max(ends[i], ends[order[n - 1]] + 13); });
    order.reverse().forEach((i, n) => { ends[i] = Math.min(ends[i], n ? ends[order[n - 1]] - 13 : H - below + 2); });
    for (const [i, line] of lines.entries()) {
      let path = "", pen = false;
      line.y.forEach((v, f) => {
        if (Number.isFinite(v)) path += (pen ? "L" : "M") + x(f).toFixed(1) + " " + y(v).toFixed(1);
        pen = Number.isFinite(v);
      });
      const ink = line.ink ?? hue(i);
      if (line.dots) {
        const every = Math.max(1, Math.floor(line.y.length / 18));
        line.y.forEach((v, f) => f % every || !Number.isFinite(v) || drawing.append(svg("circle", { cx: x(f), cy: y(v), r: 3.2, fill: "none", stroke: ink, "stroke-width": 1.5 })));
      } else drawing.append(svg("path", { d: path, fill: "none", stroke: ink, "stroke-width": 1.8, "stroke-linejoin": "round", ...(hollow(i) && { "stroke-dasharray": "6 3" }) }));
      if (named) {
        const name = svg("text", { class: "soft", x: W - right + 7, y: ends[i] + 4, text: shortened(line.name, 11) });
        name.style.fill = ink;
        drawing.append(name);
        for (let most = 10; most > 1 && name.getComputedTextLength() > right - 7; most--) name.textContent = shortened(line.name, most);
      }
      spots.push({ line, y, ink, open: hollow(i) });
    }
    cursor = svg("g");
    drawing.append(cursor);
  }
  function move(f) {
    cursor.replaceChildren(svg("line", { x1: x(f), x2: x(f), y1: 4, y2: 114, stroke: "var(--soft)", "stroke-width": 1 }));
    for (const { line, y, ink, open } of spots) {
      if (Number.isFinite(line.y[f])) cursor.append(svg("circle", { cx: x(f), cy: y(line.y[f]), r: 3.4, fill: open ? "var(--panel)" : ink, stroke: open ? ink : "var(--panel)", "stroke-width": open ? 1.8 : 1.2 }));
    }
    reading.textContent = lines.length > 6 ? "" : lines.map((l) => (lines.length > 1 ? isolated(l.name) + " " : "") + digits(l.y[f])).join(" · ");
    drawing.setAttribute("aria-label", `${title} over the steps; at this one ${lines.map((l) => `${l.name} ${digits(l.y[f])}`).slice(0, 12).join(", ")}`);
  }
  const nearest = (event) => {
    const at = ((event.clientX - drawing.getBoundingClientRect().left) * W) / drawing.getBoundingClientRect().width;
    return steps.reduce((best, _, f) => (Math.abs(x(f) - at) < Math.abs(x(best) - at) ? f : best), 0);
  };
  if (choose) {
    drawing.addEventListener("pointerdown", (e) => choose(nearest(e)));
    drawing.addEventListener("pointermove", (e) => e.buttons && choose(nearest(e)));
  }
  return { draw, move };
}

// A bar to the left or right of zero, its sign written beside it.
function bar(x, most, ink) {
  const W = 150, H = 18, size = clamp(Math.abs(x) / (most || 1), 0, 1) * (W / 2 - 3) || 0;
  return svg("svg", { viewBox: `0 0 ${W} ${H}`, height: H, "aria-hidden": "true", preserveAspectRatio: "none" },
    svg("line", { x1: W / 2, x2: W / 2, y1: 0, y2: H, stroke: "var(--soft)" }),
    svg("rect", { x: x < 0 ? W / 2 - size : W / 2, y: 3, width: size, height: H - 6, fill: ink ?? (x < 0 ? "var(--minus)" : "var(--plus)") }));
}

// Rows of [header, ...cells]; a cell is text or a node.
function table(heads, rows, { foot = null, kind = "lines" } = {}) {
  const cell = (x, i) => (x instanceof Node ? el("td", { class: x.matches?.("svg, .wide") ? "bar" : "" }, x) : el("td", { text: x }));
  const line = ([name, ...cells]) => el("tr", {}, el("th", { scope: "row" }, name), ...cells.map(cell));
  return el("table", { class: kind },
    el("thead", {}, el("tr", {}, ...heads.map((h, i) => (h === "" ? el("td", { class: rows[0]?.[i] instanceof SVGElement ? "bar" : "" }) : el("th", { scope: "col", class: i ? "number" : "", text: h }))))),
    el("tbody", {}, ...rows.map(line)), foot ? el("tfoot", {}, line(foot)) : null);
}

const scrolling = (label, inside) => el("div", { class: "scroll", role: "group", tabindex: "0", "aria-label": label }, inside);

// The colours of a scale and what its ends mean.
function legend(map, low, high) {
  const canvas = el("canvas", { width: 64, height: 1, "aria-hidden": "true" }), pen = canvas.getContext("2d");
  for (let i = 0; i < 64; i++) { pen.fillStyle = rgb(colour(map, i / 63)); pen.fillRect(i, 0, 1, 1); }
  return el("div", { class: "scale" }, el("span", { text: low }), canvas, el("span", { text: high }));
}

// Why: the pull of each key, and their sum. Which key is looked at is chosen with a click or Enter on its token.
function why(host, { labels, p, gains, pulls, total, scale, chosen, choose, query }) {
  const size = length(total), unit = total.map((x) => (size > 0 ? x / size : 0));
  const parts = pulls.map((pull) => dot(pull, unit)), most = Math.max(...parts.map(Math.abs), size, 1e-300);
  const focus = host.contains(document.activeElement) ? document.activeElement.dataset.token : null;
  const rows = labels.map((name, j) => [
    el("button", { type: "button", class: "token", "data-token": j, "aria-pressed": String(j === chosen), onclick: () => choose(j === chosen ? null : j) }, swatch(j), token(name)),
    fixed(p[j]), signed(gains[j]), bar(parts[j], most, hue(j)), signed(parts[j]),
  ]);
  const made = table(["pull of", "p", "a − ā", "", "along −dL/dq"], rows, {
    foot: [`all: −dL/d${query}`, digits(p.reduce((a, b) => a + b, 0)), "", bar(size, most, "var(--ink)"), signed(size)],
  });
  made.dataset.total = JSON.stringify(total);
  made.dataset.pulls = JSON.stringify(pulls);
  const said = el("p", { class: "formula" });
  if (chosen === null) said.textContent = `Choose a token to see its pull written out. −dL/d${query} = ${vector(total)}.`;
  else said.append(el("span", { text: "c · p · (a − ā) · k = " }), token(`${digits(scale)} × ${digits(p[chosen])} × (${digits(gains[chosen])}) × k`), el("span", { text: ` = ${vector(pulls[chosen], 4)}, the pull of ` }), token(labels[chosen]));
  host.replaceChildren(scrolling("The pull of each key", made), said);
  if (focus !== null) host.querySelector(`[data-token="${focus}"]`)?.focus();
}
