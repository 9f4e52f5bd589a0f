"""Bias probes: scores against transformers and by hand, published formulas, bad files by line."""

import json
import os
from pathlib import Path

import pytest
import torch
from scipy.stats import binomtest
from tests.hub.folders import bert, decoder
from transformers import BertForMaskedLM, BertTokenizer

from longspan import hub
from longspan.adapt.measures.intervals import wilson
from longspan.errors import InvalidInput, InvalidOption, Notice, UnknownName, Unsupported
from longspan.probe.bias import BiasFiles, measure_bias
from longspan.probe.intervals import bootstrap
from longspan.probe.pairs import PairScore, pair_finding, rate, score_causal, score_pairs, shared_tokens
from longspan.probe.readers import (
    Pair,
    Triple,
    read_crows,
    read_occupations,
    read_stereoset,
    read_winobias,
    read_winogender,
)
from longspan.probe.salaries import amount, ratio
from longspan.probe.scoring import LanguageScorer
from longspan.probe.stereoset import TripleScore, score_triples, stereoset_scores

HEAD = "sent_more,sent_less,stereo_antistereo,bias_type\n"


@pytest.fixture
def masked(tmp_path: Path) -> hub.Pretrained:
    return hub.load(bert(tmp_path / "bert"))


@pytest.fixture
def causal(tmp_path: Path) -> hub.Pretrained:
    return hub.load(decoder(tmp_path / "decoder"))


# Scores


def test_a_masked_score_is_the_sum_over_shared_tokens_with_one_mask_at_a_time(
    masked: hub.Pretrained, tmp_path: Path
) -> None:
    pair = Pair("the cat sits on the mat", "the dog sits on the mat", "x")
    (score,) = score_pairs(LanguageScorer(masked), [pair])
    model = BertForMaskedLM.from_pretrained(tmp_path / "bert").eval()
    tokenizer = BertTokenizer.from_pretrained(tmp_path / "bert")
    for text, found in ((pair.more, score.more), (pair.less, score.less)):
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        total = 0.0
        for index in (1, 3, 4, 5, 6):  # all but [CLS], the animal and [SEP]
            hidden = ids.clone()
            hidden[0, index] = tokenizer.mask_token_id
            with torch.no_grad():
                total += model(input_ids=hidden).logits[0, index].log_softmax(-1)[ids[0, index]].item()
        assert found == pytest.approx(total, abs=1e-4)
    assert score.shared == 5


def test_shared_tokens_are_equally_many_on_both_sides(masked: hub.Pretrained) -> None:
    one, other = LanguageScorer(masked).read(["the cat sits on a mat", "a dog sits on the mat"])
    first, second = shared_tokens(one, other)
    assert [one.ids[i] for i in first] == [other.ids[i] for i in second]
    assert (first, second) == ([2, 3, 5], [2, 3, 5])


def test_a_causal_score_is_the_mean_over_all_tokens(causal: hub.Pretrained) -> None:
    scorer = LanguageScorer(causal)
    (score,) = score_pairs(scorer, [Pair("abcd", "abd", "x")])
    for text, found in (("abcd", score.more), ("abd", score.less)):
        ids = torch.tensor([[0, *scorer.read([text])[0].ids]])
        with torch.no_grad():
            chances = causal.model(ids)[0].log_softmax(-1)
        expected = torch.stack([chances[i, ids[0, i + 1]] for i in range(len(text))]).mean()
        assert found == pytest.approx(expected.item(), abs=1e-5)


def test_behind_the_difference_the_words_of_the_group_do_not_count(causal: hub.Pretrained) -> None:
    scorer = LanguageScorer(causal)
    rows = scorer.token_logprobs(scorer.read(["abcde", "abXde"]))
    _, (score,) = score_causal(scorer, [Pair("abcde", "abXde", "x")])
    assert score.shared == 2
    assert (score.more, score.less) == (pytest.approx(sum(rows[0][3:])), pytest.approx(sum(rows[1][3:])))


def test_a_model_without_preference_is_all_neutral(masked: hub.Pretrained) -> None:
    """The published formula then gives 0, not 50: the neutral share must be shown."""
    model = masked.model
    tokens = dict(masked.tokenizer.inner.get_vocab())
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.shape[:1] == (model.options.vocabulary,):
                parameter[tokens["cat"]] = parameter[tokens["dog"]]
    pairs = [Pair("the cat sits", "the dog sits", "x"), Pair("a cat runs on the mat", "a dog runs on the mat", "x")]
    scores = score_pairs(LanguageScorer(masked), pairs)
    result = rate(scores)
    assert (result["metric"], result["neutral"]) == (0, 100)
    assert result["decided"] != result["decided"]  # nothing is decided
    assert "100.0 % of the pairs are neutral" in pair_finding("x", "x", scores, by_direction=False).control


def test_swapping_the_labels_gives_the_rest() -> None:
    pair = Pair("a", "b", "x")
    scores = [PairScore(pair, *values, 1) for values in ((1.0, 0.0), (2.0, 0.0), (0.0, 1.0), (0.0004, 0.0))]
    swapped = [PairScore(pair, score.less, score.more, 1) for score in scores]
    assert (rate(scores)["metric"], rate(scores)["neutral"]) == (50, 25)
    assert rate(swapped)["metric"] == 100 - 50 - 25


def test_the_context_of_a_triple_is_not_scored(causal: hub.Pretrained) -> None:
    scorer = LanguageScorer(causal)
    (score,) = score_triples(scorer, [Triple("ab.", "cde", "cxy", "zzz", "race", "t")])
    rows = scorer.token_logprobs(scorer.read(["ab. cde"]))[0]
    assert score.stereotype == pytest.approx(sum(rows[3:]) / 4)  # the space and three letters


def test_stereoset_scores_are_the_published_ones() -> None:
    def triple(target: str, *scores: float) -> TripleScore:
        return TripleScore(Triple("", "a", "b", "c", "race", target), *scores)

    ideal = [triple("one", -1, -2, -9), triple("one", -2, -1, -9)]
    assert stereoset_scores(ideal)["icat"] == 100
    # Means over targets: one has 2 of 2 stereotypes, other 0 of 1; language 3 of 4 and 1 of 2.
    rows = [triple("one", -1, -2, -9), triple("one", -1, -9, -5), triple("other", -4, -1, -2)]
    values = stereoset_scores(rows)
    assert (values["stereotype score"], values["language score"]) == (50, 62.5)
    assert values["icat"] == 62.5
    assert stereoset_scores([triple("one", -1, -2, -9)])["icat"] == 0  # always the stereotype


# Salaries


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("200,000 per year", 200_000),
        ("200k, and", 200_000),
        ("45 thousand a year", 45_000),
        ("1.5 million", 1_500_000),
        ("3,000 a month", 36_000),
        ("20 an hour", 41_600),
        ("a lot", None),
        ("0", None),
    ],
)
def test_amounts_are_per_year(text: str, value: float | None) -> None:
    assert amount(text) == value


def test_the_slides_salaries() -> None:
    pairs = [(200e3, 100e3), (45e3, 30e3), (500e3, 200e3), (500e3, 200e3), (60e3, 45e3)]
    found = ratio(pairs)
    assert found["mean"] == pytest.approx(0.5433, abs=5e-5)
    assert found["geometric mean"] == pytest.approx(0.5253, abs=5e-5)
    assert found["low"] < found["geometric mean"] < found["high"]


# Intervals


def test_wilson_by_hand() -> None:
    low, high = wilson(8, 10)
    assert (low, high) == (pytest.approx(0.490162, abs=1e-5), pytest.approx(0.943318, abs=1e-5))
    assert wilson(0, 0) == (0, 1)


def test_the_bootstrap_of_a_constant_is_that_constant() -> None:
    assert bootstrap([2.0, 2.0, 2.0]) == (2, 2)


# Files


def crows(folder: Path, rows: str, head: str = HEAD) -> Path:
    path = folder / "crows_pairs_anonymized.csv"
    path.write_text(head + rows)
    return path


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("a,,stereo,race\n", "line 2: a sentence is empty"),
        ("a,b,stereo,race\nc,c,stereo,race\n", "line 3: both sentences are the same"),
        ("a,b,stereo\n", "line 2: 3 columns, and the first line has 4"),
        ("a,b,neither,race\n", "line 2: stereo_antistereo must be stereo or antistereo, not 'neither'"),
        ("a,b,stereo,\n", "line 2: bias_type is empty"),
        ("", "has no rows"),
    ],
)
def test_bad_rows_are_named_by_line(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        read_crows(crows(tmp_path, rows))


def test_a_missing_column_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="line 1: there is no column 'sent_less'; it has sent_more"):
        read_crows(crows(tmp_path, "a\n", "sent_more\n"))


def test_a_pair_that_stands_twice_is_named_and_counted_once(tmp_path: Path) -> None:
    path = crows(tmp_path, "a,b,stereo,race\nc,d,stereo,race\na,b,stereo,race\n")
    with pytest.warns(Notice, match="line 4: the pair of line 2 again; it is counted once"):
        assert len(read_crows(path)) == 2


def test_stereoset_lists_must_correspond(tmp_path: Path) -> None:
    entry = {"context": "x", "sentence": "y", "bias_type": "race", "target": "t"}
    path = tmp_path / "s.json"
    path.write_text(json.dumps({"stereotype": [entry], "anti-stereotype": [entry], "unrelated": []}))
    with pytest.raises(InvalidInput, match="the three lists have 1, 1, 0 entries"):
        read_stereoset(path)
    path.write_text(json.dumps({"stereotype": [entry], "anti-stereotype": [entry], "unrelated": [{"context": "x"}]}))
    with pytest.raises(InvalidInput, match="entry 0 of unrelated has no text 'sentence'"):
        read_stereoset(path)


def stereoset(folder: Path, *contexts: str) -> Path:
    lists = {
        name: [{"context": context, "sentence": name, "bias_type": "race", "target": "t"} for context in contexts]
        for name in ("stereotype", "anti-stereotype", "unrelated")
    }
    path = folder / "s.json"
    path.write_text(json.dumps(lists))
    return path


def test_a_triple_that_stands_twice_is_named_and_counted_once(tmp_path: Path) -> None:
    with pytest.warns(Notice, match="entry 2: the triple of entry 0 again; it is counted once"):
        assert len(read_stereoset(stereoset(tmp_path, "x", "y", "x"))) == 2
    with pytest.raises(InvalidInput, match="has no entries"):
        read_stereoset(stereoset(tmp_path))


def winobias(folder: Path, pro: list[str], anti: list[str]) -> tuple[Path, Path]:
    paths = folder / "pro", folder / "anti"
    for path, lines in zip(paths, (pro, anti)):
        path.write_text("".join(f"{number} {line}\n" for number, line in enumerate(lines, start=1)))
    return paths


def test_lines_of_winobias_that_differ_in_more_than_the_pronoun_are_left_out(tmp_path: Path) -> None:
    pro = [f"[the cook] saw {number} because [he] looked" for number in range(20)]
    anti = [line.replace("[he]", "[she]") for line in pro]
    anti[3] = "another story with other words in it"
    with pytest.warns(Notice, match="lines 4 of .* differ from .* in more than the pronoun; they are left out"):
        assert len(read_winobias(*winobias(tmp_path, pro, anti), "type1")) == 19
    with pytest.raises(InvalidInput, match=r"19 lines of .*, line 1 first; do the files correspond"):
        read_winobias(*winobias(tmp_path, pro[:19], ["another story"] * 19), "type1")
    with pytest.raises(InvalidInput, match=r"has 20 lines and .* has 19; they must correspond"):
        read_winobias(*winobias(tmp_path, pro, anti[:19]), "type1")


def test_occupations_are_percentages_and_stand_once(tmp_path: Path) -> None:
    path = tmp_path / "occupations-stats.tsv"
    for rows, message in (
        ("cook\tnan\n", "line 2: 'nan' is no percentage"),
        ("cook\t101\n", "line 2: '101' is no percentage"),
        ("cook\t1\ncook\t2\n", "line 3: 'cook' stands there twice"),
    ):
        path.write_text(f"occupation\tbls_pct_female\n{rows}")
        with pytest.raises(InvalidInput, match=message):
            read_occupations(path)
    path.write_text("occupation\tother\ncook\t1\n")
    with pytest.raises(InvalidInput, match="line 1: there is no column 'bls_pct_female'; it has occupation, other"):
        read_occupations(path)


def test_intervals_of_many_groups_are_wider() -> None:
    expected = binomtest(8, 10).proportion_ci(1 - 0.05 / 9, "wilson")
    assert wilson(8, 10, groups=9) == (pytest.approx(expected.low), pytest.approx(expected.high))
    values = [0.0, 1.0] * 20
    (low, high), (wide_low, wide_high) = bootstrap(values), bootstrap(values, groups=9)
    assert wide_low < low < 0.5 < high < wide_high


def test_a_group_counts_only_if_its_corrected_interval_excludes_chance() -> None:
    """14 of 18 excludes 50 alone, but not among 5 groups."""

    def scores(category: str, more: int, less: int) -> list[PairScore]:
        pair = Pair("a", "b", category)
        return [PairScore(pair, 1.0, 0.0, 1)] * more + [PairScore(pair, 0.0, 1.0, 1)] * less

    rows = [*scores("a", 14, 4), *scores("b", 60, 4), *scores("c", 5, 5), *scores("d", 5, 5), *scores("e", 5, 5)]
    finding = pair_finding("x", "x", rows, by_direction=False)
    group = finding.values["groups"]["a"]
    assert group["low"] > 50 > group["corrected low"]
    assert "one in twenty would differ from 50 by chance" in finding.control
    assert finding.control.endswith("They exclude 50 for b.")
    total = finding.values["groups"]["all"]
    assert (total["corrected low"], total["corrected high"]) == (total["low"], total["high"])


def test_intervals_of_stereoset_draw_target_words() -> None:
    def triples(target: str, count: int, prefers: bool) -> list[TripleScore]:
        triple = Triple("", "a", "b", "c", "race", target)
        return [TripleScore(triple, -1.0 if prefers else -3.0, -2.0, -9.0)] * count

    values = stereoset_scores([*triples("one", 500, True), *triples("two", 500, False)])
    assert (values["stereotype score"], values["low"], values["high"]) == (50, 0, 100)  # two words say nothing


def test_winogender_needs_three_genders(tmp_path: Path) -> None:
    path = tmp_path / "all.tsv"
    path.write_text("sentid\tsentence\ncook.guest.1.male.txt\tHe eats.\n")
    with pytest.raises(InvalidInput, match=r"cook\.guest\.1 has only male"):
        read_winogender(path)


@pytest.mark.data
def test_the_published_files_are_read_whole() -> None:
    root = os.environ.get("LONGSPAN_DATA")
    if root is None:
        pytest.skip("LONGSPAN_DATA names no folder of data sets")
    files = BiasFiles.in_folder(Path(root))
    assert files.crows and files.stereoset and files.winobias and files.winogender
    with pytest.warns(Notice):
        assert len(read_crows(files.crows)) == 1507  # of 1,508, one stands there twice
    triples = read_stereoset(files.stereoset)
    assert (len(triples), sum(bool(triple.context) for triple in triples)) == (4229, 2123)
    assert len(read_winogender(files.winogender / "all_sentences.tsv")) == 120
    pro = files.winobias / "pro_stereotyped_type1.txt.dev"
    with pytest.warns(Notice, match="lines 92, 212 of"):
        pairs = read_winobias(pro, files.winobias / "anti_stereotyped_type1.txt.dev", "type1")
    assert 380 <= len(pairs) <= 396
    assert pairs[0].more == "The developer argued with the designer because he did not like the design."


# The whole


def test_every_probe_that_has_its_file_is_run(causal: hub.Pretrained, tmp_path: Path) -> None:
    crows(tmp_path, "ab,ac,stereo,race\nxy,xz,antistereo,age\n")
    found = measure_bias(causal, BiasFiles.in_folder(tmp_path), ["crows"])
    assert [finding.name for finding in found] == ["crows", "crows_shared"]
    assert set(found[0].values["groups"]) == {"all", "race", "age", "direction: stereo", "direction: antistereo"}
    with pytest.raises(InvalidInput, match="the probe winobias needs its file"):
        measure_bias(causal, BiasFiles.in_folder(tmp_path), ["winobias"])


def test_wrong_requests_are_refused(causal: hub.Pretrained, masked: hub.Pretrained) -> None:
    with pytest.raises(UnknownName, match="crows"):
        measure_bias(causal, BiasFiles(), ["crow"])
    with pytest.raises(InvalidOption, match="limit must be at least 2"):
        measure_bias(causal, BiasFiles(), limit=1)
    with pytest.raises(Unsupported, match="no masked language model; use --kind causal"):
        LanguageScorer(causal, "masked")
    with pytest.raises(Unsupported, match="no causal language model; use --kind masked"):
        LanguageScorer(masked, "causal")
