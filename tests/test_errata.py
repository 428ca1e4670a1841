"""The errata: the committed page is the computed one, its exact values are another's too, planted slips are found."""

import argparse
import importlib
import json
import re
import subprocess
import sys
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from _children import environment

pytestmark = pytest.mark.structure
DEMOS = Path(__file__).parents[1] / "demos"


@pytest.fixture(scope="module")
def errata():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DEMOS)
        yield importlib.import_module("errata")


@pytest.fixture(scope="module")
def verdicts(errata):
    return sys.modules["_errata_verdicts"]


@pytest.fixture(scope="module")
def evaluate(errata):
    cli = sys.modules["_cli"]
    return lambda: cli.evaluate(errata.compute, argparse.Namespace(write=False))


@pytest.fixture(scope="module")
def results(evaluate):
    return evaluate()


# The page and the script.


def test_the_committed_page_is_the_computed_one(errata, results):
    assert errata.PAGE.read_text(encoding="utf-8") == errata.page(results)


def test_the_page_changes_with_what_a_document_prints(errata, verdicts, evaluate, results, monkeypatch):
    walk = sys.modules["_errata_walk"]
    monkeypatch.setattr(walk, "SUMS", (*walk.SUMS[:3], "7.001"))  # printed is 7.006
    mended = evaluate()
    assert errata.PAGE.read_text(encoding="utf-8") != errata.page(mended)
    before, after = (found["counts"][1] for found in (results, mended))
    assert after == before | {"right": before["right"] + 1, verdicts.TOO_EARLY: before[verdicts.TOO_EARLY] - 1}


def test_the_counts_add_up(errata, verdicts, results):
    for row in results["counts"]:
        assert row["numbers"] == row["right"] + row[verdicts.TOO_EARLY] + row[verdicts.WRONG]
        listed = [found for found in results["errata"] if found["document"] == row["document"]]
        assert sum(found["reason"] == verdicts.WORDS for found in listed) == row["claims"] - row["hold"]
    assert [row["document"] for row in results["counts"]] == list(errata.TITLES)


def test_it_runs_as_a_script_and_prints_what_it_computes(errata, results):
    script = [sys.executable, str(DEMOS / "errata.py"), "--json"]
    how = {"check": True, "capture_output": True, "encoding": "utf-8", "env": environment()}
    printed = json.loads(subprocess.run(script, **how).stdout)
    assert printed["errata"] == results["errata"]
    assert {"--write", "--json", "--help"} <= set(errata.arguments().format_help().replace(",", " ").split())


def test_the_terminal_page_has_every_line(errata, results):
    paper = sys.modules["_cli"].console()
    with paper.capture() as captured:
        errata.show(paper, results)
    shown = captured.get()
    assert max(map(len, shown.splitlines())) <= 100
    for text in errata.TITLES.values():
        assert text in shown
    assert len(re.findall(r"^[├└]", shown, re.MULTILINE)) == len(results["errata"])


def test_writing_is_whole_or_not_at_all(errata, tmp_path, monkeypatch):
    page = tmp_path / "ERRATA.md"
    errata.write(page, "first\n")
    assert page.read_text() == "first\n"

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(sys.modules["_cli"].BadInput, match=r"ERRATA\.md cannot be written \(No space left on device\)"):
        errata.write(page, "second\n")
    assert [file.name for file in tmp_path.iterdir()] == ["ERRATA.md"]
    assert page.read_text() == "first\n"


# The judge, on planted claims.


def test_a_planted_wrong_number_is_found_and_a_right_one_is_not(errata):
    doc = errata.Document("000")
    got = doc.prints("scores", "0.82, 0.83, 0.815, -1", [0.8249, 0.82, 0.8155, -1.4]).verdicts
    assert got == ["", "wrong", "", ""]
    assert doc.prints("a tie goes either way", "4.38, 4.37, 4.36", [4.375] * 3).verdicts == ["", "", "wrong"]
    assert doc.prints("a weight is not zero", "0.00, 0.00, 1.00", [2e-9, 0.0, 1 - 2e-9]).verdicts == [
        "over-rounded",
        "",
        "",
    ]
    [found] = [row for row in errata.rows(doc) if row["prints"].startswith("scores")]
    assert found["prints"] == "scores: 0.82, *0.83, 0.815, -1"
    assert found["reason"] == "wrong"


@pytest.mark.parametrize(("printed", "verdict", "blame"), [("1.419", "rounded too early", "over-rounded"),
                                                           ("1.424", "", ""),
                                                           ("1.418", "wrong", "")])  # fmt: skip
def test_rounded_too_early_is_computed(errata, printed, verdict, blame):
    doc = errata.Document("000")
    x = 0.5 / np.sqrt(2)
    scaled = doc.prints("scaled", "0.35", x)
    exp = doc.prints("exp", printed, np.exp(x), by=np.exp, of=[scaled])
    assert (exp.verdicts, scaled.verdicts) == ([verdict], [blame])


def test_what_follows_from_a_wrong_number_is_carried_on(errata):
    doc = errata.Document("000")
    terms = doc.prints("terms", "0.40, 0.26", [0.40, 0.25])
    total = doc.prints("sum", "0.66", 0.65, by=np.sum, of=[terms])
    assert (terms.verdicts, total.verdicts) == (["", "wrong"], ["wrong (carried on)"])


def test_each_step_gives_the_exact_value_from_exact_ones(errata, x64):
    steps = 0
    for name in errata.DOCUMENTS:
        for x in errata.read(name).numbers:
            if x.by:
                np.testing.assert_allclose(x.by(*(source.exact for source in x.of)), x.exact, rtol=1e-14, atol=1e-15)
                steps += 1
    assert steps > 30


# The same numbers again, in 40 decimal digits and without jattn.

decimals = np.vectorize(lambda x: Decimal(str(x)), otypes=[object])
exp = np.vectorize(Decimal.exp, otypes=[object])


def steps_of(q, k, v, scale):
    """Scores, scaled scores, exponentials, their sums, weights, outputs."""
    scores = q @ k.T
    exps = exp(scores / scale)
    totals = exps.sum(1)
    weights = exps / totals[:, None]
    return scores, scores / scale, exps, totals, weights, weights @ v


def in_decimals():
    """Every printed array, by document and place."""
    root = Decimal(2).sqrt()

    q, k = decimals([[1, 0]]), decimals([[1, 0], [0.2, 0.1], [0, 0.1]])
    v = decimals([[2, 0], [0, 3], [0.1, 0.1]])
    scores, scaled, exps, totals, weights, out = (x[0] for x in steps_of(q, k, v, root))
    parts = weights[:, None] * v
    yield "000", {
        "raw scores": scores, "√d_k": root, "scaled scores": scaled, "scaled scores, as a vector": scaled,
        "exponentials": exps, "their sum": totals, "weights": weights, "weight of river, in words": weights[0],
        "head_x, its terms": parts[:, 0], "head_y, its terms": parts[:, 1], "head_x and head_y": out, "head": out,
    }  # fmt: skip

    e = decimals([[0.1, 0.9], [0.5, 0.5], [0.8, 0.8], [0.8, 0.5]])
    scores, scaled, exps, totals, weights, out = steps_of(e, e, e, root)
    parts = weights[3][:, None] * e
    bank = {
        "Q = K = V": e, "highest score of bank, in words": scores[3, 2], "√d_k": root,
        "weights of bank, in words": weights[3][[2, 3, 0]], "weights of bank, in percent": weights[3] * 100,
        "bank, x terms": parts[:, 0], "bank, y terms": parts[:, 1],
    }  # fmt: skip
    for t, word in enumerate(("walk", "near", "river", "bank")):
        bank |= {
            f"scores of {word}, their terms": e[t] * e, f"scores of {word}": scores[t],
            f"scaled scores of {word}": scaled[t], f"exponentials of {word}": exps[t], f"sum of {word}": totals[t],
            f"weights of {word}": weights[t], f"output of {word}": out[t],
        }  # fmt: skip
    yield "001", bank

    large, one = decimals([[30], [50], [35]]), decimals([[1]])
    yield "002", {
        "steps across a 100-word sentence": Decimal(99), "√64": Decimal(64).sqrt(), "scores / 8": large[:, 0] / 8,
        "√d_k of its program": Decimal(4).sqrt(), "softmax of the unscaled scores": steps_of(one, large, large, 1)[4],
        "softmax of the scaled scores": steps_of(one, large, large, 8)[4],
    }  # fmt: skip

    w = decimals([0.7, 0.2, 0.1])
    yield "003", {"the three terms": np.diag(w), "their sum": w @ decimals(np.eye(3))}

    x = decimals([[0.2, 0.8, 0.3], [0.5, 0.4, 0.9], [0.1, 0.7, 0.6]])
    q, k = decimals([[0.3, 0.6]]), decimals([[0.8, 0.2], [0.4, 0.7], [0.9, 0.1]])
    scores, scaled, exps, totals, weights, _ = (y[0] for y in steps_of(q, k, k, root))
    yield "004", {
        "“ate” × W_Q": x[1] @ decimals([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]),
        "Cat, ate, mouse × W_K": x @ decimals([[0.7, 0.8], [0.9, 0.1], [0.2, 0.3]]),
        "scores, their terms": q * k, "scores": scores, "√d_k": root, "scaled scores": scaled, "exponentials": exps,
        "their sum": totals, "weights": weights, "in percent": weights * 100, "A·B, A·C, A·D": decimals([1, 0, -1]),
    }  # fmt: skip


@pytest.fixture(scope="module")
def exact():
    with localcontext() as context:
        context.prec = 40
        return {(doc, place): np.ravel(x) for doc, places in in_decimals() for place, x in places.items()}


def test_every_exact_value_is_that_of_decimal_arithmetic(results, exact):
    assert {(x["document"], x["place"]) for x in results["numbers"]} == set(exact)
    for x in results["numbers"]:
        want = exact[x["document"], x["place"]].astype(float)
        np.testing.assert_allclose(np.ravel(x["exact"]), want, rtol=1e-12, atol=1e-15, err_msg=x["place"])


def test_right_to_the_printed_digits_means_so_in_decimal_arithmetic(results, exact):
    judged = 0
    for x in results["numbers"]:
        for text, value, verdict in zip(x["printed"], exact[x["document"], x["place"]], x["verdicts"], strict=True):
            half = Decimal(1).scaleb(Decimal(text).as_tuple().exponent) / 2
            beyond_float64 = abs(value) * Decimal(2) ** -50
            right = abs(Decimal(text) - value) <= half + (beyond_float64 if half < beyond_float64 else 0)
            assert right == (verdict in ("", "over-rounded")), (x["place"], text)
            judged += 1
    assert judged > 200


# What the claims in words are measured by, in plain NumPy: every number of every sentence, in order.


def softmax(x):
    exps = np.exp(x - np.max(x, -1, keepdims=True))
    return exps / exps.sum(-1, keepdims=True)


def attend(q, k, v):
    weights = softmax(q @ k.T / np.sqrt(q.shape[1]))
    return weights, weights @ v


def degrees(a, b):
    """The angle between two vectors of the plane, by its sine and cosine."""
    return abs(np.degrees(np.arctan2(a[0] * b[1] - a[1] * b[0], a @ b)))


def cosine(a, b):
    return a @ b / np.sqrt((a @ a) * (b @ b))


def above(x, d):
    """P(a·b > x) for standard normal a, b of width d, by its characteristic function (1 + t²)^(−d/2)."""
    t, step = np.linspace(0, 6, 60_001, retstep=True)
    f = x / np.pi * np.sinc(t * x / np.pi) * (1 + t * t) ** (-d / 2)
    return 0.5 - step * (f.sum() - f[0] / 2)


def random_program(draws, seed):
    """Document 002's program: spreads of the row of "cat" for its three divisors, and scores between two words."""
    rng = np.random.default_rng(seed)
    x, w_q, w_k = (rng.standard_normal((draws, *shape)) for shape in ((6, 8), (8, 4), (8, 4)))
    scores = (x @ w_q) @ (x @ w_k).transpose(0, 2, 1)
    spreads = [np.ptp(softmax(scores[:, 1] / divisor), axis=-1) for divisor in (1, 2, 4)]
    return [100 * (spread > 0.8).mean() for spread in spreads], (scores[:, 0, 1] / 2).std()


def measured():
    q, k, v = np.array([1.0, 0]), np.array([[1, 0], [0.2, 0.1], [0, 0.1]]), np.array([[2, 0], [0, 3], [0.1, 0.1]])
    (p,), (head,) = attend(q[None], k, v)
    after = q + (k[0] - p @ k) / np.sqrt(2)  # −dL/dq of −log p_river is c (k_river − mean key)
    lengths = np.hypot(*(p[:, None] * v).T)
    yield "weights that sum to 1", [p.sum()]
    yield "river gets the largest weight, and contributes most", lengths
    yield "Q_bank and K_river “closely aligned”", [1]
    yield "larger score, “the more similar”", [0.2, degrees(q, k[1]), cosine(q, k[1]), np.sqrt(0.05)]
    yield "“river's value dominates”", [p[0], *lengths[:2], degrees(head, v[0]), degrees(head, v[1])]
    moved = [p[0], attend(after[None], k, v)[0][0, 0], 1, cosine(after, k[0]), 0, np.hypot(*(after - k[0]))]
    yield "training moves Q_bank “closer” to K_river", [1, *moved]

    e = np.array([[0.1, 0.9], [0.5, 0.5], [0.8, 0.8], [0.8, 0.5]])
    w, out = attend(e, e, e)
    mean, bank = e.mean(0), w[3]
    shift, before, later = out - e, np.hypot(*(e - mean).T), np.hypot(*(out - mean).T)
    ranks = [sorted(row, reverse=True).index(row[2]) + 1 for row in w]
    yield "each row sums to 1", [np.abs(w.sum(1) - 1).max()]
    yield "bank attends to river, then itself, least to walk", bank[[2, 3, 0]]
    yield "walk “moved toward center”", [before[0], later[0]]
    yield "equal x “drives up” bank · river", [0.64, 0.64, 0.40, 0.25]
    same = cosine(e[3], e[1]), cosine(e[3], e[2])
    yield "“already learning”, “semantic work”", [*same, bank[2], bank[1], np.sqrt(1.28), np.sqrt(0.5), *ranks]
    to_river = [np.hypot(*(x - e[2])) for x in (e[3], out[3], mean)]
    angles = degrees(shift[3], e[2] - e[3]), degrees(shift[3], mean - e[3])
    distances = [*to_river[:2], 0.8 - out[3, 0], before[3], later[3], to_river[2]]
    yield "bank “pulled significantly toward river”", [*angles, *distances]
    paths = np.hypot(*shift.T)
    yield "“slight” shifts of near and river", [*paths[[1, 2, 3, 0]], *shift[1], *(100 - 100 * later / before)]
    p = 1 / (1 + np.exp(-np.sqrt(512)))
    yield "saturated: “gradients vanish”", [512, np.sqrt(512), 1, p / (1 + np.exp(np.sqrt(512))), p]

    yield "each row of the matrix sums to 1.0", [0]
    large = softmax(np.array([30.0, 50, 35]))
    yield "“very high dot product”: nearly all the weight", [large[1]]
    rare = 1 / above(30, 64), 1 / above(50, 64)
    yield "dot products “like 30-50” at d_k = 64", [8, 30, 3.75, 50, 6.25, rare[0], 30, rare[1], 50]
    yield "“No gradients vanish” over distance", large[[0, 2]]

    yield "attend to self: “exactly” the value", [0]
    yield "variance d, and 1 after division by √d", [3, 1, 1, 3]
    yield "10,000 trials track √d “closely”", [100 * np.sqrt(4 / 40_000)]
    twice = attend(out, out, out)[1]
    yield "a second pass changes the vectors", [np.abs(twice - out).max()]
    yield "variance 1 each, so “each product also has variance 1”", [0, 0, 2, 1, np.var([0, 0, 0, 4])]
    yield "scores “get larger on average”", [0]
    yield "“almost nothing” from words that scored low", [100 * bank[0], 1, 100 * attend(q[None], k, v)[0][0, 2], 0, 0]
    widths = [np.hypot(*(x[:, None] - x).T).max() for x in (e, out, twice)]
    yield "a second pass: vectors “richer than the original”", [1, *widths]

    x = np.array([[0.2, 0.8, 0.3], [0.5, 0.4, 0.9], [0.1, 0.7, 0.6]])
    w_q, w_k = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]]), np.array([[0.7, 0.8], [0.9, 0.1], [0.2, 0.3]])
    keys = np.array([[0.8, 0.2], [0.4, 0.7], [0.9, 0.1]])
    prose = 100 * attend(np.array([[0.3, 0.6]]), keys, keys)[0][0]
    program = 100 * attend(x[1:2] @ w_q, x @ w_k, x)[0][0]
    ate, cat, mouse = x[1] @ w_q, x[0] @ w_k, x[2] @ w_k
    yield "percentages “that sum to 100%”", [100]
    yield "40 %, 20 %, 40 % “for clarity”", [*prose, prose[1] - 20]
    yield "“ate” learns to attend “strongly to Cat”", [100 / 3, prose[0], program[0]]
    yield "“NOT arbitrary”: from learned W_Q, W_K", program
    yield "the dot product “measures similarity”", [ate @ cat, ate @ mouse, cosine(ate, cat), cosine(ate, mouse)]


NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?")
SAMPLED = ("dividing by √d_k “prevents softmax saturation”", "scores “in the same range across all architectures”")
ROUNDING = ("each row sums to 1", "uniform: the average of the values, for all")  # 0 or an eps: its size is chance


def test_what_is_said_of_the_words_is_measured(results):
    said = {claim["phrase"]: claim["finding"].replace("document 00", "") for claim in results["words"]}
    want = dict(measured())
    assert set(said) - set(want) == {*SAMPLED, ROUNDING[1]}
    for phrase in set(want) - set(ROUNDING):
        texts = NUMBER.findall(said[phrase])
        assert len(texts) == len(want[phrase]), (phrase, texts)
        for text, value in zip(texts, want[phrase], strict=True):
            half = Decimal(1).scaleb(Decimal(text).as_tuple().exponent) / 2
            assert abs(float(text) - value) <= 1.000001 * float(half) + 1e-12 * abs(value), (phrase, text, value)


def test_the_random_program_again_with_other_draws(results):
    said = {claim["phrase"]: [float(x) for x in NUMBER.findall(claim["finding"])] for claim in results["words"]}
    draws = 20_000
    (undivided, by_root, by_d), std = random_program(draws, seed=7)
    spread, one, *peaked, n = said[SAMPLED[0]]
    assert (one, n) == (1, 10_000)
    # Four standard errors of a share near one half, over both samples, and the rounding to whole percents.
    error = 4 * 50 * np.sqrt(1 / draws + 1 / n) + 0.5
    np.testing.assert_allclose(peaked, [by_root, undivided, by_d], atol=error)
    assert spread == pytest.approx(std, rel=0.1)
    assert spread == pytest.approx(8, abs=0.25)  # √d_k · d_model / √d_k
    assert said[SAMPLED[1]][-1] == spread


def test_only_what_fails_is_called_over_claimed(verdicts, results):
    named = {found["prints"] for found in results["errata"] if found["reason"] == verdicts.WORDS}
    assert named == {claim["phrase"] for claim in results["words"] if not claim["holds"]}
    assert {claim["phrase"] for claim in results["words"] if claim["holds"]} >= {
        "each row sums to 1",
        "each row of the matrix sums to 1.0",
        "variance d, and 1 after division by √d",
    }
