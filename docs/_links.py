"""What the links of a page become on the site.

A page links to what lies in the repository: notebooks as Python, and files outside docs/; of a demo that writes a page
it gives the name. On the site a notebook is a page with its outputs, these files lie beside the pages of docs/, and
what the demo writes is shown in a frame.
"""

import re

NOTEBOOK = re.compile(r"\]\(((?:notebooks/)?)(\w+)\.py\)")
LIVE = re.compile(r"<!-- live (\w+): (.+?) -->")
FRAME = """[Alone in a window](live/{0}.html).

<iframe src="live/{0}.html" title="{1}" loading="lazy" class="live"></iframe>"""


def on_the_site(markdown, notebooks, top):
    """The text of a page, with its links as the site has them.

    notebooks: the names of the notebooks. top: whether the page lies in docs/ itself.
    A comment `<!-- live NAME: TITLE -->` becomes the page that demos/NAME.py writes, in a frame, and a link to it.
    """

    def shown(found):
        return f"]({found[1]}{found[2]}.md)" if found[2] in notebooks else found[0]

    markdown = NOTEBOOK.sub(shown, markdown)
    markdown = LIVE.sub(lambda found: FRAME.format(*found.groups()), markdown)
    return markdown.replace("](../", "](") if top else markdown


def live(markdown):
    """The names of the demos whose pages a page shows, in its order."""
    return tuple(found[1] for found in LIVE.finditer(markdown))
