"""Recurrent encoder–decoders: three decoders, six scores, padding, and decoding step by step."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from longspan.attention.mechanisms.softmax import SCORES
from longspan.errors import InvalidInput, InvalidOption, Unsupported
from longspan.models import build, load
from longspan.models.classics.seq2seq import Seq2Seq
from longspan.models.presets import find

TINY = {"vocabulary": 11, "embedding": 5, "width": 6, "layers": 2, "maxout": 4, "max_source": 12, "init_bound": 0.6}
FORMS = {
    "sutskever": {},
    "gru": {"cell": "gru", "bidirectional": True, "reverse_source": False},
    "elman": {"cell": "elman", "forget_bias": None},
    "lstm both ways": {"bidirectional": True},
    "bahdanau": {"decoder": "bahdanau", "cell": "gru", "bidirectional": True, "reverse_source": False},
    "bahdanau lstm": {"decoder": "bahdanau", "score": "general"},
    "luong": {"decoder": "luong", "score": "general"},
    "luong fed": {"decoder": "luong", "score": "general", "input_feeding": True},
    "luong local-m": {"decoder": "luong", "reach": "local_m", "radius": 2},
    "luong local-p fed": {"decoder": "luong", "reach": "local_p", "radius": 2, "input_feeding": True},
    "luong both ways": {"decoder": "luong", "bidirectional": True, "reach": "local_p", "renormalise": True},
    **{f"luong {score}": {"decoder": "luong", "score": score} for score in SCORES},
}


def ids(batch: int = 2, length: int = 8, seed: int = 0) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(seed))


def tiny(form: str) -> Seq2Seq:
    return Seq2Seq.build(**{**TINY, **FORMS[form]}).double().eval()


@pytest.mark.parametrize(
    ("paper", "parameters"),
    [
        # 384M, as the paper says: 64M of them recurrent.
        ("sutskever", 240_000_000 + 80_080_000 + 2 * 4 * (8_000_000 + 8000)),
        (
            "bahdanau",
            2 * 30_000 * 620  # embeddings
            + 2 * 3 * (1000 * (620 + 1000) + 2000)  # encoder
            + 3 * (1000 * (620 + 2000 + 1000) + 2000)  # decoder
            + 1000 * (1000 + 1)  # W_s
            + 1000 * 1000 + 2000 * 1000 + 1000  # alignment
            + 1000 * (1000 + 620 + 2000 + 1) + 30_000 * 501,  # deep output
        ),
        (
            "luong",
            2 * 50_000_000 + 2 * 4 * (8_000_000 + 8000) + 4_000_000  # input feeding
            + 1_000_000 + 2_000_000 + 50_000_000,  # W_a, W_c, W_s
        ),
    ],
)  # fmt: skip
def test_parameter_counts_of_the_paper(paper: str, parameters: int):
    with torch.device("meta"):
        model = build(f"seq2seq-{paper}")
    assert sum(p.numel() for p in model.parameters()) == parameters


def test_bahdanaus_initial_weights():
    model = Seq2Seq.build(**{**TINY, **find("seq2seq-bahdanau").options, "vocabulary": 11, "width": 32, "embedding": 8})
    for gate in model.encoder.layers.weight_hh_l0.split(32):
        torch.testing.assert_close(gate @ gate.T, torch.eye(32), rtol=0, atol=1e-5)
    alignment = model.decoder.alignment
    assert (alignment.direction == 0).all() and alignment.change_key.weight.std() < 0.002
    assert 0.005 < model.head.weight.std() < 0.02 and (model.head.bias == 0).all()


@pytest.mark.parametrize("form", FORMS)
def test_decoding_in_pieces_equals_the_parallel_pass(form: str):
    model = tiny(form)
    source, target = ids(), ids(length=9, seed=1)
    whole = model(source, target)
    for pieces in ([9], [1] * 9, [4, 1, 4]):
        state, seen = model.start(2, source=source), []
        for piece in target.split(pieces, 1):
            logits, state = model.extend(piece, state)
            seen.append(logits)
        torch.testing.assert_close(torch.cat(seen, 1), whole, rtol=0, atol=1e-9)
        assert state.length == 9 and state.time.tolist() == [9, 9]
    torch.testing.assert_close(model(source, target, parallel=False), whole, rtol=0, atol=1e-9)
    last, _ = model.extend(target, model.start(2, source=source), last=True)
    torch.testing.assert_close(last, whole[:, -1:], rtol=0, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
def test_a_row_alone_is_the_row_in_a_padded_batch(form: str):
    model = tiny(form)
    source, target = ids(batch=3), ids(batch=3, length=7, seed=1)
    source_mask, mask = torch.ones(3, 8, dtype=torch.bool), torch.ones(3, 7, dtype=torch.bool)
    source_mask[1, 5:], source_mask[2, :3] = False, False  # right and left
    mask[1, 4:], mask[2, :2] = False, False
    out = model(source, target, source_mask=source_mask, key_mask=mask)
    for row in range(3):
        alone = model(source[row : row + 1, source_mask[row]], target[row : row + 1, mask[row]])
        torch.testing.assert_close(out[row, mask[row]], alone[0], rtol=0, atol=1e-10)
    state, seen = model.start(3, source=source, source_mask=source_mask), []
    for piece, real in zip(target.split([1, 3, 3], 1), mask.split([1, 3, 3], 1)):
        logits, state = model.extend(piece, state, key_mask=real)
        seen.append(logits)
    torch.testing.assert_close(torch.cat(seen, 1)[mask], out[mask], rtol=0, atol=1e-10)
    assert state.time.tolist() == mask.sum(1).tolist()


def test_a_row_alone_is_the_row_in_a_padded_batch_in_single_precision():
    model = tiny("bahdanau").float()
    source, target, mask = ids(), ids(seed=1), torch.ones(2, 8, dtype=torch.bool)
    mask[1, 5:] = False
    alone = model(source[1:, :5], target[1:])
    torch.testing.assert_close(model(source, target, source_mask=mask)[1:], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
def test_which_inputs_each_output_depends_on(form: str):
    model = tiny(form)
    source, target = ids(), ids(seed=1)
    changed = target.clone()
    changed[:, 4] = (changed[:, 4] + 1) % 11
    assert torch.equal(model(source, target)[:, :4], model(source, changed)[:, :4])
    other = source.clone()
    other[:, 3] = (other[:, 3] + 1) % 11
    assert (model(source, target) != model(other, target)).any(-1).all()


def test_the_source_is_reversed_without_its_padding():
    model = tiny("sutskever")
    seen = []
    model.source.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    mask = torch.tensor([[True, True, True, False]])
    model.encode(torch.tensor([[1, 2, 3, 0]]), source_mask=mask)
    assert seen[0].tolist() == [[3, 2, 1, 0]]


def test_encoder_states_are_in_the_order_of_the_source():
    model = tiny("luong")
    source = ids(batch=1)
    states, _ = model.encode(source)
    backwards, _ = model.encoder(model.source(source.flip(1)))
    assert torch.equal(states, backwards.flip(1))


@pytest.mark.parametrize("form", [form for form in FORMS if "decoder" in FORMS[form]])
def test_alignments_are_rows_of_weights(form: str):
    model = tiny(form)
    mask = torch.ones(2, 8, dtype=torch.bool)
    mask[1, 5:] = False
    begin = model.start(2, source=ids(), source_mask=mask, align=True)
    _, state = model.extend(ids(length=3, seed=1), begin)
    assert state.alignment.shape == (2, 3, 8) and (state.alignment[1, :, 5:] == 0).all()
    if FORMS[form].get("reach") != "local_p" or FORMS[form].get("renormalise"):
        torch.testing.assert_close(state.alignment.sum(-1), torch.ones(2, 3).double())
    again, rows = begin, []
    for step in range(3):
        _, again = model.extend(ids(length=3, seed=1)[:, step : step + 1], again)
        rows.append(again.alignment)
    torch.testing.assert_close(torch.cat(rows, 1), state.alignment, rtol=0, atol=1e-12)
    _, quiet = model.extend(ids(length=3), model.start(2, source=ids()))
    assert quiet.alignment is None


def test_bahdanau_attends_with_the_previous_state_and_luong_with_the_current_one():
    source = ids()
    for form, depends in (("bahdanau", False), ("luong", True)):
        model = tiny(form)
        begin = model.start(2, source=source, align=True)
        first, second = (model.extend(torch.full((2, 1), token), begin)[1].alignment for token in (1, 2))
        assert torch.equal(first, second) != depends


@pytest.mark.parametrize("form", ["sutskever", "bahdanau", "luong fed"])
def test_states_are_immutable_and_rows_can_be_selected(form: str):
    model = tiny(form)
    source, target = ids(), ids(seed=1)
    _, state = model.extend(target[:, :3], model.start(2, source=source))
    once, _ = model.extend(target[:, 3:], state)
    again, _ = model.extend(target[:, 3:], state)
    assert torch.equal(once, again)
    swapped, _ = model.extend(target[:, 3:].flip(0), state.select(torch.tensor([1, 0])))
    torch.testing.assert_close(swapped.flip(0), once, rtol=0, atol=1e-12)


@pytest.mark.parametrize("form", ["sutskever", "bahdanau", "luong fed"])
def test_without_teacher_forcing_it_reads_its_own_tokens(form: str):
    model = tiny(form)
    source, target = ids(), ids(seed=1)
    seen: list[Tensor] = []
    model.target.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    logits = model(source, target, teacher_forcing=0.0)
    inputs = torch.cat(seen, 1)
    assert torch.equal(inputs[:, 0], target[:, 0])
    assert torch.equal(inputs[:, 1:], logits.argmax(-1)[:, :-1])
    # The target's tokens are not read, but for the first.
    other = torch.cat([target[:, :1], ids(seed=2)[:, 1:]], 1)
    assert torch.equal(model(source, other, teacher_forcing=0.0), logits)
    # On its own tokens it is what the parallel pass says of them.
    torch.testing.assert_close(model(source, inputs), logits, rtol=0, atol=1e-9)


def test_a_left_padded_row_starts_with_the_given_token():
    model = tiny("luong fed")
    mask = torch.arange(8)[None] >= 3
    seen: list[Tensor] = []
    model.target.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model(ids(batch=1), ids(batch=1, seed=1), key_mask=mask, teacher_forcing=0.0)
    assert seen[3].item() == ids(batch=1, seed=1)[0, 3].item()


def test_teacher_forcing_applies_to_training_by_default():
    model = Seq2Seq.build(**TINY, teacher_forcing=0.5).double()
    source, target = ids(), ids(seed=1)
    given = model(source, target, teacher_forcing=1.0)
    assert torch.equal(model.eval()(source, target), given)
    model.train()
    assert any(not torch.equal(model(source, target), given) for _ in range(5))
    model.teacher_forcing = 1.0  # by a schedule
    assert torch.equal(model(source, target), given)


def test_input_feeding_widens_the_first_layer_only():
    one = {**TINY, "layers": 1, "decoder": "luong", "score": "dot"}
    plain, fed = (Seq2Seq.build(**one, input_feeding=feeding) for feeding in (False, True))
    counts = [sum(p.numel() for p in model.parameters()) for model in (plain, fed)]
    assert counts[1] - counts[0] == 4 * 6 * 6


def test_input_feeding_cannot_run_in_parallel():
    for form in ("luong fed", "bahdanau"):
        with pytest.raises(Unsupported, match="its steps cannot run in parallel"):
            tiny(form)(ids(), ids(seed=1), parallel=True)
    tiny("luong")(ids(), ids(seed=1), parallel=True)
    with pytest.raises(InvalidOption, match="with teacher_forcing below 1, a step reads the previous one"):
        tiny("luong")(ids(), ids(seed=1), parallel=True, teacher_forcing=0.5)


def test_conflicting_options_are_refused():
    with pytest.raises(InvalidOption, match="input_feeding goes with decoder luong, not bahdanau"):
        Seq2Seq.build(**TINY, decoder="bahdanau", input_feeding=True)
    with pytest.raises(InvalidOption, match="reach local_p needs attention, which decoder plain does not have"):
        Seq2Seq.build(**TINY, reach="local_p")
    with pytest.raises(InvalidOption, match=r"not 6 \(decoder\) and 12 \(encoder\); use general or additive"):
        Seq2Seq.build(**TINY, decoder="luong", score="dot", bidirectional=True)
    with pytest.raises(InvalidOption, match="score location has one row per position: give max_length"):
        Seq2Seq.build(**{**TINY, "max_source": None}, decoder="luong", score="location")


def test_bad_input():
    model = tiny("luong location")
    with pytest.raises(InvalidInput, match="reads a source"):
        model.start(1)
    with pytest.raises(InvalidInput, match="the source has 2 rows for a batch of 3"):
        model.start(3, source=ids())
    with pytest.raises(InvalidInput, match="the source is empty"):
        model.start(2, source=ids(length=0))
    with pytest.raises(InvalidInput, match="sources of at most 12 tokens, one has 13"):
        model.start(2, source=ids(length=13))
    with pytest.raises(InvalidInput, match="source_mask must be boolean"):
        model.start(2, source=ids(), source_mask=torch.ones(2, 8))
    with pytest.raises(InvalidInput, match="got 11 in sample 0 at position 0"):
        model.start(1, source=torch.tensor([[11]]))
    with pytest.raises(InvalidInput, match="the state is of batch 2, and the new tokens of 3"):
        model.extend(ids(batch=3), model.start(2, source=ids()))
    with pytest.raises(InvalidInput, match="x has no tokens; give at least one"):
        model.extend(ids(length=0), model.start(2, source=ids()))
    with pytest.raises(InvalidInput, match="without attention has no alignment"):
        tiny("sutskever").start(2, source=ids(), align=True)


@pytest.mark.parametrize("form", ["sutskever", "bahdanau", "luong local-p fed"])
def test_a_folder_stores_the_whole_model(tmp_path: Path, form: str):
    model = tiny(form)
    model.save(tmp_path)
    again = load(tmp_path)
    assert again.options == model.options
    assert torch.equal(again(ids(), ids(seed=1)), model(ids(), ids(seed=1)))


@pytest.mark.parametrize("form", FORMS)
def test_every_weight_is_read(form: str):
    model = tiny(form).train()
    model(ids(), ids(seed=1)).square().sum().backward()
    unread = [name for name, p in model.named_parameters() if p.grad is None or not (p.grad != 0).any()]
    assert unread == []
