"""A pytest fixture for the audit, for use in other projects.

    def test_my_attention(longspan_audit):
        longspan_audit(MyAttention(width=64), causal=True, padding=True)

Every run of pytest on this machine loads this file, so torch and longspan are imported only when the fixture is used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from longspan.audit import Certificate


@pytest.fixture
def longspan_audit() -> "Callable[..., Certificate]":
    """Audits a module (or `package.module:factory`) and fails the test if a claim fails or could not be measured.

    The claims are keywords (`causal=True, padding=True, order=1`), and so is how to call the module where that cannot
    be seen (`mask="my_mask"`, `width=64`); see `longspan.audit.Claims` and `longspan.audit.Reading`. Returns the
    certificate.
    """
    from dataclasses import fields

    from longspan.audit import Claims, Reading, audit
    from longspan.errors import InvalidOption, suggest

    def run(target: Any, **given: Any) -> "Certificate":
        __tracebackhide__ = True
        claimed = {item.name for item in fields(Claims)}
        read = {item.name for item in fields(Reading)}
        for name in given:
            if name not in claimed | read:
                raise InvalidOption(f"longspan_audit takes no {name!r}: {suggest(name, claimed | read)}")
        claims = {name: value for name, value in given.items() if name in claimed}
        certificate = audit(
            target,
            Claims(**claims) if claims else None,
            reading=Reading(**{name: value for name, value in given.items() if name in read}),
        )
        if not certificate.passed:
            count = f"{len(certificate.failed)} of {len(certificate.findings)} claims failed"
            missing = f", {len(certificate.not_measured)} could not be measured" if certificate.not_measured else ""
            lines = certificate.table(failed_only=True)
            pytest.fail(f"{certificate.subject}: {count}{missing}\n{lines}", pytrace=False)
        return certificate

    return run
