// A language model that the page computes: a sentence of the reader's own, what comes next, and steps of descent.

function modelPanels(part) {
  const net = network(part), { words } = part, known = new Map(words.map((word, i) => [word, i])), UNDONE = 50;
  const called = (l, h) => `layer ${l}, head ${h}`, quote = (name) => `“${isolated(name)}”`, change = (x) => signed(x, 4);
  const start = { w: net.w, steps: 0, shifts: [] }; // steps on all weights are counted, those on one q are its shifts
  let state = start, history = [], ids = part.examples[0].words, next = part.examples[0].next;
  let eye = { l: 0, h: 0, t: ids.length - 1 }, chosen = null, wide, labels, run, slopes, told = "";

  const ask = panel("Type a sentence", "large", `A language model: ${grouped(net.L)} layers of ${grouped(net.H)} attention heads${Object.keys(net.shapes).some((name) => name.endsWith("mlp_in")) ? ", with MLPs" : ""}; ${grouped(net.size)} numbers. It reads from left to right and says which word may come next. Your browser computes it anew with each word that you type.`);
  const guess = panel("What comes next", "small");
  const map = panel("Where each head looks", "half", "In each head a word asks with its query q, and the words up to it answer with their keys k: p = softmax(q·k/√D). Queries from top to bottom, keys from left to right. Choose a head, then a query.");
  const out = panel("What each key puts in", "half");
  const step = panel("One gradient step", "half");
  const reasons = panel("The pull of each key on q", "half");
  const limits = panel("What attention does not show");

  const said = (ids) => ids.map((i) => words[i]).join(" ");

  // What the reader says: a sentence, the word that is to come next.
  const input = el("input", { type: "text", id: "model-text", list: "model-whole", autocomplete: "off", spellcheck: "false", autocapitalize: "none", "aria-describedby": "model-refused", oninput: () => read(false), onchange: () => refused.firstChild ?? read(true) });
  const endings = el("datalist", { id: "model-whole" }), refused = el("p", { id: "model-refused", class: "refused", role: "alert" });
  const wanted = el("select", { id: "model-next", onchange: () => { next = Number(wanted.value); told = ""; refresh(); } }, ...words.map((text, i) => el("option", { value: i, text })));
  const press = (text, act, more = {}) => el("button", { type: "button", text, onclick: act, ...more });
  const write = (text) => { input.value = text; read(true); };
  const examples = part.examples.map((x) => press(`${said(x.words)} → ${words[x.next]}`, () => { next = x.next; told = ""; write(said(x.words)); refresh(); }, { class: "wordy" }));
  const list = el("details", {}, el("summary", { text: `All ${grouped(words.length)} words; choose one to append it` }), el("div", { class: "row" }, ...words.map((word) => press(word, () => write(`${input.value.trim()} ${word}`.trim()), { class: "wordy" }))));
  ask.body.append(el("form", { class: "row", onsubmit: (e) => { e.preventDefault(); read(true); } }, el("label", { class: "wide" }, "Sentence", input), endings), refused,
    el("div", { class: "row" }, el("span", { class: "note", text: "Try (→ the word that it should say):" }), ...examples), list);
  const after = el("h3"), listed = el("div"), losing = el("p", { class: "formula", id: "model-loss" });
  guess.body.append(after, listed, el("div", { class: "row" }, el("label", {}, "It should say", wanted)), losing);

  function read(whole) {
    const typed = input.value.split(/\s+/).filter(Boolean), found = typed.map((word) => known.get(word) ?? known.get(word.toLowerCase()));
    const bad = found.indexOf(undefined), half = bad >= 0 && bad === typed.length - 1 && !/\s$/.test(input.value);
    const alike = (n) => words.filter((word) => word.startsWith(typed[bad].toLowerCase().slice(0, n)));
    const before = input.value.slice(0, input.value.length - (half ? typed[bad].length : 0));
    endings.replaceChildren(...(half ? alike() : /\s$/.test(input.value) ? words : []).slice(0, 200).map((word) => el("option", { value: before + word })));
    if (!whole && (!typed.length || (half && alike().length))) return refuse(); // half a word is no mistake yet
    if (!typed.length) return refuse("Type at least one word.");
    if (bad >= 0) {
      const near = [3, 2, 1].map(alike).find((found) => found.length) ?? [], put = (word) => write(typed.map((x, i) => (i === bad ? word : x)).join(" "));
      return refuse(`${quote(typed[bad])} is not among the ${grouped(words.length)} words of this model. `, near.length ? "Did you mean " : "Choose from the list below.", ...near.slice(0, 4).map((word) => press(word, () => put(word), { class: "wordy" })), near.length ? "?" : "");
    }
    if (typed.length > net.N) return refuse(`This model reads ${grouped(net.N)} words at most, and these are ${grouped(typed.length)}.`);
    refuse();
    if (found.join() === ids.join()) return; // a button that is about to be pressed stays where it is
    ids = found;
    forget();
    refresh();
  }
  function refuse(...why) {
    input.setAttribute("aria-invalid", String(why.length > 0));
    refused.replaceChildren(...why, ...(why.length ? [` Below stands what was computed for ${quote(said(ids))}.`] : []));
  }

  // Steps on one q are of one sentence, and go with it.
  function forget() {
    const bare = (x) => (x.steps ? { ...x, shifts: [] } : start);
    state = bare(state);
    history = history.filter((x) => !x.only).map((x) => ({ ...x, state: bare(x.state) }));
    eye.t = ids.length - 1;
    chosen = null;
    told = "";
  }

  // Descent.
  const slider = el("input", { type: "range", id: "model-rate", min: -3, max: 1, step: 0.05, value: Math.log10(part.rate), oninput: () => tell() });
  const rate = () => Number((10 ** Number(slider.value)).toPrecision(2)), shown = el("output", { for: "model-rate", "aria-live": "off" });
  const moves = el("select", { id: "model-moves", onchange: () => tell() }, el("option", { value: "all", text: "all weights" }), el("option", { value: "q", text: "this q alone" }));
  const undo = press("Undo", () => { state = history.pop().state; told = "The last step is undone."; refresh(); }), reset = press("Reset", () => { state = start; history = []; told = "All steps are undone."; refresh(); });
  const close = el("input", { type: "checkbox", id: "model-close", onchange: () => draw() }), report = el("p", { class: "formula", id: "model-report", "aria-live": "polite" });
  const drawing = svg("svg", { role: "img" }), axes = el("p", { class: "note" });
  step.body.append(el("div", { class: "row" }, press("One gradient step", descend, { class: "main" }), undo, reset, el("label", {}, "learning rate", slider, shown), el("label", {}, "what moves", moves), el("label", {}, close, "close to q")), report, drawing, axes);

  const query = (run, { l, h, t } = eye) => run.layers[l].heads[h].q[t], slope = () => slopes.heads[eye.l][eye.h].dq[eye.t];
  const squared = (x) => dot(x, x);
  function descend() {
    const by = rate(), only = moves.value === "q", pull = slope().map((x) => -x), before = { loss: loss(run, next), p: run.p[next], q: query(run) };
    const w = only ? state.w : Object.fromEntries(Object.entries(state.w).map(([name, x]) => [name, add(x, slopes.d[name], -by)]));
    const moved = { w, steps: state.steps + !only, shifts: only ? [...state.shifts, { ...eye, by: pull.map((x) => by * x) }] : state.shifts }, after = forward(net, moved, ids);
    const ended = loss(after, next), off = add(query(after), before.q, -1), foretold = -by * (only ? squared(pull) : Object.values(slopes.d).reduce((sum, x) => sum + squared(x), 0));
    if (![ended, ...off].every(Number.isFinite)) { told = `No step was taken: at the learning rate ${digits(by)} it leads beyond what floating point can hold. Take a smaller one.`; return refresh(); }
    history.push({ state, only });
    if (history.length > UNDONE) history.shift();
    state = moved;
    const cosine = dot(off, pull) / (length(off) * length(pull));
    told = `${only ? "This q alone moved" : "All weights moved"}, at the learning rate ${digits(by)}. p(${isolated(words[next])}) went from ${digits(before.p)} to ${digits(after.p[next])}, the loss from ${digits(before.loss)} to ${digits(ended)}: a change of ${change(ended - before.loss)}, where its slope promised ${change(foretold)}. q moved by ${digits(length(off), 4)}, ${Number.isFinite(cosine) ? `at cosine ${digits(cosine)} to its own −dL/dq${only ? "" : ": a q is computed from weights that other words share"}` : "and has no slope"}.`;
    refresh();
  }
  function tell() {
    shown.textContent = digits(rate());
    slider.setAttribute("aria-valuetext", digits(rate()));
    const taken = state.steps + state.shifts.length;
    undo.disabled = !history.length;
    reset.disabled = !taken;
    const each = labels[eye.t], what = moves.value === "q" ? `q of ${quote(each)} in ${called(eye.l, eye.h)}, along its −dL/dq` : "all weights along −dL/dw, and q follows from them";
    report.textContent = `${taken ? `${grouped(taken)} step${taken > 1 ? "s" : ""} taken. ` : ""}${told || `To make ${quote(words[next])} more likely after ${quote(said(ids))}, a step moves ${what}.`}`;
    report.dataset.rate = rate();
  }

  // What a head does without a part, in the loss.
  const without = (left) => loss(forward(net, state, ids, left), next) - loss(run, next);
  function refresh() {
    labels = ids.map((i, t) => (ids.indexOf(i) === ids.lastIndexOf(i) ? words[i] : `${words[i]}(${ids.slice(0, t + 1).filter((j) => j === i).length})`));
    run = forward(net, state, ids);
    slopes = backward(net, state, run, next);
    wanted.value = next;
    foresee();
    look();
    tell();
    draw();
  }
  function foresee() {
    const order = [...words.keys()].sort((a, b) => run.p[b] - run.p[a]), rank = order.indexOf(next), best = order.slice(0, 6), rows = rank < 6 ? best : [...best.slice(0, 5), next];
    after.textContent = `After ${quote(said(ids))}`;
    const made = table(["word", "logit", "p", ""], rows.map((i) => [i === next ? el("strong", {}, token(words[i])) : token(words[i]), digits(run.logits[i]), digits(run.p[i]), level(run.p[i], 1, i === next ? "var(--ray)" : "var(--k0)")]));
    made.dataset.logits = JSON.stringify([...run.logits]);
    listed.replaceChildren(scrolling("What comes next", made));
    losing.textContent = `Loss −log p(${isolated(words[next])}) = ${digits(loss(run, next), 4)}; rank ${rank + 1} of ${grouped(words.length)}.`;
    losing.dataset.loss = loss(run, next);
  }
  // A bar from zero on; the sign is that of what it shows.
  const level = (x, most, ink) => svg("svg", { viewBox: "0 0 100 18", height: 18, "aria-hidden": "true", preserveAspectRatio: "none" }, svg("rect", { x: 0, y: 3, height: 12, width: 100 * clamp(x / (most || 1), 0, 1) || 0, fill: ink }));
  const held = (host, name, draw) => { // what is drawn anew keeps the focus
    const at = host.contains(document.activeElement) ? document.activeElement.getAttribute(name) : null;
    draw();
    if (at !== null) host.querySelector(`[${name}="${at}"]`)?.focus();
  };

  const grid = el("div", { class: "overview", role: "group", "aria-label": "Heads" }), one = el("div");
  grid.style.gridTemplateColumns = `max-content repeat(${net.H}, minmax(20px, 76px))`;
  map.body.append(grid, el("h3", { id: "model-head" }), one);
  function look() {
    const { l, h, t } = eye, T = ids.length, { weights, v } = run.layers[l].heads[h], full = (row) => upTo(T).map((s) => row[s] ?? 0);
    held(grid, "data-head", () => grid.replaceChildren(...upTo(net.L).flatMap((l) => [el("span", { class: "name", text: `layer ${l}` }), ...upTo(net.H).map((h) => {
      const canvas = el("canvas", { width: T, height: T, "aria-hidden": "true" }), pen = canvas.getContext("2d"), image = pen.createImageData(T, T);
      run.layers[l].heads[h].weights.flatMap(full).forEach((w, i) => image.data.set([...colour(VIRIDIS, w), 255], 4 * i));
      pen.putImageData(image, 0, 0);
      canvas.style.aspectRatio = "1";
      return el("button", { type: "button", "data-head": `${l},${h}`, "aria-label": called(l, h), "aria-pressed": String(l === eye.l && h === eye.h), onclick: () => { eye = { ...eye, l, h }; chosen = null; told = ""; refresh(); } }, canvas);
    })])));
    map.body.querySelector("h3").textContent = `Weights p of ${called(l, h)}`;
    held(one, "data-row", () => heatmap(one, { weights: weights.map(full), rows: labels, columns: labels, chosen: t, choose: (t) => { eye = { ...eye, t }; chosen = null; told = ""; refresh(); }, caption: "" }));
    one.querySelector("table").dataset.weights = JSON.stringify([...weights[t]]);
    contribute(weights[t], v);
    limit(weights[t]);
  }
  let shares = [], effects = [];
  function contribute(p, v) {
    const { l, h, t } = eye, flat = run.layers[l].Dv * net.E, W = state.w[`${l}.out`].subarray(h * flat, (h + 1) * flat);
    const written = linear(v.slice(0, t + 1), W, net.E).map(length), most = Math.max(...p.map((w, s) => w * written[s]), 1e-300);
    shares = p.map((w, s) => w * written[s]);
    effects = p.map((_, s) => without((a, b, c, d) => a === l && b === h && c === t && d === s));
    const made = table(["key", "p", "‖v·W_O‖", "‖p·v·W_O‖", "", "Δ loss"], p.map((w, s) => [el("span", {}, swatch(s), token(labels[s])), digits(w), digits(written[s]), digits(shares[s]), level(shares[s], most, hue(s)), change(effects[s])]), { kind: "lines puts" });
    made.dataset.shares = JSON.stringify(shares);
    made.dataset.effects = JSON.stringify(effects);
    out.body.replaceChildren(el("p", { class: "note", text: "A head adds Σ p·v·W_O to its word: a key of much weight adds little where its v·W_O is short. Δ loss: what changes if this p·v·W_O is left out and the rest computed again." }), el("h3", { text: `Into ${quote(labels[t])}, ${called(l, h)}` }), scrolling("What each key puts in", made));
  }
  function explain() {
    const { l, h, t } = eye, head = run.layers[l].heads[h], gains = slopes.heads[l][h].gains[t], p = head.weights[t];
    const pulled = along(head.c, p.map((w, s) => w * gains[s]), head.k.slice(0, t + 1).map((x) => [...x]));
    why(reasons.body, { labels: labels.slice(0, t + 1), p: [...p], gains, ...pulled, scale: head.c, chosen, choose: (s) => { chosen = s; explain(); }, query: "q" });
    reasons.body.prepend(el("p", { class: "note", text: "a says how much more weight on the key would lower the loss, ā its mean: keys above it draw q, those below drive it off." }), el("h3", { text: `On q of ${quote(labels[t])}, ${called(l, h)}` }));
    return pulled;
  }

  // The plane: −dL/dq before all steps, to the right; across it, where the keys lie farthest apart.
  function frame(keys, slope) {
    const unit = (x) => { const n = length(x); return n > 1e-12 ? x.map((y) => y / n) : x.map(() => 0); };
    const mean = keys.reduce((a, b) => add(a, b)).map((x) => x / keys.length), spread = keys.map((x) => add(x, mean, -1));
    const widest = (rows) => {
      let u = unit(rows.reduce((a, b) => (length(b) > length(a) ? b : a)));
      for (let i = 0; i < 100; i++) u = unit(rows.reduce((sum, x) => add(sum, x, dot(x, u)), u.map(() => 0)));
      return u;
    };
    const right = length(slope) > 1e-12 ? unit(slope) : widest(spread), up = widest(spread.map((x) => add(x, right, -dot(x, right))));
    const all = spread.reduce((sum, x) => sum + squared(x), 0);
    return { axes: [right, up], holds: all > 0 ? spread.reduce((sum, x) => sum + dot(x, right) ** 2 + dot(x, up) ** 2, 0) / all : 1 };
  }
  function draw() {
    const { l, h, t } = eye, began = forward(net, start, ids), fell = backward(net, start, began, next);
    const at = frame(began.layers[l].heads[h].k.slice(0, t + 1), fell.heads[l][h].dq[t].map((x) => -x)), flat = (x) => at.axes.map((axis) => dot(axis, x));
    const path = [...history.map((x) => x.state), state].map((x) => flat(query(forward(net, x, ids)))), keys = run.layers[l].heads[h].k.slice(0, t + 1).map(flat), q = path.at(-1), total = slope().map((x) => -x);
    const W = Math.max(wide, 240), H = Math.round(clamp(W * 0.6, 230, 420)), long = Math.min(90, W * 0.2), seen = close.checked ? path : [[0, 0], ...keys, ...path];
    const [low, high] = [Math.min, Math.max].map((f) => [0, 1].map((i) => f(...seen.map((x) => x[i]))));
    const room = (side, i) => (side - 2 * long - 20) / Math.max(high[i] - low[i], close.checked ? rate() * length(total) : 0, 1e-6), unit = Math.min(room(W, 0), room(H, 1)), place = (x) => [W / 2 + (x[0] - (low[0] + high[0]) / 2) * unit, H / 2 - (x[1] - (low[1] + high[1]) / 2) * unit];
    const from = place(q), into = svg("g"), pulled = explain().pulls.map(flat);
    const ends = pulled.reduce((all, x) => [...all, add(all.at(-1), x)], [[0, 0]]), most = Math.max(...ends.map(length)), times = most > 1e-12 ? long / most : 0, tip = (x) => [from[0] + times * x[0], from[1] - times * x[1]];
    drawing.setAttribute("viewBox", `0 0 ${W} ${H}`);
    drawing.setAttribute("height", H);
    drawing.replaceChildren(into);
    const [ox, oy] = place([0, 0]);
    into.append(svg("line", { class: "axis", x1: 0, x2: W, y1: oy, y2: oy }), svg("line", { class: "axis", x1: ox, x2: ox, y1: 0, y2: H }), svg("text", { class: "soft rim", x: clamp(ox + 5, 5, W - 20), y: clamp(oy + 14, 14, H - 6), text: "0" }));
    if (!close.checked) marks(into, labels, keys.map(place), W);
    into.append(svg("polyline", { points: path.map((x) => place(x).map((y) => y.toFixed(2)).join(",")).join(" "), fill: "none", stroke: "var(--ray)", "stroke-width": 2 }), ...path.slice(0, -1).map(place).map(([cx, cy]) => svg("circle", { cx, cy, r: 2.6, fill: "var(--ray)" })));
    pulled.forEach((_, s) => arrow(into, tip(ends[s]), tip(ends[s + 1]), hue(s), 1.6));
    arrow(into, from, tip(flat(total)), "var(--ink)", 3);
    into.append(svg("circle", { cx: from[0], cy: from[1], r: 6.5, fill: "var(--panel)", stroke: "var(--ink)", "stroke-width": 2.2 }), svg("circle", { cx: from[0], cy: from[1], r: 2.2, fill: "var(--ink)" }), svg("text", { class: "rim", x: from[0], y: from[1] - 12, "text-anchor": "middle", "font-weight": 700, text: "q" }));
    const gone = add(query(run), query(began), -1);
    axes.textContent = `q of ${quote(labels[t])}, ${called(l, h)}, at the ring${state !== start ? `, ${digits(length(gone), 4)} from where it began, the line behind it` : ""}; shapes are keys. The thick arrow is −dL/dq, of length ${digits(length(total), 4)}, thin ones the pulls that sum to it, ${times ? `drawn ${tick(Number((times / unit).toPrecision(2)))} times as long` : "and all too short to be drawn"}. To the right: −dL/dq ${state !== start ? "before these steps" : "now"}; up: across it, where the keys lie farthest apart. The plane holds ${digits(100 * at.holds, 0)} % of their spread.`;
    drawing.setAttribute("aria-label", axes.textContent);
    drawing.dataset.q = JSON.stringify([...query(run)]);
    drawing.dataset.path = path.length;
  }

  function limit(p) {
    const { l, h, t } = eye, top = (x) => x.reduce((best, y, s) => (Math.abs(y) > Math.abs(x[best]) ? s : best), 0), [heavy, long, strong] = [p, shares, effects].map(top);
    const here = quote(labels[t]), name = (s) => quote(labels[s]), parts = [];
    for (const [a, layer] of run.layers.entries()) {
      for (const b of upTo(net.H)) {
        const flat = layer.Dv * net.E, [y] = linear(layer.heads[b].out.slice(-1), state.w[`${a}.out`].subarray(b * flat, (b + 1) * flat), net.E);
        parts.push([called(a, b), length(y), without((c, d) => c === a && d === b)]);
      }
      if (layer.written) parts.push([`layer ${a}, MLP`, length(layer.written.at(-1)), without((c, d) => c === a && d === null)]);
    }
    const all = without((_, d) => d !== null), mlps = without((_, d) => d === null), has = run.layers.some((x) => x.written), word = add(run.layers[0].x[heavy], run.layers[l].x[heavy], -1);
    const told = `Here ${name(heavy)} has most weight (${digits(p[heavy])}), ${name(long)} adds most (${digits(shares[long])}), and leaving out ${effects[strong] ? `${name(strong)} changes the loss most (${change(effects[strong])})` : "any of them changes the loss by 0"}`;
    const items = [
      ["A weight is not an effect.", ` ${told}, in ${called(l, h)} at ${here}. ${t < ids.length - 1 ? `The loss is that of the last word: what ${here} takes up counts as far as later layers carry it there.` : "Which of them is first may differ: try other heads."}`],
      ["A head is one way among many.", ` Without ${called(l, h)} the loss changes by ${change(parts.find(([name]) => name === called(l, h))[2])}, without all heads by ${change(all)}${has ? `, without all MLPs by ${change(mlps)}` : ""}. The residual stream carries each word’s vector past all heads unchanged. Parts left out together do not change the loss by the sum of what each does alone.`],
      ["A key is not a word.", l ? ` In layer ${l} the key of ${name(heavy)} is no longer computed from the word alone: earlier layers have added a vector ${digits(length(word) / length(run.layers[0].x[heavy]), 1)} times as long as the embedding of the word and its position.` : " In layer 0 it is computed from the word and its position alone; in later layers also from what earlier layers added there, which comes from all words up to it. Choose a head of the last layer to see how much."],
      ["A slope is not a step.", " −dL/dq says where the loss falls fastest from here, for a small step. Compare what the slope promised with what a step did, at a small and at a large learning rate."],
    ];
    const made = table(["left out", "adds to the last word", "Δ loss"], parts.map(([name, size, off]) => [name, digits(size), change(off)]));
    made.dataset.parts = JSON.stringify(parts.map(([, , off]) => off));
    limits.body.replaceChildren(el("div", { class: "beside" }, el("ul", {}, ...items.map(([strong, text]) => el("li", {}, el("strong", { text: strong }), text))), scrolling("Left out, one at a time", made)),
      el("p", { class: "note", text: "Jain and Wallace 2019, “Attention is not explanation”: in their models quite other weights give nearly the same answer; Wiegreffe and Pinter 2019, “Attention is not not explanation”: when that matters. Kobayashi et al. 2020, “Attention is not only a weight”: the norm of p·v·W_O beside p." }));
  }

  input.value = said(ids);
  const show = ({ head, row, key }) => { // the sentence may be another by now
    eye = { l: head?.[0] ?? eye.l, h: head?.[1] ?? eye.h, t: Math.min(row ?? eye.t, ids.length - 1) };
    chosen = key !== null && key <= eye.t ? key : null;
    refresh();
    return { sentence: ask.node, next: guess.node, heads: map.node, output: out.node, step: step.node, pulls: reasons.node, limits: limits.node };
  };
  ask.after = () => { // the head without which the loss would be the highest
    wide = step.body.clientWidth;
    run = forward(net, state, ids);
    const each = upTo(net.L * net.H).map((i) => ({ l: Math.floor(i / net.H), h: i % net.H }));
    const off = each.map(({ l, h }) => without((a, b) => a === l && b === h));
    eye = { ...eye, ...each[off.indexOf(Math.max(...off))] };
    refresh();
  };
  step.resize = () => { wide = step.body.clientWidth; draw(); };
  return { made: [ask, guess, map, out, step, reasons, limits], show };
}

PANELS.model = modelPanels;
