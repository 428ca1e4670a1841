"""Figures: what is drawn holds the numbers that came in, and no more."""

import dataclasses
import importlib
import io
import os
import shutil
import subprocess
import sys
import types
import xml.etree.ElementTree as ET

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.quiver import Quiver
from PIL import Image
from scipy.spatial import ConvexHull

from jattn import _picture_inputs, figures

WEIGHTS = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
ROWS, WORDS = ["bank", "the"], ["river", "money", "the"]
POINTS = np.array([[1.0, 0.0], [1.3, -0.1], [1.5, -0.3]])
KEYS = np.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])


def texts(figure):
    return texts_of(figure.axes[0])


def texts_of(ax):
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("array", [np.asarray, jnp.asarray, np.ndarray.tolist], ids=["numpy", "jax", "list"])
def test_weights_show_every_number_in_its_place(array):
    figure = figures.weights(array(WEIGHTS), ROWS, WORDS, title="seen")
    (ax,) = figure.axes
    np.testing.assert_allclose(ax.images[0].get_array(), WEIGHTS, rtol=1e-7)
    assert texts(figure) == [f"{w:.3f}" for w in WEIGHTS.ravel()]
    assert [text.get_position() for text in ax.texts] == [(s, t) for t in range(2) for s in range(3)]
    assert [label.get_text() for label in ax.get_xticklabels()] == WORDS
    assert [label.get_text() for label in ax.get_yticklabels()] == ROWS
    assert ax.get_title() == "seen"
    assert ax.images[0].get_clim() == (0, 1)


def test_numbers_can_be_read_on_every_shade():
    w = np.linspace(0, 1, 101)
    (ax,) = figures.weights(w[None], ["x"], list(map(str, w))).axes
    colours = matplotlib.colormaps["viridis"](w)[:, :3]
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    light = linear @ [0.2126, 0.7152, 0.0722]
    ink = np.array([{"white": 1.0, "black": 0.0}[text.get_color()] for text in ax.texts])
    contrast = (np.maximum(light, ink) + 0.05) / (np.minimum(light, ink) + 0.05)
    assert contrast.min() >= 4.5  # WCAG 2.2, level AA
    assert ((np.maximum(light, 1 - ink) + 0.05) / (np.minimum(light, 1 - ink) + 0.05)).min() < 4.5  # the other ink


def test_weights_of_nothing_are_empty_axes():
    assert texts(figures.weights(np.zeros((0, 3)), [], WORDS)) == []
    assert texts(figures.weights(np.zeros((2, 0)), ROWS, [])) == []


def test_path_holds_what_came_in():
    pulls = 0.1 * KEYS + 0.7
    marks = {0: "start", -1: ""}
    rays = {"there": [2.0, -0.1], "here": [1.0, 1.0]}
    figure = figures.path(POINTS, KEYS, ["river", "", "the"], arrows=pulls, rays=rays, marks=marks, title="seen")
    (ax,) = figure.axes
    there, here, way, *rings = ax.lines
    np.testing.assert_array_equal(way.get_xydata(), POINTS)
    np.testing.assert_array_equal([ring.get_xydata()[0] for ring in rings], POINTS[[0, -1]])
    for line, u in zip((there, here), rays.values(), strict=True):
        (start, end), (width, height) = line.get_xydata(), np.abs([*ax.get_xlim(), *ax.get_ylim()]).reshape(2, 2).max(1)
        assert (start == 0).all()
        assert end @ u > 0
        assert abs(end[0] * u[1] - end[1] * u[0]) < 1e-12
        assert abs(end[0]) >= width or abs(end[1]) >= height
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["there", "here"]
    (quiver,) = (c for c in ax.collections if isinstance(c, Quiver))
    np.testing.assert_allclose(np.stack([quiver.U, quiver.V], 1), pulls)
    np.testing.assert_array_equal(quiver.XY, POINTS[[0, 0, 0]])
    (dots,) = (c for c in ax.collections if not isinstance(c, Quiver))
    np.testing.assert_array_equal(dots.get_offsets(), KEYS)
    np.testing.assert_array_equal(dots.get_facecolors(), quiver.get_facecolors())
    assert texts(figure) == ["river", "the", "start"]
    assert ax.get_aspect() == 1
    for x in (POINTS, KEYS, POINTS[:1] + pulls):  # nothing lies outside the frame
        assert (x > [ax.get_xlim()[0], ax.get_ylim()[0]]).all()
        assert (x < [ax.get_xlim()[1], ax.get_ylim()[1]]).all()


def test_path_on_a_background_takes_its_extent():
    x, y = np.linspace(-1, 2, 7), np.linspace(-0.5, 0.5, 5)
    figure = figures.path(POINTS, KEYS, WORDS, background=(x, y, np.broadcast_to((x + 1) / 3, (5, 7))))
    (ax,) = figure.axes
    assert (ax.get_xlim(), ax.get_ylim()) == ((-1, 2), (-0.5, 0.5))
    bands, borders = ax.collections[:2]
    np.testing.assert_allclose(bands.levels, np.linspace(0, 1, 11))
    np.testing.assert_allclose(borders.levels, np.linspace(0.1, 0.9, 9))
    for level, lines in zip(borders.levels, borders.get_paths(), strict=True):
        drawn = lines.vertices[np.isfinite(lines.vertices).all(1)]
        np.testing.assert_allclose(drawn[:, 0], 3 * level - 1, atol=1e-9)
    figures.path(POINTS, KEYS, WORDS, background=(x, y, np.full((5, 7), 0.25)))  # no border to label, no warning


def test_a_figure_draws_on_axes_that_are_given_and_knows_no_pyplot():
    outer = Figure()
    ax = outer.subfigures(1, 2)[1].add_subplot()
    assert figures.weights(WEIGHTS, ROWS, WORDS, ax=ax) is outer
    assert len(ax.texts) == 6
    code = "import jattn.figures as f, sys; f.path([[1, 0]], [[0, 1]], ['a'], rays={'u': [1, 1]}); "
    code += "print('matplotlib.pyplot' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "False"


def test_the_entropy_of_each_row_stands_at_its_end():
    figure = figures.weights([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0]], ROWS, WORDS, entropy=True)
    (side,) = figure.axes[0].child_axes
    assert [label.get_text() for label in side.get_yticklabels()] == ["0.693", "0.000"]
    assert len(texts(figure)) == 6


def test_a_crowd_has_a_colour_bar_for_its_numbers():
    names = [str(i) for i in range(60)]
    figure = figures.weights(np.full((60, 60), 1 / 60), names, names)
    assert texts(figure) == []
    assert figure.axes[1].get_ylabel() == "weight"


def test_every_head_stands_in_its_place():
    x = np.random.default_rng(0).random((2, 3, 5, 7))
    (ax, _) = figures.heads(x).axes
    mosaic = np.ma.filled(ax.images[0].get_array(), np.nan)
    assert mosaic.shape == (2 * 6 - 1, 3 * 8 - 1)
    for layer, head in np.ndindex(2, 3):
        np.testing.assert_array_equal(mosaic[6 * layer :, 8 * head :][:5, :7], x[layer, head])
    assert np.isnan(mosaic[5]).all()
    assert np.isnan(mosaic[:, 7]).all()
    assert [t.get_text() for t in ax.get_xticklabels()] == ["head 0", "head 1", "head 2"]
    for fewer in (x[0], x[0, 0]):
        assert np.isfinite(np.ma.filled(figures.heads(fewer).axes[0].images[0].get_array(), np.nan)).sum() == fewer.size


def test_arcs_join_each_query_to_its_keys_as_thick_as_their_weight():
    (ax,) = figures.arcs(WEIGHTS, ROWS, WORDS, least=0.25).axes
    ends = {}
    for arc in ax.patches:
        (start, *_, end) = arc.get_path().vertices
        assert (start[0], end[0]) == (0, 1)
        ends[int(start[1]), int(end[1])] = arc.get_linewidth()
    assert set(ends) == {(0, 0), (0, 1), (1, 1)}
    assert ends[1, 1] > ends[0, 0] > ends[0, 1]
    assert [t.get_text() for t in ax.texts] == [*ROWS, *WORDS, "0.50", "1.00"]


def test_tiles_lie_where_they_belong_and_are_counted():
    block_states = np.array([[1, 0, 0], [2, 1, 0]])
    values = np.where(np.arange(10)[:, None] >= np.arange(12), -0.5 * np.arange(12), np.nan)
    figure = figures.tiles(block_states, values=values, shape=(5, 4))
    ax = figure.axes[0]
    drawn = {(p.get_y() / 5, p.get_x() / 4): p for p in ax.patches if p.get_width()}
    assert set(drawn) == set(np.ndindex(2, 3))
    hatched = {place for place, p in drawn.items() if p.get_hatch()}
    assert hatched == {(0, 1), (0, 2), (1, 2)}, "what is not visited is told without colour"
    assert [t.get_text() for t in ax.get_legend().get_texts()] == [
        "full: 1 of 6",
        "partial: 2 of 6",
        "empty: 3 of 6",
    ]
    np.testing.assert_array_equal(np.ma.filled(ax.images[0].get_array(), np.nan), values)
    low, high = ax.images[0].get_clim()
    assert low == -high, "zero lies in the middle of the colours"
    assert figures.tiles(block_states, values=np.ones((10, 12), bool)).axes[0].get_xlim() == (0, 12)


def test_blocks_lie_on_their_tokens_and_what_is_empty_is_hatched():
    mass, states = np.array([[1.0, 0.0, 0.0], [0.3, 0.7, 0.0]]), np.array([[1, 0, 0], [2, 1, 0]])
    ax = figures.blocks(mass, T=1999, S=3000, states=states, title="seen").axes[0]
    np.testing.assert_array_equal(ax.images[0].get_array(), mass)
    assert ax.images[0].get_extent() == [0, 3000, 2000, 0]
    assert (ax.get_xlim(), ax.get_ylim(), ax.get_title()) == ((0, 3000), (1999, 0), "seen")
    hatched = [(p.get_xy(), p.get_width(), p.get_height()) for p in ax.patches if p.get_hatch() and p.get_width()]
    assert hatched == [((1000, 0), 2000, 1000), ((2000, 1000), 1000, 1000)]
    told = [t.get_text() for t in ax.get_legend().get_texts()]
    assert told == ["full: 1 of 6", "partial: 2 of 6", "empty: 3 of 6"]
    assert figures.blocks(mass * np.nan, T=2, S=3).axes[0].get_legend() is None
    large = figures.blocks(np.eye(256), T=65536, S=65536, states=np.tri(256) + np.tri(256, k=-1))
    file = io.BytesIO()
    large.savefig(file, format="svg")
    assert len(file.getvalue()) < 400_000


def test_the_field_the_hull_and_moving_keys_are_drawn_as_given():
    x, y = np.linspace(0, 3, 4), np.linspace(0, 2, 3)
    u, v = np.meshgrid(x, y)
    ways = np.stack([KEYS, KEYS + 0.1, KEYS + np.array([0.1, 0.4])])
    (ax,) = figures.path(POINTS, ways, WORDS, field=(x, y, u, v), hull=True).axes
    (quiver,) = (c for c in ax.collections if isinstance(c, Quiver))
    np.testing.assert_array_equal(quiver.U, u.ravel())
    np.testing.assert_array_equal(quiver.V, v.ravel())
    np.testing.assert_array_equal(quiver.XY, np.stack([u.ravel(), v.ravel()], 1))
    assert np.hypot(u, v).max() / quiver.scale == pytest.approx(1), "the longest is as long as the places are apart"
    (polygon,) = ax.patches
    assert {tuple(p) for p in polygon.get_xy()} == {tuple(p) for p in ways[-1]}
    trails = [line.get_xydata() for line in ax.lines if len(line.get_xydata()) == 3]
    for s in range(3):
        assert any(np.array_equal(trail, ways[:, s]) for trail in trails)


def test_the_hull_holds_every_point_and_no_corner_too_many():
    points = np.random.default_rng(0).normal(size=(40, 2))
    corners = _picture_inputs.hull(points)
    assert {tuple(p) for p in corners} == {tuple(points[i]) for i in ConvexHull(points).vertices}
    assert len(_picture_inputs.hull(np.array([[0.0, 0], [1, 1], [2, 2], [1, 1]]))) == 2, "a line has two ends"


def test_names_of_keys_close_together_do_not_cover_each_other():
    keys = np.array([[0.0, 0.0], [0.01, 0.0], [0.02, 0.0], [5.0, 0.0]])
    (ax,) = figures.path([[0.0, 1.0]], keys, ["river", "money", "the", "far"]).axes
    heights = {t.get_text(): t.xyann[1] for t in ax.texts}
    assert len({heights[name] for name in ("river", "money", "the")}) == 3
    assert heights["far"] == heights["river"]


RUN = {
    "q": POINTS, "k": np.stack([KEYS, KEYS, KEYS]),
    "weights": np.array([[0.5, 0.3, 0.2], [0.6, 0.2, 0.2], [0.7, 0.2, 0.1]]),
    "steps": [0, 10, 100], "loss": [0.7, np.nan, 0.3], "cosines": {"k_river": [1.0, 0.9, 0.8], "u": [0.8, 0.9, 1.0]},
    "p": [0.5, 0.6, 0.7], "pulls": np.zeros((3, 3, 2)),
}  # fmt: skip


def test_training_shows_every_series_over_the_same_steps():
    axes = figures.training(RUN, WORDS, title="seen").axes
    assert [ax.get_title() for ax in axes] == ["weights", "q", "loss", "p of the target", "cosines", ""]
    drawn = {ax.get_title(): {line.get_label(): line.get_xydata() for line in ax.lines} for ax in axes}
    for s, word in enumerate(WORDS):
        np.testing.assert_array_equal(drawn["weights"][word], np.stack([RUN["steps"], RUN["weights"][:, s]], 1))
    np.testing.assert_array_equal(drawn["loss"]["loss"][:, 1], RUN["loss"])
    assert set(drawn["cosines"]) == {"k_river", "u"}
    log = figures.training(RUN, WORDS, log=True).axes[0]
    assert log.get_xscale() == "log"
    np.testing.assert_array_equal(log.lines[0].get_xdata(), [1, 11, 101])


def test_a_run_is_read_from_any_object():
    @dataclasses.dataclass
    class Diagnostics:
        q: object
        k: object
        weights: object
        p_r: object

    plain = types.SimpleNamespace(q=RUN["q"], k=KEYS, weights=RUN["weights"], p_r=RUN["p"])
    for given in (Diagnostics(RUN["q"], KEYS, RUN["weights"], RUN["p"]), plain, jax.tree.map(jnp.asarray, vars(plain))):
        run = _picture_inputs.run("here", given)
        assert list(run.series) == ["p_r"]
        assert run.k.shape == (3, 3, 2)
        np.testing.assert_array_equal(run.steps, [0, 1, 2])


def test_a_film_has_a_frame_for_each_frame(tmp_path):
    file = figures.animate(RUN, WORDS, tmp_path / "a" / "way.gif", seconds=1.0, title="q")
    with Image.open(file) as film:
        assert film.n_frames == 3
        film.seek(2)
        last = np.asarray(film.convert("L"), float)
        film.seek(0)
        assert abs(last - np.asarray(film.convert("L"), float)).mean() > 0.5
    assert os.listdir(tmp_path / "a") == ["way.gif"]
    if shutil.which("ffmpeg"):
        assert b"ftyp" in figures.animate(RUN, WORDS, tmp_path / "way.mp4", frames=[0, 2]).read_bytes()[:16]
    else:
        with pytest.raises(
            ValueError, match=r"animate: an MP4 needs ffmpeg, got ffmpeg missing\. Install it, or write"
        ):
            figures.animate(RUN, WORDS, tmp_path / "way.mp4")


def test_pulls_are_stacked_to_their_sum():
    pulls = np.array([[0.4, -0.1], [-0.1, -0.2], [0.2, 0.05]])
    (ax,) = figures.why(pulls, WORDS, total=pulls.sum(0) + 1e-9).axes
    bars = {container.get_label(): list(container) for container in ax.containers}
    for s, word in enumerate(WORDS):
        np.testing.assert_allclose([bar.get_height() for bar in bars[word]], pulls[s])
    for d in range(2):
        above = sum(bar[d].get_height() for bar in bars.values() if bar[d].get_height() > 0)
        top = max(bar[d].get_y() + max(bar[d].get_height(), 0) for bar in bars.values())
        assert top == pytest.approx(above), "each begins where the one before ends"
    ends = [line.get_ydata()[0] for line in ax.lines if len(line.get_xdata()) == 2 and line.get_linewidth() > 2]
    np.testing.assert_allclose(ends, pulls.sum(0) + 1e-9, rtol=0, atol=0)
    assert len({patch.get_hatch() for patch in (bars[w][0] for w in WORDS)}) == 3, "told without colour"


def test_what_is_conserved_is_a_line_with_dots_on_it():
    measured = np.array([1.0, 1.1, 1.3])
    first, second = figures.conserved({"a": (1.0, measured), "b": (measured, measured)}, steps=[0, 5, 9]).axes[:2]
    line, dots = first.lines
    np.testing.assert_array_equal(line.get_xydata(), [[0, 1], [5, 1], [9, 1]])
    np.testing.assert_array_equal(dots.get_ydata(), measured)
    assert first.get_title() == "a: off by at most 3.0e-01"
    assert second.get_title() == "b: off by at most 0.0e+00"
    (flat,) = figures.conserved({"Σ": (0.0, [0.0, 1e-17])}).axes
    assert np.ptp(flat.get_ylim()) > 1e-7, "rounding is not drawn as if it were a movement"


def test_pdf_too_is_the_same_twice(tmp_path):
    made = [figures.save(figures.arcs(WEIGHTS, ROWS, WORDS), tmp_path / x, ["pdf"])[0].read_bytes() for x in "ab"]
    assert made[0] == made[1]
    assert made[0].startswith(b"%PDF")


def test_each_head_stands_at_its_estimate_and_its_knock_out():
    x, y = np.random.default_rng(0).normal(size=(2, 3, 4))
    x[0, 1] = -y[0, 1]
    (ax, bar) = figures.effects(x, y, second_order=0.5 * (x + y), title="seen").axes
    same, opposite = (c for c in ax.collections if c.get_label().endswith(("sign", "of 12")))
    there = np.sign(x) != np.sign(y)
    np.testing.assert_allclose(opposite.get_offsets(), np.stack([x[there], y[there]], 1))
    np.testing.assert_allclose(same.get_offsets(), np.stack([x[~there], y[~there]], 1))
    np.testing.assert_array_equal(same.get_array(), np.arange(3)[:, None].repeat(4, 1)[~there])
    assert [t.get_text() for t in ax.get_legend().get_texts()] == ["same sign", f"opposite sign: {there.sum()} of 12"]
    worst = np.argsort(-abs(x - y), axis=None)[:6]
    assert texts_of(ax) == [f"{i // 4}.{i % 4}" for i in worst]
    lines = [line.get_xydata() for line in ax.lines]
    assert any((line[:, 0] == line[:, 1]).all() and line[0, 0] < x.min() < x.max() < line[1, 0] for line in lines)
    ends = [line[1] for line in lines if line[0, 1] == line[1, 1] != 0]
    np.testing.assert_allclose(ends, np.stack([(x + y).ravel() / 2, y.ravel()], 1))
    assert ax.get_xlim() == ax.get_ylim()
    assert bar.get_ylabel() == "layer"
    one = figures.effects(x[0], x[0], labels=list("abcd"))
    assert texts(one) == [], "what is right is not named"
    assert len(one.axes) == 1


REFUSED = [
    (
        lambda: figures.effects(KEYS, KEYS[:2]),
        ValueError,
        r"^effects: knock_out must have the shape of estimate, got .*2\]",
    ),
    (lambda: figures.effects(KEYS, KEYS, labels=WORDS), ValueError, "^effects: labels must hold L · H = 6 names"),
    (lambda: figures.weights(WEIGHTS[0], ROWS, WORDS), ValueError, r"weights: weights must have the shape \[T, S\]"),
    (lambda: figures.weights(WEIGHTS, ["bank"], WORDS), ValueError, "weights: rows must hold T = 2 names"),
    (lambda: figures.weights(WEIGHTS, ROWS, "abc"), ValueError, "weights: columns must hold S = 3 names, got .*'abc'"),
    (
        lambda: figures.weights(WEIGHTS * np.nan, ROWS, WORDS),
        ValueError,
        r"weights must be finite, got weights \[2, 3\]",
    ),
    (lambda: figures.weights([[1], [1, 2]], ROWS, WORDS), TypeError, "weights must be an array of numbers"),
    (lambda: figures.blocks([[1.0]], T=0, S=1), ValueError, "blocks: T must be at least 1"),
    (lambda: figures.blocks([[1.0]], T=1, S=1, states=[[3]]), ValueError, "blocks: states must be 0, 1 or 2"),
    (lambda: figures.path(POINTS[:0], KEYS, WORDS), ValueError, "path: points must have at least one row"),
    (lambda: figures.path(POINTS, KEYS[:, :1], WORDS), ValueError, r"keys must have the shape \[S, 2\]"),
    (lambda: figures.path(POINTS, KEYS, WORDS[:2]), ValueError, "labels must hold S = 3 names"),
    (lambda: figures.path(POINTS, KEYS, WORDS, arrows=KEYS[:2]), ValueError, r"arrows must have the shape \[S, 2\]"),
    (lambda: figures.path(POINTS, KEYS, WORDS, rays={"u": [0, 0]}), ValueError, "a ray must have a direction"),
    (lambda: figures.path(POINTS, KEYS, WORDS, marks={3: "x"}), ValueError, "a mark must name a point, got marks 3"),
    (
        lambda: figures.path(POINTS, KEYS, WORDS, background=([0, 1], [0, 1], np.zeros((3, 2)))),
        ValueError,
        r"background\[2\] must have the shape \[ny, nx\]",
    ),
    (lambda: figures.arcs(WEIGHTS[0], ROWS, WORDS), ValueError, r"arcs: weights must have the shape \[T, S\]"),
    (
        lambda: figures.heads(np.zeros(3)),
        ValueError,
        r"heads: weights must have the axes \[T, S\], .*got weights \[3\]",
    ),
    (
        lambda: figures.tiles([[3]]),
        ValueError,
        r"^tiles: block_states must be 0, 1 or 2, got block_states \[1, 1\]\. 0 none",
    ),
    (
        lambda: figures.tiles([[1, 2]], values=np.ones((4, 4)), shape=(4, 4)),
        ValueError,
        r"^tiles: the tiles must cover values, got values \[4, 4\] and block_states \[1, 2\] and shape \(4, 4\)\. Give",
    ),
    (
        lambda: figures.why(KEYS, WORDS, total=[1]),
        ValueError,
        r"^why: total must have the shape \[D\], got total \[1\]",
    ),
    (lambda: figures.training({}, WORDS), TypeError, "^training: run must hold q, k and weights, got run of type dict"),
    (
        lambda: figures.animate(RUN, WORDS, "x.avi"),
        ValueError,
        r"^animate: file must end in \.gif or \.mp4, got .*x\.avi",
    ),
    (
        lambda: figures.animate(RUN | {"q": np.zeros((3, 1)), "k": np.zeros((3, 1))}, WORDS, "x.gif"),
        ValueError,
        r"^animate: run\.q must be \[F, 2\], got run\.q \[3, 1\]\. Project",
    ),
    (lambda: figures.conserved({"a": (1, 2, 3)}), TypeError, r"^conserved: quantities\['a'\] must be \(predicted"),
    (lambda: figures.conserved({"a": ([1, 2], [1])}), ValueError, r"quantities\['a'\]\[0\] must have the shape \[F\]"),
    (
        lambda: figures.save(Figure(), "x", ["jpgg"]),
        ValueError,
        "save: kinds must be formats of matplotlib, got .*jpgg",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_refusals(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_save_writes_both_files_and_the_same_bytes_again(tmp_path):
    made = []
    for folder in ("a", "b/c"):
        figure = figures.path(POINTS, KEYS, WORDS, rays={"u": [1, 1]}, marks={0: "start"})
        paths = figures.save(figure, tmp_path / folder / "way")
        assert paths == [tmp_path / folder / "way.png", tmp_path / folder / "way.svg"]
        assert sorted(os.listdir(tmp_path / folder)) == ["way.png", "way.svg"]
        made.append([path.read_bytes() for path in paths])
    assert made[0] == made[1]
    assert imread(tmp_path / "a" / "way.png").std() > 0.01  # not blank
    assert ET.parse(tmp_path / "a" / "way.svg").getroot().tag.endswith("svg")


def test_save_leaves_nothing_half_written(tmp_path, monkeypatch):
    figure = figures.weights(WEIGHTS, ROWS, WORDS)
    (tmp_path / "row.png").write_text("what was there")
    real = Figure.savefig

    def fails(self, path, **options):
        real(self, path, **options)
        if options["format"] == "svg":
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(Figure, "savefig", fails)
    with pytest.raises(OSError, match="No space left"):
        figures.save(figure, tmp_path / "row")
    assert os.listdir(tmp_path) == ["row.png"]
    assert (tmp_path / "row.png").read_text() == "what was there"


def test_without_matplotlib_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "jattn.figures")
    with pytest.raises(ImportError, match=r"pip install 'jattn\[figures\]'"):
        importlib.import_module("jattn.figures")
