"""Templates: what they may use, what the sandbox keeps from them, and generation blocks wherever they stand."""

import json

import pytest
from transformers import PreTrainedTokenizerFast

from packhorse.sft.messages import TrainedTurns, check_conversation
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


def generated(template: str) -> tuple[str, list[str]]:
    """The text, and each stretch of it that a `{% generation %}` block wrote."""
    chat = check_conversation(MESSAGES, TrainedTurns())
    traced = compile_template(template).trace(chat, {})
    assert traced.text == compile_template(template).render(chat.messages, {})
    stretches, begin = [""], 0
    for run in traced.runs:
        if not run.is_generated:
            stretches.append("")
        else:
            stretches[-1] += traced.text[begin : begin + run.length]
        begin += run.length
    return traced.text, [stretch for stretch in stretches if stretch]


@pytest.mark.parametrize(
    "template",
    [
        "{% macro say(m) %}{% generation %}{{ m.content }}{% endgeneration %}{% endmacro %}Q: {{ say(messages[1]) }}.",
        "{% set text %}Q: {% generation %}{{ messages[1].content }}{% endgeneration %}.{% endset %}{{ text }}",
        "Q: {%- generation -%}  {{ ' ' }}{% endgeneration %}{% generation %}{{- 'A ' }}{%- endgeneration -%}  .",
        "{% set text %}Q:{% generation %} A {% endgeneration %}  {% endset %}{{ (text | trim) ~ ' ' }}.",
        "Q:{% generation %} {% generation %}A{% endgeneration %} {% endgeneration %}.",
    ],
)
def test_generation_blocks_are_found_in_macros_captured_text_and_text_that_changes(template: str) -> None:
    text, [stretch] = generated(template)
    assert stretch.strip() == "A"
    assert text.startswith("Q:")
    assert text.endswith(".")


def test_what_a_generation_block_sets_ends_with_it(fast: PreTrainedTokenizerFast) -> None:
    template = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    text, stretches = generated(template)
    assert (text, stretches) == ("21", ["2"])
    assert fast.apply_chat_template(MESSAGES, chat_template=template, tokenize=False) == text
