"""Who is measured: attention of five libraries as one kind of thing, each on the layout that a case asks for."""

import importlib.util
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from _measure import derivatives

import jattn

PASSES = ("forward", "gradient")
PEERS = ("PyTorch", "jax.nn", "flax", "tokamax", "tokamax chunked")
PACKAGES = {"PyTorch": "torch", "flax": "flax", "tokamax": "tokamax", "tokamax chunked": "tokamax"}


class Case(NamedTuple):
    """Sizes, and what is asked: for each peer a floor of (forward, gradient), None where none is set."""

    name: str
    B: int
    H: int
    T: int
    S: int
    D: int
    causal: bool
    floors: dict[str, tuple[float | None, float | None]]
    heads_major: bool = False
    """Whether every library gets [B, H, T, D]; else JAX gets [B, T, H, D] and PyTorch what `shared` says."""
    shared: bool = False
    """Whether PyTorch gets transposed views of the same [B, T, H, D] rather than the layout that is its own."""
    passes: tuple[str, ...] = PASSES

    @property
    def operations(self) -> float:
        """Of the two matrix products, over the allowed pairs; forward and backward count 3.5 times this."""
        pairs = self.T * (self.T + 1) / 2 if self.causal else self.T * self.S
        return 4.0 * self.B * self.H * pairs * self.D

    def arrays(self) -> tuple[tuple[np.ndarray, ...], np.ndarray, tuple[np.ndarray, ...]]:
        """(q, k, v), a cotangent and tangents, [B, H, T, D] in float32."""
        rng = np.random.default_rng(self.T + self.D)
        long, short = (self.B, self.H, self.S, self.D), (self.B, self.H, self.T, self.D)
        q, k, v, w, *dots = (rng.standard_normal(s, np.float32) for s in (short, long, long, short, short, long, long))
        return (q, k, v), w, tuple(dots)


class Contestant(NamedTuple):
    """`given` turns the arrays of a case into the arguments of `calls`, `back` a result into NumPy, heads-major."""

    given: Callable[..., Any]
    calls: dict[str, Callable[..., Any]]
    back: Callable[[Any], list[np.ndarray]]


def contestants(case: Case) -> dict[str, Contestant]:
    """Ours and those of the peers that are installed."""
    made = {"jattn": _jax(case, ours(case))}
    for name in PEERS:
        if importlib.util.find_spec(PACKAGES.get(name, "jax")):
            made[name] = _torch(case) if name == "PyTorch" else _jax(case, _heads_minor(case, theirs(name)))
    return made


def ours(case: Case) -> Callable[..., Any]:
    if case.heads_major:  # one head composes: any layout is a matter of vmap
        mask = jattn.masks.causal() if case.causal else None
        return jax.vmap(jax.vmap(partial(jattn.attention, mask=mask)))
    return partial(jattn.dot_product_attention, is_causal=case.causal)


def theirs(name: str) -> Callable[..., Any]:
    """The public function of a JAX library, on [B, T, H, D]."""
    if name == "jax.nn":
        return jax.nn.dot_product_attention
    if name == "flax":
        from flax import nnx

        return nnx.dot_product_attention
    import tokamax
    from absl import flags

    if not flags.FLAGS.is_parsed():  # tokamax would read our command line as its own
        flags.FLAGS(["benchmark"])
    how = {"implementation": "xla_chunked"} if name == "tokamax chunked" else {}
    return partial(tokamax.dot_product_attention, **how)


def _heads_minor(case: Case, f: Callable[..., Any]) -> Callable[..., Any]:
    f = partial(f, is_causal=case.causal)
    if not case.heads_major:
        return f
    return lambda *x: jnp.swapaxes(f(*(jnp.swapaxes(a, 1, 2) for a in x)), 1, 2)


def _jax(case: Case, f: Callable[..., Any]) -> Contestant:
    def given(x: Any, w: Any, dots: Any) -> Any:
        return jax.tree.map(lambda a: jnp.asarray(a if case.heads_major else a.swapaxes(1, 2).copy()), (x, w, dots))

    def back(result: Any) -> list[np.ndarray]:
        return [np.asarray(a) if case.heads_major else np.asarray(a).swapaxes(1, 2) for a in jax.tree.leaves(result)]

    def waits(g: Callable[..., Any]) -> Callable[..., Any]:
        compiled = jax.jit(g)
        return lambda x, w, dots: jax.block_until_ready(compiled(x, w, dots))

    return Contestant(given, {name: waits(g) for name, g in derivatives(f).items()}, back)


def _torch(case: Case) -> Contestant:
    import torch

    torch.set_num_threads(os.cpu_count() or 1)
    attend = partial(torch.nn.functional.scaled_dot_product_attention, is_causal=case.causal)

    def own(a: np.ndarray) -> Any:
        return torch.tensor(a.swapaxes(1, 2).copy()).transpose(1, 2) if case.shared else torch.tensor(a)

    def given(x: Any, w: Any, dots: Any) -> Any:
        return tuple(own(a).requires_grad_() for a in x), own(w), None

    def forward(x: Any, w: Any, dots: Any) -> Any:
        with torch.inference_mode():
            return (attend(*x),)

    def gradient(x: Any, w: Any, dots: Any) -> Any:
        out = attend(*x)
        return out, *torch.autograd.grad(out, x, w)

    return Contestant(given, {"forward": forward, "gradient": gradient}, lambda r: [a.detach().numpy() for a in r])
