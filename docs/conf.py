"""Sphinx builds the site from these pages; `make docs` runs it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import fedilc

sys.path.insert(0, str(Path(__file__).parent / "site"))
os.environ.setdefault("OMP_NUM_THREADS", "1")  # for notebooks and the gallery: many small tensors

project = "FedILC"
author = "The FedILC developers"
version = release = fedilc.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
    "links",
    "mathml",
    "reference",
]
exclude_patterns = ["_build", "site", "deploy", "examples", "gallery/*.ipynb", "gallery/*.py"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_update_mathjax = False

nb_execution_mode = "cache"
nb_execution_raise_on_error = True
nb_execution_timeout = 240
nb_execution_in_temp = True
nb_mime_priority_overrides = [("html", "text/plain", 25)]

napoleon_custom_sections = [
    (title, "params_style")
    for title in (
        "Loss",
        "Penalty options",
        "Local steps instead of those of the algorithm",
        "Server options",
        "Silos and rounds",
    )
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90

sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/\w+\.py$",
    "ignore_pattern": r"__init__\.py",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "min_reported_time": 1000,
    "write_computation_times": False,
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
}

html_theme = "furo"
html_title = f"FedILC {version}"
html_static_path = ["site/static"]
templates_path = ["site/templates"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme_options = {"top_of_page_buttons": []}
