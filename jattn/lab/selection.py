"""Attention as a support vector machine: descent on the weights selects tokens by a maximal margin.

Each of n sequences x [T, D] has a query z; attention selects by p = softmax(x W z) and is rewarded by ⟨u, Σ_t p_t x_t⟩.
With normalised steps W grows without end, and its direction tells what descent prefers: of all W that put the chosen
token of each sequence ahead of the others by the same margin, the one of least Frobenius norm. Trained as W = K Qᵀ it
is the one of least nuclear norm instead, whose rank is low.

When W is large the weights are one-hot to rounding, and only what remains in their tails says where to go. So the
reproduction stands or falls with the derivative of the softmax.
"""

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import random

from jattn._softmax import log_softmax, softmax
from jattn._types import Array, Float
from jattn.lab.result import Result, oracle, result, seed_of

__all__ = [
    "Problem",
    "attention_as_nuclear_svm",
    "attention_as_svm",
    "beyond",
    "constraints",
    "descend",
    "drawn",
    "least_frobenius",
    "least_nuclear",
    "log_regret",
    "margin",
    "reward_lost",
    "select",
    "select_factored",
]

n: int = 5
T, D = 5, 8
STEPS, RATE = 10_000, 0.1
FACTORED_STEPS, FACTORED_RATE, FACTORED_START = 60_000, 0.03, 0.1


Weights = TypeVar("Weights", jax.Array, tuple[jax.Array, jax.Array])


class Problem(NamedTuple):
    """n sequences, the query of each, and what a selected token is worth."""

    x: Float[Array, "n T D"]
    z: Float[Array, "n D"]
    u: Float[Array, " D"]

    def scores(self, w: Float[Array, "D D"]) -> Float[Array, "n T"]:
        """x W z of each token."""
        return jnp.einsum("ntd,de,ne->nt", self.x, w, self.z)


def drawn(seed: int) -> Problem:
    """Unit vectors in random directions."""
    draw = random.split(random.key(seed), 3)
    made = (random.normal(k, s, jnp.float64) for k, s in zip(draw, ((n, T, D), (n, D), (D,)), strict=True))
    return Problem(*(a / jnp.linalg.norm(a, axis=-1, keepdims=True) for a in made))


def reward_lost(w: Float[Array, "D D"], problem: Problem, normalise: Callable[[Array], Array]) -> Array:
    """−(1/n) Σ ⟨u, Σ_t p_t x_t⟩, with `normalise` for the softmax."""
    return -jnp.mean(jnp.sum(normalise(problem.scores(w)) * (problem.x @ problem.u), 1))


def log_regret(factors: tuple[Array, Array], problem: Problem) -> Array:
    """The logarithm of what is lost against selecting the best tokens, for W = K Qᵀ.

    Its gradient is that of `reward_lost` but for a positive factor, so that normalised steps are the same; and it does
    not underflow where the weights do.
    """
    worth = problem.x @ problem.u
    gap = worth.max(1, keepdims=True) - worth
    best = gap == 0
    log_gap = jnp.where(best, -jnp.inf, jnp.log(jnp.where(best, 1, gap)))
    return jax.nn.logsumexp(log_softmax(problem.scores(factors[0] @ factors[1].T)) + log_gap)


def descend(loss: Callable[[Weights], jax.Array], start: Weights, rate: float, steps: int) -> tuple[Weights, Weights]:
    """Steps of length `rate` against the gradient; the end, and each 1,000th state on the way."""

    def step(_: object, w: Weights) -> Weights:
        g = jax.grad(loss)(w)
        length = jnp.sqrt(sum(jnp.sum(x**2) for x in jax.tree.leaves(g)))
        return jax.tree.map(lambda w, g: w - rate * g / jnp.where(length == 0, 1, length), w, g)

    def thousand(w: Weights, _: None) -> tuple[Weights, Weights]:
        w = jax.lax.fori_loop(0, 1000, step, w)
        return w, w

    return jax.lax.scan(thousand, start, None, length=steps // 1000)


@partial(jax.jit, static_argnums=1)
def select(problem: Problem, normalise: Callable[[Array], Array] = softmax) -> Float[Array, "N D D"]:
    """W after each 1,000 steps from 0."""
    return descend(partial(reward_lost, problem=problem, normalise=normalise), jnp.zeros((D, D)), RATE, STEPS)[1]


@jax.jit
def select_factored(problem: Problem, start: tuple[Array, Array]) -> Float[Array, "D D"]:
    """K Qᵀ at the end."""
    (k, q), _ = descend(partial(log_regret, problem=problem), start, FACTORED_RATE, FACTORED_STEPS)
    return k @ q.T


def constraints(problem: Problem, w: np.ndarray) -> np.ndarray:
    """(x_best − x_t) zᵀ [n(T−1), D, D] of each token t that W does not select: its product with W is the lead."""
    x, z = np.asarray(problem.x), np.asarray(problem.z)
    best = np.einsum("ntd,de,ne->nt", x, w, z).argmax(1)
    return np.array([np.outer(x[i, best[i]] - x[i, t], z[i]) for i in range(n) for t in range(T) if t != best[i]])


def margin(w: np.ndarray, phi: np.ndarray, order: Literal["fro", "nuc"] = "fro") -> float:
    """The least lead of W over its norm, Frobenius ('fro') or nuclear ('nuc')."""
    return float(np.einsum("mde,de->m", phi, w).min() / np.linalg.norm(w, order))


def least_frobenius(caller: str, phi: np.ndarray) -> np.ndarray:
    """W of least Frobenius norm with all leads at least 1: a hard-margin SVC on ±phi, which has no intercept."""
    flat = phi.reshape(len(phi), -1)
    labels = np.repeat([1, -1], len(phi))
    svc = oracle(caller, "sklearn.svm").SVC(kernel="linear", C=1e10, tol=1e-10)
    return svc.fit(np.concatenate([flat, -flat]), labels).coef_.reshape(phi.shape[1:])


def least_nuclear(caller: str, phi: np.ndarray) -> np.ndarray:
    """W of least nuclear norm with all leads at least 1: SLSQP on the least ½(|K|² + |Q|²), K and Q of full width."""
    shape = (2, *phi.shape[1:])

    def slack(flat: np.ndarray) -> np.ndarray:
        k, q = flat.reshape(shape)
        return np.einsum("mde,dr,er->m", phi, k, q) - 1

    def slope(flat: np.ndarray) -> np.ndarray:
        k, q = flat.reshape(shape)
        parts = np.einsum("mde,er->mdr", phi, q), np.einsum("mde,dr->mer", phi, k)
        return np.concatenate([part.reshape(len(phi), -1) for part in parts], 1)

    start = np.random.default_rng(0).standard_normal(2 * phi[0].size)
    found = oracle(caller, "scipy.optimize").minimize(
        lambda flat: (flat @ flat / 2, flat), start, jac=True, method="SLSQP",
        constraints={"type": "ineq", "fun": slack, "jac": slope}, options={"maxiter": 1000, "ftol": 1e-13},
    )  # fmt: skip
    k, q = found.x.reshape(shape)
    return k @ q.T


def beyond(w: np.ndarray, rank: int) -> float:
    """The share of the nuclear norm of W that lies beyond its `rank` largest singular values."""
    values = np.linalg.svd(w)[1]
    return float(values[rank:].sum() / values.sum())


def attention_as_svm(seed: int = 0) -> Result:
    """Where normalised descent on W takes attention, against the hard-margin SVM of the tokens that it selects.

        min ‖W‖_F   with   (x_best − x_t)ᵀ W z ≥ 1 for each other token t

    Args:
      seed: of five sequences of five tokens in eight dimensions.

    Returns:
      The cosine of W with the solution of the SVM and the share of its margin that W attains, after 10,000 steps with
      `jattn.softmax`; and the cosine after the same steps with `jax.nn.softmax`, and how far it fell from its
      best on the way: its derivative loses the tail of a saturated row, and training makes it worse.

    Raises:
      TypeError, ValueError: seed is not a whole number from 0 to 2³² − 1.
      ModuleNotFoundError: scikit-learn is not there: the extra `lab` brings it.

    Memory: some kilobytes: every 1,000th state of W, [8, 8], is kept.

    Source: Tarzanagh, Li, Thrampoulidis and Oymak 2023, "Transformers as support vector machines", section 3.

    Example:
      >>> from jattn import lab
      >>> lab.selection.beyond(lab.selection.np.diag([3.0, 1.0]), 1)  # of a norm of 4
      0.25
    """
    seed = seed_of("attention_as_svm", seed)
    with jax.enable_x64(True):
        problem = drawn(seed)
        ours, plain = (np.asarray(select(problem, f)) for f in (softmax, jax.nn.softmax))
        phi = constraints(problem, ours[-1])
    svm = least_frobenius("attention_as_svm", phi)

    def cosines(path: np.ndarray) -> np.ndarray:
        return np.einsum("nde,de->n", path, svm) / np.linalg.norm(path, axis=(1, 2)) / np.linalg.norm(svm)

    exact, lossy = cosines(ours), cosines(plain)
    return result(
        "Normalised descent on attention solves a support vector machine",
        "sklearn.svm.SVC",
        "Tarzanagh et al. 2023",
        {
            "cosine with the SVM": (exact[-1], 1, 0.001, 1e-12),
            "share of its margin": (margin(ours[-1], phi) / margin(svm, phi), 1, 0.02, 1e-6),
            "cosine, jax.nn.softmax": (lossy[-1], 0.999, 1.999, -0.1),
            "its fall from its best": (lossy.max() - lossy[-1], 0, -0.1, 2),
        },
    )


def attention_as_nuclear_svm(seed: int = 0) -> Result:
    """Where normalised descent on K and Q takes W = K Qᵀ: to the SVM of least nuclear norm, whose rank is low.

        min ‖W‖_*   with   (x_best − x_t)ᵀ W z ≥ 1 for each other token t

    Args:
      seed: of the sequences, as in `attention_as_svm`, and of the small K and Q that descent begins with.

    Returns:
      The share of the nuclear margin that K Qᵀ attains, and that the SVM of least Frobenius norm does, which
      is less; and the shares of the two nuclear norms beyond the rank of the optimum.

    Raises:
      TypeError, ValueError: seed is not a whole number from 0 to 2³² − 1.
      ModuleNotFoundError: scikit-learn is not there: the extra `lab` brings it.

    Memory: some kilobytes: of the states of K, Q and W, each [8, 8], every 1,000th is kept.

    Source: Tarzanagh, Li, Thrampoulidis and Oymak 2023, "Transformers as support vector machines", section 2 and
      theorem 1, (K, Q)-parameterisation.

    Example:
      >>> from jattn import lab
      >>> lab.selection.margin(lab.selection.np.eye(2), lab.selection.np.eye(2)[None], "nuc")  # a lead of 2 by 2
      1.0
    """
    caller = "attention_as_nuclear_svm"
    seed = seed_of(caller, seed)
    with jax.enable_x64(True):
        problem = drawn(seed)
        start = random.normal(random.fold_in(random.key(seed), 1), (2, D, D), jnp.float64) * FACTORED_START
        factored = np.asarray(select_factored(problem, (start[0], start[1])))
        whole = np.asarray(select(problem)[-1])
        phi = constraints(problem, factored)
    frobenius, nuclear = least_frobenius(caller, phi), least_nuclear(caller, phi)
    best, rank = margin(nuclear, phi, "nuc"), int((np.linalg.svd(nuclear)[1] > 1e-3 * np.linalg.norm(nuclear)).sum())
    share = margin(frobenius, phi, "nuc") / best
    return result(
        "Factored as K Qᵀ, it solves the one of least nuclear norm",
        "scipy.optimize, SLSQP; sklearn.svm.SVC",
        "Tarzanagh et al. 2023",
        {
            "share of the nuclear margin": (margin(factored, phi, "nuc") / best, 1, 0.02, 1e-6),
            "W not factored: share": (margin(whole, phi, "nuc") / best, share, 0.02, 0.02),
            f"norm beyond rank {rank}": (beyond(factored, rank), 0, 1e-12, 0.02),
            f"W not factored: beyond rank {rank}": (beyond(whole, rank), beyond(frobenius, rank), 0.02, 0.02),
        },
    )
