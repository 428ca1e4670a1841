"""Attends over a long sequence in a ring of devices: one process that simulates them, or several real ones.

python demos/many_devices.py --devices 8                     one process, eight devices
python demos/many_devices.py --processes 4 --devices 2       starts four here, two devices each, over loopback
python demos/many_devices.py --coordinator HOST:PORT --processes 4 --rank 0      one of four; run it on each host
srun python demos/many_devices.py --cluster                  under Slurm, or in Kubernetes: JAX finds the others
"""

import functools
import time

import _cli
import _processes
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jattn
from jattn import masks, sharding

H, HKV, D = 4, 2, 32
WHOLE = 8192
"""The longest sequence that is also attended on one device, to compare."""


def arguments():
    made = _cli.parser(__doc__)
    made.add_argument("--tokens", type=int, default=2048, help="in the whole sequence (default: 2048)")
    made.add_argument("--only-ring", action="store_true", help="do not attend on one device too, to compare")
    return _processes.arguments(made)


def compute(args):
    P = len(jax.devices())
    if args.tokens % (2 * P):
        more = -args.tokens % (2 * P)
        raise _cli.BadInput(f"{args.tokens} tokens cannot be split in {2 * P} equal pieces. Add {more}.")
    mesh = jax.make_mesh((P,), ("seq",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec(None, "seq")
    order = sharding.zigzag(np.arange(args.tokens, dtype=np.int32), P)
    kept = NamedSharding(mesh, spec)

    def piece(seed, heads):
        """Each device makes its own rows: nothing is sent, no process holds all."""
        shape = (1, args.tokens, heads, D)

        def rows(index):
            drawn = [np.random.default_rng((seed, int(t))).standard_normal((heads, D)) for t in order[index[1]]]
            return np.asarray(drawn, np.float32)[None]

        return jax.make_array_from_callback(shape, kept, rows)

    x = piece(0, H), piece(1, HKV), piece(2, HKV)
    ring = functools.partial(sharding.attention, mesh=mesh, spec=spec, mask=masks.causal())
    ring = functools.partial(ring, q_positions=order, k_positions=order)

    def timed(f):
        f(x)
        start = time.perf_counter()
        out = jax.block_until_ready(f(x))
        return out, time.perf_counter() - start

    whole = NamedSharding(mesh, PartitionSpec())
    found, seconds = timed(jax.jit(lambda x: numbers_of(ring, x), out_shardings=whole))
    cost = sharding.plan(
        args.tokens, args.tokens, heads=H, kv_heads=HKV, head_dim=D, dtype=jnp.float32, devices=P,
        flops_per_second=1e11, bandwidth=1e9, mask=masks.causal(),
    ).costs[1]  # fmt: skip
    results = {
        "processes": jax.process_count(), "devices": P, "tokens": args.tokens, "numbers": found.tolist(),
        "tokens_per_second": args.tokens / seconds, "sent_per_device": cost.sent + cost.gradient_sent,
        "balance": cost.balance,
    }  # fmt: skip
    if args.tokens <= WHOLE and not args.only_ring:
        here = [gathered(a, whole) for a in x]
        one = functools.partial(jattn.dot_product_attention, mask=masks.causal(), q_positions=order, k_positions=order)
        want = jax.jit(lambda x: numbers_of(one, x))(here)
        results["one_device"] = want.tolist()
        results["off"] = float(np.max(np.abs(np.asarray(want) / np.asarray(found) - 1)))
    return results


def numbers_of(attend, x):
    """The loss and the squared length of each gradient: the same on every process."""
    loss, grads = jax.value_and_grad(lambda x: jnp.mean(jnp.sin(attend(*x))))(x)
    return jnp.stack([loss, *(jnp.sum(g**2) for g in grads)])


def gathered(a, whole):
    return np.asarray(jax.jit(lambda a: a, out_shardings=whole)(a))


def show(paper, r):
    _cli.title(paper, f"{r['tokens']} tokens in a ring of {r['devices']} devices, {r['processes']} process(es)")
    paper.print(f"loss and gradients   {_cli.vector(r['numbers'], 6)}")
    if "off" in r:
        paper.print(f"one device           {_cli.vector(r['one_device'], 6)}   relative difference {r['off']:.1e}")
    paper.print(f"tokens per second    {r['tokens_per_second']:,.0f}, value and gradient")
    paper.print(
        f"sent by each device  {r['sent_per_device']:,} bytes, as planned; busiest over mean work {r['balance']:.2f}"
    )


if __name__ == "__main__":
    _processes.run(arguments(), compute, show)
