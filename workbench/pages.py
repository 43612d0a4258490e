"""Pages and texts from templates; HTML pages are one file with their style in it."""

from importlib import resources
from typing import Any

import jinja2

_STYLE_FILE = "page.css"


def render_template(package: str, name: str, view: dict[str, Any]) -> str:
    """Renders a template of a package.

    Args:
        package: Whose file it is.
        name: Of the file; values are escaped in `.html`.
        view: Every value that the template names; one too few is an error.
    """
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=name.endswith(".html"),
    )
    source = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    style = resources.files("workbench").joinpath(_STYLE_FILE).read_text(encoding="utf-8")
    return environment.from_string(source).render(view, style=style)
