"""Templates render as their authors tested them: in the environment that transformers sets up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokens_vocabularies import deepseek_folder

from extproc.tokens.conversation import Conversation, TemplateError
from extproc.tokens.source import TokenizerError
from extproc.tokens.template import ChatTemplate, Engine
from extproc.tokens.template_files import find_special_tokens, find_template
from extproc.tokens.template_inspection import inspect_template

USER = {"role": "user", "content": "hi"}
LOOP = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"

RENDERED: list[tuple[str, str, dict[str, Any], str]] = [
    ("blocks take their line with them", "a\n  {% if true %}\nb\n  {% endif %}\nc", {}, "a\nb\nc"),
    ("the last line break is dropped", "a\n", {}, "a"),
    ("nothing is escaped for HTML", "{{ messages[0].content }}", {"messages": [{**USER, "content": "<&'\">"}]},
     "<&'\">"),
    ("break and continue", "{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}{% if i == 3 %}"
     "{% break %}{% endif %}{{ i }}{% endfor %}", {}, "02"),
    ("generation renders its body", "{% generation %}\nx{{ messages[0].content }}{% endgeneration %}", {}, "xhi"),
    ("generation has a scope of its own", "{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}",
     {}, "1"),
    ("tojson is plain JSON", "{{ messages[0].content | tojson }}", {"messages": [{**USER, "content": {"a": "<é>'"}}]},
     '{"a": "<é>\'"}'),
    ("tojson takes its arguments", "{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=true, indent=1, sort_keys=true) }}", {},
     '{\n "a": 1,\n "b": "\\u00e9"\n}'),
    ("tojson takes separators", "{{ [1, 2] | tojson(separators=(',', ':')) }}", {}, "[1,2]"),
    ("a namespace keeps its values over a loop", "{% set n = namespace(x=0) %}{% for i in range(3) %}"
     "{% set n.x = n.x + i %}{% endfor %}{{ n.x }}", {}, "3"),
    ("dict is callable", "{{ dict(a=1) }}{{ dict.fromkeys(['b']) }}", {}, "{'a': 1}{'b': None}"),
    ("what is undefined renders as nothing", "[{{ nothing }}]", {}, "[]"),
    ("tools and documents are none when absent", "{{ tools is none }}{{ documents is none }}", {}, "TrueTrue"),
    ("tools are given", "{{ tools[0].name }}", {"tools": [{"name": "f"}]}, "f"),
    ("special tokens are variables", "{{ bos_token }}{{ pad_token }}", {}, "<s>"),
    ("a value of the caller wins", "{{ bos_token }}{{ thinking }}", {"kwargs": {"bos_token": "<b>", "thinking": True}},
     "<b>True"),
    ("the answer's start is asked for", "{{ add_generation_prompt }}", {}, "True"),
    ("or not", "{{ add_generation_prompt }}", {"add_generation_prompt": False}, "False"),
    ("keys without a value are absent", "{{ messages[0].content is defined }}{{ 'name' in messages[0] }}",
     {"messages": [{"role": "user", "content": None, "name": None}]}, "FalseFalse"),
    ("reasoning has both of its names", "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}",
     {"messages": [{**USER, "reasoning": "r"}]}, "rr"),
    ("the first name of reasoning wins", "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}",
     {"messages": [{**USER, "reasoning": "a", "thinking": "b"}]}, "bb"),
    ("methods of strings and dicts", "{{ 'a-b'.split('-')[-1] }}{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}"
     "{% endfor %}{{ messages[::-1][0].content }}", {}, "bx1hi"),
    ("a lone surrogate passes through", "{{ messages[0].content }}", {"messages": [{**USER, "content": "\ud800"}]},
     "\ud800"),
]  # fmt: skip


def render(template: ChatTemplate, messages: list[dict[str, Any]], **options: Any) -> str:
    return template.render(Conversation(messages=messages, **options))


# dict.fromkeys, and text that is not Unicode: such a template or conversation is rendered by jinja2.
JINJA2_ALONE = {"dict is callable", "a lone surrogate passes through"}
BOTH_ENGINES = [
    pytest.param(engine, *row[1:], id=f"{row[0]}-{engine}")
    for row in RENDERED
    for engine in ("jinja2", "minijinja")
    if engine == "jinja2" or row[0] not in JINJA2_ALONE
]


@pytest.mark.parametrize(("engine", "text", "given", "expected"), BOTH_ENGINES)
def test_rendering(engine: Engine, text: str, given: dict[str, Any], expected: str) -> None:
    template = ChatTemplate(text, {"bos_token": "<s>"}, engine)
    assert render(template, **{"messages": [USER], **given}) == expected


def test_the_date_is_formatted_as_asked() -> None:
    year = render(ChatTemplate("{{ strftime_now('%Y-%%') }}", {}), [USER])
    assert year[:2] == "20"
    assert year.endswith("-%")


def test_the_messages_of_the_caller_stay_as_they_are() -> None:
    messages = [{"role": "user", "content": "hi", "reasoning": "r", "name": None}]
    before = json.dumps(messages)
    render(ChatTemplate(LOOP, {}), messages, add_generation_prompt=False, continue_final_message=True)
    assert json.dumps(messages) == before


REFUSED: list[tuple[str, str, str]] = [
    ("its own refusal", "{{ raise_exception('roles must alternate') }}", "^roles must alternate$"),
    ("an attribute of nothing", "{{ messages[7].content.x }}", "undefined|no element"),
    ("a wrong type", "{{ messages[0].content + 1 }}", "TypeError"),
    ("a division by zero", "{{ 1 / 0 }}", "ZeroDivisionError"),
    ("a private attribute", "{{ ''.__class__.__mro__ }}", "unsafe"),
    ("a change of what it is given", "{{ messages.append(1) }}", "unsafe|not safely callable"),
    ("a private name in a namespace", "{% set n = namespace(_x=1) %}", "private name"),
    ("a private name set in a namespace", "{% set n = namespace() %}{% set n._x = 1 %}", "private name"),
    ("a private namespace key by dict", "{% set n = namespace({'_x': 1}) %}", "private name"),
    ("endless recursion", "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "RecursionError"),
    ("a huge range", "{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    ("a file", "{% include '/etc/passwd' %}", "no loader"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "text", "message"), REFUSED, ids=[row[0] for row in REFUSED])
def test_what_a_template_may_not_or_cannot_do_is_a_template_error(what: str, text: str, message: str) -> None:
    with pytest.raises(TemplateError, match=message):
        render(ChatTemplate(text, {}), [USER])


def test_an_empty_conversation_is_refused() -> None:
    with pytest.raises(TemplateError, match="empty"):
        render(ChatTemplate(LOOP, {}), [])


@pytest.mark.parametrize("text", ["{% if %}", "{{ x", "{% unknown %}", "{% for m in messages %}{% generation %}"
                                  "{% break %}{% endgeneration %}{% endfor %}"])  # fmt: skip
def test_a_text_that_is_no_template_is_refused_at_load(text: str) -> None:
    with pytest.raises(TokenizerError, match="chat template"):
        ChatTemplate(text, {})


CONTINUED: list[tuple[str, Any, str]] = [
    ("{% for m in messages %}[{{ m.content }}]{% endfor %}<end>", "so far ", "[hi][so far "),
    ("{% for m in messages %}[{{ m.content | trim }}]{% endfor %}<end>", "so far ", "[hi][so far"),
    ("{% for m in messages %}[{{ m.content }}]{% endfor %}", "", "[hi]["),
    ("{% for m in messages %}[{% for p in m.content %}{{ p.text }}{% endfor %}]{% endfor %}",
     [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, {"type": "image"}], "[][ab"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "content", "expected"), CONTINUED)
def test_a_continued_message_ends_where_its_text_ends(text: str, content: Any, expected: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    rendered = render(ChatTemplate(text, {}), messages, add_generation_prompt=False, continue_final_message=True)
    assert rendered == expected


@given(content=st.text())
def test_a_continued_message_keeps_every_character_where_the_template_does(content: str) -> None:
    rendered = render(
        CONTINUING,
        [{"role": "assistant", "content": content}],
        add_generation_prompt=False,
        continue_final_message=True,
    )
    assert rendered == "<|assistant|>" + content


CONTINUING = ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>\n{% endfor %}", {})


def test_a_continued_message_that_cannot_be_is_refused() -> None:
    both = {"add_generation_prompt": True, "continue_final_message": True}
    with pytest.raises(TemplateError, match="exclude each other"):
        render(CONTINUING, [USER], **both)
    alone = {"add_generation_prompt": False, "continue_final_message": True}
    with pytest.raises(TemplateError, match="no text to continue"):
        render(CONTINUING, [{"role": "assistant", "content": None}], **alone)
    with pytest.raises(TemplateError, match="drops the final message"):
        render(ChatTemplate("{{ messages[0].role }}", {}), [USER], **alone)


PARTS_ONLY = "{% for m in messages %}{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endfor %}"
BOTH = (
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("text", "takes_text", "takes_parts"),
    [
        (LOOP, True, False),
        (PARTS_ONLY, False, True),
        (BOTH, True, True),
        ("{{ raise_exception('no') }}", True, False),
        ("{% for m in messages %}{{ m.content | tojson }}{% endfor %}", True, False),
    ],
)
def test_the_form_of_content_is_what_the_template_handles(text: str, takes_text: bool, takes_parts: bool) -> None:
    forms = inspect_template(text, {}).forms
    assert (forms.takes_text, forms.takes_parts) == (takes_text, takes_parts)


def _folder(tmp_path: Path, **files: Any) -> Path:
    for name, content in files.items():
        path = tmp_path / name.replace("__", ".").replace("_SUB_", "/")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return tmp_path


def test_templates_are_found_in_the_order_of_transformers(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="no chat template in"):
        find_template(tmp_path)
    folder = _folder(tmp_path, tokenizer_config__json={"chat_template": "config"})
    assert find_template(folder) == {"default": "config"}
    _folder(tmp_path, chat_template__json={"chat_template": "json"})
    assert find_template(folder) == {"default": "json"}
    _folder(tmp_path, chat_template__jinja="jinja", additional_chat_templates_SUB_rag__jinja="rag")
    assert find_template(folder) == {"default": "jinja", "rag": "rag"}
    override = _folder(tmp_path, mine__jinja="mine") / "mine.jinja"
    assert find_template(folder, override) == {"default": "mine"}
    assert find_template(None, override) == {"default": "mine"}


def test_named_templates_of_the_configuration_are_found(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]
    folder = _folder(tmp_path, tokenizer_config__json={"chat_template": named})
    assert find_template(folder) == {"default": "a", "tool_use": "b"}


@pytest.mark.parametrize("value", [3, ["a"], [{"name": "default"}]])
def test_a_template_of_another_form_is_a_clear_error(tmp_path: Path, value: Any) -> None:
    with pytest.raises(TokenizerError, match=r"chat_template in .*tokenizer_config\.json"):
        find_template(_folder(tmp_path, tokenizer_config__json={"chat_template": value}))


def test_a_missing_template_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match=r"no such chat template file: .*gone\.jinja"):
        find_template(tmp_path, tmp_path / "gone.jinja")
    with pytest.raises(TokenizerError, match="name a chat template file"):
        find_template(None)


def test_special_tokens_are_read_in_every_form(tmp_path: Path) -> None:
    folder = _folder(
        tmp_path,
        special_tokens_map__json={"bos_token": "<old>", "unk_token": "<u>"},
        tokenizer_config__json={
            "bos_token": {"content": "<s>", "lstrip": False},
            "eos_token": "</s>",
            "pad_token": None,
            "add_bos_token": True,
            "additional_special_tokens": ["<a>", {"content": "<b>"}],
            "extra_special_tokens": {"image_token": "<img>"},
        },
    )
    assert find_special_tokens(folder) == {
        "bos_token": "<s>",
        "unk_token": "<u>",
        "eos_token": "</s>",
        "additional_special_tokens": ["<a>", "<b>"],
        "image_token": "<img>",
    }
    assert find_special_tokens(None) == {}
    assert find_special_tokens(deepseek_folder())["bos_token"] == "<｜begin▁of▁sentence｜>"
