"""The recorder: what it keeps is what a run passes through, at the steps asked for, whatever ends the process."""

import collections
import io
import math
import os
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _children import environment
from _inputs import assert_same, normal
from _jaxprs import formed
from matplotlib.figure import Figure
from rich.console import Console

import jattn
from jattn import console, figures, flow, masks, page, reference, scores
from jattn.flow import _recorder

pytestmark = pytest.mark.structure

T, S, D, DV = 5, 7, 3, 2
EPS = np.finfo(np.float64).eps
LABELS = [f"word {s}" for s in range(S)]


def close(got, want, eps=EPS, rounding=256):
    want = np.asarray(want)
    size = max(1, abs(want[np.isfinite(want)]).max(initial=0))
    np.testing.assert_allclose(got, want, rtol=0, atol=rounding * eps * size)


# measure_row


OPTIONS = {
    "causal": {"mask": masks.causal(), "q_positions": jnp.arange(2, 2 + T), "k_positions": jnp.arange(S)},
    "all": {"mask": np.arange(T * S).reshape(T, S) % 3 > 0, "score": scores.soft_cap(2.0), "sink": 0.5, "scale": 1.5,
            "bias": normal(T, S, seed=4)},
    "no key": {"mask": np.zeros((T, S), bool)},
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIONS)
def test_a_measured_row_is_that_of_the_definition(name, x64):
    q, k, v, dout = (normal(*shape, seed=i) for i, shape in enumerate([(T, D), (S, D), (S, DV), (T, DV)]))
    options, row = OPTIONS[name], 3
    dense = dict(options)
    positions = {f"{x}_positions": dense.pop(f"{x}_positions", jnp.arange(n)) for x, n in (("q", T), ("k", S))}
    if name == "causal":
        dense["mask"] = np.arange(S)[None] <= np.arange(2, 2 + T)[:, None]
    bias = dense.pop("bias", np.zeros((T, S)))

    def steps(q, bias):
        return reference.steps(q, k, v, bias=bias, **dense, **positions)[0]

    @jax.jit
    def both(q, bias, row):
        def logits(one):
            scaled = steps(q.at[row].set(one), bias).scaled[row]
            return jnp.where(jnp.isinf(scaled), 0, scaled)

        taken, statistics = steps(q, bias), reference.statistics(q, k, bias=bias, **dense, **positions)
        dq, dlogit = jax.grad(lambda q, bias: (steps(q, bias).out * dout)[row].sum(), (0, 1))(q, bias)
        pulls = -dlogit[row][:, None] * jax.jacfwd(logits)(q[row])
        want = q[row], k, taken.weights[row], statistics.max_logit[row], statistics.entropy[row], pulls, dq[row]
        return want, flow.measure_row(q, k, v, dout, row, **options)

    want, found = both(q, bias, np.int64(row))
    for x, wanted in zip(found, want, strict=True):
        close(x, wanted)
    close(found.pulls.sum(0), -found.dq)


@pytest.mark.structure
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_row_is_measured_without_what_it_does_not_attend(bad):
    q, k, v, dout = (normal(T, D, seed=i, dtype=np.float32) for i in range(4))
    row = jax.jit(lambda *x: flow.measure_row(*x, T - 2, mask=masks.causal())._replace(k=None))
    want = row(q, k, v, dout)
    k[-1], v[-1] = bad, bad
    assert_same(row(q, k, v, dout), want)


@pytest.mark.parametrize("sink", [None, 0.5])
def test_of_no_keys_nothing_is_attended_and_nothing_pulls(sink):
    q, k, v = normal(2, 5), normal(0, 5), normal(0, 3)
    found = flow.measure_row(q, k, v, normal(2, 3), 1, sink=sink)
    assert [x.shape for x in (found.k, found.weights, found.pulls)] == [(0, 5), (0,), (0, 5)]
    assert found.entropy == 0
    assert not found.dq.any()


def test_the_pulls_of_a_saturated_row_keep_their_tail():
    q, k, v = np.array([[40.0, 0]]), np.array([[1.0, 0], [0, 1], [0.5, 1]]), np.array([[1.0], [0.3], [-0.7]])
    p = np.exp(q @ k.T - 40)[0] / np.exp(q @ k.T - 40).sum()
    a = v[:, 0]
    ahead = a - a[0]
    want = -(p * np.where(np.arange(3) > 0, ahead - p @ ahead, -(p @ ahead)))[:, None] * k
    row = jax.jit(lambda *x: flow.measure_row(*x, scale=1.0))
    found = row(*(x.astype(np.float32) for x in (q, k, v)), np.float32([[1.0]]), 0)
    np.testing.assert_allclose(found.pulls, want, rtol=1e-5, atol=0)  # float32, logits of 40


def test_a_measured_row_of_a_long_text_forms_nothing_that_grows_with_its_square():
    n = 4096
    x, row = jax.ShapeDtypeStruct((n, D), np.float32), jax.ShapeDtypeStruct((), np.int32)

    def largest(f, *given):
        return max(math.prod(a.shape) for a in formed(jax.make_jaxpr(f)(*given).jaxpr))

    options = {"mask": masks.causal(), "score": scores.soft_cap(2.0)}
    assert largest(lambda *x: flow.measure_row(*x, **options), x, x, x, x, row) < n * n / 8
    assert largest(lambda q, k, v: flow.pulls(q, k, v, flow.cross_entropy(0)).on_q[0], x, x, x) >= n * n


# What is kept


KEYS, GOAL = normal(S, D, seed=7), normal(DV, seed=8)


def attend(q):
    return jattn.explain(q[None], KEYS, KEYS[:, :DV])


def of(out):
    return jnp.sum((out - GOAL) ** 2)


def loss(q):
    return of(attend(q).out[0])


def weights_alone(q):
    return {"loss": loss(q), "row": {"weights": attend(q).weights[0]}}


def observe(q):
    value, dout = jax.value_and_grad(of)(attend(q).out[0])
    return {"loss": value, "row": flow.measure_row(q[None], KEYS, KEYS[:, :DV], dout[None], 0)}


def descend(recorder, way, steps=12, begin=0):
    """Gradient descent with the recorder called in a Python loop, in a jitted step, in a scan or inside the loss."""

    def step(q, i):
        if way == "in the loss":
            return q - 0.1 * jax.grad(lambda q: (recorder(i, q), loss(q))[1])(q), None
        recorder(i, q)
        return q - 0.1 * jax.grad(loss)(q), None

    q = jnp.asarray(normal(D, seed=9))
    if way in ("scan", "in the loss"):
        return jax.jit(lambda q: jax.lax.scan(step, q, jnp.arange(begin, steps))[0])(q)
    each, slope = jax.jit(step), jax.jit(jax.grad(loss))
    for i in range(begin, steps):
        if way == "python":
            recorder(i, q)
            q = q - 0.1 * slope(q)
        else:
            q, _ = each(q, i)
    return q


def by_hand(steps, at):
    """The weights, loss and dL/dq of the same descent, by NumPy and the closed form."""
    q, found, c = normal(D, seed=9), [], D**-0.5
    for i in range(steps):
        p = np.exp(c * KEYS @ q)
        p /= p.sum()
        out = p @ KEYS[:, :DV]
        a = KEYS[:, :DV] @ (2 * (out - GOAL))
        dq = c * (p * (a - p @ a)) @ KEYS
        if i in at:
            found.append((p, np.sum((out - GOAL) ** 2), dq))
        q = q - 0.1 * dq
    return [np.array(x) for x in zip(*found, strict=True)]


@pytest.mark.parametrize("way", ["python", "jitted step", "scan", "in the loss"])
def test_it_keeps_what_a_run_passes_through_jitted_or_not(way, tmp_path, x64):
    at = flow.log_steps(11, per_decade=3)
    watched = {"python": jax.jit(observe), "scan": observe}.get(way, weights_alone)
    recorder = flow.Recorder(tmp_path / "new" / "run.npy", watched, at=at)
    end = descend(recorder, way)
    run = recorder.run()
    assert run["steps"].tolist() == [*at]
    weights, losses, dq = by_hand(12, at)
    close(run["row"]["weights"], weights)
    close(run["loss"], losses)
    if way in ("python", "scan"):
        close(run["row"]["dq"], dq)
        close(run["row"]["pulls"].sum(1), -dq)
    close(end, descend(lambda *_: None, "scan"))  # the loop is none the wiser
    assert flow.Recorder(tmp_path / "new" / "run.npy").run().keys() == run.keys()


def test_it_measures_at_the_steps_that_it_keeps_alone(tmp_path):
    seen = []

    def counted(x):
        jax.debug.callback(lambda: seen.append(1))
        return {"x": x}

    recorder = flow.Recorder(tmp_path / "a.npy", counted, at=4)
    jax.jit(lambda x: jax.lax.scan(lambda x, i: (recorder(i, x), (x, None))[1], x, jnp.arange(9)))(jnp.float32(0))
    jax.effects_barrier()
    assert len(seen) == 3
    for i in range(9):
        recorder(i, jnp.float32(0))
    assert len(seen) == 6


def test_any_names_shapes_and_dtypes_come_back(tmp_path):
    given = {"a": np.arange(6, dtype=np.int16).reshape(2, 3), "b": {"c": np.float64(0.1), "d": [True, 2 + 1j]},
             "half": jnp.float16(0.5), "brain": jnp.bfloat16([0.5, 3]), "none": np.zeros((0, 2))}  # fmt: skip
    recorder = flow.Recorder(tmp_path / "a.npy")
    recorder(0, **given)
    recorder(7, given | {"a": -given["a"]})
    run = recorder.run()
    assert list(run) == ["steps", *sorted(given)]
    assert run["steps"].tolist() == [0, 7]
    assert np.array_equal(run["a"], [given["a"], -given["a"]])
    assert run["a"].dtype == np.int16
    assert run["b"]["c"].tolist() == [0.1, 0.1]
    assert [x.tolist() for x in run["b"]["d"].values()] == [[True] * 2, [2 + 1j] * 2]
    assert run["half"].dtype == np.float16
    assert run["brain"].dtype == np.float32
    assert run["brain"].tolist() == [[0.5, 3]] * 2
    assert run["none"].shape == (2, 0, 2)
    assert np.array_equal(np.load(tmp_path / "a.npy")["b"]["c"], run["b"]["c"])  # without this library


def test_a_jitted_loop_keeps_all_64_bits(tmp_path, x64):
    """JAX calls Python from a thread of its own, in which jax.enable_x64 of this one does not hold."""
    x = normal(500, 500)
    recorder = flow.Recorder(
        tmp_path / "a.npy", lambda x, i: {"x": x, "c": jax.lax.complex(x[:2, 0], x[:2, 1]), "i": i + 2**40, "e": x[:0]}
    )

    def step(x, i):
        recorder(i, x, i)
        return x + 1e-9 * (x @ x), None

    jax.block_until_ready(jax.jit(lambda x: jax.lax.scan(step, x, jnp.arange(3))[0])(x))
    run = recorder.run()
    assert np.array_equal(run["x"][0], x)
    assert np.array_equal(run["c"][0], x[:2, 0] + 1j * x[:2, 1])
    assert run["i"].tolist() == [2**40 + i for i in range(3)]
    assert (run["c"].dtype, run["e"].dtype, run["e"].shape) == (np.complex128, np.float64, (3, 0, 500))


# Which steps


def kept(at, limit, n):
    """The rule, from its words: where there would be more than `limit`, every second is dropped, and so again."""
    held, spacing = [], 1
    for index, t in enumerate(t for t in (range(0, n, at) if isinstance(at, int) else at) if t < n):
        if index % spacing == 0:
            held.append(t)
        if len(held) > limit:
            held, spacing = held[::2], 2 * spacing
    return held


def test_numbers_of_python_and_of_numpy_come_back_from_a_jitted_loop_as_from_another(tmp_path):
    """They are of 64 bits, which JAX alone would round where jax.enable_x64 does not hold."""
    given = {"rate": 0.1, "batch": 2**40 + 1, "wave": np.array([1 + 1e-12, 2j]), "on": True, "x": np.arange(3.0) / 3}
    recorders = [flow.Recorder(tmp_path / f"{name}.npy") for name in ("jitted", "python")]
    jax.jit(lambda i: recorders[0](i, **given) or jnp.zeros(()))(0)
    recorders[1](0, **given)
    jitted, python = (recorder.run() for recorder in recorders)
    for name, x in given.items():
        np.testing.assert_array_equal(jitted[name], np.asarray(x)[None], strict=True)
        np.testing.assert_array_equal(jitted[name], python[name], strict=True)


def test_a_loop_of_python_counts_beyond_int32(tmp_path):
    recorder = flow.Recorder(tmp_path / "run.npy", limit=4)
    for step in (0, 1, 2**31, 2**40):
        recorder(step, x=step)
    assert recorder.run()["steps"].tolist() == [0, 2**31, 2**40]


@pytest.mark.parametrize(("at", "limit"), [(1, 1000), (3, 5), (1, 8), (1, 2), (flow.log_steps(99), 100),
                                           (flow.log_steps(99), 6), ((3, 4, 50), 2)])  # fmt: skip
def test_which_steps_are_kept_and_how_many_at_most(at, limit, tmp_path):
    file = tmp_path / "a.npy"
    recorder = flow.Recorder(file, at=at, limit=limit)
    sizes = []
    for i in range(100):
        recorder(i, x=np.float64(i))
        if i in kept(at, limit, i + 1):
            held = np.load(file)
            sizes.append(len(held))
            assert held["steps"].tolist() == held["x"].tolist() == kept(at, limit, i + 1)
            assert file.stat().st_size < 256 + len(held) * held.itemsize
    assert max(sizes) <= limit
    assert [x.name for x in tmp_path.iterdir()] == ["a.npy"]
    again = flow.Recorder(tmp_path / "b.npy", lambda i: {"x": i}, at=at, limit=limit)
    jax.jit(lambda: jax.lax.scan(lambda _, i: (again(i, i), (None, None))[1], None, jnp.arange(100))[0])()
    assert again.run()["steps"].tolist() == kept(at, limit, 100)


# Whatever ends the process


CHILD = """
import sys, numpy as np
from jattn import flow
recorder = flow.Recorder(sys.argv[1], at=1, limit=64)
for i in range(10**9):
    recorder(i, x=np.full(4999, i), loss=np.float32(1 / (1 + i)))
    print(i, flush=True)
"""


def record(recorder, start, stop):
    for i in range(start, stop):
        recorder(i, x=np.full(4999, i), loss=np.float32(1 / (1 + i)))


def test_a_killed_run_can_be_read_and_goes_on(tmp_path):
    file = tmp_path / "killed.npy"
    with subprocess.Popen([sys.executable, "-c", CHILD, str(file)], stdout=subprocess.PIPE, env=environment()) as child:
        last = next(i for i in map(int, child.stdout) if i == 300)
        os.kill(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    run = flow.Recorder(file).run()
    assert run["steps"][-1] >= last - last % 8
    assert len(run["steps"]) <= 64
    assert np.array_equal(run["x"], np.broadcast_to(run["steps"][:, None], run["x"].shape))
    recorder, whole = (flow.Recorder(f, at=1, limit=64) for f in (file, tmp_path / "whole.npy"))
    record(recorder, 200, 400)  # from a checkpoint some steps before the kill
    record(whole, 0, 400)
    assert file.read_bytes() == (tmp_path / "whole.npy").read_bytes()


class Dying(io.BufferedRandom):
    """A file that writes so many bytes, and then its process is gone."""

    left = 0

    def write(self, data):
        done = super().write(data[: self.left])
        super().flush()
        if done < len(data):
            raise KeyboardInterrupt
        Dying.left -= done

    def truncate(self, *size):
        super().truncate(*size)
        super().flush()


@pytest.mark.parametrize("resumed", [7, 4], ids=["appending", "resuming"])
def test_whatever_is_written_when_it_dies_what_was_there_stays(resumed, tmp_path, monkeypatch):
    file, whole = tmp_path / "a.npy", {i: {"x": i * 1.5} for i in range(8)}
    died = 0
    for bytes_left in range(0, 600, 3):
        recorder = flow.Recorder(file)
        for i in range(7):
            recorder(i, whole[i])
        Dying.left = bytes_left
        with monkeypatch.context() as patch:
            patch.setattr(_recorder, "open", lambda f, how: Dying(io.FileIO(f, "r+")), raising=False)
            try:
                recorder(resumed, whole[resumed])
            except KeyboardInterrupt:
                died += 1
        run = flow.Recorder(file).run()
        n = len(run["steps"])
        assert n in ({7, 8} if resumed == 7 else {7, 4, 5})
        assert run["steps"].tolist() == [*range(n)]
        assert run["x"].tolist() == [1.5 * i for i in range(n)]
        recorder(9, {"x": 13.5})  # where the write failed and the process goes on, no torn record is counted
        run = recorder.run()
        assert run["steps"].tolist() in ([*range(n), 9], [*range(resumed), 9])
        assert run["x"].tolist() == [1.5 * i for i in run["steps"]]
    assert 20 < died < 200
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            flow.Recorder(file)(0, y=0.0)
    assert len(flow.Recorder(file).run()["steps"]) == len(run["steps"])


def test_a_call_drops_what_comes_later_and_a_new_run_replaces_an_old_one(tmp_path):
    recorder = flow.Recorder(tmp_path / "a.npy", at=2)
    for i in range(9):
        recorder(i, x=0)
    again = flow.Recorder(tmp_path / "a.npy", at=2)
    for i in (3, 4, 5, 6):
        again(i, x=1)
    run = again.run()
    assert (run["steps"].tolist(), run["x"].tolist()) == ([0, 2, 4, 6], [0, 0, 1, 1])
    flow.Recorder(tmp_path / "a.npy")(0, other=np.ones(3))
    assert flow.Recorder(tmp_path / "a.npy").run()["other"].tolist() == [[1, 1, 1]]


@pytest.mark.parametrize("other", [{"a": 7.0}, {"a": np.ones(3)}, {"b": 7.0}])
@pytest.mark.parametrize("limit", [2, 1000])
def test_what_another_recorder_wrote_meanwhile_is_neither_mixed_nor_lost(other, limit, tmp_path):
    first, second = (flow.Recorder(tmp_path / "a.npy", limit=limit) for _ in range(2))
    first(0, a=1.0)
    first(1, a=1.0)
    second(1, **other)
    with pytest.raises(ValueError, match=r"by one recorder at a time, got file a\.npy, changed by another"):
        first(2, a=1.0)
    run = flow.Recorder(tmp_path / "a.npy").run()
    (name, value), *_ = other.items()
    np.testing.assert_array_equal(run["steps"], [1])
    np.testing.assert_array_equal(run[name], [value])


def test_a_damaged_file_is_refused_in_one_line(tmp_path):
    flow.Recorder(tmp_path / "a.npy")(0, a=np.ones(3))
    whole = (tmp_path / "a.npy").read_bytes()
    damaged = [whole[:n] for n in (0, 3, 9, 60, len(whole) - 1)]
    damaged += [start + whole[4:] for start in (b"PK\x03\x04", b"PK\x05\x06", b"\x80\x04a.")]
    damaged += [whole.replace(sign, b"(", 1) for sign in (b"{", b"}", b"'", b",", b")")]
    for x in damaged:
        (tmp_path / "b.npy").write_bytes(x)
        with pytest.raises(ValueError, match="file must be one of a recorder"):
            flow.Recorder(tmp_path / "b.npy")


def test_the_same_names_in_another_order_are_refused_in_one_line(tmp_path):
    Ordered = collections.namedtuple("Ordered", "b a")
    flow.Recorder(tmp_path / "a.npy", lambda x: Ordered(x, x))(0, 1.0)
    with pytest.raises(ValueError, match="got names of another order or nesting"):
        flow.Recorder(tmp_path / "a.npy", lambda x: {"a": x, "b": x})(1, 1.0)


# What draws it, and what it refuses while it runs


def test_the_pictures_the_page_and_the_terminal_draw_a_recorded_run(tmp_path, x64):
    recorder = flow.Recorder(tmp_path / "a.npy", lambda q: {"loss": loss(q), **observe(q)["row"]._asdict()}, at=3)
    descend(recorder, "scan")
    run = recorder.run()
    drawn = figures.training(run, LABELS)
    assert isinstance(drawn, Figure)
    titles = [ax.get_title() for ax in drawn.axes if ax.lines]
    assert titles == ["weights", "q", "loss", "entropy", "max logit"]
    np.testing.assert_array_equal(drawn.axes[2].lines[0].get_xdata(), [0, 3, 6, 9])
    np.testing.assert_array_equal(drawn.axes[2].lines[0].get_ydata(), run["loss"])
    part = page.run(run, LABELS, target=2)
    assert np.array_equal(part.data["weights"], run["weights"])
    assert "loss" in page.html("recorded", part)
    paper = Console(width=80, file=io.StringIO())
    paper.print(console.sparklines(run), console.why(run["pulls"][0], LABELS, total=-run["dq"][0]))
    assert all(word in paper.file.getvalue() for word in ("entropy", "max_logit", "word 6", "measured"))


def test_a_mapped_program_hands_its_measurements_over(tmp_path):
    recorder = flow.Recorder(tmp_path / "a.npy")

    def run(x):
        return jax.lax.scan(lambda x, i: (2 * x, recorder(i, x=x)), x, jnp.arange(3))[0]

    with pytest.raises(ValueError, match=r"^recorder: a recorder must be called outside of jax.vmap, got batch of 5"):
        jax.jit(jax.vmap(run))(jnp.ones(5))

    def step(x, i):
        recorder(i, x=jax.vmap(jnp.sin)(x))
        return 2 * x, None

    jax.jit(lambda x: jax.lax.scan(step, x, jnp.arange(3)))(jnp.ones(5))
    assert recorder.run()["x"].shape == (3, 5)


def test_what_differs_from_before_is_refused_in_a_jitted_loop_too(tmp_path):
    recorder = flow.Recorder(tmp_path / "a.npy")
    recorder(0, x=np.float32(0))
    late = jax.jit(lambda i: recorder(i, x=jnp.ones(2)))
    with pytest.raises(jax.errors.JaxRuntimeError, match=r"got x float32\[2\] and in the file float32\[\]"):
        jax.block_until_ready(late(1)), jax.effects_barrier()
