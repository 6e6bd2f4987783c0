"""Which template and engine renders a conversation, in this process or a child, and that nothing renders for ever."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

import pytest

from extproc.tokens.conversation import Conversation, TemplateError, weigh
from extproc.tokens.source import TokenizerError
from extproc.tokens.templates import ChatTemplates, RenderLimits
from extproc.tokens.tokenizer import InvalidTextError

LOOP = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
# Only jinja2 knows the % operator of strings.
JINJA2_ONLY = "{% for m in messages %}{{ '[%s:%s]' % (m.role, m.content) }}{% endfor %}"
# Harmless in every probe, so that it is found out only when it is asked for.
ENDLESS = (
    "{% if 'burst' in messages[0].content %}" + "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3 + "{% endif %}"
)
GIGABYTES = (
    "{% set n = namespace(s=messages[0].content) %}{% if 'burst' in messages[0].content %}"
    "{% for i in range(34) %}{% set n.s = n.s ~ n.s %}{% endfor %}{% endif %}{{ n.s }}"
)
MANY_PIECES = "{{ messages[0].content }}{% if 'burst' in messages[0].content %}{% for i in range(99999) %}xxxxxxxxxx{% endfor %}{% endif %}"  # noqa: E501
QUADRATIC = (
    "{% for m in messages %}{% set n = namespace(x=0) %}{% for o in messages %}{% set n.x = n.x + 1 %}{% endfor %}"
    "{{ m.content }}{{ n.x }}{% endfor %}"
)
SHORT = RenderLimits(cpu_s=1.0, max_characters=500_000)


def said(*contents: Any, **options: Any) -> Conversation:
    return Conversation(messages=[{"role": "user", "content": content} for content in contents], **options)


async def rendered(templates: ChatTemplates, conversation: Conversation) -> str:
    rendering = templates.render(conversation)
    return rendering if isinstance(rendering, str) else await rendering


@pytest.fixture
async def load() -> AsyncIterator[Callable[..., Coroutine[Any, Any, ChatTemplates]]]:
    loaded: list[ChatTemplates] = []

    async def load(templates: str | Mapping[str, str], limits: RenderLimits = SHORT, **special: str) -> ChatTemplates:
        named = {"default": templates} if isinstance(templates, str) else templates
        loaded.append(await ChatTemplates.load(named, special, limits))
        return loaded[-1]

    yield load
    for templates in loaded:
        await templates.aclose()


Load = Callable[..., Coroutine[Any, Any, ChatTemplates]]


async def test_a_template_that_both_engines_render_alike_is_rendered_at_once(load: Load) -> None:
    templates = await load(LOOP + "{{ bos_token }}", bos_token="<s>")
    assert templates.engines == {"default": "minijinja"}
    assert templates.render(said("hi")) == "[user:hi]<s>"


async def test_a_template_that_only_jinja2_renders_rightly_is_rendered_in_a_child(load: Load) -> None:
    templates = await load(JINJA2_ONLY)
    assert templates.engines == {"default": "jinja2"}
    texts = await asyncio.gather(*(rendered(templates, said(str(at))) for at in range(20)))
    assert texts == [f"[user:{at}]" for at in range(20)]


async def test_the_template_is_chosen_by_what_the_conversation_brings(load: Load) -> None:
    names = ("default", "tool_use", "rag")
    templates = await load({name: name for name in names})
    tool = {"type": "function", "function": {"name": "f"}}
    assert [
        templates.render(said("x", tools=tools, documents=documents))
        for tools, documents in ((None, None), ([tool], None), (None, [{"text": "d"}]), ([tool], [{"text": "d"}]))
    ] == ["default", "tool_use", "rag", "tool_use"]
    assert templates.choose(tools=True, documents=False) == "tool_use"
    alone = await load("only {{ (tools or []) | length }}")
    assert alone.render(said("x", tools=[tool])) == "only 1"


async def test_a_conversation_that_takes_long_leaves_the_event_loop(load: Load) -> None:
    templates = await load(QUADRATIC)
    assert templates.engines == {"default": "minijinja"}
    assert templates.render(said("a", "b")) == "a2b2"
    rendering = templates.render(said(*["x"] * 600))
    assert isinstance(rendering, Awaitable)
    assert await rendering == "x600" * 600


async def test_a_quadratic_template_is_ended_by_its_deadline_and_others_go_on(load: Load) -> None:
    templates = await load(QUADRATIC, RenderLimits(cpu_s=0.5))
    rendering = templates.render(said(*["x"] * 20_000))
    assert not isinstance(rendering, str)
    with pytest.raises(TemplateError, match=r"took over 0\.5 s of CPU for this conversation"):
        await rendering
    again = templates.render(said(*["x"] * 600))
    assert not isinstance(again, str)
    assert await again == "x600" * 600


@pytest.mark.parametrize("suffix", ["", "{{ '%s' % 'only jinja2' }}"])
@pytest.mark.parametrize(
    ("text", "message"),
    [(ENDLESS, "of CPU"), (GIGABYTES, "too long a text|too much memory"), (MANY_PIECES, "too long a text")],
    ids=["endless", "gigabytes", "many pieces"],
)
async def test_nothing_that_a_template_does_lasts(load: Load, text: str, message: str, suffix: str) -> None:
    templates = await load(text + suffix)
    assert len(await rendered(templates, said("hi"))) < 100
    with pytest.raises(TemplateError, match=message):
        # Long enough to be rendered in a child also where minijinja would else do it here.
        await rendered(templates, said("burst " * 80_000 if text is GIGABYTES else "burst"))


@pytest.mark.parametrize(
    "text", ["{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3, GIGABYTES.replace("'burst' in", "")]
)
async def test_a_template_that_cannot_even_be_inspected_loads_and_refuses(load: Load, text: str) -> None:
    templates = await load(text)
    assert templates.engines == {"default": "jinja2"}
    with pytest.raises(TemplateError, match=r"of CPU|too much memory|too long a text"):
        await rendered(templates, said("hi"))


async def test_a_text_that_is_no_template_is_refused_at_load(load: Load) -> None:
    with pytest.raises(TokenizerError, match="not valid, line 1"):
        await load({"default": LOOP, "tool_use": "{% if %}"})


REFUSING = "{% if messages[0].content == 'no' %}{{ raise_exception('not that') }}{% endif %}" + LOOP
FEWER_IN_MINIJINJA = "{% if messages[0].content == 'no' %}{{ raise_exception('not that') }}{% endif %}{{ dict.fromkeys(['a']) if messages[0].content == 'x' }}"  # noqa: E501


async def test_what_the_template_refuses_is_told_in_its_words(load: Load) -> None:
    templates = await load(REFUSING)
    with pytest.raises(TemplateError, match=r"^not that$"):
        templates.render(said("no"))
    only = await load(REFUSING + "{{ '%s' % '' }}")
    with pytest.raises(TemplateError, match=r"^not that$"):
        await rendered(only, said("no"))


async def test_what_only_minijinja_cannot_do_is_done_by_jinja2(load: Load) -> None:
    templates = await load(FEWER_IN_MINIJINJA)
    assert templates.engines == {"default": "minijinja"}
    rendering = templates.render(said("x"))
    assert not isinstance(rendering, str)
    assert await rendering == "{'a': None}"


async def test_numbers_that_both_engines_write_differently_are_written_by_jinja2(load: Load) -> None:
    templates = await load("{{ value }}")
    assert templates.render(said("x", kwargs={"value": 0.5})) == "0.5"
    for value, text in ((1e22, "1e+22"), (1e-7, "1e-07"), ([{"deep": -1e16}], "[{'deep': -1e+16}]")):
        rendering = templates.render(said("x", kwargs={"value": value}))
        assert not isinstance(rendering, str)
        assert await rendering == text


@pytest.mark.parametrize("template", [LOOP, JINJA2_ONLY, "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"])
@pytest.mark.parametrize("times", [1, 400_000])
async def test_half_a_surrogate_pair_is_refused(load: Load, template: str, times: int) -> None:
    templates = await load(template, RenderLimits())
    with pytest.raises(InvalidTextError):
        await rendered(templates, said("x\ud800" * times))
    assert "\ufffd" in await rendered(templates, said("\ufffd"))


async def test_a_caller_that_leaves_does_not_cost_the_child(load: Load) -> None:
    templates = await load(JINJA2_ONLY)
    assert await rendered(templates, said("a")) == "[user:a]"
    (before,) = [process.pid for process in templates._processes._idle]
    leaving = asyncio.create_task(rendered(templates, said("b")))
    await asyncio.sleep(0)
    leaving.cancel()
    assert await rendered(templates, said("c")) == "[user:c]"
    assert before in [process.pid for process in templates._processes._idle]


async def test_a_child_that_is_killed_is_replaced(load: Load) -> None:
    templates = await load(JINJA2_ONLY)
    await rendered(templates, said("a"))
    (child,) = templates._processes._idle
    os.kill(child.pid, signal.SIGKILL)
    await child.wait()
    assert await rendered(templates, said("b")) == "[user:b]"


async def test_what_is_rendered_when_all_ends_fails(load: Load) -> None:
    templates = await load(ENDLESS, RenderLimits(cpu_s=60))
    rendering = asyncio.create_task(rendered(templates, said("burst")))
    await asyncio.sleep(0)
    assert templates._processes._runs
    await templates.aclose()
    with pytest.raises((TemplateError, TokenizerError, asyncio.CancelledError)):
        await rendering


ORPHAN = """
    import asyncio, os
    from extproc.tokens.conversation import Conversation
    from extproc.tokens.templates import ChatTemplates, RenderLimits

    async def main():
        templates = await ChatTemplates.load({"default": os.environ["TEMPLATE"]}, {}, RenderLimits(cpu_s=1.0))
        asyncio.ensure_future(templates.render(Conversation(messages=[{"role": "user", "content": "burst"}])))
        await asyncio.sleep(0.3)
        print(os.getpid(), flush=True)
        os.kill(os.getpid(), 9)

    asyncio.run(main())
"""


async def test_a_busy_child_ends_soon_after_its_parent(tmp_path: Any) -> None:
    script = tmp_path / "orphan.py"
    script.write_text(textwrap.dedent(ORPHAN))
    # The pipe of standard error ends with the last process that holds it.
    run = await asyncio.create_subprocess_exec(
        sys.executable,
        str(script),
        env={**os.environ, "TEMPLATE": ENDLESS},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    async with asyncio.timeout(60):
        await run.communicate()
    assert run.returncode == -signal.SIGKILL


def test_the_weight_of_a_value_is_about_its_length_as_json() -> None:
    assert weigh({"a": ["text", 1, None, True, 0.5], "b": {}}) == pytest.approx(50, abs=25)
