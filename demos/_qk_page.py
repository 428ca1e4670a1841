"""The page of qk_clip.py: both runs along training, how each seed ends, and what is and is not true of it."""

import numpy as np
from _cli import numbers, table, title
from rich.console import Console


def show(console: Console, r: dict) -> None:
    title(console, f"Lion at a learning rate of {r['rates']['large']:g}: means of {len(r['seeds'])} seeds")
    console.print(along(r))
    console.print(
        "Largest logit: of any head, query and key of the batch (geometric mean of the seeds). Entropy: as a share of "
        "the most that it can be. Both at the last step of each pass over the text; loss: nats a letter, its mean."
    )
    title(console, "Loss of the last pass")
    console.print(ends(r))
    title(console, "What is true of it, and what is not")
    for line in verdicts(r):
        console.print(f"- {line}")
    console.print("\nPictures: " + ", ".join(r["pictures"]), soft_wrap=True)


def along(r: dict) -> object:
    s = {run: {name: np.array(x) for name, x in of.items()} for run, of in r["series"].items()}
    rows, pair = [], ("unclipped", "clipped")
    for i in range(r["epochs"]):
        last = (i + 1) * r["steps"] // r["epochs"] - 1
        logits = [f"{np.exp(np.log(s[run]['max_logit'][:, last]).mean()):,.0f}" for run in pair]
        entropies = [f"{s[run]['entropy'][:, last].mean():.3f}" for run in pair]
        rows.append([str(last), *logits, *entropies, *(f"{x['loss'][:, i].mean():.3f}" for x in s.values())])
    heads = ["step", "largest\nlogit", "clip-\nped", "entropy", "clip-\nped", "loss", "clip-\nped", "uni-\nform"]
    return table(heads, rows)


def ends(r: dict) -> object:
    rows = []
    for i, seed in enumerate(r["seeds"]):
        rows.append([str(seed), *(f"{r['end'][rate][run][i]:.3f}" for rate in r["end"] for run in r["end"][rate])])
    names = ["plain", "QK-clip", "uniform"]
    rates = [f"{name}\nat {rate:g}" for rate in r["rates"].values() for name in names]
    return table(["seed", *rates], rows)


def counts(r: dict) -> dict[str, int]:
    """Over how many seeds each statement holds."""
    large, small = ({run: np.array(x) for run, x in r["end"][rate].items()} for rate in ("large", "small"))
    least = {run: np.min(r["series"][run]["loss"], 1) for run in r["series"]}
    return {
        "rose": int((large["unclipped"] > least["unclipped"]).sum()),
        "rose_clipped": int((large["clipped"] > least["clipped"]).sum()),
        "broken": int((large["unclipped"] > large["uniform"]).sum()),
        "rescued": int((large["clipped"] < large["uniform"]).sum()),
        "better": int((large["clipped"] < large["unclipped"]).sum()),
        "small_better": int((small["unclipped"] < large["clipped"]).sum()),
        "small_helped": int((small["clipped"] < small["unclipped"]).sum()),
    }


def verdicts(r: dict) -> list[str]:
    n, of, s, tau = len(r["seeds"]), counts(r), r["series"], r["threshold"]
    large, small = ({run: float(np.mean(x)) for run, x in r["end"][rate].items()} for rate in ("large", "small"))
    most = {run: float(np.max(s[run]["max_logit"])) for run in ("unclipped", "clipped")}
    mega = {name: f"{x / 1e6:,.1f} MB" for name, x in r["bytes"].items()}
    replaces = "Not true: that it replaces" if of["small_better"] else "Not refuted: that it replaces"
    early, late = min(r["first_over"]), max(r["first_over"])
    passed = f"τ = {tau:g} is passed at steps {early} to {late}"
    passed = passed if late < r["steps"] else f"not every seed passes τ = {tau:g}"
    seen = f"the largest seen is {most['clipped']:.1f}, {most['clipped'] / tau:.1f} times τ"
    above = (
        f"Not true: that no logit is above τ. It acts after the step, on what that step saw: {seen}. It acted in "
        f"{r['acted']['large']:.0%} of the steps; until it first does, both runs are the same bit for bit: "
        f"{min(r['first_apart'])} steps at least."
    )
    alone = (
        "That the clip alone changes the end says that the size of W_q and W_k matters; it does not say by what way."
    )
    if most["clipped"] <= tau:
        above = f"Not tried: the clip. It acts on what is above τ alone, and {seen}: it acted in none of the steps."
        alone = "The clip never acted."
    return [
        f"The logits go from {np.mean(np.array(s['unclipped']['max_logit'])[:, 0]):.1f} to {most['unclipped']:,.0f}; "
        f"{passed}. Nothing overflows: an update of one size cannot, and it stops at nothing either.",
        f"The loss: the last pass of plain training is worse than an earlier one in {of['rose']} of {n} seeds, of the "
        f"clipped run in {of['rose_clipped']}. It is worse than that of a model whose attention is held uniform in "
        f"{of['broken']} of {n}: where it is, attention does harm.",
        f"The clip: the run ends below plain training in {of['better']} of {n} seeds ({large['clipped']:.3f} against "
        f"{large['unclipped']:.3f}), and below uniform attention in {of['rescued']} of {n}.",
        above,
        f"{replaces} a smaller learning rate. At {r['rates']['small']:g} plain training ends at "
        f"{small['unclipped']:.3f}, below the clipped run at {r['rates']['large']:g} in {of['small_better']} of {n} "
        f"seeds. There QK-clip acted in {r['acted']['small']:.0%} of the steps, and ended lower in "
        f"{of['small_helped']} of {n}, by {numbers([small['unclipped'] - small['clipped']])[0]} in the mean.",
        f"Not shown: that a large logit is the cause, and not a companion. {alone}",
        f"The price of looking: the statistics of {r['long']:,} queries and keys take {mega['statistics']} of "
        f"temporaries, the dense form {mega['reference']} (as XLA plans them; the dense form is compiled, not run).",
    ]
