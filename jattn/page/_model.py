"""A small language model on a page, which the page computes: its next word, its gradient, a step of descent."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from jattn import _errors, _picture_inputs
from jattn.page._document import Part

_WHOLE = MappingProxyType({"embed": "VE", "positions": "NE", "unembed": "EV", "norm": "E", "layers": ""})
_LAYER = MappingProxyType({
    "norm": "E", "q": "EHD", "k": "EHD", "v": "EHW", "out": "HWE", "mlp_norm": "E", "mlp_in": "EM", "mlp_out": "ME",
})  # fmt: skip
"""The axes of each array, a letter each; W is Dv."""
_OPTIONAL = ("norm", "mlp_norm", "mlp_in", "mlp_out")


def model(
    params: Mapping[str, object], words: Sequence[str], *, examples: Sequence[tuple[str, str]], rate: float = 0.01
) -> Part:
    """A small causal language model that the page itself computes, in float64, from the words that a reader types.

        x_t = embed[word_t] + positions[t]
        x ← x + Σ_h softmax(c q_h k_hᵀ) v_h out_h        q, k, v of norm(x); c = 1/√D; t attends s ≤ t
        x ← x + gelu(norm(x) mlp_in) mlp_out
        logits = norm(x_T) unembed,    L = −log softmax(logits)[next word]

    Beside the logits stand the weights of each head, the share ‖p_s v_s out_h‖ of each key in what the head writes and
    the loss without it; the pull of each key on q; and steps of gradient descent, on all weights or on one q, which can
    be undone. A layer is a dict as `heads.init` makes it, and `heads.multi_head` computes the same.

    Args:
      params: embed [V, E], positions [N, E], layers, unembed [E, V] and, if there is one, norm [E]; kept in float32.
        Each of layers: q, k [E, H, D], v [E, H, Dv], out [H, Dv, E] and, as far as there are any, norm [E], mlp_in
        [E, M], mlp_out [M, E], mlp_norm [E]. A norm is the weight of `heads.rms_norm`; gelu is that of jax.nn.
      words: V names without spaces, all different.
      examples: (sentence, next word) pairs that the reader may choose; the page begins with the first.
      rate: the learning rate at the start, from 0.001 to 10.

    Returns:
      A part for `html` or `write`.

    Raises:
      TypeError, ValueError: an array is missing, unknown or does not fit the others; a name has a space or stands
        twice; an example has a word that is none of them, or more words than there are positions; the rate is out of
        its range.

    Memory: 5.4 bytes a parameter on the page; the browser keeps 8 for each step that can be undone, up to 50.

    Source: Vaswani et al. 2017; Zhang and Sennrich 2019 for the norm; Hendrycks and Gimpel 2016 for gelu; Kobayashi et
      al. 2020, arXiv:2004.10102, for the norms of what is weighted.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from jattn import heads, page
      >>> layer = heads.init(jax.random.key(0), 4, heads=2)
      >>> params = {"embed": jnp.eye(3, 4), "positions": jnp.eye(5, 4), "layers": [layer], "unembed": jnp.eye(4, 3)}
      >>> part = page.model(params, ["the", "river", "bank"], examples=[("the river", "bank")])
      >>> part.data["examples"]
      [{'words': [0, 1], 'next': 2}]
    """
    caller = "model"
    sizes: dict[str, int] = {}
    arrays = _arrays(caller, "params", params, _WHOLE, sizes)
    layers = params["layers"]
    if not isinstance(layers, (list, tuple)) or not layers:
        got = {"params['layers']": "empty" if layers in ([], ()) else f"of type {type(layers).__name__}"}
        _errors.fail(TypeError, caller, "params['layers'] must be a list of layers", "Give at least one.", **got)
    for i, layer in enumerate(layers):
        for axis in "DWM":  # a layer has widths of its own
            sizes.pop(axis, None)
        found = _arrays(caller, f"params['layers'][{i}]", layer, _LAYER, sizes)
        arrays |= {f"{i}.{name}": x for name, x in found.items()}
    listed = _picture_inputs.names(caller, "words", words, "V", sizes["V"])
    if len(set(listed)) < len(listed) or any(word.split() != [word] for word in listed):
        remedy = "A sentence is taken apart at its spaces, and each word looked up."
        got = {"words": "with one that is empty, has a space, or stands twice"}
        _errors.fail(ValueError, caller, "words must be different, and without spaces", remedy, **got)
    rate = _errors.amount(caller, "rate", rate)
    if not 0.001 <= rate <= 10:
        remedy = "The reader may change it on the page."
        _errors.fail(ValueError, caller, "rate must be from 0.001 to 10", remedy, rate=f"{rate:g}")
    return Part("model", {
        "words": listed, "rate": float(rate), "layers": len(layers), "heads": sizes["H"],
        "examples": _examples(caller, examples, listed, sizes["N"]),
        "arrays": [[name, list(x.shape)] for name, x in arrays.items()],
        "numbers": np.concatenate([x.ravel() for x in arrays.values()]),
    })  # fmt: skip


def _arrays(
    caller: str, place: str, held: Any, wanted: Mapping[str, str], sizes: dict[str, int]
) -> dict[str, np.ndarray]:
    """The arrays of a mapping, each of the axes that it should have; the length of an axis is that of its first."""
    if not isinstance(held, Mapping):
        got = {place: f"of type {type(held).__name__}"}
        _errors.fail(TypeError, caller, f"{place} must map names to arrays", "See the documentation for them.", **got)
    missing = [name for name in wanted if name not in held and name not in _OPTIONAL]
    if ("mlp_in" in held) != ("mlp_out" in held):
        missing += ["mlp_out" if "mlp_in" in held else "mlp_in"]
    for what, names in (("no", missing), ("also", [str(name) for name in held if name not in wanted])):
        if names:
            remedy = (
                f"It takes {', '.join(wanted)}; of these {', '.join(n for n in wanted if n in _OPTIONAL)} may lack."
            )
            must = f"{place} must hold the arrays of the model"
            _errors.fail(ValueError, caller, must, remedy, **{place: f"with {what} {', '.join(names)}"})
    made = {}
    for name, axes in wanted.items():
        if name not in held or not axes:
            continue
        spelled = "[" + ", ".join("Dv" if axis == "W" else axis for axis in axes) + "]"
        shape = tuple(sizes.get(axis) for axis in axes)
        x = _picture_inputs.numbers(caller, f"{place}[{name!r}]", held[name], (None,) * len(axes), spelled)
        if any(n not in (None, m) for n, m in zip(shape, x.shape, strict=True)) or 0 in x.shape:
            want = "[" + ", ".join("any" if n is None else str(n) for n in shape) + "]"
            must = f"{place}[{name!r}] must have the shape {spelled}"
            remedy = f"With the arrays before it that is {want}, and no axis is empty."
            _errors.fail(ValueError, caller, must, remedy, **{name: x})
        sizes.update(zip(axes, x.shape, strict=True))
        made[name] = _picture_inputs.single(caller, f"{place}[{name!r}]", x)
    return made


def _examples(caller: str, given: Any, words: list[str], N: int) -> list[dict[str, Any]]:
    """Each sentence as numbers of words, with that of its next word."""
    made = []
    for i, pair in enumerate(given if isinstance(given, (list, tuple)) else ()):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not all(isinstance(x, str) for x in pair):
            got = {f"examples[{i}]": f"of type {type(pair).__name__}"}
            must = f"examples[{i}] must be (sentence, next word)"
            _errors.fail(TypeError, caller, must, 'As in ("near the river", "bank").', **got)
        said, follows = pair[0].split(), pair[1]
        unknown = [word for word in (*said, follows) if word not in words]
        if unknown:
            must, got = f"examples[{i}] must be made of words", {f"examples[{i}]": f"with {unknown[0]!r}"}
            _errors.fail(ValueError, caller, must, "Each must stand in words, letter by letter.", **got)
        if not 1 <= len(said) <= N:
            must, got = f"examples[{i}] must have from 1 to N words", {f"examples[{i}]": f"of {len(said)}", "N": str(N)}
            _errors.fail(ValueError, caller, must, "N is the number of rows of positions.", **got)
        made.append({"words": [words.index(word) for word in said], "next": words.index(follows)})
    if not made:
        remedy = "The page begins with the first."
        _errors.fail(ValueError, caller, "examples must hold at least one pair", remedy, examples="with none")
    return made
