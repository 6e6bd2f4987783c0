"""vLLM's protocol: what is sent field by field, and what its servicer's answers mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import vllm_engine_pb2 as pb

from extproc.engines.base import Decoder, Ended, ProtocolError, Tokens
from extproc.engines.vllm import GENERATE, VllmEngine
from extproc.ir import ErrorKind, FinishReason, OutputFormat, Sampling
from extproc.transport.framing import Deframer, frame

ENGINE = VllmEngine()


def sent(sampling: Sampling, *, stream: bool = False, prompt: list[int] | None = None) -> pb.GenerateRequest:
    request = ENGINE.generate("id-1", prompt or [5, 6, 7], sampling, stream=stream)
    assert request.path == GENERATE == "/vllm.grpc.engine.VllmEngine/Generate"
    (message,) = Deframer(1 << 20).feed(request.body)
    return pb.GenerateRequest.FromString(message)


@pytest.mark.parametrize(
    ("output", "field", "value"),
    [
        (OutputFormat(kind="json_schema", schema={"type": "object", "ü": 1}), "json_schema", '{"type":"object","ü":1}'),
        (OutputFormat(kind="json_object"), "json_object", True),
        (OutputFormat(kind="regex", text="a+"), "regex", "a+"),
        (OutputFormat(kind="grammar", text="root ::= 'a'"), "grammar", "root ::= 'a'"),
        (OutputFormat(kind="choice", choices=("a", "b")), "choice", pb.ChoiceConstraint(choices=["a", "b"])),
        (OutputFormat(kind="structural_tag", schema={"tags": []}), "structural_tag", '{"tags":[]}'),
    ],
)
def test_the_form_of_the_answer_binds_the_engine(output: OutputFormat, field: str, value: object) -> None:
    request = ENGINE.generate("id-1", [5], Sampling(), stream=False, output=output)
    (message,) = Deframer(1 << 20).feed(request.body)
    params = pb.GenerateRequest.FromString(message).sampling_params
    assert params.WhichOneof("constraint") == field
    assert getattr(params, field) == value


def chunk(ids: list[int], index: int = 0, cached: int = 16, **fields: object) -> bytes:
    return frame(
        pb.GenerateResponse(
            chunk=pb.GenerateStreamChunk(
                token_ids=ids,
                index=index,
                prompt_tokens=20,
                completion_tokens=len(ids),
                cached_tokens=cached,
                **fields,
            )
        ).SerializeToString()
    )


def complete(ids: list[int], index: int = 0, reason: str = "stop", **fields: object) -> bytes:
    return frame(
        pb.GenerateResponse(
            complete=pb.GenerateComplete(
                output_ids=ids,
                index=index,
                finish_reason=reason,
                prompt_tokens=20,
                completion_tokens=len(ids),
                cached_tokens=16,
                **fields,
            )
        ).SerializeToString()
    )


def test_fields_without_presence_are_always_sent() -> None:
    """Zero would mean something: greedy-like sampling, an error, or no answer at all."""
    params = sent(Sampling()).sampling_params
    assert (params.top_p, params.repetition_penalty, params.n) == (1.0, 1.0, 1)
    assert params.skip_special_tokens
    assert params.spaces_between_special_tokens


def test_what_the_client_left_out_stays_the_engines_own_default() -> None:
    params = sent(Sampling()).sampling_params
    for name in ("temperature", "max_tokens", "seed", "logprobs", "prompt_logprobs", "truncate_prompt_tokens"):
        assert not params.HasField(name), name


def test_every_field_of_the_request_reaches_the_engine() -> None:
    sampling = Sampling(
        temperature=0.0,
        top_p=0.5,
        top_k=40,
        min_p=0.25,
        frequency_penalty=-1.5,
        presence_penalty=1.5,
        repetition_penalty=1.25,
        seed=42,
        n=3,
        max_tokens=100,
        min_tokens=2,
        stop=("a", "b"),
        stop_token_ids=(9, 8),
        include_stop=True,
        ignore_eos=True,
        skip_special_tokens=False,
        logit_bias={5: -100.0, 6: 0.5},
        top_logprobs=4,
    )
    message = sent(sampling, stream=True)
    params = message.sampling_params
    assert message.request_id == "id-1"
    assert list(message.tokenized.input_ids) == [5, 6, 7]
    assert message.tokenized.original_text == ""
    assert message.stream
    assert params.HasField("temperature")
    assert params.temperature == 0.0
    assert (params.top_p, params.top_k, params.min_p) == (0.5, 40, 0.25)
    assert (params.frequency_penalty, params.presence_penalty, params.repetition_penalty) == (-1.5, 1.5, 1.25)
    assert (params.seed, params.n, params.max_tokens, params.min_tokens, params.logprobs) == (42, 3, 100, 2, 5)
    assert (list(params.stop), list(params.stop_token_ids)) == (["a", "b"], [9, 8])
    assert params.include_stop_str_in_output
    assert params.ignore_eos
    assert not params.skip_special_tokens
    assert dict(params.logit_bias) == {5: -100.0, 6: 0.5}


@pytest.mark.parametrize(("asked", "wire"), [(-1, 0), (0, 0), (7, 7)])
def test_top_k_is_off_as_zero(asked: int, wire: int) -> None:
    assert sent(Sampling(top_k=asked)).sampling_params.top_k == wire


@pytest.mark.parametrize(("wanted", "asked"), [(0, 1), (1, 2), (19, 20), (20, 20)])
def test_one_alternative_more_is_asked_for_as_the_sampled_token_counts_among_them(wanted: int, asked: int) -> None:
    assert sent(Sampling(top_logprobs=wanted)).sampling_params.logprobs == asked


def test_alternatives_come_from_the_likeliest_on_wherever_the_sampled_token_is() -> None:
    top = pb.TopLogProbs(token_ids=[5, 9, 7], values=[-3.0, -0.5, -1.0])
    scores = pb.OutputLogProbs(token_ids=[5], token_logprobs=[-3.0], top_logprobs=[top])
    (event,) = ENGINE.decoder(1).feed(chunk([5], output_logprobs=scores))
    assert isinstance(event, Tokens)
    assert event.scores is not None
    assert event.scores[0].top == [(9, -0.5), (7, -1.0), (5, -3.0)]


def test_seeds_beyond_the_wires_32_bits_stay_different() -> None:
    seeds = [0, -1, 2**31 - 1, -(2**31), 2**40 + 1, 2**40 + 2, 2**62 + 3]
    folded = [sent(Sampling(seed=seed)).sampling_params.seed for seed in seeds]
    assert folded[:4] == seeds[:4]
    assert len(set(folded)) == len(seeds)


def test_a_streams_chunks_are_counted_and_its_closing_message_is_not() -> None:
    decoder = ENGINE.decoder(1)
    events = decoder.feed(chunk([1, 2]) + chunk([3]) + complete([3]))
    assert [list(e.ids) for e in events if isinstance(e, Tokens)] == [[1, 2], [3]]
    assert [(e.choice, e.reason) for e in events if isinstance(e, Ended)] == [(0, FinishReason.STOP)]
    assert (decoder.prompt_tokens, decoder.completion_tokens, decoder.cached_tokens) == (20, 3, 16)
    assert decoder.finished
    assert decoder.end({"grpc-status": "0"}) is None


def test_an_answer_without_chunks_is_its_closing_message() -> None:
    decoder = ENGINE.decoder(1)
    events = decoder.feed(complete([1, 2, 3], reason="length"))
    assert [list(e.ids) for e in events if isinstance(e, Tokens)] == [[1, 2, 3]]
    assert [e.reason for e in events if isinstance(e, Ended)] == [FinishReason.LENGTH]
    assert decoder.completion_tokens == 3


def test_choices_are_told_apart_and_their_tokens_add_up() -> None:
    decoder = ENGINE.decoder(2)
    events = decoder.feed(chunk([1], 1) + chunk([2], 0) + complete([2], 0) + chunk([3], 1) + complete([3], 1, "length"))
    assert [(e.choice, list(e.ids)) for e in events if isinstance(e, Tokens)] == [(1, [1]), (0, [2]), (1, [3])]
    assert [(e.choice, e.reason) for e in events if isinstance(e, Ended)] == [
        (0, FinishReason.STOP),
        (1, FinishReason.LENGTH),
    ]
    assert decoder.completion_tokens == 3
    assert decoder.prompt_tokens == 20


def test_the_stop_that_matched_is_told() -> None:
    decoder = ENGINE.decoder(2)
    events = decoder.feed(complete([1], 0, matched_stop_str="END") + complete([1], 1, matched_token_id=7))
    ends = [e for e in events if isinstance(e, Ended)]
    assert (ends[0].reason, ends[0].stop_string) == (FinishReason.STOP_SEQUENCE, "END")
    assert (ends[1].reason, ends[1].stop_token_id) == (FinishReason.STOP, 7)


@pytest.mark.parametrize("reason", ["abort", "error", "", "something new"])
def test_an_end_that_is_none_is_an_abort(reason: str) -> None:
    (_, end) = ENGINE.decoder(1).feed(complete([1], reason=reason))
    assert isinstance(end, Ended)
    assert end.reason is FinishReason.ABORT


def test_log_probabilities_come_with_their_alternatives() -> None:
    scores = pb.OutputLogProbs(
        token_ids=[5, 6],
        token_logprobs=[-0.5, -1.0],
        top_logprobs=[pb.TopLogProbs(token_ids=[5, 9], values=[-0.5, -2.0])],
    )
    (event,) = ENGINE.decoder(1).feed(chunk([5, 6], output_logprobs=scores))
    assert isinstance(event, Tokens)
    assert event.scores is not None
    assert [(s.token_id, s.logprob, s.top) for s in event.scores] == [
        (5, -0.5, [(5, -0.5), (9, -2.0)]),
        (6, -1.0, []),
    ]


@given(data=st.data())
def test_frames_cut_anywhere_give_the_same_events(data: st.DataObject) -> None:
    wire = chunk([1, 2]) + chunk([3], 1) + chunk(list(range(300))) + complete([3], 1, "length") + complete([9])
    whole = ENGINE.decoder(2)
    expected = whole.feed(wire)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=12)))
    decoder = ENGINE.decoder(2)
    events = []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        events += decoder.feed(wire[start:end])

    def plain(event: Tokens | Ended) -> tuple[object, ...]:
        return (event.choice, list(event.ids)) if isinstance(event, Tokens) else (event.choice, event.reason)

    assert [plain(e) for e in events] == [plain(e) for e in expected]
    assert decoder.completion_tokens == whole.completion_tokens
    assert decoder.end({"grpc-status": "0"}) is None


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x02\x00\x00\x00\x01x",
        frame(b"\xff\xff"),
        frame(b""),
        b"\x00\xff\xff\xff\xff",
        b"HTTP/1.1 502 Bad Gateway\r\n",
    ],
)
def test_what_is_not_the_protocol_is_said_to_be_so(garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        ENGINE.decoder(1).feed(garbage)


@pytest.mark.parametrize("wire", [b"", chunk([1]), chunk([1]) + complete([1])[:-1]])
def test_a_stream_that_breaks_off_is_no_success_whatever_its_status_says(wire: bytes) -> None:
    decoder = ENGINE.decoder(1)
    decoder.feed(wire)
    error = decoder.end({"grpc-status": "0"})
    assert error is not None
    assert error.kind is ErrorKind.BAD_GATEWAY


@pytest.mark.parametrize(
    ("status", "kind", "retried"),
    [
        ("3", ErrorKind.INVALID_REQUEST, False),
        ("8", ErrorKind.RATE_LIMIT, True),
        ("14", ErrorKind.UNAVAILABLE, True),
        ("4", ErrorKind.TIMEOUT, False),
        ("13", ErrorKind.SERVER, False),
        ("1", ErrorKind.BAD_GATEWAY, False),
        ("12", ErrorKind.UNIMPLEMENTED, False),
        ("99", ErrorKind.SERVER, False),
        ("x", ErrorKind.SERVER, False),
    ],
)
def test_a_status_becomes_the_error_that_clients_retry_rightly(status: str, kind: ErrorKind, retried: bool) -> None:
    error = ENGINE.decoder(1).end({"grpc-status": status, "grpc-message": "caf%C3%A9"})
    assert error is not None
    assert error.kind is kind
    assert error.message == "café"
    assert (error.retry_after_s is not None) == retried


def test_an_over_long_prompt_is_told_as_openai_tells_it() -> None:
    text = "The decoder prompt (length 3000) is longer than the maximum model length of 2048."
    error = ENGINE.decoder(1).end({"grpc-status": "3", "grpc-message": text})
    assert error is not None
    assert (error.kind, error.code) == (ErrorKind.CONTEXT_LENGTH, "context_length_exceeded")


def test_trailers_without_a_status_are_a_broken_stream() -> None:
    error = ENGINE.decoder(1).end({})
    assert error is not None
    assert error.kind is ErrorKind.BAD_GATEWAY


CHUNKS = st.lists(
    st.tuples(
        st.lists(st.integers(0, (1 << 21) - 1), max_size=45),
        st.integers(0, 2),  # choice
        st.sampled_from([0, 1, 300]),  # cached tokens
        st.booleans(),  # log probabilities
    ),
    max_size=30,
)


@given(CHUNKS)
def test_chunks_like_the_one_before_are_read_as_protobuf_reads_them(
    chunks: list[tuple[list[int], int, int, bool]],
) -> None:
    decoder = ENGINE.decoder(3)
    tokens = 0
    for ids, choice, cached, scored in chunks:
        fields = {"output_logprobs": pb.OutputLogProbs(token_ids=ids, token_logprobs=[-1.0] * len(ids))}
        (event,) = decoder.feed(chunk(ids, choice, cached, **(fields if scored else {})))
        assert isinstance(event, Tokens)
        assert (list(event.ids), event.choice, event.scores is not None) == (ids, choice, scored)
        tokens += len(ids)
        assert (decoder.completion_tokens, decoder.cached_tokens) == (tokens, cached)


@given(st.binary(max_size=40), st.integers(0, 40))
def test_what_only_looks_like_the_chunk_before_is_read_as_protobuf_reads_it(noise: bytes, at: int) -> None:
    first = chunk([70_000])
    message = first[5:]
    second = frame(message[:at] + noise + message[at + len(noise) :])
    familiar, fresh = ENGINE.decoder(1), ENGINE.decoder(1)
    familiar.feed(first)

    def read(decoder: Decoder) -> list[tuple[int, list[int]]] | str:
        try:
            return [(event.choice, list(event.ids)) for event in decoder.feed(second) if isinstance(event, Tokens)]
        except ProtocolError:
            return "refused"

    assert read(familiar) == read(fresh)
