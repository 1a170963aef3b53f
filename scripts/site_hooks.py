"""What MkDocs does besides (``hooks`` of mkdocs.yml): docstrings mark names with roles, ``:class:`X```, which Markdown has not."""

from __future__ import annotations

import re
from typing import Any

_ROLE = re.compile(r":(?:attr|class|func|meth|mod):(?=<(?:code|a|autoref)\b)")


def on_page_content(html: str, **_: Any) -> str:
    return _ROLE.sub("", html)
