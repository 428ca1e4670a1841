"""Figures: what is drawn holds the numbers that came in, and no more."""

import importlib
import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import jax.numpy as jnp
import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.quiver import Quiver

from jattn import figures

WEIGHTS = np.array([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]])
ROWS, WORDS = ["bank", "the"], ["river", "money", "the"]
POINTS = np.array([[1.0, 0.0], [1.3, -0.1], [1.5, -0.3]])
KEYS = np.array([[1.0, 0.0], [0.2, 0.1], [0.0, 0.1]])


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


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


REFUSED = [
    (lambda: figures.weights(WEIGHTS[0], ROWS, WORDS), ValueError, r"weights: weights must have the shape \[T, S\]"),
    (lambda: figures.weights(WEIGHTS, ["bank"], WORDS), ValueError, "weights: rows must hold T = 2 names"),
    (lambda: figures.weights(WEIGHTS, ROWS, "abc"), ValueError, "weights: columns must hold S = 3 names, got .*'abc'"),
    (
        lambda: figures.weights(WEIGHTS * np.nan, ROWS, WORDS),
        ValueError,
        r"weights must be finite, got weights \[2, 3\]",
    ),
    (lambda: figures.weights([[1], [1, 2]], ROWS, WORDS), TypeError, "weights must be an array of numbers"),
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
