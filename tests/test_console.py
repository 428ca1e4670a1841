"""The terminal's pictures: what they say in colour they say in numbers, at 80 columns; and their messages."""

import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from rich.color import Color
from rich.console import Console
from rich.style import Style

from jattn import console


def text(renderable, **options) -> str:
    paper = Console(width=80, **options)
    with paper.capture() as captured:
        paper.print(renderable)
    return captured.get()


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


def test_what_is_not_finite_is_written_without_a_colour():
    page = text(console.heatmap([[-np.inf, np.nan]], "a", "bc"), force_terminal=True, color_system="truecolor")
    assert "-inf" in page
    assert "nan" in page
    assert "48;2" not in page


def test_numbers_have_no_negative_zero_and_no_endless_digits():
    page = text(console.vectors(["a"], [[-1e-9, 1.23456e9, -2.0]]))
    assert "-0.000" not in page
    assert "1.23e+09" in page
    assert "-2.000" in page


def test_a_bar_has_as_many_marks_as_the_weight_says():
    lines = text(console.bars("abcd", [0.999, 0.5, -1.0, 7.0])).splitlines()
    assert [line.count("#") for line in lines] == [29, 15, 0, 30]
    assert text(console.bars("a", [1.0], title="top")).splitlines()[0].strip() == "top"


def test_other_kinds_of_numbers_and_nothing_at_all():
    assert "0.500" in text(console.vectors(["a"], np.array([[0.5]], ml_dtypes.bfloat16)))
    assert "1.000" in text(console.heatmap(np.eye(2, dtype=bool), "ab", "ab"))
    for made in (console.heatmap(np.zeros((0, 0)), [], []), console.vectors([], []), console.bars([], [])):
        assert text(made) is not None


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
        (lambda: console.bars("a", [1.0], width=0), ValueError, "bars: width must be at least 1, got width 0"),
        (lambda: console.heatmap([[1.0]], "a", "b", digits=-1), ValueError, "heatmap: digits must be at least 0"),
        (lambda: console.vectors("a", [[1.0]], digits=1.5), TypeError, "vectors: digits must be a whole number"),
    ],
)  # fmt: skip
def test_messages(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_without_rich_the_message_says_what_to_install():
    program = "import sys; sys.modules['rich'] = None\ntry:\n import jattn.console\nexcept ImportError as e: print(e)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "jattn.console: rich must be installed. Run: pip install 'jattn[console]'" in done.stdout
