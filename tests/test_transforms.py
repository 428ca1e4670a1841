"""Every transform × every input: attention in tiles is the definition under the same transform, in float64 to 1e-12.

A case of either kind is one line. Everything that a case is asked is compiled as one program, in tiles of 16 × 16, so
that full tiles, padded tiles, tiles with a mask and tiles that are skipped all occur. Most of the time is compiling:
`make test` asks covering pairs, every ingredient all orders and every transform several cases; `--all` the product.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, Dv, assert_close, normal, pairs, qkv
from _oracles import bounds, weigh

import jattn
from jattn import masks, reference, scores

T, S = 37, 41
SQUARE = (41, 41)  # where no positions are given, so that what to visit is known before anything is traced
EXACT = 1e-12
LENGTHS = masks.lengths(q=np.int32(31), k=np.int32(23))
TREE = masks.causal() & ~masks.lengths(q=3) | masks.window(2, 9) & masks.dense(pairs(T=T, S=S))
PARENTS = np.arange(T) * 5 // 7 - 1
DROPOUT = {"dropout_rate": np.float64(0.3), "dropout_key": np.array([0, 1], np.uint32)}
q_positions = np.maximum(np.arange(T, dtype=np.int32) + (S - T), 7)  # the last rows aligned; some stand in one place
PLACES = {"q_positions": q_positions, "k_positions": np.arange(S, dtype=np.int32)}

SCORES = {
    None: lambda x: lambda score, t, s: score,
    "soft cap": lambda x: lambda score, t, s: 2 * jnp.tanh(score / 2),
    "learned": lambda x: lambda score, t, s: score * x["table"][0] + x["table"][jnp.abs(t - s) % 7],
    "relative": lambda x: scores.relative_bias(x["table"][:6], max_distance=11, bidirectional=False),
    "distance": lambda x: scores.distance_bias(x["table"]),
    "composed": lambda x: scores.compose(scores.soft_cap(x["table"][0] ** 2 + 1), scores.alibi(x["table"][1])),
    "temperature": lambda x: scores.temperature(x["table"][0] ** 2 + 1),
}


def case(*active, rows=(T, S), score=None, traced=(), fixed=(), tile=(16, 16), bias=None):
    """What is active beside q, k and v; (T, S); options that are arguments of the program, and options that are not."""
    return {"q", "k", "v", *active}, rows, bias or rows, score, dict(traced), {"tile": tile, **dict(fixed)}


CASES = {
    "nothing": case(),
    "one tile": case(tile=(48, 48)),
    "causal": case(rows=SQUARE, fixed={"mask": masks.causal()}),
    "window": case(rows=SQUARE, fixed={"mask": masks.window(9, 3)}),
    "lengths": case(fixed={"mask": masks.lengths(q=31, k=23)}),
    "lengths, traced": case("scale", traced={"mask": LENGTHS}),
    "dense mask": case(fixed={"mask": pairs(T=T, S=S)}, tile=(16, 48)),
    "algebra": case(fixed={"mask": TREE, **PLACES}),
    "positions, traced": case(fixed={"mask": masks.causal()}, traced=PLACES),
    "bias": case("bias"),
    "bias for all queries": case("bias", rows=SQUARE, fixed={"mask": masks.causal()}, bias=(1, 41)),
    "sink": case("sink", rows=SQUARE, fixed={"mask": ~masks.causal()}),
    "one sink": case("one sink", fixed={"mask": masks.lengths(k=17)}),
    "soft cap": case(score="soft cap", tile=(48, 16)),
    "learned score": case("table", rows=SQUARE, fixed={"mask": masks.causal()}, score="learned"),
    "prefix": case(rows=SQUARE, fixed={"mask": masks.causal() | masks.prefix(7)}),
    "segments, traced": case(traced={"mask": masks.segments(np.arange(T) // 9, np.arange(S) // 10)}),
    "chunked and dilated": case(rows=SQUARE, fixed={"mask": masks.chunked(19) | masks.dilated(5)}),
    "blocks": case(rows=SQUARE, fixed={"mask": masks.blocks(np.eye(6, dtype=bool)[::-1], 7)}),
    "where": case(rows=SQUARE, fixed={"mask": masks.where(lambda t, s: t * s % 17 > 3 * abs(t - s) - 40)}),
    "sinks, strided and neighbours": case(
        rows=SQUARE, fixed={"mask": masks.sinks(3) & ~masks.strided(7, 2) | masks.neighbourhood(41, 4, 3)}
    ),
    "masks of every shape": case(
        rows=SQUARE,
        fixed={
            "mask": masks.prefix(7) & masks.blocks(np.eye(6, dtype=bool)[::-1], 7)
            | masks.chunked(19) & ~masks.strided(7, 2)
            | masks.dilated(5) & ~masks.neighbourhood(41, 4, 3)
            | masks.sinks(3)
        },
    ),
    "ragged and tree, traced": case(
        traced={"mask": masks.ragged([0, 9, 9, 30, 36], [2, 20, 21, 35, 41]) | masks.tree(PARENTS, prefix=4)}
    ),
    "relative bias": case("table", rows=SQUARE, score="relative"),
    "distance bias": case("table", fixed=PLACES, score="distance"),
    "soft cap and alibi": case("table", rows=SQUARE, score="composed"),
    "temperature": case("table", score="temperature"),
    "dropout": case(rows=SQUARE, fixed={"mask": masks.causal()}, traced=DROPOUT),
    "everything": case(
        "bias", "sink", "scale", "table", score="learned", fixed={"mask": TREE}, traced={**DROPOUT, **PLACES}
    ),
}


def active_inputs(name):
    """The active inputs of a case; and for what is not active, the value that leaves attention as it is."""
    active, (T, S), of_bias, *_ = CASES[name]
    x = dict(zip("qkv", qkv(T=T, S=S), strict=True))
    x["bias"] = normal(*of_bias, seed=7) if "bias" in active else np.zeros(of_bias)
    x["sink"] = normal(T, seed=9) if "sink" in active else np.full(T, -np.inf)
    x["one sink"] = np.float64(0.6 if "one sink" in active else -np.inf)
    x["scale"] = np.float64(0.6 if "scale" in active else D**-0.5)
    x["table"] = normal(7, seed=11)
    x_dot = {
        n: normal(*a.shape, seed=30 + i) if n in active else np.zeros(a.shape) for i, (n, a) in enumerate(x.items())
    }
    return x, x_dot


def in_tiles(name, traced):
    """A case as a function of its active inputs."""
    active, _, _, score, _, fixed = CASES[name]

    def f(x):
        options = {n.removeprefix("one "): x[n] for n in ("bias", "sink", "one sink", "scale") if n in active}
        options["score"] = None if score is None else SCORES[score](x)
        return jattn.attention(x["q"], x["k"], x["v"], return_lse=True, **options, **fixed, **traced)

    return f


def written_out(name):
    """What a case gives in words, dense: the allowed pairs, positions, the factor of dropout."""
    _, (T, S), *_, traced, fixed = CASES[name]
    options = {**fixed, **traced}
    at = {"q_positions": np.arange(T, dtype=np.int32), "k_positions": np.arange(S, dtype=np.int32)}
    at |= {n: options[n] for n in at if n in options}
    mask, factor = options.get("mask", np.ones((T, S), bool)), np.ones((T, S))
    if isinstance(mask, masks.Mask):
        mask = np.asarray(jax.jit(lambda: masks.to_dense(mask, T, S, **at))())
    if "dropout_key" in options:  # equal weights, and of each value its own column: the pattern comes out
        out = jattn.attention(np.zeros((T, D)), np.zeros((S, D)), np.eye(S), **DROPOUT)
        factor = np.where(np.asarray(out) > 0.5 / S, 1 / 0.7, 0)
        assert 0.6 < (factor > 0).mean() < 0.8
    return {"mask": mask, "factor": factor, **at}


def by_definition(score, dense):
    """The same function, one for all cases of a size and a score."""

    def f(x):
        at = {n: dense[n] for n in ("mask", "q_positions", "k_positions")}
        # A sink for all and one for each row: of two, one is −∞ here.
        sink = jnp.maximum(x["sink"], x["one sink"])
        (_, _, weights, _), lse = reference.steps(
            x["q"], x["k"], x["v"], bias=x["bias"], sink=sink, scale=x["scale"], score=SCORES[score](x), **at
        )
        return (weights * dense["factor"]) @ x["v"], lse

    return f


# Transforms: of f(x) -> (out, lse), at x in a direction.


def dot(a, b):
    return sum(jnp.vdot(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def loss(f):
    return lambda x: weigh(*f(x))


def value_and_grad(f, x):
    """((out, lse), the gradient of their loss)."""

    def both(x):
        y = f(x)
        return weigh(*y), y

    (_, y), gradient = jax.value_and_grad(both, has_aux=True)(x)
    return y, gradient


def along(f, x_dot):
    return lambda x: jax.jvp(f, (x,), (x_dot,))[1]


def of_row(transform, f, x):
    """A whole Jacobian of f is affordable of one row of q."""
    return transform(lambda a: f(x | {"q": x["q"].at[20].set(a)}))(x["q"][20])


def few(f):
    """Some rows of the output, two tiles apart."""
    return lambda x: f(x)[0][jnp.array([1, 20, 36])]


def scanned(f):
    """Attention in the body of a scan, from and to the carry."""

    def step(x, carry):
        out, lse = f(x | {"q": x["q"] * carry})
        return carry + jnp.tanh(out.mean()), (out, jnp.where(lse == -jnp.inf, 0, lse) * carry)

    return lambda x: jax.lax.scan(lambda carry, _: step(x, carry), jnp.ones((), x["q"].dtype), length=3)[1]


def by_values(transposed, f, x):
    """What `transposed` makes of out as a function of v, which is linear."""
    return transposed(lambda v: f(x | {"v": v})[0], x["v"])(jnp.cos(f(x)[0]))


def pair(x, x_dot):
    return jax.tree.map(lambda a, b: jnp.stack([a, a + b / 8]), x, x_dot)


TRANSFORMS = {
    "value": lambda f, x, x_dot: f(x),
    "value and grad": lambda f, x, x_dot: value_and_grad(f, x),
    "jvp": lambda f, x, x_dot: jax.jvp(f, (x,), (x_dot,)),
    "linearize": lambda f, x, x_dot: jax.linearize(f, x)[1](x_dot),
    "jacfwd": lambda f, x, x_dot: of_row(jax.jacfwd, f, x),
    "jacrev": lambda f, x, x_dot: of_row(jax.jacrev, few(f), x),
    "hessian": lambda f, x, x_dot: of_row(jax.hessian, loss(f), x),
    "jvp of grad": lambda f, x, x_dot: jax.jvp(jax.grad(loss(f)), (x,), (x_dot,)),
    "grad of jvp": lambda f, x, x_dot: jax.grad(loss(along(f, x_dot)))(x),
    "grad of grad": lambda f, x, x_dot: jax.grad(lambda x: dot(jax.grad(loss(f))(x), x_dot))(x),
    "third order": lambda f, x, x_dot: along(jax.grad(loss(along(f, x_dot))), x_dot)(x),
    "checkpoint": lambda f, x, x_dot: jax.grad(jax.checkpoint(loss(f)))(x),
    "scan": lambda f, x, x_dot: jax.grad(loss(scanned(f)))(x),
    "linear_transpose": lambda f, x, x_dot: by_values(jax.linear_transpose, f, x),
    "vmap": lambda f, x, x_dot: jax.vmap(f)(pair(x, x_dot)),
    "vmap of grad": lambda f, x, x_dot: jax.vmap(jax.grad(loss(f)))(pair(x, x_dot)),
}


# Which are asked of which. Every case: the value, the first order in both modes, and the pairing of the two. The second
# order is asked of a mask of each kind (a mask is booleans to any order) and of every other ingredient, alone or with
# the others in "everything"; the product asks it of every case.

FIRST = ("value and grad", "linearize")
SECOND = ("jvp of grad", "grad of jvp", "grad of grad")
MORE = {
    "nothing": ("value", "jacfwd", "hessian", "scan"),
    "one tile": ("value", *SECOND, "vmap", "linear_transpose"),
    "causal": ("jacrev", "linear_transpose"),
    "window": ("checkpoint",),
    "lengths": ("scan",),
    "lengths, traced": ("value", "hessian", "vmap of grad"),
    "dense mask": (*SECOND, "jacfwd", "jacrev"),
    "algebra": ("vmap of grad",),
    "positions, traced": ("jacrev",),
    "bias": ("vmap",),
    "bias for all queries": (*SECOND, "third order", "vmap of grad"),
    "sink": ("checkpoint",),
    "one sink": (*SECOND, "third order"),
    "soft cap": ("jvp",),
    "learned score": ("third order", "scan"),
    "where": ("hessian",),
    "relative bias": ("grad of jvp", "vmap"),
    "distance bias": ("grad of grad",),
    "soft cap and alibi": ("jvp of grad", "checkpoint", "jacfwd"),
    "temperature": ("jvp",),
    "dropout": ("jvp", "vmap of grad"),
    "everything": (*SECOND, "linear_transpose"),
}
TOGETHER = {"prefix", "chunked and dilated", "blocks", "sinks, strided and neighbours"}
"""Masks that are asked in one, "masks of every shape", and one by one in the product."""
COVERING = {name: (*FIRST, *MORE.get(name, ())) for name in CASES if name not in TOGETHER}


# The whole product. The dearest to compile, and the cases that differ most.
DEAR = {"third order", "hessian", "checkpoint"}
IN_FULL = {"nothing", "lengths, traced", "bias for all queries", "learned score", "everything"}


# Of masks and scores that are values the program has the parts that the others have: they are asked the most telling.
IN_BRIEF = TOGETHER | {"segments, traced", "where", "masks of every shape", "ragged and tree, traced"}
IN_BRIEF |= {"relative bias", "distance bias", "soft cap and alibi", "temperature"}
TELLING = {"value", *FIRST, *SECOND, "vmap of grad"}


def product(name):
    if name in IN_BRIEF:
        return [n for n in TRANSFORMS if n in TELLING]
    return [n for n in TRANSFORMS if n not in DEAR or name in IN_FULL]


def assert_equal(got, want, where):
    """Relative to the largest entry of each array."""
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want) > 0
    for g, w in zip(got, want, strict=True):
        g, w = np.asarray(g), np.asarray(w)
        there = np.isfinite(w)
        np.testing.assert_array_equal(g[~there], w[~there], err_msg=where)
        size = max(np.abs(w[there]).max(initial=0), 1e-3)
        off = np.abs(g[there] - w[there]).max(initial=0) / size
        assert off <= EXACT, f"{where}: {off:.1e} of the largest entry"


def only(names, tree):
    """Of every derivative by name, those of the active inputs."""
    if isinstance(tree, dict):
        return {n: only(names, a) for n, a in tree.items() if n in names}
    return tuple(only(names, a) for a in tree) if isinstance(tree, tuple) else tree


@functools.partial(jax.jit, static_argnums=(0, 1))
def definition(transform, score, x, x_dot, dense):
    return TRANSFORMS[transform](by_definition(score, dense), x, x_dot)


def assert_as_defined(name, asked):
    """What a case is asked, in tiles and by the definition."""
    active, _, _, score, traced, _ = CASES[name]

    @jax.jit
    def ours(x, x_dot, traced):
        f = in_tiles(name, traced)
        every = {n: TRANSFORMS[n](f, x, x_dot) for n in asked}
        y, gradient = every["value and grad"]
        w = jax.grad(weigh, (0, 1))(*y)  # what the loss asks of out and lse
        return every, (dot(w, every["linearize"]), dot(gradient, x_dot))

    x, x_dot = active_inputs(name)
    dense = written_out(name)
    got, (w_j, j_w) = ours(only(active, x), only(active, x_dot), traced)
    for transform in asked:
        want = definition(transform, score, x, x_dot, dense)
        assert_equal(got[transform], only(active, want), transform)
    assert abs(w_j - j_w) <= EXACT * abs(w_j), "the pairing ⟨w, Jv⟩ = ⟨Jᵀw, v⟩"


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", COVERING)
def test_every_transform_is_that_of_the_definition(name):
    assert_as_defined(name, COVERING[name])


@pytest.mark.exhaustive
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", CASES)
def test_of_every_case_every_transform_is_that_of_the_definition(name):
    assert_as_defined(name, product(name))


def ingredients(name):
    """What a case is made of beside q, k and v."""
    active, _, of_bias, score, traced, fixed = CASES[name]
    given = fixed | traced
    yield from active - {"q", "k", "v", "bias"}
    yield from {("bias", of_bias[0])} if "bias" in active else ()
    yield from given.keys() & {"dropout_key", "q_positions"}
    kind = "dense" if isinstance(given.get("mask"), np.ndarray) else "of values"
    when = "traced" if "mask" in traced or ("mask" in fixed and "q_positions" in traced) else "known"
    yield f"mask {kind}, {when}" if "mask" in given else "no mask"
    yield from () if score is None else {"score of scalars" if score in ("soft cap", "learned") else "score of tiles"}


def test_every_ingredient_is_asked_every_order_and_every_transform_of_several_cases():
    of, asked = {}, dict.fromkeys(TRANSFORMS, 0)
    for name, transforms in COVERING.items():
        for ingredient in ingredients(name):
            of.setdefault(ingredient, set()).update(transforms)
        for transform in transforms:
            asked[transform] += 1
    assert len(of) == 14, of.keys()
    for ingredient, transforms in of.items():
        assert transforms.issuperset(FIRST + SECOND), ingredient
    assert min(asked.values()) >= 3, asked


def test_what_differs_by_a_billionth_is_seen():
    want = {"a": np.ones(3)}, np.full(2, -np.inf)
    assert_equal(want, want, "the same")
    for got in (({"a": np.ones(3) + 1e-9}, want[1]), (want[0], np.zeros(2)), ({"a": np.full(3, np.nan)}, want[1])):
        with pytest.raises(AssertionError, match="other"):
            assert_equal(got, want, "other")


# Loops and maps.


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "names",
    [("jvp of grad", "grad of grad"), pytest.param(("grad of jvp",), marks=pytest.mark.exhaustive)],
    ids=", ".join,
)
def test_every_second_derivative_of_a_scan_that_attends(names):
    """Reverse over reverse too: each step's rule must outlive the scan's own taking apart."""
    x, x_dot = (only("qkv", a) for a in active_inputs("nothing"))

    def orders(f):
        return {n: TRANSFORMS[n](scanned(f), x, x_dot) for n in names}

    got = jax.jit(lambda: orders(in_tiles("nothing", {})))()
    want = jax.jit(lambda: orders(lambda x: reference.attention(x["q"], x["k"], x["v"])))()
    for name in names:
        assert_equal(got[name], want[name], name)


BATCH = {
    "all": {"q": 0, "k": 0, "v": 0, "bias": 0, "sink": 0, "mask": 0},
    "queries": {"q": 1, "k": None, "v": None, "bias": None, "sink": None, "mask": None},
    "keys and lengths": {"q": None, "k": 1, "v": 2, "bias": None, "sink": None, "mask": 0},
    "bias and sink": {"q": None, "k": None, "v": None, "bias": 2, "sink": 1, "mask": None},
    "only lengths": {"q": None, "k": None, "v": None, "bias": None, "sink": None, "mask": 0},
}


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("name", "second_order"),
    [
        *((name, name in ("all", "keys and lengths")) for name in BATCH),
        *(pytest.param(n, True, marks=pytest.mark.exhaustive) for n in ("queries", "bias and sink", "only lengths")),
    ],
)
def test_over_some_arguments_and_any_axis(name, second_order):
    """vmap, vmap of grad, and of what is shared the gradient of the sum, and its tangent."""
    axes = BATCH[name]
    one = dict(zip("qkv", qkv(T=T, S=S), strict=True)) | {"bias": normal(T, S, seed=7), "sink": normal(T, seed=9)}
    x = {n: a if axes[n] is None else np.stack([a, a / 2, a + 0.1], axes[n]) for n, a in one.items()}
    lengths = np.array([0, 17, 41], np.int32) if axes["mask"] == 0 else np.int32(23)

    def ours(x, n):
        q, k, v, options = x["q"], x["k"], x["v"], {"bias": x["bias"], "sink": x["sink"]}
        mask = masks.lengths(k=n)
        return jattn.attention(q, k, v, mask=mask, return_lse=True, tile=(16, 16), **options)

    def dense(x, n):
        q, k, v, options = x["q"], x["k"], x["v"], {"bias": x["bias"], "sink": x["sink"]}
        return reference.attention(q, k, v, mask=jnp.arange(S, dtype=jnp.int32)[None, :] < n, **options)

    def every(f, x, lengths):
        active = {n: a for n, a in axes.items() if n != "mask"}
        over = (active, axes["mask"])
        each = lambda x, n: (f(x, n), jax.grad(lambda x: weigh(*f(x, n)))(x))  # noqa: E731
        summed = lambda x: weigh(*jax.vmap(f, over, (0, 1))(x, lengths))  # noqa: E731
        gradient = jax.grad(summed)
        of_sum = jax.jvp(gradient, (x,), (jax.tree.map(jnp.cos, x),)) if second_order else gradient(x)
        return {"each": jax.vmap(each, over)(x, lengths), "sum": of_sum}

    got, want = (jax.jit(lambda *x, f=f: every(f, *x))(x, lengths) for f in (ours, dense))
    for transform in want:
        assert_equal(got[transform], want[transform], transform)


SAME_SHAPE = normal(3, T, D).astype(np.float32)


@pytest.mark.structure
def test_a_linear_solver_attends_and_its_gradient_transposes_attention_by_its_values():
    """x = b + p·x / 2, whose gradient solves the same with the transpose; and heads that share their values."""
    q, k, b = SAME_SHAPE

    def linked(q, attend):
        solve = jax.scipy.sparse.linalg.bicgstab
        return jnp.sum(solve(lambda x: x - attend(q, k, x) / 2, b, tol=1e-6)[0] ** 2)

    by_hand = lambda q, k, x: jax.nn.softmax(q @ k.T / D**0.5) @ x  # noqa: E731
    ways = functools.partial(jattn.attention, tile=(16, 16)), by_hand
    got, want = (jax.jit(jax.grad(lambda q, f=f: linked(q, f)))(q) for f in ways)
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3 * np.abs(want).max())

    heads = lambda v: jattn.dot_product_attention(q[None, :, None].repeat(2, 2), k[None, :, None], v)  # noqa: E731
    v, cotangent = b[None, :, None], normal(1, T, 2, D, seed=3, dtype=np.float32)
    got, want = (f(heads, v)(cotangent)[0] for f in (jax.linear_transpose, lambda f, v: jax.vjp(f, v)[1]))
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.structure
def test_a_product_with_a_hessian_is_its_own_transpose():
    q, k, v = SAME_SHAPE

    def product(q_dot):
        loss = lambda q: jnp.sum(jattn.attention(q, k, v, tile=(16, 16)) ** 2)  # noqa: E731
        return jax.grad(lambda q: jax.jvp(loss, (q,), (q_dot,))[1])(q)

    got, want = jax.linear_transpose(product, q)(v)[0], product(v)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize(
    ("attend", "by"),
    [
        (lambda x, k, v: jattn.attention(x, k, v), "operand 0"),
        (jax.jit(lambda x, k, v: jattn.attention(k, x, v)), "operand 1"),
        (lambda x, k, v: jattn.attention(x, k, x), "operand 0 .* and operand 2"),
        (lambda x, k, v: jax.jvp(lambda q: jattn.attention(q, k, x), (v,), (k,))[1], "operand 2"),
    ],
    ids=["queries", "keys", "queries and values", "values of a derivative"],
)
@pytest.mark.structure
def test_attention_is_not_transposed_by_what_it_is_not_linear_in(attend, by):
    x, k, v = SAME_SHAPE
    with pytest.raises(ValueError, match=rf"as it is in v alone, got {by} .*Take .* jax\.vjp"):
        jax.linear_transpose(lambda x: attend(x, k, v), x)(v)


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
def test_a_batch_run_in_groups_is_each_example_alone():
    """Tiles so large that a group has two examples, and one is left over."""
    T, S = 257, 263
    x = [np.stack([normal(n, 2, seed=10 * b + i) for b in range(5)]) for i, n in enumerate((T, S, S))]
    lengths = np.array([263, 0, 100, 256, 257], np.int32)

    def run(f):
        def loss(*x):
            out, lse = jax.vmap(f)(*x, lengths)
            return jnp.sum(jnp.sin(out)) + jnp.sum(jnp.where(lse == -jnp.inf, 0, jnp.sin(lse)))

        return jax.jit(jax.value_and_grad(loss, (0, 1, 2)))(*x)

    got = run(lambda *x: jattn.attention(*x[:3], mask=masks.lengths(k=x[3]), return_lse=True, tile=(256, 256)))
    want = run(lambda *x: reference.attention(*x[:3], mask=jnp.arange(S, dtype=jnp.int32)[None, :] < x[3]))
    assert_equal(got, want, "value and gradient")


@pytest.mark.structure
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    "names",
    [("value and grad", "grad of grad"), pytest.param(("jvp of grad",), marks=pytest.mark.exhaustive)],
    ids=", ".join,
)
def test_nested_maps_with_heads_that_share_their_keys(names):
    """dot_product_attention: what a key/value head gets is the sum over the query heads that it serves."""
    B, N, K = 2, 4, 2
    x = {"q": normal(B, T, N, D), "k": normal(B, S, K, D, seed=1), "v": normal(B, S, K, Dv, seed=2)}
    x |= {"bias": normal(1, N, T, S, seed=7), "sink": normal(N, seed=9), "scale": np.float64(0.6)}
    x_dot = jax.tree.map(np.cos, x)
    lengths = np.array([17, 41], np.int32)

    def ours(x):
        options = {"bias": x["bias"], "sink": x["sink"], "scale": x["scale"], "key_value_seq_lengths": lengths}
        return jattn.dot_product_attention(
            x["q"], x["k"], x["v"], is_causal=True, return_residual=True, tile=(16, 16), **options
        )

    def repeated(x):
        mask = (np.arange(S) < lengths[:, None, None]) & np.tri(T, S, dtype=bool)

        def head(q, k, v, bias, sink, mask):
            return reference.attention(q, k, v, bias=bias, sink=sink, scale=x["scale"], mask=mask)

        heads = jax.vmap(head, (1, 1, 1, 0, 0, None), 1)
        k, v = (jnp.repeat(x[n], N // K, 2) for n in "kv")
        return jax.vmap(heads, (0, 0, 0, None, None, 0))(x["q"], k, v, x["bias"][0], x["sink"], mask)

    got, want = (jax.jit(lambda f=f: {n: TRANSFORMS[n](f, x, x_dot) for n in names})() for f in (ours, repeated))
    for name in names:
        assert_equal(got[name], want[name], name)


# Fewer bits.


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("seen", "dtype", "of_values", "of_gradients"),
    [
        ("all", jnp.float16, 0.75, 1),
        ("causal", jnp.bfloat16, 0.75, 1),
        ("causal", jnp.float32, 8, 8),
        ("bias", jnp.bfloat16, 0.75, 1),
        ("bias", jnp.float64, 8, 8),
        *(
            pytest.param(*of, marks=pytest.mark.exhaustive)
            for of in [
                ("all", jnp.bfloat16, 0.75, 1),
                ("all", jnp.float32, 8, 8),
                ("all", jnp.float64, 8, 8),
                ("causal", jnp.float16, 0.75, 1),
                ("causal", jnp.float64, 8, 8),
                ("bias", jnp.float16, 0.75, 1),
                ("bias", jnp.float32, 8, 8),
            ]
        ),
    ],
)
def test_over_several_tiles_the_error_is_a_few_roundings(seen, dtype, of_values, of_gradients):
    """Against float64, from inputs that the dtype holds exactly, in eps times the componentwise bound."""
    *x, dout = (a.astype(dtype) for a in (*qkv(T=T, S=T), normal(T, Dv, seed=5)))
    bias = normal(T, T, seed=7, dtype=dtype) if seen == "bias" else None
    mask = masks.causal() if seen == "causal" else None

    @jax.jit
    def both(q, k, v):
        f = lambda *x: jattn.attention(*x, mask=mask, bias=bias, return_lse=True, tile=(16, 16))  # noqa: E731
        (out, lse), pull = jax.vjp(f, q, k, v)
        return out, lse, pull((dout, jnp.zeros_like(lse)))

    out, lse, gradients = both(*x)
    options = {"mask": None if mask is None else np.tri(T, dtype=bool)}
    options["bias"] = None if bias is None else bias.astype(np.float64)
    want, bound = bounds(*(np.asarray(a, np.float64) for a in (*x, dout)), **options)
    assert_close(out, want["out"], ulps=of_values, scale=bound["out"])
    assert_close(lse, want["lse"], ulps=8, scale=bound["lse"])
    for name, got in zip("qkv", gradients, strict=True):
        assert got.dtype == dtype
        assert_close(got, want[name], ulps=of_gradients, scale=bound[name])
