"""What stretches a model's rotary beyond its training: functions from frequencies to frequencies."""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from jattn import _errors
from jattn._types import Array, Float, Integer
from jattn.positions._frequencies import Frequencies, Scaling, checked_scaling, number

Factor: TypeAlias = float | Float[Array, ""] | Integer[Array, ""]


@dataclasses.dataclass(frozen=True)
class _Scaling:
    """A rule and its options, as a value: equal, hashable and printed as the code that made it."""

    rule: Callable[..., Frequencies]
    options: tuple[tuple[str, Any], ...]

    def __call__(self, f: Frequencies) -> Frequencies:
        return self.rule(f, **dict(self.options))

    def __repr__(self) -> str:
        options = (f"{name}={_errors.shape(x) if hasattr(x, 'dtype') else repr(x)}" for name, x in self.options)
        return f"{self.rule.__name__.strip('_')}({', '.join(options)})"


def _above(caller: str, least: float, **given: Any) -> None:
    """Refuses what is known and not above `least`, or not finite: frequencies would be 0, infinite or NaN."""
    for name, x in given.items():
        if _errors.known(x) and not least < (n := number(caller, name, x)) < math.inf:
            remedy = "The configuration of a model holds what it was trained with."
            _errors.fail(ValueError, caller, f"{name} must be above {least:g} and finite", remedy, **{name: str(n)})


def _scaling(rule: Callable[..., Frequencies], **options: Any) -> Scaling:
    return _Scaling(rule, tuple(options.items()))


def compose(*scalings: Scaling) -> Scaling:
    """Several scalings, one after another, the first first.

    Args:
      scalings: functions from frequencies to frequencies.

    Returns:
      A scaling; of none at all, the one that changes nothing.

    Raises:
      TypeError: one of them is not a function.

    Memory: a number for each pair of columns, where it is applied.

    Example:
      >>> from jattn.positions import compose, frequencies, linear
      >>> frequencies(2, scaling=compose(linear(2.0), linear(4.0))).inv.tolist()
      [0.125]
    """
    return _scaling(_compose, scalings=tuple(checked_scaling("compose", scaling) for scaling in scalings))


def _compose(f: Frequencies, scalings: tuple[Scaling, ...]) -> Frequencies:
    for scaling in scalings:
        f = scaling(f)
    return f


def linear(factor: Factor) -> Scaling:
    """Position interpolation: every pair turns `factor` times more slowly, inv / factor.

    Args:
      factor: > 0, how many times longer the sequence becomes, possibly traced.

    Returns:
      A scaling.

    Raises:
      TypeError: an argument is not a number.
      ValueError: the factor is known and not above 0, or not finite.

    Memory: a number for each pair of columns, where it is applied.

    Source: Chen et al. 2023, "Extending context window of large language models via position interpolation", eq. 4.

    Example:
      >>> from jattn.positions import frequencies, linear
      >>> frequencies(2, scaling=linear(4.0)).inv.tolist()
      [0.25]
    """
    _above("linear", 0, factor=factor)
    return _scaling(_linear, factor=factor)


def _linear(f: Frequencies, factor: Any) -> Frequencies:
    return f._replace(inv=_times(f.inv, 1 / _wide(factor)) if _traced(factor) else f.inv / factor)


def ntk(factor: Factor) -> Scaling:
    """NTK-aware: the base grows so that the slowest pair turns `factor` times more slowly and the fastest as before.

        inv_i · factor^(−2 i / (R − 2)),    which is base → base · factor^(R / (R − 2))

    Args:
      factor: > 0, possibly traced.

    Returns:
      A scaling. A single pair, which is the fastest, stays as it is.

    Raises:
      TypeError: an argument is not a number.
      ValueError: the factor is known and not above 0, or not finite.

    Memory: a number for each pair of columns, where it is applied.

    Source: Peng et al. 2023, "YaRN", section 3.1, definition 1.

    Example:
      >>> from jattn.positions import frequencies, ntk
      >>> frequencies(4, base=100.0, scaling=ntk(2.0)).inv.tolist()
      [1.0, 0.05]
    """
    _above("ntk", 0, factor=factor)
    return _scaling(_ntk, factor=factor)


def _ntk(f: Frequencies, factor: Any) -> Frequencies:
    share: Any = np.arange(f.inv.shape[0]) / max(f.inv.shape[0] - 1, 1)
    if _traced(factor):
        factor = _wide(factor)
        share = jnp.asarray(share, factor.dtype)
    return f._replace(inv=_times(f.inv, factor**-share))


def dynamic_ntk(factor: float, *, original: int, length: int | Integer[Array, ""]) -> Scaling:
    """NTK-aware, by as much as the sequence has outgrown the length of training: nothing changes before it has.

        ntk(factor · L / original − (factor − 1)),    L = max(length, original)

    Args:
      factor: ≥ 1.
      original: tokens, the length of training.
      length: tokens, that of the sequence now. A Python int keeps frequencies exact; a traced one has them in float32.

    Returns:
      A scaling. Keys that were rotated for a shorter sequence do not fit a longer one: rotate them again.

    Raises:
      TypeError: an argument is not a number.
      ValueError: the factor or `original` is known and not above 0, or not finite.

    Memory: a number for each pair of columns, where it is applied.

    Source: Peng et al. 2023, "YaRN", section 3.3.

    Example:
      >>> from jattn.positions import dynamic_ntk, frequencies
      >>> frequencies(4, base=100.0, scaling=dynamic_ntk(2.0, original=8, length=8)).inv.tolist()
      [1.0, 0.1]
    """
    _above("dynamic_ntk", 0, factor=factor, original=original)
    number("dynamic_ntk", "length", length)
    return _scaling(_dynamic_ntk, factor=factor, original=original, length=length)


def _dynamic_ntk(f: Frequencies, factor: float, original: int, length: Any) -> Frequencies:
    beyond = jnp.maximum(length - original, 0).astype(jnp.float32) if _traced(length) else max(length - original, 0)
    return _ntk(f, 1.0 + beyond * (factor / original))


def yarn(
    factor: float,
    *,
    original: int,
    fast: float = 32.0,
    slow: float = 1.0,
    truncate: bool = True,
    attention_factor: float | None = None,
) -> Scaling:
    """YaRN: pairs that turn often within the length of training stay, those that hardly turn are interpolated.

        inv_i · (1 − r_i) + inv_i / factor · r_i

    where r rises from 0 to 1 between the pairs that turn `fast` and `slow` times.

    Args:
      factor: ≥ 1, how many times longer the sequence becomes.
      original: tokens, the length of training.
      fast, slow: turns within `original` tokens, fast > slow.
      truncate: round the two ends of the ramp outward to whole pairs, as YaRN does and gpt-oss does not.
      attention_factor: what rotated columns are multiplied by; 1 + 0.1 ln factor if None.

    Returns:
      A scaling.

    Raises:
      TypeError: an argument is not a number.
      ValueError: the factor, `original` or `slow` is not above 0, or `fast` not above `slow`; or one is not finite.

    Memory: a number for each pair of columns, where it is applied.

    Source: Peng et al. 2023, "YaRN", sections 3.2 and 3.4.

    Example:
      >>> from jattn.positions import frequencies, yarn
      >>> f = frequencies(8, scaling=yarn(4.0, original=64))
      >>> f.inv.round(4).tolist(), round(f.factor, 4)
      ([1.0, 0.0625, 0.0025, 0.0002], 1.1386)
    """
    _above("yarn", 0, factor=factor, original=original, slow=slow)
    _above("yarn", slow, fast=fast)
    number("yarn", "attention_factor", 1.0 if attention_factor is None else attention_factor)
    options = {"original": original, "fast": fast, "slow": slow, "truncate": truncate}
    return _scaling(_yarn, factor=factor, **options, attention_factor=attention_factor)


def _yarn(
    f: Frequencies, factor: float, original: int, fast: float, slow: float, truncate: bool, attention_factor: Any
) -> Frequencies:
    pairs = f.inv.shape[0]
    first, last = (pairs * math.log(original / (n * 2 * math.pi)) / math.log(f.base) for n in (fast, slow))
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * pairs - 1)
    ramp = np.clip((np.arange(pairs) - first) / (last - first if last != first else 0.001), 0, 1)
    if attention_factor is None:
        attention_factor = 1.0 + 0.1 * math.log(max(factor, 1.0))
    return f._replace(inv=_times(f.inv, 1 - ramp + ramp / factor), factor=f.factor * attention_factor)


def llama3(factor: float, *, original: int, low: float = 1.0, high: float = 4.0) -> Scaling:
    """Llama 3: pairs that turn `high` times or more within the length of training stay, below `low` are interpolated.

        inv_i · (r_i + (1 − r_i) / factor),    r_i = clip((original · inv_i / 2π − low) / (high − low), 0, 1)

    Args:
      factor: ≥ 1.
      original: tokens, the length of training.
      low, high: turns within `original` tokens, high > low.

    Returns:
      A scaling.

    Raises:
      TypeError: an argument is not a number.
      ValueError: the factor or `original` is not above 0, or `high` not above `low`; or one is not finite.

    Memory: a number for each pair of columns, where it is applied.

    Source: Grattafiori et al. 2024, "The Llama 3 herd of models", section 3.2; the formula as released for Llama 3.1.

    Example:
      >>> from jattn.positions import frequencies, llama3
      >>> frequencies(6, scaling=llama3(8.0, original=64)).inv.round(5).tolist()
      [1.0, 0.0058, 0.00027]
    """
    _above("llama3", 0, factor=factor, original=original)
    _above("llama3", number("llama3", "low", low), high=high)
    return _scaling(_llama3, factor=factor, original=original, low=low, high=high)


def _llama3(f: Frequencies, factor: float, original: int, low: float, high: float) -> Frequencies:
    keep = ((f.inv * (original / (2 * math.pi)) - low) / (high - low)).clip(0, 1)
    return f._replace(inv=f.inv * (keep + (1 - keep) / factor))


def longrope(
    short: Iterable[float],
    long: Iterable[float],
    *,
    factor: float,
    original: int,
    length: int | Integer[Array, ""],
    attention_factor: float | None = None,
) -> Scaling:
    """LongRoPE: each pair has a divisor of its own, found by search: one for sequences within training, one beyond.

        inv_i / (long_i if length > original else short_i)

    Args:
      short, long: R/2 divisors.
      factor: ≥ 1, the longest sequence over `original`.
      original: tokens, the length of training.
      length: tokens, that of the sequence now. A Python int keeps frequencies exact; a traced one has them in float32.
      attention_factor: √(1 + ln factor / ln original) if None.

    Returns:
      A scaling. Keys that were rotated for a shorter sequence do not fit a longer one: rotate them again.

    Raises:
      TypeError: an argument is not a number.
      ValueError: the factor or a divisor is not above 0, or `original` not above 1; or one is not finite. Where it is
        used: there are not R/2 divisors.

    Memory: a number for each pair of columns, where it is applied.

    Source: Ding et al. 2024, "LongRoPE", section 3; Abdin et al. 2024, "Phi-3", section 2.

    Example:
      >>> from jattn.positions import frequencies, longrope
      >>> made = longrope((1.0, 1.0), (2.0, 4.0), factor=4.0, original=16, length=17)
      >>> frequencies(4, base=100.0, scaling=made).inv.tolist()
      [0.5, 0.025]
    """
    short, long = tuple(short), tuple(long)
    for name, divisors in (("short", short), ("long", long)):
        for divisor in divisors:
            _above("longrope", 0, **{name: divisor})
    _above("longrope", 0, factor=factor)
    _above("longrope", 1, original=original)
    number("longrope", "length", length)
    number("longrope", "attention_factor", 1.0 if attention_factor is None else attention_factor)
    options = {"short": short, "long": long, "factor": factor, "original": original}
    return _scaling(_longrope, **options, length=length, attention_factor=attention_factor)


def _longrope(
    f: Frequencies, short: Any, long: Any, factor: float, original: int, length: Any, attention_factor: Any
) -> Frequencies:
    pairs = f.inv.shape[0]
    for name, x in (("short", short), ("long", long)):
        if len(x) != pairs:
            remedy = "Give a divisor to each pair of columns that turns: half the width."
            _errors.fail(ValueError, "longrope", f"{name} must hold {pairs} numbers", remedy, **{name: f"of {len(x)}"})
    if _traced(length):
        slower: Any = jnp.where(length > original, *(jnp.asarray(1 / np.array(x), jnp.float32) for x in (long, short)))
    else:
        slower = 1 / np.array(long if length > original else short)
    if attention_factor is None:
        attention_factor = math.sqrt(1 + math.log(max(factor, 1.0)) / math.log(original))
    return f._replace(inv=_times(f.inv, slower), factor=f.factor * attention_factor)


def _traced(x: Any) -> bool:
    return isinstance(x, jax.Array)


def _wide(x: jax.Array) -> jax.Array:
    """In float32 or wider: in the dtype of an integer a share of a power would be 0 or 1."""
    return x.astype(_errors.wide(x))


def _times(inv: Any, slower: Any) -> Any:
    """A product in NumPy's float64 where both are known, else in the dtype of the one that is a jax array."""
    dtype = next((x.dtype for x in (slower, inv) if _traced(x)), None)
    return inv * slower if dtype is None else jnp.asarray(inv, dtype) * jnp.asarray(slower, dtype)
