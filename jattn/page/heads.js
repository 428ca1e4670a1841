// Heads at a glance: a table to sort, small pictures of layers × heads, and two columns against each other.

function headTablePanels(part) {
  const [L, H] = part.shape, columns = part.values.map(deep), heads = Array.from({ length: L * H }, (_, i) => i);
  const called = (i) => `${Math.floor(i / H)}.${i % H}`;
  const list = panel("Every head in numbers", "large", "Layer and head, counted from 0. Sort by the name of a column; choose a head to mark it everywhere.");
  const both = panel("Two columns against each other", "small"), small = panel("Layers down, heads across");
  list.tools.append(el("button", { type: "button", class: "wordy", text: "CSV", "aria-label": "Save the heads as CSV", onclick: () => save("heads.csv", "text/csv", lines([["layer", "head", ...part.names], ...heads.map((i) => [Math.floor(i / H), i % H, ...columns.map((x) => x[i])])])) }));
  let by = null, down = true, chosen = null;

  // The table. What is not a number comes last, whichever way it is sorted.
  const sorters = part.names.map((name, c) => el("button", { type: "button", class: "sort", onclick: () => sort(c) }, token(name)));
  const tops = sorters.map((b) => el("th", { scope: "col", class: "number", "aria-sort": "none" }, b));
  const rows = heads.map((i) => el("tr", { "data-at": i }, el("th", { scope: "row" }, el("button", { type: "button", class: "token", "aria-pressed": "false", "data-at": i, text: called(i), onclick: () => pick(i) })), ...columns.map((x) => el("td", { text: digits(x[i]) }))));
  const made = el("table", { class: "lines sorted" }, el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "head" }), ...tops)), el("tbody", {}, ...rows));
  list.body.append(scrolling("Every head in numbers", made));
  function sort(c) {
    down = by === c ? !down : true;
    by = c;
    const x = columns[c], order = [...heads].sort((a, b) => Number.isNaN(x[a]) - Number.isNaN(x[b]) || (down ? x[b] - x[a] : x[a] - x[b]) || a - b);
    made.tBodies[0].replaceChildren(...order.map((i) => rows[i]));
    tops.forEach((th, i) => th.setAttribute("aria-sort", i !== c ? "none" : down ? "descending" : "ascending"));
    said.textContent = `Sorted by ${part.names[c]}, ${down ? "largest" : "smallest"} first`;
  }

  // A picture of each column. The table holds the same numbers.
  const marks = [];
  small.body.append(el("div", { class: "charts multiples" }, ...columns.map((x, c) => {
    const seen = x.filter(Number.isFinite), most = Math.max(...seen.map(Math.abs), 1e-300), either = seen.some((y) => y < 0);
    const map = either ? DIVERGING : VIRIDIS, canvas = el("canvas", { width: H, height: L, "aria-hidden": "true" }), pen = canvas.getContext("2d"), image = pen.createImageData(H, L);
    x.forEach((y, i) => image.data.set([...(colour(map, either ? (y / most + 1) / 2 : y / most) ?? [128, 128, 128]), 255], 4 * i));
    pen.putImageData(image, 0, 0);
    const mark = el("span", { class: "mark", hidden: true });
    marks.push(mark);
    const field = el("div", { class: "field", onclick: (e) => {
      const box = field.getBoundingClientRect();
      pick(clamp(Math.floor((e.clientY - box.top) / box.height * L), 0, L - 1) * H + clamp(Math.floor((e.clientX - box.left) / box.width * H), 0, H - 1));
    } }, canvas, mark);
    field.style.aspectRatio = `${H} / ${clamp(L, H / 3, H * 1.5)}`;
    return el("div", { class: "chart" }, el("h3", {}, token(part.names[c])), field, legend(map, either ? digits(-most, 2) : "0", digits(most, 2)));
  })));

  // Two columns against each other.
  const choice = (c) => {
    const made = el("select", { onchange: () => draw() }, ...part.names.map((text, i) => el("option", { value: i, text })));
    made.value = c;
    return made;
  };
  const [across, up] = part.across.map((name) => choice(part.names.indexOf(name)));
  const drawing = svg("svg", { role: "img", class: "scatter" });
  both.body.append(el("div", { class: "row" }, el("label", {}, "across", across), el("label", {}, "up", up)), drawing, el("p", { class: "note", text: part.equal ? "On the line the two that were given first are equal. Light dots are of later layers." : "Light dots are of later layers." }));
  let dots = [];
  function draw() {
    const [x, y] = [across, up].map((s) => columns[Number(s.value)]), names = [across, up].map((s) => part.names[Number(s.value)]);
    const equal = part.equal && names.every((name) => part.across.includes(name));
    const W = Math.max(both.body.clientWidth, 220), tall = Math.min(W, 380), [left, bottom, room] = [52, 30, 12];
    const span = (values) => { const v = values.filter(Number.isFinite), low = Math.min(...v, 0), high = Math.max(...v, 0), more = 0.05 * (high - low) || 1; return [low - more, high + more]; };
    const [xs, ys] = equal ? [span([...x, ...y]), span([...x, ...y])] : [span(x), span(y)];
    const px = (v) => left + (v - xs[0]) / (xs[1] - xs[0]) * (W - left - room), py = (v) => tall - bottom - (v - ys[0]) / (ys[1] - ys[0]) * (tall - bottom - room);
    dots = heads.map((i) => (Number.isFinite(x[i]) && Number.isFinite(y[i]) ? svg("circle", { cx: px(x[i]).toFixed(2), cy: py(y[i]).toFixed(2), r: 4.2, fill: rgb(colour(VIRIDIS, L > 1 ? i / H < 1 ? 0 : Math.floor(i / H) / (L - 1) : 0.5)), stroke: "var(--soft)", "stroke-width": 0.8, "data-at": i, onclick: () => pick(i) }, svg("title", { text: `${called(i)}: ${digits(x[i])}, ${digits(y[i])}` })) : null));
    drawing.setAttribute("viewBox", `0 0 ${W} ${tall}`);
    drawing.setAttribute("height", tall);
    drawing.setAttribute("aria-label", `${names[1]} of every head against its ${names[0]}; the table holds the numbers`);
    drawing.replaceChildren(
      ...ticks(...xs, 5).flatMap((v) => [svg("line", { class: "axis", x1: px(v), x2: px(v), y1: room, y2: tall - bottom }), svg("text", { class: "soft", x: px(v), y: tall - bottom + 16, "text-anchor": "middle", text: tick(v) })]),
      ...ticks(...ys, 5).flatMap((v) => [svg("line", { class: "axis", x1: left, x2: W - room, y1: py(v), y2: py(v) }), svg("text", { class: "soft", x: left - 6, y: py(v) + 4, "text-anchor": "end", text: tick(v) })]),
      ...(equal ? [svg("line", { class: "equal", x1: px(xs[0]), y1: py(xs[0]), x2: px(xs[1]), y2: py(xs[1]), stroke: "var(--soft)", "stroke-dasharray": "4 3" })] : []),
      ...dots.filter(Boolean));
    mark();
  }

  function mark() {
    for (const row of rows) row.querySelector("button").setAttribute("aria-pressed", String(Number(row.dataset.at) === chosen));
    if (chosen === null) return;
    for (const m of marks) {
      m.hidden = false;
      Object.assign(m.style, { left: `${100 * (chosen % H) / H}%`, top: `${100 * Math.floor(chosen / H) / L}%`, width: `${100 / H}%`, height: `${100 / L}%` });
    }
    dots.forEach((dot, i) => { dot?.setAttribute("stroke", i === chosen ? "var(--ray)" : "var(--soft)"); dot?.setAttribute("stroke-width", i === chosen ? 3 : 0.8); dot?.setAttribute("r", i === chosen ? 6 : 4.2); });
    if (dots[chosen]) drawing.append(dots[chosen]);
  }
  // The view of arcs follows, and leads: its buttons name a head in the same way.
  const arcs = (i) => main.querySelector(`.overview [data-head="${Math.floor(i / H)},${i % H}"]`);
  function pick(i, lead = true) {
    chosen = i;
    mark();
    if (lead) arcs(i)?.click();
  }
  main.addEventListener("click", (e) => {
    const [l, h] = e.target.closest?.(".overview [data-head]")?.dataset.head.split(",").map(Number) ?? [L, H];
    if (l < L && h < H && l * H + h !== chosen) pick(l * H + h, false);
  });
  both.after = draw;
  both.resize = draw;
  return { made: [list, both, small], show: ({ head: [l, h] }) => { pick(l * H + h); return { table: list.node, scatter: both.node, pictures: small.node }; } };
}

PANELS.head_table = headTablePanels;
