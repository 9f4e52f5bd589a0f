"""A swapped model beside the original: what must be zero is zero, and what is reported reads back."""

import json

import pytest
import tokenizers
import torch
from tokenizers.models import WordLevel
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.adapt.measures.decoding import DecodingCost, DecodingPoint, decoding_cost, growth
from longspan.adapt.measures.intervals import wilson
from longspan.adapt.measures.layer_error import layer_errors
from longspan.adapt.measures.loss_by_position import compare_losses, joined_rows, loss_by_position
from longspan.adapt.measures.recall import BEYOND_WINDOW, RecallCell, RecallReport
from longspan.adapt.swap_report import NOT_USED, SwapReport, judge_linear_part, measure_swap
from longspan.data import Tokenizer
from longspan.errors import InvalidInput, InvalidOption
from longspan.hub.pretrained import Pretrained
from longspan.models.base import Model
from longspan.models.decoder import Decoder
from longspan.models.encoder import Encoder

SIZES = {"vocabulary": 50, "width": 16, "layers": 2, "heads": 2, "hidden": 24, "max_length": 96}


def decoder(attention: object = "softmax", **more: object) -> Decoder:
    """The same weights, whatever the attention."""
    torch.manual_seed(0)
    model = Decoder.build(**{**SIZES, "position": "rotary", "attention": attention, **more}).double().eval()
    exact = Decoder.build(**{**SIZES, "position": "rotary", **more}).double()
    with torch.no_grad():
        for parameter in exact.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.3)
    model.load_state_dict(exact.state_dict(), strict=False)
    return model


def rows(texts: int = 4, length: int = 96) -> Tensor:
    return torch.randint(50, (texts, length), generator=torch.Generator().manual_seed(2))


def measured(original: Model, swapped: Model, ids: Tensor | None = None, **given: object) -> SwapReport:
    ids = rows() if ids is None else ids
    return measure_swap(Pretrained(original), Pretrained(swapped), ids, decode_lengths=(64, 128), trials=2, **given)  # type: ignore[arg-type]


def test_the_same_attention_has_no_error_at_all():
    report = measured(decoder(), decoder())
    for layer in report.layers:
        assert not layer.swapped and (layer.forced_output, layer.free_output) == (0.0, 0.0)
        for head in (*layer.forced, *layer.free):
            assert (head.kl, head.missed, head.output) == (0.0, 0.0, 0.0)
    assert report.loss is not None and report.loss.original == report.loss.swapped
    for block in report.loss.blocks:
        assert block.original == block.swapped and block.difference is not None
        assert (block.difference.mean, block.difference.low, block.difference.high) == (0.0, 0.0, 0.0)
    assert report.recall is not None and report.recall["original"] == report.recall["swapped"]
    assert "No layer was swapped." in report.sentence and "(+0.000" in report.sentence


def test_a_window_as_long_as_the_text_changes_nothing():
    report = measured(decoder(), decoder({"name": "window", "window": 96, "sinks": 2}))
    for layer in report.layers:
        assert layer.swapped and layer.mechanism == "window (window 96, sinks 2)"
        assert max(layer.forced_output, layer.free_output) < 1e-10
        assert all(h.kl is not None and h.kl < 1e-10 and h.output < 1e-10 for h in (*layer.forced, *layer.free))
    assert report.loss is not None and report.loss.difference is not None
    assert abs(report.loss.difference.mean) < 1e-10


def test_errors_of_a_window_against_the_definition():
    """The first layer of a short text: maps and outputs computed here, in full."""
    exact, ours, ids = decoder(), decoder({"name": "window", "window": 3}), rows(1, 20)
    found = layer_errors(exact, ours, ids)
    with torch.no_grad():
        mixer, read = exact.stack.blocks[0].mixer, []
        hook = mixer.register_forward_pre_hook(lambda module, args: read.append(args[0]))
        exact(ids)
        hook.remove()
        (x,) = read
        q, k, v, _ = mixer._heads(x, None, None)
        q, k = mixer._rotate(q, k, None, 0, None)
        scores = q @ k.mT * 8**-0.5
        causal = torch.ones(20, 20, dtype=torch.bool).tril()
        near = causal.triu(-3)
        p, w = (scores.masked_fill(~keep, -torch.inf).softmax(-1)[0] for keep in (causal, near))
        floor = 1e-6
        kl = (p * (p.clamp_min(floor).log() - w.clamp_min(floor).log())).sum(-1).clamp_min(0).mean(-1)
        missed = (p * ~near).sum(-1).mean(-1)
        error = ((w - p) @ v[0]).flatten(1).norm(dim=1) / (p @ v[0]).flatten(1).norm(dim=1)
    for head in range(2):
        for one in (found[0].forced[head], found[0].free[head]):  # nothing has drifted before the first layer
            assert one.kl == pytest.approx(float(kl[head]), rel=1e-6)
            assert one.missed == pytest.approx(float(missed[head]), rel=1e-6)
            assert one.output == pytest.approx(float(error[head]), rel=1e-6)
    assert found[1].forced != found[1].free and found[1].free_output > 0


def test_a_layer_kept_exact_has_no_error_of_its_own_and_drifts():
    ours = decoder([{"name": "window", "window": 3}, {"name": "softmax"}])
    first, second = layer_errors(decoder(), ours, rows(2))
    assert first.swapped and first.forced_output > 0 and first.forced == first.free
    assert not second.swapped and second.forced_output == 0.0 and second.free_output > 0


def test_models_of_other_depths_are_refused():
    with pytest.raises(InvalidInput, match="different numbers of layers"):
        layer_errors(decoder(), decoder(layers=3), rows(1))
    with pytest.raises(InvalidInput, match="different numbers of layers"):
        layer_errors(decoder(layers=3), decoder(), rows(1))


def test_losses_are_those_of_the_next_token_and_chunks_change_nothing():
    model, ids = decoder(), rows(3, 200)  # longer than 96: read in chunks, past the trained length
    with torch.no_grad():
        logits, _ = model.extend(ids, model.start(3), beyond=True)
    expected = cross_entropy(logits[:, :-1].transpose(1, 2), ids[:, 1:], reduction="none")
    assert torch.allclose(loss_by_position(model, ids), expected.double(), atol=1e-5)
    with torch.no_grad():
        short = cross_entropy(model(ids[:, :96])[:, :-1].transpose(1, 2), ids[:, 1:96], reduction="none")
    assert torch.allclose(loss_by_position(model, ids[:, :96]), short.double(), atol=1e-5)


def test_blocks_hold_every_token_but_the_first():
    found = compare_losses(decoder(), decoder({"name": "window", "window": 8}), rows(4, 150))
    assert [(block.first, block.last) for block in found.blocks] == [(1, 63), (64, 127), (128, 149)]
    weights = [63, 64, 22]
    mean = sum(w * block.swapped for w, block in zip(weights, found.blocks)) / 149
    assert found.swapped == pytest.approx(mean, abs=1e-12) and found.trained_length == 96


def test_an_original_with_fixed_positions_is_compared_as_far_as_it_reads():
    original, swapped = decoder(position="learned"), decoder({"name": "window", "window": 8})
    found = compare_losses(original, swapped, rows(4, 192))
    assert [block.original is None for block in found.blocks] == [False, True, True]
    assert found.length == 192


def test_rows_are_joined_to_whole_texts():
    joined = joined_rows(torch.arange(20).view(5, 4), 7)
    assert joined is not None and joined.tolist() == [list(range(8)), list(range(8, 16))]
    assert joined_rows(torch.arange(20).view(5, 4), 21) is None


def test_the_state_of_a_window_is_flat_and_that_of_softmax_grows():
    models = {"original": decoder(), "swapped": decoder({"name": "window", "window": 8})}
    costs = decoding_cost(models, rows(), (32, 64, 256), steps=2)
    # two layers of keys and values, two heads of 8 numbers of 8 bytes
    assert [p.state_bytes for p in costs["original"].points] == [2 * 2 * 16 * 8 * n for n in (32, 64, 256)]
    assert [p.state_bytes for p in costs["swapped"].points] == [2 * 2 * 16 * 8 * 8] * 3
    assert (costs["original"].memory, costs["swapped"].memory) == ("grows", "flat within 10 %")
    assert all(point.milliseconds > 0 for cost in costs.values() for point in cost.points)


def test_lengths_that_positions_or_time_do_not_reach_are_left_out_and_said():
    costs = decoding_cost({"a": decoder(position="learned")}, rows(), (32, 256), steps=2)
    assert [p.length for p in costs["a"].points] == [32] and costs["a"].note == "its positions end at 96"
    assert costs["a"].memory == "measured at one length only"
    costs = decoding_cost({"a": decoder()}, rows(), (32, 64), steps=2, seconds=0)
    assert [p.length for p in costs["a"].points] == [32] and costs["a"].note == "64 tokens would take more than 0 s"
    with pytest.raises(InvalidOption, match="lengths must be positive and grow, not \\(64, 32\\)"):
        decoding_cost({"a": decoder()}, rows(), (64, 32))


def test_a_slow_model_does_not_keep_others_from_longer_texts(monkeypatch: pytest.MonkeyPatch):
    models = {"original": decoder(), "swapped": decoder({"name": "window", "window": 8})}
    now = iter(range(10**6))
    monkeypatch.setattr("longspan.adapt.measures.decoding.time.monotonic", lambda: float(next(now)))
    # Every reading takes a second. To 4,096: 4 more seconds of softmax, whose time grows as n², 3 of the window.
    monkeypatch.setattr("longspan.adapt.measures.decoding.CHUNK", 256)
    costs = decoding_cost(models, rows(), (1024, 4096), steps=1, seconds=10)
    assert [p.length for p in costs["original"].points] == [1024]
    assert costs["original"].note == "4,096 tokens would take more than 5 s"
    assert [p.length for p in costs["swapped"].points] == [1024, 4096] and not costs["swapped"].note


def test_flat_means_within_a_tenth():
    assert growth([10.0, 30.0, 11.0]) == "flat within 10 %" and growth([10.0, 11.01]) == "grows"
    assert DecodingCost(()).time == "not measured"
    assert DecodingCost((DecodingPoint(1, 1, 2.0), DecodingPoint(2, 1, 1.0))).time == "flat within 10 %"


def recalled(hits: int, count: int = 20) -> RecallReport:
    cell = RecallCell("pairs", 2.0, 64, hits, count, *wilson(hits, count), BEYOND_WINDOW)
    return RecallReport(0.1, 32, None, (cell,))


def test_the_verdict_on_the_linear_part():
    unused = judge_linear_part(1.345, 1.36, recalled(2))
    assert unused.used is False and unused.sentence == NOT_USED
    assert NOT_USED == "the linear part is not used; the window alone (untrained, cheaper) does the same"
    assert judge_linear_part(1.345, 1.372, recalled(2)).sentence == (
        "the linear part is used: without it the loss changes by +0.027 nats"
    )
    recalls = judge_linear_part(1.345, 1.345, recalled(10))
    assert recalls.used and recalls.sentence == (
        "the linear part is used for recall: 50% beyond the window, chance 10 %"
    )
    assert judge_linear_part(1.345, 1.345, None).used is None


def test_a_report_reads_back_and_a_changed_one_is_refused():
    report = measured(decoder(), decoder({"name": "window", "window": 8}))
    record = json.loads(json.dumps(report.to_json(), allow_nan=False))
    assert SwapReport.from_json(record) == report and record["sentence"] == report.sentence
    assert report.beyond is not None and report.beyond.length == 192
    with pytest.raises(InvalidInput, match="report has no entry 'layers'"):
        SwapReport.from_json({key: value for key, value in record.items() if key != "layers"})
    with pytest.raises(InvalidInput, match="report has an unknown entry 'more'"):
        SwapReport.from_json({**record, "more": 1})
    with pytest.raises(InvalidInput, match=r"report\.texts must be a int, not '4'"):
        SwapReport.from_json({**record, "texts": "4"})


def test_linear_attention_reads_every_key_and_errs():
    for layer in layer_errors(decoder(), decoder("linear"), rows(1)):
        for head in (*layer.forced, *layer.free):
            assert head.kl is not None and head.kl > 0 and head.missed == 0.0 and head.output > 0


def encoder(attention: object = "softmax", max_length: int = 64) -> Encoder:
    torch.manual_seed(0)
    sizes = {**SIZES, "max_length": max_length, "position": "rotary", "dropout": 0.0}
    return Encoder.build(**sizes, attention=attention, tasks=["masked"]).double().eval()


def test_encoders_are_compared_by_sentence_vectors():
    original, ids = encoder(), rows(8, 32)
    swapped = encoder({"name": "window", "window": 64}, 128)
    swapped.load_state_dict(original.state_dict(), strict=False)
    report = measured(original, swapped, ids)
    once, four = report.encoder
    assert (once.times, once.length, once.texts, once.against) == (1, 32, 8, "the original")
    assert once.cosine is not None and once.cosine.mean == pytest.approx(1.0, abs=1e-9)
    assert (four.length, four.texts) == (128, 2) and four.against == "the mean of the original's vectors of the parts"
    assert four.cosine is not None and four.least is not None and four.least <= four.cosine.mean <= 1.0
    assert report.loss is None and report.recall is None and report.decoding is None
    assert SwapReport.from_json(json.loads(json.dumps(report.to_json()))) == report
    cut = measured(original, swapped, rows(2, 80)).encoder[0]  # the original reads 64
    assert (cut.length, cut.against) == (64, "the original")
    short = measured(original, encoder(), ids).encoder[1]
    assert short.note == "the swapped model reads 64 tokens at most"


def with_masks() -> Tokenizer:
    words = {f"w{number}": number for number in range(49)} | {"[MASK]": 49}
    return Tokenizer(tokenizers.Tokenizer(WordLevel(words, unk_token="w0")), {"mask": "[MASK]"})


def test_guesses_of_masked_tokens_agree_as_far_as_the_window_reaches():
    original, ids = encoder(), rows(8, 32) % 49
    found = []
    for window in (32, 1):
        swapped = encoder({"name": "window", "window": window})
        swapped.load_state_dict(original.state_dict(), strict=False)
        models = (Pretrained(original, tokenizer=with_masks()), Pretrained(swapped, tokenizer=with_masks()))
        point = measure_swap(*models, ids).encoder[0]
        assert point.masked is not None
        found.append(point.masked)
    drawn = torch.rand(8, 32, generator=torch.Generator().manual_seed(0)) < 0.15
    assert found[0].count == found[1].count == int(drawn.sum())
    assert found[0].agree == 1.0 and found[0].original == found[0].swapped == found[1].original
    assert found[1].agree < 1.0


def test_what_cannot_be_compared_is_refused_before_any_work():
    with pytest.raises(InvalidInput, match="one model is causal and the other is not"):
        measured(decoder(), encoder())
    with pytest.raises(InvalidInput, match="the text has token 70, and the model has 50 tokens"):
        measured(decoder(), decoder(), torch.full((2, 9), 70))
    with pytest.raises(InvalidInput, match="token rows must be whole numbers"):
        measured(decoder(), decoder(), torch.zeros(9, dtype=torch.long))
