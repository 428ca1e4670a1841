"""A trajectory that somebody saved: its page, and what explore.py says of it."""

import json
import zipfile
import zlib
from pathlib import Path

import numpy as np
from _cli import BadInput

from jattn import flow, page

TORN = (zipfile.BadZipFile, zlib.error)
"""What a .npz raises of which only a part is there."""


def read(file: Path) -> tuple[list[page.Part], dict]:
    try:
        if file.suffix == ".npy":
            held = flow.Recorder(file).run()
        elif file.suffix == ".npz":
            with open(file, "rb") as opened:  # np.load itself leaves one that is no zip file open
                held = dict(np.load(opened))
        else:
            held = json.loads(file.read_text(encoding="utf-8"))
        names = held if isinstance(held, dict) else {}
        if lacks := [name for name in ("q", "k", "weights") if name not in names]:
            has = f"it has {', '.join(names)}" if names else "it has no arrays by name"
            raise BadInput(f"--trajectory {file}: is without {' and '.join(lacks)}; {has}. See --help.")
        labels = [str(x) for x in held.pop("labels", range(np.shape(held["weights"])[1]))]
        target = int(np.argmax(np.asarray(held["weights"])[-1]))
        parts = [page.run(held, labels, target=target)]
    except (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, EOFError, *TORN) as error:
        said = str(error).rstrip(".")  # a refusal of jattn is a sentence or two
        raise BadInput(f"--trajectory {file}: {said}. It takes q, k and weights; see --help.") from error
    flat = {name: x for name, x in held.items() if np.ndim(x) == 1 and name != "steps"}
    note = f"{len(held['q'])} frames from {file.name}; the target is the key with most weight at the end."
    return parts, {"query": "q", "target": labels[target], "words": labels, "series": flat, "note": note}
