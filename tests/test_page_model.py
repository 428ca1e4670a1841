"""A language model that a page computes, in a real browser: its arithmetic is JAX's, and its steps can be undone."""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import json
import os
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _browser import visits

from jattn import flow, heads, masks, page
from jattn.page import _document

V, N, E, H, D, Dv, M, L = 23, 11, 7, 3, 5, 2, 13, 2
RNG = np.random.default_rng(0)
WORDS = ["the", "river", "bank", "Fluß", "שלום", "<b>loud</b>", "👩‍👩‍👧", "\u202e-", *(f"word{i}" for i in range(V - 8))]


def drawn(*shape):
    return RNG.normal(size=shape).astype(np.float32) / np.float32(np.sqrt(shape[0])) * 2


def layer(**more):
    return {"q": drawn(E, H, D), "k": drawn(E, H, D), "v": drawn(E, H, Dv), "out": drawn(H, Dv, E)} | more


PARAMS = {
    "embed": drawn(V, E) * 4, "positions": drawn(N, E), "norm": 1 + drawn(E) / 8, "unembed": drawn(E, V),
    "layers": [layer(norm=1 + drawn(E) / 8, mlp_norm=1 + drawn(E) / 8, mlp_in=drawn(E, M), mlp_out=drawn(M, E)), layer()],
}  # fmt: skip
EXAMPLES = [("the river", "bank"), ("word1 the word2 the river the", "word3")]
PART = page.model(PARAMS, WORDS, examples=EXAMPLES)
RATE = 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("models")
    page.write(made / "model.html", "A model", PART)
    return made


@pytest.fixture
def visit(chromium, folder):
    with visits(chromium, folder) as go:
        yield lambda name="model.html", **how: go(name, **how)


# The same in JAX: x [T, E] of a sentence that may be padded, with gates that leave parts out.


def logits(w, ids, n, gates=None, added=0.0):
    """What may come after the word of number n − 1; with the q, k and v of each layer."""
    x, seen = w["embed"][ids] + w["positions"][: len(ids)], []
    for number, of in enumerate(w["layers"]):
        normed = heads.rms_norm(x, of["norm"]) if "norm" in of else x
        q, k, v = heads.project(of, normed)
        out = heads.grouped(q, k, v, mask=masks.causal()) + (added[number] if gates is not None else 0.0)
        seen.append((q, k, v))
        x = x + heads.output(of, out if gates is None else out * gates["heads"][number], x)
        if "mlp_in" in of:
            m = heads.rms_norm(x, of["mlp_norm"]) if "mlp_norm" in of else x
            x = x + jax.nn.gelu(m @ of["mlp_in"]) @ of["mlp_out"] * (1 if gates is None else gates["mlps"][number])
    return (heads.rms_norm(x, w["norm"]) @ w["unembed"])[n - 1], seen


def loss(w, ids, n, follows):
    return -jax.nn.log_softmax(logits(w, ids, n)[0])[follows]


def of_sentence(w, ids, n, follows, at):
    """All that the page shows of one sentence, at layer, head and query `at`, before a step and after it."""
    l, h, t = at
    nothing = jnp.zeros((L, H, N, Dv))
    ones = {"heads": jnp.ones((L, H, 1, 1)), "mlps": jnp.ones(L)}

    def with_parts(gates, added):
        return -jax.nn.log_softmax(logits(w, ids, n, gates, added)[0])[follows]

    z, seen = logits(w, ids, n)
    base, slope = jax.value_and_grad(loss)(w, ids, n, follows)
    dout = jax.grad(with_parts, 1)(ones, nothing)[l, h]
    q, k, v = (jnp.stack([x[i] for x in seen])[l, h] for i in range(3))
    row = flow.measure_row(q, k, v, dout, t, mask=masks.causal())
    written = row.weights[:, None] * (v @ jnp.stack([of["out"] for of in w["layers"]])[l, h])
    gone = lambda s: nothing.at[l, h, t].set(-row.weights[s] * v[s])  # noqa: E731
    effects = jax.vmap(lambda s: with_parts(ones, gone(s)))(jnp.arange(N)) - base
    off = {"heads": (1 - jnp.eye(L * H)).reshape(L * H, L, H, 1, 1), "mlps": jnp.ones((L * H, L))}
    heads_off = jax.vmap(with_parts, (0, None))(off, nothing) - base
    mlp_off = with_parts(ones | {"mlps": jnp.array([0.0, 1.0])}, nothing) - base
    after = jax.tree.map(lambda x, d: x - RATE * d, w, slope)
    later, seen = logits(after, ids, n)
    return {
        "logits": z, "loss": base, "weights": row.weights, "shares": jnp.linalg.norm(written, axis=1), "effects": effects,
        "pulls": row.pulls, "total": -row.dq, "q": q[t], "parts": jnp.insert(heads_off, H, mlp_off),
        "later": later, "later_q": jnp.stack([x[0] for x in seen])[l, h, t],
    }  # fmt: skip


READ = """(asked) => {
  const at = (s) => document.querySelector(s), set = (x, value, event) => { x.value = value; x.dispatchEvent(new Event(event)); };
  const data = (s, name) => JSON.parse(at(s).dataset[name]);
  const press = (text) => [...document.querySelectorAll("button")].find((b) => b.textContent === text).click();
  const row = () => [...at("#model-head + div table").tBodies[0].rows].map((r) => [...r.querySelectorAll("td:not(.entropy)")].map((c) => Number(c.textContent)));
  set(at("#model-rate"), Math.log10(%f), "input");
  return asked.map(({ text, follows, head, t }) => {
    set(at("#model-text"), text, "change");
    set(at("#model-next"), follows, "change");
    at(`[data-head="${head}"]`).click();
    at(`[data-row="${t}"]`).click();
    const seen = () => ({ logits: data("[data-logits]", "logits"), loss: data("#model-loss", "loss"), shares: data("[data-shares]", "shares"), effects: data("[data-effects]", "effects"),
      pulls: data("[data-pulls]", "pulls"), total: data("[data-pulls]", "total"), q: data("svg[data-q]", "q"), parts: data("[data-parts]", "parts"), weights: row() });
    const before = seen();
    press("One gradient step");
    const after = seen();
    press("Undo");
    return { before, after, undone: seen() };
  });
}""" % RATE


def asked(count, seed=1):
    rng = np.random.default_rng(seed)
    made = []
    for n in rng.integers(1, N + 1, count):
        ids = rng.integers(0, V, n)
        made.append((ids, int(rng.integers(V)), (int(rng.integers(L)), int(rng.integers(H)), int(rng.integers(n)))))
    return made


def test_the_arithmetic_of_the_page_is_that_of_jax(visit, x64):
    """Over 200 random sentences: logits, weights, shares, effects, pulls, and all of it after a step on all weights."""
    view, some = visit(), asked(200)
    found = view.evaluate(READ, [{"text": " ".join(WORDS[i] for i in ids), "follows": follows, "head": f"{at[0]},{at[1]}", "t": at[2]} for ids, follows, at in some])
    w = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), PARAMS)
    padded = jnp.array([np.pad(ids, (0, N - len(ids))) for ids, *_ in some])
    n, follows, at = (jnp.array(x) for x in ([len(ids) for ids, *_ in some], [x[1] for x in some], [x[2] for x in some]))
    want = jax.tree.map(np.asarray, jax.jit(jax.vmap(of_sentence, (None, 0, 0, 0, 0)))(w, padded, n, follows, at))
    for i, (ids, _, (_, _, t)) in enumerate(some):
        before, after = found[i]["before"], found[i]["after"]
        for name in ("logits", "loss", "shares", "effects", "pulls", "total", "q", "parts"):
            expected = want[name][i][: t + 1] if name in ("shares", "effects", "pulls") else want[name][i]
            np.testing.assert_allclose(before[name], expected, rtol=0, atol=1e-5, err_msg=f"{name} of {ids}")
        np.testing.assert_allclose(before["weights"][t], want["weights"][i][: len(ids)], atol=6e-4)
        np.testing.assert_allclose(after["logits"], want["later"][i], rtol=0, atol=1e-5)
        np.testing.assert_allclose(after["q"], want["later_q"][i], rtol=0, atol=1e-5)
        assert found[i]["undone"] == before
    assert view.seen == []
    moved = np.abs(np.array([x["after"]["logits"] for x in found]) - want["logits"]).max(1)
    assert np.median(moved) > 1e-2, "the steps did move it"
    assert np.abs(want["effects"]).max() > 0.1
    assert np.abs(want["pulls"]).max() > 0.01
