"""Runs the examples of a README from an installed package alone, but the paragraphs that import another library.

python tests/examples_of_the_readme.py README.md
"""

import doctest
import importlib.util
import re
import sys
from pathlib import Path

HOSTS = ("equinox", "haiku", "flax")


def main():
    paragraphs = Path(sys.argv[1]).read_text(encoding="utf-8").split("\n\n")
    absent = [name for name in HOSTS if importlib.util.find_spec(name) is None]
    imports = re.compile(rf"^>>> (import|from) ({'|'.join(absent) or '^'})\b", re.MULTILINE)
    kept = [p for p in paragraphs if not imports.search(p)]
    found = doctest.DocTestParser().get_doctest("\n\n".join(kept), {}, sys.argv[1], sys.argv[1], 0)
    failed, tried = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(found)
    print(f"{sys.argv[1]}: {tried} examples, {failed} failed; not installed: {', '.join(absent) or 'nothing'}")
    raise SystemExit(bool(failed or not tried))


if __name__ == "__main__":
    main()
