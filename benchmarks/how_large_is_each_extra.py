"""How large is each extra: what it installs beyond `pip install jattn`, in packages and bytes on disk.

Read from the environment that runs this, without a network: the requirements of each extra in pyproject.toml, and
theirs, as the installed packages declare them. An extra of which a package is not installed says so.

    python benchmarks/how_large_is_each_extra.py > benchmarks/results/how_large_is_each_extra.md
"""

import datetime
import importlib.metadata
import platform
import re
import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
MEANT = {  # extras for users, in the order of the table
    "figures": "`jattn.figures`", "console": "`jattn.console`", "pretrained": "reads the weights of trained models",
    "train": "`flow.run_in_parts` with checkpoints", "lab": "`jattn.lab`'s oracles", "hosts": "flax, equinox, haiku",
    "demo": "the walkthroughs", "laplacian": "`demos/laplacian.py` beside folx", "all": "all of the above",
    "parity": "PyTorch and transformers, to compare with", "docs": "builds this site", "dev": "runs the tests",
}  # fmt: skip


def needs(wanted: list[str], own: dict[str, list[str]], core: list[str]) -> tuple[dict[str, object], set[str]]:
    """name → distribution of everything that requirements bring in, and the names that are not installed."""
    found, missing, seen, queue = {}, set(), set(), [Requirement(text) for text in wanted]
    while queue:
        asked = queue.pop()
        for extra in asked.extras or {""}:
            name = re.sub(r"[-_.]+", "-", asked.name).lower()
            if (name, extra) in seen:
                continue
            seen.add((name, extra))
            if name == "jattn":
                queue += [Requirement(text) for text in own[extra] + core]
                continue
            try:
                found[name] = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                missing.add(name)
                continue
            queue += [Requirement(name)]
            for text in found[name].requires or ():
                more = Requirement(text)
                if more.marker is None or more.marker.evaluate({"extra": extra}):
                    queue.append(more)
    return found, missing


def size(found: dict[str, object]) -> int:
    """Bytes of the files that the packages list as theirs."""
    files = (Path(d.locate_file(f)) for d in found.values() for f in d.files or () if f.suffix != ".pyc")
    return sum(file.stat().st_size for file in files if file.is_file())


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    own, core = project["optional-dependencies"], project["dependencies"]
    base, missing = needs(core, own, core)
    if missing:
        sys.exit(f"not installed: {', '.join(sorted(missing))}. Run it in an environment that has jattn.")
    versions = ", ".join(f"{name} {base[name].version}" for name in ("jax", "jaxlib", "numpy", "scipy"))
    today = datetime.datetime.now(tz=datetime.UTC).date()
    print("# How large is each extra\n")
    print(f"On disk, without bytecode: {platform.system()} {platform.machine()}, Python {platform.python_version()},")
    print(f"{versions}; {today}. Beyond the first row, each says what it adds to it.")
    try:
        torch = importlib.metadata.version("torch")
        print(f"PyTorch is {torch}; what PyPI has for Linux is the build for CUDA, gigabytes more.")
    except importlib.metadata.PackageNotFoundError:
        pass
    print()
    print("| `pip install` | for | packages | MB |\n|---|---|---:|---:|")
    print(f"| `jattn` | attention, masks, scores, sharding, flow | {len(base)} | {size(base) / 1e6:,.0f} |")
    for extra, meant in MEANT.items():
        found, missing = needs(own[extra], own, core)
        more = {name: d for name, d in found.items() if name not in base}
        what = f"{len(more)} | {size(more) / 1e6:,.0f}"
        if missing:
            what = f"not measured: {', '.join(sorted(missing))} not installed |"
        print(f"| `jattn[{extra}]` | {meant} | {what} |")


if __name__ == "__main__":
    main()
