"""The contract, for every registered mechanism, every form and every claim it makes."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest

from longspan.attention import registry
from longspan.attention.base import Supports
from longspan.audit.checks import CHECKS, applicable
from longspan.audit.finding import Check
from longspan.audit.settings import SMALL
from longspan.audit.subjects import AuditSubject, MechanismSubject
from longspan.audit.targets import resolve

SUBJECTS: list[AuditSubject] = [subject for name in registry.names() for subject in resolve(name)]


def identity(subject: AuditSubject, check: Check) -> str:
    """window-causal-prefix, and with the options where a mechanism is audited with several sets of them."""
    return f"{subject.name}-{subject.form.replace(', ', '-')}-{check.name}"


SLOW = {"compile", "compile_masked", "export", "export_masked", "size", "exponent", "dropout"}  # about a second each


def case(subject: AuditSubject, check: Check) -> Any:
    marks = [pytest.mark.slow] if check.name in SLOW else []
    return pytest.param(subject, check, id=identity(subject, check), marks=marks)


# Several seconds each: with and without a mask for the first form of a mechanism, with a mask for its other forms.
AGAIN_WITHOUT_MASK = {"compile", "export"}


def cases() -> Iterator[Any]:
    seen = set()
    for subject in SUBJECTS:
        first = (subject.name, subject.claims.causal) not in seen
        seen.add((subject.name, subject.claims.causal))
        names = {check.name for check in applicable(subject)}
        for check in applicable(subject):
            if first or check.name not in AGAIN_WITHOUT_MASK or f"{check.name}_masked" not in names:
                yield case(subject, check)


CASES = list(cases())


@pytest.mark.parametrize(("subject", "check"), CASES)
def test_claim_holds(subject: AuditSubject, check: Check) -> None:
    finding = check(subject)
    assert finding.passed, f"{finding.claim}: measured {finding.measured}, limit {finding.limit}; {finding.detail}"


def test_every_form_of_every_mechanism_is_tested() -> None:
    seen = {(subject.name, subject.module.causal) for subject in SUBJECTS if isinstance(subject, MechanismSubject)}
    declared = {name: registry.find(name).supports for name in registry.names()}
    assert seen == {(name, True) for name, can in declared.items() if can.causal} | {
        (name, False) for name, can in declared.items() if can.bidirectional
    }


def test_every_check_applies_to_softmax() -> None:
    """It supports everything, so it is the mechanism that would show a check fallen out of the table."""
    assert all(getattr(registry.find("softmax").supports, item.name) for item in fields(Supports))
    checked = {check.name for subject in resolve("softmax") for check in applicable(subject)}
    not_its_own = {"size", "order"}  # it is quadratic by definition; `order` is for modules that are not ours
    of_layers = {check.name for check in CHECKS if not check.name.startswith("packing_")}  # those are for whole models
    assert checked == of_layers - not_its_own


def test_the_size_check_applies_to_a_linear_mechanism() -> None:
    assert "size" in {check.name for subject in resolve("window") for check in applicable(subject)}


def test_small_options_are_for_mechanisms_that_exist() -> None:
    assert set(SMALL) <= set(registry.names())
