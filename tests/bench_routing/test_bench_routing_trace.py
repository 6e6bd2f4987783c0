"""The traffic that benchmarks of routing send, and its requests as bytes."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from benchmarks.gateway import model
from benchmarks.routing import prompts, trace
from benchmarks.routing.trace import Request, Scenario, TraceError

ROOT = Path(__file__).parent.parent.parent
LINES = [
    {"timestamp": 0, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 2]},
    {"timestamp": 30_000, "input_length": 1024, "output_length": 9, "hash_ids": [0, 1]},
    {"timestamp": 61_000, "input_length": 20, "output_length": 1, "hash_ids": [5]},
]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    return model.make(tmp_path_factory.mktemp("model")) / "tokenizer.json"


@pytest.fixture(scope="session")
def words(tokenizer):
    return prompts.words(tokenizer)


@pytest.mark.parametrize("name", ["conversation_trace.jsonl", "mooncake_conversation.jsonl.gz", "other.jsonl"])
def test_the_first_minutes_are_read_from_a_file_or_its_folder(tmp_path, name):
    text = "".join(json.dumps(line) + "\n" for line in LINES)
    file = tmp_path / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith("gz") else text.encode())
    requests = trace.read(file if name == "other.jsonl" else tmp_path, 1.0)
    assert requests == [
        Request(0.0, ((0, 512), (1, 512), (2, 76)), 7),
        Request(30.0, ((0, 512), (1, 512)), 9),
    ]
    assert [request.input_tokens for request in requests] == [1100, 1024]


def test_what_is_no_trace_is_said(tmp_path):
    with pytest.raises(TraceError, match="kvcache-ai/Mooncake"):
        trace.read(tmp_path, 1.0)
    (tmp_path / "conversation_trace.jsonl").write_text('{"timestamp": 0}\n')
    with pytest.raises(TraceError, match="no such trace"):
        trace.read(tmp_path, 1.0)


def test_without_a_trace_the_command_names_its_source_and_exits_with_1(tmp_path):
    command = [sys.executable, "-m", "benchmarks.routing", "--smg", "none", "--trace", str(tmp_path)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert "FAST25-release/traces/conversation_trace.jsonl" in ended.stderr


def traffic(count: int) -> list[Request]:
    return [Request(number, tuple((at, 512) for at in range(20 + number % 5)), 4) for number in range(count)]


def test_half_of_the_requests_have_the_hot_prefix_of_8000_tokens():
    requests = traffic(400)
    varied = trace.vary(requests, Scenario.HOT_PREFIX)
    hot = [request for request in varied if request.pieces[0][0] < 0]
    assert 0.4 < len(hot) / len(varied) < 0.6
    prefix = hot[0].pieces[:16]
    assert sum(tokens for _, tokens in prefix) == 8000
    assert all(request.pieces[:16] == prefix and len(request.pieces) > 16 for request in hot)
    assert varied == trace.vary(requests, Scenario.HOT_PREFIX)


def test_without_sharing_no_content_comes_twice_and_lengths_stay():
    requests = traffic(50)
    varied = trace.vary(requests, Scenario.NO_SHARING)
    contents = [content for request in varied for content, _ in request.pieces]
    assert len(set(contents)) == len(contents)
    assert [request.input_tokens for request in varied] == [request.input_tokens for request in requests]


def test_prompts_have_the_tokens_of_the_trace_and_share_what_it_shares(tmp_path, tokenizer, words):
    requests = [
        Request(0.0, ((0, 512), (1, 512), (2, 76)), 7),
        Request(1.0, ((0, 512), (1, 512), (2, 100), (3, 1)), 9),
        Request(2.0, ((4, 30),), 1),
    ]
    bodies = prompts.build(requests, words, tmp_path / "requests")
    loaded = Tokenizer.from_file(str(tokenizer))
    ids = []
    for number, request in enumerate(requests):
        head, _, body = bodies[number].partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head
        fields = json.loads(body)
        assert (fields["max_tokens"], fields["stream"]) == (request.output_tokens, True)
        ids.append(loaded.encode(fields["messages"][0]["content"], add_special_tokens=False).ids)
    bodies.close()
    assert [len(each) for each in ids] == [request.input_tokens for request in requests]
    assert ids[0] == ids[1][:1100]
    assert ids[2] != ids[0][:30]
