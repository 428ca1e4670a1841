// The plane of q and the keys: the path of q over the field −dL/dq, and a query that can be taken anywhere.

const LEVELS = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9];

// The region where values ≥ level, as one path of polygons cut out of cells; full cells of a row are joined.
function region(values, level, px, py) {
  let path = "";
  for (let j = 0; j + 1 < values.length; j++) {
    for (let i = 0, from = -1; i + 1 < values[j].length; i++) {
      const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
      const over = corners.map(([a, b]) => values[b][a] >= level);
      const full = over.every(Boolean), last = i + 2 === values[j].length;
      if (full && from < 0) from = i;
      if (from >= 0 && (!full || last)) {
        const to = full ? i + 1 : i;
        path += `M${px(from)} ${py(j)}H${px(to)}V${py(j + 1)}H${px(from)}Z`;
        from = -1;
      }
      if (full || !over.some(Boolean)) continue;
      const points = [];
      corners.forEach(([a, b], n) => {
        const [c, d] = corners[(n + 1) % 4];
        if (over[n]) points.push([px(a), py(b)]);
        if (over[n] !== over[(n + 1) % 4]) {
          const t = (level - values[b][a]) / (values[d][c] - values[b][a]);
          points.push([px(a + t * (c - a)), py(b + t * (d - b))]);
        }
      });
      path += "M" + points.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L") + "Z";
    }
  }
  return path;
}

function plane(host, { changed }) {
  const drawing = svg("svg", { role: "group" });
  const readings = el("p", { class: "formula", id: "arrow" });
  const fields = el("div", { class: "row" }), typing = el("div", { class: "row" }), scale = el("p", { class: "note" });
  const controls = el("div", { class: "row" });
  fields.append(typing);
  host.append(controls, drawing, legend(CIVIDIS, "weight of the target: 0", "1"), scale, fields, readings);
  let run, frame = 0, free = null, zoom = 1, middle = null, view, inputs = [], backdrop = "", showPulls = true;

  const flat = (x) => run.plane.map((axis) => dot(axis, x)); // [D] → the plane
  const lifted = (base, at) => { // what lies at a place of the plane, beside `base` in every other direction
    const off = add(at, flat(base), -1);
    return base.map((x, d) => x + off[0] * run.plane[0][d] + off[1] * run.plane[1][d]);
  };
  const keys = () => (run.frozen ? run.k : run.k[frame]);
  const query = () => free ?? run.q[frame];

  const button = (text, label, act) => el("button", { type: "button", text, "aria-label": label, class: "wordy", onclick: act });
  const back = button("Back to the path", "Back to the path", () => { free = null; render(); changed(); });
  const pulls = el("input", { type: "checkbox", id: "chain", onchange: (e) => { showPulls = e.target.checked; render(); } });
  pulls.checked = true;
  controls.append(
    button("−", "Zoom out", () => rescale(zoom / 1.6)), button("+", "Zoom in on q", () => rescale(zoom * 1.6)),
    button("Whole path", "Whole path", () => { zoom = 1; middle = null; backdrop = ""; render(); }),
    button("Near the keys", "Near the keys", () => near()), el("label", {}, pulls, "each key’s pull"));
  fields.append(back);

  function rescale(to) {
    zoom = clamp(to, 0.25, 1e6);
    middle = zoom === 1 ? null : flat(query());
    backdrop = "";
    render();
  }
  function near(path = false) {
    const all = there([...keys(), ...(path ? run.q.slice(0, frame + 1) : [])].map(flat)), whole = extent(), low = [0, 1].map((i) => Math.min(...all.map((p) => p[i]))), high = [0, 1].map((i) => Math.max(...all.map((p) => p[i])));
    middle = [0, 1].map((i) => (low[i] + high[i]) / 2);
    zoom = whole.span / Math.max((high[0] - low[0]) * 1.9, (high[1] - low[1]) * 2.6, whole.span * 1e-6);
    backdrop = "";
    render();
  }
  function extent() {
    const all = there([[0, 0], ...run.q.map(flat), ...(run.frozen ? run.k : run.k.flat()).map(flat)]);
    const low = [0, 1].map((i) => Math.min(...all.map((p) => p[i]))), high = [0, 1].map((i) => Math.max(...all.map((p) => p[i])));
    const span = Math.max(high[0] - low[0], (high[1] - low[1]) * 1.45, 1e-9) * 1.22;
    return { centre: [0, 1].map((i) => (low[i] + high[i]) / 2), span };
  }

  function show(next, f) {
    if (next !== run) {
      run = next; zoom = 1; middle = null; backdrop = "";
      const D = run.q[0].length;
      typing.replaceChildren();
      inputs = D > 4 ? [] : run.q[0].map((_, d) => {
        const input = el("input", { type: "number", step: "any", id: `q${d}`, oninput: () => {
          const typed = inputs.map((x) => x.valueAsNumber);
          if (typed.every(Number.isFinite)) { free = typed; render(false); changed(); }
        } });
        typing.append(el("label", {}, `${run.query} ${d + 1}`, input));
        return input;
      });
    }
    frame = f;
    free = null; // time moves: back on the path
    if (!run.frozen || run.q[0].length > 2) backdrop = "";
    render();
  }

  function render(fillIn = true) {
    const W = Math.max(host.clientWidth, 240), H = Math.round(clamp(W * 0.69, 230, 520));
    const whole = extent(), span = whole.span / zoom, centre = middle ?? whole.centre;
    const unit = W / span, px = (x) => W / 2 + (x - centre[0]) * unit, py = (y) => H / 2 - (y - centre[1]) * unit;
    const place = (x) => { const p = flat(x); return [px(p[0]), py(p[1])]; };
    const inverse = (X, Y) => [centre[0] + (X - W / 2) / unit, centre[1] - (Y - H / 2) / unit];
    view = { W, H, unit, inverse };
    drawing.setAttribute("viewBox", `0 0 ${W} ${H}`);
    drawing.setAttribute("height", H);
    const K = keys(), q = query(), now = meet(run, q, K);
    const held = drawing.contains(document.activeElement); // it is drawn anew, and keeps the focus
    const kept = backdrop === `${W}` ? [...drawing.children].slice(0, 2) : null;
    backdrop = `${W}`;
    const layers = kept ?? ground(q, K, W, H, inverse);
    drawing.replaceChildren(...layers);
    axes(W, H, inverse, px, py);
    const dots = K.map(place);
    drawing.append(svg("polygon", { points: hull(there(dots)).map((p) => p.join(",")).join(" "), fill: "var(--k0)", "fill-opacity": 0.1, stroke: "var(--k0)", "stroke-opacity": 0.55 }));
    rays(px, py, W, H);
    trail(run.q.map(place), "var(--ink)", 1.8);
    if (!run.frozen) K.forEach((_, j) => trail(run.k.map((k) => place(k[j])), hue(j), 1.3));
    marks(drawing, run.labels, dots, W);
    arrows(q, now, place, unit);
    handle(place(q), held);
    if (fillIn) inputs.forEach((input, d) => { if (input !== document.activeElement || !free) input.value = Number.isFinite(q[d]) ? Number(q[d].toPrecision(6)) : ""; });
    const when = free ? "" : `, step ${grouped(run.steps[frame])}`;
    readings.textContent = `${run.query} = ${vector(q)}${when}. −dL/dq = ${vector(now.total)}, of length ${digits(length(now.total))}. Loss ${digits(now.loss)}, weight of ${isolated(run.labels[run.target])} ${digits(now.p[run.target])}.`;
    readings.dataset.q = JSON.stringify(q);
    readings.dataset.arrow = JSON.stringify(now.total);
    readings.dataset.loss = now.loss;
    back.disabled = !free;
    drawing.setAttribute("aria-label", `The plane of ${run.query} and its keys. ${readings.textContent}`);
  }

  // What does not move with q: the target's weight at each place, in bands, and the field −dL/dq.
  function ground(q, K, W, H, inverse) {
    const nx = 44, ny = Math.max(8, Math.round((nx * H) / W)), sx = W / nx, sy = H / ny;
    const values = Array.from({ length: ny + 1 }, (_, j) => Array.from({ length: nx + 1 }, (_, i) => meet(run, lifted(q, inverse(i * sx, j * sy)), K).p[run.target]));
    const bands = svg("g"), numbers = [];
    const X = (i) => Number((i * sx).toFixed(1)), Y = (j) => Number((j * sy).toFixed(1));
    const tint = (x) => ({ fill: rgb(colour(CIVIDIS, x)), stroke: rgb(colour(CIVIDIS, x)) });
    bands.append(svg("rect", { width: W, height: H, fill: "var(--panel)" }));
    const inner = svg("g", { opacity: "var(--bands)" });
    inner.append(svg("rect", { width: W, height: H, ...tint(0.05) }));
    for (const level of LEVELS) {
      const path = region(values, level, X, Y);
      if (path) inner.append(svg("path", { d: path, ...tint(level + 0.05), "stroke-width": 0.6 }));
      const low = Math.round(ny * 0.88), high = Math.round(ny * 0.12);
      for (const j of [low, high, Math.round(ny / 2)]) {
        const i = values[j].findIndex((v, n) => n > 1 && n < nx - 2 && v >= level !== values[j][n + 1] >= level);
        if (i < 0 || numbers.some((n) => Math.hypot(n.x - i * sx, n.y - j * sy) < 30)) continue;
        const t = (level - values[j][i]) / (values[j][i + 1] - values[j][i]);
        numbers.push({ x: (i + t) * sx, y: j * sy, level });
        break;
      }
    }
    bands.append(inner);
    const field = svg("g", { stroke: "var(--ink)", "stroke-opacity": 0.5, fill: "none", "stroke-width": 1.1 });
    const cells = Math.max(6, Math.round(W / 46)), apart = W / cells, spots = [];
    for (let y = apart / 2; y < H; y += apart) for (let x = apart / 2; x < W; x += apart) {
      const there = lifted(q, inverse(x, y));
      spots.push({ x, y, to: flat(meet(run, there, K).total) });
    }
    const most = Math.max(...spots.map((s) => length(s.to)).filter(Number.isFinite), 1e-300);
    for (const { x, y, to } of spots) {
      const size = length(to);
      if (!(size > 0)) continue;
      const long = apart * 0.74 * Math.sqrt(size / most), [u, v] = [to[0] / size, -to[1] / size]; // √: faint ones are seen
      if (long < 2.5) { field.append(svg("circle", { cx: x, cy: y, r: 0.6 })); continue; }
      const [ex, ey] = [x + (u * long) / 2, y + (v * long) / 2], tip = Math.min(4.5, long * 0.4);
      const wing = (s) => `${(ex - tip * (u - s * 0.6 * v)).toFixed(1)} ${(ey - tip * (v + s * 0.6 * u)).toFixed(1)}`;
      field.append(svg("path", { d: `M${(x - (u * long) / 2).toFixed(1)} ${(y - (v * long) / 2).toFixed(1)}L${ex.toFixed(1)} ${ey.toFixed(1)}M${wing(1)}L${ex.toFixed(1)} ${ey.toFixed(1)}L${wing(-1)}` }));
    }
    for (const { x, y, level } of numbers) field.append(svg("text", { class: "soft rim", x, y: y + 4, "text-anchor": "middle", "stroke-opacity": 1, text: String(level) }));
    return [bands, field];
  }

  function axes(W, H, inverse, px, py) {
    const [left, top] = inverse(0, 0), [right, bottom] = inverse(W, H);
    for (const t of ticks(left, right, W / 90)) if (px(t) > 16 && px(t) < W - 16) drawing.append(svg("line", { class: "axis", x1: px(t), x2: px(t), y1: H - 4, y2: H }), svg("text", { class: "soft rim", x: px(t), y: H - 7, "text-anchor": "middle", text: tick(t) }));
    for (const t of ticks(bottom, top, H / 80)) if (py(t) > 14 && py(t) < H - 22) drawing.append(svg("line", { class: "axis", x1: 0, x2: 4, y1: py(t), y2: py(t) }), svg("text", { class: "soft rim", x: 7, y: py(t) + 4, text: tick(t) }));
  }

  function rays(px, py, W, H) {
    Object.entries(run.rays).forEach(([name, u], n) => {
      const to = flat(Array.isArray(u[0]) ? u[frame] : u), size = length(to);
      if (!(size > 0)) return;
      const far = (W + H) / view.unit / size * 4, end = [px(to[0] * far), py(to[1] * far)], ink = n ? "var(--soft)" : "var(--ray)";
      drawing.append(svg("line", { x1: px(0), y1: py(0), x2: end[0], y2: end[1], stroke: ink, "stroke-width": 1.6, "stroke-dasharray": n ? "2 4" : "8 5" }));
      // Its name where it leaves the frame.
      const [ox, oy] = [px(0), py(0)], [dx, dy] = [end[0] - ox, end[1] - oy];
      const exits = [(W - 8 - ox) / dx, (8 - ox) / dx, (H - 28 - oy) / dy, (16 - oy) / dy].filter((t) => t > 0 && t <= 1);
      const inside = exits.map((t) => [ox + t * dx, oy + t * dy]).filter(([x, y]) => x >= 4 && x <= W - 4 && y >= 8 && y <= H - 20);
      if (!inside.length) return;
      const [x, y] = inside.reduce((a, b) => (Math.hypot(a[0] - ox, a[1] - oy) > Math.hypot(b[0] - ox, b[1] - oy) ? a : b));
      const text = svg("text", { class: "rim", x: clamp(x, 8, W - 8), y: clamp(y + (n % 2 ? -7 : 15), 14, H - 22), "text-anchor": x > W / 2 ? "end" : "start", text: isolated(name) });
      text.style.fill = ink;
      drawing.append(text);
    });
  }

  function trail(points, ink, width) {
    const line = (from, to, more) => to > from && drawing.append(svg("polyline", { points: there(points.slice(from, to + 1)).map((p) => p.map((x) => x.toFixed(1)).join(",")).join(" "), fill: "none", stroke: ink, "stroke-width": width, "stroke-linejoin": "round", ...more }));
    line(frame, points.length - 1, { "stroke-opacity": 0.35, "stroke-dasharray": "1 3" });
    line(0, frame, {});
  }

  // What a plane cannot show of more than two dimensions.
  function projected() {
    const D = run.q[0].length;
    if (D < 3) return "";
    const holds = `${digits(100 * run.holds, 0)} % of`;
    return ` ${run.query} has ${D} dimensions. ${run.principal ? `The plane holds the two in which its path and the keys spread most, ${holds} their variance` : `The plane holds two of them, ${holds} the variance of its path and the keys`}: angles in it are not ${"cosines" in run.series ? "those whose cosines are given below" : `those of all ${D}`}.`;
  }

  // −dL/dq at q, and the pulls that make it up, head to tail. Their scale is one for all, and is written.
  function arrows(q, now, place, unit) {
    const lengths = [0, Math.floor(run.q.length / 2), run.q.length - 1].map((f) => length(flat(meet(run, run.q[f], run.frozen ? run.k : run.k[f]).total)));
    const reach = Math.max(...[...lengths, length(flat(now.total))].filter(Number.isFinite), 1e-300);
    const times = 92 / reach, start = place(q);
    const tip = (from, to) => [from[0] + times * to[0], from[1] - times * to[1]];
    if (showPulls) now.pulls.reduce((from, pull, j) => {
      const to = tip(from, flat(pull));
      arrow(drawing, from, to, hue(j), 1.8);
      return to;
    }, start);
    arrow(drawing, start, tip(start, flat(now.total)), "var(--ink)", 3.4);
    const drawn = reach > 1e-300 ? `, drawn ${tick(Number((times / unit).toPrecision(2)))} times as long; thin ones are the pulls that sum to it.` : ", which is 0 all along the path.";
    scale.textContent = `The arrow at ${run.query} is −dL/dq${drawn}${projected()}`;
  }

  function handle([x, y], held) {
    if (!there([[x, y]]).length) return;
    const grip = svg("g", { class: "handle", tabindex: "0", role: "button", "aria-label": `${run.query}: drag it, or move it with the arrow keys, with Shift in small steps; Escape returns it to the path` },
      svg("circle", { cx: x, cy: y, r: 17, fill: "transparent" }), svg("circle", { class: "halo", cx: x, cy: y, r: 8, fill: "var(--panel)", stroke: "var(--ink)", "stroke-width": 2.2 }), svg("circle", { cx: x, cy: y, r: 2.4, fill: "var(--ink)" }));
    drawing.append(grip);
    if (held) grip.focus({ preventScroll: true });
  }

  function put(next) { free = next; if (!run.frozen || run.q[0].length > 2) backdrop = ""; render(); changed(); }
  let dragging = false;
  drawing.addEventListener("pointerdown", (e) => {
    if (!e.target.closest(".handle")) return;
    dragging = true;
    drawing.setPointerCapture(e.pointerId);
    e.preventDefault();
    drawing.querySelector(".handle").focus({ preventScroll: true });
  });
  drawing.addEventListener("pointermove", (e) => {
    if (!dragging) return;
    const box = drawing.getBoundingClientRect();
    put(lifted(query(), view.inverse(((e.clientX - box.left) * view.W) / box.width, ((e.clientY - box.top) * view.H) / box.height)));
  });
  for (const end of ["pointerup", "pointercancel"]) drawing.addEventListener(end, () => { dragging = false; });
  drawing.addEventListener("keydown", (e) => {
    if (!e.target.closest?.(".handle")) return;
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[e.key];
    if (e.key === "Escape" && free) { free = null; render(); changed(); }
    if (!way) return;
    e.preventDefault();
    const by = (view.W / view.unit) * (e.shiftKey ? 0.004 : 0.03);
    put(lifted(query(), add(flat(query()), way, by)));
  });

  return { show, near, resize: () => { if (run) { backdrop = ""; render(); } }, query: () => query(), keys, free: () => free };
}
