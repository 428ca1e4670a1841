"""Heads at a glance, in a browser: the table sorts, and a head that is chosen in one place is marked in all."""

import numpy as np
import pytest
from _browser import visits

from jattn import page

L, H = 3, 5
RNG = np.random.default_rng(0)
SCORES = {"entropy": RNG.random((L, H)), "gradient": RNG.normal(size=(L, H)), "knock-out": RNG.normal(size=(L, H))}
SCORES["entropy"][1, 2] = np.nan
WEIGHTS = RNG.random((L, H, 2, 3))


@pytest.fixture(scope="module")
def view(browser, tmp_path_factory):
    weights = page.heads(WEIGHTS, ["a", "b"], ["x", "y", "z"])  # of queries in one text and keys in another
    table = page.head_table(SCORES, across=("gradient", "knock-out"))
    folder = tmp_path_factory.mktemp("heads")
    page.write(folder / "heads.html", "Heads", table, weights)
    with visits(browser, folder) as go:
        yield go("heads.html")


def column(view, c):
    cells = view.locator(f"table.sorted tbody tr td:nth-child({c + 2})").all_text_contents()
    return [float(x.replace("−", "-")) for x in cells]


def test_a_column_sorts_both_ways_and_says_so(view):
    sorters = view.locator("button.sort")
    for c, (name, x) in enumerate(SCORES.items()):
        for way, sign in (("descending", -1), ("ascending", 1)):
            sorters.nth(c).click()
            want = sign * np.sort(sign * x.ravel())  # NaN is last both ways
            np.testing.assert_allclose(column(view, c), want, atol=6e-4, err_msg=f"{name}, {way}")
            shown = view.locator("table.sorted thead th").evaluate_all("all => all.map(e => e.ariaSort)")
            assert shown == [None, *(way if i == c else "none" for i in range(3))]
        names = view.locator("table.sorted tbody button.token").all_text_contents()
        assert names == [f"{i // H}.{i % H}" for i in np.argsort(x, axis=None, kind="stable")]
    assert view.seen == []


def test_a_head_chosen_in_one_place_is_marked_in_all(view):
    def marked():
        pressed = view.locator("table.sorted button[aria-pressed=true]").all_text_contents()
        arcs = view.locator(".overview button[aria-pressed=true]").get_attribute("data-head").replace(",", ".")
        places = view.locator(".field .mark").evaluate_all("all => all.map(m => [m.style.left, m.style.top])")
        dot = view.locator(".scatter circle[r='6']").get_attribute("data-at")
        head, layer = {(float(a[:-1]) * H / 100, float(b[:-1]) * L / 100) for a, b in places}.pop()
        assert pressed == [arcs] == [f"{int(dot) // H}.{int(dot) % H}"] == [f"{round(layer)}.{round(head)}"]
        return arcs

    view.locator("table.sorted button.token[data-at='7']").click()
    assert marked() == "1.2"
    view.locator(".overview [data-head='2,4']").click()
    assert marked() == "2.4"
    view.locator(".scatter circle[data-at='3']").click(force=True)
    assert marked() == "0.3"
    view.locator(".field").nth(1).scroll_into_view_if_needed()
    box = view.locator(".field").nth(1).bounding_box()
    view.mouse.click(box["x"] + 1.5 * box["width"] / H, box["y"] + 2.5 * box["height"] / L)
    assert marked() == "2.1"


def test_the_scatter_has_the_columns_that_are_chosen_and_the_line_of_what_is_equal(view):
    def places(ax):
        read = f"all => all.sort((a, b) => a.dataset.at - b.dataset.at).map(c => Number(c.getAttribute('{ax}')))"
        return np.array(view.locator(".scatter circle").evaluate_all(read))

    def linear(place, x):
        slope, start = np.polyfit(x, place, 1)
        np.testing.assert_allclose(place, slope * x + start, atol=0.02)
        return slope, start

    across, up = (linear(places(ax), SCORES[name].ravel()) for ax, name in (("cx", "gradient"), ("cy", "knock-out")))
    (line,) = view.locator(".scatter .equal").evaluate_all(
        "all => all.map(e => ['x1', 'y1', 'x2', 'y2'].map(n => Number(e.getAttribute(n))))"
    )
    ends = [((line[i] - across[1]) / across[0], (line[i + 1] - up[1]) / up[0]) for i in (0, 2)]
    np.testing.assert_allclose([a for a, _ in ends], [b for _, b in ends], atol=1e-3)
    view.get_by_role("combobox", name="across").select_option("0")
    assert view.locator(".scatter .equal").count() == 0, "two units are on no line"
    assert view.locator(".scatter circle").count() == L * H - 1, "what is not a number has no place"
    assert view.seen == []


def test_of_a_pair_the_heads_are_listed_that_attend_it_most(view):
    view.locator("#arcs-of").select_option("1")
    view.locator("#arcs-to").select_option("2")
    pair = WEIGHTS[:, :, 1, 2].ravel()
    listed = view.locator("table", has_text="layer.head").locator("tbody tr")
    order = np.argsort(-pair)
    assert listed.locator("th").all_text_contents() == [f"{i // H}.{i % H}" for i in order[:8]]
    np.testing.assert_allclose([float(x) for x in listed.locator("td").all_text_contents()], pair[order[:8]], atol=6e-4)
    faint = view.locator(".overview .faint").evaluate_all("all => all.map(b => b.dataset.head)")
    assert sorted(faint) == [f"{i // H},{i % H}" for i in range(L * H) if pair[i] < pair.max() / 2]
    view.locator("#arcs-to").select_option("")
    assert view.locator(".overview .faint").count() == 0
    assert view.seen == []


@pytest.mark.parametrize(("call", "error", "message"), [
    (lambda: page.head_table([1.0]), TypeError, "^head_table: columns must map names to numbers of heads, got .* list"),
    (lambda: page.head_table({}), TypeError, "^head_table: columns must map .* got columns empty. Pass a mapping, as"),
    (lambda: page.head_table({"a": [[1.0]], "b": [[1.0, 2.0]]}), ValueError, r"^head_table: columns\['b'\] must have "),
    (lambda: page.head_table({"a": [1.0]}, across=("a", "c")), ValueError, "across must name two columns, got .*There"),
    (lambda: page.head_table({"a": [1.0], "b": [2.0]}, across="ab"), TypeError, "^head_table: across must be a list"),
    (lambda: page.head_table({"a": [1.0]}, across=3), TypeError, "^head_table: across must be a list, got .* type int"),
    (lambda: page.head_table({"a": [[1.0], [1.0, 2.0]]}), TypeError, r"^head_table: columns\['a'\] must be an array"),
    (lambda: page.head_table({"a": np.zeros((0, 3))}), ValueError, r"^head_table: columns must hold at least one head"),
    (lambda: page.html("two", *2 * [page.head_table({"a": [1.0]})]), ValueError, "html: a page shows head_table once"),
])  # fmt: skip
def test_a_table_of_heads_refuses_what_it_cannot_show(call, error, message):
    with pytest.raises(error, match=message):
        call()
