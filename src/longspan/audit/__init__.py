"""The checks, and the certificate they add up to: `audit` measures what is claimed of a module."""

from longspan.audit.certificate import Certificate, audit
from longspan.audit.claims import Claims
from longspan.audit.finding import Finding
from longspan.audit.resolve import Reading, resolve

__all__ = ["Certificate", "Claims", "Finding", "Reading", "audit", "resolve"]
