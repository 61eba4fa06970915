"""Sphinx: MyST pages, the furo theme, and the version from the installed package."""

from importlib.metadata import version as installed

project = "kerncfg"
author = "the kerncfg authors"
copyright = "2026, the kerncfg authors"
version = release = installed("kerncfg")

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4  # of the reference
nitpicky = True

html_theme = "furo"
html_title = f"kerncfg {release}"
