"""What `jattn.flow` refuses, word for word; a part of the table in test_messages."""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import dataclasses
import inspect
import shutil
import sys
import tempfile
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jattn import console, flow, page

PATH = "Pass a string or a pathlib.Path."
BAR = "Write on_progress(steps taken, steps), or: with jattn.console.progress(title) as on_progress."


def ones(*shape, dtype=np.float32):
    return np.ones(shape, dtype)


def ran(**given):
    names = {"loss": lambda x: (x**2).sum(), "params": ones(2), "optimizer": optax.sgd(0.1), "steps": 3}
    return lambda: flow.run(**(names | given))


def updated(begins, becomes):
    """A run whose optimiser makes one state of another."""
    made = optax.GradientTransformation(lambda params: begins, lambda grads, state, params: (grads, becomes))
    return traced(ran(optimizer=made))


def followed(times, **given):
    return lambda: flow.integrate(lambda x: x**2, jnp.ones(()), ones(len(times)) * np.array(times, np.float32), **given)


def followed_in_pieces(kind):
    """A flow of parameters that two devices share, in a jax.shard_map or on an explicit mesh."""
    mesh = jax.make_mesh((2,), ("d",), axis_types=(kind,), devices=jax.devices()[:2])
    end = lambda x: flow.integrate(lambda x: (x**2).sum(), x, ones(1), tolerance=1e-5).params  # noqa: E731
    if kind is jax.sharding.AxisType.Auto:
        return lambda: jax.jit(jax.shard_map(end, mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P("d")))(ones(2))
    return lambda: end(jax.device_put(ones(2), jax.NamedSharding(mesh, jax.P("d"))))


def another_run():
    """A folder that holds three steps, asked for four."""
    run = (lambda x: (x**2).sum(), jnp.ones(2), optax.sgd(0.1))
    with tempfile.TemporaryDirectory() as folder:
        flow.run_in_parts(*run, 3, every=2, folder=folder + "/run")
        flow.run_in_parts(*run, 4, every=2, folder=folder + "/run")


def observed_otherwise(observe):
    """A folder that holds a run whose parameters were kept."""

    def run():
        args = (lambda x: (x**2).sum(), jnp.ones(2), optax.sgd(0.1), 2)
        with tempfile.TemporaryDirectory() as folder:
            flow.run_in_parts(*args, every=2, folder=folder + "/run")
            flow.run_in_parts(*args, every=2, folder=folder + "/run", observe=observe)

    return run


def a_damaged_checkpoint():
    """A folder whose last checkpoint has lost what it held."""
    run = (lambda x: (x**2).sum(), jnp.ones(2), optax.sgd(0.1), 3)
    with tempfile.TemporaryDirectory() as folder:
        flow.run_in_parts(*run, every=2, folder=folder)
        shutil.rmtree(Path(folder) / "3" / "told")
        flow.run_in_parts(*run, every=2, folder=folder)


def without_orbax():
    with mock.patch.dict(sys.modules, {"orbax": None, "orbax.checkpoint": None}):
        flow.run_in_parts(lambda x: x, jnp.ones(()), optax.sgd(0.1), 3, every=1, folder="never made")


def recorded(*calls, name="run.npy", held=None, **how):
    """A recorder in a folder of its own, called so; and before it one with another recording or file, if there is."""

    def call():
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / name
            if isinstance(held, bytes):
                file.write_bytes(held)
            elif held is not None:
                flow.Recorder(file)(0, held)
            recorder = flow.Recorder(file, **how)
            for step, observed in calls:
                recorder(step, observed)
            recorder.run()

    return call


def recorded_by_two():
    with tempfile.TemporaryDirectory() as folder:
        first, second = (flow.Recorder(Path(folder) / "run.npy") for _ in range(2))
        first(0, x=1.0)
        second(0, x=np.ones(3))
        first(1, x=1.0)


def in_shard_map():
    mesh, rows = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,)), jax.sharding.PartitionSpec("x")
    each = jax.shard_map(
        lambda x: flow.Recorder("never made.npy")(0, x=x) or x, mesh=mesh, in_specs=rows, out_specs=rows
    )
    jax.jit(each)(ones(2))


def traced(call):
    """What a refusal says where a program is traced, without the note on tracebacks that JAX adds to it."""

    def alone():
        try:
            call()
        except (TypeError, ValueError) as refusal:
            refusal.__notes__ = []
            raise

    return alone


KEYS = ones(17, 5)
PARTITION = "Let the loss hold what is no array: params, rest = equinox.partition(model, equinox.is_array)."
READ = "Write read(params, *data) -> (q [D], k [S, D]) or (q, k, v [S, Dv])."
ARRAY = "Pass a jax or NumPy array."
# Runs are made where they are asked for: every worker of the tests reads this table.


class Unquoted(str):
    """A text that a KeyError shows as it is, without quotes."""

    __repr__ = str.__str__


def looked_up(identity):
    try:
        return flow.Report((flow.Check("Σ_s p_s = 1", 1.0, 1.0, 0.0),))[identity]
    except KeyError as refusal:
        refusal.args = (Unquoted(*refusal.args),)
        raise


def path():
    return flow.run(lambda q: -q @ jnp.ones(2), ones(2), optax.sgd(0.1), 2)


FLOW = [
    (ran(params={"q": "river"}), TypeError, f"run: params must hold arrays, got params with a leaf of type str. {PARTITION}"),
    (ran(params={"w": np.ones(2, np.float32), "activation": jax.nn.relu}), TypeError, f"run: params must hold arrays, got params with a leaf of type custom_jvp. {PARTITION}"),
    (ran(state=optax.adam(0.1).init(np.ones(2, np.float32))), ValueError, "run: state must be one of optimizer, got state of another structure. Pass that of a run of this optimizer and of params like these, or leave it out."),
    (ran(params=ones(2, dtype=np.int32)), TypeError, "run: params must be floating point, got params int32[2]. Convert it first: params.astype(jax.numpy.float32)."),
    (ran(params={}), ValueError, "run: params must hold at least one array, got params of type dict. Pass what the loss is to be differentiated by."),
    (ran(optimizer=0.1), TypeError, "run: optimizer must be one of optax, got optimizer of type float. Pass for example optax.sgd(0.1)."),
    (ran(loss=lambda x: x), ValueError, "run: loss must return one real scalar, got loss returning float32[2]. Reduce it to one number, by a sum or a mean."),
    (ran(loss=lambda x: (x, x)), ValueError, "run: loss must return one real scalar, got loss returning of type tuple. Reduce it to one number, by a sum or a mean."),
    (ran(steps=-1), ValueError, "run: steps must be at least 0, got steps -1. Pass a Python int of at least 0."),
    (ran(steps=2.5), TypeError, "run: steps must be a whole number, got steps of type float. Pass a Python int of at least 0."),
    (ran(at=0), ValueError, "run: at must be at least 1, got at 0. Pass a Python int of at least 1."),
    (ran(at=(0, 2, 2)), ValueError, "run: at must be increasing steps from 0 to steps, got at of 3 steps and steps 3. Give them sorted, without repeats, as flow.log_steps(steps) does."),
    (ran(at=(0, 4)), ValueError, "run: at must be increasing steps from 0 to steps, got at of 2 steps and steps 3. Give them sorted, without repeats, as flow.log_steps(steps) does."),
    (ran(at=()), ValueError, "run: at must be increasing steps from 0 to steps, got at of 0 steps and steps 3. Give them sorted, without repeats, as flow.log_steps(steps) does."),
    (updated({"m": ones(2)}, {}), ValueError, "run: optimizer must keep the structure of its state, got state of another structure after an update. Let its init make the state that its update returns."),
    (updated({"m": ones(2)}, {"m": ones(3)}), ValueError, "run: optimizer must keep the shapes of its state, got state['m'] float32[2], after an update float32[3]. Let its init make the state that its update returns."),
    (updated({"m": ones(2)}, {"m": ones(2, dtype=jnp.bfloat16)}), TypeError, "run: optimizer must not narrow a dtype of its state, got state['m'] float32[2], after an update bfloat16[2]. Let its init make the state that its update returns."),
    (lambda: flow.run_in_parts(lambda x: x, jnp.ones(()), optax.sgd(0.1), 3, every=0), ValueError, "run_in_parts: every must be at least 1, got every 0. Pass a Python int of at least 1."),
    (another_run, ValueError, "run_in_parts: folder must hold the run that is asked for, got folder of a run with other steps and at. Give it a folder of its own, or ask for the run that is there."),
    (observed_otherwise(lambda now: (now.params, now.loss)), ValueError, "run_in_parts: folder must hold the run that is asked for, got folder of a run with other observe. Give it a folder of its own, or ask for the run that is there."),
    (observed_otherwise(lambda now: jnp.full(2, now.step)), ValueError, "run_in_parts: folder must hold the run that is asked for, got folder of a run with other observe. Give it a folder of its own, or ask for the run that is there."),
    (observed_otherwise(lambda now: now.params[:1]), ValueError, "run_in_parts: folder must hold the run that is asked for, got folder of a run with other observe. Give it a folder of its own, or ask for the run that is there."),
    (a_damaged_checkpoint, ValueError, "run_in_parts: folder must hold checkpoints that can be read, got folder with a damaged one, 3. Remove 3 from the folder: the run goes on from the checkpoint before it, or from its beginning."),
    (without_orbax, ModuleNotFoundError, "run_in_parts: orbax must be installed, got orbax not found. Run: pip install 'jattn[train]'."),
    (lambda: flow.integrate(lambda x: x, jnp.ones(()), ones(2, 2)), ValueError, "integrate: times must have the axes [n], got times [2, 2]. Pass the times to look at, from 0 on."),
    (followed([]), ValueError, "integrate: times must increase from 0 on, got times [0]. Pass the times to look at, finite, sorted and without repeats."),
    (followed([-0.5, 1.0]), ValueError, "integrate: times must increase from 0 on, got times [2]. Pass the times to look at, finite, sorted and without repeats."),
    (traced(lambda: jax.jit(followed([2.0, 1.0]))()), ValueError, "integrate: times must increase from 0 on, got times [2]. Pass the times to look at, finite, sorted and without repeats."),
    (followed([0.0, np.inf]), ValueError, "integrate: times must increase from 0 on, got times [2]. Pass the times to look at, finite, sorted and without repeats."),
    (followed([np.nan]), ValueError, "integrate: times must increase from 0 on, got times [1]. Pass the times to look at, finite, sorted and without repeats."),
    (followed([1.0], tolerance=-1e-5), ValueError, "integrate: tolerance must be finite and more than 0, got tolerance -1e-05. In float32 give at least 1e-5."),
    (followed([1.0], tolerance=np.inf), ValueError, "integrate: tolerance must be finite and more than 0, got tolerance inf. In float32 give at least 1e-5."),
    (followed([1.0], tolerance="1e-5"), TypeError, "integrate: tolerance must be one number, got tolerance of type str. In float32 give at least 1e-5."),
    (lambda: flow.check(diagnosed(), rate="a"), TypeError, "check: rate must be one number, got rate of type str. Pass a Python float."),
    (lambda: flow.check(diagnosed(), rate=np.nan), ValueError, "check: rate must be finite, got rate nan. Pass a Python float."),
    (lambda: flow.check(diagnosed(), rate=0.1, within=None), TypeError, "check: within must be one number, got within of type NoneType. Pass a Python float."),
    (ran(steps=2**31), ValueError, "run: steps must be below 2147483648, got steps 2147483648. Steps of a jitted loop are int32: take it in several runs, each from the state of the last."),
    (lambda: flow.rollout(ones(2, 3, 3), residual="half"), TypeError, f"rollout: residual must be an array of numbers in one shape, got residual of type str. {ARRAY}"),
    (lambda: flow.rollout(ones(2, 3, 3), residual=ones(3)), TypeError, "rollout: residual must be a real scalar, got residual float32[3]. Pass one share for all layers."),
    (lambda: flow.cross_entropy(ones(2, dtype=np.complex64)), ValueError, "cross_entropy: target must be a whole number or a distribution [S], got target complex64[2]. Pass the number of a key, as in cross_entropy(0), or weights [S] that sum to 1."),
    (lambda: flow.squared_error(1j), TypeError, "squared_error: goal must be floating point, got goal complex64[]. Take its real part: goal.real."),
    (lambda: flow.measure_row(KEYS, KEYS, KEYS, KEYS * 1j, 0), TypeError, "measure_row: dout must be floating point, got dout complex64[17, 5]. Take its real part: dout.real."),
    (traced(lambda: jax.jit(flow.max_margin)(ones(0, 5), 0)), ValueError, "max_margin: keys must have at least one row, got keys [0, 5]. Give the target its key."),
    (lambda: flow.loss_of(lambda q: (1.0, q), OBJECTIVE)(ones(2, 2)), ValueError, f"loss_of: q of read must have the axes [D], got q of read []. {READ}"),
    (lambda: flow.loss_of(lambda q: (q, "key"), OBJECTIVE)(ones(2)), TypeError, f"loss_of: k of read must be an array of numbers in one shape, got k of read of type str. {ARRAY}"),
    (lambda: flow.loss_of(lambda q: (q, q), OBJECTIVE)(ones(2)), ValueError, f"loss_of: k of read must have the axes [S, D], got k of read [2]. {READ}"),
    (lambda: flow.loss_of(lambda q: (q, KEYS, q), OBJECTIVE)(ones(5)), ValueError, f"loss_of: v of read must have the axes [S, Dv], got v of read [5]. {READ}"),
    (lambda: flow.loss_of(lambda q: (q, KEYS), OBJECTIVE)(ones(2)), ValueError, "loss_of: q [T, D] and k [S, D] must agree in D, got q [1, 2] and k [17, 5]. Project one of them to the width of the other."),
    (lambda: flow.measure_row(KEYS, KEYS, KEYS, KEYS, 0, bias=ones(3)), ValueError, "measure_row: bias must broadcast to [T, S], got bias [3]. Give each axis its full length or 1: [T, S] is [17, 17] here."),
    (ran(data=ones(1)), TypeError, "run: data must be a tuple, got data of type ndarray. Give what the loss takes after the parameters, one alone as data=(x,)."),
    (ran(data=(ones(1), "bank")), TypeError, "run: data must hold arrays, got data with a leaf of type str. Let the loss hold what is no array: lambda params, *arrays: loss(params, *arrays, name)."),
    (lambda: flow.log_steps(10, per_decade=0), ValueError, "log_steps: per_decade must be at least 1, got per_decade 0. Pass a Python int of at least 1."),
    (lambda: flow.softmax_jacobian(ones(3, 2)), ValueError, "softmax_jacobian: x must have the axes [n], got x [3, 2]. Map over rows with jax.vmap."),
    (lambda: flow.jacobian_spectrum(ones(3, 2)), ValueError, "jacobian_spectrum: x must have the axes [n], got x [3, 2]. Map over rows with jax.vmap."),
    (lambda: flow.projection_pulls(KEYS, ones(5, 3), ones(5, 3), ones(7, 3), flow.cross_entropy(0)), ValueError, "projection_pulls: x [S, M] and W_V [M, Dv] must agree in M, got x [17, 5] and W_V [7, 3]. Give a row to each column of x."),
    (lambda: flow.projection_pulls(KEYS[0], ones(5, 3), ones(5, 3), ones(5, 3), flow.cross_entropy(0)), ValueError, "projection_pulls: x must have the axes [S, M], got x [5]. This function is one head without a batch: map it with jax.vmap."),
    (lambda: flow.pulls(ones(5), KEYS, KEYS, flow.cross_entropy(0)), ValueError, "pulls: q must have the axes [T, D], got q [5]. This function is one head without a batch: map it with jax.vmap, or call dot_product_attention."),
    (lambda: flow.cross_entropy(0.5), ValueError, "cross_entropy: target must be a whole number or a distribution [S], got target float32[]. Pass the number of a key, as in cross_entropy(0), or weights [S] that sum to 1."),
    (lambda: flow.cross_entropy(ones(2, 3)), ValueError, "cross_entropy: target must be a whole number or a distribution [S], got target float32[2, 3]. Pass the number of a key, as in cross_entropy(0), or weights [S] that sum to 1."),
    (lambda: flow.max_margin(ones(5), 0), ValueError, "max_margin: keys must have the axes [S, D], got keys [5]. One row a key; map over a batch with jax.vmap."),
    (lambda: crossed(17), ValueError, "cross_entropy: target must be from 0 to S - 1, got target 17 and S 17. Count from 0."),
    (traced(lambda: jax.jit(lambda: crossed(-1))()), ValueError, "cross_entropy: target must be from 0 to S - 1, got target -1 and S 17. Count from 0."),
    (lambda: crossed(ones(1)), ValueError, "cross_entropy: target must be a distribution [S], got target [1] and scores [1, 17]. Give each key a weight, 0 where it is not wanted."),
    (lambda: flow.cross_entropy([0.5, 0.6]), ValueError, "cross_entropy: target must be a distribution [S], got target [2] that does not sum to 1. Divide it by its sum."),
    (lambda: flow.cross_entropy(ones(0)), ValueError, "cross_entropy: target must be a distribution [S], got target [0] that does not sum to 1. Divide it by its sum."),
    (lambda: flow.cross_entropy(np.array([1.5, -0.5])), ValueError, "cross_entropy: target must be a distribution [S], got target [2] with an entry that is not 0 or more. Give each key a weight of 0 or more."),
    (lambda: flow.cross_entropy(jnp.array([1.0, np.nan])), ValueError, "cross_entropy: target must be a distribution [S], got target [2] with an entry that is not 0 or more. Give each key a weight of 0 or more."),
    (traced(lambda: jax.jit(lambda: crossed(np.full(17, 1.0, np.float32)))()), ValueError, "cross_entropy: target must be a distribution [S], got target [17] that does not sum to 1. Divide it by its sum."),
    (lambda: reached(ones(3)), ValueError, "squared_error: goal must broadcast to [T, Dv], got goal [3]. Give each axis its full length or 1: [T, Dv] is [1, 5] here."),
    (lambda: flow.max_margin(KEYS, 17), ValueError, "max_margin: target must be from 0 to S - 1, got target 17 and S 17. Count from 0."),
    (lambda: flow.max_margin(KEYS, jnp.int32(-1)), ValueError, "max_margin: target must be from 0 to S - 1, got target -1 and S 17. Count from 0."),
    (lambda: flow.max_margin(KEYS, 1.5), TypeError, "max_margin: target must be integer, got target float32[]. Pass a whole number from 0 to S - 1."),
    (traced(lambda: diagnosed(jnp.array([0, 1]))), ValueError, "watch: target must have the axes [], got target [2]. Map over several with jax.vmap."),
    (traced(lambda: diagnosed(2)), ValueError, "watch: target must be from 0 to S - 1, got target 2 and S 2. Count from 0."),
    (recorded(at=3 * 10**9), ValueError, "recorder: at must be below 2147483648, got at 3000000000. Steps of a jitted loop are int32: count in larger steps."),
    (recorded(at=(0, 2**31)), ValueError, "recorder: at must be below 2147483648, got at 2147483648. Steps of a jitted loop are int32: count in larger steps."),
    (lambda: flow.measure_row(KEYS, KEYS, KEYS, KEYS, -1), ValueError, "measure_row: row must be from 0 to T - 1, got row -1 and T 17. Count from 0."),
    (lambda: flow.Recorder(3), TypeError, f"recorder: file must be a path, got file of type int. {PATH}"),
    (lambda: flow.Recorder(None), TypeError, f"recorder: file must be a path, got file of type NoneType. {PATH}"),
    (lambda: flow.Recorder(b"run.npy"), TypeError, f"recorder: file must be a path, got file of type bytes. {PATH}"),
    (lambda: flow.run_in_parts(lambda x: (x**2).sum(), ones(2), optax.sgd(0.1), 3, every=1, folder=["run"]), TypeError, f"run_in_parts: folder must be a path, got folder of type list. {PATH}"),
    (lambda: page.write(None, "Bank", page.weights([[1.0]], ["bank"], ["river"])), TypeError, f"write: file must be a path, got file of type NoneType. {PATH}"),
    (lambda: flow.run_in_parts(lambda x: (x**2).sum(), ones(2), optax.sgd(0.1), 3, every=1, folder=""), ValueError, "run_in_parts: folder must be a path, got folder empty. Name a file or a folder."),
    (lambda: console.save("x", "row\0.svg"), ValueError, "save: file must be a path, got file with a null character. Name a file or a folder."),
    (lambda: console.save("x", 3), TypeError, f"save: file must be a path, got file of type int. {PATH}"),
    (recorded(name="run.npz"), ValueError, "recorder: file must end in .npy, got file run.npz. Name one."),
    (recorded(at=0), ValueError, "recorder: at must be at least 1, got at 0. Pass a Python int of at least 1."),
    (recorded(at=(3, 2)), ValueError, "recorder: at must be increasing steps from 0 on, got at of 2 steps. Give them sorted, without repeats, as flow.log_steps(steps) does."),
    (recorded(limit=1), ValueError, "recorder: limit must be at least 2, got limit 1. Pass a Python int of at least 2."),
    (recorded(held=b""), ValueError, "recorder: file must be one of a recorder, got file run.npy, of another kind. Name another file, or remove this one."),
    (recorded_by_two, ValueError, "recorder: file must be written by one recorder at a time, got file run.npy, changed by another. Give each recorder a file of its own."),
    (recorded((2.5, {})), TypeError, "recorder: step must be a whole number, got step of type float. Pass a Python int of at least 0."),
    (traced(lambda: jax.jit(flow.Recorder("never made.npy"))(2.5)), TypeError, "recorder: step must be integer, got step float32[]. Steps are counted: pass a whole number."),
    (recorded((0, {"steps": 1})), ValueError, "recorder: what is observed must be arrays by name, got one named steps. Give them as in {'loss': loss}; the steps themselves are kept as steps."),
    (recorded((0, 1.5), observe=lambda x: x), ValueError, "recorder: what is observed must be arrays by name, got one without a name. Give them as in {'loss': loss}; the steps themselves are kept as steps."),
    (recorded((0, ones(5))), ValueError, "recorder: what is observed must be arrays by name, got one without a name. Give them as in {'loss': loss}; the steps themselves are kept as steps."),
    (recorded((0, ones(5, 2))), ValueError, "recorder: what is observed must be arrays by name, got one without a name. Give them as in {'loss': loss}; the steps themselves are kept as steps."),
    (recorded((0, 1.5)), ValueError, "recorder: what is observed must be arrays by name, got one without a name. Give them as in {'loss': loss}; the steps themselves are kept as steps."),
    (traced(lambda: jax.jit(flow.Recorder("never made.npy"))(0, 1.5)), ValueError, "recorder: what is observed must be arrays by name, got one without a name. Give them as in {'loss': loss}; the steps themselves are kept as steps."),
    (recorded((0, {"ā": 1})), ValueError, "recorder: names must be of ASCII letters, got name 'ā'. Spell it out."),
    (recorded((0, {"": 1})), ValueError, "recorder: names must be of ASCII letters, got name ''. Spell it out."),
    (recorded((0, {"of": {"word": "bank"}})), TypeError, "recorder: what is observed must be numbers, got of.word of dtype <U4. Leave it out."),
    (recorded((0, {"key": jax.random.key(0)})), TypeError, "recorder: what is observed must be numbers, got key of dtype key<fry>. Leave it out."),
    (recorded((1, {"weights": ones(3)}), held={"weights": ones(5)}), ValueError, "recorder: what is observed must have the names, shapes and dtypes of what the file holds, got weights float32[3] and in the file float32[5]. Give it a file of its own."),
    (recorded((1, {}), held={"a": {"loss": 1.0}}), ValueError, "recorder: what is observed must have the names, shapes and dtypes of what the file holds, got a.loss left out and in the file float64[]. Give it a file of its own."),
    (recorded(), ValueError, "recorder: file must hold at least one step, got file without any. Call the recorder at a step that is asked for."),
    (traced(lambda: jax.vmap(lambda x: flow.Recorder("never made.npy")(0, x=x))(ones(3))), ValueError, "recorder: a recorder must be called outside of jax.vmap, got batch of 3. Let the mapped function return what is measured, and call the recorder with that: scan steps, map within."),
    (traced(in_shard_map), ValueError, "recorder: a recorder must be called outside of jax.shard_map, got device of a mesh. Let the mapped function return what is measured, and call the recorder with that: scan steps, map within."),
    (lambda: flow.measure_row(KEYS, KEYS, KEYS, ones(17), 0), ValueError, "measure_row: dout must have the shape [T, Dv], got q [17, 5] and v [17, 5] and dout [17]. Pass dL/dout of every query, as jax.grad gives it."),
    (lambda: flow.measure_row(KEYS, KEYS, KEYS, KEYS, 0.5), TypeError, "measure_row: row must be integer, got row float32[]. Pass a whole number from 0 to T - 1."),
    (lambda: flow.entropy(ones(2, dtype=np.int32)), TypeError, "entropy: weights must be floating point, got weights int32[2]. Convert it first: weights.astype(jax.numpy.float32)."),
    (lambda: flow.saturation(0.5), ValueError, "saturation: weights must have the axes [..., S], got weights []. Pass whole rows."),
    (lambda: flow.max_logit(ones(5), KEYS), ValueError, "max_logit: q must have the axes [T, D], got q [5]. This function is one head without a batch: map it with jax.vmap, or call dot_product_attention."),
    (lambda: flow.balance(ones(3, 1), ones(2, 4)), ValueError, "balance: a must be [n, D] or [D], and b [m, D] or [D], got a [3, 1] and b [2, 4]. The loss must see their product a bᵀ alone."),
    (lambda: flow.pulls(KEYS, KEYS, KEYS, flow.cross_entropy(0), scale=np.nan), ValueError, "pulls: scale must be finite, got scale nan. Leave it out for 1/√D."),
    (lambda: flow.projection_pulls(KEYS, ones(5, 3), ones(5, 3), ones(5, 3), 0), TypeError, "projection_pulls: loss must be a function, got loss of type int. Pass a loss of its Steps, as cross_entropy(0) or lambda steps: -steps.out.sum()."),
    (lambda: flow.attention_steps(KEYS[0], KEYS, KEYS), ValueError, "attention_steps: q must have the axes [T, D], got q [5]. This function is one head without a batch: map it with jax.vmap, or call dot_product_attention."),
    (lambda: flow.pulls(KEYS, KEYS, KEYS, 0), TypeError, "pulls: loss must be a function, got loss of type int. Pass a loss of its Steps, as cross_entropy(0) or lambda steps: -steps.out.sum()."),
    (lambda: flow.pulls(KEYS, KEYS, KEYS, lambda steps: steps.out), ValueError, "pulls: loss must return one real scalar, got loss returning float32[17, 5]. Reduce it to one number, by a sum or a mean."),
    (lambda: flow.pulls(KEYS, KEYS, KEYS, lambda steps: (steps.out.sum(), steps.scaled)), ValueError, "pulls: loss must return one real scalar, got loss returning of type tuple. Reduce it to one number, by a sum or a mean."),
    (ran(loss=None), TypeError, "run: loss must be a function, got loss of type NoneType. Write loss(params, *data) -> scalar."),
    (ran(observe=3), TypeError, "run: observe must be a function, got observe of type int. Write observe(now) -> a pytree of arrays."),
    (ran(track=3), TypeError, "run: track must be a function, got track of type int. Write track(updates) -> a pytree of arrays."),
    (traced(lambda: followed_in_pieces(jax.sharding.AxisType.Auto)()), ValueError, "integrate: params must be the same on all devices of a jax.shard_map, got params that differ along d. Call it outside, of global arrays, or give jax.shard_map check_vma=False."),
    (lambda: followed_in_pieces(jax.sharding.AxisType.Explicit)(), ValueError, "integrate: params must not be cut along explicit axes of a mesh, got params cut along d. Pass them whole, jax.sharding.reshard(x, jax.P()), or on a mesh of automatic axes."),
    (followed([1.0], observe=3), TypeError, "integrate: observe must be a function, got observe of type int. Write observe(now) -> a pytree of arrays."),
    (lambda: flow.run_in_parts(lambda x: x, jnp.ones(()), optax.sgd(0.1), 3, every=1, on_progress=3), TypeError, f"run_in_parts: on_progress must be a function, got on_progress of type int. {BAR}"),
    (lambda: flow.run_in_parts(lambda x: x, jnp.ones(()), optax.sgd(0.1), 3, every=1, on_progress=console.progress), TypeError, f"run_in_parts: on_progress must take two numbers, got on_progress with the arguments {inspect.signature(console.progress)}. {BAR}"),
    (recorded(observe=3), TypeError, "recorder: observe must be a function, got observe of type int. Write observe(*args) -> arrays by name."),
    (lambda: flow.loss_of(3, OBJECTIVE), TypeError, f"loss_of: read must be a function, got read of type int. {READ}"),
    (lambda: flow.watch(_read, 3, 0), TypeError, "watch: objective must be a function, got objective of type int. Pass a loss on Steps, as cross_entropy(0)."),
    (lambda: flow.watch(_read, OBJECTIVE, 0, conserved=3), TypeError, "watch: conserved must be a function, got conserved of type int. Write conserved(params) -> a pytree of arrays."),
    (lambda: flow.loss_of(lambda q: q, OBJECTIVE)(ones(2)), TypeError, f"loss_of: read must return two or three arrays, got read returning of type ndarray. {READ}"),
    (lambda: flow.loss_of(lambda q: (q,), OBJECTIVE)(ones(2)), TypeError, f"loss_of: read must return two or three arrays, got read returning of 1 parts. {READ}"),
    (lambda: looked_up("weights"), KeyError, "report: identity must be one that was checked, got identity 'weights'. Those are: Σ_s p_s = 1."),
    (lambda: flow.check(None, keys="free"), TypeError, "check: trajectory must be one of Diagnostics, got trajectory of NoneType. Run it with observe=watch(…)."),
    (lambda: flow.max_logit(ones(3, 5, dtype=np.int32), KEYS), TypeError, "max_logit: q must be floating point, got q int32[3, 5]. Convert it first: q.astype(jax.numpy.float32)."),
    (lambda: flow.rollout(ones(2, 3, 4)), ValueError, "rollout: weights must have the axes [L, T, T], got weights [2, 3, 4]. Average over heads and stack the layers: weights.mean(1)."),
    (lambda: flow.check(path()), TypeError, "check: trajectory must be one of Diagnostics, got trajectory of ArrayImpl. Run it with observe=watch(…)."),
    (lambda: several().kept(), ValueError, "trajectory: what was kept is asked of one run that has ended, got broke [2]. Take one: jax.tree.map(lambda x: x[0], runs) of runs that were mapped, outside of jit."),
    (lambda: flow.check(dataclasses.replace(diagnosed(), broke=jnp.int32(1), at=jnp.array([2, 3]))), ValueError, "check: trajectory must hold a look before it broke, got trajectory that broke at step 1. Look earlier, as from 0 on: at=1."),
    (lambda: flow.check(diagnosed(), keys="tied"), ValueError, "check: keys must be one of three words, got keys 'tied'. Say frozen, free or projected."),
]  # fmt: skip


def _read(q):
    return q, jnp.eye(2)


OBJECTIVE = flow.cross_entropy(0)


def crossed(target):
    return flow.cross_entropy(target)(flow.attention_steps(ones(1, 5), KEYS, KEYS))


def reached(goal):
    return flow.squared_error(goal)(flow.attention_steps(ones(1, 5), KEYS, KEYS))


def several():
    return jax.tree.map(lambda x: np.stack([x, x]), path())


def diagnosed(target=0):
    watch = flow.watch(_read, OBJECTIVE, target)
    return flow.run(flow.loss_of(_read, OBJECTIVE), ones(2), optax.sgd(0.1), 2, observe=watch)
