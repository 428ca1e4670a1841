"""Every derivative: the demo's numbers against float64 witnesses of another kind, its page, and how it refuses."""

import contextlib
import importlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from _children import environment
from jax.flatten_util import ravel_pytree

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, demo, mean = (importlib.import_module(name) for name in ("_cli", "every_derivative", "_meanflow"))

pytestmark = pytest.mark.structure

LENGTH = 127
EXACT = 1e-12


def command(*argv):
    return [sys.executable, "-W", "error", str(FOLDER / "every_derivative.py"), *map(str, argv)]


def plain(more):
    hidden = {"FORCE_COLOR", "COLUMNS", "NO_COLOR", "TTY_COMPATIBLE"}
    return {key: value for key, value in environment().items() if key not in hidden} | more


def run(*argv, **more):
    how = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 900, "check": False}
    return subprocess.run(command(*argv), env=plain(more), **how)


@pytest.fixture(scope="module")
def short():
    """The numbers of a short run in this process, under strict promotion."""
    return cli.evaluate(demo.compute, demo.arguments().parse_args(["--length", str(LENGTH)]))


def attention(q, k, v):
    scores = q @ k.T / np.sqrt(k.shape[1])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True) @ v


def network(p, z, r, t):
    h = np.tanh(z @ p["into"] + np.array([r, t]) @ p["time"])
    h = h + attention(h @ p["q"], h @ p["k"], h @ p["v"]) @ p["back"]
    return np.tanh(h) @ p["out"]


def meanflow(p, data, noise, r=mean.R, t=mean.T_NOW):
    """The loss in NumPy, the derivative along the path (v, 0, 1) by a central difference of fourth order."""
    z, v = (1 - t) * data + t * noise, noise - data
    u = lambda h: network(p, z + h * v, r, t + h)  # noqa: E731
    h = 1e-3
    change = (8 * (u(h) - u(-h)) - u(2 * h) + u(-2 * h)) / (12 * h)
    return ((u(0) - (v - (t - r) * change)) ** 2).mean()


@pytest.fixture(scope="module")
def drawn():
    p, *x = demo.drawn(jax.random.key(42), LENGTH, jnp.float32)
    wide = jax.tree.map(lambda a: np.array(a, np.float64), (p, x))
    return wide[0], *wide[1]


def difference(loss, p, w, h=1e-4):
    """d loss(p + h w) / dh, by a central difference."""
    plus, minus = ({n: p[n] + s * h * w[n] for n in p} for s in (1, -1))
    return (loss(plus) - loss(minus)) / (2 * h)


def test_every_derivative_equals_the_reference(short):
    assert set(short["errors"]) == set(demo.WORK)
    assert 0 < max(short["errors"].values()) <= EXACT


def test_the_loss_and_its_gradient_by_differences_in_numpy(short, drawn, x64):
    p, *x = drawn
    assert short["losses"][0] == pytest.approx(meanflow(p, *x), rel=1e-5)

    def value_and_gradient(stop):
        return jax.jit(jax.value_and_grad(lambda p: mean.meanflow(demo.dense, stop, p, *map(jnp.asarray, x))))(p)

    loss, g = value_and_gradient(lambda a: a)
    assert float(loss) == pytest.approx(meanflow(p, *x), rel=1e-9)
    w = {n: np.cos(np.arange(a.size, dtype=float)).reshape(a.shape) for n, a in p.items()}
    slope = sum(float(jnp.vdot(g[n], w[n])) for n in p)
    assert slope == pytest.approx(difference(lambda p: meanflow(p, *x), p, w), rel=1e-5)
    _, stopped = value_and_gradient(jax.lax.stop_gradient)
    assert demo.off(ravel_pytree(stopped)[0], ravel_pytree(g)[0]) > 0.01  # what the paper stops is not nothing


def test_descent_and_curvature_repeated_densely(short, drawn, x64):
    p, *x = (jax.tree.map(jnp.asarray, a) for a in drawn)
    losses, curvatures = [], []
    value_and_gradient = jax.jit(jax.value_and_grad(lambda p: mean.meanflow(demo.dense, lambda a: a, p, *x)))
    for _ in range(2):
        loss, g = value_and_gradient(p)
        losses, p = [*losses, loss], jax.tree.map(lambda a, b: a - 0.1 * b, p, g)
    flat, tree = ravel_pytree(p)
    Hw = ravel_pytree(g)[0]
    gradient = jax.jit(jax.grad(lambda a: mean.matching(demo.dense, tree(a), *x)))
    for _ in range(2):
        w = Hw / jnp.linalg.norm(Hw)
        Hw = (gradient(flat + 1e-4 * w) - gradient(flat - 1e-4 * w)) / 2e-4
        curvatures.append(w @ Hw)
    np.testing.assert_allclose(short["losses"], losses, rtol=1e-5)
    np.testing.assert_allclose(short["curvatures"], curvatures, rtol=1e-4)
    assert short["losses"][1] < short["losses"][0]
    assert 0 < short["witness"] <= 1e-2


def test_the_dense_form_takes_several_arrays_of_all_pairs_and_ours_none(x64):
    """At a length where tiles are many: without running, the engine's temporaries hold not one T × T array."""
    T = 4096
    p, *x = demo.drawn(jax.random.key(0), T, jnp.float32)
    ours, theirs = (demo.temporaries(demo.compiled(f, p, p, *x)) for f in (demo.jattn.attention, demo.dense))
    for name in demo.WORK:
        assert ours[name] < 4 * T * T < theirs[name]


def test_a_piped_page_is_plain_and_80_wide_beside_a_bar_on_the_terminal(tmp_path, short):
    """In a process of its own, under strict promotion, with the numbers that this process found."""
    page, (terminal, its_end) = tmp_path / "page", pty.openpty()
    env = {"NO_COLOR": "1", "COLUMNS": "200", "TERM": "xterm", "PYTHONUTF8": "1"}
    env |= {"JAX_NUMPY_DTYPE_PROMOTION": "strict", "JAX_NUMPY_RANK_PROMOTION": "raise"}
    with page.open("w") as out:
        done = subprocess.Popen(command("--length", LENGTH, "--steps", 1), stdout=out, stderr=its_end, env=plain(env))
    os.close(its_end)
    seen = b""
    with contextlib.suppress(OSError):  # the end of a terminal is an error on Linux
        while more := os.read(terminal, 4096):
            seen += more
    os.close(terminal)
    assert done.wait(240) == 0
    assert demo.HVP in seen.decode()
    assert "Traceback" not in seen.decode()
    text = page.read_text("utf-8")
    assert "\x1b" not in text
    assert "…" not in text  # a cell that was cut
    assert max(map(len, text.splitlines())) <= 80
    assert "127 tokens" in text
    (loss,) = re.findall(r"MeanFlow loss before each step: \[([\d.]+)\]", text)
    assert float(loss) == pytest.approx(short["losses"][0], abs=1e-4)


def test_a_page_of_the_longest_run_fits():
    each = {"errors": 1e-16, "seconds": [999.9], "bytes": 1e9, "dense_bytes": 2e11}
    r = {name: dict.fromkeys(demo.WORK, x) for name, x in each.items()}
    r |= {"length": demo.LONGEST, "losses": [1.0, 2.0], "curvatures": [1.0], "witness": 1e-4}
    r |= {"resident": 1e9, "resident_before": 1e9}
    paper = cli.console()
    with paper.capture() as captured:
        demo.show(paper, r)
    assert "…" not in captured.get()
    assert "200,000.0" in captured.get()


def said(monkeypatch, capsys, compute, *argv):
    """(stdout, stderr) of the script with these arguments, in this process."""
    monkeypatch.setattr(sys, "argv", ["every_derivative.py", *map(str, argv)])
    cli.run(demo.arguments(), compute, demo.show)
    return capsys.readouterr()


def test_json_is_alone_on_stdout_and_parses(short, monkeypatch, capsys):
    out, err = said(monkeypatch, capsys, lambda args: short, "--length", LENGTH, "--json")
    made = json.loads(out)
    assert (err, made) == ("", short)
    assert 0 < made["resident_before"] <= made["resident"]
    assert len(made["losses"]) == len(made["curvatures"]) == len(made["seconds"][demo.HVP]) == 2


def test_help_says_what_it_shows(monkeypatch, capsys):
    with pytest.raises(SystemExit) as stopped:
        said(monkeypatch, capsys, demo.compute, "--help")
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    for word in (demo.__doc__.splitlines()[0], "--json", "--length", "--steps", "--seed", "Geng et al. 2025"):
        assert word in out


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        (["--length", "63"], "--length 63: must be from 64 to 65536."),
        (["--length", "65537"], "--length 65537: must be from 64 to 65536."),
        (["--steps", "0"], "--steps 0: must be from 1 to 100."),
        (["--steps", "101"], "--steps 101: must be from 1 to 100."),
        (["--length", "x"], "invalid int value: 'x'"),
        (["--seed", "-1"], "is not a whole number from 0"),
    ],
)
def test_bad_input_is_one_line_and_status_2(argv, names, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["every_derivative.py", *argv])
    with pytest.raises(SystemExit) as stopped:
        cli.run(demo.arguments(), demo.compute, demo.show)
    out, err = capsys.readouterr()
    assert (stopped.value.code, out, err.count("\n")) == (2, "", 1)
    assert names in err
    assert err.rstrip().endswith(".")


def test_bad_input_as_the_reader_sees_it():
    done = run("--length", 0)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
