"""Credentials that stand in a text, taken out of whatever isostep writes or shows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

STARS = "***"
# https://user:password@host/, RFC 3986 section 3.2.1; one slash is enough, since pathlib makes one of two
IN_USER_PART = re.compile(r"(?i)(\b[a-z][a-z0-9+.-]+:/{1,2})[^/\s]+@")
IN_QUERY = re.compile(r"(?i)([?&][^=&\s]*(?:token|key|secret|passw|credential|sig)[^=&\s]*=)[^&\s'\"]*[^&\s'\",;:.)]")


def redact(value: Any) -> Any:
    """The same text, list or mapping with stars for what signs in to an address: its user part, its query's secrets.

    Twice makes no difference, so that a stored configuration equals a redacted one. Environment variables need no such
    care: they are never copied.
    """
    if isinstance(value, Mapping):
        return {key: redact(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redact(item) for item in value]
    if not isinstance(value, str):
        return value
    return IN_QUERY.sub(rf"\1{STARS}", IN_USER_PART.sub(rf"\1{STARS}@", value))
