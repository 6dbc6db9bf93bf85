"""How Sphinx builds the documentation: `make docs`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from commands_page import write_commands

import relutrim

project = "relutrim"
author = "the relutrim developers"
version = release = relutrim.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "mathml", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"relutrim {release}"
autodoc_typehints = "description"
autodoc_member_order = "bysource"
nitpicky = False
suppress_warnings = ["myst.xref_missing"]

write_commands(Path(__file__).with_name("commands.md"))
