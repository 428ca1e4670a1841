"""PyTorch agrees: its scaled_dot_product_attention given the dense equivalent, and flex_attention run eagerly.

Over odd sizes, in float64, values and gradients; of flex_attention the values, which is all that it has on a CPU.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import normal

import jattn
from jattn import masks, scores

pytestmark = pytest.mark.structure

torch = pytest.importorskip("torch", reason="the other side of each equality: pip install 'jattn[parity]'")

SIZES = [(13, 13, 5, 3), (67, 67, 7, 7)]
ULPS = 512 * float(np.finfo(np.float64).eps)


def ids(T):
    return np.arange(T) * 4 // T


def table(T):
    return np.random.default_rng(T).random((-(-T // 16),) * 2) < 0.5


# Masks: ours of T tokens, and the same rule as flex_attention asks for it, mask_mod(batch, head, query, key).
MASKS = {
    "causal": (lambda T: masks.causal(), lambda T: lambda b, h, t, s: t >= s),
    "window": (lambda T: masks.window(5, 2), lambda T: lambda b, h, t, s: (t - s <= 5) & (s - t <= 2)),
    "prefix": (lambda T: masks.prefix(7) | masks.causal(), lambda T: lambda b, h, t, s: (t >= s) | (s < 7)),
    "documents": (
        lambda T: masks.segments(ids(T)) & masks.causal(),
        lambda T: (lambda i: lambda b, h, t, s: (i[t] == i[s]) & (t >= s))(torch.tensor(ids(T))),
    ),
    "chunked": (lambda T: masks.chunked(9), lambda T: lambda b, h, t, s: t // 9 == s // 9),
    "dilated": (lambda T: masks.dilated(3), lambda T: lambda b, h, t, s: (t - s) % 3 == 0),
    "blocks": (
        lambda T: masks.blocks(table(T), 16),
        lambda T: (lambda x: lambda b, h, t, s: x[t // 16, s // 16])(torch.tensor(table(T))),
    ),
    "where": (lambda T: masks.where(lambda t, s: t * s % 5 < 3), lambda T: lambda b, h, t, s: t * s % 5 < 3),
    "lengths": (lambda T: masks.lengths(k=11), lambda T: lambda b, h, t, s: (s < 11) & (t == t)),
    "not causal": (lambda T: ~masks.causal() | masks.window(2), lambda T: lambda b, h, t, s: (t < s) | (t - s <= 2)),
}
W = normal(9, seed=8)
W_TORCH = torch.tensor(W)
SCORES = {  # score_mod(score, batch, head, query, key)
    "soft_cap": (lambda: scores.soft_cap(2.0), lambda a, b, h, t, s: 2 * torch.tanh(a / 2)),
    "alibi": (lambda: scores.alibi(0.5), lambda a, b, h, t, s: a - 0.5 * abs(t - s)),
    "distance_bias": (
        lambda: scores.distance_bias(W),
        lambda a, b, h, t, s: a + W_TORCH[torch.clamp(s - t, -4, 4) + 4],
    ),
    "compose": (
        lambda: scores.compose(scores.temperature(2.0), scores.alibi(0.5)),
        lambda a, b, h, t, s: a / 2 - 0.5 * abs(t - s),
    ),
}


def arrays(T, S, D, Dv):
    return [normal(n, d, seed=i) for i, (n, d) in enumerate(((T, D), (S, D), (S, Dv), (T, Dv)))]


def sdpa(x, w, **options):
    own = [torch.tensor(a)[None, None].requires_grad_() for a in x]
    out = torch.nn.functional.scaled_dot_product_attention(*own, **options)
    return [a.detach().numpy()[0, 0] for a in (out, *torch.autograd.grad(out, own, torch.tensor(w)[None, None]))]


def flex(x, **options):
    from torch.nn.attention.flex_attention import flex_attention

    with torch.no_grad():
        return flex_attention(*(torch.tensor(a)[None, None] for a in x), **options).numpy()[0, 0]


def ours(x, w, **options):
    out, pull = jax.vjp(jax.jit(lambda *x: jattn.attention(*x, tile=(32, 32), **options)), *map(jnp.asarray, x))
    return [out, *pull(jnp.asarray(w))]


def each(names, small):
    """The larger size, of several tiles, with every name; the smaller with some of them, or with --all."""
    large = [pytest.param(name, SIZES[1], id=name) for name in names]
    marks = {name: () if name in small else pytest.mark.exhaustive for name in names}
    return large + [pytest.param(name, SIZES[0], id=f"{name}, small", marks=marks[name]) for name in names]


def assert_agree(got, want):
    for g, w in zip(got, want, strict=True):
        assert np.abs(np.asarray(g) - w).max() <= ULPS * max(1, np.abs(w).max())


@pytest.mark.usefixtures("x64")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("name", "size"), each(MASKS, {"causal", "blocks", "lengths"}))
def test_a_mask_is_what_pytorch_makes_of_it(name, size):
    from torch.nn.attention.flex_attention import create_block_mask

    make, rule = MASKS[name]
    T, S = size[:2]
    *x, w = arrays(*size)
    got = ours(x, w, mask=make(T))
    dense = np.asarray(masks.to_dense(make(T), T, S))
    assert_agree(got, sdpa(x, w, attn_mask=torch.tensor(dense)))
    assert_agree(got[:1], [flex(x, block_mask=create_block_mask(rule(T), 1, 1, T, S, device="cpu"))])


@pytest.mark.usefixtures("x64")
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("name", "size"), each(SCORES, {"alibi", "compose"}))
def test_a_score_is_what_pytorch_makes_of_it(name, size):
    make, rule = SCORES[name]
    score = make()
    *x, w = arrays(*size)
    got = ours(x, w, score=score)
    assert_agree(got[:1], [flex(x, score_mod=rule)])
    if name in ("alibi", "distance_bias"):  # the others are no bias
        t = np.arange(size[0], dtype=np.int32)
        bias = jax.vmap(jax.vmap(lambda t, s: score(jnp.float64(0), t, s), (None, 0)), (0, None))(t, t)
        assert_agree(got, sdpa(x, w, attn_mask=torch.tensor(np.asarray(bias))))


def test_another_mask_would_be_seen():
    *x, w = arrays(*SIZES[0])
    with pytest.raises(AssertionError), jax.enable_x64(True):
        assert_agree(ours(x, w, mask=masks.window(5, 3)), sdpa(x, w, attn_mask=torch.tensor(np.tri(13, dtype=bool))))
