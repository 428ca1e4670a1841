"""Mistakes planted one at a time into a copy of the library, each of which `make test` must notice.

    python tests/planted_mistakes.py                     plant every one
    python tests/planted_mistakes.py --list              the mistakes, and who should notice
    python tests/planted_mistakes.py "a sign" softmax    those whose names contain one of these words
    python tests/planted_mistakes.py --jobs 4

A mistake replaces one piece of text by another. It is noticed if a test of the quick suite, of those named beside it,
fails on the copy and passes on the original. A text that is not there exactly once, or a copy that cannot even be
imported, is a mistake of this table and told as such. It needs jattn[dev]: some tests compare with other libraries.

Some tests plant mistakes themselves, and are not repeated here: those of test_benchmarks, test_door (the order of
scale, score, bias, mask and sink, in numbers), test_errata, test_floors, test_flow (each line of a report),
test_jax_names, test_masks (a verdict), test_memory, test_messages, test_page, test_parity (what recipes leave out, in
other recipes), test_public, test_sharding and test_visits. What they name is planted here into the code.
"""

import argparse
import concurrent.futures
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PARTS = "jattn", "tests", "demos", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile"


class Mistake(NamedTuple):
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


TABLE: list[Mistake] = []


def plant(name: str, file: str, old: str, new: str, *tests: str) -> None:
    TABLE.append(Mistake(name, file, old, new, tuple(f"tests/test_{test}" for test in tests)))


# Where several mistakes are seen.
ORDER = "door.py::test_scale_then_score_then_bias_then_mask_then_sink"
SECOND = "door.py::test_in_float64_it_is_the_definition_to_second_order[all]"
OF_LSE = "door.py::test_the_gradient_of_lse_is_the_weights"
DROPS = "tiles.py::test_each_derivative_drops_the_same_weights"
IN_TILES = "sweeps.py::test_every_size_has_an_answer_in_tiles_too[{'T': 17, 'S': 33}]"
BAD = "door.py::test_what_is_bad_and_met_makes_the_row_nan_whatever_the_tiles"
EXACT = "engine_details.py::test_a_verdict_is_exact_of_tiles_that_begin_and_end_anywhere"
BOOLEANS = "masks.py::test_a_mask_is_the_booleans_it_stands_for"
FORMULA = "scores.py::test_a_score_is_its_formula_of_scalars_and_of_a_tile"
TAIL = "softmax.py::test_the_tail_of_a_saturated_row_is_right_in_every_entry"
HEADS = "batch.py::test_each_head_is_the_definition"
JAX_NN = "batch.py::test_it_is_what_jax_nn_gives_and_so_is_its_gradient"
SCALING = "positions.py::test_a_scaling_is_what_its_paper_says"
SCHEME = "sharding.py::test_a_scheme_equals_one_device"
LAYER = "parity.py::test_each_layer_is_reproduced_with_the_gradient_of_its_input"


def transforms(name: str) -> str:
    return f"transforms.py::test_every_transform_is_that_of_the_definition[{name}]"


# fmt: off
# The order of scale, score, bias, mask and sink: what test_door and the parity of models name.

TILES, FOLD, BACK = "jattn/tiles.py", "jattn/blockwise.py", "jattn/derivatives.py"
SCORED = "ell = plan.score(tile.captured, ell if met is None else jnp.where(met, ell, 0), t, s, keys_first)"
BIASED = "ell = ell + (bias if met is None else jnp.where(met, bias, 0))"
MASKED = "return jnp.where(met, jnp.where(bad, jnp.nan, ell), -jnp.inf)"
START = "m = jnp.broadcast_to(sink.astype(plan.dtype), (plan.q_tile,))"
A_BIAS = "(0 if tile.bias is None else tile.bias.T if keys_first else tile.bias)"
plant("the score before the scale", TILES, SCORED,
      "ell = tile.scale * plan.score(tile.captured, ell / tile.scale, t, s, keys_first)", ORDER)
plant("the bias before the score", TILES, "ell = products\n", f"ell = products + {A_BIAS}\n", ORDER)
plant("the bias scaled", TILES, BIASED, BIASED.replace("(bias", "tile.scale * (bias"), ORDER)
plant("the mask before the score", TILES, MASKED, "masked = jnp.where(met, products, -jnp.inf)\n"
      f"    return plan.score(tile.captured, masked, t, s, keys_first) + {A_BIAS}", ORDER)
plant("no mask", TILES, MASKED, "return jnp.where(bad, jnp.nan, ell)", ORDER)
plant("the sink scaled", FOLD, START, START.replace("plan.dtype)", "plan.dtype) * x.scale", 1), ORDER)
plant("the sink through the score", FOLD, START, "sink = jnp.full((1, 1), sink, plan.dtype)\n            "
      "m = plan.score(x.captured, sink, jnp.zeros(1, jnp.int32), jnp.zeros(1, jnp.int32), False)[0]\n            "
      "m = jnp.broadcast_to(m, (plan.q_tile,))", ORDER)
plant("no sink", FOLD, "carry = m, (m > -jnp.inf).astype(plan.dtype)", "carry = m, jnp.zeros_like(m)", ORDER)
plant("lse without its sink", FOLD, "jnp.where(met_none, -jnp.inf, m), jnp.log(total))",
      "jnp.where(met_none, -jnp.inf, m), jnp.log(total - jnp.exp(sink.astype(plan.dtype) - finite_or_zero(m))))", ORDER)

# Tiles and the forward fold.

plant("the queries not scaled", TILES, "return q * tile.scale", "return q * (0 * tile.scale + 1)",
      "door.py::test_the_scale_is_one_over_the_root_of_the_width_unless_given")
plant("one over the width for a scale, not its root", "jattn/door.py", "x.q.shape[1] ** -0.5", "1 / x.q.shape[1]",
      "door.py::test_the_scale_is_one_over_the_root_of_the_width_unless_given")
plant("a bias reshaped where it should be transposed, keys first", TILES, "bias = tile.bias.T if keys_first",
      "bias = tile.bias.reshape(tile.bias.shape[::-1]) if keys_first", OF_LSE, SECOND)
plant("a key that pads the last tile is met", TILES, "(k.numbers < plan.S)[None, :]", "(k.numbers <= plan.S)[None, :]",
      IN_TILES)
plant("the last tile, padded, taken for full", TILES, "(k.first + (plan.k_tile - 1) < plan.S)", "(k.first < plan.S)",
      IN_TILES)
plant("what is kept by dropout not made up for", TILES, "jnp.where(kept, 1 / (1 - rate), 0)", "jnp.where(kept, 1, 0)",
      "tiles.py::test_dropout_drops_its_share_and_makes_up_for_it")
plant("dropout that depends on the tile", TILES, "a = i * (plan.q_tile // CELL) +", "a = i * (plan.k_tile // CELL) +",
      "tiles.py::test_dropout_has_one_pattern_whatever_the_tile")
plant("one tile for all pairs", TILES, "return q, even(S, max(most, most * most // q // 16 * 16))", "return T, S",
      "tiles.py::test_tiles_are_even_and_pad_little")
plant("weighted values not shrunk to a new maximum", FOLD, "acc = acc * shrink[:, None] +", "acc = acc +",
      IN_TILES)
plant("the sum not shrunk to a new maximum", FOLD, "total * shrink + p.sum(1), acc", "total + p.sum(1), acc",
      IN_TILES)
plant("lse of what dropout kept alone", FOLD, "total * shrink + p.sum(1), acc",
      "total * shrink + (p if kept is None else p * kept).sum(1), acc",
      "tiles.py::test_dropout_does_not_change_the_mean_nor_lse")
plant("a NaN of a small call hidden", FOLD, "m = ell.max(1) + bad(ell, 0, 0)", "m = jnp.nanmax(ell, 1)", BAD)
plant("an infinity of a whole tile hidden", FOLD, "m_new += bad(products, i, j)", "pass", BAD)
plant("the constant summand of lse alone", "jattn/door.py", "return out.astype(v.dtype), m + log_sum",
      "return out.astype(v.dtype), m", SECOND)
plant("the largest of a row by subtraction", "jattn/_numerics.py", "jnp.where(x >= top, 0, x - top)", "x - top",
      "door.py::test_huge_logits_choose_their_key_jitted_and_not")
plant("a sign in the derivative of a difference", "jattn/_numerics.py", "x, top: -top_dot)", "x, top: top_dot)",
      "cache.py::test_gradients_through_a_cache_are_those_of_attention")

# Derivatives.

plant("a sign: plus ⟨dout, out⟩", BACK, "dlse - jnp.sum(dout * saved.out, 1)", "dlse + jnp.sum(dout * saved.out, 1)",
      SECOND)
plant("a dropped cotangent of lse", BACK, "dlse - jnp.sum(dout * saved.out, 1)", "-jnp.sum(dout * saved.out, 1)",
      OF_LSE)
plant("a missing scale in dq", BACK, "None if there.q is None else dq * w.tile.scale",
      "None if there.q is None else dq", SECOND)
plant("a missing scale in dk", BACK, "0, ds @ scaled) if masked else ds @ scaled", "0, ds @ q) if masked else ds @ q",
      SECOND)
plant("the scale twice in its own cotangent", BACK, "jnp.sum(dq * q.T)", "jnp.sum(dq * scaled.T)", SECOND)
plant("no dropout in the cotangents of logits", BACK, "w.drop(w.v @ dout.T)", "w.v @ dout.T", DROPS)
plant("no dropout in the cotangent of v", BACK, "w.without_bad(w.drop(p) @ dout)", "w.without_bad(p @ dout)", DROPS)
plant("no dropout in the tangent of v", BACK, "_turned_dot(v_dot, w.drop(p))", "_turned_dot(v_dot, p)", DROPS)
plant("no cotangent of the sink", BACK, "dsink = saved.sink_weight() * g", "dsink = 0 * g", SECOND)
plant("a sign in the cotangent of the sink", BACK, "dsink = saved.sink_weight() * g",
      "dsink = -saved.sink_weight() * g", SECOND)
plant("no tangent of the sink", BACK, "lse_dot += saved.sink_weight() * _each(x_dot.sink, plan)", "lse_dot += 0",
      SECOND)
plant("a sign in the tangent of out", BACK, "a - lse_dot[:, None] * saved.out", "a + lse_dot[:, None] * saved.out",
      SECOND)
plant("weights of the backward pass that do not sum to one", BACK, "below(logits, self.m) - self.log_sum)",
      "below(logits, self.m))", SECOND)
plant("a tangent of v that passes a NaN which is hidden", BACK, "jnp.where(self.v_bad[:, None], 0, dv)", "dv",
      "engine_details.py::test_a_tangent_that_is_nan_behind_a_mask_reaches_nothing")
plant("parts of the next row of tiles laid over this one", BACK, '{"q": i * plan.q_tile,',
      '{"q": (i + 1) * plan.q_tile,', transforms("bias"))
plant("positions of keys for those of queries, keys first", "jattn/door.py",
      "t, s = (t[None, :], s[:, None]) if keys_first", "t, s = (s[:, None], t[None, :]) if keys_first",
      transforms("distance bias"))

# Batches and heads.

BATCH = "jattn/batch.py"
plant("query heads dealt round instead of in groups", BATCH, "query.reshape(B, T, K, N // K, H)",
      "query.reshape(B, T, N // K, K, H).swapaxes(2, 3)", HEADS)
plant("sinks of the heads dealt round", BATCH, "_Mapped(x.reshape(K, N // K)", "_Mapped(x.reshape(N // K, K).T",
      "batch.py::test_a_sink_for_all_heads_or_one_a_head", HEADS)
plant("lengths of queries for those of keys", BATCH, "masks.lengths(*filled)", "masks.lengths(*filled[::-1])",
      f"{JAX_NN}[lengths of both]")
plant("the sides of a window turned about", BATCH, "return masks.window(left, right)",
      "return masks.window(right, left)", f"{JAX_NN}[window of two]")
plant("heads of a group dealt round", "jattn/heads/_multi.py", "(lambda a: a.reshape(Hkv, H // Hkv, *a.shape[1:])),",
      "(lambda a: a.reshape(H // Hkv, Hkv, *a.shape[1:]).swapaxes(0, 1)),",
      "heads.py::test_multi_head_is_attention_in_every_head[grouped]")
plant("a scale beside a learned temperature", "jattn/heads/_multi.py", 'options = {"scale": 1.0} | options', "pass",
      "heads.py::test_multi_head_is_attention_in_every_head[L2 norm of q and k]")

# Masks.

PLACES, ROWS = "jattn/masks/_places.py", "jattn/masks/_rows.py"
plant("a window one key short on its left", PLACES, "near &= t - s <= self.left", "near &= t - s < self.left", BOOLEANS)
plant("a window one key short on its right", PLACES, "near &= s - t <= self.right", "near &= s - t < self.right",
      BOOLEANS)
plant("causal without the token itself", PLACES, "q.positions[:, None] >= k.", "q.positions[:, None] > k.", BOOLEANS)
plant("all of a tile one row too early", PLACES, "q.lowest >= k.highest\n", "q.lowest >= k.highest - 1\n",
      f"{EXACT}[causal]")
plant("none of a tile where one pair meets", PLACES, "return q.highest >= k.lowest,", "return q.highest > k.lowest,",
      f"{EXACT}[causal]")
plant("a tile too many", PLACES, "return q.highest >= k.lowest,", "return q.highest >= k.lowest - 1,",
      f"{EXACT}[causal]")
plant("a window that rules out the tile at its end", PLACES, "may, must = q.lowest - k.highest <= self.left,",
      "may, must = q.lowest - k.highest < self.left,", f"{EXACT}[window]")
plant("a dilated mask that misses the farthest", PLACES, "self.stride >= nearest", "self.stride > nearest",
      f"{EXACT}[dilated]")
plant("blocks counted without the corner", PLACES, "- sums[b, c] + sums[a, c]", "- sums[b, c]",
      f"{EXACT}[blocks at random]")
plant("bits of ids that all rows have", ROWS, "jnp.bitwise_or.reduce", "jnp.bitwise_and.reduce", f"{EXACT}[segments]",
      f"{EXACT}[segments in no order]")
plant("one row more than the length", ROWS, "rows.numbers < n", "rows.numbers <= n", BOOLEANS)
plant("none and all confused by ~", "jattn/masks/_algebra.py", "return must ^ True, may ^ True",
      "return may ^ True, must ^ True", "masks.py::test_a_verdict_on_a_rectangle_is_never_wrong")

# Scores.

KINDS, RELATIVE = "jattn/scores/_kinds.py", "jattn/scores/_relative.py"
plant("a sign of ALiBi", KINDS, "return score - jnp.asarray(self.slope", "return score + jnp.asarray(self.slope",
      FORMULA)
plant("a soft cap without its factor", KINDS, "return cap * jnp.tanh(score / cap)", "return jnp.tanh(score / cap)",
      FORMULA)
plant("scores composed from the last", KINDS, "for f in self.scores:", "for f in self.scores[::-1]:", FORMULA,
      "scores.py::test_functions_compose_with_scores")
plant("a far bucket that begins one too late", RELATIVE, "(far >= b)", "(far > b)",
      "scores.py::test_the_buckets_are_those_of_t5")
plant("the own token among those after it", RELATIVE, "n * (distance > 0)", "n * (distance >= 0)",
      "scores.py::test_the_buckets_are_those_of_t5")
plant("before and after confused", RELATIVE, "jnp.clip(distance, -m, m) + m", "m - jnp.clip(distance, -m, m)", FORMULA)

# Softmax and partials.

SOFTMAX, PARTIALS = "jattn/_softmax.py", "jattn/partials.py"
plant("tangents not measured from the top", SOFTMAX, "m = _tangents_from_top(x, _from_top(x)[1], x_dot)", "m = x_dot",
      TAIL)
plant("a derivative of log-softmax without its mean", SOFTMAX, "0, m - mean)", "0, m)", TAIL)
plant("a merge that is not shifted by the maximum", PARTIALS,
      "top = jax.lax.stop_gradient(jnp.where(top == -jnp.inf, 0, top))", "top = jnp.zeros_like(top)",
      "engine_details.py::test_partials_of_any_size_merge_without_an_overflow")
plant("lse of two partials without keys", PARTIALS, "(lse_a == -jnp.inf) & (lse_b == -jnp.inf), -jnp.inf,",
      "(lse_a == -jnp.inf) & (lse_b == -jnp.inf), 0,",
      "partials.py::test_a_partial_of_no_keys_has_no_derivative_and_may_hold_anything")
plant("shares of a merge exchanged", PARTIALS, "_share(w_a / total, out_a, lse_a)", "_share(w_b / total, out_a, lse_a)",
      "partials.py::test_a_sink_is_a_partial_without_a_value")

# The walk over a batch.

MAPPED = "jattn/_walk/_mapped.py"
SIZES = "walk.py::test_mapped_it_is_the_mapped_function_in_groups_of_any_size"
ONCE = "sharding_programs.py::test_what_is_one_for_all_examples_has_its_gradient_summed_once"
AXES = "walk.py::test_some_operands_are_mapped_over_any_axis_and_the_others_shared"
plant("a sum over examples of which one is taken", MAPPED, "return [y.sum(0) for", "return [y[0] for",
      "transforms.py::test_nested_maps_with_heads_that_share_their_keys")
plant("sums of the groups, the last alone", MAPPED, "return [a + b for a, b in zip(total, more, strict=True)], ys",
      "return more, ys", AXES)
plant("another axis mapped than was asked", MAPPED, "jnp.moveaxis(x, d, 0) if m", "jnp.moveaxis(x, 0, d) if m",
      AXES)
plant("the first examples again for those that are left over", MAPPED, "[x[-rest:] for x in examples]",
      "[x[:rest] for x in examples]", f"{SIZES}[7-3-asked0]")
plant("levels of a map of maps taken for one", MAPPED, "tuple(level + 1 for level in more)",
      "tuple(level for level in more)",
      "sharding_programs.py::test_sharded_batch_and_heads_need_no_collective")
plant("the sum over devices left out", "jattn/_walk/_shards.py",
      'return jax.lax.psum(y, "devices", axis_index_groups=list(groups.values()))', "return y",
      ONCE)

# Values.

VALUES = "jattn/_values.py"
plant("functions of other numbers taken for equal", VALUES, "(*_parameter(a.val), a.aval) if", "(a.aval,) if",
      "scores.py::test_another_score_is_another_program")
plant("functions of other parameters taken for equal", VALUES, "(e.primitive, _parameter(dict(e.params)),",
      "(e.primitive,", "scores.py::test_another_score_is_another_program")
plant("no function equal to another", VALUES, "isinstance(other, Closed) and self._signature == other._signature",
      "self is other", "scores.py::test_a_score_that_is_written_anew_is_not_compiled_anew")

# Positions.

TURNING, SCALINGS = "jattn/positions/_turning.py", "jattn/positions/_scalings.py"
plant("pairs turned backwards", TURNING, "jnp.concatenate([a * cos - b * sin, b * cos + a * sin], 1)",
      "jnp.concatenate([a * cos + b * sin, b * cos - a * sin], 1)",
      "positions.py::test_a_pair_is_multiplied_by_a_complex_number")
plant("the factor of YaRN left out", SCALINGS, "attention_factor = 1.0 + 0.1 *", "attention_factor = 1.0 + 0.0 *",
      SCALING)
plant("the pairs that Llama 3 keeps interpolated", SCALINGS, "f.inv * (keep + (1 - keep) / factor)",
      "f.inv * (1 - keep + keep / factor)", SCALING)
plant("linear scaling that turns faster", SCALINGS, "f.inv / factor)", "f.inv * factor)", SCALING)
plant("a negative position turned forwards", "jattn/positions/_angles.py", "jnp.where(positions < 0, -angle, angle)",
      "angle", "positions.py::test_angles_are_exact_at_every_position_in_float32")

# The cache.

APPEND, CACHED = "jattn/cache/_append.py", "jattn/cache/_attention.py"
PREFILL = "cache.py::test_prefill_and_a_scan_of_steps"
BYTES = "cache.py::test_bytes_stay_within_their_bound"
GONE = "cache.py::test_a_ring_says_when_a_window_is_gone"
plant("the next token where the last one stands", APPEND, "jnp.where(n > 0, last + 1, room.next)",
      "jnp.where(n > 0, last, room.next)", PREFILL)
plant("a ring one slot too small", "jattn/cache/_buffers.py", "least=1) - 1\n", "least=1) - 2\n", GONE)
plant("a token that a ring let go not missed", "jattn/cache/_buffers.py", "NEVER + self.window) - self.window",
      "NEVER + self.window) - self.window + 1", GONE)
plant("bytes of keys times the scale of values", "jattn/cache/_fold.py", "ell * kv.k_scale.", "ell * kv.v_scale.",
      BYTES)
plant("bytes of values times the scale of keys", "jattn/cache/_fold.py", "p * kv.v_scale.", "p * kv.k_scale.", BYTES)
plant("a slot that nothing was written to is met", "jattn/cache/_fold.py", "numbers < length", "numbers <= length",
      PREFILL)
plant("queries of short rows placed as those of long ones", CACHED, "(T if n is None else n))[:, None]", "T)[:, None]",
      GONE, "cache.py::test_every_step_equals_the_whole_sequence_in_float32")
plant("a sink that joins prefix and own tokens", CACHED, "sink=None,  # it joins the denominator once", "sink=x.sink,",
      "cache.py::test_a_cascade_is_attention_over_prefix_and_own_tokens")

# Sharding.

RING, BLOCKS, SCHEMES = "jattn/sharding/_ring.py", "jattn/sharding/_blocks.py", "jattn/sharding/_schemes.py"
NO_MASK = f"{SCHEME}[ring-8-4-contiguous-none-none]"
ALIBI = f"{SCHEME}[ring-2-4-striped-causal-alibi]"
ONE_OF_TREE = f"{SCHEME}[tree-2-2-zigzag-prefix-alibi]"
plant("one hop too few", BLOCKS, "every = tuple(range(size))", "every = tuple(range(size - 1))", NO_MASK)
plant("a sink on every device", RING, "jnp.full_like(x, -jnp.inf) if i == self.sink else x", "x", ALIBI)
plant("positions that do not travel with their keys", "jattn/sharding/_exchange.py",
      "*([] if b.k_positions is None else [places.k_positions])", "", ALIBI)
plant("partials of a tree merged without lse", SCHEMES, "w = jnp.exp(lse - top)", "w = jnp.ones_like(lse)", ONE_OF_TREE)
plant("the sink of a tree on every device", SCHEMES, "total = total + jnp.exp(lowest - top)",
      "total = total + jax.lax.axis_size(axis_name) * jnp.exp(lowest - top)", ONE_OF_TREE)
plant("cotangents of keys that do not go home", RING, "iter(self.way.home(gathered))", "iter(gathered)", ALIBI)
plant("two partials of a ring joined without their sums", RING,
      "jnp.exp(below(m_a, top) + log_a), jnp.exp(below(m_b, top) + log_b)",
      "jnp.exp(below(m_a, top)), jnp.exp(below(m_b, top))", ALIBI)

# The study of gradients.

plant("a sign of the pull on queries", "jattn/flow/closed.py", "-ds[..., None] * k[None]", "ds[..., None] * k[None]",
      "flow.py::test_the_pull_of_each_key_has_the_sign_that_theory_says")
plant("a pull without its scale", "jattn/flow/closed.py", "ds = jnp.asarray(c, ds.dtype) * ds", "pass",
      "flow.py::test_the_pulls_sum_to_the_gradient_of_any_loss")
plant("a balance that is a sum", "jattn/flow/measures.py", "return a.T @ a - b.T @ b", "return a.T @ a + b.T @ b",
      "flow.py::test_gradient_descent_moves_the_balance_exactly_as_predicted_and_others_do_not")
plant("layers multiplied from the last", "jattn/flow/measures.py", "((1 - r) * A + r * eye) @ reached",
      "reached @ ((1 - r) * A + r * eye)", "flow.py::test_rollout_multiplies_the_layers")

# What recipes of real models leave out: test_parity names these.

ZOO = "demos/model_zoo.py"
plant("Llama 3 whose rotary is not scaled", ZOO,
      'mask=causal(), turn=partial(rotary, base=r["rope_theta"], scaling=longer))',
      'mask=causal(), turn=partial(rotary, base=r["rope_theta"]))', f"{LAYER}[Llama 3]")
plant("Qwen 3 without the weights of its norm", ZOO, 'p = separate(w, c, q_norm=w["q_norm.weight"], k_norm',
      'p = separate(w, c, q_norm=0 * w["q_norm.weight"] + 1, k_norm', f"{LAYER}[Qwen 3]")
plant("gpt-oss without its sinks", ZOO, ', each={"sink": w["sinks"]},', ",", f"{LAYER}[gpt-oss]")
plant("an encoder that sees one way", ZOO, "mask=causal() if one_way else None)", "mask=causal())",
      f"{LAYER}[T5]")

# What tests of the code itself name.

plant("a mask that knows the door", "jattn/masks/_rows.py", "import jax\nimport jax.numpy as jnp\n",
      "import jax\nimport jax.numpy as jnp\n\nimport jattn.door  # noqa\n", "floors.py::test_every_arrow_points_down")
plant("a private name of jax elsewhere", TILES, "import numpy as np\n",
      "import numpy as np\nfrom jax._src import core  # noqa\n", "jax_names.py::test_no_other_file_uses_such_names")
plant("a refusal that no table knows", "jattn/door.py", "    if T == 0 or S == 0:",
      "    if T < 0:\n        _errors.fail(ValueError, 'attend', 'a must b', 'Do c.', q=q)\n    if T == 0 or S == 0:",
      "messages.py::test_each_place_that_refuses_is_in_the_table")
# fmt: on


def copied(mistake: Mistake | None, folder: Path) -> None:
    """What the tests need, with the mistake in its place."""
    for part in PARTS:
        if (ROOT / part).is_dir():
            shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__", "out"))
        else:
            shutil.copy(ROOT / part, folder)
    if mistake is None:
        return
    text = (folder / mistake.file).read_text("utf-8")
    if text.count(mistake.old) != 1 or mistake.old == mistake.new:
        raise SystemExit(f"{mistake.name}: {text.count(mistake.old)} times in {mistake.file}: {mistake.old!r}")
    (folder / mistake.file).write_text(text.replace(mistake.old, mistake.new), "utf-8")


# What Python says of a text that makes no sense: such a mistake would be noticed by anything.
SENSELESS = "NameError", "SyntaxError", "ImportError", "AttributeError", "UnboundLocalError"


# Every run draws the same examples.
ALIKE = {"CI": "1", "PYTHONDONTWRITEBYTECODE": "1"}


class Result(NamedTuple):
    status: int
    failed: list[str]
    """Each test that failed, and by what."""
    passed: int
    output: str
    seconds: float


def run(mistake: Mistake | None, tests: list[str], *options: str) -> Result:
    """Runs tests on a copy."""
    with tempfile.TemporaryDirectory() as name:
        folder, begun = Path(name), time.monotonic()
        copied(mistake, folder)
        report = folder / "report.xml"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junitxml={report}", *options, *tests],
            cwd=folder, env={**os.environ, **ALIKE, "PYTHONPATH": str(folder)},
            capture_output=True, text=True, encoding="utf-8", check=False,
        )  # fmt: skip
        cases = list(xml.etree.ElementTree.parse(report).iter("testcase")) if report.exists() else []
    failed, passed = [], 0
    for case in cases:
        bad = [child for child in case if child.tag in ("failure", "error")]
        failed += [f"{case.get('name')}: {kind_of(child.get('message', ''))}" for child in bad]
        passed += not len(list(case))
    return Result(done.returncode, failed, passed, done.stdout + done.stderr, time.monotonic() - begun)


def kind_of(message: str) -> str:
    """The exception of a failure, as pytest begins to tell it."""
    return "AssertionError" if message.startswith("assert") else re.split(r"[:\n]", message)[0].strip()


def judged(mistake: Mistake) -> tuple[bool, str]:
    """Whether a mistake is noticed, and the line that says so."""
    result = run(mistake, list(mistake.tests), "-x", "--tb=short")
    by = result.failed[0] if result.failed else ""
    noticed = result.status == 1 and bool(by) and not by.endswith(SENSELESS)
    if noticed:
        said = f"noticed by {by}"
    elif result.status == 0:
        said = "NOT NOTICED"
    else:
        said = f"BADLY PLANTED: pytest ends with {result.status}, {by or result.output[-2000:]}"
    return noticed, f"{mistake.name}: {said} ({result.seconds:.0f} s)"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="words of the names of mistakes; all of them if none")
    parser.add_argument("--list", action="store_true", help="print the mistakes and who should notice")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="how many copies are tested at once")
    args = parser.parse_args()
    chosen = [m for m in TABLE if not args.names or any(name in m.name for name in args.names)]
    if not chosen:
        parser.error(f"no mistake has a name that contains {' or '.join(args.names)}")
    if len({m.name for m in TABLE}) < len(TABLE):
        parser.error("two mistakes have one name")
    if args.list:
        for m in chosen:
            print(f"{m.name}\n    in {m.file}, for {', '.join(m.tests)}")
        return 0
    control = run(None, sorted({test for m in chosen for test in m.tests}))
    print(
        f"without a mistake: {control.passed} passed, {len(control.failed)} failed ({control.seconds:.0f} s)",
        flush=True,
    )
    if control.status or control.failed:
        print(control.output[-5000:])
        return 1
    noticed = 0
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        for seen, line in pool.map(judged, chosen):
            noticed += seen
            print(line, flush=True)
    print(f"{len(chosen)} mistakes planted, {noticed} noticed")
    return int(noticed < len(chosen))


if __name__ == "__main__":
    sys.exit(main())
