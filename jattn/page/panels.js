// The panels: one head, its steps, all heads, a run.

// One head as a table in colours, dense where it would be cut. A query is chosen with a click or Enter on its token.
function heatmap(host, options) {
  for (const dense of options.columns.length > 12 ? [true] : [false, true]) {
    const held = drawHeatmap(host, options, dense);
    if (held.scrollWidth <= held.clientWidth) return;
  }
}
function drawHeatmap(host, { weights, rows, columns, chosen, choose, caption }, dense) {
  const n = dense ? 2 : 3;
  const head = el("tr", {}, el("td"), ...columns.map((name) => el("th", { scope: "col" }, token(name))), el("th", { scope: "col", class: "number", text: "entropy" }));
  const body = weights.map((row, t) => {
    const name = choose ? el("button", { type: "button", class: "token", "data-row": t, "aria-pressed": String(t === chosen), onclick: () => choose(t) }, token(rows[t])) : token(rows[t]);
    const cells = row.map((w) => {
      const cell = el("td", { text: dense ? fixed(w, n).replace(/^0\./, ".") : fixed(w, n) });
      paint(cell, w);
      return cell;
    });
    return el("tr", {}, el("th", { scope: "row" }, name), ...cells, el("td", { class: "entropy", text: digits(entropy(row), 2) }));
  });
  const made = el("table", { class: dense ? "map dense" : "map" }, el("thead", {}, head), el("tbody", {}, ...body));
  const held = scrolling("Weights, a row for each query", made);
  host.replaceChildren(held, ...(caption ? [el("p", { class: "note", text: caption })] : []), legend(VIRIDIS, "0", "1"));
  return held;
}

function attentionPanels(part) {
  const of = Object.fromEntries(["weights", "scores", "scaled", "values", "out", "keys", "gains"].map((name) => [name, part[name] && deep(part[name])]));
  const whole = of.scores && of.scaled && of.values && of.out, causes = of.keys && of.gains;
  const map = panel("Attention: who attends to whom", (whole || causes) && part.columns.length <= 12 ? "half" : "", "A row for each query, a column for each key; the entropy of a row, in nats, says how broad it is.");
  const steps = whole && panel("Every step of one row", "half"), reasons = causes && panel("Why: the pulls on the query", (part.columns.length <= 12) === Boolean(whole) ? "" : "half");
  let row = 0, step = 4, chosen = null;

  function pick(t, key = null) {
    row = t; chosen = key;
    for (const b of map.body.querySelectorAll("[data-row]")) b.setAttribute("aria-pressed", String(Number(b.dataset.row) === t));
    if (whole) walk();
    if (causes) explain();
  }
  const STEPS = [["scores", "q · k"], ["scaled", "the logit: scaled, masked"], ["exp", "exp(logit − largest)"], ["weight", "exp / sum"], ["out", "weight × v, summed"]];
  function walk() {
    const scaled = of.scaled[row], top = Math.max(...scaled.filter((x) => !Number.isNaN(x)), -Infinity);
    const exps = scaled.map((x) => (top === -Infinity ? 0 : Math.exp(x - top))), sum = exps.reduce((a, b) => a + b, 0);
    const said = el("p", { class: "formula" }, "Query ", token(part.rows[row]), ": " + STEPS[step][1]);
    const focus = steps.body.contains(document.activeElement) ? document.activeElement.dataset.step : null;
    const stages = el("ol", { class: "steps" }, ...STEPS.map(([name], i) => el("li", {}, el("button", { type: "button", "data-step": i, "aria-current": String(i === step), text: `${i + 1} ${name}`, onclick: () => { step = i; walk(); } }))));
    const more = el("button", { type: "button", class: "main", "data-step": "next", text: step < 4 ? "Next step" : "From the start", onclick: () => { step = (step + 1) % 5; walk(); } });
    const cells = (s) => {
      const w = el("td", { text: fixed(of.weights[row][s]) });
      paint(w, of.weights[row][s]);
      return [digits(of.scores[row][s]), digits(scaled[s]), digits(exps[s], 4), w, el("td", { class: "wide", text: vector(of.values[s].map((x) => x * of.weights[row][s]), 2) })].slice(0, step + 1);
    };
    const lines = part.columns.map((name, s) => [token(name), ...cells(s)]);
    const made = table(["key", ...STEPS.slice(0, step + 1).map(([name]) => name)], [], {});
    for (const [name, ...line] of lines) made.tBodies[0].append(el("tr", {}, el("th", { scope: "row" }, name), ...line.map((x) => (x instanceof Node ? (x.matches("td") ? x : el("td", {}, x)) : el("td", { text: x })))));
    const total = ["", "", `sum ${digits(sum, 4)}`, `sum ${digits(of.weights[row].reduce((a, b) => a + b, 0))}`, vector(of.out[row], 2)].slice(0, step + 1);
    made.append(el("tfoot", {}, el("tr", {}, el("th", { scope: "row", text: step === 4 ? "out" : "" }), ...total.map((x, i) => el("td", { text: x, class: i === 4 ? "wide" : null })))));
    steps.body.replaceChildren(said, stages, scrolling("The steps of one row", made), el("div", { class: "row" }, more));
    if (focus !== null) steps.body.querySelector(`[data-step="${focus}"]`)?.focus();
  }
  function explain() {
    const p = of.weights[row], gains = ahead(p, of.gains[row]);
    if (gains.some((x) => !Number.isFinite(x))) return reasons.body.replaceChildren(el("p", { class: "note", text: "What this query gains is no number: a weight in its row is 0 to rounding, or not finite." }));
    why(reasons.body, { labels: part.columns, p, gains, ...along(part.scale, p.map((w, j) => w * gains[j]), of.keys), scale: part.scale, chosen, choose: (j) => { chosen = j; explain(); }, query: "q of " + isolated(part.rows[row]) });
  }
  map.after = map.resize = () => {
    const focus = map.body.contains(document.activeElement) ? document.activeElement.dataset.row : undefined;
    heatmap(map.body, { weights: of.weights, rows: part.rows, columns: part.columns, chosen: row, choose: whole || causes ? pick : null, caption: whole || causes ? "Choose a query to see its row step by step." : "" });
    if (focus !== undefined) map.body.querySelector(`[data-row="${focus}"]`)?.focus();
  };
  if (of.weights.length) pick(0);
  const views = { weights: map.node, ...(steps && { steps: steps.node }), ...(reasons && { pulls: reasons.node }) };
  return { made: [map, steps, reasons].filter(Boolean), show: (to) => { pick(to.row, to.key); return views; } };
}

// All heads as small pictures, and the arcs of one.
function headsPanels(part) {
  const [L, H, T, S] = part.shape, numbers = floats(part.weights);
  const of = (l, h) => Array.from({ length: T }, (_, t) => Array.from(numbers.subarray(((l * H + h) * T + t) * S, ((l * H + h) * T + t + 1) * S)));
  const all = panel("Every head of every layer", "half", "Queries from top to bottom, keys from left to right. Choose a head to see its arcs.");
  const one = panel("The arcs of one head", "half");
  const grid = el("div", { class: "overview", role: "group", "aria-label": "Heads" });
  grid.style.gridTemplateColumns = `max-content repeat(${H}, minmax(20px, 76px))`;
  for (let l = 0; l < L; l++) {
    grid.append(el("span", { class: "name", text: `layer ${l}` }));
    for (let h = 0; h < H; h++) {
      const canvas = el("canvas", { width: S, height: T, "aria-hidden": "true" }), pen = canvas.getContext("2d"), image = pen.createImageData(Math.max(S, 1), Math.max(T, 1));
      of(l, h).flat().forEach((w, i) => image.data.set([...(colour(VIRIDIS, w) ?? [128, 128, 128]), 255], 4 * i));
      pen.putImageData(image, 0, 0);
      const b = el("button", { type: "button", "data-head": `${l},${h}`, "aria-label": `layer ${l}, head ${h}: ${strongest(of(l, h))}`, onclick: () => pick(l, h) }, canvas);
      canvas.style.aspectRatio = `${S} / ${clamp(T, S / 4, S * 2)}`;
      grid.append(b);
    }
  }
  function strongest(weights) {
    let best = [0, 0, -1];
    weights.forEach((row, t) => row.forEach((w, s) => { if (w > best[2]) best = [t, s, w]; }));
    return `${part.rows[best[0]]} to ${part.columns[best[1]]} ${digits(best[2])}`;
  }
  all.body.append(grid, legend(VIRIDIS, "weight 0", "1"));
  const chosen = el("select", { id: "arcs-of", onchange: () => draw() }, el("option", { value: "", text: "all" }), ...part.rows.map((name, t) => el("option", { value: t, text: `${t + 1} ${name}` })));
  const key = el("select", { id: "arcs-to", onchange: () => draw() }, el("option", { value: "", text: "all" }), ...part.columns.map((name, s) => el("option", { value: s, text: `${s + 1} ${name}` })));
  const drawing = svg("svg", { role: "img" }), numbersBelow = el("div");
  one.body.append(el("div", { class: "row" }, el("label", {}, "Query", chosen), el("label", {}, "Key", key)), drawing, numbersBelow);
  let at = [0, 0];

  function pick(l, h) {
    at = [l, h];
    for (const b of grid.querySelectorAll("button")) b.setAttribute("aria-pressed", String(b.dataset.head === `${l},${h}`));
    draw();
  }
  function draw() {
    const weights = of(...at), only = chosen.value === "" ? null : Number(chosen.value), to = key.value === "" ? null : Number(key.value);
    one.heading.textContent = `The arcs of layer ${at[0]}, head ${at[1]}`;
    const W = Math.max(one.body.clientWidth, 220), line = 21, n = Math.max(T, S), H2 = n * line + 8, side = Math.min(120, W * 0.3);
    drawing.setAttribute("viewBox", `0 0 ${W} ${H2}`);
    drawing.setAttribute("height", H2);
    drawing.setAttribute("aria-label", `Arcs from queries, on the left, to keys, on the right; the strongest is ${strongest(weights)}`);
    const y = (i) => i * line + line / 2 + 4, short = (name) => shortened(name, 14);
    const pairs = weights.flatMap((row, t) => row.map((w, s) => ({ t, s, w }))).filter(({ t, s, w }) => w >= 0.02 && (only === null || t === only) && (to === null || s === to)).sort((a, b) => a.w - b.w);
    drawing.replaceChildren(
      ...pairs.slice(-600).map(({ t, s, w }) => svg("path", { d: `M${side} ${y(t)}C${W / 2} ${y(t)} ${W / 2} ${y(s)} ${W - side} ${y(s)}`, fill: "none", stroke: hue(t), "stroke-width": (0.4 + 6 * w).toFixed(2), "stroke-opacity": (0.18 + 0.72 * w).toFixed(2) })),
      ...part.rows.map((name, t) => svg("text", { x: side - 7, y: y(t) + 4, "text-anchor": "end", "font-weight": t === only ? 700 : 400, text: short(name) })),
      ...part.columns.map((name, s) => svg("text", { x: W - side + 7, y: y(s) + 4, "font-weight": s === to ? 700 : 400, text: short(name) })));
    const ranked = only === null || to === null ? [] : Array.from({ length: L * H }, (_, i) => ({ i, w: numbers[(i * T + only) * S + to] })).sort((a, b) => b.w - a.w);
    for (const b of grid.querySelectorAll("button")) b.classList.remove("faint");
    for (const { i } of ranked.filter(({ w }) => w < ranked[0].w / 2)) grid.querySelector(`[data-head="${Math.floor(i / H)},${i % H}"]`).classList.add("faint");
    const top = pairs.slice(-8).reverse();
    numbersBelow.replaceChildren(...(ranked.length
      ? [el("p", { text: "The heads that attend this pair most; those with less than half of the first are faint in the pictures." }),
         table(["layer.head", "weight"], ranked.slice(0, 8).map(({ i, w }) => [`${Math.floor(i / H)}.${i % H}`, digits(w)]))]
      : [table(["strongest pairs", "key", "weight"], top.map(({ t, s, w }) => [token(part.rows[t]), el("span", {}, token(part.columns[s])), digits(w)]))]));
  }
  all.after = () => pick(...at);
  one.resize = draw;
  return { made: [all, one], show: ({ head }) => { pick(...head); return { overview: all.node, arcs: one.node }; } };
}

// A run: the plane, the pulls, what moved, what was conserved.
function runPanels(state, { go, settle }) {
  const place = panel("The query among its keys", "large"), row = panel("What it attends to, and why", "small");
  const time = panel("Training time", "", "The same steps in every chart; the line is where the slider stands."), kept = panel("What theory says is conserved");
  const grid = el("div", { class: "charts" }), lists = el("div", { class: "charts" }), verdicts = el("div");
  time.body.append(grid);
  kept.body.append(verdicts, lists);
  const weights = el("div"), reasons = el("div"), pulls = el("div", {}, el("h3", { text: "The pull of each key" }), reasons);
  row.body.append(weights, pulls);
  const kind = el("p", { class: "note" });
  place.body.append(kind);
  const map = plane(place.body, { changed: () => settle() });
  let chosen = null, charts = [], views = {};

  function refresh(run, f) {
    const now = meet(run, map.query(), map.keys());
    const shown = map.free() ? now.p : run.weights[f];
    heatmap(weights, { weights: [shown], rows: [run.query], columns: run.labels, chosen: null, choose: null, caption: map.free() ? "A query of your own: recomputed." : `Step ${grouped(run.steps[f])}.` });
    weights.querySelector("table").dataset.weights = JSON.stringify(shown);
    why(reasons, { labels: run.labels, ...now, scale: run.scale, chosen, choose: (j) => { chosen = j; refresh(run, f); }, query: "q" });
  }
  function show(run, f, log, fresh) {
    place.heading.textContent = `The path of ${run.query} over the field −dL/dq`;
    kind.textContent = [run.loss, run.optimiser].filter(Boolean).join(", learned by ");
    if (fresh) { chosen = null; build(run); }
    map.show(run, f);
    refresh(run, f);
    for (const c of charts) { if (fresh || c.log !== log) { c.draw(log); c.log = log; } c.move(f); }
  }
  function build(run) {
    const made = (host, options, name) => { const cell = el("div", { class: "chart" }); if (name) views[name] = cell; host.append(cell); return chart(cell, { steps: run.steps, choose: go, ...options }); };
    grid.replaceChildren();
    views = {};
    charts = [made(grid, { title: "weights", low: 0, high: 1, lines: run.labels.map((name, j) => ({ name, y: run.weights.map((w) => w[j]) })) })];
    if (run.q[0].length <= 6) charts.push(made(grid, { title: `coordinates of ${run.query}`, lines: run.q[0].map((_, d) => ({ name: `${run.query} ${d + 1}`, y: run.q.map((q) => q[d]) })) }));
    const called = { norm: `|${run.query}|`, p: `weight of ${run.labels[run.target]}`, p_r: `weight of ${run.labels[run.target]}` };
    for (const [name, lines] of Object.entries(run.series)) charts.push(made(grid, { title: (called[name] ?? name.replaceAll("_", " ")) + (Object.keys(lines).length === 1 && !(name in lines) ? `: ${Object.keys(lines)[0]}` : ""), lines: Object.entries(lines).map(([label, y]) => ({ name: label, y })) }, name));
    lists.replaceChildren();
    const promises = Object.entries(run.conserved);
    kept.node.hidden = !promises.length;
    for (const [name, { predicted, measured }] of promises) charts.push(made(lists, { title: name, lines: [{ name: "predicted", y: predicted, ink: "var(--ray)" }, { name: "measured", y: measured, ink: "var(--k0)", dots: true }] }));
    verdicts.replaceChildren(scrolling("Predicted and measured", table(["quantity", "predicted, last", "measured, last", "largest difference", ""], promises.map(([name, { predicted, measured }]) => {
      const apart = measured.map((m, f) => Math.abs(m - predicted[f])), off = Math.max(...apart, 0); // of NaN it is NaN
      const holds = apart.every((x, f) => x <= 1e-6 * Math.max(1, Math.abs(predicted[f])));
      return [name, digits(predicted.at(-1), 6), digits(measured.at(-1), 6), off.toExponential(1).replaceAll("-", "−"), el("span", { class: holds ? "holds" : "fails", text: holds ? "✓ holds" : "✗ fails" })];
    }))));
  }
  // For a story: the keys and the path so far, the pull of one key, and what can be outlined.
  function look(key) {
    map.near(true);
    chosen = key;
    refresh(state.run, state.frame);
    return { ...views, plane: place.node, weights, pulls, training: time.node, conserved: kept.node };
  }
  return { parts: [place, row, time, kept], show, look, resize: (log, f) => { map.resize(); refresh(state.run, f); for (const c of charts) { c.draw(log); c.move(f); } }, settle: () => refresh(state.run, state.frame) };
}

PANELS.weights = attentionPanels;
PANELS.heads = headsPanels;
