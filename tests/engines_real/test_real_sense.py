"""Trained models answer what they know: prompts, sampling and text are what the model was made for."""

from __future__ import annotations

import pytest
from asking import BOTH, ask
from e2e.stack import StartStack

pytestmark = pytest.mark.engines


@pytest.mark.parametrize(("question", "words"), [("What is the capital of France?", "Paris"), ("What is 2+2?", "4")])
@BOTH
async def test_a_trained_model_talks_sense(start_gateway: StartStack, question: str, words: str, stream: bool) -> None:
    async with start_gateway() as stack:
        messages = [{"role": "user", "content": question}]
        answer = await ask(stack, stream=stream, messages=messages, max_tokens=40)
        assert words in answer.text
