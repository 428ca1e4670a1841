// Words, numbers and colours. Everything below is a function of its arguments.
const PANELS = {}; // kind of part → what makes its panels; the file that has it adds it, if the page needs it

const el = (tag, more = {}, ...inside) => fill(document.createElement(tag), more, inside);
const svg = (tag, more = {}, ...inside) => fill(document.createElementNS("http://www.w3.org/2000/svg", tag), more, inside);

function fill(node, more, inside) {
  for (const [name, x] of Object.entries(more)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), x);
    else if (name === "text") node.textContent = x;
    else if (x === true) node.setAttribute(name, "");
    else if (x !== false && x !== null && x !== undefined) node.setAttribute(name, x);
  }
  node.append(...inside.filter((x) => x !== null && x !== undefined));
  return node;
}

// Tokens may run from right to left: each is isolated, so that it cannot turn around what stands beside it.
const token = (name) => el("bdi", { text: name === "" ? "∅" : name, title: [...name].length > 9 ? name : null });
const isolated = (name) => "\u2068" + name + "\u2069";
const shortened = (name, most) => { const letters = [...name]; return isolated(letters.length > most ? letters.slice(0, most - 1).join("") + "…" : name); };

// Numbers. NaN came as null, ±∞ as text.
const number = (x) => (x === null ? NaN : Number(x));
const deep = (x) => (Array.isArray(x) ? x.map(deep) : number(x));
const floats = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);

function digits(x, n = 3) {
  if (Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  let text = size !== 0 && (size < 0.5 * 10 ** -n || size >= 1e5) ? x.toExponential(2) : x.toFixed(n);
  if (/^-[0.]*$/.test(text)) text = text.slice(1);
  return text.replaceAll("-", "−");
}
const fixed = (x, n = 3) => (Number.isFinite(x) ? x.toFixed(n) : digits(x)).replace(/^-([0.]*)$/, "$1").replaceAll("-", "−");
const signed = (x, n = 3) => (x > 0 ? "+" : "") + digits(x, n);
const vector = (x, n = 3) => "(" + (x.length > 4 ? [...x.slice(0, 3).map((y) => digits(y, n)), "…"] : x.map((y) => digits(y, n))).join(", ") + ")";
const grouped = (x) => (Number.isInteger(x) ? x.toLocaleString("en") : digits(x));

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const there = (points) => points.filter((p) => p.every(Number.isFinite)); // a run may have left what is finite
const length = (a) => Math.sqrt(dot(a, a));
const add = (a, b, times = 1) => a.map((x, i) => x + times * b[i]);
const clamp = (x, low, high) => Math.min(Math.max(x, low), high);
const entropy = (row) => -row.reduce((sum, w) => sum + (w > 0 ? w * Math.log(w) : w === 0 ? 0 : NaN), 0);

// One query among its keys: weights p, pulls c·p_j(a_j − ā)k_j with a = −dL/dp, and their sum −dL/dq.
function meet(run, q, k) {
  const logits = k.map((key) => run.scale * dot(q, key));
  const top = Math.max(...logits);
  const exps = logits.map((x) => Math.exp(x - top));
  const sum = exps.reduce((a, b) => a + b, 0);
  const p = exps.map((x) => x / sum);
  let shares, gains, loss; // shares: p_j(a_j − ā)
  if (run.values) {
    const out = run.goal.map((_, d) => p.reduce((o, w, j) => o + w * run.values[j][d], 0));
    const miss = add(out, run.goal, -1);
    const a = run.values.map((v) => -dot(v, miss));
    gains = ahead(p, a);
    shares = p.map((w, j) => w * gains[j]);
    loss = dot(miss, miss) / 2;
  } else {
    const others = (x, i) => x.reduce((total, w, j) => total + (j === i ? 0 : w), 0); // 1 − p_i, where nothing cancels
    shares = p.map((w, j) => (j === run.target ? others(p, j) : -w));
    gains = p.map((w, j) => (j === run.target ? others(p, j) / w : -1));
    loss = Math.log1p(others(exps, logits.indexOf(top))) + top - logits[run.target];
  }
  return { p, gains, loss, ...along(run.scale, shares, k) };
}

// a − ā, measured from the key with most weight, whose share would cancel the tail of a saturated row.
function ahead(p, a) {
  const top = p.indexOf(Math.max(...p)), off = a.map((x) => x - a[top]), mean = dot(p, off);
  return off.map((x) => x - mean);
}

function along(scale, shares, k) {
  const pulls = k.map((key, j) => key.map((x) => scale * shares[j] * x));
  const total = (k[0] ?? []).map((_, d) => pulls.reduce((sum, pull) => sum + pull[d], 0));
  return { pulls, total };
}

// Colours: viridis and cividis for weights, a diverging scale around zero for what has a sign.
const VIRIDIS = ["440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151", "bddf26", "fde725"];
const CIVIDIS = ["00224e", "083370", "35456c", "4f576c", "666970", "7d7c78", "948e77", "aea371", "c8b866", "e5cf52", "fee838"];
const DIVERGING = ["2166ac", "6a9fce", "b9d3e8", "f7f7f7", "f3cfae", "dd9a5f", "b35806"];
const channels = (hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));

function colour(map, x) {
  if (!Number.isFinite(x)) return null;
  const place = clamp(x, 0, 1) * (map.length - 1), i = Math.min(Math.floor(place), map.length - 2);
  const [a, b] = [channels(map[i]), channels(map[i + 1])];
  return a.map((c, n) => Math.round(c + (place - i) * (b[n] - c)));
}
const rgb = (c) => (c ? `rgb(${c.join(" ")})` : "none");
const luminance = (c) => dot([0.2126, 0.7152, 0.0722], c.map((x) => (x / 255 <= 0.04045 ? x / 255 / 12.92 : ((x / 255 + 0.055) / 1.055) ** 2.4)));
const inkOn = (c) => (luminance(c) > 0.179 ? "#000000" : "#ffffff"); // where contrast with either is the same
const hue = (j) => `var(--k${j % 7})`;
const hollow = (j) => Math.floor(j / 7) % 2 === 1; // the next seven: the same colours and shapes, hollow, their lines dashed

function paint(cell, x, map = VIRIDIS) {
  const c = colour(map, x);
  cell.style.background = c ? rgb(c) : "";
  cell.style.color = c ? inkOn(c) : "";
}

// Round numbers that lie on an axis.
function ticks(low, high, n) {
  const rough = (high - low) / Math.max(n, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((m) => m * power >= rough * 0.999);
  if (!Number.isFinite(step) || step <= 0) return [low];
  const first = Math.ceil(low / step - 1e-9), count = Math.floor(high / step + 1e-9) - first;
  return Array.from({ length: clamp(count + 1, 0, 50) }, (_, i) => (first + i) * step);
}
const tick = (x) => String(Number(x.toPrecision(4))).replace("-", "−");

// The convex hull of places in the plane (Andrew's monotone chain).
function hull(points) {
  const sorted = [...points].sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  const half = (chain) => {
    const made = [];
    for (const p of chain) {
      while (made.length > 1) {
        const [a, b] = made.slice(-2);
        if ((b[0] - a[0]) * (p[1] - a[1]) - (b[1] - a[1]) * (p[0] - a[0]) > 0) break;
        made.pop();
      }
      made.push(p);
    }
    return made.slice(0, -1);
  };
  return [...half(sorted), ...half(sorted.reverse())];
}
