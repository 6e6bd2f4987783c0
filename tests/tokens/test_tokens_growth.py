"""No template takes more memory of the serving process than it is given: what may grow is rendered in a child."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import pytest
from real_templates import real_templates

from extproc.tokens.conversation import Conversation, TemplateError
from extproc.tokens.template import ChatTemplate, FastEngineError
from extproc.tokens.template_growth import find_growth
from extproc.tokens.templates import ChatTemplates, RenderLimits

MOST_BYTES = 128 << 20
ENDLESS_LIST = "([0] * 100000000)"
GROWING = {
    "a list is repeated": f"{{{{ {ENDLESS_LIST} | length }}}}",
    "a list is written out": f"{{{{ {ENDLESS_LIST} }}}}",
    "a list is written as JSON": f"{{{{ {ENDLESS_LIST} | tojson | length }}}}",
    "a list reaches our functions": f"{{{{ raise_exception({ENDLESS_LIST}) }}}}",
    "a list reaches our tests": f"{{{{ {ENDLESS_LIST} is iterable }}}}",
    "a list is added to itself": "{% set n = namespace(l=[0]) %}{% for i in range(28) %}{% set n.l = n.l + n.l %}{% endfor %}{{ n.l | tojson | length }}",  # noqa: E501
    "a list holds itself twice": "{% set n = namespace(l=[]) %}{% for i in range(28) %}{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l | tojson | length }}",  # noqa: E501
    "an object holds itself twice": "{% set n = namespace(l='x') %}{% for i in range(28) %}{% set n.l = {'a': n.l, 'b': n.l} %}{% endfor %}{{ n.l | tojson | length }}",  # noqa: E501
    "a macro calls itself with more": "{% macro f(x, n) %}{% if n %}{{ f([x, x], n - 1) }}{% else %}{{ x | tojson | length }}{% endif %}{% endmacro %}{{ f([1], 28) }}",  # noqa: E501
    "a loop's variable is doubled": "{% for a in [[0]] %}{% for i in range(28) %}{% set a = a + a %}{% endfor %}{% endfor %}",  # noqa: E501
    "a number is written wide": "{{ '{:>1000000000}'.format('x') | length }}",
    "a filter writes wide": "{{ '%1000000000s' | format('x') | length }}",
    "JSON is written wide": "{{ {'a': [1]} | tojson(indent=1000000000) | length }}",
    "JSON is written as wide as computed": "{{ {'a': [1]} | tojson(indent=messages | length * 1000000000) | length }}",
    "a filter is applied by another one": "{{ ['a'] | map('indent', 1000000000) | list | length }}",
    "a date is written long": "{{ strftime_now('%Y' * 100000000) | length }}",
    "a namespace holds itself": "{% set n = namespace(a=1) %}{% set n.a = n %}{{ n.a | length }}",
    "namespaces hold each other": "{% set n = namespace(a=1) %}{% for i in range(90000) %}{% set n.a = namespace(b=n.a) %}{% endfor %}",  # noqa: E501
}
TEXTS_THAT_GROW = {
    "a text is doubled": "{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = n.s ~ n.s %}{% endfor %}{{ n.s | length }}",  # noqa: E501
    "a sum of texts is doubled": "{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s | length }}",  # noqa: E501
    "a text is repeated": "{{ ('x' * 4000000000) | length }}",
    "a text is replaced by longer ones": "{{ ('a' * 100000) | replace('a', 'b' * 100000) | length }}",
    "texts are joined by a long one": "{{ range(90000) | join('x' * 100000) | length }}",
    "a macro writes for ever": "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('x') }}",
    "much is written": "{% for i in range(90000) %}{{ 'x' * 100000 }}{% endfor %}",
}
HARMLESS = (
    "{{ bos_token + messages[0].content }}",
    "{% set n = namespace(system='') %}{% for m in messages %}{% set n.system = n.system + m.content %}{% endfor %}",
    "{{ '-' * 80 }}{{ 2 * 3 + 1 }}",
    "{% if role in ['user', 'system'] %}{% endif %}",
    "{% for key, value in tools[0] | items %}{{ key + '=' + value | tojson(indent=4) }}{% endfor %}",
    "{% set n = namespace(l=[]) %}{% for m in messages %}{% set n.l = n.l + [m.role ~ 'x'] %}{% endfor %}",
    "{% set n = namespace(last=none) %}{% for m in messages %}{% set n.last = m %}{% endfor %}",
    "{% macro say(m) %}{{ m.content | trim }}{% endmacro %}{{ say(messages[0]) + '\n' }}",
    "{% set loop_messages = messages[1:] %}{{ loop_messages[0].content.split('</think>')[-1].strip() }}",
)


def _said(text: str) -> Conversation:
    return Conversation(messages=[{"role": "user", "content": text}])


def _only_on_burst(text: str) -> str:
    """Harmless in every conversation by which templates are inspected."""
    return "{{ messages[0].content }}{% if 'burst' in messages[0].content %}" + text + "{% endif %}"


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")  # see proc(5)


def _peak_bytes() -> int:
    """The most memory that this process has held since the peak was forgotten."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = (line.split()[1] for line in lines if line.startswith("VmHWM:"))
    return int(peak) << 10


@pytest.fixture
async def loaded(request: pytest.FixtureRequest) -> AsyncIterator[ChatTemplates]:
    text = _only_on_burst({**GROWING, **TEXTS_THAT_GROW}[request.param])
    templates = await ChatTemplates.load({"default": text}, {}, RenderLimits(cpu_s=0.5, max_characters=1_000_000))
    yield templates
    await templates.aclose()


@pytest.mark.parametrize("loaded", [*GROWING, *TEXTS_THAT_GROW], indirect=True)
async def test_whatever_a_template_makes_this_process_stays_small(loaded: ChatTemplates) -> None:
    _forget_peak()
    before = _peak_bytes()
    rendering = loaded.render(_said("burst"))
    try:
        text = rendering if isinstance(rendering, str) else await rendering
    except TemplateError:
        pass
    else:
        assert len(text) < 1_000_000
    assert _peak_bytes() - before < MOST_BYTES


@pytest.mark.parametrize("what", GROWING)
def test_what_makes_lists_out_of_its_own_is_not_rendered_here(what: str) -> None:
    assert find_growth(_only_on_burst(GROWING[what])) is not None


@pytest.mark.parametrize("text", [*HARMLESS, *TEXTS_THAT_GROW.values()])
def test_what_is_given_and_texts_may_be_put_together(text: str) -> None:
    assert find_growth(text) is None


async def test_a_template_that_may_grow_is_still_rendered_but_in_a_child() -> None:
    templates = await ChatTemplates.load({"default": "{{ messages[0].content }}{{ [0] * 3 }}"}, {})
    try:
        assert templates.engines == {"default": "minijinja"}
        rendering = templates.render(_said("hi"))
        assert isinstance(rendering, Awaitable)
        assert await rendering == "hi[0, 0, 0]"
    finally:
        await templates.aclose()


def test_nearly_all_real_templates_are_rendered_here() -> None:
    broken = {name for name, text in real_templates().items() if find_growth(text) is not None}
    assert broken == {"lfm2", "lfm2_v2", "muse_glimmer"}


@pytest.mark.parametrize(
    "text", ["{{ messages | tojson }}", "{{ 1 if messages is iterable }}", "{{ strftime_now('') }}"]
)
def test_what_the_steps_do_not_count_ends_with_the_time(text: str) -> None:
    # Less than no time: it is over before the first call.
    late = ChatTemplate(text, {}, "minijinja", max_s=-1.0)
    with pytest.raises(FastEngineError, match="took too long"):
        late.render(_said("x"))
    assert ChatTemplate(text, {}, "minijinja", max_s=60.0).render(_said("x")) is not None
