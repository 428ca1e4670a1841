"""A small transformer language model, trained on a mesh of data × sequence: the same losses as on one device.

Everything but attention is left to the compiler, which sees how the tokens are sharded; attention is a ring along the
sequence, causal, in zigzag order.
"""

import functools
import time
from pathlib import Path

import _cli
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from jattn import masks, sharding

LAYERS, H, D, WIDTH, B, T = 2, 4, 8, 32, 4, 128
SPEC = PartitionSpec("data", "seq")
DATA, SEQ = (", ".join(str(n) for n in range(1, most + 1) if most % n == 0) for most in (B, T // 2))
"""Numbers of devices that divide the batch, and the half sequence: each holds two pieces, in zigzag order."""


def arguments():
    made = _cli.parser(__doc__)
    made.add_argument("--data", type=int, default=2, help=f"devices along the batch: {DATA} (default: 2)")
    made.add_argument("--seq", type=int, default=4, help=f"devices along the sequence: {SEQ} (default: 4)")
    made.add_argument("--steps", type=int, default=30, help="of Adam, at least 1 (default: 30)")
    return made


def beginning():
    rng = np.random.default_rng(0)

    def normal(*shape):
        return np.asarray(rng.standard_normal(shape) / np.sqrt(shape[0]), np.float32)

    layer = {"qkv": (WIDTH, 3 * H * D), "out": (H * D, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layers = [{name: normal(*shape) for name, shape in layer.items()} for _ in range(LAYERS)]
    return {"embed": normal(256, WIDTH), "places": 0.1 * normal(T, WIDTH), "layers": layers}


def norm(x):
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def model(params, tokens, order, attend):
    """Tokens [B, T] at the positions `order` to logits [B, T, 256]."""
    x = params["embed"][tokens] + params["places"][order][None]
    for layer in params["layers"]:
        q, k, v = (y.reshape(*x.shape[:2], H, D) for y in jnp.split(norm(x) @ layer["qkv"], 3, -1))
        x = x + attend(q, k, v).reshape(*x.shape[:2], H * D) @ layer["out"]
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    return norm(x) @ params["embed"].T


def train(data, seq, steps):
    """The loss of each step, and how long they took."""
    devices = jax.devices()[: data * seq]
    mesh = jax.make_mesh((data, seq), ("data", "seq"), axis_types=(AxisType.Auto,) * 2, devices=devices)
    order = sharding.zigzag(np.arange(T, dtype=np.int32), seq)
    attend = functools.partial(sharding.attention, mesh=mesh, spec=SPEC, mask=masks.causal())
    attend = functools.partial(attend, q_positions=order, k_positions=order)
    text = np.frombuffer((Path(__file__).parent / "ERRATA.md").read_bytes(), np.uint8).astype(np.int32)
    adam = optax.adam(3e-3)

    def loss(params, tokens, following):
        logits = model(params, tokens, order, attend)
        return optax.softmax_cross_entropy_with_integer_labels(logits, following).mean()

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, *batch):
        value, grad = jax.value_and_grad(loss)(params, *batch)
        updates, state = adam.update(grad, state)
        return optax.apply_updates(params, updates), state, value

    whole, kept = (NamedSharding(mesh, spec) for spec in (PartitionSpec(), SPEC))
    params = jax.device_put(beginning(), whole)
    state, losses, start = jax.device_put(adam.init(params), whole), [], time.perf_counter()
    for n in range(steps):
        places = np.random.default_rng(n).integers(0, len(text) - T - 1, B)
        batch = [jax.device_put(np.stack([text[p + i + order] for p in places]), kept) for i in (0, 1)]
        params, state, value = step(params, state, *batch)
        losses.append(float(value))
    return losses, time.perf_counter() - start


def compute(args):
    if args.data < 1 or B % args.data:
        raise _cli.BadInput(f"--data {args.data}: must divide the batch of {B}. Use one of {DATA}.")
    if args.seq < 1 or T % (2 * args.seq):
        wanted = f"twice as many must divide the {T} tokens, for zigzag order"
        raise _cli.BadInput(f"--seq {args.seq}: {wanted}. Use one of {SEQ}.")
    if args.steps < 1:
        raise _cli.BadInput(f"--steps {args.steps}: must be at least 1. Leave it out for 30.")
    if (wanted := args.data * args.seq) > (here := len(jax.devices())):
        raise _cli.BadInput(f"--data {args.data} × --seq {args.seq}: need {wanted} devices of {here}. Use fewer.")
    with jax.enable_x64(False):
        many, seconds = train(args.data, args.seq, args.steps)
        one, _ = train(1, 1, args.steps)
    off = float(np.max(np.abs(np.array(many) / np.array(one) - 1)))
    return {"data": args.data, "seq": args.seq, "many": many, "one": one, "off": off, "seconds": seconds}


def show(paper, r):
    _cli.title(paper, f"{len(r['many'])} steps on {r['data']} × {r['seq']} devices, {B} texts of {T} bytes each")
    rows = [[str(n), f"{a:.6f}", f"{b:.6f}"] for n, (a, b) in enumerate(zip(r["many"], r["one"], strict=True))]
    paper.print(_cli.table(["step", "loss on\nthe mesh", "on one\ndevice"], [*rows[::5], rows[-1]]))
    paper.print(f"Greatest relative difference {r['off']:.1e}; float32 rounds at {np.finfo(np.float32).eps:.1e}.")
    paper.print(f"{r['seconds']:.1f} s, compilation included. A loss of {np.log(256):.2f} would be a guess.")


if __name__ == "__main__":
    given = arguments().parse_known_args()[0]
    jax.config.update("jax_num_cpu_devices", max(1, given.data * given.seq))
    _cli.run(arguments(), compute, show)
