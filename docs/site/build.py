"""Build the site: `python docs/site/build.py [FOLDER]`.

FOLDER (docs/_build) gets a folder per version, versions.js, which the version switch of every page reads,
and an index.html that leads to the version just built. Folders of earlier versions stay. All of it is static:
any web server can publish the folder, and a browser can open it from a disk.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from packaging.version import Version
from sphinx.cmd.build import main as sphinx

from fedilc import __version__

DOCS = Path(__file__).parents[1]
REDIRECT = """<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><title>FedILC</title><meta http-equiv="refresh" content="0; url={url}"></head>
<body><p><a href="{url}">FedILC {version}</a></p></body>
</html>
"""


def build(folder: Path) -> int:
    """Build this version into the folder, and return the exit code; any warning is an error."""
    doctrees = folder / ".doctrees"
    shutil.rmtree(folder / __version__, ignore_errors=True)  # pages that are no longer there
    code = sphinx(["-W", "--keep-going", "-q", "-d", str(doctrees), str(DOCS), str(folder / __version__)])
    if code == 0:
        found = [file.parent.name for file in folder.glob("*/index.html")]
        versions = sorted(found, key=Version, reverse=True)
        (folder / "versions.js").write_text(f"const fedilcVersions = {json.dumps(versions)};\n")
        page = REDIRECT.format(url=f"{__version__}/index.html", version=__version__)
        (folder / "index.html").write_text(page)
    return code


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else DOCS / "_build").resolve()
    failed = build(place)
    print(f"the site is in {place}" if not failed else "the site was not built")
    sys.exit(failed)
