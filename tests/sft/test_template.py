"""Templates: what they may use, what the sandbox keeps from them, and generation blocks wherever they stand."""

import json

import pytest
from transformers import PreTrainedTokenizerFast

from packhorse.sft.template import TemplateRefusal, compile_template

MESSAGES = [{"role": "user", "content": "Q é <b>"}, {"role": "assistant", "content": " A "}]


def test_what_transformers_gives_a_template_is_there(fast: PreTrainedTokenizerFast) -> None:
    template = (
        "{% set ns = namespace(n=0, self=1) %}\n"
        "    {% for m in messages %}\n"
        "{% if m.role == 'system' %}{% continue %}{% endif %}\n"
        "{% set ns.n = ns.n + m.content | length %}{{ m | tojson }}{{ m | tojson(indent=2) }}\n"
        "{% endfor %}\n"
        "{{ ns.n }}{{ dict(a=1) | tojson }}{{ dict.fromkeys(['a']) }}"
        "{{ documents }}{{ tools }}{{ bos_token }}{{ missing }}"
    )
    theirs = fast.apply_chat_template(MESSAGES, chat_template=template, tokenize=False)
    assert compile_template(template).render(MESSAGES, {"bos_token": "<s>"}) == theirs
    assert json.dumps(MESSAGES[0], ensure_ascii=False) in theirs


def test_all_renderings_of_a_template_happen_at_one_moment() -> None:
    template = compile_template("{{ strftime_now('%H:%M:%S.%f') }}")
    assert template.render(MESSAGES, {}) == template.render(MESSAGES, {}, add_generation_prompt=True)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ dict.__class__.__base__.__subclasses__() }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ lipsum.__globals__['os'].popen('true').read() }}",
        "{% include '/etc/hosts' %}",
        "{{ range(10000000) | length }}",
        "{{ messages[9].content.missing }}",
    ],
)
def test_a_template_does_not_leave_its_sandbox(template: str) -> None:
    with pytest.raises(TemplateRefusal):
        compile_template(template).render(MESSAGES, {})


@pytest.mark.parametrize(
    "template",
    [
        "{% macro say(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}Q: {{ say(messages[1]) }}.",
        "{% set text %}Q: {% generation %}{{ messages[1].content }}{% endgeneration %}.{% endset %}{{ text }}",
        "Q: {%- generation -%}  {{ ' ' }}{% endgeneration %}{% generation %}{{- 'A ' }}{%- endgeneration -%}  .",
    ],
)
def test_generation_blocks_are_found_in_macros_and_captured_text(template: str) -> None:
    text, blocks = compile_template(template).render_generation(MESSAGES, {})
    assert [text[begin:end] for begin, end in blocks] == [" A "]
    assert text.startswith("Q:")
    assert text.endswith(".")


@pytest.mark.parametrize(
    "template",
    [
        "{% generation %}a{% generation %}b{% endgeneration %}{% endgeneration %}",
        "{% set text %}{% generation %} a {% endgeneration %}{% endset %}{{ text | trim }}",
    ],
)
def test_generation_blocks_that_do_not_reach_the_text_are_refused(template: str) -> None:
    with pytest.raises(TemplateRefusal, match="write straight into the text"):
        compile_template(template).render_generation(MESSAGES, {})


def test_what_a_generation_block_sets_ends_with_it(fast: PreTrainedTokenizerFast) -> None:
    template = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    text, blocks = compile_template(template).render_generation(MESSAGES, {})
    assert (text, blocks) == ("21", [(0, 1)])
    assert fast.apply_chat_template(MESSAGES, chat_template=template, tokenize=False) == text
