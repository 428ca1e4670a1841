"""The laboratory: each published result against an oracle computed here, sharing nothing with the library."""

import dataclasses
import importlib
import inspect
import json
import math
import re
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from _children import environment
from _demos import compiled_for_many_steps, refusal
from _docstrings import flaws
from rich.console import Console
from scipy.integrate import solve_ivp
from scipy.optimize import minimize, nnls

from jattn import lab
from jattn.lab.result import result

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, demo = importlib.import_module("_cli"), importlib.import_module("lab")
BY_NAME = {f.__name__: f for f in lab.RESULTS}


@pytest.fixture(scope="module")
def page(pytestconfig):
    """Everything that the demo computes, once, in this process and under strict promotion."""
    long = lab.one_step_of_descent, lab.induction_heads, lab.variance_of_dot_products
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lab, "RESULTS", [compiled_for_many_steps()(f) if f in long else f for f in lab.RESULTS])
        if not pytestconfig.option.all:
            patch.setattr(lab.induction, "RESTARTS", 0)  # its first models decide,
            patch.setattr(lab.induction, "STEPS", 1100)  # and a third of their texts is enough: 0.03 and 2.44 nats
            patch.setattr(lab.induction, "BATCH", 8)
        return cli.evaluate(demo.compute, demo.arguments().parse_args([]))


@pytest.fixture(scope="module")
def found(page):
    return {r["name"]: r for r in page["results"]}


@pytest.mark.parametrize("name", BY_NAME)
def test_it_was_measured_where_it_was_expected(found, name):
    r = found[name]
    assert r["holds"]
    assert r["holds"] == dict.fromkeys(r["measured"], True)
    assert list(r["measured"]) == list(r["expected"]) == list(r["tolerance"])
    assert r["oracle"]


# What the issue of each result asks for, in its own words, so that no tolerance of the library can be loosened unseen.


def test_attention_is_a_support_vector_machine(found):
    r = found["attention_as_svm"]["measured"]
    assert r["cosine with the SVM"] >= 0.999
    assert r["share of its margin"] >= 0.98
    assert r["cosine, jax.nn.softmax"] < r["cosine with the SVM"] - 0.1
    assert r["its fall from its best"] > 0.1


def test_linear_attention_learns_a_step_of_descent(found):
    """The optimum from the second moment of a Wishart matrix, E G² = (N + d + 1)/N · I, and no other formula."""
    r, (d, N) = found["one_step_of_descent"]["measured"], (lab.regression.D, lab.regression.N)
    G = np.random.default_rng(0).standard_normal((200_000, N, d))
    G = G.mT @ G / N
    once, twice = np.trace(G, axis1=1, axis2=2).mean(), (G**2).sum((1, 2)).mean()
    a = once / twice
    assert abs(r["step a"] / a - 1) <= 0.03
    assert abs(r["squared error"] / (d - 2 * a * once + a**2 * twice) - 1) <= 0.03
    assert r["off one GD step"] <= 0.03
    assert abs(a * (1 + (d + 1) / N) - 1) < 0.005


def test_a_step_of_descent_is_a_weighted_sum_of_values():
    with jax.enable_x64(True):
        tokens, x, _ = map(np.asarray, jax.jit(lab.regression.prompt)(jax.random.key(3)))
        got = float(jax.jit(lab.regression.descended)(0.7, tokens, x))
    want = 0.7 * (tokens[:, -1] @ tokens[:, :-1] @ x) / len(tokens)
    assert abs(got - want) < 1e-12


def test_rank_collapses_cubically_and_a_skip_stops_it(found):
    r = found["rank_collapse"]["measured"]
    assert abs(r["slope of a layer"] - 3) <= 0.02
    assert abs(r["slope beside a skip"] - 1) <= 0.02
    assert r["off the leading term"] < 1e-2


def test_tokens_on_the_sphere_follow_all_of_their_equations(found):
    """The oracle here is SciPy on the 7 tokens themselves, not on the scalar that they reduce to."""
    r, beta = found["clustering"], lab.sphere.BETAS[1]

    def velocity(_, flat):
        x = flat.reshape(lab.sphere.T, -1)
        w = np.exp(beta * x @ x.T)
        out = w / w.sum(1, keepdims=True) @ x
        return (out - (out * x).sum(1, keepdims=True) * x).ravel()

    end = solve_ivp(velocity, (0, 1), np.eye(lab.sphere.T).ravel(), method="DOP853", rtol=1e-12, atol=1e-13).y[:, -1]
    x = end.reshape(lab.sphere.T, -1)
    assert abs(x[0] @ x[1] - r["measured"][f"cosine at time 1, β = {beta:g}"]) <= 1e-8
    assert all(r["measured"][f"farthest off the ODE, β = {b:g}"] <= 1e-8 for b in lab.sphere.BETAS)


def test_a_wrong_temperature_is_seen_at_1e_8():
    rate = lab.sphere.scalar_rate(0.3, 4.0, 7)
    assert abs(rate - lab.sphere.scalar_rate(0.3, 4.0 * (1 + 1e-6), 7)) > 1e-8


def test_no_row_is_more_peaked_than_its_norms_allow(found):
    r = found["entropy_bound"]["measured"]
    assert lab.entropies.DRAWS == 2000
    assert r["violations in 2,000 draws"] == 0
    assert 0 <= r["nearest draw above the bound"] < 1e-3
    assert r["farthest from attaining it"] <= 1e-12


@pytest.mark.parametrize("sigma", [0.5, 2.0, 5.0])
def test_the_bound_is_the_least_entropy_that_an_optimiser_finds(sigma):
    def entropy(u):
        u = sigma * u / np.linalg.norm(u)
        p = np.exp(u - u.max())
        p /= p.sum()
        return -(p * np.log(p)).sum()

    starts = np.random.default_rng(0).standard_normal((20, 7))
    least = min(minimize(entropy, start, tol=1e-12).fun for start in starts)
    assert abs(least - lab.entropies.bound(np.array(sigma), 7)) < 1e-6


def test_a_bound_too_high_by_one_percent_is_violated():
    with jax.enable_x64(True):
        draws = jax.jit(jax.vmap(lab.entropies.drawn))(jax.random.split(jax.random.key(0), 200))
        rows = np.asarray(jax.jit(jax.vmap(lab.entropies.entropies))(*draws)).min(1)
        sigma = lab.entropies.sigma_of(*map(np.asarray, draws))
    assert (rows >= lab.entropies.bound(sigma, 7)).all()
    assert (rows < 1.01 * lab.entropies.bound(sigma, 7)).any()


def test_two_layers_find_induction_heads_and_one_cannot(found):
    r, induction = found["induction_heads"]["measured"], lab.induction
    assert r["nats, two layers"] <= 1.0
    assert r["nats, one layer"] >= 2.0
    draw = jax.jit(jax.vmap(induction.repeated))
    texts, periods = map(np.asarray, draw(jax.random.split(jax.random.key(0), 64)))
    assert {int(period) for period in periods} == set(range(induction.SHORTEST, induction.LONGEST + 1))
    for tokens, period in zip(texts, periods, strict=True):
        assert len(set(tokens[:period].tolist())) == period  # no token but the repetition tells what comes next
        assert (tokens[period:] == tokens[:-period]).all()


def test_dot_products_spread_as_the_root_of_their_width(found):
    r = found["variance_of_dot_products"]
    for d in lab.dot_products.WIDTHS:
        assert abs(r["measured"][f"std of scaled, d = {d}"] - 1) < 0.041
    assert abs(r["measured"]["std of raw scores, d = 768"] / 768**0.5 - 1) < 0.029
    assert abs(r["measured"]["std of scaled, d = 768, mean 1"] / 3**0.5 - 1) < 0.029


@pytest.mark.parametrize("mean", [0.0, 1.0])
def test_the_spread_of_a_product_from_the_moments_of_its_factors(mean):
    """Moments of N(μ, 1) by quadrature; those of a product of two are their squares."""
    at, weight = np.polynomial.hermite_e.hermegauss(20)
    m = [(weight @ (at + mean) ** n / weight.sum()) ** 2 for n in range(5)]
    variance = m[2] - m[1] ** 2
    fourth = m[4] - 4 * m[1] * m[3] + 6 * m[1] ** 2 * m[2] - 3 * m[1] ** 4
    d, n = 64, lab.dot_products.TRIALS
    std, error = lab.dot_products.spread(d, mean)
    assert math.isclose(std, (d * variance) ** 0.5, rel_tol=1e-12)
    assert math.isclose(error, std * ((2 + (fourth / variance**2 - 3) / d) / (4 * n)) ** 0.5, rel_tol=1e-12)


# The oracles of the two support vector machines, each certified by its own conditions of optimality.


@pytest.fixture(scope="module")
def phi():
    with jax.enable_x64(True):
        problem = lab.selection.drawn(0)
        w = np.asarray(lab.selection.select(problem)[-1])
        best = np.asarray((problem.x @ problem.u).argmax(1))
    np.testing.assert_array_equal(np.einsum("ntd,de,ne->nt", problem.x, w, problem.z).argmax(1), best)
    return lab.selection.constraints(problem, w)


def test_the_svm_is_the_nearest_point_of_its_hull(phi):
    """Duality: W / |W|² is the point nearest the origin in the convex hull of the constraints."""
    w = lab.selection.least_frobenius("here", phi)
    leads = np.einsum("mde,de->m", phi, w)
    assert abs(leads.min() - 1) < 1e-6
    active = phi[leads < 1 + 1e-5].reshape(-1, w.size)
    weights, off = nnls(active.T, w.ravel())
    assert off < 1e-5 * np.linalg.norm(w)
    assert abs(weights.sum() / np.linalg.norm(w) ** 2 - 1) < 1e-5  # no duality gap


def test_no_w_of_less_nuclear_norm_has_the_leads(phi):
    """Weak duality: any λ ≥ 0 bounds the norm from below by Σ λ / |Σ λ_m phi_m|₂; this one leaves no gap."""
    w = lab.selection.least_nuclear("here", phi)
    leads = np.einsum("mde,de->m", phi, w)
    assert abs(leads.min() - 1) < 1e-6
    u, values, vt = np.linalg.svd(w)
    r = int((values > 1e-4 * values[0]).sum())
    active = phi[leads < 1 + 1e-5]
    # Σ λ phi is U Vᵀ where W lives: on its left and on its right singular vectors.
    sides = [np.concatenate([(u[:, :r].T @ m).ravel(), (m @ vt[:r].T).ravel()]) for m in active]
    weights, _ = nnls(np.array(sides).T, np.concatenate([vt[:r].ravel(), u[:, :r].ravel()]))
    below = weights.sum() / np.linalg.norm(np.tensordot(weights, active, 1), 2)
    assert below <= values.sum() * (1 + 1e-9)
    assert below > values.sum() * (1 - 1e-3)


def test_factors_go_elsewhere_than_the_whole(found):
    r = found["attention_as_nuclear_svm"]["measured"]
    rank = next(int(m[1]) for name in r if (m := re.fullmatch(r"norm beyond rank (\d)", name)))
    assert rank < lab.selection.n
    assert r["share of the nuclear margin"] >= 0.98
    assert r["W not factored: share"] < 0.95
    assert r[f"norm beyond rank {rank}"] < 0.02 < r[f"W not factored: beyond rank {rank}"]


# The record, and how the functions are called.


def test_a_result_is_a_frozen_record():
    r = result(
        "c", "o", "s", {"a": (1.0, 1.05, 0.1, 0.0), "b": (float("nan"), 0.0, 1.0, 1.0), "c": (2.0, 1.0, 0.0, 0.5)}
    )
    assert r.holds == {"a": True, "b": False, "c": False}
    assert jax.tree.map(lambda x: x, r) == dataclasses.replace(r)
    with pytest.raises(dataclasses.FrozenInstanceError):
        r.claim = "another"


def test_the_same_seed_gives_the_same_numbers_and_another_gives_others(found):
    again, other = lab.rank_collapse(0), lab.rank_collapse(1)
    assert again.measured == found["rank_collapse"]["measured"]
    assert all(other.holds.values())
    assert other.measured != again.measured


@pytest.mark.parametrize("name", BY_NAME)
def test_each_says_what_it_reproduces_and_shows_it(name):
    f = BY_NAME[name]
    assert list(flaws(f"jattn.lab.{name}", f)) == []
    assert "\nSource: " in inspect.getdoc(f)
    assert "\nRaises:" in inspect.getdoc(f)


def test_importing_it_asks_for_no_oracle():
    code = "import sys; from jattn import lab; print(sorted({'sklearn', 'scipy.integrate'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# The demo.


def run(*argv):
    command = [sys.executable, "-W", "error", str(FOLDER / "lab.py"), *argv]
    how = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 300, "env": environment()}
    return subprocess.run(command, check=False, **how)


def test_the_page_shows_every_quantity_on_80_columns(page):
    console = Console(width=80, highlight=False, markup=False, emoji=False, color_system=None)
    with console.capture() as captured:
        demo.show(console, page)
    text = captured.get()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text.replace(" … ", " ")  # a cell that was cut
    assert " NO\n" not in text
    for r in page["results"]:
        assert r["claim"] in text
        assert all(f"{name} " in text for name in r["measured"])


def test_a_quantity_that_does_not_hold_is_shown_so():
    r = result("c", "o", "s", {"a": (1.0, 0.0, 0.1, 0.1)})
    assert demo.lines({**dataclasses.asdict(r), "holds": r.holds})[0][-1] == "NO"


def test_the_demo_gives_one_result_as_json(found):
    done = run("--json", "--only", "clustering")
    assert (done.returncode, done.stderr) == (0, "")
    (only,) = json.loads(done.stdout)["results"]
    assert only["measured"] == pytest.approx(found["clustering"]["measured"], abs=1e-12)


def test_the_demo_says_what_it_takes_and_what_it_does_not(monkeypatch, capsys):
    assert "--only" in demo.arguments().format_help()
    wrong = refusal(demo, ["--only", "alchemy"], monkeypatch, capsys)
    assert wrong.startswith("lab.py: argument --only: invalid choice: 'alchemy'")
