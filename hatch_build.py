"""The addresses of a release are those of the repository that publishes it: its workflow sets JATTN_REPOSITORY.

The links and pictures of the README, which PyPI shows, then lead to the files of the release's tag.
"""

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface


class Addresses(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("JATTN_REPOSITORY")
        if repository:
            metadata["urls"] = {
                "Source": repository,
                "Issues": f"{repository}/issues",
                "Changelog": f"{repository}/blob/main/CHANGELOG.md",
            }
            readme = absolute(readme, repository, f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme}


def absolute(text: str, repository: str, tag: str) -> str:
    """Markdown whose relative links lead to the files of a tag, and whose pictures are those files."""
    link = r"(!?)(\[[^\]]*\])\((?!https?:|#)"
    return re.sub(link, lambda m: f"{m[1]}{m[2]}({repository}/{'raw' if m[1] else 'blob'}/{tag}/", text)
