"""Figures: what is drawn holds the numbers that came in, and no more."""

import base64
import dataclasses
import importlib
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import types
import xml.etree.ElementTree as ET
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib
import matplotlib.style
import numpy as np
import optax
import pytest
from _demos import refusal
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.quiver import Quiver
from matplotlib.text import Text
from PIL import Image
from scipy.spatial import ConvexHull

from jattn import _picture_inputs, figures, flow, page
from jattn.figures import _canvas, _save

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
    assert ax.get_xlabel() == ""
    (ax, _) = figures.heads(np.full((1, 12, 2, 2), 0.5)).axes
    assert [t.get_text() for t in ax.get_xticklabels()] == [str(h) for h in range(12)]
    assert ax.get_xlabel() == "head"  # which names beside them have no room to say
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


@pytest.mark.parametrize("far", [1, 20, -39])
def test_the_number_of_an_arc_stands_in_the_row_of_its_query(far):
    names = [f"w{i}" for i in range(40)]
    figure = figures.arcs(np.roll(np.eye(40), far, 1), names, names)
    FigureCanvasAgg(figure).draw()
    (ax,) = figure.axes
    numbers = [text for text in ax.texts if text.get_text() == "1.00"]
    assert len(numbers) == 40
    for t, text in enumerate(numbers):
        box = text.get_window_extent().transformed(ax.transData.inverted())
        assert abs((box.y0 + box.y1) / 2 - t) < 0.5


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


def test_arrows_of_a_field_are_as_long_as_its_places_are_apart_in_any_order_and_twice_at_one_place():
    x, y, u = np.array([0.0, 3.0, 1.0, 1.0]), np.array([0.0, 5.0]), np.full((2, 4), 2.0)
    (ax,) = figures.path(POINTS, KEYS, WORDS, field=(x, y, u, 0 * u)).axes
    (quiver,) = (c for c in ax.collections if isinstance(c, Quiver))
    assert quiver.scale == 2.0  # the least distance is 1


def test_a_run_without_keys_is_drawn():
    run = {"q": POINTS, "k": np.zeros((0, 2)), "weights": np.zeros((3, 0)), "loss": [3, 2, 1]}
    titles = [ax.get_title() for ax in figures.training(run, []).axes]
    assert titles[:3] == ["weights", "q", "loss"]


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


def test_one_panel_is_drawn_on_axes_of_yours():
    outer = Figure(figsize=(7, 3))
    left, right = outer.subplots(1, 2)
    assert figures.training(RUN, WORDS, panels=["loss"], ax=left, title="seen") is outer
    assert figures.conserved({"a": (1.0, [1.0, 1.25])}, ax=right, title="kept") is outer
    np.testing.assert_array_equal(left.lines[0].get_ydata(), RUN["loss"])
    np.testing.assert_array_equal(right.lines[1].get_ydata(), [1.0, 1.25])
    assert (left.get_title(), right.get_title()) == ("seen", "kept\na: off by at most 2.5e-01")
    assert outer.axes == [left, right]
    two = figures.training(RUN, WORDS, panels=["p", "weights"])
    assert [ax.get_title() for ax in two.axes] == ["p of the target", "weights"]


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


def test_a_trajectory_is_drawn_at_its_own_steps(tmp_path):
    read, objective = lambda q: (q, jnp.asarray(KEYS)), flow.cross_entropy(0)
    loss, watch, at = flow.loss_of(read, objective), flow.watch(read, objective, 0), [0, 3, 10, 40]
    path = flow.run(loss, jnp.asarray(POINTS[0]), optax.sgd(0.5), 40, observe=watch, at=at)
    ax = figures.training(path, WORDS).axes[0]
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), np.stack([at, path.seen.weights[:, 0]], 1))
    figures.animate(path, WORDS, tmp_path / "way.gif", seconds=1.0)
    part = page.run(path, WORDS, target=0)
    np.testing.assert_array_equal(part.data["steps"], at)
    np.testing.assert_array_equal(part.data["q"], path.seen.q)
    with pytest.raises(TypeError, match=r"^training: run\.seen must hold q, k and weights, got run\.seen of type "):
        figures.training(flow.run(loss, jnp.asarray(POINTS[0]), optax.sgd(0.5), 2), WORDS)


LONG = "how bank comes to attend river among all the words of this sentence, and what its weights have to say of that"
TITLED = {
    "weights": lambda title: figures.weights(WEIGHTS, ROWS, WORDS, title=title),
    "long names": lambda title: figures.weights(WEIGHTS, ["the name of a query that goes on"] * 2, WORDS, title=title),
    "heads": lambda title: figures.heads(np.full((1, 1, 4, 4), 0.25), title=title),
    "arcs": lambda title: figures.arcs(WEIGHTS, ROWS, WORDS, title=title),
    "path": lambda title: figures.path(POINTS, KEYS, WORDS, title=title),
    "effects": lambda title: figures.effects(np.eye(2), np.ones((2, 2)), title=title),
    "tiles": lambda title: figures.tiles(np.tri(4), title=title),
    "why": lambda title: figures.why(POINTS, WORDS, title=title),
    "training": lambda title: figures.training(RUN, WORDS, panels=["loss"], title=title),
    "conserved": lambda title: figures.conserved({"a": (1.0, [1.0, 1.1])}, title=title),
}


@pytest.mark.parametrize("name", TITLED)
def test_a_long_title_is_broken_into_lines_and_not_cut(name):
    figure = TITLED[name](LONG)
    assert faults(figure) == []
    shown = {text.get_text() for text in figure.findobj(Text)}
    assert LONG in shown, "and the whole of it"
    (short,) = {text.get_text() for text in TITLED[name]("seen").findobj(Text)} & {"seen"}
    assert TITLED[name](short).get_figheight() == TITLED[name](None).get_figheight()


@pytest.mark.parametrize("title", ["w" * 130, "$a + b$ " + LONG, "one\ntwo"])
def test_a_title_is_broken_where_it_may_be(title):
    figure = figures.path(POINTS, KEYS, WORDS, title=title)
    assert faults(figure) == []
    shown = figure.axes[0].get_title()
    assert shown.replace("\n", "") == title.replace("\n", "") or shown.split() == title.split()
    assert "$a + b$" in shown or "$" not in title


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


def test_a_film_is_drawn_on_a_part_of_your_figure(tmp_path):
    outer = Figure(figsize=(8, 3), layout="constrained")
    left, right = outer.subfigures(1, 2, width_ratios=(1, 3))
    still = left.add_subplot()
    with Image.open(figures.animate(RUN, WORDS, tmp_path / "way.gif", frames=[0, 2], figure=right)) as film:
        assert film.size == (800, 300)
        first, last = (np.asarray(film.seek(f) or film.convert("L"), float) for f in (0, 1))
    assert left.axes == [still]
    assert len(right.axes) == 2
    assert abs(first - last)[:, 200:].mean() > 0.5
    assert abs(first - last)[:, :180].max() < 8, "what is not of the film stands still"


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


RAGGED = [[1.0], [1.0, 2.0]]
REFUSED = [
    *(
        (call, TypeError, message)
        for call, message in (
            (lambda: figures.heads(RAGGED), r"^heads: weights must be an array of numbers \[T, S\], .* of type list"),
            (lambda: figures.weights(WEIGHTS * 1j, ROWS, WORDS), "weights must be .* got weights of dtype complex128"),
            (
                lambda: figures.arcs(WEIGHTS, ROWS, WORDS, least=None),
                "^arcs: least must be one number, got least of type",
            ),
            (
                lambda: figures.effects(RAGGED, KEYS),
                r"^effects: estimate must be an array of numbers \[L, H\] or \[H\]",
            ),
            (
                lambda: figures.path(POINTS, RAGGED, WORDS),
                r"^path: keys must be an array of numbers \[S, 2\], got keys",
            ),
            (
                lambda: figures.weights(WEIGHTS, ROWS, WORDS, ax=Figure().subplots(1, 2)),
                "^weights: ax must be axes of matplotlib, got ax of type ndarray. Pass one of those that Figure.sub",
            ),
            (
                lambda: figures.save(Figure().subplots(), "never"),
                "^save: figure must be a figure of matplotlib, got figure of type Axes. Pass .* or ax.figure.",
            ),
            (
                lambda: figures.path(POINTS, KEYS, WORDS, rays=[1]),
                "^path: rays must map names to directions, got .* list",
            ),
            (
                lambda: figures.path(POINTS, KEYS, WORDS, marks=["a"]),
                "^path: marks must map indices of points to texts, ",
            ),
            (
                lambda: figures.path(POINTS, KEYS, WORDS, marks={0.5: "a"}),
                "^path: marks must .* an index of type float",
            ),
            (
                lambda: figures.path(POINTS, KEYS, WORDS, background=3),
                r"^path: background must be \(x, y, values\), got",
            ),
            (lambda: figures.path(POINTS, KEYS, WORDS, field=(1, 2)), r"field must be \(x, y, u, v\), .* of length 2"),
            (
                lambda: figures.tiles([[1]], shape=3),
                r"^tiles: shape must be \(queries, keys\) of one tile, .* type int",
            ),
            (lambda: figures.tiles([[1]], shape=(1.5, 1)), r"^tiles: shape\[0\] must be a whole number, .* type float"),
            (lambda: figures.training(RUN, WORDS, panels="loss"), "^training: panels must be a list, got .* type str"),
            (
                lambda: figures.training(RUN | {"k": RAGGED}, WORDS),
                r"^training: run\.k must be an array of numbers \[F, S",
            ),
            (
                lambda: figures.animate(RUN, WORDS, "x.gif", frames=3),
                "^animate: frames must be a list, got .* type int",
            ),
            (lambda: figures.animate(RUN, WORDS, "x.gif", seconds=None), "^animate: seconds must be one number, got"),
            (lambda: figures.animate(RUN, WORDS, "x.gif", rays=3), "^path: rays must map names to directions, got"),
            (lambda: figures.save(Figure(), "x", "png"), "^save: kinds must be a list, got kinds of type str. Put one"),
        )
    ),
    (lambda: figures.heads(np.zeros((0, 2, 3, 3))), ValueError, r"^heads: weights must have at least one head, query"),
    (lambda: figures.blocks([[1.0, 2.0]], T=1, S=1), ValueError, "^blocks: m must be how many equal blocks S is cut"),
    (
        lambda: figures.path(POINTS, KEYS, WORDS, background=([0], [0], [[0.5]])),
        ValueError,
        r"^path: background must have at least two places along each axis, got background\[2\] \[1, 1\]\. A band",
    ),
    (lambda: figures.tiles([[1]], values=[[1.0]], shape=(0, 0)), ValueError, r"^tiles: shape\[0\] must be at least 1"),
    (lambda: figures.training(RUN, WORDS, panels=[["q"]]), ValueError, "^training: panels must be names of what is"),
    (lambda: figures.animate(RUN, WORDS, "x.gif", frames=[9]), ValueError, "^animate: frames must name frames of the"),
    (lambda: figures.animate(RUN, WORDS, "x.gif", frames=[]), ValueError, "^animate: frames must .* of length 0 and F"),
    (lambda: figures.animate(RUN, WORDS, "x.gif", seconds=0), ValueError, "^animate: seconds must be finite and more"),
    (
        lambda: figures.effects(KEYS, KEYS[:2]),
        ValueError,
        r"^effects: knock_out must have the shape of estimate, got .*2\]",
    ),
    (lambda: figures.effects(KEYS, KEYS, labels=WORDS), ValueError, "^effects: labels must hold L · H = 6 names"),
    (lambda: figures.weights(WEIGHTS[0], ROWS, WORDS), ValueError, r"weights: weights must have the shape \[T, S\]"),
    (lambda: figures.weights(WEIGHTS, ["bank"], WORDS), ValueError, "weights: rows must hold T = 2 names"),
    (lambda: figures.weights(WEIGHTS, None, WORDS), ValueError, "weights: rows must hold T = 2 names, got .* NoneType"),
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
        r"^tiles: block_states must be 0, 1 or 2, got block_states \[1, 1\]\. These are EMPTY",
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
        lambda: figures.animate(RUN, WORDS, ["x.gif"]),
        TypeError,
        r"^animate: file must be a path, got file of type list\. Pass a string or a pathlib\.Path\.$",
    ),
    (
        lambda: figures.save(Figure(), "."),
        IsADirectoryError,
        r"^save: stem must not name a folder, got \. that is a folder\.",
    ),
    (lambda: figures.save(Figure(), None), TypeError, "^save: stem must be a path, got stem of type NoneType"),
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
    (
        lambda: figures.training(RUN, WORDS, panels=["gain"]),
        ValueError,
        r"^training: panels must be names of what is shown, got panels 'gain'\. There are weights, q, loss,",
    ),
    (
        lambda: figures.training(RUN, WORDS, ax=Figure().add_subplot()),
        ValueError,
        r"^training: ax must be given for one panel and without figure, got panels 5\. Give figure",
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
def test_a_figure_refuses_what_it_cannot_draw(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("name", ["$$", "a$ and $b^", "_the", "", "\t", "\ud800", "incomprehensibilities" * 20])
def test_any_token_is_a_name_in_a_figure(name, tmp_path):
    """What is no mathtext is drawn letter by letter, and a legend leaves out no key."""
    words = [name, "river"]
    drawn = {
        "why": figures.why(np.eye(2), words),
        "weights": figures.weights(np.eye(2), words, words),
        "arcs": figures.arcs(np.eye(2), words, words),
        "path": figures.path(POINTS, KEYS[:2], words, rays={name: [1, 0]}, marks={0: name}),
        "training": figures.training(
            {
                "q": POINTS,
                "k": KEYS[:2],
                "weights": WEIGHTS[[0, 0, 1], :2],
                "cos": {key: [0.0, 0.5, 1.0] for key in words},
                name: [0.0, 0.5, 1.0],
            },
            words,
        ),
        "conserved": figures.conserved({name: (0.0, [0.0])}),
    }
    for figure in drawn.values():
        (file,) = figures.save(figure, tmp_path / "a", ["svg"])
        assert ET.parse(file).getroot().tag.endswith("svg")
    shown = drawn["why"].axes[0].get_legend().get_texts()
    assert len(shown) == 2
    assert len(shown[0].get_text()) <= 48


def test_a_name_between_dollars_is_mathtext():
    assert _canvas.names("why", "labels", ["$k_1$", "$", "$$"], "S", 3) == ["$k_1$", "$", r"\$\$"]


@pytest.mark.parametrize("title", ["$_$", r"$\foo$", "$a$ and $b^$", "one line\n$_$ another"])
def test_a_title_that_is_no_mathtext_is_drawn_letter_by_letter(title, tmp_path):
    for draw in TITLED.values():
        (file,) = figures.save(draw(title), tmp_path / "a", ["svg"])
        assert ET.parse(file).getroot().tag.endswith("svg")
    assert figures.why(POINTS, WORDS, title="$k_1$").axes[0].get_title() == "$k_1$"


@pytest.mark.parametrize(
    ("size", "number"), [(1e-5, "+3.0e-05"), (0.02, "+0.060"), (100.0, "+300.000"), (1e30, "+3.0e+30")]
)
def test_a_pull_that_three_decimals_do_not_tell_has_an_exponent(size, number):
    """At a saturated query every pull is small: none of its bars is +0.000."""
    shown = texts(figures.why([[2 * size, size], [size, -size]], ["river", "money"]))
    assert shown.count(number) == 1
    assert max(map(len, shown)) <= len("+300.000")


def test_an_infinity_that_was_predicted_is_not_conserved():
    given = {"a": (np.inf, [np.inf])}
    assert figures.conserved(given).axes[0].get_title() == "a: off by at most nan"


@pytest.mark.parametrize("length", [3, 30])
def test_cells_keep_room_for_their_numbers_beside_long_names(length):
    names = ["n" * length] * 2
    figure = figures.weights(np.eye(2), names, names)
    FigureCanvasAgg(figure).draw()
    cell = figure.axes[0].get_window_extent().width / 2
    assert max(text.get_window_extent().width for text in figure.axes[0].texts) < cell
    assert figure.axes[0].get_tightbbox().x0 >= 0


def test_a_measured_total_lies_within_the_axes():
    low, high = figures.why([[0.1, -0.1]], ["a"], total=[3.0, -3.0]).axes[0].get_ylim()
    assert low < -3 < 3 < high


def test_a_field_points_the_same_way_in_whatever_order_its_places_are_given():
    x, y, u = [0.0, 1.0], np.array([0.0, 1.0]), np.array([[1.0, 2.0], [3.0, 4.0]])
    for given in ((x, y, u, u), (x, y[::-1], u[::-1], u[::-1])):
        figure = figures.path(POINTS, KEYS, WORDS, field=given)
        (arrows,) = [made for made in figure.axes[0].collections if isinstance(made, Quiver)]
        assert arrows.scale > 0
        stand = dict(zip(zip(arrows.X, arrows.Y, strict=True), zip(arrows.U, arrows.V, strict=True), strict=True))
        assert stand == {(0, 0): (1, 1), (1, 0): (2, 2), (0, 1): (3, 3), (1, 1): (4, 4)}


@pytest.mark.parametrize("step", [0, 10**9])
def test_a_run_of_one_frame_is_a_dot(step):
    run = {"q": POINTS[:1], "k": KEYS, "weights": np.full((1, 3), 1 / 3), "steps": [step]}
    ax = figures.training(run, WORDS).axes[0]
    assert all(line.get_marker() == "o" for line in ax.lines)
    assert ax.get_xlim()[0] < ax.get_xlim()[1]


def test_no_number_of_a_figure_is_negative_zero():
    shown = texts(figures.weights([[-1e-9, -0.0]], ["a"], ["b", "c"])) + texts(figures.why([[-1e-9, -1.0]], ["a"]))
    assert shown == ["0.000", "0.000", "-1.000", "+0.000", "-1.000"]
    side = figures.weights([[1.0000001]], ["a"], ["b"], entropy=True).axes[0].child_axes[0]
    side.figure.canvas.draw()
    assert [label.get_text() for label in side.get_yticklabels()] == ["0.000"]


@pytest.mark.parametrize("measured", [[np.nan, np.nan], [0.0, np.nan], []], ids=["all NaN", "NaN", "none"])
def test_what_is_not_a_number_is_not_said_to_be_conserved(measured):
    (ax,) = figures.conserved({"a": (0.0, measured)}).axes
    assert ax.get_title() == f"a: off by at most {'nan' if measured else '0.0e+00'}"


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


def head_of(T, seed=0):
    scores = 2.0 * np.random.default_rng(seed).normal(size=(T, T))
    w = np.exp(np.where(np.tri(T) > 0, scores, -np.inf))
    return w / w.sum(1, keepdims=True)


def run_of(w):
    """A run over as many steps as a head has queries."""
    turn = np.stack([np.cos(np.arange(len(w))), np.sin(np.arange(len(w)))], 1)
    return {"q": turn, "k": 2 * turn, "weights": w, "loss": w.max(1)}


def test_of_many_keys_the_strongest_are_drawn_and_the_sum_of_the_others():
    rng = np.random.default_rng(0)
    pulls, names = rng.normal(size=(40, 2)), ["the"] * 20 + [f"token{i}" for i in range(20)]
    ax = figures.why(pulls, names).axes[0]
    shown = [text.get_text() for text in ax.get_legend().get_texts()]
    assert shown[-1] == "32 others"
    bars = np.array([[bar.get_height() for bar in group] for group in ax.containers])
    np.testing.assert_allclose(bars.sum(0), pulls.sum(0))
    strongest = np.sort(np.argsort(-np.abs(pulls).max(1))[:8])
    np.testing.assert_allclose(bars[:-1], pulls[strongest], rtol=1e-12)
    assert shown[:-1] == [names[s] for s in strongest]
    w = rng.dirichlet(np.ones(40) / 4, size=12)
    drawn = figures.training({"q": np.zeros((12, 2)), "k": np.zeros((40, 2)), "weights": w}, names).axes[0]
    lines = np.array([line.get_ydata() for line in drawn.lines])
    assert len(lines) == 9
    np.testing.assert_allclose(lines.sum(0), 1)
    np.testing.assert_array_equal(lines[:-1].T, w[:, np.sort(np.argsort(-w.max(0))[:8])])


def test_two_keys_of_one_name_have_a_line_each():
    run = {"q": np.zeros((3, 2)), "k": np.eye(2), "weights": np.array([[0.2, 0.8], [0.5, 0.5], [0.9, 0.1]])}
    lines = figures.training(run, ["the", "the"]).axes[0].lines
    np.testing.assert_array_equal([line.get_ydata() for line in lines], run["weights"].T)


def test_vector_files_of_256_tokens_are_small(tmp_path):
    T, names = 256, [f"token{i}" for i in range(256)]
    w = head_of(T)
    states = np.tri(16) + np.tri(16, k=-1)
    made = {
        "weights": figures.weights(w, names, names, entropy=True),
        "heads": figures.heads(np.broadcast_to(w, (4, 4, T, T))),
        "arcs": figures.arcs(w, names, names),
        "blocks": figures.blocks(w, T=65536, S=65536, states=np.tri(T) + np.tri(T, k=-1)),
        "tiles": figures.tiles(states, values=np.where(np.tri(T) > 0, w - 0.5, np.nan)),
        "why": figures.why(w[-1][:, None] * np.cos(np.arange(8 * T)).reshape(T, 8), names),
        "training": figures.training(run_of(w), names),
        "path": figures.path(run_of(w)["q"], run_of(w)["k"], names),
    }
    sizes = {p.name: p.stat().st_size for n in made for p in figures.save(made[n], tmp_path / n, ["svg", "pdf"])}
    assert len(sizes) == 16
    assert {name: size for name, size in sizes.items() if size >= 200_000} == {}
    plain = io.BytesIO()
    made["tiles"].savefig(plain, format="svg", dpi=150)
    large = plain.getvalue()
    small = _save._IMAGE.sub(_save._with_palette, large)
    assert len(small) < 0.85 * len(large)
    opened = [[Image.open(io.BytesIO(base64.b64decode(x))) for x in re.findall(PNG, file)] for file in (small, large)]
    assert opened[0]
    for one, other in zip(*opened, strict=True):
        assert one.mode == "P"
        np.testing.assert_array_equal(one.convert("RGBA"), other.convert("RGBA"))  # a palette loses nothing
    for x in re.findall(PNG, (tmp_path / "tiles.svg").read_bytes()):
        assert Image.open(io.BytesIO(base64.b64decode(x))).mode == "P"


PNG = rb"data:image/png;base64,([A-Za-z0-9+/=\s]+)"
TOKENS = ["the", "river", "bank", "was", "steep", "and", "the", "money", "bank", "was", "shut"]


def drawn_in_a_column(name):
    """Each figure in axes, or a figure, 3.25 inches wide."""
    r = np.random.default_rng(0)
    states = np.tri(4) + np.tri(4, k=-1)
    many = [f"token{i}" for i in range(60)]
    run = RUN | {"steps": [0, 5000, 9999]}
    ways = {
        "weights": lambda ax: figures.weights(head_of(11), TOKENS, TOKENS, entropy=True, ax=ax, title="seen"),
        "few weights": lambda ax: figures.weights(WEIGHTS, ROWS, WORDS, ax=ax),
        "many weights": lambda ax: figures.weights(head_of(60), many, many, entropy=True, ax=ax),
        "heads": lambda ax: figures.heads(np.stack([head_of(5)] * 24).reshape(3, 8, 5, 5), ax=ax),
        "many heads": lambda ax: figures.heads(np.stack([head_of(5)] * 288).reshape(12, 24, 5, 5), ax=ax),
        "arcs": lambda ax: figures.arcs(head_of(60), many, many, ax=ax),
        "blocks": lambda ax: figures.blocks(head_of(4), T=65536, S=65536, states=states, ax=ax),
        "tiles": lambda ax: figures.tiles(states, values=r.normal(size=(8, 8)), ax=ax),
        "why": lambda ax: figures.why(r.normal(size=(5, 4)), TOKENS[:5], ax=ax),
        "effects": lambda ax: figures.effects(*r.normal(size=(2, 4, 4)), second_order=np.zeros((4, 4)), ax=ax),
        "path": lambda ax: figures.path(POINTS, KEYS, WORDS, rays={"u": [1, 1]}, marks={0: "start"}, ax=ax),
        "training": lambda ax: figures.training(run, WORDS, figure=ax.figure.clear() or ax.figure, title="seen"),
        "conserved": lambda ax: figures.conserved(
            {"a": (1.0, [1.0, 1.1]), "b": (0.0, [0.0, 1e-9])}, steps=[0, 9999], figure=ax.figure.clear() or ax.figure
        ),
    }
    figure = Figure(figsize=(3.25, 7.0 if name in ("training", "conserved") else 3.1), layout="constrained")
    ways[name](figure.add_subplot())
    return figure


def faults(figure):
    """Texts that are small or cut off, and axes of which two names of ticks lie on each other."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer, found = canvas.get_renderer(), []
    ticks = {}
    for axes in figure.findobj(lambda a: hasattr(a, "xaxis")):
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks():
                shown = axes.axison and low <= tick.get_loc() <= high
                ticks |= dict.fromkeys((tick.label1, tick.label2), (axis, shown))
    boxes = {}
    for text in figure.findobj(Text):
        axis, shown = ticks.get(text, (None, True))
        if not (text.get_visible() and text.get_text().strip() and shown):
            continue
        if text.get_fontsize() < 6:
            found.append(("small", text.get_text()))
        box = text.get_window_extent(renderer)
        if box.x0 < -1 or box.y0 < -1 or box.x1 > figure.bbox.x1 + 1 or box.y1 > figure.bbox.y1 + 1:
            found.append(("cut", text.get_text()))
        boxes.setdefault(axis, []).append((box, text.get_text()))
    for axis, labels in boxes.items():
        if axis is not None:
            for (a, one), (b, other) in itertools.pairwise(labels):
                if min(a.x1, b.x1) > max(a.x0, b.x0) and min(a.y1, b.y1) > max(a.y0, b.y0):
                    found.append(("over", one, other))
    return found


COLUMN = [
    "weights", "few weights", "many weights", "heads", "many heads", "arcs", "blocks", "tiles", "why", "effects",
    "path", "training", "conserved",
]  # fmt: skip


@pytest.mark.parametrize("name", COLUMN)
def test_in_one_column_every_text_is_legible(name):
    figure = drawn_in_a_column(name)
    assert faults(figure) == []
    assert sum(bool(t.get_text()) for t in figure.findobj(Text)) > 5, "and there are texts"


def test_a_text_that_cannot_be_read_in_one_column_is_found():
    figure = Figure(figsize=(3.25, 2))
    ax = figure.add_subplot()
    ax.set_xticks(range(12), [*TOKENS, "end"])
    ax.set_title("a title that is wider than a column of a paper is, and wider", fontsize=11)
    ax.text(0, 0, "small", fontsize=5.9)
    assert {kind for kind, *_ in faults(figure)} == {"small", "cut", "over"}


def test_figures_follow_rcparams(tmp_path):
    usual = figures.training(RUN, WORDS)
    with matplotlib.rc_context({"font.size": 20, "font.family": "DejaVu Serif", "savefig.dpi": 50}):
        large = figures.training(RUN, WORDS)
        (png,) = figures.save(large, tmp_path / "large", ["png"])
        cells = figures.weights(WEIGHTS, ROWS, WORDS).axes[0].texts
        figure = Figure(figsize=(2, 1))
        figures.arcs(head_of(11), TOKENS, TOKENS, ax=figure.add_subplot())
    asked = ("weights", "loss", "step", "river")
    sizes = [{t.get_text(): t.get_fontsize() for t in f.findobj(Text) if t.get_text() in asked} for f in (usual, large)]
    assert len(sizes[0]) == 4
    assert sizes[1] == {text: 2 * size for text, size in sizes[0].items()}
    assert {t.get_family()[0] for t in large.findobj(Text)} == {"DejaVu Serif"}
    assert {t.get_family()[0] for t in usual.findobj(Text)} == {"sans-serif"}
    assert {10 < t.get_fontsize() <= 20 for t in cells} == {True}, "larger, and no wider than a cell"
    assert {t.get_fontsize() for t in figure.axes[0].texts} == {6.0}, "smaller where there is no room, never below 6"
    with Image.open(png) as image:
        np.testing.assert_allclose(image.size, 50 * large.get_size_inches(), atol=1)


# How the colour-blind see linear sRGB, at severity 1: Machado, Oliveira and Fernandes 2009, "A physiologically-based
# model for simulation of color vision deficiency", IEEE TVCG 15 (6), table of the matrices.
SEEN = {
    "all": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "grey": [[0.2126, 0.7152, 0.0722]] * 3,
}


def lab(colours, seen):
    """CIE L*a*b* of colours of the screen, as someone sees them."""
    c = np.array([to_rgb(colour) for colour in colours])
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ np.array(SEEN[seen]).T
    xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    t = np.clip(linear, 0, 1) @ xyz.T / xyz.sum(1)
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], 1)


def alike(colours, seen, least=20.0):
    """Pairs whose colours differ by less than ΔE*ab 20: ten of the smallest differences that are noticed (2.3)."""
    c = lab(colours, seen)
    far = np.linalg.norm(c[:, None] - c, axis=-1)
    return {(i, j) for i, j in itertools.combinations(range(len(c)), 2) if far[i, j] < least}


def test_what_has_a_colour_is_told_apart_without_it():
    n = 24
    words = [f"key{i}" for i in range(n)]
    run = {"q": np.zeros((2, 2)), "k": np.zeros((2, n, 2)), "weights": np.full((2, n), 1 / n)}
    lines = figures.training(run, words).axes[0].lines
    bars = [bar[0] for bar in figures.why(np.ones((n, 1)), words).axes[0].containers]
    ax = figures.path(np.zeros((2, 2)), np.random.default_rng(0).normal(size=(2, n, 2)), words).axes[0]
    (dots,) = ax.collections
    shapes = [tuple(p.vertices.ravel()) for p in dots.get_paths()]
    looks = {
        "lines": [(line.get_color(), str(line._dash_pattern)) for line in lines],
        "bars": [(to_hex(bar.get_facecolor()), bar.get_hatch()) for bar in bars],
        "keys": list(zip(map(to_hex, dots.get_facecolors()), shapes, strict=True)),
        "ways": [(line.get_color(), str(line._dash_pattern)) for line in ax.lines[:n]],
    }
    drawn = {"lines": 9, "bars": 9, "keys": n, "ways": n}  # of more than nine keys some are drawn together
    for what, look in looks.items():
        assert len(look) == drawn[what], what
        colours, forms = zip(*look, strict=True)
        assert len(set(forms)) == 8, what
        for seen in ("all", "protanopia", "deuteranopia", "tritanopia"):
            hard = {(i, j) for i, j in alike(colours, seen) if forms[i] == forms[j]}
            assert {j - i for i, j in hard} <= {8, 16}, (what, seen)
            assert not any(j < 8 for _, j in hard), (what, seen)
        first = {(i, j) for i, j in alike(colours[:8], "grey") if forms[i] == forms[j]}
        assert first == set(), what
    assert alike(_canvas.COLOURS, "tritanopia"), "colours alone do not tell: hence the forms"
    for colour in _canvas.COLOURS:
        assert lab([colour], "all")[0, 0] < 60, "names in their colour stand out on white"


def contrast(a, b):
    high, low = sorted((_canvas.luminance(to_rgb(c)) + 0.05 for c in (a, b)), reverse=True)
    return high / low


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_every_text_stands_out_on_the_paper_of_the_style(style):
    """At least 4.5:1 (WCAG 2.2); but for numbers in cells of a colour map, which stand out on their cell."""
    with matplotlib.style.context(style):
        paper = matplotlib.rcParams["axes.facecolor"]
        made = {
            "arcs": figures.arcs(WEIGHTS, ["a", "b"], ["c", "d", "e"]),
            "path": figures.path(
                np.zeros((2, 2)), np.eye(9)[:, :2], list("abcdefghi"), rays={"r": [1, 1]}, marks={0: "m"}
            ),
            "why": figures.why(np.linspace(-1, 1, 18).reshape(9, 2), list("abcdefghi")),
            "training": figures.training(RUN, WORDS, title="A run"),
            "conserved": figures.conserved({"Σ dk": (0.0, [0.0, 1e-17])}),
            "effects": figures.effects(np.array([[0.1, 0.4]]), np.array([[0.2, -0.1]])),
            "tiles": figures.tiles([[1, 0], [2, 1]], shape=(4, 4)),
        }
        faint = {
            (name, text.get_text(), text.get_color())
            for name, figure in made.items()
            for text in figure.findobj(Text)
            if text.get_text() and contrast(text.get_color(), paper) < 4.5
        }
        assert faint == set()
        lines = figures.training(RUN, WORDS).axes[0].lines
        assert min(contrast(line.get_color(), paper) for line in lines) >= 3
    assert contrast("#777777", "black") > 4.5 > contrast("#777777", "white"), "the control"


def test_the_colour_map_of_weights_is_even_for_everyone():
    for seen in SEEN:
        light = lab(matplotlib.colormaps["viridis"](np.linspace(0, 1, 65))[:, :3], seen)[:, 0]
        assert (np.diff(light) > 0).all(), seen
        assert light[-1] - light[0] > 60, seen
    assert not (np.diff(lab(matplotlib.colormaps["jet"](np.linspace(0, 1, 65))[:, :3], "grey")[:, 0]) > 0).all()


def test_the_gallery_draws_every_example(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "demos")
    gallery = importlib.import_module("gallery")
    drawn = gallery.compute(gallery.arguments().parse_args(["--out", str(tmp_path)]))
    types = {"Background", "Field", "PlaneOptions", "RunLike"}
    assert list(drawn) == [name for name in figures.__all__ if name not in types]
    itself = {"animate": ["animate_wrote/way.gif"], "save": ["save_wrote/bank.png", "save_wrote/bank.svg"]}
    for name, files in drawn.items():
        expected = itself.get(name, [f"{name}.{kind}" for kind in ("png", "svg", "pdf")])
        assert [os.path.relpath(file, tmp_path) for file in files] == expected
        assert {file: os.path.getsize(file) for file in files} == files
    assert imread(tmp_path / "why.png").std() > 0.01
    monkeypatch.setattr(figures.why, "__doc__", figures.why.__doc__.replace("'+0.300'", "'+0.301'"))
    with pytest.raises(RuntimeError, match=r"the example of figures\.why does not give what it says:[^$]*0\.301"):
        gallery.draw("why", tmp_path)


def test_a_gallery_without_a_folder_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "demos")
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    out = tmp_path / "out"
    said = refusal(importlib.import_module("gallery"), ["--out", str(out)], monkeypatch, capsys)
    assert said == f"gallery.py: --out {out}: Permission denied. Name a folder that can be written to.\n"


@pytest.mark.parametrize("text", ["$a\nb$", "\ufeff", "\ud800x", "a\x00b", "$5\\$ x$", "שלום", "\n"])
@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")
def test_any_text_can_be_a_title_and_a_name(text, tmp_path):
    for draw in TITLED.values():
        figures.save(draw(text), tmp_path / "a")
    for draw in (figures.weights, figures.arcs):
        figures.save(draw(np.eye(2), [text, text], [text, text]), tmp_path / "a")


@pytest.mark.parametrize("draw", [figures.weights, figures.arcs])
def test_a_weight_far_beyond_1_is_readable(draw):
    figure = draw([[1e30, 0.5]], ["bank"], ["river", "money"])
    FigureCanvasAgg(figure).draw()
    assert "1.0e+30" in texts(figure)
    assert max(map(len, texts(figure))) <= len("1.0e+30")
    assert all(arc.get_linewidth() < 10 for arc in figure.axes[0].patches)


@pytest.mark.parametrize("weight", [1e300, -3.0, np.inf, -np.inf, np.nan])
def test_a_film_draws_a_weight_that_is_none_at_the_end_of_its_axis(weight, tmp_path):
    run = {"q": np.eye(2), "k": np.eye(2), "weights": [[weight, 0.5]] * 2}
    figure = Figure(figsize=(6, 3), layout="constrained")
    figures.animate(run, ["river", "the"], tmp_path / "a.gif", seconds=1, figure=figure)
    assert all(0 <= bar.get_width() <= 1 for bar in figure.axes[1].patches)
    number = f"{weight:.1e}" if abs(weight) > 1000 and np.isfinite(weight) else f"{weight:.3f}"
    assert texts_of(figure.axes[1])[0] == (number if np.isfinite(weight) else f"{weight}")


def test_a_path_far_below_1e_9_fills_its_axes():
    tiny = 1e-12 * POINTS[:, :2]
    (ax,) = figures.path(tiny, tiny, WORDS).axes
    (low, high) = ax.get_xlim()
    assert 1e-12 < high - low < 3e-12
    assert np.diff(figures.path([[0, 0]], [[0, 0]], ["q"]).axes[0].get_xlim()) == pytest.approx(0.3)


@pytest.mark.parametrize("length", [3, 40])
def test_the_name_of_the_leftmost_head_stands_within_the_axes(length):
    names = [c * length for c in "abcd"]
    figure = figures.effects([[-1.0, 0.2], [0.4, 0.9]], [[-0.2, 0.1], [0.5, 0.8]], labels=names)
    FigureCanvasAgg(figure).draw()
    (ax,) = figure.axes[:1]
    (first,) = [text for text in ax.texts if text.get_text() == names[0]]
    assert first.get_window_extent().x0 > ax.get_window_extent().x0


def test_only_what_is_hatched_among_blocks_has_a_sign_in_the_legend():
    figure = figures.blocks([[1.0, 0.0], [0.4, 0.6]], T=4, S=4, states=[[1, 0], [2, 1]])
    signs = figure.axes[0].get_legend().get_patches()
    assert [(sign.get_edgecolor()[3], sign.get_hatch()) for sign in signs] == [(0, None), (0, None), (1, "xx")]


@pytest.mark.parametrize(
    "draw",
    [
        lambda x: figures.weights(x, ROWS, ROWS),
        lambda x: figures.path(x, x, ROWS),
        lambda x: figures.why(x, ROWS),
        lambda x: figures.effects(x, x),
    ],
)
def test_numbers_whose_sums_overflow_are_refused_in_the_name_of_their_argument(draw):
    draw(np.full((2, 2), 1e299))
    with pytest.raises(ValueError, match=r"must be at most 1e\+300 in size, got \w+ \[2, 2\]\. Sums of larger numbers"):
        draw(np.full((2, 2), 1.7e308))


def test_a_film_of_what_is_not_finite_and_steps_below_a_logarithm_are_refused_by_name(tmp_path):
    run = {"q": [[0.0, np.nan]] * 2, "k": np.eye(2), "weights": np.eye(2)}
    with pytest.raises(ValueError, match=r"^animate: run\.q must be finite, got run\.q \[2, 2\]\."):
        figures.animate(run, ["river", "the"], tmp_path / "a.gif")
    run = {"q": np.eye(2), "k": np.eye(2), "weights": np.eye(2), "steps": [-1, 0]}
    with pytest.raises(ValueError, match=r"^training: run\.steps must be above -1 with log, got run\.steps with one"):
        figures.training(run, ["river", "the"], log=True)


def test_a_folder_in_the_place_of_a_file_leaves_nothing_written(tmp_path):
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(IsADirectoryError, match=r"^save: stem must not name a folder, got a\.svg that is a folder\."):
        figures.save(figures.weights(WEIGHTS, ROWS, WORDS), tmp_path / "a")
    (tmp_path / "b.gif").mkdir()
    run = {"q": np.eye(2), "k": np.eye(2), "weights": np.eye(2)}
    with pytest.raises(IsADirectoryError, match=r"^animate: file must not name a folder, got b\.gif that is"):
        figures.animate(run, ["river", "the"], tmp_path / "b.gif", seconds=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.gif"]
