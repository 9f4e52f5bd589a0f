"""The audit: check what is claimed of a module, and get a certificate.

Names are loaded on first use: every run of pytest imports this package for its fixture, and must not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longspan.audit.certificate import Certificate, audit
    from longspan.audit.claims import Claims
    from longspan.audit.finding import Finding
    from longspan.audit.parallel import audit_many
    from longspan.audit.targets import Reading, resolve

_HOMES = {
    "Certificate": "certificate",
    "Claims": "claims",
    "Finding": "finding",
    "Reading": "targets",
    "audit": "certificate",
    "audit_many": "parallel",
    "resolve": "targets",
}

__all__ = ["Certificate", "Claims", "Finding", "Reading", "audit", "audit_many", "resolve"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
