"""Generate, as the real servicer answers it."""

from __future__ import annotations

import pytest
from simulator_client import Client, chat

from extproc.simulator.spec import Answers

SCRIPT = {"answers": Answers.SCRIPT}


async def test_echoes_the_last_user_turn(start):
    client = await start()
    answer = await client.generate(chat("What is a river? 世界 🙂"))
    assert client.text(answer.ids()) == "What is a river? 世界 🙂"


async def test_takes_text_instead_of_ids(start):
    client = await start()
    request = client.request([1])
    request.text = chat("plain")
    answer = await client.read(client.stub.Generate(request))
    assert client.text(answer.ids()) == "plain"


async def test_streams_one_token_a_message_and_counts_deltas(start):
    client = await start()
    answer = await client.generate(chat("one two three"))
    assert [len(chunk.token_ids) for chunk in answer.chunks] == [1] * len(answer.chunks)
    assert [chunk.completion_tokens for chunk in answer.chunks] == [1] * len(answer.chunks)
    prompt_tokens = len(client.artifacts.encode(chat("one two three")))
    assert {message.prompt_tokens for message in [*answer.chunks, *answer.completes]} == {prompt_tokens}


async def test_closing_message_of_a_stream_repeats_the_last_chunk(start):
    client = await start(tokens_per_chunk=4)
    for words in range(1, 12):
        answer = await client.generate(chat("word " * words))
        last = answer.chunks[-1]
        complete = answer.complete()
        assert list(complete.output_ids) == list(last.token_ids)
        assert complete.completion_tokens == last.completion_tokens == len(last.token_ids)


async def test_first_chunk_has_one_token_and_the_others_the_interval(start):
    client = await start(**SCRIPT, texts=("a b c d e f g h i j",), tokens_per_chunk=4)
    answer = await client.generate("x", ignore_eos=True, max_tokens=12)
    assert [len(chunk.token_ids) for chunk in answer.chunks] == [1, 4, 4, 3]
    assert [chunk.completion_tokens for chunk in answer.chunks] == [1, 4, 4, 3]


async def test_without_streaming_one_message_has_everything(start):
    client = await start()
    streamed = await client.generate(chat("one two three"))
    whole = await client.generate(chat("one two three"), stream=False)
    assert not whole.chunks
    assert list(whole.complete().output_ids) == streamed.ids()
    assert whole.complete().completion_tokens == len(streamed.ids())


async def test_eos_is_among_the_ids_and_counted_and_matches_nothing(start):
    client = await start()
    answer = await client.generate(chat("hi"), stream=False)
    complete = answer.complete()
    assert complete.output_ids[-1] == client.artifacts.eos_ids[0]
    assert complete.completion_tokens == len(complete.output_ids)
    assert complete.finish_reason == "stop"
    assert complete.WhichOneof("matched_stop") is None


async def test_eos_given_as_stop_token_still_matches_nothing(start):
    client = await start()
    eos = client.artifacts.eos_ids[0]
    complete = (await client.generate(chat("hi"), stop_token_ids=[eos])).complete()
    assert complete.finish_reason == "stop"
    assert complete.WhichOneof("matched_stop") is None


async def test_several_choices_interleave_and_each_closes_once(start):
    client = await start(**SCRIPT, texts=("a b c d", "e f"))
    answer = await client.generate("x", n=2)
    assert [chunk.index for chunk in answer.chunks[:4]] == [0, 1, 0, 1]
    assert sorted(complete.index for complete in answer.completes) == [0, 1]
    assert [client.text(answer.ids(index)) for index in (0, 1)] == ["a b c d", "e f"]


async def test_several_choices_without_streaming(start):
    client = await start(**SCRIPT, texts=("a b c d", "e f"))
    answer = await client.generate("x", n=2, stream=False)
    assert [client.text(complete.output_ids) for complete in answer.completes] == ["a b c d", "e f"]


async def test_max_tokens_ends_with_length(start):
    client = await start()
    complete = (await client.generate(chat("one two three four five"), max_tokens=3, stream=False)).complete()
    assert complete.completion_tokens == 3
    assert complete.finish_reason == "length"


async def test_answer_is_silently_capped_at_the_context(start):
    client = await start(context_tokens=64)
    prompt = [100] * 60
    complete = (await client.generate(prompt, max_tokens=1000, ignore_eos=True, stream=False)).complete()
    assert (complete.completion_tokens, complete.finish_reason) == (4, "length")


async def test_without_max_tokens_it_runs_up_to_the_context(start):
    client = await start(context_tokens=64)
    complete = (await client.generate([100] * 40, ignore_eos=True, stream=False)).complete()
    assert (complete.completion_tokens, complete.finish_reason) == (24, "length")


async def test_min_tokens_holds_eos_back(start):
    client = await start()
    complete = (await client.generate(chat("hi"), min_tokens=30, max_tokens=100, stream=False)).complete()
    assert complete.completion_tokens == 31
    assert complete.output_ids[-1] == client.artifacts.eos_ids[0]
    assert client.artifacts.eos_ids[0] not in complete.output_ids[:-1]


@pytest.mark.parametrize("stream", [True, False])
async def test_stop_string_over_token_borders_ends_with_its_tokens(start, stream):
    client = await start()
    answer = await client.generate(chat("The capital of France is Paris."), stop=["xyz", "nce is"], stream=stream)
    complete = answer.complete()
    ids = answer.ids() if stream else list(complete.output_ids)
    assert "nce is" in client.text(ids)
    assert "nce is" not in client.text(ids[:-1])
    assert complete.finish_reason == "stop"
    assert complete.matched_stop_str == "nce is"


async def test_stop_string_within_min_tokens_does_not_stop(start):
    client = await start(**SCRIPT, texts=("a b c d a b e",))
    complete = (await client.generate("x", stop=["b"], min_tokens=4, stream=False)).complete()
    assert client.text(complete.output_ids) == "a b c d a b"


async def test_stop_token_is_reported(start):
    client = await start(**SCRIPT, texts=("alpha beta gamma",))
    ids = client.artifacts.encode("alpha beta gamma")
    complete = (await client.generate("x", stop_token_ids=[ids[3]], stream=False)).complete()
    assert list(complete.output_ids) == ids[:4]
    assert (complete.finish_reason, complete.matched_token_id) == ("stop", ids[3])


async def test_certain_bias_produces_the_token_and_its_negative_never(start):
    client = await start(**SCRIPT, texts=("a b a b",))
    always = (await client.generate("x", logit_bias={77: 100.0}, max_tokens=3, stream=False)).complete()
    assert list(always.output_ids) == [77, 77, 77]
    (token,) = client.artifacts.encode(" b")
    never = (await client.generate("x", logit_bias={token: -100.0}, stream=False)).complete()
    assert client.text(never.output_ids) == "a a"


async def test_same_seed_gives_the_same_answer_and_another_one_another(start):
    client = await start(answers=Answers.NATURAL, answer_tokens=40)
    first, again, other = [
        list((await client.generate("x", seed=seed, stream=False)).complete().output_ids) for seed in (5, 5, 6)
    ]
    assert first == again != other
    assert len(first) == 41


async def test_natural_text_has_characters_split_over_tokens(start):
    client = await start(answers=Answers.NATURAL, answer_tokens=2000)
    answer = await client.generate("x", seed=1)
    pieces = [client.text([token]) for token in answer.ids()]
    whole = client.text(answer.ids())
    assert any("\ufffd" in piece for piece in pieces)
    assert any(ord(character) > 0xFFFF for character in whole)


async def test_scripted_texts_come_in_turn(start):
    client = await start(**SCRIPT, texts=("first", "second"))
    texts = [client.text((await client.generate("x")).ids()) for _ in range(3)]
    assert texts == ["first", "second", "first"]


async def test_special_tokens_of_a_script_become_their_ids(start):
    client = await start(**SCRIPT, texts=("a<|im_start|>b",))
    assert client.artifacts.encode("<|im_start|>")[0] in (await client.generate("x")).ids()


async def test_logprobs_come_with_every_token(start):
    client = await start(**SCRIPT, texts=("a b c d",))
    answer = await client.generate("x", logprobs=3)
    for message, ids in [(chunk, chunk.token_ids) for chunk in answer.chunks] + [
        (complete, complete.output_ids) for complete in answer.completes
    ]:
        scores = message.output_logprobs
        assert list(scores.token_ids) == list(ids)
        assert len(scores.token_logprobs) == len(ids)
        assert all(value < 0 for value in scores.token_logprobs)
        assert [len(top.token_ids) for top in scores.top_logprobs] == [3] * len(ids)
        assert [top.token_ids[0] for top in scores.top_logprobs] == list(ids)
        assert all(list(top.values) == sorted(top.values, reverse=True) for top in scores.top_logprobs)


async def test_no_alternatives_are_listed_for_a_count_of_0(start):
    client = await start()
    scores = (await client.generate("x", logprobs=0)).completes[0].output_logprobs
    assert scores.token_ids
    assert not scores.top_logprobs


async def test_no_logprobs_unless_asked(start):
    client = await start()
    answer = await client.generate(chat("hi"))
    assert not any(message.HasField("output_logprobs") for message in [*answer.chunks, *answer.completes])


async def test_prompt_logprobs_come_once_and_the_first_is_empty(start):
    client = await start()
    prompt = client.artifacts.encode(chat("hi"))
    answer = await client.generate(prompt, prompt_logprobs=2)
    assert [chunk.HasField("input_logprobs") for chunk in answer.chunks] == [True] + [False] * (len(answer.chunks) - 1)
    scores = answer.chunks[0].input_logprobs
    assert list(scores.token_ids) == prompt
    assert [score.HasField("value") for score in scores.token_logprobs] == [False] + [True] * (len(prompt) - 1)


async def test_cached_tokens_are_whole_blocks_and_never_the_last_token(start):
    client = await start(block_tokens=16)
    prompt = list(range(100, 148))
    first = await client.generate(prompt)
    again = await client.generate(prompt)
    longer = await client.generate([*prompt, 7])
    assert {message.cached_tokens for message in [*first.chunks, *first.completes]} == {0}
    assert {message.cached_tokens for message in [*again.chunks, *again.completes]} == {32}
    assert longer.complete().cached_tokens == 48


async def test_generated_tokens_are_reused_but_for_the_last(start):
    client = await start(block_tokens=16)
    prompt = list(range(100, 116))
    answer = (await client.generate(prompt, ignore_eos=True, max_tokens=17, stream=False)).complete()
    conversation = [*prompt, *answer.output_ids, 5, 6]
    assert (await client.generate(conversation)).complete().cached_tokens == 32
    exact = (await client.generate(list(range(200, 216)), ignore_eos=True, max_tokens=16, stream=False)).complete()
    # Its last token was never fed back, so the second block is not full.
    follow_up = await client.generate([*range(200, 216), *exact.output_ids, 5, 6])
    assert follow_up.complete().cached_tokens == 16


async def test_without_a_cache_nothing_is_reused(start):
    client = await start(kv_cache_tokens=0)
    prompt = list(range(100, 200))
    assert [(await client.generate(prompt)).complete().cached_tokens for _ in range(2)] == [0, 0]


async def test_requests_are_kept_for_tests(start):
    client: Client = await start(recorded_requests=2)
    for name in ("a", "b", "c"):
        await client.generate(chat("hi"), request_id=name, top_k=4)
    assert [request.request_id for request in client.engine.requests] == ["b", "c"]
    assert client.engine.requests[-1].sampling_params.top_k == 4


async def test_timed_and_instant_engines_give_the_same_messages(start):
    instant = await start(tokens_per_chunk=3)
    timed = await start(tokens_per_chunk=3, prefill_tokens_per_s=100_000.0, decode_step_s=0.0005)
    prompt = chat("one two three four five six")
    assert await instant.generate(prompt, n=2, logprobs=1) == await timed.generate(prompt, n=2, logprobs=1)
