"""All measures by name, and what is asked of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from longspan.attention.config import AttentionConfig
from longspan.errors import UnknownName, Unsupported, suggest
from longspan.inspect.measures.clusters import measure_clusters
from longspan.inspect.measures.collapse import measure_collapse
from longspan.inspect.measures.drift import DEFAULT, measure_drift
from longspan.inspect.measures.findings import Finding
from longspan.inspect.measures.heads import measure_heads
from longspan.inspect.measures.importance import measure_importance
from longspan.inspect.measures.lag import measure_lag
from longspan.inspect.measures.paths import measure_paths
from longspan.inspect.measures.rollout import measure_rollout
from longspan.inspect.measures.spectrum import measure_spectrum
from longspan.inspect.measures.subject import Subject

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What measures may need besides the model and its text."""

    subject: Subject
    tell: Tell = lambda _: None
    attentions: Sequence[AttentionConfig] = DEFAULT  # that take the place of the model's own
    beside: Subject | None = None  # a recurrent model


# Name: title, and how it is measured.
MEASURES: dict[str, tuple[str, Callable[[Request], Finding]]] = {
    "heads": ("Where heads look", lambda asked: measure_heads(asked.subject)),
    "clusters": ("Heads that behave alike", lambda asked: measure_clusters(asked.subject)),
    "importance": ("What is lost without a head", lambda asked: measure_importance(asked.subject, asked.tell)),
    "rollout": ("Rollout and flow", lambda asked: measure_rollout(asked.subject)),
    "collapse": ("Rank collapse with depth", lambda asked: measure_collapse(asked.subject)),
    "spectrum": ("Singular values of the maps", lambda asked: measure_spectrum(asked.subject)),
    "paths": ("Path lengths", lambda asked: measure_paths(asked.subject, asked.tell)),
    "lag": ("Gradient by lag", lambda asked: measure_lag(asked.subject, asked.beside)),
    "drift": ("Drift of approximations", lambda asked: measure_drift(asked.subject, asked.attentions, asked.tell)),
}
WITHOUT_ATTENTION = ("lag",)


def check_names(names: Sequence[str]) -> None:
    """Refuses a measure that does not exist."""
    for name in names:
        if name not in MEASURES:
            raise UnknownName(f"no measure is called {name!r}; {suggest(name, MEASURES)}")


def measure(asked: Request, names: Sequence[str] | None = None) -> list[Finding]:
    """The findings of the named measures, or of all; what does not apply says why.

    A measure that was named and does not apply is an error if it is the only one.
    """
    check_names(names or ())
    findings = []
    for name in names or MEASURES:
        title, run = MEASURES[name]
        asked.tell(title.lower())
        try:
            if name not in WITHOUT_ATTENTION:
                asked.subject.check_attention()
            findings.append(run(asked))
        except Unsupported as error:
            if names is not None and len(names) == 1:
                raise Unsupported(f"{name}: {error}") from None
            findings.append(Finding(name, title, skipped=str(error)))
    if names is None and all(finding.skipped for finding in findings if finding.name not in WITHOUT_ATTENTION):
        raise Unsupported(findings[0].skipped)
    return findings


__all__ = ["MEASURES", "Request", "check_names", "measure"]
