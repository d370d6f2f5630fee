"""A takedown's file: what it says, what is refused by line and field, and what a new redaction leaves as it was."""

import numpy as np
import pytest

from packhorse.dataset import Redaction, TakedownError, TakedownFile, parse_ids, redact
from packhorse.dataset.files.redacting import _with_redaction

FILE = """# what legal asked for
[[redact]]
ids = [17, 4, 17]
reason = "private"

[[redact]]
ids_file = "ids.txt"
action = "replace"
token = 0
component = "web"
seed = 7
from_position = 900

[[skip]]
positions = "1200:1300, 5:6"
epoch = 2

[[skip]]
positions = "40:41"
seed = 7
"""


def read_ids(name):
    assert name == "ids.txt"
    return "9 # one\n-3, 8"


def parsed(text):
    return TakedownFile.parse(text, "web.takedown.toml", read_ids)


def test_a_file_says_what_is_redacted_and_skipped():
    file = parsed(FILE)
    masked, replaced = file.redactions
    assert (masked.ids.tolist(), masked.action, masked.reason) == ([4, 17], "mask", "private")
    assert (replaced.ids.tolist(), replaced.action, replaced.token) == ([-3, 8, 9], "replace", 0)
    assert (replaced.component, replaced.seed, replaced.from_position) == ("web", 7, 900)
    assert file.ids_files == ("ids.txt",)
    assert str(file.skips_of(epoch=2, seed=1)) == "5:6,1200:1300"
    assert str(file.skips_of(epoch=2, seed=7)) == "5:6,40:41,1200:1300"
    assert str(file.skips_of(epoch=1, seed=1)) == ""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[[redact]]\nids = [17", "[[redact]\nids = [17", "is not TOML"),
        ("ids = [17, 4, 17]", "ids = []", r"line 3: redact\[0\].ids: .*no id"),
        ("ids = [17, 4, 17]", "ids = [1.5]", r"line 3: redact\[0\].ids: .*whole numbers"),
        ("ids = [17, 4, 17]", "ids = [true]", r"line 3: redact\[0\].ids: .*whole numbers"),
        ("ids = [17, 4, 17]", "ids = 17", r"line 3: redact\[0\].ids: must be a list"),
        ("ids = [17, 4, 17]", 'ids = [1]\nids_file = "x"', r"line 3: redact\[0\].ids: .*not both"),
        ("ids = [17, 4, 17]\n", "", r"line 2: redact\[0\].ids: give ids"),
        ('reason = "private"', "reson = 1", r"line 4: redact\[0\].reson: .*did you mean reason"),
        ('reason = "private"', "reason = 1", r"line 4: redact\[0\].reason: must be text"),
        ('action = "replace"', 'action = "drop"', r"line 8: redact\[1\].action: must be one of mask, replace"),
        ("token = 0\n", "", r"line 6: redact\[1\].token: say which token"),
        ("token = 0", "token = -1", r"line 9: redact\[1\].token: it must be an integer in \[0,"),
        ('action = "replace"', 'action = "mask"', r"line 9: redact\[1\].token: "),
        ("seed = 7\nfrom", "from", r"line 11: redact\[1\].from_position: .*belong together"),
        ('positions = "1200:1300, 5:6"', 'positions = "9:9"', r"line 15: skip\[0\].positions: .*empty"),
        ('positions = "1200:1300, 5:6"', "positions = 9", r"line 15: skip\[0\].positions: must be a range"),
        ('positions = "40:41"\n', "", r"line 18: skip\[1\].positions: must be a range"),
        ("epoch = 2", "epoch = -1", r"line 16: skip\[0\].epoch: "),
        ("[[skip]]\npositions", "[skips]\npositions", "line 14: a takedown has no table skips"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_field(old, new, message):
    assert old in FILE
    with pytest.raises(TakedownError, match=message) as caught:
        parsed(FILE.replace(old, new, 1))
    assert str(caught.value).startswith("web.takedown.toml")


def test_a_wrong_file_of_ids_is_named():
    with pytest.raises(TakedownError, match=r"line 7: redact\[1\].ids_file: ids.txt, line 2: \"x begins with"):
        TakedownFile.parse(FILE, "web.takedown.toml", lambda name: '1\n"x')


def test_digests_are_chained():
    """Each depends on those before it, on what it does, and not on its reason."""
    chain = parsed(FILE).chain
    assert len(set(chain)) == 2
    assert parsed(FILE.replace("private", "other")).chain == chain
    changed = parsed(FILE.replace("[17, 4, 17]", "[17]")).chain
    assert changed[0] != chain[0]
    assert changed[1] != chain[1]
    assert parsed(FILE.replace("token = 0", "token = 1")).chain[0] == chain[0]
    assert parsed(FILE.replace("token = 0", "token = 1")).chain[1] != chain[1]


def test_a_redaction_is_added_behind_what_was_written(tmp_path):
    path = tmp_path / "web.takedown.toml"
    (tmp_path / "ids.txt").write_text("8")
    path.write_text(FILE)
    path.chmod(0o640)
    one = Redaction(ids=np.array([5]), token=3, component='a "b"', seed=2**64 - 1, from_position=9, reason="tab\tend")
    after = redact(path, one, lambda file: None)
    assert path.read_text().startswith(FILE.rstrip())
    assert (path.stat().st_mode & 0o777, [each.name for each in tmp_path.glob(".*")]) == (0o640, [])
    added = after.redactions[-1]
    assert (added.ids.tolist(), added.token, added.component) == ([5], 3, 'a "b"')
    assert (added.seed, added.from_position, added.reason) == (2**64 - 1, 9, "tab\tend")


def test_what_is_refused_leaves_the_file_as_it_was(tmp_path):
    path = tmp_path / "web.takedown.toml"

    def refuse(file):
        raise TakedownError("no such id")

    with pytest.raises(TakedownError, match="no such id"):
        redact(path, Redaction(ids=np.array([5])), refuse)
    assert list(tmp_path.iterdir()) == []
    path.write_text("redact = [{ids = [1]}]\n")
    with pytest.raises(TakedownError, match=r"write them like that"):
        redact(path, Redaction(ids=np.array([5])), lambda file: None)
    assert path.read_text() == "redact = [{ids = [1]}]\n"
    for name in ("../ids.txt", ".ids", "a/b", ""):
        path.write_text(f'[[redact]]\nids_file = "{name}"\n')
        with pytest.raises(TakedownError, match="not the name of a file beside"):
            redact(path, Redaction(ids=np.array([5])), lambda file: None)


def test_ids_come_with_commas_spaces_or_lines_between():
    assert parse_ids("3,1 2\n\n1 # 9", "x").ids.tolist() == [1, 2, 3]
    for text, message in (("", "holds no id"), ('1\n"2', 'x, line 2: "2 begins with a quote'), (str(2**63), "64 bits")):
        with pytest.raises(ValueError, match=message):
            parse_ids(text, "x")


def test_an_empty_file_takes_nothing_away():
    assert not TakedownFile.parse("", "x").redactions
    assert _with_redaction("", "x", Redaction(ids=np.array([1])), None) == "[[redact]]\nids = [1]\n"
