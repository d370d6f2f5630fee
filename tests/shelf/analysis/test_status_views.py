"""What the status page shows in states that a server is seldom in: made-up documents, in a browser."""

import json
import urllib.request
from itertools import pairwise

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from tests.flat_words import prepare
from tests.shelf.analysis.made_up_status import (
    STATES,
    crowded,
    dying,
    healthy,
    named,
    shown,
    status,
    straggling,
    stream,
    worrying,
)

from packhorse.analysis import dataset_facts, page_files
from packhorse.dataset import open_prepared

MOST_PIXELS = 6_000
ON_FIRST_SCREEN = """[...document.querySelectorAll('h2, .word, dt, dd, .matters li, progress, td, tbody th')]
  .filter((each) => { const { bottom, right, left } = each.getBoundingClientRect();
    return bottom <= innerHeight && right <= innerWidth && left >= 0; })
  .map((each) => each.value ? `progress ${each.value.toFixed(3)}` : each.textContent.replace(/\\s+/g, ' ').trim())"""


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("facts") / "chats"
    lengths = np.clip(np.random.default_rng(5).lognormal(3.0, 0.8, 400).astype(int), 1, 256)
    prepare(lengths=lengths, max_seq_len=256, output=folder, progress=False)
    return dataset_facts(open_prepared(folder))


def first_screen(browser, origin):
    """The texts that are whole on the first screen of a laptop."""
    browser.show(f"{origin}/status", width=1280, height=800)
    browser.until("document.querySelectorAll('section').length === 6")
    return browser.evaluate(ON_FIRST_SCREEN)


def rows(browser, section):
    return browser.evaluate(
        f"[...document.querySelectorAll('[aria-labelledby={section}] tbody tr')].map((row) => row.cells[0].textContent)"
    )


def enter(browser, section, words):
    browser.evaluate(
        f"{{ const field = document.querySelector('[aria-labelledby={section}] input');"
        f"field.value = {json.dumps(words)}; field.dispatchEvent(new Event('input', {{ bubbles: true }})); }}"
    )


@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
def test_what_is_made_up_fits_the_schema(state, facts):
    Draft202012Validator(json.loads(page_files()["status.schema.json"][1])).validate(state(facts))


def test_the_first_screen_of_a_healthy_server_answers_three_questions(facts, browser):
    with shown(lambda _: healthy(facts)) as origin:
        found = first_screen(browser, origin)
        assert [each for each in found if each.endswith("?")] == ["Does it serve?", "Who waits?", "What is wasted?"]
        assert "Serving" in found
        told = dict(pairwise(found))
        assert told["version"].startswith("0.1.0")
        assert told["up since"].endswith("26.1 h")
        assert told["processes"].startswith("1 ")
        assert told["refused calls"] == "2 DATASET_NOT_FOUND 2"
        assert told["certificates"] == "61.4 days left server.crt"
        assert told["unusable files"].startswith("0")
        assert told["datasets that wait"].startswith("0 of 3")
        # Two runs: how far the last rank is, what is left at its pace, and who it is.
        assert [each for each in found if each.startswith("progress")] == ["progress 0.680", "progress 0.133"]
        assert {"~ 56 min", "~ 13.0 h", "4 steps", "5"} <= set(found)
        # Padding, waiting, and both.
        assert found[(at := found.index("chats", found.index("What is wasted?"))) : at + 4] == [
            "chats",
            "1.9 %",
            "3.2 %",
            "5.0 %",
        ]
        assert browser.evaluate("document.querySelectorAll('.matters').length") == 0
    assert browser.troubles == []


def test_the_first_screen_of_a_dying_server_says_so_in_a_word_and_a_shape(facts, browser):
    with shown(lambda _: healthy(facts)) as origin:
        first_screen(browser, origin)
        sound = browser.evaluate("document.querySelector('.word path').getAttribute('d')")
    with shown(lambda _: dying(facts)) as origin:
        found = first_screen(browser, origin)
        assert "Not serving" in found
        assert "Certificate server.crt: expired 1.5 days ago" in found
        assert "Not served: books; the log says why" in found
        assert "Not in use as it is: corpus chats; the log says why" in found
        assert "The process is near its limit of memory" in found
        told = dict(pairwise(found))
        assert told["refused calls"].startswith("49,120 UNAUTHENTICATED 48,211")
        assert told["datasets that wait"] == "1 of 2 books"
        assert told["work that waits"].startswith("391 time slices")
        assert {"Who waits?", "What is wasted?", "4,210 steps", "22.5 %"} <= set(found)
        assert browser.evaluate("document.title") == "Not serving – gpu-login-1: Packhorse"
        assert browser.evaluate("document.querySelector('.word path').getAttribute('d')") != sound
    assert browser.troubles == []


def test_a_server_with_trouble_is_neither_healthy_nor_dying(facts, browser):
    with shown(lambda _: worrying(facts)) as origin:
        found = first_screen(browser, origin)
    assert "Serving, with trouble" in found
    assert {"No answer from 1 process", "Certificate server.crt: 2.6 days left"} <= set(found)


def test_a_server_that_answers_no_longer_is_not_shown_as_healthy(facts, browser):
    with shown(lambda _: healthy(facts)) as origin:
        first_screen(browser, origin)
    browser.until("document.querySelector('.word').textContent.trim() === 'No answer'")
    assert "gpu-login-1" in browser.evaluate("document.title")
    assert browser.evaluate("document.querySelectorAll('section').length") == 6


def test_lag_and_rates_of_the_last_minutes_are_drawn_from_what_the_page_saw(facts, browser):
    with shown(lambda _: straggling(facts)) as origin:
        first_screen(browser, origin)
        browser.until("document.querySelectorAll('svg.spark path').length === 3")
        labels = browser.evaluate("[...document.querySelectorAll('svg.spark')].map((each) => each.ariaLabel)")
    assert labels == ["tokens a second, lately", "lag, lately", "sent, lately"]


def test_a_rank_that_falls_further_behind_and_a_run_that_stands_still_are_named(facts, browser):
    looks = []

    def answer(_):
        looks.append(1)
        behind = 200 if len(looks) == 1 else 500
        falling = [stream(rank, behind=behind if rank == 5 else 0, furthest=60_000 + behind) for rank in range(8)]
        return status([named(facts, "chats")], [falling, [stream(0, seed=1, world_size=1)]])

    with shown(answer) as origin:
        first_screen(browser, origin)
        assert browser.evaluate("document.querySelectorAll('.grows').length") == 0
        browser.evaluate("{ const now = Date.now; Date.now = () => now() + 60_000; }")  # the next look is later
        browser.until("document.querySelectorAll('.grows').length === 1")
        found = browser.evaluate(ON_FIRST_SCREEN)
    assert "500 steps grows" in found
    assert "stands still" in found
    assert browser.evaluate(
        "document.querySelector('.cards').scrollWidth <= document.querySelector('.cards').clientWidth"
    )


def test_many_datasets_and_streams_are_counted_searched_and_sorted(facts, browser):
    with shown(lambda _: crowded(facts)) as origin:
        found = first_screen(browser, origin)
        assert {"Who waits?", "What is wasted?"} <= set(found)
        assert browser.evaluate("document.documentElement.scrollHeight") < MOST_PIXELS
        counts = browser.evaluate("[...document.querySelectorAll('.count')].map((each) => each.firstChild.textContent)")
        assert {"5 of 20", "7 of 200", "12 of 200", "12 of 1,000"} <= {each.strip() for each in counts}
        enter(browser, "datasets", "PYTHON-1")
        browser.until("document.querySelector('[aria-labelledby=datasets] .count').textContent.includes('found')")
        assert "12 of 20 found among 200" in browser.evaluate(
            "document.querySelector('[aria-labelledby=datasets] .count').textContent"
        )
        assert all(name.startswith("code/python-1") for name in rows(browser, "datasets"))
        browser.evaluate("document.querySelector('[aria-labelledby=datasets] .count button').click()")
        browser.until("document.querySelectorAll('[aria-labelledby=datasets] tbody tr').length === 20")
        enter(browser, "streams", "seed 3 epoch 0 rank 41 ")
        browser.until("document.querySelectorAll('[aria-labelledby=streams] tbody tr').length === 1")
        enter(browser, "datasets", "")
        sort = "document.querySelectorAll('[aria-labelledby=datasets] thead button')[6].click()"
        browser.evaluate(sort)
        browser.until("document.querySelector('[aria-labelledby=datasets] [aria-sort=descending]')")
        assert rows(browser, "datasets")[0] == "math-199"
        browser.evaluate(sort)
        browser.until("document.querySelector('[aria-labelledby=datasets] [aria-sort=ascending]')")
        assert rows(browser, "datasets")[0] == "chats-000"
    assert browser.troubles == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_nothing_is_cut_on_a_telephone_and_nobody_is_kept_out(facts, browser, axe, theme, tmp_path):
    for state in STATES:
        with shown(lambda _, state=state: state(facts)) as origin:
            for view, is_there in (
                ("", "document.querySelectorAll('section').length === 6"),
                ("#/dataset/chats", "document.querySelector('h2').textContent === 'chats'"),
            ):
                browser.show(f"{origin}/status{view}", width=390, theme=theme)
                browser.until(is_there)
                browser.picture(tmp_path / f"{state.__name__}{len(view)}.png")
                assert browser.fits(), (state, view)
                assert browser.evaluate("document.documentElement.scrollHeight") < MOST_PIXELS, (state, view)
                assert browser.barriers(axe) == [], (state, view)
    assert browser.troubles == []


def test_a_dataset_has_an_address_and_figures_are_asked_of_it_alone(facts, browser):
    asked = []

    def answer(looked):
        asked.append(list(looked))
        return crowded(facts)

    name = "code/python-002"
    with shown(answer) as origin:
        browser.show(f"{origin}/status#/dataset/code%2Fpython-002")
        assert browser.evaluate("document.querySelector('h2').textContent") == name
        assert browser.evaluate("document.querySelectorAll('progress').length") == 1
        browser.evaluate("location.hash = '#/dataset/nothing'")
        browser.until("document.querySelector('h2').textContent === 'nothing'")
        browser.evaluate("location.hash = '#/dataset/%'")
        browser.until("document.querySelector('h2').textContent === '%'")
    assert asked[0] == [name]
    assert browser.troubles == []


def test_the_policy_of_the_page_forbids_scripts_and_styles_in_it(facts):
    with shown(lambda _: healthy(facts)) as origin, urllib.request.urlopen(f"{origin}/status", timeout=10) as page:
        policy, content = page.headers["Content-Security-Policy"], page.read().decode()
    assert "default-src 'self'" in policy
    assert "unsafe" not in policy
    assert "<style" not in content
    assert content.count("<script") == content.count('<script type="module" src=') == 1
