"""Pages with a script that draws: style and script are named by their hashes, so that nothing else can run or style.

Their style sheets and scripts are files in `assets`, joined into one of each.
"""

from base64 import b64encode
from hashlib import sha256
from importlib.resources import files

from longspan.report import palette
from longspan.report.page import STYLE, Html, text


def asset(name: str) -> str:
    """A file of `assets`."""
    return files("longspan.report").joinpath("assets", name).read_text(encoding="utf-8")


def script_of(names: list[str]) -> str:
    """Files joined into one script; a function around them keeps their names to themselves."""
    return "(() => {\n" + "\n".join(asset(name) for name in names) + "\n})();\n"


def style_of(names: list[str]) -> str:
    """The style of all pages, and these files."""
    return STYLE + palette.style() + "\n".join(asset(name) for name in names)


def strict_page(title: str, *parts: Html, style: str, script: str) -> str:
    """A whole document that requests nothing."""
    policy = (
        f"default-src 'none'; script-src {_source(script)}; style-src {_source(style)}; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{text(title)}</title><style>{style}</style></head>\n<body>\n"
        + "\n".join(parts)
        + f"\n<script>{script}</script>\n</body></html>\n"
    )


def _source(content: str) -> str:
    """How the policy names an inline script or style."""
    return f"'sha256-{b64encode(sha256(content.encode()).digest()).decode()}'"


__all__ = ["asset", "script_of", "strict_page", "style_of"]
