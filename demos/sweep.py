"""4,096 descents at once, sharded over devices: how fast does q_bank align with k_river?

32 beginnings × 32 learning rates × 2 targets × 2 optimisers, one jitted call for each part of the way. With --folder
each part ends in a checkpoint, written in shards; run it again, on any number of devices, and it goes on from the last.
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
from rich.console import Console
from rich.progress import track

import jattn
from jattn import flow

SEEDS, RATES, D = 32, np.geomspace(0.003, 10, 32), 4
WORDS = {"river": [1.0, 0.2, 0.0, 0.1], "money": [-0.8, 0.6, 0.1, 0.0], "the": [0.0, 0.0, 0.4, 0.2]}
OPTIMISERS = {"sgd": optax.sgd, "adam": optax.adam}
RUNS = SEEDS * len(RATES) * 2  # of each optimiser
ALIGNED = -np.log(0.9)
"""The loss at which a query gives nine tenths of its attention to its target."""


def arguments():
    made = _cli.parser(__doc__)
    made.add_argument("--devices", type=int, default=8, help=f"simulated devices, a divisor of {RUNS} (default: 8)")
    made.add_argument("--steps", type=int, default=400, help="of each descent, at least 1 (default: 400)")
    made.add_argument("--parts", type=int, default=8, help="of the way, each a jitted call; 1 to --steps (default: 8)")
    made.add_argument("--folder", type=Path, help="where a checkpoint of each part is kept; needs jattn[train]")
    made.add_argument("--stop-after", type=int, help="end after so many parts, at least 1, as if killed")
    made.add_argument("--picture", type=Path, help="draw the sweep to this file")
    return made


def loss(q, target):
    """Minus the log of the attention of one query to its target, one of the three words."""
    keys = jnp.asarray(list(WORDS.values()), q.dtype)
    weights = jattn.attention(q[None], keys, jnp.eye(3, dtype=q.dtype))[0]
    return -jnp.log(weights @ target)


def beginning():
    """Every run: the query, the optimiser's state, and how many steps it was not yet aligned."""
    drawn = np.random.default_rng(0).standard_normal((SEEDS, D))
    places = np.stack(np.meshgrid(np.arange(SEEDS), np.arange(len(RATES)), np.arange(2), indexing="ij"), -1).reshape(
        -1, 3
    )
    q, rate, target = drawn[places[:, 0]], RATES[places[:, 1]], np.eye(3)[places[:, 2]]
    one = {"q": q, "rate": rate, "target": target, "before": np.zeros(len(q))}
    return {name: one | {"state": jax.vmap(lambda q, r, o=o: o(r).init(q))(q, rate)} for name, o in OPTIMISERS.items()}


def forward(runs, steps):
    """All runs, `steps` steps further."""

    def one(optimiser, run):
        path = flow.run(loss, run["q"], optimiser(run["rate"]), steps, data=(run["target"],), state=run["state"], at=1)
        before = run["before"] + jnp.sum(path.loss[:-1] > ALIGNED)
        return run | {"q": path.params, "state": path.state, "before": before}

    return {name: jax.vmap(functools.partial(one, OPTIMISERS[name]))(run) for name, run in runs.items()}


def check(args):
    """Refuses what would only fail far into the run, or leave nothing to see."""
    if args.devices < 1 or RUNS % args.devices:
        raise _cli.BadInput(f"--devices {args.devices}: must divide {RUNS}, as 1, 2, 4 and 8 do. Leave it out for 8.")
    if args.steps < 1:
        raise _cli.BadInput(f"--steps {args.steps}: must be at least 1. Leave it out for 400.")
    if not 1 <= args.parts <= args.steps:
        raise _cli.BadInput(f"--parts {args.parts}: must be from 1 to --steps, here {args.steps}. Give one of these.")
    if args.stop_after is not None and args.stop_after < 1:
        raise _cli.BadInput(f"--stop-after {args.stop_after}: must be at least 1. Leave it out to run to the end.")


def checkpointer(folder):
    """What writes to the folder and reads from it."""
    _cli.check_folder(folder, "--folder")
    try:
        import orbax.checkpoint as ocp
    except ImportError:
        raise _cli.BadInput("--folder needs orbax. Run: pip install 'jattn[train]', or leave --folder out.") from None
    return ocp.StandardCheckpointer()


def compute(args):
    check(args)
    saver = checkpointer(args.folder) if args.folder else None
    devices = jax.devices()[: args.devices]
    mesh = jax.make_mesh((len(devices),), ("runs",), axis_types=(AxisType.Auto,), devices=devices)
    kept = NamedSharding(mesh, PartitionSpec("runs"))
    runs, done = jax.device_put(beginning(), kept), 0
    if args.folder and args.folder.exists():
        done = max((int(p.name) for p in args.folder.iterdir() if p.name.isdigit()), default=0)
    if done:  # onto the devices that are here now, however many wrote it
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=kept), runs)
        runs = saver.restore(args.folder.resolve() / str(done), shapes)
    steps = args.steps // args.parts
    step = jax.jit(functools.partial(forward, steps=steps), in_shardings=kept, out_shardings=kept)
    start, begun = time.perf_counter(), done
    bar = track(range(done, args.parts), "descending", console=Console(stderr=True), transient=True)
    for part in bar:
        if args.stop_after is not None and part >= args.stop_after:
            break
        runs, done = step(runs), part + 1
        if args.folder:
            saver.save(args.folder.resolve() / str(done), runs)
            saver.wait_until_finished()
    jax.block_until_ready(runs)
    seconds = time.perf_counter() - start
    of = {name: np.asarray(run["before"]).reshape(SEEDS, len(RATES), 2) for name, run in runs.items()}
    if args.picture:
        from _sweep_picture import draw

        draw(of, done * steps, RATES, WORDS, args.picture)
    share = {s.data.nbytes for s in runs["sgd"]["q"].addressable_shards}
    return {
        "runs": len(OPTIMISERS) * RUNS, "devices": len(devices), "steps": done * steps, "begun": begun * steps,
        "steps_per_second": (done - begun) * steps * len(OPTIMISERS) * RUNS / seconds,
        "bytes_of_q_on_each_device": sorted(share), "bytes_of_q": runs["sgd"]["q"].nbytes,
        "rates": RATES, "before": {n: np.median(x, 0) for n, x in of.items()},
        "sum": {n: float(np.asarray(run["q"]).sum()) for n, run in runs.items()},
        "squares": {n: float((np.asarray(run["q"]) ** 2).sum()) for n, run in runs.items()},
    }  # fmt: skip


def show(paper, r):
    _cli.title(paper, f"{r['runs']} descents of {r['steps']} steps on {r['devices']} devices")
    rows = [
        [f"{rate:.3g}", *(f"{r['before'][name][i][t]:.0f}" for name in r["before"] for t in range(2))]
        for i, rate in enumerate(r["rates"])
        if i % 4 == 0
    ]
    heads = ["learning rate", *(f"{name},\n{word}" for name in r["before"] for word in list(WORDS)[:2])]
    paper.print(_cli.table(heads, rows))
    paper.print(f"Median steps until 90 % of the attention is on the target; {r['steps']} where it never is.")
    paper.print(f"Each device holds {r['bytes_of_q_on_each_device'][0]} of {r['bytes_of_q']} bytes of the queries.")
    paper.print(f"{r['steps_per_second']:,.0f} steps of one descent per second.")


if __name__ == "__main__":
    jax.config.update("jax_num_cpu_devices", max(1, arguments().parse_known_args()[0].devices))
    _cli.run(arguments(), compute, show)
