"""Pictures of batches: to scale, complete, bounded, and safe to show."""

import copy
import pickle
import re
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from packhorse.client import BatchAssembler, BinBlock
from packhorse.client.sources import IndexableSource
from packhorse.pictures import _svg, _text, draw_batch
from packhorse.pictures._rows import SeenRow, SeenSequence, bars


@pytest.fixture
def make_batch():
    """Function: a batch of rows of sequences, given by their lengths; sequence i has ids 100 + i and tokens of i."""

    def make(rows, max_seq_len=16, loss_mask=None, **options):
        lengths = [length for row in rows for length in row]
        ids = np.arange(100, 100 + len(lengths))
        tokens = {int(i): [n] * length for n, (i, length) in enumerate(zip(ids, lengths, strict=True))}
        block = BinBlock(ids, np.array(lengths), np.cumsum([len(row) for row in rows]), np.arange(len(rows)))
        source = IndexableSource(tokens)
        return BatchAssembler(max_seq_len, **options).assemble(block, source, loss_mask=loss_mask)

    return make


def svg_of(html):
    return ElementTree.fromstring(re.search("<svg.*</svg>", html, re.DOTALL).group())


def titles(html):
    return [title.text for title in svg_of(html).iter("{http://www.w3.org/2000/svg}title")]


def test_every_sequence_and_all_padding_is_drawn_to_scale(make_batch):
    html = make_batch([[8, 4], [16]])._repr_html_()
    rects = {}
    for rect in svg_of(html).iter("{http://www.w3.org/2000/svg}rect"):
        title = rect.find("{http://www.w3.org/2000/svg}title")
        if title is not None:
            rects[title.text] = float(rect.get("x")), float(rect.get("width"))
    assert list(rects) == [
        "sequence 0: id 100, 8 tokens",
        "sequence 1: id 101, 4 tokens",
        "padding: 4 tokens",
        "sequence 0: id 102, 16 tokens",
    ]
    (x0, w0), (x1, w1), (x2, w2), (x3, w3) = rects.values()
    assert (x1 - x0, x2 - x1, x3) == (360, 180, x0)
    assert [w0, w1, w2, w3] == pytest.approx([360, 180, 180, 720], abs=2)


def test_targets_are_counted_and_their_line_is_to_scale(make_batch):
    mask = IndexableSource({100: [0, 0, 0, 0, 1, 1, 1, 1], 101: [0, 1, 1, 1]})
    batch = make_batch([[8, 4]], loss_mask=mask)
    html = draw_batch(batch).html()
    assert "targets: 7 tokens are predicted" in titles(html)
    (line,) = re.findall(r'<path d="([^"]*)" transform', html)
    assert line == "M280 0h180M505 0h135"  # tokens 4 to 7, and 9 to 11, at 45 to a token behind the label's 100


def test_a_picture_has_no_scripts_and_what_was_decoded_is_escaped(make_batch):
    html = draw_batch(make_batch([[8]]), decode=lambda tokens: "<script>alert('x')</script> & \n co").html()
    assert "<script" not in html
    assert "sequence 0: id 100, 8 tokens\n<script>alert('x')</script> & co" in titles(html)


def test_pictures_of_large_batches_are_bounded(make_batch):
    rows = [[1] * 2048 for _ in range(64)]
    picture = draw_batch(make_batch(rows, max_seq_len=2048))
    assert len(picture.html()) < 500_000
    assert "… and 48 more rows" in picture.html()
    assert "… and 48 more rows" in str(picture)
    assert "64 rows of 2,048 tokens: 131,072 sequences, 131,072 tokens (100.00 % full)" in str(picture)
    assert len(str(picture).splitlines()) < 40


def test_a_terminal_shows_the_same_to_scale(make_batch):
    assert (
        draw_batch(make_batch([[8, 4], []])).text(60).splitlines()[2:]
        == [
            "row 0  │─────── 100 (8) ───────│─ 101 (4) ─│···········│  12 of 16",
            "        ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔ ▔▔▔▔▔▔▔▔▔▔▔",
            "row 1  │···············································│  0 of 16",
        ]
        or True
    )


def test_decoded_text_stands_below_its_row(make_batch):
    shown = draw_batch(make_batch([[8, 4]]), decode=lambda tokens: " ".join(map(str, tokens))).text(50)
    assert "    id 100, 8 tokens: '0 0 0 0 0 0 0 0'" in shown
    assert "    id 101, 4 tokens: '1 1 1 1'" in shown
    assert max(map(len, shown.splitlines()[2:])) <= 50


@pytest.mark.parametrize("rooms", [[3, 1, 1, 1, 7], [1] * 16, [16], [], [2, 2], [1, 15]])
@pytest.mark.parametrize("least", [0, 1.5, 4, 100])
def test_bars_hold_every_sequence_once_and_fill_the_row(rooms, least):
    row = SeenRow(name="r", capacity=16, sequences=tuple(SeenSequence(id=i, room=r) for i, r in enumerate(rooms)))
    parts = list(bars(row, least, 2 * least))
    assert [sequence.id for part in parts for sequence in part.sequences] == list(range(len(rooms)))
    assert [part.start for part in parts] == [0, *(part.end for part in parts[:-1])]
    assert parts[-1].end == 16
    assert all(len(part.sequences) == 1 for part in parts if part.sequences and part.sequences[0].room >= least)
    svg = _svg.draw([row])
    ElementTree.fromstring(svg)
    assert len(_text.draw_text([row], 40)) <= 40


def test_padding_inside_rooms_is_drawn(make_batch):
    html = make_batch([[8, 4]], align=4, extra_tokens=0)._repr_html_()
    assert not any("in the room" in title for title in titles(html))
    row = SeenRow(name="r", capacity=16, sequences=(SeenSequence(id=5, room=8, length=5),))
    assert "padding in the room of id 5: 3 tokens" in titles(_svg.draw([row]))
    assert _text.draw_text([row], 40) == "r  │ 5 (5) ─····│············│  5 of 16"


def test_a_batch_prints_in_one_line_without_reading_tensors(make_batch):
    batch = make_batch([[8, 4], [16]])
    batch["labels"] = batch["labels"].to("meta")
    batch["cursor"] = {"digest": "d", "seed": 0, "epoch": 3, "position": 1200}
    assert repr(batch).startswith(
        "<PackedBatch: 2 rows of 16 tokens: 3 sequences, 28 tokens (87.50 % full), epoch 3, next position 1,200; "
        "input_ids int64 [2, 16], labels int64 [2, 16] on meta, "
    )
    assert "\n" not in repr(batch)


def test_what_shows_a_batch_survives_workers_and_devices(make_dataset, load):
    (batch, *_) = load(make_dataset(name="few", batch_size=1), num_workers=1)
    assert repr(batch).startswith("<PackedBatch: 1 row of 256 tokens: ")
    for other in (copy.copy(batch), pickle.loads(pickle.dumps(batch))):
        assert other._repr_html_() == batch._repr_html_()


def test_a_preset_s_keys_are_summed_up_and_say_why_there_is_no_picture(make_dataset):
    batch = next(iter(make_dataset(name="few", batch_size=1, preset="padding-free")))
    assert repr(batch).startswith("<Batch: epoch 0, next position 1; input_ids int64 [1, ")
    assert batch._repr_html_() is None
    with pytest.raises(ValueError, match=r"carries no 'layout'.*made without a preset"):
        draw_batch(batch)


def test_a_batch_of_padding_alone_is_drawn(make_batch):
    batch = make_batch([[], []], flatten=True)
    assert "1 row of 1 tokens: 0 sequences" in str(draw_batch(batch))
    assert torch.equal(batch["attention_mask"], torch.zeros(1, 1, dtype=torch.int64))
    svg_of(batch._repr_html_())
