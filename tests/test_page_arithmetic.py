"""The arithmetic of a language model on a page is that of JAX: values, what each part does, pulls, and a step."""
# ruff: noqa: E501 (a script stands in lines of its own)

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _browser import visits
from _small_model import PARAMS, PART, WORDS, D, Dv, H, L, N, V

from jattn import flow, heads, masks, page

pytestmark = pytest.mark.structure

RATE = 0.05


@pytest.fixture
def visit(browser, tmp_path):
    page.write(tmp_path / "model.html", "A model", PART)
    with visits(browser, tmp_path) as go:
        yield lambda: go("model.html")


# The same in JAX, dense: a sentence may be padded, for no word sees those after it.


def logits(w, ids, n, gates=None, added=0.0):
    """What may come after the word of number n − 1, with heads and MLPs times their gates; the q, k and v of each layer."""
    x, seen = w["embed"][ids] + w["positions"][: len(ids)], []
    for number, of in enumerate(w["layers"]):
        normed = heads.rms_norm(x, of["norm"]) if "norm" in of else x
        q, k, v = (jnp.einsum("te,ehd->htd", normed, of[name]) for name in "qkv")
        scaled = jnp.where(jnp.tri(len(ids), dtype=bool)[None], jnp.einsum("htd,hsd->hts", q, k) / np.sqrt(D), -jnp.inf)
        out = jnp.einsum("hts,hsd->htd", jax.nn.softmax(scaled), v)
        out = out if gates is None else (out + added[number]) * gates["heads"][number]
        seen.append((q, k, v))
        x = x + jnp.einsum("htd,hde->te", out, of["out"])
        if "mlp_in" in of:
            m = heads.rms_norm(x, of["mlp_norm"]) if "mlp_norm" in of else x
            x = x + jax.nn.gelu(m @ of["mlp_in"]) @ of["mlp_out"] * (1 if gates is None else gates["mlps"][number])
    return (heads.rms_norm(x, w["norm"]) @ w["unembed"])[n - 1], seen


def loss(w, ids, n, follows):
    return -jax.nn.log_softmax(logits(w, ids, n)[0])[follows]


def of_sentence(w, ids, n, follows, at):
    """All that the page shows of one sentence, at layer, head and query `at`, before a step and after it."""
    layer, h, t = at
    nothing = jnp.zeros((L, H, N, Dv))
    ones = {"heads": jnp.ones((L, H, 1, 1)), "mlps": jnp.ones(L)}

    def with_parts(gates, added):
        return -jax.nn.log_softmax(logits(w, ids, n, gates, added)[0])[follows]

    z, seen = logits(w, ids, n)
    base, slope = jax.value_and_grad(loss)(w, ids, n, follows)
    dout = jax.grad(with_parts, 1)(ones, nothing)[layer, h]
    q, k, v = (jnp.stack([x[i] for x in seen])[layer, h] for i in range(3))
    row = flow.measure_row(q, k, v, dout, t, mask=masks.causal())
    written = row.weights[:, None] * (v @ jnp.stack([of["out"] for of in w["layers"]])[layer, h])
    gone = lambda s: nothing.at[layer, h, t].set(-row.weights[s] * v[s])  # noqa: E731
    effects = jax.vmap(lambda s: with_parts(ones, gone(s)))(jnp.arange(N)) - base
    off = {"heads": (1 - jnp.eye(L * H)).reshape(L * H, L, H, 1, 1), "mlps": jnp.ones((L * H, L))}
    heads_off = jax.vmap(with_parts, (0, None))(off, nothing) - base
    mlp_off = with_parts(ones | {"mlps": jnp.array([0.0, 1.0])}, nothing) - base
    after = jax.tree.map(lambda x, d: x - RATE * d, w, slope)
    later, seen = logits(after, ids, n)
    return {
        "logits": z, "loss": base, "weights": row.weights, "shares": jnp.linalg.norm(written, axis=1), "effects": effects,
        "pulls": row.pulls, "total": -row.dq, "q": q[t], "parts": jnp.insert(heads_off, H, mlp_off),
        "later": later, "later_q": jnp.stack([x[0] for x in seen])[layer, h, t],
    }  # fmt: skip


READ = """({ rate, asked }) => {
  const at = (s) => document.querySelector(s), set = (x, value, event) => { x.value = value; x.dispatchEvent(new Event(event)); };
  const data = (s, name) => JSON.parse(at(s).dataset[name]);
  const press = (text) => [...document.querySelectorAll("button")].find((b) => b.textContent === text).click();
  set(at("#model-rate"), Math.log10(rate), "input");
  return asked.map(({ text, follows, head, t }) => {
    set(at("#model-text"), text, "change");
    set(at("#model-next"), follows, "change");
    at(`[data-head="${head}"]`).click();
    at(`[data-row="${t}"]`).click();
    const seen = () => ({ logits: data("[data-logits]", "logits"), loss: data("#model-loss", "loss"), shares: data("[data-shares]", "shares"), effects: data("[data-effects]", "effects"),
      pulls: data("[data-pulls]", "pulls"), total: data("[data-pulls]", "total"), q: data("svg[data-q]", "q"), parts: data("[data-parts]", "parts"), weights: data("[data-weights]", "weights") });
    const before = seen();
    press("One gradient step");
    const after = seen();
    press("Undo");
    return { before, after, undone: seen() };
  });
}"""


def asked(count, seed=1):
    rng = np.random.default_rng(seed)
    made = []
    for n in rng.integers(1, N + 1, count):
        ids = rng.integers(0, V, n)
        made.append((ids, int(rng.integers(V)), (int(rng.integers(L)), int(rng.integers(H)), int(rng.integers(n)))))
    return made


@pytest.fixture(scope="module", params=[60, pytest.param(200, marks=pytest.mark.exhaustive)])
def some(request):
    return asked(request.param)


@pytest.fixture(scope="module")
def want(some):
    with jax.enable_x64(True):
        w = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), PARAMS)
        padded = jnp.array([np.pad(ids, (0, N - len(ids))) for ids, *_ in some])
        n, follows, at = (
            jnp.array(x) for x in ([len(ids) for ids, *_ in some], [x[1] for x in some], [x[2] for x in some])
        )
        found = jax.jit(jax.vmap(of_sentence, (None, 0, 0, 0, 0)))(w, padded, n, follows, at)
        return jax.tree.map(np.asarray, found)


def test_the_arithmetic_of_the_page_is_that_of_jax(visit, some, want):
    """Over random sentences: logits, weights, shares, effects, pulls, and all of it after a step on all weights."""
    view = visit()
    found = view.evaluate(
        READ,
        {
            "rate": RATE,
            "asked": [
                {"text": " ".join(WORDS[i] for i in ids), "follows": follows, "head": f"{at[0]},{at[1]}", "t": at[2]}
                for ids, follows, at in some
            ],
        },
    )
    for i, (ids, _, (_, _, t)) in enumerate(some):
        before, after = found[i]["before"], found[i]["after"]
        for name in ("logits", "loss", "weights", "shares", "effects", "pulls", "total", "q", "parts"):
            expected = want[name][i][: t + 1] if name in ("weights", "shares", "effects", "pulls") else want[name][i]
            np.testing.assert_allclose(before[name], expected, rtol=0, atol=1e-10, err_msg=f"{name} of {ids}")
        np.testing.assert_allclose(after["logits"], want["later"][i], rtol=0, atol=1e-10)
        np.testing.assert_allclose(after["q"], want["later_q"][i], rtol=0, atol=1e-10)
        assert found[i]["undone"] == before
    assert view.seen == []
    moved = np.abs(np.array([x["after"]["logits"] for x in found]) - want["logits"]).max(1)
    assert np.median(moved) > 1e-2, "the steps did move it"
    assert np.abs(want["effects"]).max() > 0.1
    assert np.abs(want["pulls"]).max() > 0.01
