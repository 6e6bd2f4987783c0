"""What chat templates of real models tell about how their answers are read."""

from __future__ import annotations

from typing import get_args

import pytest
from real_templates import real_templates

from extproc.config.schema import Pool
from extproc.output.parsers import REASONING_PARSERS, TOOL_PARSERS, choose_parsers

TEMPLATES = real_templates()


@pytest.mark.parametrize(
    ("name", "tool", "reasoning"),
    [
        ("qwen2_5", "hermes", None),
        ("qwen3", "hermes", "think"),
        ("qwen3_instruct_2507", "hermes", None),
        ("qwen3_5_think", "qwen3_coder", "think"),
        ("nemotron_3_nano", "qwen3_coder", "think"),
        ("glm4moe", "glm", "think"),
        ("gptoss", "harmony", "harmony"),
        ("llama3_1", "llama3_json", None),
        ("llama3_2", "llama3_json", None),
        ("llama3", None, None),
        ("deepseek_r1_distill", None, "think"),
        ("gemma4_v5", None, "gemma"),
        ("phi3", None, None),
    ],
)
def test_a_models_template_tells_its_parsers(name: str, tool: str | None, reasoning: str | None) -> None:
    parsers = choose_parsers(TEMPLATES[name])
    assert (parsers.tool, parsers.reasoning) == (tool, reasoning)


def test_a_name_or_none_overrules_the_template() -> None:
    parsers = choose_parsers(TEMPLATES["qwen3"], "mistral", "none")
    assert (parsers.tool, parsers.reasoning) == ("mistral", None)


def test_the_configuration_names_every_parser() -> None:
    fields = Pool.model_fields
    assert set(get_args(fields["tool_parser"].annotation)) == {"auto", "none", *TOOL_PARSERS}
    assert set(get_args(fields["reasoning_parser"].annotation)) == {"auto", "none", *REASONING_PARSERS}
