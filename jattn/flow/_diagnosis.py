"""What to watch while one query learns whom to attend, and the identities that its path must obey."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._numerics import match_varying_trees, max_or_nan, promoted
from jattn._types import Array, Float
from jattn._values import pytree
from jattn.flow._closed import Objective, steps_of
from jattn.flow._margins import max_margin
from jattn.flow._paths import Data, Now, Observe, Track, Trajectory, Tree
from jattn.flow._pulls import pulls
from jattn.reference import Steps

Read: TypeAlias = Callable[..., tuple[jax.Array, ...]]
"""read(params, *data) -> (q [D], k [S, D]) or (q, k, v [S, Dv]): what the parameters make of one query and its keys."""


@pytree
@dataclasses.dataclass(frozen=True)
class Diagnostics:
    """One moment of one query among its keys. No one of these numbers tells the story alone.

    Of a run, each array has the frames as its first axis.

    r is the target, k̄ = Σ_s p_s k_s the mean key that the query attends, u the max-margin direction.
    """

    q: Float[Array, "*n D"]
    k: Float[Array, "*n S D"]
    weights: Float[Array, "*n S"]
    loss: Float[Array, "*n"]
    p: Float[Array, "*n"]
    """p_r, the target's weight."""
    lead: Float[Array, "*n"]
    """q·(k_r − k̄): by how much the target's score leads the mean score."""
    cos_key: Float[Array, "*n"]
    """cos(q, k_r); 0 where one of them is 0."""
    cos_margin: Float[Array, "*n"]
    """cos(q, u); 0 where no direction separates."""
    norm: Float[Array, "*n"]
    """|q|."""
    margin: Float[Array, "*n"]
    """min over j ≠ r of q·(k_r − k_j) / |q|: at most `widest`; 0 where q is 0, or without a rival."""
    widest: Float[Array, "*n"]
    """γ, the margin of u; 0 where the target lies in the hull of the others."""
    direction: Float[Array, "*n D"]
    """u."""
    pulls: Float[Array, "*n S D"]
    """What each key contributes to −dL/dq, in closed form."""
    dq: Float[Array, "*n D"]
    """dL/dq, by jax.grad."""
    dk: Float[Array, "*n S D"]
    """dL/dk, by jax.grad, the values held."""
    shift: Float[Array, "*n D"]
    """q dL/dε, where every score has ε more: Σ_s dL/dk_s. 0 of a loss that such a shift does not change."""
    as_values: Float[Array, "*n D"]
    """Σ_s dL/dv_s where the values are the keys, by which their mean moves too; 0 where they are not."""
    conserved: Tree
    """What a gradient flow conserves; None where nothing was named."""
    drift: Tree
    """By how much plain gradient descent must have changed it by now: the run's `sums`."""


def loss_of(read: Read, objective: Objective) -> Callable[..., jax.Array]:
    """The loss of parameters through the attention of one query.

        L(params) = objective(attention_steps(q, k, v)),    (q, k, v) = read(params, *data)

    Args:
      read: read(params, *data) -> (q [D], k [S, D]), the keys being the values, or (q, k, v [S, Dv]).
      objective: a loss on Steps, such as `cross_entropy(0)`.

    Returns:
      loss(params, *data) -> scalar, for `run` and `integrate`.

    Raises:
      TypeError: `read` or `objective` is no function; or, when the loss is called, `read` returns neither two nor three
      arrays.

    Memory: S.

    Source: composition.

    Example:
      >>> import jax.numpy as jnp
      >>> from jattn import flow
      >>> loss = flow.loss_of(lambda q, k: (q, k), flow.cross_entropy(0))
      >>> print(loss(jnp.zeros(2), jnp.eye(2)).round(4))
      0.6931
    """

    _check_functions("loss_of", read, objective)

    def loss(params: Tree, *data: Any) -> jax.Array:
        q, k, v = _read("loss_of", read, params, data)
        return objective(steps_of("loss_of", q[None], k, v))

    return loss


def watch(read: Read, objective: Objective, target: jax.Array | int, *, conserved: Track | None = None) -> Observe:
    """An `observe` for `run` and `integrate` that returns Diagnostics.

    Args:
      read: as in `loss_of`.
      objective: the loss on Steps that is minimised.
      target: r, the key to look at, from 0 to S − 1, possibly traced.
      conserved: conserved(params) -> pytree, a quadratic that gradient flow keeps, such as `balance` of two factors.
        Give `run` the same function as `track`, and its drift is predicted beside it.

    Returns:
      observe(now) -> Diagnostics.

    Raises:
      TypeError: `read`, `objective` or `conserved` is no function.
      TypeError, ValueError: when it is called, `read` returns neither two nor three arrays, `target` is not one whole
      number, or is known and is no number of a key.

    Memory: S × D, and S × S for the max-margin direction.

    Source: the closed forms of `pulls` and `max_margin`.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from jattn import flow
      >>> keys = jnp.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])  # river, money, the
      >>> read, objective = lambda q: (q, keys), flow.cross_entropy(0)
      >>> path = flow.run(flow.loss_of(read, objective), keys[0], optax.sgd(1.0), 1000,
      ...                 observe=flow.watch(read, objective, 0), at=500)
      >>> print((100 * path.seen.p).round(), (1000 * path.seen.cos_key).round())  # it learns river, and turns away
      [ 49.  99. 100.] [1000.  995.  995.]
    """

    _check_functions("watch", read, objective)
    if conserved is not None:
        _errors.function("watch", "conserved", conserved, "Write conserved(params) -> a pytree of arrays.")

    def observe(now: Now) -> Diagnostics:
        q, k, v = _read("watch", read, now.params, now.data)
        values_are_keys = v is k
        r = _errors.number_of("watch", "target", target, len(k), "S").astype(jnp.int32)
        # Inside jax.shard_map a gradient by keys that all devices share would be summed over the devices.
        q, k, v = match_varying_trees(q, k, v)

        def by_parts(q: jax.Array, k: jax.Array) -> jax.Array:
            return objective(steps_of("watch", q[None], k, v))

        loss, (dq, dk) = jax.value_and_grad(by_parts, (0, 1))(q, k)
        steps = steps_of("watch", q[None], k, v)
        p, scale = steps.weights[0], k.shape[1] ** -0.5
        more, steps = match_varying_trees(jnp.zeros((), steps.scaled.dtype), steps)

        def shifted(more: jax.Array, out: jax.Array) -> jax.Array:
            return objective(Steps(steps.scores + more, steps.scaled + scale * more, steps.weights, out))

        shift, dout = jax.grad(shifted, (0, 1))(more, steps.out)
        keys = k.astype(p.dtype)
        best = max_margin(k, r)
        dtype = promoted(q.dtype, k.dtype)
        wide_q, wide_k = q.astype(dtype), k.astype(dtype)
        u, widest = (x.astype(dtype) for x in (best.direction, best.margin))
        rival = jnp.arange(len(k), dtype=jnp.int32) != r
        ahead = -max_or_nan(jnp.where(rival, (wide_k - wide_k[r][None]) @ wide_q, -jnp.inf), initial=-jnp.inf)
        ahead = ahead if len(k) > 1 else jnp.zeros_like(ahead)  # without a rival, as γ is
        size = jnp.linalg.norm(wide_q)
        return Diagnostics(
            q=q, k=k, weights=p, loss=loss, p=p[r], lead=q.astype(p.dtype) @ (keys[r] - p @ keys),
            cos_key=_cos(wide_q, wide_k[r]), cos_margin=_cos(wide_q, u), norm=size,
            margin=ahead / jnp.where(size == 0, 1, size), widest=widest, direction=u,
            pulls=pulls(q[None], k, v, objective).on_q[0], dq=dq, dk=dk,
            shift=shift.astype(q.dtype) * q, as_values=dout[0] if values_are_keys else jnp.zeros_like(q),
            conserved=None if conserved is None else conserved(now.params), drift=now.sums,
        )  # fmt: skip

    return observe


@dataclasses.dataclass(frozen=True)
class Check:
    """One identity: what was measured, what theory says, and how far apart they may be."""

    identity: str
    measured: float
    predicted: float
    tolerance: float

    @property
    def passed(self) -> bool:
        return bool(abs(self.measured - self.predicted) <= self.tolerance)  # NaN does not pass


@dataclasses.dataclass(frozen=True)
class Report:
    """Every identity that was checked, by its name; printed, one a line. Of another name it is a KeyError."""

    checks: tuple[Check, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    def __getitem__(self, identity: str) -> Check:
        by_name = {check.identity: check for check in self.checks}
        if identity not in by_name:
            got, remedy = {"identity": repr(identity)}, "Those are: " + "; ".join(by_name) + "."
            _errors.fail(KeyError, "report", "identity must be one that was checked", remedy, **got)
        return by_name[identity]

    def __str__(self) -> str:
        width = max((len(check.identity) for check in self.checks), default=0)
        return "\n".join(
            f"{'ok  ' if c.passed else 'FAIL'} {c.identity:<{width}}  measured {c.measured: .6g}  predicted "
            f"{c.predicted: .6g}  within {c.tolerance:.1e}"
            for c in self.checks
        )


def check(
    trajectory: Trajectory[Tree],
    *,
    keys: Literal["frozen", "free", "projected"] = "frozen",
    rate: float | None = None,
    within: float = 0.05,
) -> Report:
    """Holds a path of Diagnostics to the identities of gradient flow.

        Σ_s p_s = 1;    Σ_s pull_s = −dL/dq;    Σ_s dL/dk_s = 0 (a);    dL/dk_s ∥ q;    margin ≤ γ
        frozen keys stand still;  free keys keep their mean (a, b)
        conserved_t − conserved_0 = Σ of its second-order term in each update (plain gradient descent; b)
        with `rate`, for the cross-entropy on a separable target:  η t L → 1/(cγ)²,  |q| gains ln 10 / (cγ) a decade

    (a) of a loss that stays the same where every score has as much more, as one of the weights and the output does;
    (b) of a loss of the output, as `squared_error`, only where the values are not the keys, which else learn as values
    too. A line that does not hold of a run for one of these reasons is left out of its report. Values that are made of
    the keys in any other way are not told from others: say keys="projected" there, and name nothing as conserved.

    Args:
      trajectory: of one run, observed with `watch`; outside of jit.
      keys: how the keys follow from the parameters. Projected keys are held to neither of their lines.
      rate: the learning rate η, or 1 for a path of `integrate`, which adds the limits, taken at the last looks.
      within: how far the limits may still be off, relative. The identities are held to rounding.

    Returns:
      A Report: `passed`, `checks`, and a table as its text. Momentum and Adam fail the line on what is conserved, as
      they should: they do not keep it.

    Raises:
      TypeError: the trajectory was not observed with `watch`; `rate` or `within` is not one number. ValueError: `keys`
      is another word; `rate` or `within` is not finite; the trajectory is of several runs, or traced, or holds no look
      before it broke.

    Memory: as the trajectory.

    Source: the closed forms of `pulls`; Du, Hu and Lee 2018 for what is conserved; Soudry et al. 2018 for the limits.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> from jattn import flow
      >>> read, objective = lambda w: w, flow.cross_entropy(0)
      >>> both = lambda w: flow.balance(*w)
      >>> path = flow.run(flow.loss_of(read, objective), (jnp.ones(2), jnp.eye(2)), optax.sgd(0.1), 50, at=10,
      ...                 observe=flow.watch(read, objective, 0, conserved=both), track=both)
      >>> flow.check(path, keys="free").passed
      True
    """
    seen = getattr(trajectory, "seen", trajectory)
    if not isinstance(trajectory, Trajectory) or not isinstance(seen, Diagnostics):
        got = {"trajectory": f"of {type(seen).__name__}"}
        _errors.fail(
            TypeError, "check", "trajectory must be one of Diagnostics", "Run it with observe=watch(…).", **got
        )
    if keys not in ("frozen", "free", "projected"):
        remedy = "Say frozen, free or projected."
        _errors.fail(ValueError, "check", "keys must be one of three words", remedy, keys=repr(keys))
    rate = None if rate is None else _errors.amount("check", "rate", rate)
    within = _errors.amount("check", "within", within)
    kept = trajectory.kept()
    if not len(kept.at):
        got = {"trajectory": f"that broke at step {int(trajectory.broke)}"}
        remedy = "Look earlier, as from 0 on: at=1."
        _errors.fail(ValueError, "check", "trajectory must hold a look before it broke", remedy, **got)
    s = jax.tree.map(lambda x: np.asarray(x, np.float64), kept.seen)
    # What was seen in bfloat16 obeys to its rounding, though the weights and the loss are float32.
    floats = [x.dtype for x in jax.tree.leaves((trajectory.loss, seen)) if jnp.issubdtype(x.dtype, jnp.floating)]
    eps = max(float(jnp.finfo(dtype).eps) for dtype in floats)
    S, D = s.k.shape[1:]
    unit = 8 * eps * (S + D)  # a sum of that many terms
    pull, reach = unit * max(abs(s.pulls).sum(1).max(), 1e-300), unit * max(abs(s.k).max(), 1)
    across = s.dk - (s.dk @ s.q[:, :, None]) * s.q[:, None] / np.where(s.norm == 0, 1, s.norm**2)[:, None, None]
    steps, together = float(np.asarray(trajectory.at)[-1]), unit * max(abs(s.dk).sum(1).max(), 1e-300)
    invariant, as_values = not abs(s.shift).max() > together, abs(s.as_values).max() > 0  # of NaN the lines stay
    checks = [
        Check("no step met a NaN or an infinity", float(trajectory.broke), -1.0, 0.0),
        Check("Σ_s p_s = 1", _worst(s.weights.sum(1), 1.0), 1.0, unit),
        Check("Σ_s pull_s + dL/dq = 0", _worst(s.pulls.sum(1) + s.dq), 0.0, pull),
        *([Check("Σ_s dL/dk_s = 0", _worst(s.dk.sum(1)), 0.0, together)] if invariant else []),
        Check("dL/dk_s across q = 0", _worst(across), 0.0, unit * max(abs(s.dk).max(), 1e-300)),
        Check("margin above γ = 0", max(float((s.margin - s.widest).max()), 0.0), 0.0, 8 * reach),
    ]
    if keys == "frozen":
        checks.append(Check("keys moved = 0", _worst(s.k - s.k[:1]), 0.0, 0.0))
    if keys == "free" and invariant and not as_values:
        checks.append(
            Check("mean key moved = 0", _worst(s.k.mean(1) - s.k[0].mean(0)), 0.0, reach * (1 + steps) ** 0.5)
        )
    if s.conserved is not None and s.drift is not None and not as_values:
        pairs = zip(jax.tree.leaves(s.conserved), jax.tree.leaves(s.drift), strict=True)
        moved = [(x[-1] - x[0], d[-1] - d[0], abs(x).max()) for x, d in pairs]
        i, j = max(((i, j) for i, m in enumerate(moved) for j in np.ndindex(m[0].shape)), key=_off(moved))
        found, said, size = moved[i]
        tolerance = unit * max(size, 1) * (1 + steps) ** 0.5
        checks.append(Check("conserved: drift as predicted", float(found[j]), float(said[j]), tolerance))
    return Report((*checks, *(_limits(trajectory, s, rate, within) if rate is not None else ())))


def _limits(trajectory: Trajectory[Tree], s: Any, rate: float, within: float) -> tuple[Check, ...]:
    """What theory says of the far end, where the target can be separated from its rivals."""
    t, cg = rate * np.asarray(trajectory.kept().at, np.float64), float(s.widest[0]) / s.k.shape[2] ** 0.5
    if not t[-1] > 0:
        return (Check("η t > 0, so that there are limits", float(t[-1]), 1.0, 0.0),)
    if cg == 0:
        return (Check("γ > 0, so that there are limits", 0.0, 1.0, 0.0),)
    early = min(int(np.searchsorted(t, t[-1] / 10)), len(t) - 2)
    if early < 0 or t[early] <= 0:
        gains = Check("two looks at η t > 0, so that |q| has a rate", 1.0, 2.0, 0.0)
    else:
        gain, decade = float(s.norm[-1] - s.norm[early]), float(np.log(t[-1] / t[early])) / cg
        gains = Check("|q| gains ln 10/(cγ) a decade", gain, decade, within * decade)
    return (
        Check("η t L → 1/(cγ)²", float(t[-1] * s.loss[-1]), 1 / cg**2, within / cg**2),
        gains,
        Check("cos(q, u) → 1", float(s.cos_margin[-1]), 1.0, within),
    )


def _off(moved: list[tuple[Any, Any, Any]]) -> Callable[[tuple[int, Any]], Any]:
    return lambda place: abs(moved[place[0]][0][place[1]] - moved[place[0]][1][place[1]])


def _worst(x: np.ndarray, around: float = 0.0) -> float:
    """The entry that is furthest from where it should be."""
    return float(x.ravel()[abs(x - around).argmax()])


def _cos(a: jax.Array, b: jax.Array) -> jax.Array:
    size = jnp.linalg.norm(a) * jnp.linalg.norm(b)
    return jnp.where(size == 0, 0, a @ b / jnp.where(size == 0, 1, size))


_READ = "Write read(params, *data) -> (q [D], k [S, D]) or (q, k, v [S, Dv])."


def _check_functions(caller: str, read: Read, objective: Objective) -> None:
    _errors.function(caller, "read", read, _READ)
    _errors.function(caller, "objective", objective, "Pass a loss on Steps, as cross_entropy(0).")


def _read(caller: str, read: Read, params: Tree, data: Data) -> tuple[jax.Array, jax.Array, jax.Array]:
    made = read(params, *data)
    if not isinstance(made, tuple | list) or len(made) not in (2, 3):
        got = f"of {len(made)} parts" if isinstance(made, tuple | list) else f"of type {type(made).__name__}"
        _errors.fail(TypeError, caller, "read must return two or three arrays", _READ, **{"read returning": got})
    names = ("q of read", "k of read", "v of read")
    q, k, *v = (_errors.array(caller, name, x) for name, x in zip(names, made, strict=False))
    _errors.rank(caller, 1, "[D]", _READ, **{"q of read": q})
    _errors.rank(caller, 2, "[S, D]", _READ, **{"k of read": k})
    if v:
        _errors.rank(caller, 2, "[S, Dv]", _READ, **{"v of read": v[0]})
    return q, k, v[0] if v else k
