"""A head over many tokens on a page: its blocks at every detail, and the rows that were kept, in a real browser."""
# ruff: noqa: E501 (a message stands on one line, as it is read)

import json

import numpy as np
import pytest
from _browser import axe, in_both, in_both_colours, type_over, visits

from jattn import page

pytestmark = pytest.mark.structure

T, S, N, M = 590, 290, 197, 145  # blocks of 3 queries and 2 keys; the last of the queries has 2
E = np.exp(3 * np.random.default_rng(0).normal(size=(T, S))) * (np.arange(S) <= np.arange(T)[:, None] // 2)
W = E / E.sum(1, keepdims=True)
STARTS = np.arange(0, T, 3), np.arange(0, S, 2)
MASS = np.add.reduceat(np.add.reduceat(W, STARTS[1], 1), STARTS[0], 0) / np.diff([*STARTS[0], T])[:, None]
LARGEST = np.maximum.reduceat(np.maximum.reduceat(W, STARTS[1], 1), STARTS[0], 0)
SOME = np.maximum.reduceat(np.maximum.reduceat(E > 0, STARTS[1], 1), STARTS[0], 0)
EVERY = np.minimum.reduceat(np.minimum.reduceat(E > 0, STARTS[1], 1), STARTS[0], 0)
STATES = SOME.astype(int) + EVERY
ROWS = {t: W[t] for t in (0, 300, 589)}
PART = page.blocks(MASS, LARGEST, T=T, S=S, rows=ROWS, states=STATES)
COLOURS = ["440154", "482475", "414487", "355f8d", "2a788e", "21918c", "22a884", "44bf70", "7ad151", "bddf26", "fde725"]
VIRIDIS = np.array([list(bytes.fromhex(c)) for c in COLOURS])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("blocks")
    told = page.story(PART, [page.Step("All", "Blocks.", "blocks"), page.Step("Row", "One.", "row", row=300)])
    page.write(made / "blocks.html", "Blocks", told)
    return made


@pytest.fixture
def visit(browser, folder):
    with visits(browser, folder) as go:
        yield lambda **how: go("blocks.html", **how)


def colours(view, height, width):
    """The colour of the middle of each cell of the picture."""
    script = """([h, w]) => { const c = document.querySelector('canvas.blocks'), p = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
      return Array.from({ length: h * w }, (_, n) => { const y = Math.floor((Math.floor(n / w) + 0.5) / h * c.height), x = Math.floor((n % w + 0.5) / w * c.width), at = 4 * (y * c.width + x); return p.slice(at, at + 3).join(' '); }).join(' '); }"""
    return np.array(view.evaluate(script, [height, width]).split(), int).reshape(height, width, 3)


def viridis(x):
    place = np.clip(x, 0, 1) * 10
    i = np.minimum(place.astype(int), 9)
    return VIRIDIS[i] + (place - i)[..., None] * (VIRIDIS[i + 1] - VIRIDIS[i])


def check_cells(view, mass, largest, by):
    """The picture shows these blocks, `by` × `by` of them in one cell, on the scale of the largest."""
    size = np.diff([*STARTS[0], T])[:, None]
    rows, columns = np.arange(0, N, by), np.arange(0, M, by)
    of_mass = np.add.reduceat(np.add.reduceat(mass * size, columns, 1), rows, 0) / np.add.reduceat(size, rows, 0)
    of_largest = np.maximum.reduceat(np.maximum.reduceat(largest, columns, 1), rows, 0)
    for name, want in (("mass", of_mass), ("largest", of_largest)):
        view.select_option("#blocks-of", name)
        assert json.loads(view.locator("canvas.blocks").get_attribute("data-cells")) == list(want.shape)
        assert float(view.locator("canvas.blocks").get_attribute("data-top")) == pytest.approx(want.max(), rel=1e-6)
        off = abs(colours(view, *want.shape) - viridis(np.sqrt(want / want.max()))).max(-1)
        assert np.mean(off > 2) < 0.02, "but where a ring or an arrowhead lies"


def test_the_picture_is_that_of_the_blocks_at_the_detail_that_fits(visit):
    view = visit()
    view.locator("#blocks-mask").uncheck()
    check_cells(view, MASS, LARGEST, 2)
    with pytest.raises(AssertionError):
        check_cells(view, MASS[::-1], LARGEST, 2)
    type_over(view.locator("#blocks-query"), "300")
    type_over(view.locator("#blocks-key"), "100")
    for _ in range(2):
        view.get_by_role("button", name="Zoom in on the place").click()
    rows, columns = slice(75, 125), slice(32, 69)
    view.select_option("#blocks-of", "largest")
    want = LARGEST[rows, columns]
    assert json.loads(view.locator("canvas.blocks").get_attribute("data-cells")) == [50, 37]
    off = abs(colours(view, 50, 37) - viridis(np.sqrt(want / want.max()))).max(-1)
    assert np.mean(off > 2) < 0.02
    assert "Queries 225 to 374, keys 64 to 137; a cell is 3 × 2 tokens" in view.locator("main").inner_text()
    view.get_by_role("button", name="The whole").click()
    assert "Queries 0 to 589, keys 0 to 289; a cell is 6 × 4 tokens" in view.locator("main").inner_text()
    assert [said for said in view.seen if "getImageData" not in said] == [], "which this test calls"


@in_both
def test_a_place_is_told_in_numbers_and_its_row_is_exact(visit):
    view = visit()
    box = view.locator("canvas.blocks").bounding_box()
    view.locator("canvas.blocks").click(position={"x": 0.25 * box["width"], "y": 0.9 * box["height"]})
    t, s = (int(view.locator(f"#blocks-{x}").input_value()) for x in ("query", "key"))
    assert abs(t - 0.9 * T) < 4
    assert abs(s - 0.25 * S) < 4
    said = view.locator("#block").text_content()
    i, j = t // 3, s // 2
    assert f"Queries {3 * i} to {3 * i + 2}, keys {2 * j} to {2 * j + 1}" in said
    assert f"{100 * MASS[i, j]:.2f} %" in said
    assert f"weight {LARGEST[i, j]:.4f}" in said
    assert ["EMPTY", "PARTIAL", "FULL"][STATES[i, j]] in said
    for typed, kept in ((t, 589), (290, 300), (5, 0)):
        type_over(view.locator("#blocks-query"), str(typed))
        assert view.get_by_role("heading", name=f"The row of query {kept}, exact").count() == 1
        shown = json.loads(view.locator("[data-row]").get_attribute("data-row"))
        best = np.argsort(-W[kept], kind="stable")[: len(shown)]
        assert [s for s, _ in shown] == list(best)
        np.testing.assert_array_equal([w for _, w in shown], W[kept].astype(np.float32)[best])
    view.get_by_role("link", name="2 Row").click()
    assert view.locator("#blocks-query").input_value() == "300", "a story goes there too"
    assert view.seen == []


def test_the_mask_is_laid_over_the_blocks(visit):
    view = visit()
    grey = (colours(view, 99, 73) == [0x8A, 0x8F, 0x98]).all(-1)
    empty = np.minimum.reduceat(np.minimum.reduceat(STATES == 0, np.arange(0, M, 2), 1), np.arange(0, N, 2), 0)
    assert np.mean(grey != empty) < 0.01
    assert 0.2 < empty.mean() < 0.8
    view.locator("#blocks-mask").uncheck()
    assert not (colours(view, 99, 73) == [0x8A, 0x8F, 0x98]).all(-1).any()


@in_both_colours
def test_axe_finds_no_fault_of_accessibility_in_blocks_and_a_phone_does_not_scroll_sideways(visit, scheme):
    view = visit(color_scheme=scheme, viewport={"width": 320, "height": 640})
    assert view.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    broken, report = axe(view)
    assert broken == set(), report


def test_the_size_of_a_page_of_65536_tokens_is_bounded():
    x = np.full((256, 256), 1 / 256)
    row = np.full(65536, 1 / 65536)
    text = page.html("long", page.blocks(x, x, T=65536, S=65536, rows=dict.fromkeys(range(8), row), states=x * 0))
    assert len(text) < 3_800_000
    with pytest.raises(
        ValueError,
        match=r"rows must fit into limit, got rows of 4,194,304 bytes and limit 4,000,000\. Keep 11 rows, or raise",
    ):
        page.blocks(x, x, T=65536, S=65536, rows=dict.fromkeys(range(12), row))


OK = {"T": T, "S": S}
REFUSED = [
    (lambda: page.blocks(MASS, LARGEST, T=0, S=S), ValueError, "blocks: T must be at least 1, got T 0. Pass a Python int of at least 1."),
    (lambda: page.blocks(MASS[:5], LARGEST, **OK), ValueError, "blocks: largest must have the shape [n, m], got largest [197, 145]. Here that is [5, 145]: draw one head and two dimensions at a time."),
    (lambda: page.blocks(MASS[:150], LARGEST[:150], **OK), ValueError, "blocks: n must be how many equal blocks T is cut into, at most 512, got mass [150, 145] and T 590. Only the last block may be shorter."),
    (lambda: page.blocks(np.zeros((1, 3)), np.zeros((1, 3)), T=1, S=2), ValueError, "blocks: m must be how many equal blocks S is cut into, at most 512, got mass [1, 3] and S 2. Only the last block may be shorter."),
    (lambda: page.blocks(MASS, LARGEST, **OK, states=STATES + 1), ValueError, "blocks: states must be 0, 1 or 2, got states [197, 145]. These are EMPTY, PARTIAL and FULL, as mask.block_state says."),
    (lambda: page.blocks(MASS, LARGEST, **OK, rows=[0]), TypeError, "blocks: rows must map queries to their weights, got rows of type list. Pass a mapping, or None."),
    (lambda: page.blocks(MASS, LARGEST, **OK, rows={0: W[0], "1": W[1]}), TypeError, "blocks: rows must be a whole number, got rows of type str. Pass a Python int of at least 0."),
    (lambda: page.blocks(MASS, LARGEST, **OK, limit=None), TypeError, "blocks: limit must be a whole number, got limit of type NoneType. Pass a Python int of at least 0."),
    (lambda: page.blocks(MASS, LARGEST, **OK, rows={T: W[0]}), ValueError, "blocks: rows must name queries, got rows 590 and T 590. Count from 0."),
    (lambda: page.blocks(MASS, LARGEST, **OK, rows={1: W[0, 1:]}), ValueError, "blocks: rows[1] must have the shape [S], got rows[1] [289]. Here that is [290]: draw one head and two dimensions at a time."),
]  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for *_, message in REFUSED])
def test_a_page_of_blocks_refuses_what_it_cannot_show(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == message
