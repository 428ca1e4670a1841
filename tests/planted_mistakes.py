"""Mistakes planted one at a time into a copy of the library, each of which `make test` must notice.

    python tests/planted_mistakes.py                     plant every one
    python tests/planted_mistakes.py --list              the mistakes, and the tests that should notice
    python tests/planted_mistakes.py "a sign" softmax    those whose names contain one of these words
    python tests/planted_mistakes.py --jobs 4

A mistake replaces one piece of text by another. It is noticed if a test of the quick suite, of those named beside it,
fails on the copy and passes on the original. A text that is not there exactly once, or a copy that cannot even be
imported, is a mistake of this table and reported as such. It needs jattn[dev]: some tests compare with other libraries.

Some tests plant mistakes themselves, and are not repeated here: those of test_benchmarks, test_one_head (the order
of scale, score, bias, mask and sink, in numbers), test_errata, test_import_layers, test_flow (each line of a report),
test_jax_names, test_masks (a block state), test_memory, test_messages, test_page, test_parity (what recipes leave
out, in other recipes), test_public, test_sharding and test_visits. What they name is planted here into the code.
"""

import argparse
import ast
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
PARTS = (
    "jattn", "tests", "demos", "docs", "benchmarks", "conda", "pyproject.toml", "README.md", "CHANGELOG.md", "Makefile",
)  # fmt: skip


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
ORDER = "one_head.py::test_scale_then_score_then_bias_then_mask_then_sink"
SECOND = "one_head.py::test_in_float64_it_is_the_definition_to_second_order[all]"
OF_LSE = "one_head.py::test_the_gradient_of_lse_is_the_weights"
DROPS = "tiles.py::test_each_derivative_drops_the_same_weights"
IN_TILES = "sweeps.py::test_every_size_has_an_answer_in_tiles_too[{'T': 17, 'S': 33}]"
EXAMPLE = "finite.py::test_one_example_that_is_not_finite_changes_no_other"
DOCUMENT = "finite.py::test_what_one_document_holds_reaches_no_other"
NONFINITE = "one_head.py::test_what_is_not_finite_and_attended_makes_the_row_nan_whatever_the_tiles"
EXACT = "engine_details.py::test_the_block_state_is_exact_of_tiles_that_begin_and_end_anywhere"
NEVER_WRONG = "masks.py::test_the_block_state_of_a_rectangle_is_never_wrong"
BOOLEANS = "masks.py::test_a_mask_is_the_booleans_it_stands_for"
ANY_ROWS = "masks.py::test_any_rows_of_a_mask_are_those_of_the_whole"
FORMULA = "scores.py::test_a_score_is_its_formula_of_scalars_and_of_a_tile"
TAIL = "softmax.py::test_the_tail_of_a_saturated_row_is_right_in_every_entry"
HEADS = "many_heads.py::test_each_head_is_the_definition"
JAX_NN = "many_heads.py::test_it_is_what_jax_nn_gives_and_so_is_its_gradient"
SCALING = "positions.py::test_a_scaling_is_what_its_paper_says"
SCHEME = "sharding.py::test_a_scheme_equals_one_device"
LAYER = "parity.py::test_each_layer_is_reproduced_with_the_gradient_of_its_input"


def transforms(name: str) -> str:
    return f"transforms.py::test_every_transform_is_that_of_the_definition[{name}]"


def one_place(path: str) -> str:
    return f"engine.py::test_what_is_planted_in_the_one_place_reaches_every_order[{path}]"


# fmt: off
# The order of scale, score, bias, mask and sink: what test_one_head and the parity of models name.

TILE, FORWARD, TANGENT = "jattn/engine/tile.py", "jattn/engine/forward.py", "jattn/engine/tangent.py"
BACKWARD, SCHEDULE, ATTEND = "jattn/engine/backward.py", "jattn/engine/schedule.py", "jattn/engine/attend.py"
PARTIALS = "jattn/partials.py"
MASKED = "return jnp.where(allowed, logits, excluded)"
START = "return SoftmaxState.start(sink,"
plant("the score before the scale", TILE, "else partial(plan.score, tile.captured)",
      "else lambda x, t, s: tile.scale * plan.score(tile.captured, x / tile.scale, t, s)", ORDER)
plant("the bias before the score", TILE, "logits = products\n",
      "logits, bias = (products if bias is None else products + bias), None\n", ORDER)
plant("the bias scaled", TILE, "return logits_from_products(products, score, tile.bias,",
      "return logits_from_products(products, score, None if tile.bias is None else tile.scale * tile.bias,", ORDER)
plant("the mask before the score", TILE, MASKED, "found = jnp.where(allowed, products, -jnp.inf)\n"
      "    found = found if score is None else score(found, q_positions, k_positions)\n"
      "    return found if bias is None else found + bias", ORDER)
plant("no mask", TILE, MASKED, "return logits", ORDER)
plant("the sink scaled", FORWARD, START,
      "return SoftmaxState.start(None if sink is None else sink * x.scale.astype(sink.dtype),", ORDER)
plant("the sink through the score", FORWARD, START, "sink = jnp.full((1, 1), sink, plan.dtype)\n    "
      "sink = plan.score(x.captured, sink, *[jnp.zeros((1, 1), jnp.int32)] * 2)[0]\n    " + START, ORDER)
HELD = "memory.py::test_without_a_loop_two_tiles_are_held_at_a_time"
plant("no tile that waits for another", SCHEDULE, "made[-tuning.TILES_AT_ONCE]", "()", HELD)
SHORT_ROWS = "tiles.py::test_few_tiles_in_short_rows_are_visited_without_a_loop"
plant("a row of many tiles without a loop", SCHEDULE, "in_rows.max() <= longest", "True", SHORT_ROWS)
plant("many tiles without a loop", SCHEDULE, "in_rows.sum() <= self.most_written_out", "True", SHORT_ROWS)
SHARED_KERNELS = "tiles.py::test_tiles_that_are_visited_without_a_loop_share_their_kernels"
plant("numbers of tiles that XLA knows", SCHEDULE, "step(state, numbers[i], numbers[j],", "step(state, jnp.int32(i), "
      "jnp.int32(j),", SHARED_KERNELS)
plant("a maximum computed again at every tile", PARTIALS, "return jax.tree.map(lambda a: a / one, self)",
      "return self", SHARED_KERNELS)
plant("positions that do not wait", TILE, 'axes["q"]._replace(positions=after(earlier, axes["q"].positions))',
      'axes["q"]', HELD)
plant("cotangents that do not wait", BACKWARD, "after(first, dout)", "dout", HELD)
plant("no sink", PARTIALS, "return cls(m, (m > -jnp.inf).astype(dtype),", "return cls(m, jnp.zeros_like(m),", ORDER)
plant("lse without its sink", FORWARD,
      "out, m, log_sum = (before_keys(plan, x, 0) if state is None else state).finish(exact=exact)",
      "out, m, log_sum = state.finish()\n            "
      "log_sum = jnp.log(state.total - jnp.exp(x.sink.astype(plan.dtype) - m))", ORDER)

# What is measured of each query, and the choice of keys.

PER_QUERY = "jattn/engine/per_query.py"
MEASURED = "per_query.py::test_in_float64_they_are_the_definition_to_second_order"
plant("the entropy from lse and the mean logit", "jattn/per_query.py", "entropy, lse = log_sum - deviation,",
      "entropy, lse = (m + log_sum) - (m + deviation),",
      "per_query.py::test_the_entropy_does_not_know_of_a_common_shift")
plant("the weights counted as constants of the mean logit", PER_QUERY, " * (1 + _finite_below(logits, self.m))", "",
      MEASURED)
plant("log_sum counted as a constant of the mean logit", "jattn/per_query.py",
      "deviation *= jnp.exp(jax.lax.stop_gradient(log_sum) - log_sum)", "deviation *= 1", MEASURED)
plant("equal logits in the order of the visits", PER_QUERY, "dimension=1, num_keys=2", "dimension=1, num_keys=1",
      "per_query.py::test_the_best_keys_are_those_of_a_stable_sort[5]")
plant("a best key without the gradient of its bias", PER_QUERY, "_entries(x.bias, rows, at)",
      "jax.lax.stop_gradient(_entries(x.bias, rows, at))",
      "per_query.py::test_each_example_has_groups_a_mask_and_a_score_of_its_own")
plant("QK-clip by the share, not by its root", "demos/_qk_training.py",
      "jnp.sqrt(jnp.where(max_logit >= threshold, threshold / above, 1))",
      "jnp.where(max_logit >= threshold, threshold / above, 1)",
      "qk_clip.py::test_the_clip_brings_each_head_to_the_threshold_and_leaves_the_others")
plant("a block that is chosen twice counted twice", "jattn/masks/_chosen.py",
      "distinct = jnp.where(again, -1, ordered)", "distinct = ordered", EXACT + "[chosen blocks]")
plant("a block of queries too few", "jattn/masks/_chosen.py", "q.highest // self.q_size + 1",
      "q.highest // self.q_size", EXACT + "[chosen blocks]")

# Tiles and the forward pass.

plant("the queries not scaled", TILE, "scaled = before_transpose(lambda q: q * scale, q)",
      "scaled = q * (0 * scale + 1)",
      "one_head.py::test_the_scale_is_one_over_the_root_of_the_width_unless_given")
plant("one over the width for a scale, not its root", ATTEND, "x.q.shape[1] ** -0.5", "1 / x.q.shape[1]",
      "one_head.py::test_the_scale_is_one_over_the_root_of_the_width_unless_given")
plant("a bias reshaped where it should be transposed", TILE, "(a.T if transposed and",
      "(a.reshape(a.shape[::-1]) if transposed and", OF_LSE, SECOND)
plant("a key that pads the last tile is allowed", TILE, "tile.k_axis.numbers < plan.S", "tile.k_axis.numbers <= plan.S",
      IN_TILES)
plant("small tiles for masks that fill large ones", SCHEDULE, "fewer <= tuning.SMALL_TILE_SHARE * visited",
      "fewer > tuning.SMALL_TILE_SHARE * visited", "tiles.py::test_a_narrow_mask_has_small_tiles_on_a_cpu")
plant("the last tile, padded, taken for full", SCHEDULE, "whole = k.first + (plan.k_tile - 1) < plan.S",
      "whole = k.first < plan.S", IN_TILES)
plant("masked tiles taken from the start of the list", SCHEDULE, "(0, len(visits.lists[0]))", "(0, 0)",
      "tiles.py::test_each_tile_that_is_not_empty_is_visited_once_and_no_other")
plant("what is kept by dropout not made up for", TILE, "jnp.where(kept, 1 / (1 - rate), 0)", "jnp.where(kept, 1, 0)",
      "tiles.py::test_dropout_drops_its_share_and_makes_up_for_it")
plant("dropout that depends on the tile", TILE, "axis.numbers.ravel()[0] // DROPOUT_CELL +",
      "axis.numbers.ravel()[0] // plan.k_tile +", "tiles.py::test_dropout_has_one_pattern_whatever_the_tile")
plant("one tile for all pairs", "jattn/engine/tuning.py",
      "return q, _even(S, max(most, most * most // q // TILE_MULTIPLE * TILE_MULTIPLE))", "return T, S",
      "tiles.py::test_tiles_are_even_and_pad_little")
plant("weighted values not shrunk to a new maximum", PARTIALS, "added(acc * wide, more)",
      "added(acc, more)", IN_TILES)
plant("a maximum of the logits that is differentiated", PARTIALS, "m = jax.lax.stop_gradient(jnp.maximum(self.m,",
      "m = (jnp.maximum(self.m,", "cache.py::test_a_gradient_does_not_ask_which_logit_was_the_largest")
plant("the sum not shrunk to a new maximum", PARTIALS, "self.total * shrink + p.sum(**keys), acc",
      "self.total + p.sum(**keys), acc", IN_TILES)
plant("dropout drawn in the dtype of the arithmetic", TILE, "1 - rate.astype(jnp.float32)", "1 - rate",
      "one_head.py::test_dropout_drops_the_same_pairs_in_every_dtype")
plant("what dropout keeps divided in the dtype of the rate", "jattn/engine/attend.py", "(rate).astype(dtype)", "(rate)",
      "one_head.py::test_what_dropout_keeps_is_divided_in_the_dtype_of_the_arithmetic_whatever_that_of_the_rate")
plant("counts that wrap", "jattn/_errors.py", "np.clip(held, -MOST, MOST).astype(np.int32)", "held.astype(np.int32)",
      "masks.py::test_a_count_or_a_number_of_a_row_beyond_int32_is_the_last_one_and_does_not_wrap")
plant("lse of what dropout kept alone", FORWARD,
      "return state.absorb(logits, values, nan_rows(products), transposed=transposed, exact=exact, plain=plain)",
      "factors = tiles.dropout_factors(plan, tile)\n    return state.absorb(logits if factors is None else logits + "
      "jnp.log(factors), lambda p: p @ tile.v, nan_rows(products))",
      "tiles.py::test_dropout_does_not_change_the_mean_nor_lse")
plant("a NaN of a small call hidden", FORWARD, "m = logits.max(1) + nan_rows",
      "m = jnp.nanmax(logits, 1)", NONFINITE)
plant("every example given the bias of the first", "jattn/engine/batching/vmap.py", "(x, numbers, starts).reshape",
      "(x, [0 * n for n in numbers], starts).reshape",
      "engine_details.py::test_a_bias_that_differs_between_examples_is_read_where_it_lies")
plant("whatever it holds, found finite", "jattn/engine/plan.py",
      "finite = (largest < jnp.finfo(plan.dtype).max / 16).all()",
      "finite = (largest < jnp.finfo(plan.dtype).max / 16).any()", EXAMPLE)
plant("a query without a key given the mean of its first tiles", PARTIALS,
      "empty = self.m <= excluded(self.m.dtype) if exact else", "empty =",
      "finite.py::test_each_form_is_the_definition_and_so_are_its_derivatives[any pairs]")
plant("an infinity of a full tile hidden", PARTIALS, "m += nan_rows", "pass", NONFINITE)
plant("a key of a full tile that is not finite hidden", FORWARD, "entry(q, i) + entry(k, j)", "entry(q, i)", NONFINITE)
plant("a query of a full tile that is not finite hidden", FORWARD, "entry(q, i) + entry(k, j)", "entry(k, j)",
      NONFINITE)
plant("the numbers of a tile that lies elsewhere", "jattn/engine/tile.py",
      "numbers = start + jnp.arange", "numbers = jnp.arange", IN_TILES)
plant("the constant summand of lse alone", ATTEND, "return out.astype(v.dtype), m + log_sum",
      "return out.astype(v.dtype), m", SECOND)
plant("the largest of a row by subtraction", "jattn/_numerics.py", "jnp.where(x >= top, 0, x - top)", "x - top",
      "one_head.py::test_huge_logits_choose_their_key_jitted_and_not")
plant("a sign in the derivative of a difference", "jattn/_numerics.py", "x, top: -top_dot)", "x, top: top_dot)",
      "finite.py::test_the_derivative_of_a_difference_is_that_of_the_subtraction_in_both")

# One function makes a logit: a path that makes its own drops what is added to that function.

plant("a call of one tile that makes its own logits", FORWARD,
      "logits = tiles.tile_logits(plan, tile, products, None, transposed=False)\n    if x.mask",
      "logits = products\n    if x.mask", one_place("one tile"))
plant("a chain that hides a pair by a logit of 0", FORWARD, "jnp.where(allowed, above, excluded(plan.dtype))",
      "jnp.where(allowed, above, 0)", "short_masked.py::test_a_chain_with_a_mask_is_the_definition[causal]")
plant("a chain in which a query without a key has the mean", FORWARD, " * nonempty.astype(plan.dtype)", "",
      "short_masked.py::test_a_chain_with_a_mask_is_the_definition[beyond a window]")
plant("a chain with a mask of what is not finite", FORWARD, "masked = self.mask_in_chain and self.plan.finite",
      "masked = self.mask_in_chain", "short_masked.py::test_a_nan_or_an_infinity_behind_the_mask_reaches_nothing")
plant("a chain with a mask where lse is read", ATTEND, "mask_in_chain=not lse_is_read and", "mask_in_chain=",
      "short_masked.py::test_the_value_of_short_heads_holds_no_logits[by_heads]")
plant("no chain with a mask", "jattn/one_head.py", '"lse_is_read": return_lse', '"lse_is_read": True',
      "short_masked.py::test_the_value_of_short_heads_holds_no_logits[by_lengths]")
plant("a full tile that makes its own logits", FORWARD,
      "logits = tiles.tile_logits(plan, tile, products, None, transposed=transposed)\n    values",
      "logits = products\n    values", one_place("tiles"))
plant("a cache that makes its own logits", "jattn/cache/_decode.py",
      "logits = tile.logits_from_products(\n        products.reshape(G, T, C), score, None, row.allowed[None], "
      "nonfinite,\n        row.q_positions[None, :, None], row.k_positions[None, None],\n    )",
      "logits = jnp.where(row.allowed[None], jnp.where(nonfinite, jnp.nan, products.reshape(G, T, C)), -jnp.inf)",
      one_place("decode"))
plant("a backward pass that makes its own logits", BACKWARD,
      "return tiles.tile_logits(plan, tile, products, w.allowed, transposed=True, nonfinite=w.nonfinite)",
      "found = products if plan.score is None else plan.score(tile.captured, products, *tile.positions)\n"
      "        found = found if bias is None else found + bias\n"
      "        return found if w.allowed is None else jnp.where(w.allowed, found, -jnp.inf)",
      one_place("tiles"), one_place("causal tiles"))

# Derivatives.

DLSE = "dlse - row_sums(plan, dout * residuals.out)"
plant("a sign: plus ⟨dout, out⟩", BACKWARD, DLSE, DLSE.replace("-", "+"), SECOND)
plant("rows summed with all others at once", BACKWARD, "if plan.tile_given is None:", "if True:",
      "determinism.py::test_in_given_tiles_a_row_does_not_depend_on_its_padding")
plant("the trace of a function kept, whatever it closes over by now", "jattn/_values.py",
      "jax.make_jaxpr(lambda *xs: f(*xs))(", "jax.make_jaxpr(f)(",
      "scores.py::test_one_function_may_mean_another_score_at_each_call",
      "scores.py::test_what_one_function_closes_over_has_the_gradient_of_each_call")
plant("a masked NaN that is found where axes are moved", "jattn/_errors.py",
      "if config.jax_debug_nans else", "if False else",
      "modes.py::test_debug_nans_passes_masked_nans_of_many_heads")
plant("numbers as the pairs of a mask", "jattn/masks/_algebra.py", "found.dtype == jnp.bool_ and", "",
      "messages.py::test_each_refusal_is_word_for_word")
plant("positions of many heads that wrap", "jattn/arguments/heads.py", "_errors.in_int32(caller, name, x)\n",
      "\n", "messages.py::test_each_refusal_is_word_for_word")
plant("a dropped cotangent of lse", BACKWARD, DLSE, DLSE.replace("dlse ", ""), OF_LSE)
plant("a missing scale in dq", BACKWARD, "(dq if scale_last else dq * scale)", "dq", SECOND)
plant("a missing scale in dk", BACKWARD, "else tiles.dot(ds, before_transpose(lambda q: q * scale, q))",
      "else tiles.dot(ds, q)", SECOND)
plant("the scale twice in its own cotangent", BACKWARD, "jnp.sum(dq * transpose(q))",
      "jnp.sum(dq * (q * scale).T)", SECOND)
plant("no dropout in the cotangents of logits", BACKWARD, "w.drop(tiles.dot(w.v, transpose(dout)))",
      "tiles.dot(w.v, transpose(dout))", DROPS)
plant("no dropout in the cotangent of v", BACKWARD, "w.at_finite_values(tiles.dot(w.drop(p), dout))",
      "w.at_finite_values(tiles.dot(p, dout))", DROPS)
plant("no dropout in the tangent of v", TANGENT, "weighted(w.drop(p), w.at_finite_values(tile_dot.v))",
      "weighted(p, w.at_finite_values(tile_dot.v))", DROPS)
plant("in a row that is NaN, weights of what it may not attend", TANGENT,
      "p if finite or self.allowed is None else jnp.where(self.allowed, p, 0)", "p",
      f"{DOCUMENT}[gradient]")
plant("the cotangent of a row that is NaN, beyond what it may attend", BACKWARD, "residuals.live(plan)[:, None]",
      "residuals.nonempty[:, None]", f"{DOCUMENT}[gradient]")
plant("the tangent of a row that is NaN passes cotangents on", TANGENT,
      "nan_where(nonempty & ~live, jnp.where(live, out_dot, 0))",
      "jnp.where(nonempty, out_dot, 0) + nan_where(nonempty & ~live, jnp.zeros_like(out_dot))",
      f"{DOCUMENT}[gradient of jvp]")
plant("a NaN is of no size", "jattn/_numerics.py", "jnp.sum(jnp.square(wide))", "jnp.nansum(jnp.square(wide))",
      "finite.py::test_finite_is_no_nan_no_infinity_and_no_product_that_overflows[few]")
plant("no cotangent of the sink", BACKWARD, "dsink = residuals.sink_weight(plan) * g", "dsink = 0 * g", SECOND)
plant("a sign in the cotangent of the sink", BACKWARD, "dsink = residuals.sink_weight(plan) * g",
      "dsink = -residuals.sink_weight(plan) * g", SECOND)
plant("no tangent of the sink", TANGENT, "lse_dot += residuals.sink_weight(plan) * per_query(plan, x_dot.sink)",
      "lse_dot += 0", SECOND)
plant("a sign in the tangent of out", TANGENT, "a - lse_dot[:, None] * jnp.where(live,",
      "a + lse_dot[:, None] * jnp.where(live,", SECOND)
plant("weights of the backward pass that do not sum to one", TANGENT, "(logits, self.m) - self.log_sum)",
      "(logits, self.m))", SECOND)
plant("a hidden key that is not finite among those of a gradient", TANGENT, "tile = here.zero(tile)", "pass",
      "one_head.py::test_a_nan_or_an_infinity_behind_a_mask_reaches_nothing")
plant("a cotangent through a logit that is not finite", BACKWARD, "transposed=True, nonfinite=w.nonfinite)",
      "transposed=True)", "finite.py::test_a_query_or_key_that_is_not_finite_has_the_gradients_of_the_definition")
PADS = "finite.py::test_rows_that_pad_the_last_tile_of_queries_attend_nothing"
plant("a row that pads attends what is not finite", "jattn/engine/tangent.py", "plan.finite or plan.q_rows == plan.T",
      "plan.finite or plan.q_rows != plan.T", f"{PADS}[tiles]")
plant("a row that pads attends what is not finite in a kernel", "jattn/engine/kernels/passes.py",
      "dataclasses.replace(call.plan, finite=finite), tile)", "dataclasses.replace(call.plan, finite=True), tile)",
      f"{PADS}[kernels of the GPU]")
PLACES = "finite.py::test_a_score_is_asked_of_no_place_where_no_row_stands"
plant("a score asked of places beyond the last row", TILE, "if at is None and reaches_beyond(length, n, size):",
      "if False:", f"{PLACES}[tiles]")
plant("a score asked of places beyond the last row in a kernel", "jattn/engine/kernels/layout.py",
      "within(axis.positions, length) if beyond else", "axis.positions if beyond else", f"{PLACES}[kernels of the GPU]")
plant("a score asked of distances that no query has from a key", "jattn/engine/kernels/distances.py",
      "every if lengths is None else", "every if True else", f"{PLACES}[kernels of the TPU]")
AT_ZERO = "finite.py::test_a_score_may_have_no_derivative_at_zero"
plant("a score asked of the zeros that pad the queries", TANGENT, "plan.score is None or plan.q_rows == plan.T else",
      "True else", f"{AT_ZERO}[tiles]")
plant("a score asked of the zeros that pad the queries in a kernel", "jattn/engine/kernels/layout.py",
      "array=repeat_last(q.array, plan.T)", "array=q.array", f"{AT_ZERO}[kernels of the GPU]")
plant("a score asked of 0 where a score is hidden", TILE, "logits, HIDDEN)", "logits, 0)", f"{AT_ZERO}[tiles]")
plant("the queries of a tile that are not finite taken for its keys", TANGENT, "here.k | here.q.T if transposed",
      "here.q | here.k.T if transposed",
      "finite.py::test_a_query_or_key_that_is_not_finite_has_the_gradients_of_the_definition")
plant("a cotangent that passes to a value that is not finite", BACKWARD,
      "parts = residuals.nonfinite.tile(plan, i, j).transposed.zero(parts)", "pass",
      "kernels.py::test_what_is_not_finite_stays_where_it_is_masked_and_spoils_the_rows_that_meet_it")
plant("one form for many pairs, and two for few", SCHEDULE, "plan.S < tuning.FEW_PAIRS", "plan.S >= tuning.FEW_PAIRS",
      "finite.py::test_a_batch_is_asked_once_and_few_queries_or_pairs_not_at_all")
plant("of a batch, the pairs of one example", "jattn/engine/batching/vmap.py", "self.size * examples", "examples",
      "finite.py::test_a_batch_is_asked_once_and_few_queries_or_pairs_not_at_all")
plant("a tangent of v that passes a NaN which is hidden", TANGENT, "jnp.where(nonfinite, 0, a)", "a",
      "engine_details.py::test_a_tangent_that_is_nan_behind_a_mask_reaches_nothing")
plant("parts of the next row of tiles laid over this one", SCHEDULE, '{"q": i * plan.q_tile,',
      '{"q": (i + 1) * plan.q_tile,', transforms("bias"))
plant("positions of keys for those of queries, transposed", TILE,
      "allowed, nonfinite, *tile.positions, excluded)",
      "allowed, nonfinite, *tile.positions[:: -1 if transposed else 1], excluded)",
      transforms("distance bias"))

# Many heads.

MANY_HEADS = "jattn/many_heads.py"
plant("query heads in turn instead of in groups", "jattn/arguments/heads.py",
      "jnp.moveaxis(split_heads(x, kv_heads, 2), 1, 3)",
      "jnp.moveaxis(split_heads(x, x.shape[2] // kv_heads, 2).swapaxes(2, 3), 1, 3)", HEADS)
plant("sinks of the heads in turn", MANY_HEADS, "_Option(heads.split_heads(sink, K), (None, 0, 0))",
      "_Option(sink.reshape(N // K, K).T, (None, 0, 0))", "many_heads.py::test_a_sink_for_all_heads_or_one_a_head",
      HEADS)
plant("lengths of queries for those of keys", MANY_HEADS, "masks.lengths(*filled)", "masks.lengths(*filled[::-1])",
      f"{JAX_NN}[lengths of both]")
plant("the sides of a window exchanged", MANY_HEADS, "return left, right", "return right, left",
      f"{JAX_NN}[window of two]")
plant("an option that is None taken for one of each head", "jattn/heads/_per_head.py",
      "per_head.get(name) is not None", "name in per_head",
      "heads.py::test_a_scale_of_each_head_stands_for_that_of_the_form_and_none_for_none")
plant("heads of a group in turn", "jattn/heads/_per_head.py", "(split_heads(q, Hkv), k, v, own)",
      "(split_heads(q, H // Hkv).swapaxes(0, 1), k, v, own)",
      "heads.py::test_multi_head_is_attention_in_every_head[grouped]")
plant("what all heads share before what each has of its own", "jattn/heads/_multi.py", "**(shared | own)",
      "**(own | shared)",
      "heads.py::test_heads_may_have_their_own_scale_and_positions_in_place_of_what_is_left_out")
plant("a scale beside a learned temperature", "jattn/heads/_multi.py", 'options = {"scale": 1.0} | options', "pass",
      "heads.py::test_multi_head_is_attention_in_every_head[L2 norm of q and k]")
plant("induction seeks the token itself", "jattn/heads/_scores.py", "masks.segments(tokens, jnp.roll(tokens, 1))",
      "masks.segments(tokens)", "head_effects.py::test_head_scores_are_means_of_the_weights_with_their_gradient")
plant("queries without such a key are counted", "jattn/heads/_scores.py", "return _mean(weight, there)",
      "return jnp.where(there, weight, 0).mean()",
      "head_effects.py::test_head_scores_under_a_mask_of_booleans_count_who_may_attend")
plant("the whole curvature for its half", "jattn/heads/_effects.py", "curvature / 2", "curvature",
      "head_effects.py::test_each_effect_is_what_it_is_called")
plant("the lens climbs", "jattn/heads/_effects.py", "written = -jnp.einsum", "written = jnp.einsum",
      "head_effects.py::test_the_backward_lens_is_what_a_step_of_gradient_descent_adds")
plant("a column sorts one way", "jattn/page/heads.js", "down = by === c ? !down : true", "down = true",
      "head_table.py::test_a_column_sorts_both_ways_and_says_so")

# Masks.

ALGEBRA, BY_POSITION, BY_ROW = (f"jattn/masks/{name}.py" for name in ("_algebra", "_by_position", "_by_row"))
plant("a window one key short on its left", BY_POSITION, "near &= t - s <= self.left", "near &= t - s < self.left",
      BOOLEANS)
plant("a window one key short on its right", BY_POSITION, "near &= s - t <= self.right", "near &= s - t < self.right",
      BOOLEANS)
plant("causal without the token itself", BY_POSITION, "return q.positions >= k.positions",
      "return q.positions > k.positions", BOOLEANS)
plant("all of a tile one row too early", BY_POSITION, "q.lowest >= k.highest)\n", "q.lowest >= k.highest - 1)\n",
      f"{EXACT}[causal]")
plant("none of a tile where one pair is allowed", BY_POSITION, "block_state(q.highest >= k.lowest,",
      "block_state(q.highest > k.lowest,", f"{EXACT}[causal]")
plant("a tile too many", BY_POSITION, "block_state(q.highest >= k.lowest,", "block_state(q.highest >= k.lowest - 1,",
      f"{EXACT}[causal]")
plant("a window that rules out the tile at its end", BY_POSITION, "some, every = q.lowest - k.highest <= self.left,",
      "some, every = q.lowest - k.highest < self.left,", f"{EXACT}[window]")
plant("a dilated mask that misses the farthest", "jattn/masks/_strided.py", "self.stride >= nearest",
      "self.stride > nearest", f"{EXACT}[dilated]")
plant("blocks counted without the corner", "jattn/masks/_blocks.py", "- sums[b, c] + sums[a, c]", "- sums[b, c]",
      f"{EXACT}[blocks at random]")
plant("bits of ids that all rows have", BY_ROW, "jnp.bitwise_or.reduce", "jnp.bitwise_and.reduce", f"{EXACT}[segments]",
      f"{EXACT}[segments in no order]")
plant("sinks that stand after the query", BY_POSITION, "return (k.positions < self.n) & (k.positions <= q.positions)",
      "return k.positions < self.n", BOOLEANS)
plant("a strided tile without the key beyond the local ones", "jattn/masks/_strided.py",
      "reach = min(self.local + 1, _errors.MOST) if", "reach = self.local if", f"{EXACT}[strided, one more]")
plant("a sequence without keys taken for one with some", BY_ROW, "& (jnp.diff(self._of_keys) > 0)",
      "| (jnp.diff(self._of_keys) > 0)", f"{EXACT}[ragged, both]")
plant("a subtree with the token after it", "jattn/masks/_tree.py", "& (self.number < self.after)",
      "& (self.number <= self.after)", "masks.py::test_a_mask_of_any_tree_allows_each_node_its_ancestors")
plant("a neighbourhood that is not shifted at the last border", "jattn/masks/_neighbourhood.py", "+ 1 - size)", "+ 1)",
      f"{EXACT}[neighbourhood]", "masks.py::test_the_block_state_of_whole_lines_of_an_image_is_exact")
plant("a line that two lines share", "jattn/masks/_neighbourhood.py", "one_line = one_line & (low == high)", "pass",
      "masks.py::test_the_block_state_of_whole_lines_of_an_image_is_exact")
plant("a dense tile without the pairs that some queries have", BY_ROW, "tiles_of(allowed.any(0)).any(1)",
      "tiles_of(allowed.all(0)).any(1)", f"{EXACT}[dense]")
plant("queries of a sequence beside its first keys", "jattn/ragged.py", "return k_starts[following] - k_starts[of_q] -",
      "return starts[following] - starts[of_q] -", "ragged.py::test_each_sequence_is_attended_as_if_it_were_alone")
plant("a page too few of a prompt whose length is a symbol", "jattn/cache/_append.py",
      "if isinstance(T, int) else most", "if isinstance(T, int) else most - 3",
      "export.py::test_a_prompt_of_any_length_is_appended_to_a_cache_and_attended_by_one_program[paged-float32]")
plant("a sequence that starts after its first row where their number is a symbol", "jattn/_numerics.py",
      "(x[jnp.minimum(middle, n - 1)] <= bounds)", "(x[jnp.minimum(middle, n - 1)] < bounds)",
      "export.py::test_a_symbolic_number_of_sequences_runs_at_every_number[7]")
plant("one row more than the length", BY_ROW, "rows.numbers < n", "rows.numbers <= n", BOOLEANS)
plant("EMPTY and FULL kept by ~", ALGEBRA, "return (FULL if isinstance(state, int) else np.int32(FULL)) - state",
      "return state", NEVER_WRONG)
plant("the block state of & that of |", ALGEBRA, '_elementwise("minimum",', '_elementwise("maximum",', NEVER_WRONG)
plant("the block state of | that of &", ALGEBRA, '_elementwise("maximum",', '_elementwise("minimum",', NEVER_WRONG)
plant("PARTIAL taken for FULL", "jattn/masks/_tiles.py", "xp.where(some, np.int32(PARTIAL),",
      "xp.where(some, np.int32(FULL),", NEVER_WRONG)
plant("rows of q for those of k in segments", BY_ROW, 'return ["q", "k"]', 'return ["k", "q"]', ANY_ROWS)
plant("leaf axes of two masks exchanged", ALGEBRA, "return self.a.leaf_axes() + self.b.leaf_axes()",
      "return self.b.leaf_axes() + self.a.leaf_axes()", ANY_ROWS)
plant("rows of q along the axis of k, transposed", ALGEBRA, "jnp.expand_dims(q.cut(x, 0), 1 - down)",
      "jnp.expand_dims(q.cut(x, 0), 1)", ANY_ROWS)
plant("a dense mask not transposed", ALGEBRA, "return x.T if transposed else x", "return x", ANY_ROWS)

# Scores.

POINTWISE, RELATIVE = "jattn/scores/_pointwise.py", "jattn/scores/_relative.py"
plant("a sign of ALiBi", POINTWISE, "return score - jnp.asarray(self.slope", "return score + jnp.asarray(self.slope",
      FORMULA)
plant("a soft cap without its factor", POINTWISE, "return cap * jnp.tanh(score / cap)", "return jnp.tanh(score / cap)",
      FORMULA)
plant("scores composed from the last", POINTWISE, "for f in self.scores:", "for f in self.scores[::-1]:", FORMULA,
      "scores.py::test_functions_compose_with_scores")
plant("a far bucket that begins one too late", RELATIVE, "(far >= b)", "(far > b)",
      "scores.py::test_the_buckets_are_those_of_t5")
plant("the own token among those after it", RELATIVE, "n * (distance > 0)", "n * (distance >= 0)",
      "scores.py::test_the_buckets_are_those_of_t5")
plant("before and after confused", RELATIVE, "jnp.clip(distance, -m, m) + m", "m - jnp.clip(distance, -m, m)", FORMULA)

# Softmax and partials.

SOFTMAX = "jattn/_softmax.py"
SHARES = "weights = [jnp.exp(below(x[1], top) + x[2]) for x in (a, b)]"
plant("tangents not measured from the top", SOFTMAX, "m = _tangents_from_top(x, _from_top(x)[1], x_dot)", "m = x_dot",
      TAIL)
plant("a derivative of log-softmax without its mean", SOFTMAX, "0, m - mean)", "0, m)", TAIL)
plant("a merge that is not shifted by the maximum", PARTIALS,
      f"m = jax.lax.stop_gradient(jnp.maximum(a[1], b[1]))\n    top = finite_or_zero(m)\n    {SHARES}",
      "m = jnp.zeros_like(a[1])\n    weights = [jnp.exp(x[1] + x[2]) for x in (a, b)]",
      "engine_details.py::test_partials_of_any_size_merge_without_an_overflow")
plant("lse of two partials without keys", PARTIALS, "return [out + more, m, jnp.log(total)]",
      "return [out + more, top, jnp.log(total)]",
      "partials.py::test_a_partial_of_no_keys_has_no_derivative_and_may_hold_anything")
plant("shares of a merge exchanged", PARTIALS, "for w, x in zip(weights, (a, b), strict=True)",
      "for w, x in zip(weights[::-1], (a, b), strict=True)", "partials.py::test_a_sink_is_a_partial_without_a_value")

# Batched calls.

VMAP = "jattn/engine/batching/vmap.py"
SIZES = "batching.py::test_mapped_it_is_the_mapped_function_in_groups_of_any_size"
ONCE = "sharding_programs.py::test_what_is_one_for_all_examples_has_its_gradient_summed_once"
AXES = "batching.py::test_some_operands_are_mapped_over_any_axis_and_the_others_shared"
plant("a sum over examples of which one is taken", VMAP, "return [wide(y).sum(0) for", "return [wide(y)[0] for",
      "transforms.py::test_nested_maps_with_heads_that_share_their_keys")
plant("a group of one example with an axis", VMAP, "alone = self.group == 1", "alone = False",
      "memory.py::test_heads_are_read_where_they_lie_one_after_the_other[grad-1-by_heads-0-0]")
plant("the axis of one example kept", "jattn/engine/batching/primitive.py", "    fun = fun.without_levels_of_one()\n",
      "    levels = levels._replace(sizes=(0,) * len(levels.sizes))\n",
      "memory.py::test_heads_are_read_where_they_lie_one_after_the_other[jvp-0-under_the_signature_of_jax_nn-1-3]")
plant("a sum over groups of examples in half precision", VMAP, "return y.astype(jnp.float32) if is_half(y) else y",
      "return y", "one_head.py::test_a_sum_over_many_examples_in_half_precision_is_rounded_once")
CAPTURED = "one_head.py::test_the_gradient_of_what_a_score_captures_in_half_precision_is_summed_in_float32"
plant("the table of a score left in half precision", "jattn/engine/score.py",
      "x.astype(dtype) if is_half(x) else x", "x", CAPTURED)
plant("what a function captured summed in half precision", BACKWARD,
      "return plan.dtype if is_half(captured) else captured.dtype", "return captured.dtype", CAPTURED)
plant("a mask that is differentiated", ATTEND, "else jax.lax.stop_gradient(x)", "else x",
      "one_head.py::test_a_mask_may_be_made_of_what_is_differentiated")
plant("a rate of dropout without a derivative", ATTEND, "return jax.lax.stop_gradient(x) / x", "return x / x",
      "one_head.py::test_the_derivative_of_a_rate_of_dropout_is_that_of_the_division")
plant("sums of the groups, the last alone", VMAP, "return [a + b for a, b in zip(total, more, strict=True)], [y",
      "return more, [y", AXES)
plant("another axis mapped than was asked", VMAP, "jnp.moveaxis(x, d, 0) if d", "jnp.moveaxis(x, 0, d) if d",
      AXES)
plant("the first examples again for those that are left over", VMAP, "[x[-rest:] for x in examples]",
      "[x[:rest] for x in examples]", f"{SIZES}[7-3-asked0]")
plant("levels of a map of maps taken for one", VMAP, "tuple(level + 1 for level in more)",
      "tuple(level for level in more)",
      "sharding_programs.py::test_sharded_batch_and_heads_need_no_collective")
plant("the sum over devices left out", "jattn/engine/batching/partition.py",
      'return jax.lax.psum(y, "devices", axis_index_groups=list(groups.values()))', "return y",
      ONCE)

# Kernels.

CHOSEN = "jattn/masks/_chosen.py"
GRID, LAYOUT, KERNEL, PASSES, PULLBACK, TPU = (
    f"jattn/engine/kernels/{x}.py" for x in ("grid", "layout", "kernel", "passes", "backward", "tpu")
)
AS_DEFINED = "kernels.py::test_the_kernels_are_the_definition_and_its_derivatives"
IN_GROUPS = "kernels.py::test_heads_that_share_their_keys_and_rows_of_their_own_lengths"
plant("in a kernel, the same tile fetched at every step", TPU, "return fetch_ref[grid.place(states.own, h, a, b)]",
      "return b * 0", f"{AS_DEFINED}[causal]")
plant("in a kernel, the last tile left out", TPU, "pl.when(b == grid.steps[2] - 1)", "pl.when(b == grid.steps[2] - 2)",
      f"{AS_DEFINED}[nothing]")
plant("in a kernel, what is masked taken for full", TPU, "pl.when((state == FULL) & finite)",
      "pl.when((state > 0) & finite)", f"{AS_DEFINED}[causal]")
SPOILED = "kernels.py::test_what_is_not_finite_stays_where_it_is_masked_and_spoils_the_rows_that_meet_it"
plant("in a kernel, a tile with a NaN taken for one without", KERNEL, "return found > 0", "return found > 3", SPOILED)
plant("in a kernel, a query that met a NaN in another tile", LAYOUT, "for row in rows:", "for row in ():",
      f"{SPOILED}[met by one document]")
plant("in a kernel, a key whose products overflow taken for one of any other", LAYOUT, "of_rows(k, bound, of_keys)",
      "of_rows(k, math.inf, of_keys)", "kernels.py::test_what_overflows_behind_a_mask_reaches_nothing[k]")
plant("in a kernel, every tile searched for what is not finite", TPU, "masked=True, finite=True",
      "masked=True, finite=False", "kernels.py::test_one_form_of_a_tile_alone_looks_for_what_is_not_finite")
plant("in a kernel, narrow operands copied to where they fill registers", TPU, "shape[-1] % LANES != 0",
      "shape[-1] < 0", "kernels.py::test_operands_lie_as_a_tpu_keeps_them[64-shape0]")
plant("in a kernel, the operands of another head", GRID, "index = index * self.sizes[level] + at[level]",
      "index = at[level]", IN_GROUPS)
plant("in a kernel, dk and dv of one head of a group alone", GRID, "self.count(self.shared) * self.inner",
      "self.inner", IN_GROUPS)
plant("in a kernel, the cotangent of a row that is NaN", PULLBACK, "searched=call.raw.mask is not None",
      "searched=False", f"{DOCUMENT}[gradient in kernels]")
plant("in a kernel, no sink", PASSES, "SoftmaxState.start(sink,", "SoftmaxState.start(None,",
      f"{AS_DEFINED}[one sink]")
plant("in a kernel, the scale twice in the cotangent of the query", PULLBACK,
      "scale_last or active.scale is not None", "scale_last", f"{AS_DEFINED}[everything]")
plant("in a kernel, the bias transposed twice", PULLBACK, "[parts.bias.T]", "[parts.bias]", f"{AS_DEFINED}[everything]")
DRAWN = "kernels.py::test_dropout_is_drawn_as_jax_random_draws_it"
plant("in a kernel, dropout drawn in cells that are transposed", "jattn/engine/kernels/threefry.py",
      "jax.lax.rem(t, cell) * cell + jax.lax.rem(s, cell)", "jax.lax.rem(s, cell) * cell + jax.lax.rem(t, cell)", DRAWN)
plant("in a kernel, a derivative that drops nothing", PASSES,
      "factors = tiles.dropout_factors(call.plan, tile, transposed=call.transposed)", "factors = None", DRAWN)
plant("in a kernel, the pattern of another head", LAYOUT, 'Leaf(words[:, 1], key.own, "")', 'Leaf(words[:, 1], (), "")',
      "kernels.py::test_what_differs_from_head_to_head_is_found_by_its_index")
plant("in a kernel, blocks that overlap", "jattn/masks/_blocks.py", "positions < first + self.size",
      "positions <= first + self.size", f"{AS_DEFINED}[blocks & causal]")
plant("in a kernel, what a mask looks up for a query taken for a key", "jattn/masks/_where.py",
      "found = {0: of_q, 1: of_k,", "found = {0: of_k, 1: of_k,",
      f"{AS_DEFINED}[where, over arrays]")
CHOSEN_BLOCKS = f"{AS_DEFINED}[chosen blocks & causal]"
plant("in a kernel, the last chosen block not compared", CHOSEN, "for c in range(n)))", "for c in range(n - 1)))",
      CHOSEN_BLOCKS)
plant("in a kernel, the first block chosen by an index that names none", CHOSEN, "chosen * self.size, -1)",
      "chosen * self.size, 0)", CHOSEN_BLOCKS)
OVER_ARRAYS = f"{AS_DEFINED}[a user's, over arrays]"
plant("in a kernel, what a score looks up taken for its tangent", LAYOUT, "tuple(tangents))[1]", "tuple(tangents))[0]",
      OVER_ARRAYS)
plant("in a kernel, no cotangent of what a score looks up for a query", PULLBACK, '"q": y[:, 0, : plan.T]',
      '"q": y[:, 0, : plan.T] * 0', OVER_ARRAYS)
plant("in a kernel, no cotangent of what a score looks up for a key", PULLBACK, 'y[:, : plan.S, 0] if leaf.role == "k"',
      'y[:, : plan.S, 0] * 0 if leaf.role == "k"', OVER_ARRAYS)

DISTANCES = "jattn/engine/kernels/distances.py"
IN_ORDER = "kernels.py::test_where_rows_stand_in_order_a_table_of_any_size_is_looked_up_by_distance"
plant("in a kernel, the distance from key to query", DISTANCES, "keys - jnp.arange(queries + keys, dtype=jnp.int32)",
      "jnp.arange(queries + keys, dtype=jnp.int32) - keys", IN_ORDER)
plant("in a kernel, the offsets of the next tile of keys", DISTANCES, "plan.k_tiles - 1 - j", "plan.k_tiles - j",
      IN_ORDER)
plant("in a kernel, diagonals that begin one entry late", DISTANCES, "entries, queries + r)",
      "entries, queries + r + 1)", IN_ORDER)
plant("in a kernel, sums of diagonals that begin one entry late", DISTANCES, "keys - r)", "keys - r + 1)",
      IN_ORDER)
plant("in a kernel, the sums of diagonals of the last tile alone", TPU, "ref[:, offsets] += part",
      "ref[:, offsets] = part", IN_ORDER)
OF_ITS_HEAD = "kernels.py::test_the_diagonals_of_a_tile_are_those_of_its_table_and_of_its_head"
plant("in a kernel, the sums of diagonals of one query tile alone", TPU, "pl.when((a == 0) & (b == 0))",
      "pl.when(b == 0)", OF_ITS_HEAD)
OF_KERNELS = "jattn/engine/kernels/score.py"
NOTHING_ELSE = "kernels.py::test_a_distance_is_looked_up_where_nothing_else_decides_and_rows_stand_in_order"
plant("a table that is looked up by distance where rows have positions", DISTANCES,
      "and x.q_positions is None and x.k_positions is None", "", f"{AS_DEFINED}[distance bias]")
plant("a table beside one that is looked up by distance", OF_KERNELS, "return None if left else", "return",
      NOTHING_ELSE)
plant("a sum of positions taken for a distance", "jattn/_values.py",
      'if difference and e.primitive.name == "sub" and set(begins)', "if difference and set(begins)", NOTHING_ELSE)
plant("a constant minus a position taken for a position", "jattn/_values.py",
      '(e.primitive.name == "add" or begin == begins[0])', "True", NOTHING_ELSE)
plant("in a kernel, what a user looks up by distance looked up by its opposite", OF_KERNELS, "-distances(*self.rows)",
      "distances(*self.rows)", IN_ORDER)
plant("in a kernel, what a mask looks up by distance looked up by its opposite", LAYOUT,
      "Leaf(-distances(", "Leaf(distances(", IN_ORDER)
plant("in a kernel, a boolean by distance taken for a number", LAYOUT, "found != 0 if leaf.boolean else", "", IN_ORDER)

X64 = "kernels.py::test_with_x64_a_kernel_of_the_tpu_holds_nothing_of_64_bits"
plant("in a kernel, rows rotated by an int64", DISTANCES, "np.int32(by)", "by", f"{X64}[a table by distance]")
plant("in a kernel, a block found by an int64", TPU, "first = np.int32(0)", "first = 0", f"{X64}[nothing]")
plant("in a kernel, a float64 that is not rounded", LAYOUT, "self.lay(self.rounded(x.scale), ROLES.scale)",
      "self.lay(x.scale, ROLES.scale)", f"{X64}[everything of float64]")
plant("in a kernel, dropout drawn in 64 bits", "jattn/engine/kernels/threefry.py", "a ^ b, np.int32(9)", "a ^ b, 9",
      f"{X64}[dropout]", "kernels_gpu.py::test_with_x64_the_kernels_are_the_loops_without")
plant("a kernel of the TPU that holds an int64", "jattn/engine/kernels/support.py",
      'itemsize > 4), "")', 'itemsize > 8), "")',
      "kernels.py::test_what_is_of_64_bits_in_a_mask_or_a_score_runs_as_loops")

plant("in kernels, mapped cotangents of what examples share summed", "jattn/engine/kernels/plans.py",
      "own.get(i, axes) for", "axes for",
      "kernels.py::test_cotangents_may_be_mapped_where_the_operands_are_not")
plant("in kernels, cotangents of as many levels as their operands", "jattn/engine/kernels/backward.py",
      "levels, xs = repeated_for_cotangents(fun, levels, operands)", "xs = list(operands)",
      "kernels_gpu.py::test_cotangents_may_be_mapped_where_the_operands_are_not")
plant("in cuDNN, mapped cotangents of what examples share summed", "jattn/engine/kernels/cudnn.py",
      "Call(fun, *repeated_for_cotangents(fun, levels, xs))", "Call(fun, levels, xs)",
      "cudnn.py::test_cotangents_may_be_mapped_where_the_operands_are_not")

GPU = "jattn/engine/kernels/gpu.py"
ON_GPU = "kernels_gpu.py::test_the_kernels_are_the_definition_and_its_derivatives"
plant("in kernels of the GPU, a cotangent of out rounded to the 16 bits of the queries",
      PULLBACK,
      "(jnp.isfinite(narrow) & exact).all()", "jnp.isfinite(narrow).all()",
      "kernels_gpu.py::test_of_16_bits_every_result_is_rounded_once_at_the_end[unrounded-bfloat16]")
plant("in kernels of the GPU, whether a cotangent fits asked of a cast there and back",
      PULLBACK,
      "jax.lax.reduce_precision(x, kind.nexp, kind.nmant)", "x.astype(dtype).astype(x.dtype)",
      "kernels_gpu.py::test_whether_a_cotangent_fits_into_16_bits_is_asked_of_its_bits[bfloat16]")
plant("in kernels of the GPU, an infinite cotangent of out read in 16 bits", PULLBACK,
      "(jnp.isfinite(narrow) & exact).all()", "exact.all()",
      "kernels_gpu.py::test_of_16_bits_an_infinite_cotangent_is_that_of_the_loops_in_values")
plant("in a kernel of the GPU, the last masked tile left out", GPU, "end = visits.visited[place]",
      "end = visits.visited[place] - 1", f"{ON_GPU}[lengths]")
plant("in a kernel of the GPU, a NaN taken for finite", GPU, "nonfinite[h] == 0", "nonfinite[h] < 2",
      "kernels_gpu.py::test_what_is_not_finite_stays_where_it_is_masked_and_spoils_the_rows_that_meet_it")
plant("in a kernel of the GPU, the part of a tile that is passed over left as it was", GPU,
      "loop(end, jnp.int32(grid.inner), nothing, carry) if kernel.of_tile else carry", "carry", f"{ON_GPU}[everything]")
plant("in a kernel of the GPU, dk and dv in the tiles of dq", PULLBACK, "by_keys = pull if same else",
      "by_keys = pull if True else", "kernels_gpu.py::test_each_kernel_has_tiles_that_its_registers_hold[32]")

plant("what heads share rounded before it is summed", "jattn/engine/plan.py",
      "return self.dtype if self.summed and short else dtype", "return dtype",
      "batching.py::test_the_cotangent_of_what_examples_share_is_summed_and_then_rounded")

SUPPORT = "jattn/engine/kernels/support.py"
SCALES = "kernels_gpu.py::test_of_16_bits_heads_that_share_their_keys_may_have_scales_of_their_own"
ROUNDED = "kernels_gpu.py::test_of_16_bits_every_result_is_rounded_once_at_the_end[rounded-bfloat16]"
plant("in a kernel of the GPU, weights rounded to 16 bits", TILE, "return high, (x - high.astype(x.dtype)).astype(",
      "return high, (0 * high).astype(", ROUNDED)
plant("in a kernel of the GPU, a scaled query rounded to 16 bits", TILE,
      "(dot(k, q.T) if transposed else dot(q, k.T)) * scale",
      "dot(k, (q * scale.astype(q.dtype)).T) if transposed else dot(q * scale.astype(q.dtype), k.T)", ROUNDED)
plant("in a kernel of the GPU, no scale in dq and dk", PULLBACK, "[carry[0] * operands[0].scale, *carry[1:]]", "carry",
      ROUNDED)
plant("in a kernel of the GPU, no scale in dk of 16 bits", BACKWARD, "tiles.dot(ds, q) * scale if",
      "tiles.dot(ds, q) if", SCALES)
plant("in a kernel of the GPU, one scale for all heads that share their keys", PULLBACK,
      "active.k is not None and set(x.scale.own) <= set(kept)", "active.k is not None", SCALES)
plant("in a kernel of the GPU, no room for heads that share their keys", GPU,
      "kernel.grid.count(kernel.grid.shared) > 1 or", "False or",
      "kernels_gpu.py::test_dk_and_dv_have_room_where_no_heads_share_their_keys[4-crowded1]")
plant("in a kernel of the GPU, products in bfloat16 not heeded", TILE, 'in ("bfloat16", "BF16_BF16_F32")', "in ()",
      "kernels_gpu.py::test_products_asked_for_in_bfloat16_take_a_weight_in_one_part[bfloat16]")
plant("in a kernel of the GPU, one term of a sum added", "jattn/_numerics.py", "return added(added(x, first), second)",
      "return added(x, first)", ROUNDED)
plant("in a kernel of the GPU, positions of queries along the keys", LAYOUT, "axis(i, plan.q_tile, of_q,",
      "axis(i, plan.q_tile, 1 - of_q,", f"{ON_GPU}[lengths]")
TAKEN = "kernels_gpu.py::test_the_kernel_of_the_gpu_is_taken_where_it_was_run_or_is_asked_for"
plant("the kernel of the GPU taken unasked on one that it was not run on", SUPPORT,
      "if gpu_generation() != tuning.GPU_GENERATION:", "if False:", TAKEN)
plant("the kernel of the GPU exported", SUPPORT, "if exported:", "if False:",
      "kernels_gpu.py::test_a_program_of_three_platforms_is_exported_without_the_kernel_of_the_gpu")

OF_BLOCKS = f"{ON_GPU}[blocks]"
plant("in a kernel of the GPU, a table of blocks read by the key and the query", "jattn/masks/_blocks.py",
      "return self.table[i, j] &", "return self.table[j, i] &", OF_BLOCKS)
plant("in a kernel of the GPU, a key before the sequence in a chosen block", CHOSEN, "allowed & (k.positions >= 0)",
      "allowed", OF_BLOCKS)
plant("in a kernel of the GPU, what other queries have chosen", GPU, '"nq": at[1:]}', '"nq": (pl.ds(0, at[1].size),)}',
      OF_BLOCKS)
plant("in a kernel of the GPU, the tables of another head", GPU, "(self.index, *(at if", "(self.index * 0, *(at if",
      "kernels_gpu.py::test_tables_that_differ_from_head_to_head_are_found_by_their_index")
plant("in a kernel of the GPU, an index beyond an array", "jattn/_values.py", "jnp.clip(i, 0, n - 1)",
      "jnp.clip(i, 0, n)", f"{ON_GPU}[arrays of pairs]")
plant("what a score captured alone taken for what is differentiated", PULLBACK,
      "has_values(call.plan.score) and any(i is not None for i in given.captured)", "has_values(call.plan.score)",
      f"{AS_DEFINED}[a user's, over an array by query and by key]")
plant("in a kernel of the GPU, the derivative with respect to a table not refused", "jattn/engine/kernels/support.py",
      'if score_at_distances(fun.plan, x) is None', 'if False',
      "kernels_gpu.py::test_the_derivative_with_respect_to_a_table_is_kernels_where_rows_have_no_positions")
plant("the sums of the diagonals of a tile added one offset further on", "jattn/engine/kernels/distances.py",
      "((0, 0), (0, 0), (1, 0))", "((0, 0), (0, 0), (0, 1))",
      "kernels_gpu.py::test_the_gradient_of_a_table_is_summed_along_the_diagonals_of_square_tiles")
plant("a diagonal of tiles that begins a tile further down", "jattn/engine/kernels/grid.py",
      "a + n - (self.plan.k_tiles - 1), n", "a + n - self.plan.k_tiles, n",
      "kernels_gpu.py::test_the_gradient_of_a_table_is_summed_along_the_diagonals_of_square_tiles")

LIBRARY = "jattn/engine/kernels/cudnn.py"
BESIDE = "cudnn.py::test_value_and_derivatives_are_those_of_the_definition"
plant("the gradient of lse dropped, as cuDNN drops it", LIBRARY, "(g != 0).any()", "(g != g).any()",
      f"{BESIDE}[causal-None]")
plant("a scale that cuDNN is not told", LIBRARY, "self.plan.dtype) * self.factor)", "self.plan.dtype) * 1)",
      f"{BESIDE}[full-0.4]")
plant("what cuDNN leaves in rows beyond a length", LIBRARY, "jnp.where(k_filled[..., None], y[:, 0], 0)", "y[:, 0]",
      f"{BESIDE}[lengths-None]")
plant("a window of cuDNN that is one key too narrow", LIBRARY, "self.left + 1", "self.left", f"{BESIDE}[window-None]")
OF_BIAS = "cudnn.py::test_a_bias_of_grouped_heads_and_one_that_serves_several"
plant("the cotangent of a bias of cuDNN not summed over the queries it serves", LIBRARY,
      "dbias.sum(repeated, keepdims=True)", "dbias[:, :, : self.x.bias.array.shape[1], : self.x.bias.array.shape[2]]",
      f"{OF_BIAS}[(4, 1, 48)-False-True]")
plant("the gradient of a bias without that of lse, as cuDNN has it", LIBRARY, "found &= ~Call(fun, levels, xs).dlse()",
      "found |= ~Call(fun, levels, xs).dlse()", f"{OF_BIAS}[(3, 4, 48, 48)-True-True]")
plant("what cuDNN leaves of a bias where a pair is hidden", LIBRARY,
      "jnp.where(self.allowed(), dbias.astype(self.plan.dtype), 0)", "dbias.astype(self.plan.dtype)",
      f"{OF_BIAS}[(4, 1, 48)-False-True]")
plant("cuDNN given a bias that is not finite", LIBRARY, "jnp.isfinite(x.bias).all()", "True",
      "cudnn.py::test_a_bias_that_hides_keys_gives_what_loops_give[-inf]")
plant("cuDNN given a query whose logits are all far below 0", LIBRARY, "(jnp.abs(m) <= tuning.LARGEST_SCORE)",
      "(m <= tuning.LARGEST_SCORE)", "cudnn.py::test_a_bias_that_hides_keys_gives_what_loops_give[a query of those]")
plant("a gradient of odd lengths handed to cuDNN", LIBRARY, "(x.bias is None and not isinstance(fun, Backward))",
      "x.bias is None", "cudnn.py::test_a_gradient_of_odd_lengths_is_refused[7-7]")
plant("cuDNN given what is not finite", "jattn/engine/batching/primitive.py",
      "kernel.holds(xs, ys), lambda *_: ys, loops", "True, lambda *_: ys, loops",
      "cudnn.py::test_what_is_not_finite_runs_as_loops")

# Values.

VALUES = "jattn/_values.py"
plant("functions of other numbers taken for equal", VALUES, "(*_parameter(a.val), a.aval) if", "(a.aval,) if",
      "scores.py::test_another_score_is_another_program")
plant("functions of other parameters taken for equal", VALUES, "(e.primitive, _parameter(dict(e.params)),",
      "(e.primitive,", "scores.py::test_another_score_is_another_program")
plant("no function equal to another", VALUES, "isinstance(other, Closed) and self._signature == other._signature",
      "self is other", "scores.py::test_a_score_that_is_written_anew_is_not_compiled_anew")

# Positions.

ROTARY, SCALINGS = "jattn/positions/_rotary.py", "jattn/positions/_scalings.py"
plant("pairs rotated backwards", ROTARY, "jnp.concatenate([a * cos - b * sin, b * cos + a * sin], 1)",
      "jnp.concatenate([a * cos + b * sin, b * cos - a * sin], 1)",
      "positions.py::test_a_pair_is_multiplied_by_a_complex_number")
plant("the factor of YaRN left out", SCALINGS, "attention_factor = 1.0 + 0.1 *", "attention_factor = 1.0 + 0.0 *",
      SCALING)
plant("the pairs that Llama 3 keeps interpolated", SCALINGS, "f.inv * (keep + (1 - keep) / factor)",
      "f.inv * (1 - keep + keep / factor)", SCALING)
plant("linear scaling that rotates faster", SCALINGS, "f.inv / factor)", "f.inv * factor)", SCALING)
plant("a negative position rotated forwards", "jattn/positions/_angles.py", "jnp.where(positions < 0, -angle, angle)",
      "angle", "positions.py::test_angles_are_exact_at_every_position_in_float32")

# The cache.

APPEND, CACHED, DECODE = (f"jattn/cache/{name}.py" for name in ("_append", "_attention", "_decode"))
PREFILL = "cache.py::test_prefill_and_a_scan_of_steps_give_attention_over_the_whole"
BYTES = "cache.py::test_bytes_stay_within_their_bound"
GONE = "cache.py::test_a_ring_says_when_a_window_is_gone"
plant("the next token where the last one stands", APPEND, "jnp.where(n > 0, last + 1, room.next)",
      "jnp.where(n > 0, last, room.next)", PREFILL)
plant("a ring one slot too small", "jattn/cache/_buffers.py", "least=1) - 1\n", "least=1) - 2\n", GONE)
plant("a token that a ring let go not missed", "jattn/cache/_buffers.py", "NEVER + self.window) - self.window",
      "NEVER + self.window) - self.window + 1", GONE)
plant("bytes of keys times the scale of values", DECODE, "products * kv.k_scale.", "products * kv.v_scale.", BYTES)
plant("bytes of values times the scale of keys", DECODE, "p * kv.v_scale.", "p * kv.k_scale.", BYTES)
plant("a slot that nothing was written to is allowed", DECODE, "numbers < length", "numbers <= length", PREFILL)
plant("queries of short rows placed as those of long ones", CACHED, "(T if n is None else n))[:, None]", "T)[:, None]",
      GONE, "cache.py::test_every_step_equals_the_whole_sequence_in_float32")
plant("a sink that joins prefix and own tokens", CACHED, "sink=None,  # it joins the denominator once", "sink=x.sink,",
      "cache.py::test_a_cascade_is_attention_over_prefix_and_own_tokens")
plant("partials of a cascade merged by lse", CACHED, "heads.merge_heads(m, 1), heads.merge_heads(log_sum, 1)",
      "heads.merge_heads(m + log_sum, 1), heads.merge_heads(0 * log_sum, 1)",
      "cache.py::test_a_cascade_counts_keys_at_logits_beside_which_their_logarithm_is_lost")
plant("a row without pages that takes those of the rows behind it", "jattn/cache/_pages.py",
      "return ~jax.lax.while_loop(too_many, refuse, refuse(need > count))",
      "return (need == 0) | (jnp.cumsum(need) <= count)",
      "cache.py::test_an_oversized_row_leaves_the_pages_to_the_others")
plant("rows refused once, and not as often as it takes", "jattn/cache/_pages.py",
      "~jax.lax.while_loop(too_many, refuse, refuse(need > count))", "~refuse(need > count)",
      "cache.py::test_a_row_that_finds_no_pages_takes_none_of_those_behind_it")
plant("positions that stay unsigned", "jattn/arguments/heads.py", "return x.astype(jnp.int32)", "return x",
      "many_heads.py::test_positions_are_whole_numbers_of_any_dtype")
plant("lengths beyond the queries that move them back", CACHED, '"rows").clip(0, T)',
      '"rows")', "cache.py::test_lengths_beyond_the_new_tokens_are_all_of_them_and_below_0_none")
plant("a state that does not vary as the keys do", "jattn/cache/_decode.py",
      "state, _ = match_varying_trees(start, (x, cache))", "state = start",
      "cache.py::test_each_device_fills_and_reads_a_cache_of_its_own_rows[paged]")
plant("an emptied row that begins at position 0", APPEND, "reset(cache.next, cache.start)", "reset(cache.next, 0)",
      "cache.py::test_an_emptied_row_starts_where_the_cache_does")

# Sharding.

RING, BLOCKS = "jattn/sharding/_ring.py", "jattn/sharding/_blocks.py"
NO_MASK = f"{SCHEME}[ring-8-4-contiguous-none-none]"
ALIBI = f"{SCHEME}[ring-2-4-striped-causal-alibi]"
ONE_OF_TREE = f"{SCHEME}[tree-2-2-zigzag-prefix-alibi]"
plant("one hop too few", BLOCKS, "every = tuple(range(size))", "every = tuple(range(size - 1))", NO_MASK)
plant("a sink on every device", RING, "jnp.full_like(x, -jnp.inf) if i == self.sink else x", "x", ALIBI)
plant("a sink that is a whole number refused", "jattn/sharding/_mesh.py",
      "= arguments.sink_array(caller, sink)", "= _errors.array(caller, \"sink\", sink)",
      "sharding.py::test_lists_of_positions_and_whole_numbers_are_taken_as_on_one_device[ring]")
plant("positions that do not travel with their keys", "jattn/sharding/_exchange.py",
      "*([] if b.k_positions is None else [places.k_positions])", "", ALIBI)
plant("partials of a tree merged without lse", PARTIALS, "w = jnp.exp((own - top) + log_sum)", "w = jnp.ones_like(own)",
      ONE_OF_TREE)
plant("the sink of a tree on every device", PARTIALS, "total + jnp.exp(sink - top)",
      "total + jax.lax.axis_size(axis_name) * jnp.exp(sink - top)", ONE_OF_TREE)
plant("a captured array given to a score in another dtype", RING, "set(self.argnums) - set(captured)",
      "set(self.argnums)",
      "sharding.py::test_what_a_score_computes_in_a_narrower_dtype_has_its_gradient_through_a_ring")
plant("cotangents of keys that do not go home", RING, "self.ring.return_home(x) if w else x", "x", ALIBI)
MERGED = "sharding.py::test_the_statistics_of_the_keys_of_devices_merge_into_those_of_all_keys"
OF_PIECES = "jattn/sharding/_statistics.py"
plant("an entropy without that of which device has the key", OF_PIECES,
      "found.entropy + (top - keys) + jnp.log(total)", "found.entropy", MERGED)
plant("the sinks of devices taken for keys", OF_PIECES, "jnp.where(found.sink_weight == 0, lse,",
      "jnp.where(found.sink_weight < 2, lse,", MERGED)
plant("the largest logit of every device that has it", OF_PIECES, "(here == first) | jnp.isnan(x)",
      "largest | jnp.isnan(x)",
      "sharding.py::test_of_equal_maxima_on_several_devices_the_first_has_the_derivative_and_a_nan_is_kept")
plant("the gradient of a sink that all devices share from one of them", "jattn/_numerics.py",
      "below_p.bind(*match_varying_axes(x, top))", "below_p.bind(x, top)",
      "sharding.py::test_a_partial_that_all_devices_share_has_its_whole_gradient_where_it_is_merged")
plant("other rows than were chosen", "jattn/hosts/_attend.py", "weights_of(q, k, found.lse, rows,",
      "weights_of(q, k, found.lse, rows + 1,",
      "hosts.py::test_flax_keeps_statistics_and_the_weights_of_chosen_rows[each]")
plant("a bias of one example for all", "jattn/hosts/_attend.py", "own[name] = x[0] if x.shape[0] == 1 else x, axes",
      "own[name] = x[:1] if x.shape[0] == 1 else x, axes",
      "hosts.py::test_flax_keeps_statistics_and_the_weights_of_chosen_rows[one for all]")
plant("a measured sink of each head as one of each query", "jattn/hosts/_attend.py",
      'found["sink"] = heads.split_heads(sink, K), (None, 0, 0)', 'found["sink"] = sink, (None,) * 3',
      "hosts.py::test_what_a_layer_measures_is_of_the_attention_that_it_computes[4-4-a sink a head-equinox]")
plant("two partials of a ring joined without their sums", PARTIALS, SHARES, SHARES.replace(" + x[2]", ""), ALIBI)

plant("what differs between devices taken for what they share", "jattn/one_head.py",
      "if jax.sharding.get_abstract_mesh().manual_axes:", "if False:",
      "modes.py::test_what_differs_between_devices_may_be_captured[explain]")

# The study of gradients.

plant("a sign of the pull on queries", "jattn/flow/_pulls.py", "Pulls(-ds[..., None] * k", "Pulls(ds[..., None] * k",
      "flow.py::test_the_pull_of_each_key_has_the_sign_that_theory_says")
plant("a pull without its scale", "jattn/flow/_pulls.py", "ds = scale * jax.grad(", "ds = jax.grad(",
      "flow.py::test_the_pulls_sum_to_the_gradient_of_any_loss")
plant("a loss of the scores that pulls with nothing", "jattn/flow/_pulls.py", "ds = ds + on_scores", "ds = ds",
      "flow.py::test_a_loss_of_the_scores_themselves_pulls_too")
plant("a masked key that is not finite and pulls", "jattn/flow/_pulls.py",
      "(jnp.where(seen, x.astype(ds.dtype), 0) for x", "(x.astype(ds.dtype) for x",
      "flow.py::test_what_is_masked_pulls_with_nothing_whatever_it_holds")
plant("a masked value that is not finite and is averaged", "jattn/flow/_closed.py",
      "finite, nonfinite = zero_nonfinite_rows(v.astype(weights.dtype))",
      "finite, nonfinite = v.astype(weights.dtype), zero_nonfinite_rows(v)[1]",
      "flow.py::test_what_is_masked_pulls_with_nothing_whatever_it_holds")
plant("a measured row that looks at what it does not attend", "jattn/flow/_rows.py",
      "jnp.where((w == 0)[:, None], 0, x) for x", "x for x",
      "recorder.py::test_a_row_is_measured_without_what_it_does_not_attend")
plant("a balance that is a sum", "jattn/flow/_measures.py", "= a.T @ a - b.T @ b", "= a.T @ a + b.T @ b",
      "flow.py::test_gradient_descent_moves_the_balance_exactly_as_predicted_and_others_do_not")
plant("layers multiplied from the last", "jattn/flow/_measures.py", "((1 - r) * A + r * eye) @ reached",
      "reached @ ((1 - r) * A + r * eye)", "flow.py::test_rollout_multiplies_the_layers")
plant("a recorded pull that lost its tail", "jattn/flow/_rows.py", "ahead = a - top", "ahead = a",
      "recorder.py::test_the_pulls_of_a_saturated_row_keep_their_tail")
plant("a record overwritten while it is counted", "jattn/flow/_recorder.py", "if file.seek(0, os.SEEK_END) > len(",
      "if False and len(", "recorder.py::test_whatever_is_written_when_it_dies_what_was_there_stays[resuming]")
plant("a record counted that was dropped", "jattn/flow/_recorder.py", "del self._steps[before:]", "pass",
      "recorder.py::test_whatever_is_written_when_it_dies_what_was_there_stays[resuming]")
plant("a tracer kept by a compiled run", "jattn/flow/_paths.py", "if _holds_tracer([*static.values()], set()):",
      "if False:", "flow.py::test_what_a_mapped_function_closes_over_leaks_no_tracer[optimiser]")
plant("free keys held to their mean where they are values too", "jattn/flow/_diagnosis.py",
      "dout[0] if values_are_keys else", "dout[0] * 0 if values_are_keys else",
      "flow.py::test_the_report_holds_a_run_to_no_line_that_its_loss_does_not_promise[float32]")
plant("keys held to a sum of 0 whatever the loss", "jattn/flow/_diagnosis.py",
      "invariant, as_values = not abs(s.shift).max() > together,", "invariant, as_values = True,",
      "flow.py::test_the_report_holds_a_run_to_no_line_that_its_loss_does_not_promise[float32]")
plant("a target that is no distribution", "jattn/flow/_closed.py", "if not abs(pi.sum() - 1) <= 4",
      "if abs(pi.sum()) < 0 * 4", "messages.py::test_each_refusal_is_word_for_word")
plant("a report held to the rounding of the loss alone", "jattn/flow/_diagnosis.py",
      "jax.tree.leaves((trajectory.loss, seen))", "[trajectory.loss]",
      "flow.py::test_the_report_is_held_to_the_rounding_of_the_queries_and_keys[bfloat16]")
plant("a target before the first key", "jattn/_errors.py",
      "not 0 <= (i := int(read(x))) < n", "not (i := int(read(x))) < n",
      "messages.py::test_each_refusal_is_word_for_word")
plant("params of a head that broadcast", "jattn/heads/_params.py",
      "if found != tuple(lengths.get(axis) for axis in letters):", "if len(found) != len(letters):",
      "messages.py::test_each_refusal_is_word_for_word")
plant("a rate of dropout of NumPy that is 1 or more", "jattn/arguments/options.py",
      "if _errors.known(share):", "if isinstance(rate, int | float):",
      "messages.py::test_each_refusal_is_word_for_word")
plant("several keys of dropout taken for one", "jattn/arguments/options.py",
      "jax.dtypes.prng_key) and key.ndim == 0:", "jax.dtypes.prng_key):",
      "messages.py::test_each_refusal_is_word_for_word")
plant("an attention factor of LongRoPE that is no number", SCALINGS,
      'number("longrope", "attention_factor", 1.0 if attention_factor is None else attention_factor)', "pass",
      "messages.py::test_each_refusal_is_word_for_word")
plant("a recording in 32 bits", "jattn/flow/_recorder.py", "x.dtype in (np.float64, np.int64, np.uint64)", "False",
      "recorder.py::test_a_jitted_loop_keeps_all_64_bits")
plant("a recorder that keeps one too many", "jattn/flow/_recorder.py", "xp.sum(index >= xp.asarray(bounds",
      "xp.sum(index > xp.asarray(bounds", "recorder.py::test_which_steps_are_kept_and_how_many_at_most")

plant("a forward Laplacian without the curvature of its layers", "demos/_laplacians.py", "lap = carried + curved",
      "lap = carried", "laplacian.py::test_each_way_is_the_trace_of_the_hessian")

plant("attention that learns from its indexer", "demos/_indexer.py", "q, k = jax.lax.stop_gradient((text.asked @",
      "q, k = ((text.asked @",
      "learns_which_blocks.py::test_the_indexer_learns_from_the_attention_and_leaves_it_alone")

# What recipes of real models leave out: test_parity names these.

ZOO = "demos/model_zoo.py"
plant("Llama 3 whose rotary is not scaled", ZOO,
      'mask=causal(), rope=partial(rotary, base=r["rope_theta"], scaling=longer))',
      'mask=causal(), rope=partial(rotary, base=r["rope_theta"]))', f"{LAYER}[Llama 3]")
plant("Qwen 3 without the weights of its norm", ZOO, 'p = separate(w, c, q_norm=w["q_norm.weight"], k_norm',
      'p = separate(w, c, q_norm=0 * w["q_norm.weight"] + 1, k_norm', f"{LAYER}[Qwen 3]")
plant("gpt-oss without its sinks", ZOO, ', per_head={"sink": w["sinks"]},', ",", f"{LAYER}[gpt-oss]")
plant("an encoder that sees one way", ZOO, "mask=causal() if one_way else None)", "mask=causal())",
      f"{LAYER}[T5]")

# What tests of the code itself name.

plant("a mask that knows attention", BY_ROW, "\n\n\n@value\nclass Lengths",
      "\n\n\ndef late():\n    import jattn.one_head  # noqa\n\n\n@value\nclass Lengths",
      "import_layers.py::test_every_module_imports_from_lower_layers_only")
plant("a private name of jax elsewhere", TILE, "import jax.numpy as jnp\n",
      "import jax.numpy as jnp\nfrom jax._src import core  # noqa\n",
      "jax_names.py::test_no_other_file_uses_such_names")
plant("a refusal that no table knows", ATTEND, "    if T == 0 or S == 0:",
      "    if T < 0:\n        _errors.fail(ValueError, 'attend', 'a must b', 'Do c.', q=q)\n    if T == 0 or S == 0:",
      "messages.py::test_each_place_that_refuses_is_in_the_table")

# A page: its story, and blocks of thousands of tokens.

STORY = "story.py::test_each_step_of_a_story_can_be_read_and_reached[chromium-check_steps]"
MODEL = "page_arithmetic.py::test_the_arithmetic_of_the_page_is_that_of_jax[chromium-60]"
plant("a button of the story that does nothing", "jattn/page/story.js", "onclick: () => go(at + 1)",
      "onclick: () => go(at)", STORY)
plant("a story that shows another frame", "jattn/page/_document.py", '{**step, "part": at[step["part"]]}',
      '{**step, "part": at[step["part"]], "frame": 0}', STORY)
plant("arrows of 0 where a run later left what is finite", "jattn/page/plane.js",
      "length(flat(now.total))].filter(Number.isFinite), 1e-300)", "length(flat(now.total))], 1e-300)",
      "page.py::test_a_run_that_left_what_is_finite_is_drawn_as_far_as_it_is[chromium]")
plant("a line break of a token in a terminal", "jattn/console/_grid.py", "_picture_inputs.printable(str(label))",
      "str(label)", "console.py::test_a_label_stays_on_its_line_and_controls_no_terminal")
plant("a page in a frame that a bar to scroll makes narrower", "jattn/page/main.js",
      'document.documentElement.style.overflowY = "hidden"', 'document.documentElement.style.overflowY = ""',
      "story.py::test_in_a_frame_it_leaves_the_page_around_it_alone[firefox]")
plant("blocks joined as if each held as many queries", "jattn/page/blocks.js", "x + w * size", "x + w",
      "page_blocks.py::test_the_picture_is_that_of_the_blocks_at_the_detail_that_fits")
plant("another pair of tokens than was chosen", "jattn/page/panels.js",
      "(i * T + only) * S + to", "(i * T + to) * S + only",
      "head_table.py::test_of_a_pair_the_heads_are_listed_that_attend_it_most")
plant("the page's norm has a slope without its mean", "jattn/page/transformer.js", "r * dn[i] - a * mean",
      "r * dn[i]", MODEL)
plant("the page's gelu is a little steeper", "jattn/page/transformer.js", "(1 + 3 * 0.044715",
      "(1 + 2 * 0.044715", MODEL)
plant("the page attends one word too many", "jattn/page/transformer.js", "k.slice(0, t + 1)",
      "k.slice(0, t + 2)", MODEL)
plant("a share on the page without its weight", "jattn/page/model.js", "shares = p.map((w, s) => w * written[s])",
      "shares = written", MODEL)
plant("a frame beyond a run in a story", "jattn/page/_story.py", "if at >= n:", "if at > n:",
      "story.py::test_a_story_refuses_what_it_cannot_tell")
plant("a story that tells of another step", "demos/_bank_story.py", "t = int(cos.argmin())",
      "t = int(cos.argmin()) + 1",
      "explore.py::test_the_numbers_of_the_story_are_those_of_the_runs")

# What tests of the documentation name.
plant("the page of messages keeps one remedy of each cause", "docs/_messages.py",
      'lines.setdefault((said["must"], said["remedy"])', 'lines.setdefault((said["must"], said["who"])',
      "docs.py::test_every_message_of_the_table_is_on_the_page")
plant("a picture of a notebook gets a text that nobody wrote", "docs/_notebooks.py",
      'if alt else ""', "if alt else ' alt=\"a picture\"'",
      "notebooks.py::test_what_a_notebook_asserts_fails_it_and_a_picture_without_alt_is_seen")
plant("an error in a notebook does not stop it", "docs/_notebooks.py",
      "timeout=seconds, kernel_name", "timeout=seconds, allow_errors=True, kernel_name",
      "notebooks.py::test_what_a_notebook_asserts_fails_it_and_a_picture_without_alt_is_seen")
plant("a number of an arc in another row", "jattn/figures/_weights.py",
      "min(max((row.argmax() - t) * 0.04, -0.2), 0.2)", "(row.argmax() - t) * 0.04",
      "figures.py::test_the_number_of_an_arc_stands_in_the_row_of_its_query[20]")
plant("a long title cut", "jattn/figures/_canvas.py", "wrap=not is_math_text(title)", "wrap=False",
      "figures.py::test_a_long_title_is_broken_into_lines_and_not_cut[weights]")
plant("a field of which places are sorted and arrows are not", "jattn/figures/_plane.py",
      "    apart = min((float(d) for", "    y = np.sort(y)\n    apart = min((float(d) for",
      "figures.py::test_a_field_points_the_same_way_in_whatever_order_its_places_are_given")
plant("a trajectory whose steps are counted anew", "jattn/_picture_inputs.py", 'seen | {"steps": held["at"]}', "seen",
      "figures.py::test_a_trajectory_is_drawn_at_its_own_steps")
plant("text of a figure below 6 points", "jattn/figures/_canvas.py", "LEAST = 6.0", "LEAST = 5.0",
      "figures.py::test_in_one_column_every_text_is_legible[many weights]")
plant("lines that differ by colour alone", "jattn/figures/_time.py",
      "ls=_canvas.DASHES[i % len(_canvas.DASHES)]", 'ls="-"',
      "figures.py::test_what_has_a_colour_is_told_apart_without_it")
plant("letters that ignore rcParams", "jattn/figures/_canvas.py",
      'size * matplotlib.rcParams["font.size"] / 10', "size",
      "figures.py::test_figures_follow_rcparams")
plant("names of ticks on each other", "jattn/figures/_canvas.py",
      "self.places[:: max(1, math.ceil(self.need / max(each, 1e-9) - 1e-6))]", "self.places",
      "figures.py::test_in_one_column_every_text_is_legible[many weights]")
plant("jattn[all] without an extra", "pyproject.toml", "lab,laplacian,pretrained", "lab,pretrained",
      "docs.py::test_all_is_every_extra_of_a_user_and_each_has_its_size")
# A jvp in one pass.
IN_ONE = "jvp.py::test_value_and_tangent_are_those_of_the_definition"
plant("a tangent of out without that of lse", "jattn/engine/jvp.py",
      "out_dot = a - lse_dot[:, None] * out", "out_dot = a", IN_ONE)
plant("a tangent of one tile without that of lse", "jattn/engine/jvp.py",
      "for y in (a - lse_dot * out, lse_dot))", "for y in (a, lse_dot))", IN_ONE)
plant("a tangent of out of one tile that knows no infinity", "jattn/engine/jvp.py",
      "    out += nan_if_nonfinite(out)[:, None]\n", "",
      "jvp.py::test_what_is_not_finite_has_the_tangents_of_two_passes")
plant("a jvp without the tangents of the values", "jattn/engine/jvp.py",
      "if tile_dot.v is not None:", "if False:", IN_ONE)
plant("a jvp without the tangent of the sink", "jattn/engine/jvp.py",
      "if x_dot.sink is not None:", "if False:", IN_ONE)
plant("a tangent of lse that is not divided by the total", "jattn/engine/jvp.py",
      "m, log_sum, a, total_dot[:, 0])", "m, log_sum, a, total_dot[:, 0] * jnp.exp(log_sum))", IN_ONE)
plant("a jvp that drops no weight of a tangent", "jattn/engine/jvp.py",
      "a = drop(p_dot) @ tile.v", "a = p_dot @ tile.v", "jvp.py::test_it_drops_the_weights_that_the_value_drops")
plant("one value for each of many tangents", "jattn/engine/batching/derivatives.py",
      "if any(d is not None and dims[i] is None", "if any(d is not None and dims[i] == 99",
      "jvp.py::test_under_every_transform_it_is_that_of_the_definition")
plant("a jvp that no gradient takes apart", "jattn/engine/batching/derivatives.py",
      "partial_eval.custom_partial_eval_rules[batched_jvp_p] = _partial_eval\n", "",
      "jvp.py::test_it_is_one_pass_where_nothing_is_transposed")
plant("a jvp that no checkpoint takes apart", "jattn/engine/batching/derivatives.py",
      "partial_eval.partial_eval_jaxpr_custom_rules[batched_jvp_p] = _partial_eval_of_jaxpr\n", "",
      "jvp.py::test_it_is_one_pass_where_nothing_is_transposed", "modes.py::test_a_policy_by_name_attends_once")
plant("outputs that vary as their tangents", "jattn/engine/batching/derivatives.py",
      "if together is None or _varying_axes(xs) != _varying_axes(primals):", "if together is None:",
      "jvp.py::test_outputs_vary_over_devices_as_the_operands_and_not_as_the_tangents")
plant("what is not finite without the tiles of partial masks", "jattn/engine/schedule.py",
      "PASSES[1:] if visits.plan.all_masked", "PASSES[:1] if visits.plan.all_masked", "finite.py")
plant("a maximum that XLA leaves a NaN out of", "jattn/_numerics.py",
      "return nan_where(jnp.isnan(x).any(axis), jnp.max(x, axis, initial=initial))",
      "return jnp.max(x, axis, initial=initial)", "finite.py::test_a_maximum_is_nan_where_one_is_among_the_numbers")
plant("many numbers called finite by their maximum", "jattn/_numerics.py",
      "return jnp.sqrt(jnp.sum(jnp.square(wide)))", "return jnp.max(jnp.abs(wide), initial=0)",
      "finite.py::test_finite_is_no_nan_no_infinity_and_no_product_that_overflows[many]")
AT_ONCE = "jattn/engine/heads_at_once.py"
plant("all heads at once, of keys and values that are written anew", AT_ONCE,
      "outer, outer + 1).astype(plan.dtype)", "outer, outer + 1).astype(plan.dtype) + 1e-9",
      "heads_at_once.py::test_keys_and_values_are_read_where_they_lie")
plant("all heads at once, a query in the columns of every head", AT_ONCE,
      "q = jnp.where(own, q, 0).reshape", "q = jnp.where(own | True, q, 0).reshape",
      "heads_at_once.py::test_value_and_derivatives_are_those_of_the_definition")
plant("all heads at once, a query with the columns of every head", AT_ONCE,
      "out = jnp.where(own, out.reshape", "out = jnp.where(own | True, out.reshape",
      "heads_at_once.py::test_value_and_derivatives_are_those_of_the_definition")
plant("all heads at once, the NaN of one in all", AT_ONCE, "jnp.isfinite(out).all() &", "True |",
      "heads_at_once.py::test_what_is_not_finite_reaches_no_other_head")
plant("all heads at once, without the scale", AT_ONCE,
      " * ordered(number.scale, order)[..., None, None]", "",
      "heads_at_once.py::test_value_and_derivatives_are_those_of_the_definition")
plant("all heads at once, their keys turned", AT_ONCE,
      'after(q, jnp.einsum("...sc,...rc->...sr", columns(number.k), q))',
      'jnp.einsum("...sc,...rc->...sr", columns(number.k), q)',
      "heads_at_once.py::test_few_queries_stand_across_in_their_product_with_the_keys")
plant("all heads at once, few queries across that are taken for down", AT_ONCE, ".swapaxes(-1, -2)", "",
      "heads_at_once.py::test_value_and_derivatives_are_those_of_the_definition")
plant("all heads at once, wherever the keys lie", AT_ONCE,
      "<= levels.inside]", "<= levels.inside or level]",
      "heads_at_once.py::test_it_is_a_matter_of_layout_length_and_platform")
plant("all heads at once, however many queries", AT_ONCE,
      "or rows > tuning.ROWS_AT_ONCE", "or rows > 10 * tuning.ROWS_AT_ONCE",
      "heads_at_once.py::test_it_is_a_matter_of_layout_length_and_platform")
plant("all heads at once, though a cache holds the keys", AT_ONCE, "kept < rows * tuning.BYTES_AT_ONCE", "kept < 0",
      "heads_at_once.py::test_it_is_a_matter_of_layout_length_and_platform")
plant("of a group of examples, the part of the first in each group", "jattn/engine/batching/vmap.py",
      "[n[0] if n.ndim else n for n in numbers]", "[n[0] * 0 if n.ndim else n for n in numbers]",
      "engine_details.py::test_a_bias_that_differs_between_examples_is_read_where_it_lies",
      "batching.py::test_a_part_of_each_example_of_a_group_is_one_slice")
plant("of a group of examples, a part for each", "jattn/engine/batching/vmap.py",
      "or sum(batched[1]) != 1:", "or sum(batched[1]) == 1:",
      "engine_details.py::test_a_bias_that_differs_between_examples_is_read_where_it_lies",
      "batching.py::test_a_part_of_each_example_of_a_group_is_one_slice")
plant("a bias that is not masked", "jattn/engine/forward.py", "jnp.where(allowed, tile.bias, -jnp.inf)", "tile.bias",
      "finite.py")
plant("weights kept of one tile, without what lse brings", "jattn/engine/backward.py",
      "ds = p * (dout @ tile.v.T + g[:, None])", "ds = p * (dout @ tile.v.T)", "one_head.py")
plant("weights kept of many pairs", "jattn/engine/backward.py",
      "<= tuning.KEPT_PAIRS", "<= 99 * tuning.KEPT_PAIRS",
      "engine_details.py::test_of_few_pairs_value_and_gradient_compute_the_weights_once")
plant("a soft cap of any size called small", "jattn/engine/plan.py",
      "(norm(bound) <= tuning.LARGEST_SCORE)", "(norm(bound) < jnp.inf)",
      "finite.py::test_a_soft_cap_is_small_or_logits_are_compared_with_their_maximum")

# Masks and scores as values; partials of devices; pages of saturated rows.

USERS_OWN = "masks.py::test_classes_of_a_users_own_are_told_apart"
plant("masks of two classes as one program", ATTEND, "closed, classes(mask), platform", "closed, (), platform",
      USERS_OWN)
plant("scores of two classes as one program", "jattn/engine/score.py", "TileScore(tree, classes(score), ",
      "TileScore(tree, (), ", USERS_OWN)
plant("the sums along diagonals, rows added the other way round", "jattn/_diagonals.py",
      "_pad(first, apart, 0) + _pad(second, 0, apart)", "_pad(first, 0, apart) + _pad(second, apart, 0)",
      "scores.py::test_a_matrix_of_equal_diagonals_and_its_transpose")
plant("a program under the settings of where it is lowered", "jattn/engine/batching/primitive.py",
      "with fun.settings.hold():\n        return _lower(", "with contextlib.nullcontext():\n        return _lower(",
      "kernels.py::test_products_have_the_precision_that_was_set_where_attention_was_called",
      "modes.py::test_float64_that_is_enabled_around_a_call_holds_where_its_program_is_lowered")
plant("a mask of a user's own, not padded to whole tiles", "jattn/masks/_algebra.py",
      'return jnp.pad(x, widths, mode="edge") if any(n for _, n in widths) else x', "return x",
      "masks.py::test_a_class_of_a_users_own_has_its_own_entry_for_each_row_where_the_last_tile_is_padded")
plant("a flow that goes on where its gradient is not finite", "jattn/flow/_continuous.py",
      "good = finite(params) & (finite((value, grads)) | (times[i] == 0))", "good = finite(params)",
      "flow.py::test_a_flow_ends_at_the_last_time_before_something_is_not_finite")
plant("a derivative of a curve without its factorial", "jattn/_taylor.py",
      "[math.factorial(k) * terms[i][k - 1] for i in moved]", "[terms[i][k - 1] for i in moved]",
      "taylor.py::test_the_series_along_a_curve_is_that_of_nested_jvps")
plant("a table that heads share looked up by each of them", "jattn/engine/tile.py",
      "of_first_example(first) if plan.score.by_diagonals else first", "first",
      "scores.py::test_heads_that_share_a_table_look_it_up_together")
plant("zeros of an explicit mesh told apart from parts of it", "jattn/engine/batching/partition.py",
      "return jax.make_jaxpr(fun)(*here).out_avals", "return jax.make_jaxpr(fun)(*avals).out_avals",
      "sharding_programs.py::test_on_an_explicit_mesh_gradients_take_several_tiles_and_options_may_be_whole")
plant("what is whole left whole on an explicit mesh", "jattn/arguments/heads.py",
      "if sharding.spec[axis] is None:", "if False:",
      "sharding_programs.py::test_on_an_explicit_mesh_gradients_take_several_tiles_and_options_may_be_whole")
plant("runs on an explicit mesh as on none", "jattn/flow/_paths.py",
      "return mapped_as(first, RunState(", "return (lambda _, begin: begin)(first, RunState(",
      "flow.py::test_runs_are_mapped_over_an_explicit_mesh")
plant("dropout of sharded examples drawn as outside of the block", "jattn/_numerics.py",
      "precision, draws:", "precision:",
      "sharding_programs.py::test_dropout_of_sharded_examples_draws_as_threefry_was_set_where_it_was_called")
plant("a checkpoint without its files as orbax says it", "jattn/flow/_long.py", "(ValueError, LookupError, OSError)",
      "ValueError",
      "flow.py::test_a_damaged_checkpoint_is_named_and_without_it_the_run_goes_on_from_the_one_before")
plant("a cache on an explicit mesh as on none", "jattn/_numerics.py",
      "(*xs) if on_explicit_mesh() else f(*xs)", "(*xs) if False else f(*xs)",
      "cache.py::test_on_an_explicit_mesh_a_cache_lies_as_it_lay_and_what_is_read_as_its_queries")
plant("a sum over heads that no explicit mesh is told of", "jattn/heads/_multi.py", "out_sharding=whole", "",
      "heads.py::test_on_an_explicit_mesh_each_device_has_some_of_the_heads_and_their_sum_is_whole")
plant("masks with other numbers as one static argument", "jattn/_values.py",
      "return classes(x), tree, tuple(_parameter(a)", "return classes(x), tree, tuple(0",
      "masks.py::test_equal_masks_and_scores_are_one_static_argument")
plant("partials of devices by their lse", PARTIALS, "w = jnp.exp((own - top) + log_sum)",
      "w = jnp.exp((own + log_sum) - top)",
      "sharding.py::test_a_tree_counts_keys_at_logits_beside_which_their_logarithm_is_lost")
plant("partials of devices rounded", "jattn/sharding/_schemes.py", "out, lse = merge_devices(own, m,",
      "out, lse = merge_devices(own.astype(b.v.dtype).astype(m.dtype), m,",
      "sharding.py::test_a_tree_rounds_once_as_one_device_does")
plant("the gradient of a flow through a step of no length", "jattn/flow/_continuous.py", "jnp.log1p(after)",
      "jnp.log1p(times)", "flow.py::test_a_flow_that_is_looked_at_from_its_start_on_has_a_gradient")
plant("a flow that goes on without a gradient", "jattn/flow/_continuous.py",
      "jnp.where(good, -jnp.exp(tau) * g.astype(dtype), 0), grads)", "-jnp.exp(tau) * g.astype(dtype), grads)",
      "flow.py::test_a_band_without_a_gradient_ends_a_flow_unless_it_is_passed_unseen_and_then_harmlessly")
plant("a run in loops of traced length", "jattn/flow/_paths.py", "if len(alike) <= 2:", "if len(alike) <= 1:",
      "flow.py::test_a_run_is_differentiated_in_reverse_wherever_at_says_every_so_many_steps_or_once")
plant("64 bits of a NumPy number cut to 32", "jattn/flow/_recorder.py", "x.dtype.itemsize > 4:",
      "x.dtype.itemsize > 8:",
      "recorder.py::test_numbers_of_python_and_of_numpy_come_back_from_a_jitted_loop_as_from_another")
plant("a transpose by what attention is not linear in", "jattn/engine/batching/derivatives.py",
      "if not any(set(argnums) <= xs for xs in fun.jointly_linear):", "if False:",
      "transforms.py::test_attention_is_not_transposed_by_what_it_is_not_linear_in")
plant("a transpose by the values in loops of traced length", "jattn/engine/batching/derivatives.py",
      "is None:\n        transposed =", "is None or True:\n        transposed =",
      "transforms.py::test_a_linear_solver_attends_and_its_gradient_transposes_attention_by_its_values")
plant("a derivative that is linear in its own tangents alone", "jattn/engine/batching/function.py",
      "others = (xs | {tangents", "others = (xs & set() | {tangents",
      "transforms.py::test_a_product_with_a_hessian_is_its_own_transpose")
plant("a line search that is given what its function does not take", "jattn/flow/_paths.py",
      "grad_fn: object = None, obj_fn: object = None)", "obj_fn: object = None)",
      "flow.py::test_an_optimiser_that_asks_for_the_loss_is_given_it")

# fmt: on


def unplantable() -> list[str]:
    """The mistakes whose text is not there exactly once, is replaced by itself, or leaves what is no Python."""
    texts = {m.file: (ROOT / m.file).read_text("utf-8") for m in TABLE}
    found = []
    for m in TABLE:
        n = texts[m.file].count(m.old)
        if n != 1 or m.old == m.new:
            found.append(f"{m.name}: {n} times in {m.file}: {m.old!r}")
        elif m.file.endswith(".py") and not is_python(texts[m.file].replace(m.old, m.new)):
            found.append(f"{m.name}: not Python any more: {m.file}: {m.new!r}")
    return found


def is_python(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


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
    """The exception of a failure, from the first words of its message."""
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
    parser.add_argument("--list", action="store_true", help="print the mistakes and the tests that should notice")
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
    if badly := unplantable():
        parser.error("; ".join(badly))
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
