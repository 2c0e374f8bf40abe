"""Formulas as MathML, which browsers show without any script or font from elsewhere."""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def visit_inline(self: HTML5Translator, node: nodes.math) -> None:
    """Write a formula of a line of text."""
    self.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def visit_block(self: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on lines of its own."""
    self.body.append(f'<div class="formula">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer as the one that is used."""
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.config.html_math_renderer = "mathml"
    return {"parallel_read_safe": True}
