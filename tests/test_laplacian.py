"""The Laplacian of a wave function: each way against float64 witnesses of another kind, its page, its refusals."""

import importlib
import importlib.machinery
import math
import sys
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _demos import assert_help_begins_as_the_page, page_of, refusal

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, demo, ways, wave = (importlib.import_module(n) for n in ("_cli", "laplacian", "_laplacians", "_wave_function"))

N = 4
EXACT = 1e-10


@pytest.fixture(scope="module")
def results():
    return cli.evaluate(demo.compute, demo.arguments().parse_args(["--electrons", str(N)]))


@pytest.fixture(scope="module")
def drawn():
    with jax.enable_x64(True):
        return jax.tree.map(np.array, wave.drawn(jax.random.key(42), N, demo.WALKERS))


def attention(q, k, v):
    scores = q @ k.T / np.sqrt(k.shape[1])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ v


def psi(p, r, a=demo.MIXED):
    """ψ in NumPy, of four electrons: the monomials are 1, z, y, x."""
    h = np.concatenate([r, np.sqrt(1 + (r**2).sum(1, keepdims=True))], 1) @ p["into"]
    for w, m in zip(p["attention"], p["tanh"], strict=True):
        h = h + sum(attention(*(h @ w[x][:, i] for x in "qkv")) @ w["out"][i] for i in range(wave.HEADS))
        h = h + np.tanh(h @ m)
    monomials = np.concatenate([np.ones((N, 1)), r[:, ::-1]], 1)
    return np.linalg.det(np.exp(-(r**2).sum(1, keepdims=True) / 2) * (monomials + a * h @ p["W"]))


def test_each_way_is_the_trace_of_the_hessian(results):
    assert set(results["ways"]) >= set(ways.WAYS)
    for way in results["ways"].values():
        assert way["error"] <= EXACT


def test_the_kinetic_energy_by_differences_of_psi_in_numpy(results, drawn):
    """−½ Δψ / ψ, without a logarithm: some place may lie near ψ = 0."""
    p, walkers = drawn
    h, eye = 1e-2, np.eye(3 * N).reshape(-1, N, 3)
    for r, found in zip(walkers, results["kinetic"], strict=True):
        each = [[psi(p, r + i * h * e) for i in (-2, -1, 0, 1, 2)] @ np.array([-1, 16, -30, 16, -1]) for e in eye]
        second = np.array(each) / (12 * h * h)
        assert found * psi(p, r) == pytest.approx(-second.sum() / 2, abs=1e-5 * np.abs(second).sum())


@pytest.mark.parametrize(("n", "expected"), [(1, 1.5), (2, 4), (4, 9), (10, 30), (20, 75)])
def test_the_energy_of_electrons_in_a_trap_fills_its_shells(n, expected):
    assert wave.energy(n) == expected


def test_without_the_network_the_local_energy_is_that_of_the_trap_at_every_place(results):
    assert results["ground"] == 9
    for way in results["ways"].values():
        np.testing.assert_allclose(way["free"], 9, rtol=EXACT)
    assert np.ptp(results["local"]) > 0.1  # with it the local energy is another at each place


def test_two_electrons_exchanged_have_the_same_kinetic_energy(results):
    assert results["swapped"] <= EXACT


def test_two_electrons_exchanged_change_the_sign_of_psi(drawn):
    p, (r, *_) = drawn
    assert psi(p, r[[1, 0, 2, 3]]) == pytest.approx(-psi(p, r), rel=1e-12)


def test_one_coordinate_at_a_time_needs_little_beside_the_dense_hessian(results):
    nested, gradient, _, dense = (results["ways"][name]["bytes"] for name in ways.WAYS)
    for way in (nested, gradient):
        assert way[1] < dense[1] / N
        assert math.log2(way[1] / way[0]) < math.log2(dense[1] / dense[0])


@pytest.fixture
def folx(monkeypatch):
    """A module of that name with the one function that is called, and what it returns."""

    def forward_laplacian(f):
        def laplacian(x):
            hessian = jax.hessian(f)(x).reshape(x.size, x.size)
            jacobian = types.SimpleNamespace(dense_array=jax.grad(f)(x).ravel())
            return types.SimpleNamespace(laplacian=jnp.trace(hessian), jacobian=jacobian)

        return laplacian

    made = types.ModuleType("folx")
    made.__spec__, made.forward_laplacian = importlib.machinery.ModuleSpec("folx", None), forward_laplacian
    monkeypatch.setitem(sys.modules, "folx", made)


def test_folx_is_a_way_where_it_is_installed(folx, x64):
    assert list(ways.ways()) == [*ways.WAYS, ways.FOLX]
    x = jnp.arange(6.0).reshape(2, 3) / 7
    chain = [jnp.sin, lambda y: (y**3).sum()]
    for got, want in zip(ways.by_folx(chain, x), ways.jvp_of_jvp(chain, x), strict=True):
        assert float(got) == pytest.approx(float(want), rel=1e-12)


def test_where_folx_is_not_installed_one_line_says_so(results, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "folx", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert ways.ways() == ways.WAYS
    r = results | {"ways": {name: results["ways"][name] for name in ways.WAYS}}
    demo.show(cli.console(), r)
    said = capsys.readouterr().out
    assert said.count("folx") == 1
    assert "folx is not installed" in " ".join(said.split())


def test_the_page_is_80_wide_and_its_json_holds_the_same(results, monkeypatch, capsys):
    page = page_of(demo, results, monkeypatch, capsys)
    assert f"{N} electrons, {3 * N} coordinates" in page


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--electrons", "1"], "--electrons 1: must be from 2 to 64."),
        (["--electrons", "65"], "--electrons 65: must be from 2 to 64."),
        (["--electrons", "x"], "invalid int value: 'x'"),
    ],
)
def test_bad_input_is_one_line_and_status_2(argv, names, monkeypatch, capsys):
    assert names in refusal(demo, argv, monkeypatch, capsys)


def test_help_says_what_it_shows(monkeypatch, capsys):
    assert_help_begins_as_the_page(demo, monkeypatch, capsys)
