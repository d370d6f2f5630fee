"""What messages say: parts as a template knows them or as text, and nothing that says nothing."""

from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from packhorse.sft import ChatEncoder

PLAIN = "{% for m in messages %}{{ m.role }} {{ m.content }} end {% endfor %}"
STRICT = "{% for m in messages %}{{ m.role + ' ' + m.content }} end {% endfor %}"
PARTS = (
    "{% for m in messages %}{{ m.role }} {% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
    " end {% endfor %}"
)
HELLO = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
IMAGE = [{"type": "image", "image": "x.png"}, {"type": "text", "text": "hi"}]


def rendered(template: str, *contents: Any) -> str:
    tokenizer = Tokenizer(models.WordLevel({"?": 0, "end": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return ChatEncoder(tokenizer, chat_template=template).render(messages).text


@pytest.mark.parametrize("template", [PLAIN, STRICT, PARTS])
def test_parts_of_text_are_text_in_every_template(template: str) -> None:
    assert rendered(template, HELLO, "a") == rendered(template, "hello", "a")
    assert rendered(template, "q", HELLO) == rendered(template, "q", "hello")


def test_other_parts_are_left_to_a_template_that_knows_them() -> None:
    assert rendered(PARTS, IMAGE, "a") == "user <image>hi end assistant a end "
    for template in (PLAIN, STRICT):
        with pytest.raises(ValueError, match="message 0 holds a part of type 'image'"):
            rendered(template, IMAGE, "a")


def test_a_mapping_is_left_to_a_template_that_knows_it() -> None:
    template = "{% for m in messages %}{{ m.content if m.content is string else m.content | tojson }} end {% endfor %}"
    assert rendered(template, {"a": 1}, "b") == '{"a": 1} end b end '
    with pytest.raises(ValueError, match="message 0 has a content that is a mapping"):
        rendered(PLAIN, {"a": 1}, "b")


@pytest.mark.parametrize("content", [None, 5, True, ["x"], [{"text": "x"}], [{"type": "text"}]])
def test_what_says_nothing_is_refused(content: Any) -> None:
    with pytest.raises(ValueError, match=r"message 1, of the assistant, has (no|a) (content|part)"):
        rendered(PLAIN, "q", content)


def test_an_answer_without_content_that_calls_or_thinks_is_one() -> None:
    tokenizer = Tokenizer(models.WordLevel({"?": 0}, unk_token="?"))
    template = "{% for m in messages %}{{ m.role }} {{ m.tool_calls }} {{ m.thinking }} end {% endfor %}"
    for said in ({"tool_calls": [{"name": "f"}]}, {"thinking": "hm"}):
        answer = {"role": "assistant", "content": None, **said}
        encoder = ChatEncoder(tokenizer, chat_template="{% generation %}" + template + "{% endgeneration %}")
        assert encoder.render([{"role": "user", "content": "q"}, answer]).text
