// A causal transformer and its gradient, operation by operation, in float64. Rows are arrays; a matrix [n, m] lies flat.

const zeros = (n) => new Float64Array(n);
const sums = (a, b) => a.map((row, t) => add(row, b[t]));

function softmax(x) {
  const top = Math.max(...x), exps = x.map((y) => Math.exp(y - top)), sum = exps.reduce((a, b) => a + b, 0);
  return exps.map((y) => y / sum);
}

// y = x W, and of dL/dy its dL/dx; dL/dW is added to dw.
function linear(rows, w, m) {
  return rows.map((x) => {
    const y = zeros(m);
    x.forEach((a, i) => { for (let j = 0; j < m; j++) y[j] += a * w[i * m + j]; });
    return y;
  });
}
function linearBack(rows, w, dy, dw) {
  return rows.map((x, t) => {
    const dx = zeros(x.length), m = dy[t].length;
    for (let i = 0; i < x.length; i++) for (let j = 0; j < m; j++) { dx[i] += w[i * m + j] * dy[t][j]; dw[i * m + j] += x[i] * dy[t][j]; }
    return dx;
  });
}

// y = x · g / √(mean x² + ε); where there is no g, y = x.
const inverse = (x) => 1 / Math.sqrt(dot(x, x) / x.length + 1e-6);
const norm = (rows, g) => (g ? rows.map((x) => { const r = inverse(x); return x.map((a, i) => a * r * g[i]); }) : rows);
function normBack(rows, g, dy, dg) {
  if (!g) return dy;
  return rows.map((x, t) => {
    const r = inverse(x), dn = dy[t].map((d, i) => d * g[i]), mean = (dot(x, dn) * r ** 3) / x.length;
    dy[t].forEach((d, i) => { dg[i] += d * x[i] * r; });
    return x.map((a, i) => r * dn[i] - a * mean);
  });
}

// gelu by its tanh, and its derivative.
const BEND = Math.sqrt(2 / Math.PI);
const bent = (u) => Math.tanh(BEND * (u + 0.044715 * u ** 3));
const gelu = (u) => (u / 2) * (1 + bent(u));
const geluSlope = (u) => (1 + bent(u)) / 2 + (u / 2) * (1 - bent(u) ** 2) * BEND * (1 + 3 * 0.044715 * u * u);

// One head: t attends every s ≤ t. What `left` names is left out of the sum, and no other weight is changed.
function attend(q, k, v, c, left) {
  const weights = q.map((x, t) => softmax(k.slice(0, t + 1).map((y) => c * dot(x, y))));
  const out = weights.map((p, t) => p.reduce((sum, w, s) => (left(t, s) ? sum : add(sum, v[s], w)), zeros(v[0].length)));
  return { q, k, v, c, weights, out };
}
// a = −dL/dp; dL/dlogit = −p (a − ā).
function attendBack({ q, k, v, c, weights }, dout) {
  const [dq, dk, dv] = [q, k, v].map((x) => x.map((row) => zeros(row.length)));
  const gains = weights.map((p, t) => {
    const a = p.map((_, s) => -dot(dout[t], v[s])), mean = dot(p, a);
    p.forEach((w, s) => {
      const slope = -c * w * (a[s] - mean);
      dq[t] = add(dq[t], k[s], slope);
      dk[s] = add(dk[s], q[t], slope);
      dv[s] = add(dv[s], dout[t], w);
    });
    return a.map((x) => x - mean);
  });
  return { dq, dk, dv, gains };
}

// The weights by name, and the sizes.
function network({ arrays, numbers, layers, heads }) {
  const all = floats(numbers), w = {}, shapes = {};
  let from = 0;
  for (const [name, shape] of arrays) {
    const size = shape.reduce((a, b) => a * b);
    w[name] = Float64Array.from(all.subarray(from, (from += size)));
    shapes[name] = shape;
  }
  return { w, shapes, L: layers, H: heads, E: shapes.embed[1], N: shapes.positions[0], size: all.length };
}

const cut = (rows, h, n) => rows.map((x) => x.slice(h * n, (h + 1) * n));
const join = (heads) => heads[0].map((_, t) => Float64Array.from(heads.flatMap((rows) => [...rows[t]])));
const upTo = (n) => Array.from({ length: n }, (_, i) => i);

// The forward pass, with all that the backward pass needs. `left(l, h, t, s)` says what is left out, of an MLP with h
// null; `shifts` are added to the q of chosen words.
function forward({ shapes, L, H, E }, { w, shifts }, ids, left = () => false) {
  const row = (x, i) => x.slice(i * E, (i + 1) * E), layers = [];
  let x = ids.map((id, t) => add(row(w.embed, id), row(w.positions, t)));
  for (let l = 0; l < L; l++) {
    const of = (name) => w[`${l}.${name}`], D = shapes[`${l}.q`][2], Dv = shapes[`${l}.v`][2], M = shapes[`${l}.mlp_in`]?.[1];
    const a = norm(x, of("norm")), [q, k, v] = [["q", D], ["k", D], ["v", Dv]].map(([name, n]) => linear(a, of(name), H * n));
    for (const to of shifts) if (to.l === l) to.by.forEach((y, d) => { q[to.t][to.h * D + d] += y; });
    const heads = upTo(H).map((h) => attend(cut(q, h, D), cut(k, h, D), cut(v, h, Dv), 1 / Math.sqrt(D), (t, s) => left(l, h, t, s)));
    const joined = join(heads.map((head) => head.out)), middle = sums(x, linear(joined, of("out"), E));
    const made = { x, a, heads, joined, middle, D, Dv };
    x = middle;
    if (M) {
      const n = norm(middle, of("mlp_norm")), u = linear(n, of("mlp_in"), M), g = u.map((y) => y.map(gelu)), written = linear(g, of("mlp_out"), E);
      Object.assign(made, { n, u, g, written });
      if (!left(l, null)) x = sums(middle, written);
    }
    layers.push(made);
  }
  const end = x.slice(-1), normed = norm(end, w.norm), [logits] = linear(normed, w.unembed, shapes.unembed[1]);
  return { ids, layers, end, normed, logits, p: softmax(logits) };
}

function loss({ logits }, next) {
  const top = Math.max(...logits);
  return top + Math.log(logits.reduce((sum, x) => sum + Math.exp(x - top), 0)) - logits[next];
}

// dL/dw of every array by its name, and of every head dL/dout, dL/dq and a − ā.
function backward({ E, H }, { w }, run, next) {
  const d = Object.fromEntries(Object.entries(w).map(([name, x]) => [name, zeros(x.length)]));
  const back = (rows, name, dy) => linearBack(rows, w[name], dy, d[name]);
  const [last] = normBack(run.end, w.norm, back(run.normed, "unembed", [run.p.map((p, i) => p - (i === next))]), d.norm);
  let dx = run.ids.map((_, t) => (t === run.ids.length - 1 ? last : zeros(E)));
  const heads = [];
  for (let l = run.layers.length - 1; l >= 0; l--) {
    const { x, a, heads: had, joined, middle, Dv, n, u, g } = run.layers[l], name = (end) => `${l}.${end}`;
    if (u) {
      const du = back(g, name("mlp_out"), dx).map((row, t) => row.map((y, m) => y * geluSlope(u[t][m])));
      dx = sums(dx, normBack(middle, w[name("mlp_norm")], back(n, name("mlp_in"), du), d[name("mlp_norm")]));
    }
    const dout = back(joined, name("out"), dx);
    heads[l] = upTo(H).map((h) => ({ dout: cut(dout, h, Dv), ...attendBack(had[h], cut(dout, h, Dv)) }));
    const da = ["q", "k", "v"].map((of) => back(a, name(of), join(heads[l].map((head) => head[`d${of}`])))).reduce(sums);
    dx = sums(dx, normBack(x, w[name("norm")], da, d[name("norm")]));
  }
  run.ids.forEach((id, t) => dx[t].forEach((y, i) => { d.embed[id * E + i] += y; d.positions[t * E + i] += y; }));
  return { d, heads };
}
