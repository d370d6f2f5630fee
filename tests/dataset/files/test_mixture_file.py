"""What a mixture's file may say, and what is refused by field, value and way out."""

from decimal import Decimal

import pytest

from packhorse.dataset import MixtureDataset, MixtureError, MixtureFile, StageEntry, append_to_mixture, open_prepared

FILE = "my.mixture.toml"
STAGES = "[[stages]]\nweights = {set = 1}\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[stages]", "is not TOML"),
        ("", r"stages must be tables, at least one: \[\[stages\]\]"),
        ("stages = 3", "stages must be tables"),
        ("[[stages]]\n", r"stages\[0\]\.weights must give each component a number"),
        ("[[stages]]\nweights = {}", r"stages\[0\]\.weights must give each"),
        ('[[stages]]\nweights = {set = "1"}', r"stages\[0\]\.weights\.set must be a number of at least 0, got '1'"),
        ("[[stages]]\nweights = {set = true}", r"weights\.set must be a number of at least 0, got True"),
        ("[[stages]]\nweights = {set = -0.5}", r"weights\.set must be a number of at least 0, got -0\.5"),
        ("[[stages]]\nweights = {set = nan}", r"weights\.set must be a number of at least 0, got NaN"),
        ("[[stages]]\nweights = {set = inf}", r"weights\.set must be at most 1e\+12"),
        ("[[stages]]\nweights = {set = 1e-30}", r"with at most 15 decimal places"),
        ("[[stages]]\nweight = {set = 1}", r"stages\[0\]\.weight is no field here; did you mean weights\?"),
        (f"epoch_bin = 3\n{STAGES}", r"epoch_bin is no field here; did you mean epoch_bins\?"),
        (f"colour = 3\n{STAGES}", "colour is no field here; there are stages"),
        (f"epoch_bins = 0\n{STAGES}", "epoch_bins must be an integer in"),
        (f"epoch_bins = 2.5\n{STAGES}", "epoch_bins must be an integer in"),
        (f"draw = 'batches'\n{STAGES}", "draw must be one of bins, steps, got 'batches'"),
        (f"draw = 'steps'\n{STAGES}", 'draw = "steps" needs bins_per_step = N beside it'),
        (f"max_seq_len = 0\n{STAGES}", "max_seq_len must be an integer in"),
        (f"max_seq_len = 3000000000\n{STAGES}", "max_seq_len must be an integer in"),
        (f'when_out = "leave"\n{STAGES}', "when_out must be one of repeat, stop, reweigh, got 'leave'"),
        (
            f'when_out = "reweigh"\n{STAGES}until_tokens = 9\n{STAGES}',
            r'stages\[0\]\.until_tokens does not go with when_out = "reweigh".* use until_bins or until_steps',
        ),
        (f"{STAGES}[components.set]\nepochs = 2", r'components\.set\.epochs needs when_out = "reweigh" or "stop"'),
        (f"when_out = 'stop'\n{STAGES}[components.set]\nepochs = 0", r"components\.set\.epochs must be an integer in"),
        (f"{STAGES}by = 'words'", r"stages\[0\]\.by must be one of bins, tokens, got 'words'"),
        (f"{STAGES}until_bins = 5\nuntil_tokens = 9", "say the same in two ways; keep one"),
        (f"{STAGES}until_bins = 0", r"stages\[0\]\.until_bins must be an integer in \[1"),
        (f"{STAGES}until_steps = 5\n{STAGES}", "needs bins_per_step = N at the top"),
        (f"{STAGES}[components.other]\n", r"components\.other: no stage gives other a weight; there are set"),
        (f"{STAGES}[components.set]\nshuffle = 'windowed'", r'must be "global" or "windowed\(W\)"'),
        (f"{STAGES}[components.set]\nshuffle = 'windowed(0)'", "windows must be an integer in"),
        (f"{STAGES}[components.set]\norder = 1", r"components\.set\.order is no field"),
        (
            f"{STAGES}until_bins = 9",
            r"stages\[0\]\.until_bins: the last stage has no end; leave it out, or add another",
        ),
        (f"{STAGES}{STAGES}", r"stages\[0\]\.until_bins is missing, .* until_bins, until_tokens or until_steps"),
        ("[[stages]]\nweights = {set = 0, other = 0.0}", r"stages\[0\]\.weights are all 0"),
        (
            f"epoch_bins = 9\ndraw = 'steps'\nbins_per_step = 4\n{STAGES}",
            "epoch_bins = 9 is not a whole number of steps",
        ),
        (f"{STAGES}[components]\nset = 3", r"components\.set must be a table"),
    ],
)
def test_a_wrong_file_is_refused_by_field(text, message):
    with pytest.raises(MixtureError, match=message) as caught:
        MixtureFile.parse(text, FILE)
    assert str(caught.value).startswith(FILE)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (3, f"# ours\n\nepoch_bin = 3\n{STAGES}"),
        (4, f"epoch_bins = 3\n{STAGES}weight = 1"),
        (6, f"{STAGES}until_bins = 5\n[[stages]]\n# more\nweights = {{set = -1}}\n\n{STAGES}"),
        (3, f"\n\n[[stages]]\nuntil_bins = 3\n{STAGES}"),
        (3, f"{STAGES}[[stages]]\nuntil_bins = 3\n"),
        (6, f"{STAGES}\n[components.set]\n\nshuffle = 'odd'\n"),
        (5, f"{STAGES}\n[components.set]\norder = 1\n"),
        (4, f"{STAGES}\n[component.set]\n"),
    ],
)
def test_a_wrong_file_is_refused_by_line(line, text):
    with pytest.raises(MixtureError, match=rf"^{FILE}, line {line}: "):
        MixtureFile.parse(text, FILE)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[[stages]]\nweights = {set = 1, other = 0.0000000000001}",
            "other has less than one bin in 1099511627776 in stage 0: give it a larger weight, or 0 and a larger one",
        ),
        (
            f"bins_per_step = 4\n{STAGES}until_steps = 9\n{STAGES}until_bins = 36\n{STAGES}",
            r"stages\[1\]\.until_bins = 36 is position 36 of the run, and the stage begins at 36",
        ),
        (
            f"max_seq_len = 32\n{STAGES}",
            "set was prepared with max_seq_len 64, and max_seq_len = 32 in the mixture's file has no room for that",
        ),
        (
            f"max_seq_len = 100\n{STAGES}",
            "max_seq_len = 100 in the mixture's file must be a multiple of it, at most 65536 times as much; prepare it",
        ),
        (
            f"when_out = 'stop'\nepoch_bins = 1000000\n{STAGES}",
            "lower its weight, give an epoch fewer than 1000000 bins",
        ),
    ],
)
def test_what_cannot_be_done_with_the_datasets_is_refused(pristine, text, message):
    other = open_prepared(pristine)
    object.__setattr__(other, "path", other.path.with_name("other"))
    file = MixtureFile.parse(text, FILE)
    datasets = {"set": open_prepared(pristine), "other": other}
    with pytest.raises(MixtureError, match=message) as caught:
        MixtureDataset("my", file, [datasets[name] for name in file.names])
    assert str(caught.value).startswith(f"{FILE}: ")


def test_ends_in_bins_steps_and_tokens_are_positions_of_the_run(pristine):
    dataset = open_prepared(pristine)
    tokens = dataset.manifest.own_tokens  # those of one epoch
    text = (
        f"bins_per_step = 4\n{STAGES}until_bins = 7\n{STAGES}until_steps = 5\n"
        f"{STAGES}until_tokens = {2 * tokens}\n{STAGES}until_tokens = {2 * tokens + 1}\n{STAGES}"
    )
    mixture = MixtureDataset("my", MixtureFile.parse(text, FILE), [dataset])
    num_bins = dataset.manifest.num_bins
    assert [first for first, _ in mixture.chain] == [0, 7, 20, 2 * num_bins, 2 * num_bins + 1]


def test_weights_are_taken_as_written_and_by_tokens(pristine):
    other = open_prepared(pristine)
    object.__setattr__(other, "path", other.path.with_name("other"))
    text = "[[stages]]\nby = 'tokens'\nweights = {set = 0.1, other = 0.2}"
    mixture = MixtureDataset("my", MixtureFile.parse(text, FILE), [open_prepared(pristine), other])
    assert [str(share) for share in mixture.shares[0]] == ["1/3", "2/3"]


COMMENTED = """# the run of May
when_out = "repeat"  # goes on

[[ stages ]]  # first
weights = {set = 1}  # all

[components.set]
shuffle = "windowed(3)"
"""


def test_a_stage_is_appended_and_the_rest_stays_as_written(pristine, tmp_path):
    path = tmp_path / FILE
    path.write_text(COMMENTED)
    path.chmod(0o640)
    stage = StageEntry(weights={"set": Decimal("0.5")})
    before, after = append_to_mixture(path, stage, 40, lambda name: open_prepared(pristine))
    text = path.read_text()
    assert (
        text == COMMENTED.replace("# first\n", "# first\nuntil_bins = 40\n") + "\n[[stages]]\nweights = {set = 0.5}\n"
    )
    assert (path.stat().st_mode & 0o777, [p.name for p in tmp_path.iterdir()]) == (0o640, [FILE])
    assert after.chain[0] == before.chain[0]
    assert after.chain[1][0] == 40
    with pytest.raises(MixtureError, match="position 40 is not after 40, where the last stage of my begins"):
        append_to_mixture(path, stage, 40, lambda name: open_prepared(pristine))
    assert path.read_text() == text
    append_to_mixture(path, stage, 41, lambda name: open_prepared(pristine))
    assert MixtureFile.parse(path.read_text(), FILE).stages[1].until.count == 41


def test_stages_written_in_one_line_are_left_to_the_user(pristine, tmp_path):
    path = tmp_path / FILE
    path.write_text("stages = [{weights = {set = 1}}]")
    with pytest.raises(MixtureError, match="write them like that, or append by hand"):
        append_to_mixture(path, StageEntry(weights={"set": 1}), 40, lambda name: open_prepared(pristine))


def test_windows_are_part_of_the_digest(pristine):
    dataset = open_prepared(pristine)
    plain, windowed = (
        MixtureDataset("my", MixtureFile.parse(STAGES + shuffle, FILE), [dataset])
        for shuffle in ("", "[components.set]\nshuffle = 'windowed(4)'")
    )
    assert plain.manifest.digest != windowed.manifest.digest
    every = range(plain.num_bins)
    assert sorted(plain.epoch(0, 1).bins(every).ids) == sorted(windowed.epoch(0, 1).bins(every).ids)
    assert plain.epoch(0, 1).bins(every).ids.tolist() != windowed.epoch(0, 1).bins(every).ids.tolist()


def test_stages_of_drawn_steps_end_between_steps(pristine):
    dataset = open_prepared(pristine)
    text = f"draw = 'steps'\nbins_per_step = 4\n{STAGES}until_steps = 3\n{STAGES}until_tokens = 1000\n{STAGES}"
    mixture = MixtureDataset("my", MixtureFile.parse(text, FILE), [dataset])
    tokens_of_bin = dataset.manifest.own_tokens / dataset.manifest.num_bins
    [_, (first, _), (second, _)] = mixture.chain
    assert first == 12
    assert second % 4 == 0
    assert second - 4 < 1000 / tokens_of_bin <= second
    assert mixture.num_bins == dataset.manifest.num_bins // 4 * 4
    with pytest.raises(
        MixtureError, match=r"epoch_bins = 30 is not a whole number of steps, .* bins_per_step, e\.g\. 32"
    ):
        MixtureDataset("my", MixtureFile.parse(f"epoch_bins = 30\n{text}", FILE), [dataset])


def test_joined_bins_are_part_of_the_digest_and_of_what_components_count(pristine):
    dataset = open_prepared(pristine)
    plain, same, joined = (
        MixtureDataset("my", MixtureFile.parse(max_seq_len + STAGES, FILE), [dataset])
        for max_seq_len in ("", "max_seq_len = 64\n", "max_seq_len = 192\n")
    )
    assert plain.manifest.digest == same.manifest.digest != joined.manifest.digest
    assert plain.rows_per_bin == (1,)
    assert joined.rows_per_bin == (3,)
    assert joined.num_bins == joined.component_bins[0] == -(-plain.num_bins // 3)
    assert joined.manifest.max_seq_len == 192
    assert joined.manifest.total_capacity == 192 * joined.num_bins
    assert joined.manifest.own_tokens == plain.manifest.own_tokens
    assert joined.max_sequences_per_bin == 3 * plain.max_sequences_per_bin
    every = joined.epoch(0, 1).bins(range(joined.num_bins))
    assert every.ids.tolist() == plain.epoch(0, 1).bins(range(plain.num_bins)).ids.tolist()


def test_an_epoch_beyond_what_components_can_count_is_refused(pristine):
    text = f"epoch_bins = 1000000\n{STAGES}"
    mixture = MixtureDataset("my", MixtureFile.parse(text, FILE), [open_prepared(pristine)])
    with pytest.raises(ValueError, match=f"epoch {2**63} is too large"):
        mixture.epoch(2**63, 0)


def test_a_stage_is_appended_to_a_file_that_an_editor_has_marked_and_to_no_other_bytes(pristine, tmp_path):
    path = tmp_path / FILE
    append = (StageEntry(weights={"set": 1}), 40, lambda name: open_prepared(pristine))
    path.write_text(STAGES, encoding="utf-8-sig")
    _, after = append_to_mixture(path, *append)
    assert [first for first, _ in after.chain] == [0, 40]
    path.write_text(f"# für Mai\n{STAGES}", encoding="latin-1")
    with pytest.raises(MixtureError, match="is not text in UTF-8"):
        append_to_mixture(path, *append)


def test_stages_are_taken_back_and_the_rest_stays_as_written(pristine, tmp_path):
    path, change = tmp_path / "run.mixture.toml", lambda name: open_prepared(pristine)
    head = "# ours\nepoch_bins = 30  # an epoch\n\n[[stages]]\n"
    tail = '\n[components.set]\nshuffle = "windowed(2)"  # near the disk\'s order\n'
    stages = "[[stages]]  # second\nuntil_steps = 20\nweights = {set = 2}\n\n[[stages]]\nweights = {set = 3}\n"
    path.write_text(f"bins_per_step = 4\n{head}until_bins = 40\nweights = {{set = 1}}\n\n{stages}{tail}")
    _, after = append_to_mixture(path, None, 80, change, replace=True)
    assert [first for first, _ in after.chain] == [0, 40]
    _, after = append_to_mixture(path, StageEntry(weights={"set": 5}), 41, change, replace=True)
    assert [first for first, _ in after.chain] == [0, 40, 41]
    _, after = append_to_mixture(path, None, 1, change, replace=True)
    assert [first for first, _ in after.chain] == [0]
    assert path.read_text() == f"bins_per_step = 4\n{head}weights = {{set = 1}}\n\n{tail.lstrip()}"
    with pytest.raises(MixtureError, match="position 0 is not after 0, where the last stage of run begins"):
        append_to_mixture(path, StageEntry(weights={"set": 5}), 0, change, replace=True)


@pytest.mark.parametrize(
    "text",
    [
        "stages = [{until_bins = 9, weights = {set = 1}}, {weights = {set = 2}}]\n",
        "[[stages]]\nuntil_bins = 9\nweights = {set = 1}\n[[stages]]\nweights = {new = 1}\n[components.new]\n",
    ],
)
def test_what_cannot_be_taken_back_in_the_text_says_so(pristine, tmp_path, text):
    path, other = tmp_path / "run.mixture.toml", open_prepared(pristine)
    object.__setattr__(other, "path", other.path.with_name("new"))
    datasets = {"set": open_prepared(pristine), "new": other}
    path.write_text(text)
    with pytest.raises(MixtureError, match=r"stages can be removed only if they are .* edit the file by hand"):
        append_to_mixture(path, None, 9, datasets.__getitem__, replace=True)
    assert path.read_text() == text
