"""MLX's protocol: what is sent field by field, what is refused for it, and what its servicer's answers mean."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from smg_grpc_proto.generated import mlx_engine_pb2 as pb

from extproc.engines.base import Ended, ProtocolError, Tokens
from extproc.engines.mlx import GENERATE, MlxEngine
from extproc.ir import ErrorKind, FinishReason, OutputFormat, RequestError, Sampling
from extproc.transport.framing import Deframer, frame

ENGINE = MlxEngine()


def sent(sampling: Sampling, *, stream: bool = False) -> pb.GenerateRequest:
    request = ENGINE.generate("id-1", [5, 6, 7], sampling, stream=stream)
    assert request.path == GENERATE == "/mlx.grpc.engine.MlxEngine/Generate"
    (message,) = Deframer(1 << 20).feed(request.body)
    return pb.GenerateRequest.FromString(message)


def chunk(ids: list[int], so_far: int, **fields: object) -> bytes:
    message = pb.GenerateStreamChunk(token_ids=ids, prompt_tokens=20, completion_tokens=so_far, **fields)
    return frame(pb.GenerateResponse(chunk=message).SerializeToString())


def complete(ids: list[int], total: int, reason: str = "stop", **fields: object) -> bytes:
    message = pb.GenerateComplete(
        output_ids=ids, finish_reason=reason, prompt_tokens=20, completion_tokens=total, **fields
    )
    return frame(pb.GenerateResponse(complete=message).SerializeToString())


def test_a_form_of_the_answer_is_refused_by_what_asked_for_it() -> None:
    output = OutputFormat(kind="json_object", path="tool_choice")
    with pytest.raises(RequestError) as caught:
        ENGINE.generate("id-1", [5], Sampling(), stream=False, output=output)
    assert (caught.value.info.kind, caught.value.info.param) == (ErrorKind.UNSUPPORTED, "tool_choice")


STREAM = chunk([1], 1) + chunk([2], 2) + chunk([3], 3) + complete([], 3)


def test_what_the_client_left_out_stays_the_engines_own_default() -> None:
    params = sent(Sampling()).sampling_params
    assert params.top_p == 1.0
    for name in ("temperature", "max_tokens", "seed", "logprobs"):
        assert not params.HasField(name), name
    assert (params.top_k, params.min_p) == (0, 0.0)


def test_a_penalty_that_changes_nothing_keeps_other_requests_biases_in_step() -> None:
    assert sent(Sampling()).sampling_params.repetition_penalty == 1.0


def test_every_field_that_it_has_reaches_the_engine() -> None:
    message = sent(
        Sampling(
            temperature=0.0,
            top_p=0.5,
            top_k=40,
            min_p=0.25,
            frequency_penalty=-1.5,
            presence_penalty=1.5,
            repetition_penalty=1.25,
            seed=42,
            max_tokens=100,
            stop_token_ids=(9, 8),
            ignore_eos=True,
            logit_bias={5: -100.0, 6: 0.5},
            top_logprobs=4,
        ),
        stream=True,
    )
    params = message.sampling_params
    assert (message.request_id, list(message.tokenized.input_ids), message.stream) == ("id-1", [5, 6, 7], True)
    assert params.HasField("temperature")
    assert params.temperature == 0.0
    assert (params.top_p, params.top_k, params.min_p) == (0.5, 40, 0.25)
    assert (params.frequency_penalty, params.presence_penalty, params.repetition_penalty) == (-1.5, 1.5, 1.25)
    assert (params.seed, params.max_tokens, params.logprobs) == (42, 100, 5)
    assert (list(params.stop_token_ids), params.ignore_eos) == ([9, 8], True)
    assert dict(params.logit_bias) == {5: -100.0, 6: 0.5}


def test_stop_strings_are_the_gateways_own_work_on_a_stream_that_it_can_end() -> None:
    assert sent(Sampling(stop=("a",))) == sent(Sampling(), stream=True)
    assert not sent(Sampling()).stream


@pytest.mark.parametrize(("seed", "wire"), [(0, 0), (2**31 - 1, 2**31 - 1), (-5, 2**31 - 5), (2**40 + 1, 1)])
def test_seeds_are_never_negative_which_would_be_an_error_inside_the_engine(seed: int, wire: int) -> None:
    assert sent(Sampling(seed=seed)).sampling_params.seed == wire


@pytest.mark.parametrize(("field", "sampling"), [("n", Sampling(n=2)), ("min_tokens", Sampling(min_tokens=1))])
def test_what_it_lacks_is_refused_by_field(field: str, sampling: Sampling) -> None:
    with pytest.raises(RequestError) as raised:
        ENGINE.generate("id-1", [5], sampling, stream=False)
    assert (raised.value.info.kind, raised.value.info.param) == (ErrorKind.UNSUPPORTED, field)


def test_a_streams_counts_are_totals_and_its_closing_message_has_no_ids() -> None:
    decoder = ENGINE.decoder(1)
    events = decoder.feed(STREAM)
    assert [list(e.ids) for e in events if isinstance(e, Tokens)] == [[1], [2], [3]]
    assert [(e.choice, e.reason) for e in events if isinstance(e, Ended)] == [(0, FinishReason.STOP)]
    assert (decoder.prompt_tokens, decoder.completion_tokens, decoder.cached_tokens) == (20, 3, 0)
    assert decoder.finished
    assert decoder.end({"grpc-status": "0"}) is None


def test_an_answer_without_chunks_is_its_closing_message() -> None:
    decoder = ENGINE.decoder(1)
    events = decoder.feed(complete([1, 2, 3], 3, "length"))
    assert [list(e.ids) for e in events if isinstance(e, Tokens)] == [[1, 2, 3]]
    assert [e.reason for e in events if isinstance(e, Ended)] == [FinishReason.LENGTH]
    assert decoder.completion_tokens == 3


def test_the_stop_token_is_told() -> None:
    (_, end) = ENGINE.decoder(1).feed(complete([1, 2], 2, matched_stop_token_id=2))
    assert isinstance(end, Ended)
    assert (end.reason, end.stop_string, end.stop_token_id) == (FinishReason.STOP, None, 2)


def test_log_probabilities_come_with_their_alternatives() -> None:
    scores = pb.OutputLogProbs(
        token_ids=[5], token_logprobs=[-0.5], top_logprobs=[pb.TopLogProbs(token_ids=[5, 9], values=[-0.5, -2.0])]
    )
    for wire in (chunk([5], 1, output_logprobs=scores), complete([5], 1, output_logprobs=scores)):
        event = ENGINE.decoder(1).feed(wire)[0]
        assert isinstance(event, Tokens)
        assert event.scores is not None
        assert [(s.token_id, s.logprob, s.top) for s in event.scores] == [(5, -0.5, [(5, -0.5), (9, -2.0)])]


@pytest.mark.parametrize("reason", ["abort", "", "something new"])
def test_an_end_that_is_none_is_an_abort(reason: str) -> None:
    (_, end) = ENGINE.decoder(1).feed(complete([1], 1, reason))
    assert isinstance(end, Ended)
    assert end.reason is FinishReason.ABORT


@pytest.mark.parametrize("wire", [b"", chunk([1], 1), STREAM[:-1]])
def test_an_aborted_stream_ends_well_by_its_status_and_is_no_success(wire: bytes) -> None:
    decoder = ENGINE.decoder(1)
    decoder.feed(wire)
    error = decoder.end({"grpc-status": "0"})
    assert error is not None
    assert (error.kind, error.code) == (ErrorKind.BAD_GATEWAY, "stream_truncated")


def test_a_status_becomes_the_error_that_it_is() -> None:
    error = ENGINE.decoder(1).end({"grpc-status": "3", "grpc-message": "caf%C3%A9"})
    assert error is not None
    assert (error.kind, error.message) == (ErrorKind.INVALID_REQUEST, "café")


@given(data=st.data())
def test_frames_cut_anywhere_give_the_same_events(data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(STREAM)), max_size=12)))
    decoder = ENGINE.decoder(1)
    events = []
    for start, end in zip([0, *cuts], [*cuts, len(STREAM)], strict=True):
        events += decoder.feed(STREAM[start:end])
    assert [list(e.ids) if isinstance(e, Tokens) else e.reason for e in events] == [[1], [2], [3], FinishReason.STOP]
    assert decoder.completion_tokens == 3


@pytest.mark.parametrize("garbage", [b"\x02\x00\x00\x00\x01x", frame(b"\xff\xff"), frame(b""), b"HTTP/1.1 502 Bad\r\n"])
def test_what_is_not_the_protocol_is_said_to_be_so(garbage: bytes) -> None:
    with pytest.raises(ProtocolError):
        ENGINE.decoder(1).feed(garbage)
