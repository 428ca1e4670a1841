"""Machine constants: numbers that were chosen for a machine and not by mathematics, each beside its reason.

A few others stand beside their one use (`scores._relative`, `masks._chosen`).

Measured on CPUs of two cores (AMD EPYC) and, where it says so, on an Intel Xeon and an NVIDIA H200 (tables in
`benchmarks/results`). What else is said of GPU and TPU was chosen from how these machines work, and not measured.
"""

import math
from types import MappingProxyType

import jax

TILE_MULTIPLE = 16
"""Sizes of tiles are multiples of this: of the width of vector registers, and of `DROPOUT_CELL`."""

DROPOUT_CELL = 16
"""Dropout is drawn in cells of 16 × 16 pairs, whatever the tiles. Not free to change: it decides what is dropped."""

FEW_QUERIES = 16
"""Fewer queries than this in a tile are bound by reading the keys, which no cache holds: then all heads run in one
group, and a tile is asked for non-finite keys by its products and not by a second look at the keys."""

FEW_PAIRS = 2**14
"""Fewer pairs of a query and a key than this, over all examples of a call, have no second form for finite operands:
of 8 heads of 32 × 32 it saves up to 50 µs a call, and a program of both takes .6 to 1 s longer to compile."""

ROWS_AT_ONCE = 64
"""Up to so many queries, over all heads of an example, take all keys in one product where heads lie side by side: with
8 heads in a quarter of the time of a product for each head (jax.nn's way, in the table of attention's time); the gain
shrinks as the zeros grow with the heads."""

BYTES_AT_ONCE = 2**20
"""So many bytes of keys and values for each of these queries: fewer lie in a cache, where it takes little to copy them
to heads first, and the zeros of the one product take longer than that."""

ROWS_ACROSS = 16
"""Up to so many of these queries stand across in their products with the keys, which are read as they lie: on an Intel
CPU a call takes 6 to 26 % less, but with 32 and more queries 20 to 30 % more than with the keys across."""


LARGEST_SCORE = 2**16
"""Up to this, their maximum is subtracted from logits that end in a product without a comparison (`_numerics.below`):
where XLA makes one multiply-add of both, the largest misses its own maximum by 2⁻⁸ at most."""


SINGLE_TILE_PAIRS = 2**16
"""Up to 256 × 256 pairs with nothing but scaled products are computed as one chain without loop or branch, of which XLA
makes one kernel: over many heads twice as fast as in four. So are those of a mask, where nothing but out is read: with
lse, or before a gradient, they are several kernels, and faster some heads at a time (AMD EPYC, two cores)."""


KEPT_PAIRS = 2**12
"""Up to 64 × 64 such pairs the backward pass computes its weights as the forward pass does, [queries, keys], so that
XLA computes them once for both in a program that holds both. They are then kept between the two, and take no more
memory than the queries of a head of width 64. The products are most of the time: six instead of seven."""


WRITTEN_OUT_TILES = 16
"""Up to so many tiles, 2,048 × 2,048 pairs on a CPU, are visited one after another without a loop. With 8 heads of 64,
causal, a call took 35 ms instead of 41, a gradient 118 instead of 126, a jvp 93 instead of 104 (Intel, two cores)."""

WRITTEN_OUT_TILES_OF_VALUE = 36
"""And so many for a value, causal of 4,096 × 4,096 pairs: with 8 heads of 64 it takes 120 ms instead of 155, that of a
window of 1,024 77 ms instead of 103, each .3 s more to compile, and a gradient 457 ms instead of 487. With the tiles of
its backward pass written out too it would take 429 ms, and another .4 s to compile (Intel, two cores)."""

WRITTEN_OUT_IN_A_ROW = 4
"""And no row of more tiles, or than there are rows: with 512 queries and 8,192 keys that takes as long as in a loop."""

TILES_AT_ONCE = 2
"""Where there is no loop, a tile waits for the one before the last: XLA, which computes at once what is independent,
would hold all tiles. One at a time, a causal forward pass takes 38 ms instead of 35; three take no less than two."""


def tile_sizes(T: int, S: int, *, platform: str | None = None) -> tuple[int, int]:
    """How many queries and how many keys make a tile.

    A tile of logits must stay in the second-level cache of a CPU core, together with its weights (with tiles from 256
    to 1,024 a causal call of 4,096 takes the same time within the noise); a small call is one tile and no loop.
    Lengths are split evenly and rounded up to 16 rows, so that little is padded: 1021 queries are two tiles of 512,
    not one of 512 and one of 509. On an accelerator tiles are larger, since each step of the loop is a kernel launch.

    Args:
      T: queries. S: keys. Either may be a symbol of `jax.export`, which may turn out short: its tiles are half as long.
      platform: "cpu", "gpu" or "tpu"; the default backend if None.

    Returns:
      (queries, keys) of a tile, at least 1 each.
    """
    most = 512 if (platform or jax.default_backend()) == "cpu" else 1024
    q = _even(T, most)
    # Few queries leave room for many keys: the same area, in fewer steps.
    return q, _even(S, max(most, most * most // q // TILE_MULTIPLE * TILE_MULTIPLE))


def _even(n: int, most: int) -> int:
    if not isinstance(n, int):
        return most // 2
    if n <= most:
        return max(1, n)
    return TILE_MULTIPLE * math.ceil(n / math.ceil(n / most) / TILE_MULTIPLE)


SMALL_TILE = 128
"""Queries and keys of a tile on a CPU, at most, where a mask leaves few pairs of a larger one."""

SMALL_TILE_SHARE = 0.45
"""Small tiles are taken where those to visit hold at most so large a share of the pairs that larger ones would. With 8
heads of 64, a window of 128 keys and T = 4,096 (.26 of the pairs), the value, the gradient and the jvp take .5 to .6 of
the time; of 256 keys (.39 of the pairs) .72 to .81, at T = 1,024 (.44) .85 to .89; of 512 keys (.62), where they are
not taken, they would take 1.2 times as long. Tiles of 256 gain less wherever any gain (Intel, two cores)."""

MOST_SMALL_TILES = 2**20
"""Of more, the mask is not asked which it rules out: lists of their block states take seconds to make."""


def small_tile_sizes(T: int, S: int) -> tuple[int, int]:
    """How many queries and how many keys make a small tile."""
    return _even(T, SMALL_TILE), _even(S, SMALL_TILE)


def group_bytes(platform: str) -> int:
    """Bytes of working set that one group of examples may have.

    A CPU core must find them in its caches. An accelerator wants every unit busy, and its memory is the only bound.
    """
    return 8 * 2**20 if platform == "cpu" else 2**30


LARGE_TILE_BYTES = 2**21
"""Of more than `WRITTEN_OUT_TILES` tiles in several rows, of such a working set, 512 × 512 in float32, a CPU has
one example in a group and not four: in loops, causal or of a window, T = 4,096, the value and the gradient compile in
.78 to .86 of the time; to run, a gradient takes as long and a value up to .04 more. Elsewhere a value would take
longer: of 16 queries with 32,768 keys 1.22 times, of 64 with 8,192 1.14, of fewer tiles up to 1.09 (Intel, two
cores)."""


LANES = 128
"""Sizes of tiles in a kernel of the TPU are multiples of this, the lanes of its vector registers."""

KERNEL_TILE = 512
"""Queries and keys of a tile there, at most: a tile of logits is 1 MiB, and a dozen of them fit into its vector memory
beside the blocks of the operands. Compiled, and not measured."""

KERNEL_DROPOUT_TILE = 256
"""The same where dropout draws for each pair, in a hundred steps that the compiler writes out for all of a tile: of
512 × 512 a program is twice as long, and takes four times as long to compile."""

KERNEL_MOST_WIDTH = 256
"""The widest head whose blocks fit beside such tiles."""

KERNEL_SCHEDULE_BYTES = 2**18
"""Bytes of the schedule of a kernel: it lies in the memory of scalars, of which a core has 1 MiB."""

KERNEL_SCALAR_BYTES = 7 * 2**17
"""Bytes of all that lies there: an eighth is left for what the compiler keeps of its own."""


GPU_GENERATION = 9
"""The compute capability of the NVIDIA GPUs that the kernels were run on, and are taken on unasked: H100 and H200."""

GPU_TILES = MappingProxyType(
    {
        "jattn_forward": (((64, 64), (64, 64)), ((64, 64), (32, 32))),
        "jattn_tangent": (((64, 64), (64, 32)), ((64, 32), (32, 32))),
        "jattn_backward_q": (((64, 64), (64, 64)), ((64, 64), (32, 32))),
        "jattn_backward_kv": (((64, 64), (32, 64)), ((32, 64), (32, 32))),
        "jattn_backward_table": (((64, 64), (32, 32)), ((32, 32), (32, 32))),
    }
)
"""Queries and keys of a tile in each kernel of the GPU: of operands in 16 bits with heads of up to 64 and with wider
ones, and likewise of others. On an H200 these were the fastest of 86 tiles and numbers of warps, those of the backward
pass in 16 bits of 46 more (B = 2, H = 16, T = 4,096, causal), or within a tenth of it and with fewer values spilled to
memory: logits, weights, what is as wide as the heads and the sums that a fold carries lie in registers, of which a
thread has 255 (`make compile` asks ptxas). The kernel of a table's gradient, in squares, was not measured."""

GPU_FLOAT32_DOUT_TILE = (32, 32)
"""Of the backward pass of heads wider than 64 in 16 bits, where the cotangent of out is float32: it takes twice as many
registers. On an H200 64 × 32 took a fifth less time, before a masked tile had a form without a search; beside that it
spills 1.6 kB."""

GPU_BUSY_TILES = MappingProxyType(
    {
        "jattn_forward": ((64, 32), (64, 32)),
        "jattn_tangent": ((64, 32), (64, 16)),
        "jattn_backward_q": ((64, 32), (64, 16)),
        "jattn_backward_kv": ((32, 32), (32, 16)),
        "jattn_backward_table": ((32, 32), (16, 16)),
    }
)
"""The same, by the width of the heads alone, where dropout draws for each pair or the score looks up an entry of an
array for each: that takes registers too. Chosen to spill nothing, and not measured."""

GPU_SMALL_TILES = ((32, 16), (16, 16))
"""Smaller ones: the first where heads are wider than 64 and dropout draws for each pair, or the score looks up an entry
of an array for each pair, and where a derivative pass of narrower ones has such a score; the second where both are."""

GPU_STAGES = 2
"""Tiles whose loads are under way at a time there: one, while another is worked on."""


def gpu_stages(kernel: str, width: int, *, half: bool, crowded: bool) -> int:
    """The same of a kernel, by its name and the widest of its operands.

    One more saves 1 to 10 % on an H200 where q, k and v are of 16 bits (`half`) and two programs still find room on a
    multiprocessor: with heads wider than 64 not those of the tangent pass and of the cotangent of q, nor that of dk and
    dv where several heads of queries share their keys or the cotangent of out is float32 (`crowded`).
    """
    roomy = kernel == "jattn_forward" or (kernel == "jattn_backward_kv" and not crowded)
    return GPU_STAGES + (half and (width <= 64 or roomy))


def gpu_warps(q_tile: int, k_tile: int, width: int, *, busy: bool) -> int:
    """Warps of a program there, 32 threads each.

    On an H200 eight take 1.2 to 3 times as long as four with tiles of up to 64 × 64, and of up to 128 × 64 with heads
    of up to 64; with larger ones four have too few registers. `busy`: likewise where dropout draws for each pair or the
    score looks up an entry for each.
    """
    return 8 if busy or q_tile * k_tile * width > 128 * 64 * 64 else 4


GPU_TILE_SIZES = (16, 32, 64, 128)
"""Tiles that a caller may choose there: Triton takes powers of two, and a product of matrices has 16 rows at least."""

GPU_WIDTHS = (16, 32, 64, 128)
"""Widths of heads there: likewise, and of wider ones the sums do not fit into registers."""

GPU_SCHEDULE_BYTES = 2**26
"""Bytes of the list of tiles to visit, in global memory: little beside the operands of a call that has so many."""


GPU_ENTRIES_OF_A_BYTE = 2**31
"""The most entries of an array of booleans or of floats of 8 bits. Pallas finds an entry by an int32 up to 2³² bytes,
and by an int64 beyond: of wider numbers these are no more than an int32 counts."""

GPU_PROGRAMS = 2**9
"""So many programs keep its multiprocessors busy, of which an H200 has 132: where there would be fewer, the kernel of a
table's gradient takes the heads that share the table apart, and they are added up later. Not measured."""


KERNEL_TABLE = 64
"""The most entries of a learned table, and blocks that a query has chosen, in a kernel of the TPU: it cannot gather,
and looks at them one after another."""


KERNEL_OFFSETS = 2**16
"""The most entries that a kernel of the TPU holds of what a score modifier and a mask look up by distance, where rows
stand in order (`kernels.distances`): T + S for each table or array. All lie in vector memory, in a jvp beside their
tangents; with heads of 256 in float32 twice as many do not fit (TPU v5)."""

KERNEL_ROWS = 2
"""The most arrays that a mask or a score modifier has an entry of for each query, and for each key: in the gradient
each takes as much vector memory of a TPU as a quarter of the logits, and with four and heads of 256 it is full."""

KERNEL_BLOCKS = 2**16
"""The most entries of a table of blocks in a kernel of the TPU, each side rounded up to `LANES`: all of it lies in
vector memory, and a tile that is masked costs products as wide as the table."""


def kernel_tile_sizes(
    T: int, S: int, platform: str, *, kernel: str, width: int, half: bool, draws: bool, gathers: bool,
    float32_dout: bool = False,
) -> tuple[int, int]:  # fmt: skip
    """How many queries and how many keys make a tile of a kernel: as few tiles as `KERNEL_TILE` allows, evenly.

    Args:
      kernel: its name.
      width: of the widest of q, k and v.
      half: whether they are all of 16 bits.
      draws: whether it draws what dropout keeps.
      gathers: whether its score looks up an entry of an array for each pair.
      float32_dout: whether the cotangent of out does not fit into those 16 bits.
    """
    if platform == "gpu":
        wide = width > 64
        gathers = gathers and kernel != "jattn_backward_table"  # the tiles of a diagonal have the same entries
        if not (draws or gathers):
            return GPU_FLOAT32_DOUT_TILE if half and wide and float32_dout else GPU_TILES[kernel][not half][wide]
        smaller = (draws and wide) + (gathers and (wide or kernel != "jattn_forward"))
        return (GPU_BUSY_TILES[kernel][wide], *GPU_SMALL_TILES)[smaller]
    most = KERNEL_DROPOUT_TILE if draws else KERNEL_TILE
    q, k = (LANES * math.ceil(n / math.ceil(n / most) / LANES) for n in (T, S))
    return q, k


DECODE_ROWS = 64
"""Up to so many query rows for one key/value head of a cache, reading the keys is what costs (decoding); above, the
products are, and tiles skip what the mask rules out (prefill)."""

CHUNK_BYTES = 2**23
"""Bytes of keys and values in the dtype of the arithmetic that one step of decoding reads: they stay in the caches."""
