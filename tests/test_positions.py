"""Where a token stands: the angle to its last digit at every position, and each scaling as its paper writes it."""

import decimal
import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _inputs import D, T, assert_close, eps, normal

import jattn
from jattn import positions
from jattn.positions import frequencies, rotary, sections, sinusoidal

R = 10
FAR = np.array(
    [0, 1, -1, 7, 4097, 2**20 + 1, -(2**20) - 3, 2**24 + 1, 123_456_789, -987_654_321, 2**31 - 1, -(2**31) + 1]
)
TURN = decimal.Decimal("6.28318530717958647692528676655900576839433879875021")


def exact_angles(stand, width=R, base=10_000.0):
    """position · base^(−2 i / width) modulo a turn, in [−π, π], by decimal arithmetic of 60 digits."""
    with decimal.localcontext() as context:
        context.prec = 60
        powers = [decimal.Decimal(base) ** (decimal.Decimal(-2 * i) / width) for i in range(width // 2)]
        turns = [[decimal.Decimal(int(p)) * w / TURN for w in powers] for p in np.ravel(stand)]
        return np.array([[float((x - x.to_integral_value()) * TURN) for x in row] for row in turns])


def turned(x, theta, factor=1.0):
    """The definition with complex numbers, in float64: the pair (i, i + R/2) is a number, and it is multiplied."""
    n = theta.shape[1]
    z = (x[:, :n] + 1j * x[:, n : 2 * n]) * np.exp(1j * theta) * factor
    return np.concatenate([z.real, z.imag, x[:, 2 * n :]], 1)


def angle_of(unit):
    """The angle by which (1, 0) was turned, for each pair."""
    n = unit.shape[1] // 2
    return np.arctan2(unit[:, n:].astype(np.float64), unit[:, :n].astype(np.float64))


def off(a, b):
    """How far apart two angles are, on the circle."""
    return np.abs((a - b + np.pi) % (2 * np.pi) - np.pi).max()


def units(n, dtype=np.float32):
    return np.concatenate([np.ones((n, R // 2)), np.zeros((n, R // 2))], 1).astype(dtype)


@pytest.mark.parametrize("at", [jnp.asarray, jax.jit], ids=["eager", "jit"])
def test_angles_are_exact_at_every_position_in_float32(at):
    stand = FAR.astype(np.int32)
    turn = lambda p: rotary(units(len(FAR)), p)  # noqa: E731
    got = angle_of(np.asarray(at(turn)(stand) if at is jax.jit else turn(stand)))
    assert off(got, exact_angles(FAR)) < 1e-6
    naive = stand[:, None].astype(np.float32) * frequencies(R).inv.astype(np.float32)
    assert off(naive[5:8].astype(np.float64), exact_angles(FAR)[5:8]) > 1e-2, "the control: a product in float32"


@pytest.mark.usefixtures("x64")
def test_angles_in_float64_are_within_half_a_digit_of_their_frequencies():
    got = angle_of(np.asarray(rotary(units(len(FAR), np.float64), FAR.astype(np.int32))))
    bound = 1e-15 + 4e-16 * np.abs(FAR)[:, None] * frequencies(R).inv
    apart = np.abs((got - exact_angles(FAR) + np.pi) % (2 * np.pi) - np.pi)
    assert (apart <= bound).all(), (apart / bound).max()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_a_narrow_dtype_is_rounded_once_at_the_end(dtype):
    x = jnp.asarray(normal(len(FAR), R), dtype)
    want = turned(np.asarray(x, np.float64), exact_angles(FAR))
    assert rotary(x, FAR.astype(np.int32)).dtype == dtype
    assert_close(rotary(x, FAR.astype(np.int32)), want, ulps=0.51, scale=np.maximum(2e-6 / eps(dtype), np.abs(want)))


def test_a_pair_is_multiplied_by_a_complex_number():
    x, stand = normal(T, R, dtype=np.float32), np.arange(T, dtype=np.int32) + 3
    want = turned(x.astype(np.float64), exact_angles(stand))
    assert_close(rotary(x, stand), want, ulps=8)
    assert_close(rotary(x.astype(np.float32), stand, base=100.0), turned(x, exact_angles(stand, base=100.0)), ulps=8)


def test_interleaved_pairs_are_the_same_columns_in_another_order():
    x, stand = normal(T, R, dtype=np.float32), np.arange(T, dtype=np.int32)
    order = np.arange(R).reshape(2, R // 2).T.ravel()  # (0, R/2, 1, R/2 + 1, …)
    assert_close(rotary(x[:, order], stand, interleaved=True), rotary(x, stand)[:, order], ulps=0)
    assert np.abs(rotary(x, stand, interleaved=True) - rotary(x, stand)).max() > 0.1


def test_partial_rotary_lets_the_other_columns_pass():
    x, stand = normal(T, R + 3, dtype=np.float32), np.arange(T, dtype=np.int32)
    got = rotary(x, stand, width=R)
    assert_close(got[:, :R], rotary(x[:, :R], stand), ulps=0)
    np.testing.assert_array_equal(got[:, R:], x[:, R:])
    np.testing.assert_array_equal(rotary(x, stand, width=0), x)


def test_scores_see_the_distance_alone():
    q, k, v = normal(3, T, R, dtype=np.float32)

    def attend(shift):
        stand = np.arange(T, dtype=np.int32) + shift
        return jattn.attention(rotary(q, stand), rotary(k, stand), v)

    assert_close(attend(np.int32(2**30)), attend(np.int32(0)), ulps=64)
    assert np.abs(attend(np.int32(0)) - jattn.attention(q, k, v)).max() > 0.01


def test_each_frequency_turns_by_the_position_on_its_axis():
    x, on_axes = normal(T, R, dtype=np.float32), np.arange(3 * T, dtype=np.int32).reshape(3, T) ** 2
    axes = sections(2, 1, 2)
    theta = np.stack([exact_angles(p) for p in on_axes])
    want = turned(x.astype(np.float64), np.stack([theta[a, :, i] for i, a in enumerate(axes)], 1))
    assert_close(rotary(x, on_axes, axes=axes), want, ulps=8)
    same = np.broadcast_to(on_axes[1], (3, T))
    assert_close(rotary(x, same, axes=axes), rotary(x, on_axes[1]), ulps=0)  # text: M-RoPE is rotary


def test_sinusoidal_is_the_sine_and_cosine_of_each_angle():
    theta = exact_angles(FAR)
    got = sinusoidal(FAR.astype(np.int32), R)
    assert_close(got[:, 0::2], np.sin(theta), ulps=12)
    assert_close(got[:, 1::2], np.cos(theta), ulps=12)
    halves = sinusoidal(FAR.astype(np.int32), R, interleaved=False, dtype=jnp.bfloat16)
    assert_close(halves, np.concatenate([np.sin(theta), np.cos(theta)], 1), ulps=0.51, scale=1)


# Each scaling, written a second time as its paper or its release has it, with the base and not with the frequencies.

L, S_, BASE = 32, 4.0, 10_000.0
I = np.arange(R // 2)  # noqa: E741
LONG, SHORT = tuple(np.linspace(1, 7, R // 2)), tuple(np.linspace(1, 2, R // 2))


def by_paper(name):
    plain = BASE ** (-2 * I / R)
    wavelength = 2 * np.pi / plain
    match name:
        case "linear":
            return plain / S_, 1.0
        case "ntk":
            return (BASE * S_ ** (R / (R - 2))) ** (-2 * I / R), 1.0
        case "dynamic_ntk":
            return (BASE * (S_ * 77 / L - (S_ - 1)) ** (R / (R - 2))) ** (-2 * I / R), 1.0
        case "yarn":
            low, high = (R * math.log(L / (n * 2 * math.pi)) / (2 * math.log(BASE)) for n in (3.0, 0.5))
            ramp = np.clip((I - math.floor(low)) / (math.ceil(high) - math.floor(low)), 0, 1)
            return plain / S_ * ramp + plain * (1 - ramp), 0.1 * math.log(S_) + 1
        case "llama3":
            smooth = (L / wavelength - 1) / (4 - 1)
            middle = (1 - smooth) * plain / S_ + smooth * plain
            return np.where(wavelength < L / 4, plain, np.where(wavelength > L / 1, plain / S_, middle)), 1.0
        case "longrope":
            return plain / np.array(LONG), math.sqrt(1 + math.log(S_) / math.log(L))


def scaling(name, length=77):
    return {
        "linear": lambda: positions.linear(S_),
        "ntk": lambda: positions.ntk(S_),
        "dynamic_ntk": lambda: positions.dynamic_ntk(S_, original=L, length=length),
        "yarn": lambda: positions.yarn(S_, original=L, fast=3.0, slow=0.5),
        "llama3": lambda: positions.llama3(S_, original=L),
        "longrope": lambda: positions.longrope(SHORT, LONG, factor=S_, original=L, length=length),
    }[name]()


SCALINGS = ["linear", "ntk", "dynamic_ntk", "yarn", "llama3", "longrope"]


@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_is_what_its_paper_says(name):
    inv, factor = by_paper(name)
    made = frequencies(R, scaling=scaling(name))
    np.testing.assert_allclose(made.inv, inv, rtol=1e-14)
    assert made.factor == pytest.approx(factor, rel=1e-15)
    assert np.abs(made.inv / frequencies(R).inv - 1).max() > 0.5
    x, stand = normal(T, R, dtype=np.float32), np.arange(T, dtype=np.int32) * 1001
    assert_close(
        rotary(x, stand, scaling=scaling(name)), turned(x.astype(np.float64), stand[:, None] * inv, factor), ulps=16
    )


@pytest.mark.parametrize("name", SCALINGS)
def test_a_scaling_is_a_value(name):
    assert scaling(name) == scaling(name)
    assert hash(scaling(name)) == hash(scaling(name))
    assert repr(scaling(name)).startswith(f"{name}(")
    assert "Array" not in repr(scaling(name, jnp.asarray(77)))


def test_scalings_compose_as_functions():
    half = lambda f: f._replace(inv=f.inv / 2, factor=f.factor * 3.0)  # noqa: E731
    both = frequencies(R, scaling=positions.compose(scaling("yarn"), half))
    np.testing.assert_allclose(both.inv, by_paper("yarn")[0] / 2, rtol=1e-14)
    assert both.factor == pytest.approx(3 * by_paper("yarn")[1])


@pytest.mark.parametrize("name", ["dynamic_ntk", "longrope"])
@pytest.mark.parametrize("length", [L, 77])
def test_a_traced_length_gives_the_same_frequencies_in_float32(name, length):
    found = jax.jit(lambda n: frequencies(R, scaling=scaling(name, n)).inv)(length)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, frequencies(R, scaling=scaling(name, length)).inv, rtol=8 * eps(np.float32))
    x, stand = normal(T, R, dtype=np.float32), np.arange(T, dtype=np.int32)
    got = jax.jit(lambda n: rotary(x, stand, scaling=scaling(name, n)))(length)
    assert_close(got, rotary(x, stand, scaling=scaling(name, length)), ulps=64)


@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bfloat16, jnp.float32])
def test_an_array_of_any_dtype_is_as_good_a_factor_as_a_number(dtype):
    for scaling in (positions.linear, positions.ntk):
        got, want = (positions.frequencies(8, scaling=scaling(factor)).inv for factor in (dtype(2), 2.0))
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_nothing_changes_within_the_length_of_training():
    np.testing.assert_array_equal(frequencies(R, scaling=scaling("dynamic_ntk", L)).inv, frequencies(R).inv)
    np.testing.assert_array_equal(
        frequencies(R, scaling=scaling("longrope", L)).inv, frequencies(R).inv / np.array(SHORT)
    )


def test_learned_frequencies_are_taken_at_their_word_and_have_their_gradient():
    x, inv = normal(T, R, dtype=np.float32), jnp.asarray(frequencies(R).inv, jnp.float32)
    with_inv = jax.jit(lambda p, inv: rotary(x, p, scaling=lambda f: f._replace(inv=inv)))
    far = np.arange(T, dtype=np.int32) + 2**22
    held = np.remainder(far[:, None] * np.asarray(inv, np.float64), 2 * np.pi)
    assert_close(with_inv(far, inv), turned(x.astype(np.float64), held), ulps=16)
    near, by = np.arange(T, dtype=np.int32), normal(T, R, seed=1, dtype=np.float32)
    loss = lambda inv: (with_inv(near, inv) * by).sum()  # noqa: E731
    inv64 = frequencies(R).inv

    def slope(i):
        move = 1e-6 * (np.arange(R // 2) == i)
        ends = [(turned(x.astype(np.float64), near[:, None] * (inv64 + sign * move)) * by).sum() for sign in (1, -1)]
        return (ends[0] - ends[1]) / 2e-6

    np.testing.assert_allclose(jax.jit(jax.grad(loss))(inv), [slope(i) for i in range(R // 2)], rtol=2e-5, atol=2e-4)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.float32])
def test_held_frequencies_are_as_exact_at_every_position(dtype):
    inv, far = jnp.asarray([1, -0.1, 3e-5, 0], dtype), np.int32([0, 1, -1, 2**20 + 1, 2**31 - 1, 1 - 2**31])
    unit = np.repeat(np.float32([[1, 0]]), 4, 1) * np.ones((6, 1), np.float32)
    got = angle_of(np.asarray(rotary(unit, far, scaling=lambda f: f._replace(inv=inv))))
    turns = far.astype(object)[:, None] * [fractions.Fraction(float(w)) for w in inv] / fractions.Fraction(TURN)
    assert off(got, (turns % 1).astype(np.float64) * 2 * np.pi) < 1e-6
    assert_close(rotary(unit, far, width=0, scaling=lambda f: f._replace(inv=inv[:0])), unit, ulps=0)


def test_rotary_keeps_lengths_and_so_does_its_derivative():
    x, dx = normal(2, T, R, dtype=np.float32)
    stand = np.arange(T, dtype=np.int32)
    turn = lambda x: rotary(x, stand)  # noqa: E731

    @jax.jit
    def every(x, dx):
        back = jax.vjp(turn, turn(x))[1](turn(dx))[0]
        heads = jax.vmap(rotary, (0, None))(jnp.stack([x, dx]), stand)
        return turn(x), turn(dx), jax.jvp(turn, (x,), (dx,))[1], back, heads

    turned, dx_turned, tangent, back, heads = every(x, dx)
    assert_close(np.linalg.norm(turned, axis=1).astype(np.float32), np.linalg.norm(x, axis=1), ulps=8)
    assert_close(tangent, dx_turned, ulps=2)
    assert_close(back, dx, ulps=8)  # the transpose turns back
    assert_close(heads[1], dx_turned, ulps=2)


def test_odd_widths_of_heads_are_served_in_part():
    x, stand = normal(T, D, dtype=np.float32), np.arange(T, dtype=np.int32)
    in_part = jax.jit(lambda x, stand: rotary(x, stand, width=4))
    assert in_part(x, stand).shape == (T, D)
    assert in_part(x[:0], stand[:0]).shape == (0, D)
