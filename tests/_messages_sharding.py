"""What `jattn.sharding` refuses, word for word; a part of the table in test_messages."""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jattn
from jattn import masks, sharding

T, H, D, Dv = 8, 4, 5, 3


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def inside(scheme="ring", *, n=2, axis_name="seq", specs=None, q_spec=None, positions=None, **given):
    """The scheme on two devices; `positions` are sharded like the rows."""

    def call():
        mesh = jax.make_mesh((n,), ("seq",), axis_types=(AxisType.Auto,), devices=jax.devices()[:n])
        x = {"q": ones(1, T, H, D), "k": ones(1, T, 2, D), "v": ones(1, T, 2, Dv)} | given
        arrays = {name: x.pop(name) for name in ("q", "k", "v")}
        rows = P(None, "seq")
        kept = specs or {"q": rows if q_spec is None else q_spec, "k": rows, "v": rows}
        spots = {"q_positions": P("seq"), "k_positions": P("seq")} if positions is not None else {}

        def f(arrays, spots):
            return getattr(sharding, scheme)(**arrays, **spots, axis_name=axis_name, **x)

        at = dict.fromkeys(spots, positions)
        try:
            jax.jit(jax.shard_map(f, mesh=mesh, in_specs=(kept, spots), out_specs=rows))(arrays, at)
        except Exception as refusal:
            refusal.__notes__ = []  # JAX adds a line of its own
            raise

    return call


def over(*, shape=(8,), names=("seq",), **given):
    def call():
        mesh = jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(names))
        x = {"q": ones(1, T, H, D), "k": ones(1, T, 2, D), "v": ones(1, T, 2, Dv), "mesh": mesh, "spec": P(None, "seq")}
        sharding.attention(**(x | given))

    return call


def planned(**given):
    sizes = {"T": 8, "S": 8, "heads": 2, "kv_heads": 2, "head_dim": 4, "dtype": jnp.float32, "devices": 2}
    return lambda: sharding.plan(**(sizes | {"flops_per_second": 1e9, "bandwidth": 1e9} | given))


def named(**given):
    """Operands whose type says that they are sharded over an axis of two."""

    def call():
        mesh = jax.make_mesh((2, 2), ("data", "seq"), axis_types=(AxisType.Explicit,) * 2, devices=jax.devices()[:4])
        x = (jax.device_put(ones(2, 4, 2, D), jax.NamedSharding(mesh, P("data"))),) * 3
        sharding.attention(*x, mesh=mesh, **given)

    return call


def explicit():
    mesh = jax.make_mesh((8,), ("seq",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(ones(8, D), jax.NamedSharding(mesh, P("seq")))
        jattn.attention(x, x, x)


def around(**given):
    """`attention` within a `jax.shard_map` over one of the two axes of a mesh."""

    def call():
        whole = jax.make_mesh((2, 2), ("data", "seq"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
        here = lambda x: sharding.attention(x, x, x, mesh=whole, **given)  # noqa: E731
        jax.jit(jax.shard_map(here, mesh=whole, in_specs=P("data"), out_specs=P("data"), axis_names={"data"}))(
            ones(2, 4, 2, D)
        )

    return call


def under_another():
    here, there = (jax.make_mesh((n,), ("seq",), axis_types=(AxisType.Auto,)) for n in (1, 2))
    with jax.set_mesh(here):
        sharding.attention(*(ones(1, T, 2, D),) * 3, mesh=there, spec=P(None, "seq"))


def merged(found=None, **given):
    """Of the two pieces of one device."""

    def call():
        x = jattn.statistics(ones(T, D), ones(T, D)) if found is None else found
        x_2 = jax.tree.map(lambda a: jnp.stack([a, a]), x)
        try:
            jax.vmap(lambda x: sharding.merge_statistics(x, **({"axis_name": "seq"} | given)), axis_name="seq")(x_2)
        except Exception as refusal:
            refusal.__notes__ = []  # JAX adds a line of its own
            raise

    return call


LOCAL = "Pass the local blocks that jax.shard_map hands its function, all three with the same batch axes."
BOUND = "Call it inside jax.shard_map over a mesh with this axis, or use jattn.sharding.attention, which does."
STAND = "A block does not know where it stands: shard jax.numpy.arange(T) like q and pass the local piece, or pass the whole order as a NumPy array."
BY = "Say it by positions, as masks.causal and masks.window do, or by ids that are sharded like the rows."
SERVES = "Each key/value head serves the same number of query heads."
OWN = "Pass one of jattn.sharding, such as ring or tree, and the options of attention itself."
SCHEMELESS = "Name the mesh axis that the keys are sharded over; keys that are whole need no scheme."
AROUND = "attention: mesh must be that of the surrounding jax.shard_map or jax.set_mesh, got mesh"
CONTEXT = "Pass jax.sharding.get_abstract_mesh()."
WHOLE = np.arange(T, dtype=np.int32)


def halves(name, spec):
    """A scheme over both axes of a mesh, where the devices along one of them have the same of something."""

    def call():
        mesh = jax.make_mesh((2, 2), ("ring", "heads"), axis_types=(AxisType.Auto,) * 2, devices=jax.devices()[:4])
        rows = P(None, ("ring", "heads"))
        q, at, given = (spec, P(), {}) if name == "tree" else (rows, spec, {"mask": masks.causal()})

        def f(q, k, v, at):
            where = {"q_positions": at, "k_positions": at} if given else {}
            return getattr(sharding, name)(q, k, v, axis_name=("ring", "heads"), **where, **given)

        x = ones(1, T, H, D), ones(1, T, H, D), ones(1, T, H, Dv), np.arange(4, dtype=np.int32)
        try:
            jax.shard_map(f, mesh=mesh, in_specs=(q, rows, rows, at), out_specs=rows)(*x)
        except Exception as refusal:
            refusal.__notes__ = []  # JAX adds a line of its own
            raise

    return call


SHARDING = [
    (explicit, ValueError, "attention: on an explicit mesh only batch and heads may be sharded, got an operand float32[8@seq,5]. Use jattn.sharding.attention for a sharded sequence, or jax.sharding.reshard before."),
    (lambda: sharding.ring(ones(1, T, H, D), ones(1, T, 2, D), ones(1, T, 2, Dv), axis_name="seq"), ValueError, f"ring: axis_name must be an axis of a surrounding jax.shard_map, got axis_name 'seq'. {BOUND}"),
    (inside(axis_name=["seq"]), TypeError, "ring: axis_name must be a mesh axis, or a tuple of them, got axis_name of type list. Write several as ('a', 'b')."),
    (inside(axis_name=0), ValueError, f"ring: axis_name must be an axis of a surrounding jax.shard_map, got axis_name 0. {BOUND}"),
    (lambda: jax.vmap(lambda x: sharding.ring(x, x, x, axis_name="i"), axis_name="i")(ones(3, T, H, D)), ValueError, "ring: axis_name must be an axis of a surrounding jax.shard_map, and none of jax.vmap, got axis_name 'i'. Call it inside jax.shard_map over a mesh with this axis, or take gather, which vmap takes too."),
    (inside(axis_name=("seq", "seq")), ValueError, "ring: axis_name must name an axis once, got axis_name ('seq', 'seq'). Give each a mesh axis of its own."),
    (inside("ring_all_to_all", axis_name=("seq", "seq")), ValueError, "ring_all_to_all: axis_name must name an axis once, got axis_name ('seq', 'seq'). Give each a mesh axis of its own."),
    (inside(axis_name=()), ValueError, f"ring: axis_name must name a mesh axis, got axis_name (). {SCHEMELESS}"),
    (inside("tree", axis_name=()), ValueError, f"tree: axis_name must name a mesh axis, got axis_name (). {SCHEMELESS}"),
    (merged(axis_name=()), ValueError, f"merge_statistics: axis_name must name a mesh axis, got axis_name (). {SCHEMELESS}"),
    (around(spec=P("data", "seq")), ValueError, "attention: spec must not name an axis of a surrounding jax.shard_map, got spec P('data', 'seq'). Along it the arrays are blocks already: leave it out, or call a scheme there if it cuts the sequence, as in jattn.sharding.ring(q, k, v, axis_name='data')."),
    (around(spec=P(None, "seq")), ValueError, f"{AROUND} Mesh of {{'data': 2, 'seq': 2}}. {CONTEXT}"),
    (under_another, ValueError, f"{AROUND} Mesh of {{'seq': 2}}. {CONTEXT}"),
    (over(scheme=sharding.Scheme), TypeError, f"attention: scheme must be a function, got scheme the class Scheme. {OWN}"),
    (over(spec=(None, ["seq"])), TypeError, "attention: each entry of spec must be None, a mesh axis, or a tuple of them, got spec (None, ['seq']). Write several as ('a', 'b')."),
    (inside("tree", axis_name="rows"), ValueError, f"tree: axis_name must be an axis of a surrounding jax.shard_map, got axis_name 'rows'. {BOUND}"),
    (inside(q=ones(T, D), specs={"q": P("seq"), "k": P(None, "seq"), "v": P(None, "seq")}), ValueError, f"ring: q must have the axes [*B, T/P, H, D], got q [4, 5]. {LOCAL}"),
    (inside(k=ones(1, T, 2, 4)), ValueError, "ring: q, k and v must fit each other, got q [1, 4, 4, 5] and k [1, 4, 2, 4] and v [1, 4, 2, 3]. Give q and k the same *B and D, k and v the same *B, S and Hkv."),
    (inside(k=ones(1, T, 3, D), v=ones(1, T, 3, Dv)), ValueError, "ring: H must be a multiple of Hkv, got q [1, 4, 4, 5] and k [1, 4, 3, 5]. Each key/value head serves the same number of query heads."),
    (inside(k=ones(1, 0, 2, D), v=ones(1, 0, 2, Dv)), ValueError, "ring: each device must hold at least one query and one key, got q [1, 4, 4, 5] and k [1, 0, 2, 5]. Use fewer devices, or pad the sequence."),
    (inside(bias=1, tile=(16, 16)), TypeError, "ring: each option must be known, got option bias, tile. It takes mask, score, sink, scale, q_positions, k_positions and return_lse."),
    (inside(sink=ones(3)), ValueError, "ring: sink must have the shape [] or [H], got sink [3]. Give one logit for all heads, or one a head: H is 4 here."),
    (inside(mask=masks.causal()), ValueError, f"ring: mask looks at positions, so the rows of both sides must have them, got no q_positions and no k_positions. {STAND}"),
    (inside("gather", score=lambda s, i, j: s * (i > j).astype(s.dtype), q_positions=WHOLE), ValueError, f"gather: score looks at positions, so the rows of both sides must have them, got no k_positions. {STAND}"),
    (inside(mask=masks.causal(), q_positions=WHOLE[:3], k_positions=WHOLE), ValueError, "ring: q_positions must be the local piece [T/P], or the whole order [T] as a NumPy array, got q_positions [3]. T/P is 4 and T is 8 here; shard the positions as q is sharded."),
    (inside(mask=masks.causal(), q_positions=WHOLE, k_positions=jnp.arange(4)), ValueError, "ring: k_positions must be sharded like k, got k_positions the same along 'seq'. The same positions on each device would place all shards at one spot: give them the same spec."),
    (inside(q_positions=WHOLE[:3]), ValueError, "ring: q_positions must be the local piece [T/P], or the whole order [T] as a NumPy array, got q_positions [3]. T/P is 4 and T is 8 here; shard the positions as q is sharded."),
    (inside(mask=masks.causal(), q_positions=[[1], [1, 2]], k_positions=WHOLE), TypeError, "ring: q_positions must be an array of numbers in one shape, got q_positions of type list. Pass a jax or NumPy array."),
    (over(q_positions=WHOLE[:3]), ValueError, "attention: q_positions must have the shape [T], got q_positions [3]. Give one position to each row of q: T is 8 here."),
    (inside(return_lse="no"), TypeError, "ring: return_lse must be True or False, got return_lse of type str. Pass a bool, static in jax.jit."),
    (over(return_lse="no"), TypeError, "attention: return_lse must be True or False, got return_lse of type str. Pass a bool, static in jax.jit."),
    (inside(mask=masks.lengths(k=3)), ValueError, f"ring: mask must not count the rows of an array, of which each device holds a piece, got mask lengths. {BY}"),
    (inside("all_to_all", mask=masks.causal() & ~masks.dense(ones(T, T, dtype=bool)), q_positions=WHOLE, k_positions=WHOLE), ValueError, f"all_to_all: mask must not count the rows of an array, of which each device holds a piece, got mask dense. {BY}"),
    (inside(mask=masks.causal), TypeError, "ring: mask must be a mask, got mask of type function. Call it: mask=jattn.masks.causal(…)."),
    (inside(mask=ones(T, T, dtype=bool)), TypeError, "ring: mask must be a mask, got mask of type ndarray. Make one with jattn.masks; an array of booleans would have to be sharded along both its axes."),
    (inside("tree"), ValueError, "tree: q must be the same on every device of the axis, got q varying along 'seq'. Leave the axis out of its spec; for queries that are sharded like the keys use ring."),
    (inside("ring_all_to_all"), TypeError, "ring_all_to_all: axis_name must be a pair of mesh axes, got axis_name 'seq'. Name the axis of the ring and the axis of the heads, in this order."),
    (inside("all_to_all", q=ones(1, T, 3, D), k=ones(1, T, 3, D), v=ones(1, T, 3, Dv)), ValueError, "all_to_all: the heads must divide evenly: H a multiple of the devices, and Hkv one, or the devices one of Hkv, got H 3 and Hkv 3 and devices 2. Use ring or gather, which take any number of heads, or fewer devices along this axis."),
    (merged(axis_name="rows"), ValueError, f"merge_statistics: axis_name must be an axis of a surrounding jax.shard_map, got axis_name 'rows'. {BOUND}"),
    (merged(found=(ones(T), ones(T))), TypeError, "merge_statistics: found must be Statistics, got found of type tuple. Pass what jattn.statistics returns."),
    (merged(sink=ones(3)), ValueError, "merge_statistics: sink must broadcast to [*B, T], got sink [3]. Give each axis its full length or 1: [*B, T] is [8] here."),
    (over(scale=float("nan")), ValueError, "attention: scale must be finite, got scale nan. Leave it out for 1/√D."),
    (over(sink=ones(H, dtype=np.int32)), TypeError, "attention: sink must be floating point, got sink int32[4]. Convert it first: sink.astype(jax.numpy.float32)."),
    (over(mask=masks.causal(), q_positions=list(range(7)), k_positions=WHOLE), ValueError, "attention: q_positions must have the shape [T], got q_positions [7]. Give one position to each row of q: T is 8 here."),
    (over(spec=P(None, "seq", None, None)), ValueError, "attention: spec must have at most the axes [*B, T, H], got spec P(None, 'seq', None, None) and q [1, 8, 4, 5]. Name a mesh axis for each that is sharded, as in P('data', 'seq', 'heads')."),
    (over(q=ones(1, 13, H, D)), ValueError, "attention: T must be a multiple of the devices along it, got q [1, 13, 4, 5] and devices 8. Pad q by 3 rows, and drop these of the result."),
    (over(k=ones(1, 9, H, D), v=ones(1, 9, H, D)), ValueError, "attention: S must be a multiple of the devices along it, got k [1, 9, 4, 5] and devices 8. Pad k and v by 7 rows, and let no query attend them, as with mask=jattn.masks.where(lambda t, s: s < 9)."),
    (halves("ring_all_to_all", P("ring")), ValueError, "ring_all_to_all: q_positions must be sharded like q, got q_positions the same along 'heads'. The same positions on each device would place all shards at one spot: give them the same spec."),
    (halves("ring", P("heads")), ValueError, "ring: q_positions must be sharded like q, got q_positions the same along 'ring'. The same positions on each device would place all shards at one spot: give them the same spec."),
    (halves("tree", P(None, "heads")), ValueError, "tree: q must be the same on every device of the axis, got q varying along 'heads'. Leave the axis out of its spec; for queries that are sharded like the keys use ring."),
    (over(mesh=None), TypeError, "attention: mesh must be a mesh of devices, got mesh of type NoneType. Make one with jax.make_mesh."),
    (over(spec="seq"), TypeError, "attention: spec must be a PartitionSpec, got spec of type str. Name the mesh axis of each axis [*B, T, H], as in jax.sharding.PartitionSpec('data', 'seq')."),
    (over(spec=P("data", "seq")), ValueError, "attention: spec must name axes of the mesh, got spec P('data', 'seq') and mesh of the axes 'seq'. Name one of these, or None."),
    (over(spec=P("seq", "seq")), ValueError, "attention: spec must name an axis once, got spec P('seq', 'seq'). Give each axis one of its own."),
    (named(spec=P(None, "seq")), ValueError, "attention: spec must name each explicit mesh axis that q is sharded over, got q float32[2@data,4,2,5] and spec P(None, 'seq'). Name it in spec, or apply jax.sharding.reshard before."),
    (over(mesh=jax.sharding.AbstractMesh((8,), ("seq",))), ValueError, "attention: mesh must be one of devices, or q, k and v arrays that are sharded over one, got mesh of type AbstractMesh. Pass what jax.make_mesh returns, or call it under jax.set_mesh."),
    (over(scheme=sharding.plan), TypeError, f"attention: scheme must take q, k, v and the options of attention, got scheme with the arguments T, S, heads, kv_heads, head_dim, dtype, devices, flops_per_second, bandwidth, mask. {OWN}"),
    (over(scheme=sharding.attention), TypeError, f"attention: scheme must take q, k, v and the options of attention, got scheme with the arguments q, k, v, mesh, spec, scheme, mask, score, sink, scale, q_positions, k_positions, return_lse. {OWN}"),
    (over(scheme="ring"), TypeError, f"attention: scheme must be a function, got scheme of type str. {OWN}"),
    (over(scheme=functools.partial(sharding.ring, mask=masks.causal())), TypeError, f"attention: scheme must not hold options of its own, got scheme with mask. {OWN}"),
    (over(k=ones(T, 2, D)), ValueError, "attention: k must have the axes [*B, S, Hkv, D], got k [8, 2, 5]. Give all three the same batch axes."),
    (over(v=ones(1, 13, 2, Dv)), ValueError, "attention: q, k and v must fit each other, got q [1, 8, 4, 5] and k [1, 8, 2, 5] and v [1, 13, 2, 3]. Give q and k the same *B and D, k and v the same *B, S and Hkv."),
    (over(sink=ones(3)), ValueError, "attention: sink must have the shape [] or [H], got sink [3]. Give one logit for all heads, or one a head: H is 4 here."),
    (over(mask=masks.segments(np.arange(7))), ValueError, "attention: q_ids must have the shape [T], got q_ids [7]. Give each row the number of its segment: T is 8 here."),
    (over(shape=(2, 4), names=("data", "heads"), spec=P("data")), ValueError, "attention: axis 0 of the batch must be a multiple of the devices along it, got q [1, 8, 4, 5] and devices 2. Pad q, k and v by 1 examples, and drop these of the result, or leave this axis whole in spec."),
    (over(spec=P(None, None, "seq")), ValueError, "attention: H must be a multiple of the devices along it, got q [1, 8, 4, 5] and devices 8. Shard the heads over fewer devices, or leave them whole in spec."),
    (over(shape=(2, 4), names=("data", "heads"), spec=P(None, None, "heads")), ValueError, "attention: Hkv must be a multiple of the devices along it, got k [1, 8, 2, 5] and devices 4. Repeat the heads of k and v, jax.numpy.repeat(k, 2, axis=-2), or leave heads whole in spec."),
    (lambda: sharding.zigzag(ones(12), 4), ValueError, "zigzag: the sequence must be a multiple of twice the devices, got x [12] and devices 4. Pad the sequence by 4 rows first."),
    (lambda: sharding.unzigzag(ones(8), "two"), TypeError, "unzigzag: devices must be a whole number, got devices of type str. Pass a Python int of at least 1."),
    (lambda: sharding.zigzag([1, 2], 1), TypeError, "zigzag: x must be an array, got x of type list. Pass a jax or NumPy array."),
    (lambda: sharding.unzigzag(ones(8), 2, axis=1), ValueError, "unzigzag: axis must be from 0 to rank - 1, got axis 1 and rank 1. Count from 0."),
    (lambda: sharding.zigzag(ones(8), 2, axis=-2), ValueError, "zigzag: axis must be at least -1, got axis -2. Pass a Python int of at least -1."),
    (planned(bandwidth="fast"), TypeError, "plan: bandwidth must be a real number, got bandwidth of type str. Measure one step on one device, and one transfer between two."),
    (planned(bandwidth=True), TypeError, "plan: bandwidth must be a real number, got bandwidth of type bool. Measure one step on one device, and one transfer between two."),
    (planned(bandwidth=[[1.0], [1.0, 2.0]]), TypeError, "plan: bandwidth must be a real number, got bandwidth of type list. Measure one step on one device, and one transfer between two."),
    (planned(T=10**400), ValueError, "plan: T must be at most 2**53, got T a number of 1329 bits. Plan what a machine can hold."),
    (planned(bandwidth=-10**400), ValueError, f"plan: bandwidth must be above zero, got bandwidth -1{'0' * 400}. Measure one step on one device, and one transfer between two."),
    (planned(dtype=None), TypeError, "plan: dtype must be floating point, got dtype None. Give the dtype of q, k and v, as in dtype='bfloat16'."),
    (planned(devices=0), ValueError, "plan: devices must be at least 1, got devices 0. Pass a Python int of at least 1."),
    (planned(heads=6, kv_heads=4), ValueError, f"plan: heads must be a multiple of kv_heads, got heads 6 and kv_heads 4. {SERVES}"),
    (planned(heads=2, kv_heads=4), ValueError, f"plan: heads must be a multiple of kv_heads, got heads 2 and kv_heads 4. {SERVES}"),
    (planned(dtype="bf16"), TypeError, "plan: dtype must be floating point, got dtype 'bf16'. Give the dtype of q, k and v, as in dtype='bfloat16'."),
    (planned(dtype="int32"), TypeError, "plan: dtype must be floating point, got dtype int32. Give the dtype of q, k and v, as in dtype='bfloat16'."),
    (planned(bandwidth=0.0), ValueError, "plan: bandwidth must be above zero, got bandwidth 0.0. Measure one step on one device, and one transfer between two."),
    (planned(S=2**31 + 2, mask=masks.causal()), ValueError, "plan: S must be at most 2**31 with a mask, whose positions are int32, got S 2147483650. Plan a shorter sequence, or leave the mask out."),
    (planned(mask=masks.lengths(k=3)), ValueError, f"plan: mask must not count the rows of an array, of which each device holds a piece, got mask lengths. {BY}"),
]  # fmt: skip
