"""The terminal's pictures: what they say in colour they say in numbers, at 80 columns; and their messages."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from rich.cells import cell_len
from rich.color import Color
from rich.console import Console
from rich.style import Style

from jattn import console


def text(renderable, **options) -> str:
    paper = Console(width=80, **options)
    with paper.capture() as captured:
        paper.print(renderable)
    return captured.get()


# Each picture as it is meant to look, at two widths, with and without colour: tests/golden/<name>-<width>[-colour].txt.

GOLD = Path(__file__).parent / "golden"
WORDS = ["river", "money", "the"]
WEIGHTS = np.array([[0.485, 0.276, 0.239], [0.0, 1.0, 0.0]])
PULLS = np.array([[0.364, 0.0], [-0.039, -0.0195], [0.0, -0.0169]])
STEPS = np.linspace(0, 1, 90)
GOLDEN = {
    "heatmap": lambda w: console.heatmap(WEIGHTS, ["bank", "the"], WORDS, entropy=True, title="Weights", width=w),
    "vectors": lambda w: console.vectors(WORDS, PULLS, width=w),
    "bars": lambda w: console.bars(WORDS, WEIGHTS[0], width=20),
    "ranked": lambda w: console.ranked(np.stack([WEIGHTS, WEIGHTS[::-1]])[None], ["bank", "the"], WORDS, top=3,
                                     width=w),
    "arrows": lambda w: console.arrows(STEPS[:20:2], STEPS[:10:2], *np.meshgrid(9 * STEPS[:20:2] - 1, STEPS[:10:2]),
                                       places={"q": [0, 0], "river": [0.2, 0.1], "money": [0.2, 0.1]}),
    "sparklines": lambda w: console.sparklines({"loss": np.exp(-3 * STEPS), "flat": 0 * STEPS, "cosines": {
        "river": np.where(STEPS > 0.5, np.nan, STEPS)}, "keys": np.eye(3)}, title="A run", width=w),
    "why": lambda w: console.why(PULLS, WORDS, total=PULLS.sum(0), digits=4, width=w),
    "tiles": lambda w: console.tiles(1 + np.sign(np.arange(50)[:, None] - np.arange(50))[::5], width=w),
    "conserved": lambda w: console.conserved({"Σ dk": (0.0, [0.0, 1e-9]), "|q|² − |K|²": ([1.0, 2.0], [1.0, 2.1]),
                                              "lost": (0.0, [np.nan])}),
}  # fmt: skip


def printed(renderable, width: int, colour: bool) -> str:
    paper = Console(width=width, force_terminal=colour, color_system="truecolor" if colour else None, no_color=False)
    with paper.capture() as captured:
        paper.print(renderable)
    return captured.get()


@pytest.mark.parametrize("colour", [False, True], ids=["plain", "colour"])
@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("name", GOLDEN)
def test_the_picture_is_as_it_is_meant_to_look(name, width, colour):
    seen = printed(GOLDEN[name](width), width, colour)
    assert seen == (GOLD / f"{name}-{width}{'-colour' if colour else ''}.txt").read_text(encoding="utf-8")
    letters = re.sub(r"\x1b\[[0-9;]*m", "", seen)
    assert letters == printed(GOLDEN[name](width), width, False), "colour adds nothing that letters do not say"
    assert max(map(cell_len, letters.splitlines())) <= width
    assert colour or letters == seen


def test_every_picture_has_its_golden_text():
    assert set(GOLDEN) == set(console.__all__) - {"save", "progress"}


def test_arrows_point_where_they_should_and_dots_are_still():
    turns = np.arange(8) * np.pi / 4
    grid = console.arrows(range(8), [0], 3 * np.cos(turns)[None], 3 * np.sin(turns)[None])
    assert text(grid).splitlines()[0] == "→ ↗ ↑ ↖ ← ↙ ↓ ↘"
    assert text(console.arrows([0], [0], [[0.0]], [[0.0]])).splitlines() == ["·", "longest arrow 0"]


def test_many_tiles_are_drawn_together_and_still_counted():
    block_states = np.tri(90, dtype=int) * 2
    page = text(console.tiles(block_states, width=40)).splitlines()
    assert len(page[0]) == 30
    assert page[0][0] == "▒"
    assert page[29] == "█" * 29 + "▒"
    assert f"full: {90 * 91 // 2}" in page[-1] or f"full: {90 * 91 // 2}" in " ".join(page[-2:])


@pytest.mark.parametrize("kind", ["svg", "html"])
def test_what_is_saved_asks_nobody_for_anything(kind, tmp_path):
    file = console.save(console.heatmap(WEIGHTS, ["bank", "the"], WORDS), tmp_path / "a" / f"row.{kind}")
    saved = file.read_text(encoding="utf-8")
    assert "0.485" in saved
    assert not re.search(r"url\(\"?http|@import|src=|<link|@font-face", saved)
    assert [x.name for x in (tmp_path / "a").iterdir()] == [f"row.{kind}"]
    if kind == "svg":
        assert ET.fromstring(saved).tag.endswith("svg")
        paper = Console(record=True, file=open(tmp_path / "nowhere", "w"))  # noqa: SIM115
        paper.print("x")
        assert "@font-face" in paper.export_svg(), "the control: rich alone would fetch a font"
        paper.file.close()


def luminance(color: Color) -> float:
    """Relative luminance, as WCAG 2 defines it."""
    c = np.array(color.get_truecolor()) / 255
    return float(np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4) @ [0.2126, 0.7152, 0.0722])


def test_a_coloured_cell_carries_its_number():
    weights = [[0.7, 0.3], [0.0, 1.0]]
    coloured = text(console.heatmap(weights, "ab", "cd"), force_terminal=True, color_system="truecolor", no_color=False)
    plain = text(console.heatmap(weights, "ab", "cd"), force_terminal=False)
    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    for number in ("0.700", "0.300", "0.000", "1.000"):
        assert number in coloured
        assert number in plain


def test_the_letters_stand_out_on_every_shade():
    for weight in np.linspace(0, 1, 101):
        style = Style.parse(console._grid._shade(weight, 1.0))
        a, b = sorted((luminance(style.color), luminance(style.bgcolor)))
        assert (b + 0.05) / (a + 0.05) >= 4.5  # WCAG 2, level AA


@pytest.mark.parametrize("n", [1, 11, 30])
def test_what_does_not_fit_continues_below(n):
    x = np.arange(2.0 * n).reshape(2, n) - n
    for made in (console.heatmap(x, "ab", [f"word {i}" for i in range(n)]), console.vectors("ab", x, title="x")):
        page = text(made)
        assert max(map(len, page.splitlines())) <= 80
        assert all(f" {entry:.3f}" in page for entry in x.ravel())


def test_a_long_label_is_cut_and_a_wide_one_counted():
    page = text(console.heatmap([[1.0]], ["incomprehensibilities"], ["河岸"]))
    assert "incomprehen…" in page
    assert "河岸" in page


def test_a_label_stays_on_its_line_and_controls_no_terminal(tmp_path):
    """A token may be a line break, an escape or half of a surrogate pair."""
    labels = ["a\nb", "\x1b[31m", "\ud800"]
    table = console.heatmap(np.eye(3), labels, labels)
    pictures = [table, console.bars(labels, [0.1, 0.2, 0.3]), console.conserved({"a\nb": (0.0, [0.0])})]
    pictures += [console.arrows([0], [0], [[1]], [[1]], places={"a\nb": [0, 0]}), console.sparklines({"a\nb": [1.0]})]
    for picture in pictures:
        page = text(picture)
        assert "a\\nb" in page
        assert "\x1b" not in page
    assert [len(line) for line in text(table).splitlines()[2:5]] == [len(text(table).splitlines()[0])] * 3
    titled = console.heatmap([[1.0]], "a", "b", title="of \x1b and \ud800")
    assert ET.fromstring(console.save(titled, tmp_path / "a.svg", title="\x00").read_bytes()).tag.endswith("svg")
    assert ET.fromstring(console.save(table, tmp_path / "a.svg").read_bytes()).tag.endswith("svg")


def test_a_series_is_drawn_in_any_kind_of_real_numbers():
    """Of a list whose numbers have not one shape nothing is drawn, and the other series are."""
    ramp = [0.0, 0.5, 1.0]
    kinds = {"a": ramp, "b": np.array(ramp, ml_dtypes.bfloat16), "c": np.array(ramp, np.float16), "d": np.arange(3)}
    lines = text(console.sparklines(kinds | {"ragged": [[1.0], [1.0, 2.0]], "text": ["x"] * 3})).splitlines()[2:]
    assert [line.split()[0] for line in lines] == list("abcd")
    assert len({line.split()[2] for line in lines}) == 1


def test_what_is_not_finite_is_written_without_a_colour():
    page = text(console.heatmap([[-np.inf, np.nan]], "a", "bc"), force_terminal=True, color_system="truecolor")
    assert "-inf" in page
    assert "nan" in page
    assert "48;2" not in page


def test_numbers_have_no_negative_zero_and_no_endless_digits():
    page = text(console.ranked([[-1e-9, 1.0000001]], ["a"], ["b", "c"])) + text(
        console.vectors(["a"], [[-1e-9, 1.23456e9, -2.0]])
    )
    assert "-0.000" not in page
    assert "1.23e+09" in page
    assert "-2.000" in page


def test_a_number_too_long_for_its_column_has_an_exponent_of_three_digits():
    rows = text(console.ranked([[1e30, -160_000.0]], ["bank"], ["river", "money"])).splitlines()[2:]
    assert [row.split()[1:4] for row in rows] == [["bank", "river", "1e+30"], ["bank", "money", "-1.6e+05"]]
    assert text(console.vectors(["a"], [[163_000.0]], digits=0)).split()[-1] == "1.63e+05"


def test_an_infinity_that_was_predicted_is_not_conserved():
    assert text(console.conserved({"a": (np.inf, [np.inf])})) == "FAIL  a: off by at most nan\n"


def test_numbers_whose_difference_or_square_is_no_float_are_drawn():
    assert "▁▅█" in text(console.sparklines({"loss": [-1.7e308, 0.0, 1.7e308]}))
    lines = text(console.why([[3e200, 4e200], [0.0, 0.0]], ["river", "money"], digits=2)).splitlines()
    assert [line.split()[1] for line in lines[2:5]] == ["+5e+200", "0.00", "+5e+200"]


def test_a_bar_has_as_many_marks_as_the_weight_says():
    lines = text(console.bars("abcd", [0.999, 0.5, -1.0, 7.0])).splitlines()
    assert [line.count("#") for line in lines] == [29, 15, 0, 30]
    assert text(console.bars("a", [1.0], title="top")).splitlines()[0].strip() == "top"


def test_other_kinds_of_numbers_and_nothing_at_all():
    assert "0.500" in text(console.vectors(["a"], np.array([[0.5]], ml_dtypes.bfloat16)))
    assert "1.000" in text(console.heatmap(np.eye(2, dtype=bool), "ab", "ab"))
    nothing = console.heatmap(np.zeros((0, 0)), [], []), console.vectors([], np.zeros((0, 2))), console.bars([], [])
    assert [text(made).split() for made in nothing] == [["─"], ["1", "2", "─" * 9], []], "no entry"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: console.heatmap([[1.0, 2.0]], "a", "b"), ValueError,
         r"heatmap: weights must have one row and one column for each label, got weights \[1, 2\] and labels for 1 "
         r"rows and 1 columns\. Label"),
        (lambda: console.vectors("ab", [[1.0]]), ValueError, r"vectors: x must have one row .* got x \[1, 1\]"),
        (lambda: console.bars("ab", [1.0]), ValueError, r"bars: weights must have one row .* got weights \[1, 1\]"),
        (lambda: console.heatmap([["x"]], "a", "b"), TypeError,
         r"heatmap: weights must be an array of real numbers, got weights of type list\. Pass"),
        (lambda: console.vectors("ab", [[1.0], [1.0, 2.0]], columns="x"), TypeError, "vectors: x must be an array"),
        (lambda: console.bars("a", [1j]), TypeError, "bars: weights must be an array of real numbers"),
        (lambda: console.bars("a", np.array([1j])), TypeError, r"numbers, got weights of dtype complex128\. Pass"),
        (lambda: console.bars("ab", [[1.0], [1.0, 2.0]]), TypeError, "bars: weights must be an array of real numbers"),
        (lambda: console.vectors("ab", [[1.0], [1.0, 2.0]]), TypeError, "vectors: x must be an array of real numbers"),
        (lambda: console.heatmap([[1.0]], None, "b"), TypeError,
         r"^heatmap: rows must be a list of labels, got rows of type NoneType\. Label each\.$"),
        (lambda: console.heatmap([[1.0]], "a", 3), TypeError, "^heatmap: columns must be a list of labels"),
        (lambda: console.vectors(None, [[1.0]]), TypeError, "^vectors: labels must be a list of labels"),
        (lambda: console.vectors("a", [[1.0]], columns=1), TypeError, "^vectors: columns must be a list of labels"),
        (lambda: console.bars(2, [1.0]), TypeError, "^bars: labels must be a list of labels, got labels of type int"),
        (lambda: console.bars("a", [1.0], width=0), ValueError, "bars: width must be at least 1, got width 0"),
        (lambda: console.heatmap([[1.0]], "a", "b", digits=-1), ValueError, "heatmap: digits must be at least 0"),
        (lambda: console.vectors("a", [[1.0]], digits=1.5), TypeError, "vectors: digits must be a whole number"),
        (lambda: console.ranked(np.zeros(3), "a", "b"), ValueError, r"^ranked: weights must have the axes \[T, S\]"
         r", \[H, T, S\] or \[L, H, T, S\], got weights \[3\]\. Take the batch apart first\.$"),
        (lambda: console.ranked([[1.0]], ["a"], ["b"], top=0), ValueError, "^ranked: top must be at least 1, got top"),
        (lambda: console.ranked([[1.0], [1.0, 2.0]], "a", "b"), TypeError, "^ranked: weights must be an array"),
        (lambda: console.arrows([0], [0], [[1]], [[1]], places=["q"]), TypeError, r"^arrows: places must map names to "
         r"places, got places of type list\. Pass a mapping, or None\.$"),
        (lambda: console.arrows([0], [0], [[1]], [[1]], places={str(n): [0, 0] for n in range(27)}), ValueError,
         r"^arrows: places must be at most 26, and none of an empty grid, got places of length 27 and u \[1, 1\]\."),
        (lambda: console.arrows([0], [1, 0], [[1], [1]], [[1], [1]]), ValueError,
         r"^arrows: y must increase, got y in another order\. Turn u and v with it\.$"),
        (lambda: console.arrows([], [], np.zeros((0, 0)), np.zeros((0, 0)), places={"q": [0, 0]}), ValueError,
         "^arrows: places must be at most 26, and none of an empty grid"),
        (lambda: console.arrows([0], [0], [[1, 2]], [[1]]), ValueError, r"^arrows: u must have the shape \[ny, nx\]"),
        (lambda: console.sparklines(3), TypeError, r"^sparklines: series must map names to \[F\], got series of type "
         r"int\. Pass a mapping\.$"),
        (lambda: console.why([[1.0]], ["a"], total=[1, 2]), ValueError, r"^why: total must have the shape \[D\]"),
        (lambda: console.tiles([[3]]), ValueError, r"^tiles: block_states must be 0, 1 or 2, got block_states "
         r"\[1, 1\]\. These are EMPTY, PARTIAL and FULL, as mask\.block_state says\.$"),
        (lambda: console.conserved({}), TypeError, r"^conserved: quantities must map each quantity to \(predicted, "
         r"measured\), got quantities empty\. Pass a mapping\.$"),
        (lambda: console.conserved({"a": ("x", [0.0])}), TypeError, r"^conserved: quantities\['a'\]\[0\] must be"),
        (lambda: console.conserved({"a": (0.0, [[1.0], [1.0, 2.0]])}), TypeError, r"^conserved: .*\['a'\]\[1\] must"),
        (lambda: console.conserved({"a": (0.0, [0.0])}, tolerance=None), TypeError,
         r"^conserved: tolerance must be one number, got tolerance of type NoneType\. Pass a Python float\.$"),
        (lambda: console.save("x", "row.pdf"), ValueError, r"^save: file must end in \.svg or \.html, got file "
         r"row\.pdf\. Name one of them\.$"),
    ],
)  # fmt: skip
def test_a_view_refuses_what_it_cannot_show(call, error, message):
    with pytest.raises(error, match=message):
        call()


WIDTHS = {
    "heatmap": lambda w: console.heatmap([[1.0]], "a", "b", width=w),
    "vectors": lambda w: console.vectors("a", [[1.0]], width=w),
    "ranked": lambda w: console.ranked([[1.0]], ["a"], ["b"], width=w),
    "sparklines": lambda w: console.sparklines({"a": [1.0]}, width=w),
    "why": lambda w: console.why([[1.0]], ["a"], width=w),
    "tiles": lambda w: console.tiles([[1]], width=w),
    "save": lambda w: console.save("x", "row.svg", width=w),
}


@pytest.mark.parametrize("name", WIDTHS)
def test_a_width_that_no_terminal_has_is_refused_by_name(name):
    for width, error in ((0, ValueError), (None, TypeError), (40.5, TypeError)):
        with pytest.raises(error, match=f"^{name}: width must be"):
            WIDTHS[name](width)


@pytest.mark.parametrize(("module", "package"), [("console", "rich"), ("figures", "matplotlib")])
def test_without_what_it_draws_with_the_message_says_what_to_install(module, package):
    program = f"import sys; sys.modules[{package!r}] = None\ntry:\n import jattn.{module}\n"
    program += "except ImportError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    said = f"{module}: {package} must be installed, got {package} not found. Run: pip install 'jattn[{module}]'.\n"
    assert done.stdout == said


def test_the_numbers_of_the_frames_are_no_series():
    assert "steps" not in text(console.sparklines({"steps": [0, 5], "loss": [1.0, 0.5]}))


def test_a_folder_in_the_place_of_a_picture_is_refused_by_name(tmp_path):
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(IsADirectoryError, match=r"^save: file must not name a folder, got a\.svg that is a folder\."):
        console.save(console.bars(["river"], [0.5]), tmp_path / "a.svg")
