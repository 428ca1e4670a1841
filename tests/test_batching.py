"""A batched call is, but for the order in which its examples run, the function that it calls."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import assert_close, normal
from jax.test_util import check_grads

import jattn
from jattn.engine import batching, tuning
from jattn.engine.batching import batched_call

pytestmark = pytest.mark.structure

WHOLE = tuning.group_bytes(jax.default_backend())  # what one group of examples may take


@dataclasses.dataclass(frozen=True)
class Toy(batching.BatchedFunction):
    """(a [n], b [n, m], c []) → (a vector, a scalar); `size` of them run in one group."""

    size: int = 1

    @property
    def working_set_bytes(self):
        return WHOLE // self.size

    def __call__(self, a, b, c):
        return plain(a, b, c)


def plain(a, b, c):
    return [jnp.sin(a * c) @ b, jnp.sum(jnp.cos(b) * c) * a[0]]


@dataclasses.dataclass(frozen=True)
class Linear(batching.BatchedFunction):
    """Linear in its first operand, and says so; brings its own transpose along."""

    size: int = 1
    transposes: bool = True

    @property
    def working_set_bytes(self):
        return WHOLE // self.size

    @property
    def linear_argnums(self):
        return frozenset({0})

    def __call__(self, a, b):
        return [a @ jnp.exp(b)]

    def transpose_function(self, argnums, shapes, n, outputs):
        ours = self.transposes and argnums == (0,)
        return LinearBack(self.size) if ours else super().transpose_function(argnums, shapes, n, outputs)


@dataclasses.dataclass(frozen=True)
class LinearBack(batching.BatchedFunction):
    size: int

    @property
    def working_set_bytes(self):
        return WHOLE // self.size

    @property
    def linear_argnums(self):
        return frozenset({1})

    def __call__(self, b, ct):
        return [jnp.exp(b) @ ct]


@dataclasses.dataclass(frozen=True)
class OwnTangent(batching.BatchedFunction):
    """(a [n], c []) → (exp(c·a), a constant): its tangent is made of its output."""

    size: int = 1

    @property
    def working_set_bytes(self):
        return WHOLE // self.size

    @property
    def constant_outputs(self):
        return frozenset({1})

    def __call__(self, a, c):
        return [jnp.exp(c * a), jnp.max(a)]

    def tangent_function(self, argnums):
        return OwnTangentDot(self.size, argnums)


@dataclasses.dataclass(frozen=True)
class OwnTangentDot(batching.BatchedFunction):
    size: int
    argnums: tuple

    @property
    def working_set_bytes(self):
        return WHOLE // self.size

    @property
    def linear_argnums(self):
        return frozenset(range(4, 4 + len(self.argnums)))

    def __call__(self, a, c, y, _, *dots):
        return [y * sum((c, a)[i] * dot for i, dot in zip(self.argnums, dots, strict=True))]


@dataclasses.dataclass(frozen=True)
class Branch(batching.BatchedFunction):
    """Takes one of two branches, as each example says."""

    size: int = 1

    @property
    def working_set_bytes(self):
        return WHOLE // self.size

    def __call__(self, a, b, c):
        return [jax.lax.cond(c > 0, lambda: jnp.sin(a) @ b, lambda: jnp.zeros(b.shape[1], a.dtype))]


def operands(*batch):
    return normal(*batch, 5), normal(*batch, 5, 3, seed=1), normal(*batch, seed=2) if batch else np.float64(0.7)


def close(got, want):
    assert_close(got, want, ulps=64, scale=8)


SECOND = ("value", "jvp of grad", "grad of jvp", "grad of grad")  # what these are derived of is in their programs
THIRD = ("value", "jvp", "grad", *SECOND[1:], "third", "linearize")


def derivatives(f, asked=THIRD):
    """Everything up to third order of a function of arrays to arrays."""

    def loss(*x):
        return sum(jnp.sum(jnp.sin(y)) for y in f(*x))

    def orders(*x):
        all_of_them = tuple(range(len(x)))
        x_dot = tuple(jnp.cos(a) for a in x)
        along = lambda g: lambda *x: jax.jvp(g, x, x_dot)[1]  # noqa: E731
        gradient = jax.grad(loss, all_of_them)
        every = {
            "value": lambda: f(*x),
            "jvp": lambda: along(f)(*x),
            "grad": lambda: gradient(*x),
            "jvp of grad": lambda: along(gradient)(*x),
            "grad of jvp": lambda: jax.grad(lambda *x: sum(map(jnp.sum, along(f)(*x))), all_of_them)(*x),
            "grad of grad": lambda: jax.grad(lambda *x: sum(map(jnp.sum, gradient(*x))), all_of_them)(*x),
            "third": lambda: along(jax.grad(lambda *x: sum(map(jnp.sum, along(f)(*x))), all_of_them))(*x),
            "linearize": lambda: jax.linearize(f, *x)[1](*x_dot),
        }
        return {name: every[name]() for name in asked}

    return orders


@pytest.mark.usefixtures("x64")
def test_it_is_the_function_and_has_its_derivatives_to_third_order():
    ours = derivatives(lambda *x: batched_call(Toy(), *x))
    close(jax.jit(ours)(*operands()), jax.jit(derivatives(plain))(*operands()))
    close(batched_call(Toy(), *operands()), plain(*operands()))
    check_grads(lambda *x: batched_call(Toy(), *x), operands(), order=2, atol=1e-5, rtol=1e-5, eps=1e-5)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("batch", "size", "asked"),
    [
        (7, 3, THIRD),
        *((batch, size, SECOND) for batch, size in ((7, 1), (7, 7), (6, 3), (1, 1), (1, 4))),
        *(
            pytest.param(batch, size, THIRD, marks=pytest.mark.exhaustive)
            for batch, size in ((7, 1), (7, 7), (6, 3), (1, 1), (1, 4))
        ),
    ],
)
def test_mapped_it_is_the_mapped_function_in_groups_of_any_size(batch, size, asked):
    """One at a time, several, all, with a remainder and without; to second order, and to third."""

    def mapped(f):
        return jax.jit(derivatives(lambda *x: jax.vmap(f)(*x), asked))(*operands(batch))

    close(mapped(lambda *x: batched_call(Toy(size), *x)), mapped(plain))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("axes", "asked"),
    [
        ((1, 2, None), THIRD),
        *((axes, SECOND) for axes in ((0, None, None), (None, 1, 0), (None, None, 0))),
        *(
            pytest.param(axes, THIRD, marks=pytest.mark.exhaustive)
            for axes in ((0, None, None), (None, 1, 0), (None, None, 0))
        ),
    ],
)
def test_some_operands_are_mapped_over_any_axis_and_the_others_shared(axes, asked):
    """What is shared gets the sum of what each example asks of it."""
    x = tuple(
        a if d is None else np.stack([a, a * 0.5, a - 0.3, a + 1], d) for a, d in zip(operands(), axes, strict=True)
    )

    def mapped(f):
        return jax.jit(derivatives(lambda *x: jax.vmap(f, axes)(*x), asked))(*x)

    close(mapped(lambda *x: batched_call(Toy(3), *x)), mapped(plain))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("asked", [SECOND, pytest.param(THIRD, marks=pytest.mark.exhaustive)], ids=len)
def test_derivatives_of_nested_vmaps_are_those_of_the_plain_function(asked):
    x = operands(2, 3)

    def nested(f):
        one = derivatives(f, asked)
        inside = jax.vmap(jax.vmap(one))
        outside = derivatives(lambda *x: jax.vmap(jax.vmap(f, (0, 0, None)), (1, 1, 0), 1)(*x[:2], x[2][0]), asked)
        return jax.jit(lambda *x: (inside(*x), outside(*x)))(*x)

    close(nested(lambda *x: batched_call(Toy(2), *x)), nested(plain))


def test_a_part_of_each_example_of_a_group_is_one_slice():
    """Of examples that follow each other, in one level or two; with a start for each of them it is many."""
    x = jnp.asarray(normal(2, 5, 4, 3), jnp.float32)

    def part(i, j, start):
        return batching.slice_of(batching.Example(batching.Example(x, i), j), (start, 1), (2, 2))

    def mapped(i, j, start):
        over_j = jax.vmap(part, (None, 0, None if start.ndim == 0 else 0))
        return jax.vmap(over_j, (0, None, None))(i, j, start)

    i, j = jnp.arange(2), jnp.arange(1, 4)
    np.testing.assert_array_equal(mapped(i, j, jnp.int32(1)), x[:, 1:4, 1:3, 1:])
    assert "gather" not in str(jax.make_jaxpr(mapped)(i, j, jnp.int32(1)))
    of_each = np.stack([x[:, 1 + n, start : start + 2, 1:] for n, start in enumerate((2, 0, 1))], 1)
    np.testing.assert_array_equal(mapped(i, j, jnp.array([2, 0, 1])), of_each)


@pytest.mark.usefixtures("x64")
def test_a_batch_of_none_has_the_shapes_of_any_other():
    x = operands(0)
    got = jax.vmap(lambda *x: batched_call(Toy(), *x))(*x)
    assert [(y.shape, y.dtype) for y in got] == [((0, 3), np.float64), ((0,), np.float64)]
    empty = jax.grad(lambda *x: sum(map(jnp.sum, jax.vmap(lambda *x: batched_call(Toy(), *x))(*x))), (0, 1))(*x)
    assert [g.shape for g in empty] == [(0, 5), (0, 5, 3)]
    shared = jax.grad(lambda c: sum(map(jnp.sum, jax.vmap(lambda a, b: batched_call(Toy(), a, b, c))(*x[:2]))))(0.5)
    assert shared == 0


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("transposes", [True, False])
def test_a_linear_function_may_bring_its_transpose_along(transposes):
    """It is called, mapped and not; where it does not fit, JAX derives one."""

    def both(f, axes):
        g = jax.vmap(f, axes)
        value, pull = jax.vjp(g, a, b)
        return value, pull(jnp.cos(value)), jax.jvp(g, (a, b), (a, b)), jax.grad(lambda a: jnp.sum(g(a, b)))(a)

    ours = lambda a, b: batched_call(Linear(2, transposes), a, b)[0]  # noqa: E731
    a, b = normal(3, 5), normal(3, 5, 2, seed=1)
    close(jax.jit(lambda: both(ours, 0))(), jax.jit(lambda: both(lambda a, b: a @ jnp.exp(b), 0))())
    b = b[0]
    close(jax.jit(lambda: both(ours, (0, None)))(), jax.jit(lambda: both(lambda a, b: a @ jnp.exp(b), (0, None)))())
    back = str(jax.make_jaxpr(jax.grad(lambda a: jnp.sum(jax.vmap(ours, (0, None))(a, b))))(a))
    assert ("LinearBack" in back) == transposes


def without_it(a, c):
    return [jnp.exp(c * a), jax.lax.stop_gradient(jnp.max(a))]


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("axes", [(0, 0), (1, None), (None, 0)])
def test_a_function_may_bring_its_tangent_along(axes):
    """It is called, mapped too, and its constants have no derivative."""
    x = tuple(a if d is None else np.stack([a, a / 2, a - 1], d) for a, d in zip((normal(5), 0.7), axes, strict=True))
    ours = jax.vmap(lambda a, c: batched_call(OwnTangent(2), a, c), axes)
    close(jax.jit(derivatives(ours))(*x), jax.jit(derivatives(jax.vmap(without_it, axes)))(*x))
    assert "OwnTangentDot" in str(jax.make_jaxpr(lambda *x: jax.jvp(ours, x, x))(*x))


@pytest.mark.usefixtures("x64")
def test_its_own_tangent_outlives_a_scan_that_is_taken_apart():
    def scanned(f):
        return lambda a, c: [jax.lax.scan(lambda a, _: (jnp.sin(f(a, c)[0]), None), a, length=3)[0]]

    x = normal(5), 0.7
    ours = scanned(lambda a, c: batched_call(OwnTangent(), a, c))
    close(jax.jit(derivatives(ours))(*x), jax.jit(derivatives(scanned(without_it)))(*x))


def primitives(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn.primitive.name
        for inner in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda p: hasattr(p, "eqns")):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                yield from primitives(inner)


def of_mapped(f, x):
    """The primitives of f mapped, with the function that it calls written out."""
    (eqn,) = [e for e in jax.make_jaxpr(jax.vmap(f))(*x).eqns if e.primitive is batching.batched_call_p] or [None]
    return set(primitives(jax.make_jaxpr(eqn.params["fun"] if eqn else jax.vmap(f))(*x)))


def test_one_at_a_time_a_branch_not_taken_is_not_computed():
    x = operands(4)
    assert "cond" in of_mapped(lambda *x: batched_call(Branch(1), *x), x)
    assert "cond" not in of_mapped(
        lambda *x: batched_call(Branch(2), *x), x
    )  # in one group both are, and one is selected
    assert "cond" not in set(primitives(jax.make_jaxpr(jax.vmap(Branch()))(*x).jaxpr))


@pytest.mark.usefixtures("x64")
def test_equal_calls_are_compiled_once():
    x = operands()
    before = batching.primitive._compiled._cache_size()
    for _ in range(3):
        batched_call(Toy(1), *x)
        jax.grad(lambda a: batched_call(Toy(1), a, *x[1:])[1])(x[0])
    first = batching.primitive._compiled._cache_size() - before
    batched_call(Toy(1), *x)
    jax.grad(lambda a: batched_call(Toy(1), a, *x[1:])[1])(x[0])
    assert batching.primitive._compiled._cache_size() - before == first
    assert Toy(1) == Toy(1) != Toy(2)
    batched_call(Toy(5), *x)
    assert batching.primitive._compiled._cache_size() - before == first + 1  # another is seen


@pytest.mark.parametrize("name", ["attention", "top_keys"])
def test_the_cotangent_of_what_examples_share_is_summed_and_then_rounded(name):
    """Operation by operation: XLA may leave out a rounding between the two, as it does on a CPU."""
    f = {
        "attention": jattn.attention,
        "top_keys": lambda q, k, v: jattn.top_keys(q, k, 3)[1],
    }[name]
    q, k, v = (jnp.asarray(normal(*shape, seed=1), jnp.bfloat16) for shape in ((6, 5, 4), (7, 4), (7, 2)))

    def gradient(q, k, v):
        out, pull = jax.vjp(lambda k: jax.vmap(f, (0, None, None))(q, k, v), k)
        numbers = jnp.cos(jnp.arange(out.size, dtype=jnp.float32)).astype(jnp.bfloat16)
        return pull(numbers.reshape(out.shape).astype(out.dtype))[0]

    with jax.disable_jit():
        got = np.asarray(gradient(q, k, v), np.float64)
    with jax.enable_x64(True):
        want = np.asarray(gradient(*(jnp.asarray(np.asarray(x, np.float64)) for x in (q, k, v))))
    assert (np.abs(got - want) <= 2**-8 * np.abs(want) + 1e-6).all()
