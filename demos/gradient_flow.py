"""How attention learns, measured beside theory: one scenario at a time, or all.

    gradient_flow.py --list      the scenarios
    gradient_flow.py river       one of them
    gradient_flow.py --all       each of them

Every row is a number as it was measured and as theory predicts it; every path is held to the identities of gradient
flow (jattn.flow.check). Each scenario leaves a picture.
"""

import argparse
from pathlib import Path

import _cli
import _flow_ends as ends
import _flow_paths as paths
import _flow_picture
import _flow_rules as rules
import _flow_saturation as saturation
import jax
import numpy as np
from rich.console import Console

from jattn import figures

SCENARIOS = {
    "river": (paths.river, "keys frozen, attend river: the max-margin direction, not k_river"),
    "money-frozen": (paths.money_frozen, "keys frozen, attend money: q first turns away from k_money"),
    "money-free": (paths.money_free, "q and K learn together: the slogan holds"),
    "shadowed": (paths.shadowed, "a longer key along the target's: attended from behind"),
    "inside": (ends.inside, "the target in the hull of the other keys: attention has a ceiling"),
    "interior": (ends.interior, "a target of 40/20/40: reached, at a finite query"),
    "output": (ends.output_loss, "a loss on the output that lowers p_r"),
    "saturation": (saturation.saturation, "output loss against cross-entropy; where each dtype's gradient dies"),
    "scale": (saturation.scale, "scores over 1, over √d, over d"),
    "optimisers": (rules.optimisers, "SGD, momentum, sign descent, Adam, AdamW, decay: other ends"),
    "balance": (rules.balancedness, "what flow conserves, and what steps do to it"),
    "tied": (rules.tied, "one W_Q: bank's step moves river's query"),
}


def arguments() -> argparse.ArgumentParser:
    parser = _cli.parser(__doc__)
    parser.add_argument("name", nargs="?", help="a scenario")
    parser.add_argument("--list", action="store_true", help="name the scenarios")
    parser.add_argument("--all", action="store_true", help="run every scenario")
    _cli.add_out(parser, "the pictures")
    return parser


def compute(args: argparse.Namespace) -> dict:
    asked = {str(args.name): args.name is not None, "--list": args.list, "--all": args.all}
    if len(given := [x for x, is_given in asked.items() if is_given]) > 1:
        raise _cli.BadInput(f"{' and '.join(given)}: one of them is done at a time. Leave out all but one.")
    if args.list:
        return {"list": {name: about for name, (_, about) in SCENARIOS.items()}}
    if not args.all and args.name not in SCENARIOS:
        what = "a scenario must be named" if args.name is None else f"{args.name}: is no scenario"
        raise _cli.BadInput(f"{what}. There are {', '.join(SCENARIOS)}; or --all.")
    return {name: scenario(name, args.out) for name in (SCENARIOS if args.all else [args.name])}


def scenario(name: str, out: Path) -> dict:
    """The numbers of one scenario; its picture is written."""
    make, about = SCENARIOS[name]
    r = make()
    figure = _flow_picture.draw(f"{name}: {about}", r.pop("panels"), r.pop("linear", False))
    picture = out / f"flow_{name.replace('-', '_')}"
    files = _cli.save(out, lambda: figures.save(figure, picture, kinds=("png",)))
    report = r.pop("report", None)
    checks = (
        [] if report is None else [[c.identity, c.measured, c.predicted, c.tolerance, c.passed] for c in report.checks]
    )
    rows = [[what, float(a), float(b)] for what, a, b in r.pop("rows")]
    rest = jax.tree.map(lambda x: np.asarray(x).tolist(), r)
    return {"about": about, "rows": rows, "checks": checks, **rest, "pictures": files}


def show(console: Console, results: dict) -> None:
    if "list" in results:
        for name, about in results["list"].items():
            console.print(f" {name:<13} {about}")
        return
    for name, r in results.items():
        _cli.title(console, f"{name}: {r['about']}")
        rows = [[what, f"{a:.6g}", f"{b:.6g}", f"{abs(a - b):.0e}"] for what, a, b in r["rows"]]
        console.print(_cli.table(["", "measured", "predicted", "off by"], rows))
        console.print(r["says"])
        if r["checks"]:
            failed = [c[0] for c in r["checks"] if not c[4]]
            kept = f"{len(r['checks']) - len(failed)} of {len(r['checks'])} identities hold"
            console.print(f"{kept}{': not ' + ', '.join(failed) if failed else ''}.")
        console.print("Picture: " + ", ".join(r["pictures"]), soft_wrap=True)


if __name__ == "__main__":
    _cli.run(arguments(), compute, show)
