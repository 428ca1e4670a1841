// A head over thousands of tokens: its blocks at the detail that fits, and the rows that were kept.

const EMPTY = "0", FULL = "2", STATES = { 0: "EMPTY", 1: "PARTIAL", 2: "FULL" };

function blocksPanels(part) {
  const [n, m] = part.shape, { T, S, states } = part, high = Math.ceil(T / n), wide = Math.ceil(S / m);
  const of = { mass: floats(part.mass), largest: floats(part.largest) }, exact = floats(part.exact);
  const all = panel(`Attention of ${grouped(T)} queries to ${grouped(S)} keys`, part.rows.length ? "large" : "", "Queries from top to bottom, keys from left to right. Mass is the share of a query’s weight that falls into a block, on average over its queries. Choose a place with a click, or by its numbers.");
  const one = part.rows.length ? panel("One row, exact", "small", `Kept for ${part.rows.length === 1 ? "one query" : `${part.rows.length} queries`} of ${grouped(T)}: ${digits((16 * part.rows.length * S) / 3e6, 2)} MB of this page. The nearest to the query that is chosen is shown; arrowheads at the edge of the picture say where they lie.`) : null;
  const what = el("select", { id: "blocks-of", onchange: () => draw() }, el("option", { value: "mass", text: "mean mass" }), el("option", { value: "largest", text: "largest weight" }));
  const field = (label, id, most) => { const input = el("input", { type: "number", id, min: 0, max: most - 1, step: 1, value: 0, oninput: () => { if (Number.isInteger(input.valueAsNumber)) pick(query.valueAsNumber || 0, key.valueAsNumber || 0, false); } }); return input; };
  const query = field("Query", "blocks-query", T), key = field("Key", "blocks-key", S);
  const overlay = el("input", { type: "checkbox", id: "blocks-mask", onchange: () => draw() });
  overlay.checked = true;
  const action = (text, label, act) => el("button", { type: "button", class: "wordy", text, "aria-label": label, onclick: act });
  const canvas = el("canvas", { class: "blocks", role: "img" }), ends = el("div", { class: "row" }), reading = el("p", { class: "formula", id: "block", "aria-live": "polite" }), detail = el("p", { class: "note" });
  all.body.append(el("div", { class: "row" }, el("label", {}, "Show", what), el("label", {}, "Query", query), el("label", {}, "Key", key),
    action("+", "Zoom in on the place", () => zoom(2)), action("−", "Zoom out", () => zoom(0.5)), action("Whole", "The whole", () => zoom(0)),
    ...(states ? [el("label", {}, overlay, "mask")] : [])), canvas, ends, detail, reading);
  let view = { i: 0, j: 0, rows: n, columns: m }, place = [0, 0];

  function zoom(by) {
    const rows = by ? clamp(Math.round(view.rows / by), Math.min(4, n), n) : n, columns = by ? clamp(Math.round(view.columns / by), Math.min(4, m), m) : m;
    const centre = [Math.floor(place[0] / high), Math.floor(place[1] / wide)];
    view = { rows, columns, i: clamp(centre[0] - (rows >> 1), 0, n - rows), j: clamp(centre[1] - (columns >> 1), 0, m - columns) };
    draw();
  }
  // At most 128 cells a side: mass is the mean over the queries of blocks that are joined and the sum over their keys.
  function cells() {
    const by = Math.ceil(Math.max(view.rows, view.columns) / 128), name = what.value, source = of[name];
    const [height, width] = [Math.ceil(view.rows / by), Math.ceil(view.columns / by)], values = [], kept = [];
    for (let i = 0; i < height; i++) for (let j = 0; j < width; j++) {
      let x = 0, queries = 0, empty = 0, full = 0, count = 0;
      for (let a = view.i + i * by; a < Math.min(view.i + (i + 1) * by, view.i + view.rows); a++) {
        const size = Math.min(high, T - a * high);
        queries += size;
        for (let b = view.j + j * by; b < Math.min(view.j + (j + 1) * by, view.j + view.columns); b++) {
          const w = source[a * m + b];
          x = name === "mass" ? x + w * size : Number.isNaN(w) ? w : Math.max(x, w);
          if (states) { count++; empty += states[a][b] === EMPTY; full += states[a][b] === FULL; }
        }
      }
      values.push(name === "mass" ? x / queries : x);
      kept.push(empty === count ? EMPTY : full === count ? FULL : "1");
    }
    return { by, height, width, values, kept };
  }
  function draw() {
    const { by, height, width, values, kept } = cells(), top = Math.max(...values.filter(Number.isFinite), 1e-12);
    const W = clamp(all.body.clientWidth, 220, 640), side = W / width, H = Math.min(W, Math.round(side * height)), tall = H / height;
    const sharp = Math.max(1, devicePixelRatio), pen = canvas.getContext("2d");
    canvas.width = W * sharp; canvas.height = H * sharp;
    canvas.style.width = `${W}px`; canvas.style.height = `${H}px`;
    pen.scale(sharp, sharp);
    values.forEach((x, c) => {
      const [i, j] = [Math.floor(c / width), c % width], hatched = states && overlay.checked && kept[c] === EMPTY;
      pen.fillStyle = hatched ? "#8a8f98" : rgb(colour(VIRIDIS, Math.sqrt(x / top)) ?? [128, 128, 128]); // √: faint blocks are seen
      pen.fillRect(j * side, i * tall, side + 0.6, tall + 0.6);
      if (states && overlay.checked && kept[c] === "1") { pen.strokeStyle = "#ffffff"; pen.lineWidth = 1; pen.strokeRect(j * side + 0.5, i * tall + 0.5, side - 1, tall - 1); }
    });
    const at = [(place[0] / high - view.i) / view.rows * H, (place[1] / wide - view.j) / view.columns * W];
    pen.lineWidth = 1.5;
    for (const [ink, r] of [["#ffffff", 6], ["#000000", 7.5]]) { pen.strokeStyle = ink; pen.beginPath(); pen.arc(at[1], at[0], r, 0, 7); pen.stroke(); }
    for (const t of part.rows) { // where the rows lie that were kept
      const y = ((t / high - view.i) / view.rows) * H;
      if (y < 0 || y > H) continue;
      pen.fillStyle = "#ffffff"; pen.strokeStyle = "#000000"; pen.lineWidth = 1; pen.beginPath(); pen.moveTo(W, y - 5); pen.lineTo(W - 8, y); pen.lineTo(W, y + 5); pen.closePath(); pen.fill(); pen.stroke();
    }
    ends.replaceChildren(legend(VIRIDIS, "0", digits(top, 4)), ...(states && overlay.checked ? [el("span", { class: "note", text: "grey: EMPTY under the mask; framed in white: PARTIAL" })] : []));
    detail.textContent = `Queries ${span(view.i, view.rows, high, T)}, keys ${span(view.j, view.columns, wide, S)}; a cell is ${grouped(by * high)} × ${grouped(by * wide)} tokens. Colours follow the square root.`;
    canvas.setAttribute("aria-label", `${what.selectedOptions[0].text} of blocks. ${detail.textContent}`);
    canvas.dataset.cells = JSON.stringify([height, width]);
    canvas.dataset.top = top;
  }
  const span = (from, count, size, most) => `${grouped(from * size)} to ${grouped(Math.min((from + count) * size, most) - 1)}`;
  function pick(t, s, fill = true) {
    place = [clamp(t, 0, T - 1), clamp(s, 0, S - 1)];
    if (fill) [query.value, key.value] = place;
    const [i, j] = [Math.floor(place[0] / high), Math.floor(place[1] / wide)];
    reading.textContent = `Queries ${span(i, 1, high, T)}, keys ${span(j, 1, wide, S)}: ${digits(100 * of.mass[i * m + j], 2)} % of their weight, the largest weight ${digits(of.largest[i * m + j], 4)}${states ? `; the mask: ${STATES[states[i][j]]}` : ""}.`;
    draw();
    if (one) row();
  }
  function row() {
    const r = part.rows.reduce((best, t, i) => (Math.abs(t - place[0]) < Math.abs(part.rows[best] - place[0]) ? i : best), 0);
    const w = Array.from(exact.subarray(r * S, (r + 1) * S)), W = Math.max(one.body.clientWidth, 200), H = 110, bins = Math.min(S, Math.floor(W / 2));
    const heights = new Array(bins).fill(0);
    w.forEach((x, s) => { const b = Math.floor((s * bins) / S); if (x > heights[b]) heights[b] = x; });
    const top = Math.max(...heights, 1e-12);
    one.heading.textContent = `The row of query ${grouped(part.rows[r])}, exact`;
    const path = heights.map((x, b) => (x > 0 ? `M${((b + 0.5) * W / bins).toFixed(1)} ${H}V${(H - (H - 4) * Math.sqrt(x / top)).toFixed(1)}` : "")).join("");
    const drawing = svg("svg", { role: "img", viewBox: `0 0 ${W} ${H + 18}`, height: H + 18, "aria-label": `Weights of query ${part.rows[r]} over the keys, up to ${digits(top)}` },
      svg("path", { d: path, stroke: "var(--k0)", "stroke-width": Math.max(1, W / bins - 0.5), fill: "none" }),
      svg("text", { class: "soft", x: 0, y: H + 14, text: "key 0" }), svg("text", { class: "soft", x: W, y: H + 14, "text-anchor": "end", text: grouped(S - 1) }));
    const best = w.map((x, s) => [x, s]).filter(([x]) => x > 0).sort((a, b) => b[0] - a[0]).slice(0, 10);
    const sum = w.reduce((a, b) => a + b, 0), shown = best.reduce((a, [x]) => a + x, 0);
    const listed = table(["key", "weight"], best.map(([x, s]) => [grouped(s), digits(x, 5)]), { foot: [`these ${best.length}`, `${digits(shown, 5)} of ${digits(sum, 5)}`] });
    listed.dataset.row = JSON.stringify(best.map(([x, s]) => [s, x]));
    one.body.replaceChildren(drawing, el("p", { class: "note", text: `Bars: the largest weight of each ${grouped(Math.ceil(S / bins))} keys, as its square root.` }), listed);
  }
  canvas.addEventListener("pointerdown", (e) => {
    const box = canvas.getBoundingClientRect();
    pick(Math.floor((view.i + ((e.clientY - box.top) / box.height) * view.rows) * high), Math.floor((view.j + ((e.clientX - box.left) / box.width) * view.columns) * wide));
  });
  all.after = () => pick(part.rows[0] ?? 0, 0);
  all.resize = () => { draw(); if (one) row(); };
  return { made: [all, one].filter(Boolean), show: (to) => { zoom(0); pick(to.row, 0); return { blocks: all.node, ...(one && { row: one.node }) }; } };
}

PANELS.blocks = blocksPanels;
