"""What attends can be exported: with symbolic sizes, for several platforms at once, and with its gradient."""

import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _children import environment
from _inputs import assert_close, normal
from jax import export

import jattn
from jattn import cache, heads, masks, positions, scores

pytestmark = pytest.mark.structure
pytest.importorskip("flatbuffers", reason="jax.export serializes with flatbuffers")

H, D = 2, 4
SIZES = [(1, 13), (3, 300)]  # shorter and longer than the tile of a symbolic length, 256


def many(x, **options):
    return jattn.dot_product_attention(x["q"], x["k"], x["v"], **options)


def one_by_one(x, mask_of, score=None):
    """Each row of the batch under a mask of its own."""
    f = lambda q, k, v, *own: jattn.dot_product_attention(q, k, v, mask=mask_of(*own), score=score)  # noqa: E731
    return jax.vmap(f)(x["q"], x["k"], x["v"], x["ids"])


def learned(x):
    return lambda a, t, s: a + x["table"][jnp.abs(t - s) % 7]


CASES = {
    "segments, a window and a score": lambda x: one_by_one(
        x, lambda ids: masks.segments(ids) & masks.window(90, 3), learned(x)
    ),
    "dense, lengths, bias, sink and dropout": lambda x: many(
        x, mask=x["allowed"], bias=x["bias"], sink=x["sink"], dropout_rate=0.2, dropout_key=x["key"],
        key_value_seq_lengths=x["n"], query_seq_lengths=x["n"],
    ),
}  # fmt: skip
EACH = {
    "causal": lambda x: many(x, is_causal=True),
    "window": lambda x: many(x, mask=masks.window(9, 3)),
    "lengths": lambda x: many(x, key_value_seq_lengths=x["n"], query_seq_lengths=x["n"]),
    "segments": lambda x: one_by_one(x, masks.segments),
    "dense, bias and sink": lambda x: many(x, mask=x["allowed"], bias=x["bias"], sink=x["sink"]),
    "dropout": lambda x: many(x, dropout_rate=0.2, dropout_key=x["key"]),
    "score": lambda x: many(x, score=learned(x)),
    "relative bias": lambda x: many(x, score=scores.relative_bias(x["table"], max_distance=40)),
}


def shapes(b, t, s=None, h=H):
    """What the cases take, for sizes that may be symbols."""
    s = t if s is None else s
    f, i = (lambda *n: jax.ShapeDtypeStruct(n, jnp.float32)), (lambda *n: jax.ShapeDtypeStruct(n, jnp.int32))
    x = {"q": f(b, t, h, D), "k": f(b, s, h, D), "v": f(b, s, h, D), "n": i(b), "ids": i(b, t)}
    x |= {"allowed": jax.ShapeDtypeStruct((b, 1, t, s), bool), "bias": f(1, h, t, s), "sink": f(h), "table": f(8)}
    return x | {"key": jax.ShapeDtypeStruct((2,), jnp.uint32)}


def filled(x):
    def fill(name, a):
        if name == "ids":
            return np.broadcast_to(np.arange(a.shape[1], dtype=np.int32) // 40, a.shape)
        if name == "n":
            return 7 + np.arange(a.shape[0], dtype=np.int32)
        if name == "allowed":
            return normal(*a.shape, seed=5) > -1
        return np.array([0, 1], a.dtype) if name == "key" else normal(*a.shape, seed=len(name), dtype=a.dtype)

    return {name: jnp.asarray(fill(name, a)) for name, a in x.items()}


FLOATS = ("q", "k", "v", "bias", "sink", "table")


def value_and_gradient(f):
    def both(x):
        moves = {n: x[n] for n in FLOATS if n in x}
        out, pull = jax.vjp(lambda m: f(x | m), moves)
        return out, pull(jnp.cos(out))

    return jax.jit(both)


def used(f, x):
    """Of what the cases take, what this one looks at."""
    seen = set()

    class Looked(dict):
        def __getitem__(self, name):
            seen.add(name)
            return super().__getitem__(name)

    jax.eval_shape(lambda x: f(Looked(x)), x)
    return seen


def symbols(spec):
    return export.symbolic_shape(spec)


@pytest.mark.parametrize("name", [*CASES, *(pytest.param(name, marks=pytest.mark.exhaustive) for name in EACH)])
def test_a_symbolic_batch_and_length_run_at_every_size(name):
    """Value and gradient of one exported program are those of the direct call."""
    b, t = symbols("b, t")
    case = (CASES | EACH)[name]
    names = used(case, shapes(2, 5))
    pick = lambda x: {n: x[n] for n in names}  # noqa: E731
    f = value_and_gradient(case)
    program = export.export(f)(pick(shapes(b, t)))
    for size in SIZES:
        x = pick(filled(shapes(*size)))
        assert_close(program.call(x), f(x), ulps=256)


@pytest.mark.parametrize(
    "spec",
    [
        "b, 20, 20, 2",
        "b, t, s, h",
        pytest.param("3, t, 30, 2", marks=pytest.mark.exhaustive),
        pytest.param("b, t, s, 2", marks=pytest.mark.exhaustive),
    ],
)
def test_any_size_may_be_a_symbol(spec):
    """The batch alone, a length alone, queries and keys apart, and the number of heads."""
    f = value_and_gradient(lambda x: many(x, return_residual=True)[0])
    sizes = symbols(spec)
    program = export.export(f)({n: a for n, a in shapes(*sizes).items() if n in "qkv"})
    for b, t, s, h in ((3, 20, 20, 2), (1, 13, 270, 6)):
        have = [n if isinstance(n, int) else m for n, m in zip(sizes, (b, t, s, h), strict=True)]
        x = {n: a for n, a in filled(shapes(*have)).items() if n in "qkv"}
        assert_close(program.call(x), f(x), ulps=256)


RAGGED = [[0, 3, 7], [0, 3, 3, 6, 5, 7], [2], [1, 1, 8], [0, 0, 1, 2, 3, 4, 5, 6, 6, 7]]


@pytest.mark.parametrize("t", ["7", "t"])
def test_a_symbolic_number_of_sequences_runs_at_every_number(t):
    """Empty ones, rows before the first and starts after the last among them."""
    f = value_and_gradient(
        lambda x: jattn.ragged_attention(x["q"], x["k"], x["v"], x["starts"], mask=masks.causal(), score=learned(x))
    )
    allowed = jax.jit(lambda starts: masks.to_dense(masks.ragged(starts), 7, 7))
    t, n = symbols(f"{t}, n")
    made = lambda t: {"q": (t, 2 * H, D), "k": (t, H, D), "v": (t, H, D), "table": (8,)}  # noqa: E731
    starts = jax.ShapeDtypeStruct((n,), jnp.int32)
    of = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in made(t).items()}
    program, dense = export.export(f)(of | {"starts": starts}), export.export(allowed)(starts)
    x = {name: jnp.asarray(normal(*shape, seed=len(shape)), jnp.float32) for name, shape in made(7).items()}
    for given in RAGGED:
        given = jnp.array(given, jnp.int32)
        assert_close(program.call(x | {"starts": given}), f(x | {"starts": given}), ulps=256)
        np.testing.assert_array_equal(dense.call(given), allowed(given))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("kind", ["contiguous", "ring", "paged"])
def test_a_prompt_of_any_length_is_appended_to_a_cache_and_attended_by_one_program(kind, dtype):
    make = {
        "contiguous": lambda: cache.contiguous(2, H, 16, D, dtype=dtype),
        "ring": lambda: cache.ring(2, H, D, window=5, chunk=9, dtype=dtype),
        "paged": lambda: cache.paged(2, H, 16, D, pages=7, page=4, dtype=dtype),
    }[kind]

    @jax.jit
    def f(q, k, v, n):
        c = cache.append(make(), k, v, lengths=n)
        after = cache.append(c, k[:, :, :1], v[:, :, :1])
        outs = cache.attention(q, c, lengths=n), cache.attention(q[:, :, :1], after)
        return {"out": outs, "counts": (after.length, after.next, after.full), "places": after.store.positions}

    (t,) = symbols("t")
    shape = lambda h, t: jax.ShapeDtypeStruct((2, h, t, D), jnp.float32)  # noqa: E731
    program = export.export(f)(shape(2 * H, t), shape(H, t), shape(H, t), jax.ShapeDtypeStruct((2,), jnp.int32))
    for length in (1, 2, 9):
        xs = [jnp.asarray(normal(2, h, length, D, seed=i), jnp.float32) for i, h in enumerate((2 * H, H, H))]
        got, want = (run(*xs, jnp.array([length, length - 1], jnp.int32)) for run in (program.call, f))
        assert_close(got.pop("out"), want.pop("out"), ulps=256)
        jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.parametrize("kind", ["contiguous", "ring", "paged"])
def test_a_step_that_takes_and_returns_a_cache_is_saved_and_goes_on_where_it_was(kind):
    """With its gradient; the structure of a cache, with the window of a ring, is part of the program."""
    c = {
        "contiguous": lambda: cache.contiguous(2, H, 16, D),
        "ring": lambda: cache.ring(2, H, D, window=3, chunk=2, dtype="int8"),
        "paged": lambda: cache.paged(2, H, 16, D, pages=9, page=2),
    }[kind]()

    @jax.jit
    def step(c, q, k, v):
        c = cache.append(c, k, v)
        return c, cache.attention(q, c)

    xs = [jnp.asarray(normal(2, h, 1, D, seed=i), jnp.float32) for i, h in enumerate((2 * H, H, H))]
    program = export.deserialize(export.export(step)(c, *xs).serialize(vjp_order=1))
    a = b = c
    for _ in range(5):
        (a, got), (b, want) = program.call(a, *xs), step(b, *xs)
        assert_close(got, want, ulps=256)
    np.testing.assert_array_equal(a.store.positions, b.store.positions)
    assert jax.tree.structure(a) == jax.tree.structure(b)
    assert repr(a) == repr(b)
    got, want = (jax.grad(lambda q, f=f: f(c, q, *xs[1:])[1].var())(xs[0]) for f in (program.call, step))
    assert_close(got, want, ulps=256)


def test_a_program_that_returns_a_named_tuple_is_saved_as_one_that_returns_its_dict():
    q, k = normal(2, 13, D, dtype=np.float32)
    with pytest.raises(ValueError, match="unregistered type"):  # what JAX says, and docs/tools.md quotes
        export.export(jax.jit(jattn.statistics))(q, k).serialize()
    saved = export.export(jax.jit(lambda q, k: jattn.statistics(q, k)._asdict()))(q, k).serialize()
    found = export.deserialize(saved).call(q, k)
    want = jax.jit(jattn.statistics)(q, k)._asdict()
    jax.tree.map(lambda got, want: assert_close(got, want, ulps=256), found, want)


def test_a_symbolic_width_is_refused_by_name():
    (d,) = symbols("d")
    x = jax.ShapeDtypeStruct((7, d), jnp.float32)
    with pytest.raises(ValueError, match=r"attention: D must be a number, got q \[7, d\] and k \[7, d\]"):
        export.export(jax.jit(jattn.attention))(x, x, x)


def tiles_in(program, rows):
    """Which sizes of query tiles a program has, of the two that are chosen."""
    found = {int(n) for n in re.findall(r"tensor<(\d+)x\d+xf32>", program.mlir_module())}
    return found & rows


def test_for_several_platforms_each_gets_its_tiles():
    """2,048 rows in tiles of 512 on a CPU and of 1,024 elsewhere; the control: for a CPU alone there is no 1,024."""
    x = jax.ShapeDtypeStruct((2048, D), jnp.float32)
    f = jax.jit(lambda q, k, v: jattn.attention(q, k, v, mask=masks.causal(), implementation="loops"))
    every = export.export(f, platforms=["cpu", "cuda", "tpu"])(x, x, x)
    here = export.export(f, platforms=["cpu"])(x, x, x)
    there = export.export(f, platforms=["tpu"])(x, x, x)
    sizes = {512, 1024}
    assert (tiles_in(every, sizes), tiles_in(here, sizes), tiles_in(there, sizes)) == (sizes, {512}, {1024})
    q, k, v = (jnp.asarray(normal(2048, D, seed=i), jnp.float32) for i in range(3))
    if jax.default_backend() == "cpu":
        assert_close(every.call(q, k, v), f(q, k, v), ulps=64)


def test_a_gradient_for_several_platforms_runs_here():
    b, t = symbols("b, t")
    f = value_and_gradient(EACH["causal"])
    names = used(EACH["causal"], shapes(2, 5))
    program = export.export(f, platforms=["cpu", "cuda", "tpu"])({n: shapes(b, t)[n] for n in names})
    assert program.platforms == ("cpu", "cuda", "tpu")
    x = {n: a for n, a in filled(shapes(2, 21)).items() if n in names}
    assert_close(program.call(x), f(x), ulps=256)


# From one process to another.


def model(params, x):
    """bfloat16: rotary positions, causal, [b, t, 8]."""
    turn = positions.rotary
    return jax.vmap(lambda x: x + heads.multi_head(params, x, mask=masks.causal(), rope=turn))(x)


def parameters():
    params = heads.init(jax.random.key(0), 8, heads=2, kv_heads=1)
    return jax.tree.map(lambda a: a.astype(jnp.bfloat16), params)


RUN = """
import sys, jax, jax.numpy as jnp, numpy as np
from jax import export
program = export.deserialize(open(sys.argv[1], "rb").read())
given = np.load(sys.argv[2])
given = {n: jnp.asarray(a, jnp.bfloat16) for n, a in given.items()}
x = given.pop("x")
@jax.jit
def both(params, x):
    out, pull = jax.vjp(program.call, params, x)
    return {"y": out, "dx": pull(out)[1], **pull(out)[0]}
for n in (13, 300):
    found = both(given, x[:, :n])
    np.savez(f"{sys.argv[3]}-{n}.npz", **{n: np.asarray(a, np.float32) for n, a in found.items()})
assert "jattn" not in sys.modules
"""


def test_a_model_saved_by_one_process_runs_in_another(tmp_path):
    """Value and gradient at two sizes, in a process that never imports jattn."""
    params = parameters()
    b, t = symbols("b, t")
    as_shape = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype)  # noqa: E731
    program = export.export(jax.jit(model))(
        jax.tree.map(as_shape, params), jax.ShapeDtypeStruct((b, t, 8), jnp.bfloat16)
    )
    (tmp_path / "model").write_bytes(program.serialize(vjp_order=1))
    x = jnp.asarray(normal(2, 300, 8), jnp.bfloat16)
    np.savez(
        tmp_path / "given.npz", x=np.asarray(x, np.float32), **{n: np.asarray(a, np.float32) for n, a in params.items()}
    )
    done = subprocess.run(
        [sys.executable, "-c", RUN, tmp_path / "model", tmp_path / "given.npz", tmp_path / "found"],
        capture_output=True, text=True, timeout=600, check=False, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for n in (13, 300):
        out, pull = jax.vjp(jax.jit(model), params, x[:, :n])
        dparams, dx = pull(out)
        want = {"y": out, "dx": dx, **dparams}
        found = dict(np.load(tmp_path / f"found-{n}.npz"))
        assert set(found) == set(want)
        for name, a in want.items():
            a = np.asarray(a, np.float32)
            assert_close(found[name], a, ulps=4, dtype=jnp.bfloat16, scale=np.abs(a).max())
