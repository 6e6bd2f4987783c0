"""What a simulated engine costs and holds unless its specification says otherwise.

One place, so that no figure of a benchmark depends on a number hidden elsewhere. Nothing that routes may read it: a
policy that knew these numbers would prove nothing (a test checks what is imported).
"""

PREFILL_TOKENS_PER_S = 8_000.0
"""Prompt tokens computed per second: the order of an 8B model on one data-centre GPU."""

PREFILL_CHUNK_TOKENS = 2_048
"""Tokens of one step, those of decoding sequences included (vLLM's max_num_batched_tokens)."""

DECODE_STEP_S = 0.02
"""Least time of one step, in which every running sequence gains one token: what reading all weights takes."""

DECODE_SEQUENCE_S = 0.0001
"""What each decoding sequence adds to a step: reading its part of the KV cache."""

BLOCK_TOKENS = 16
"""Tokens of one KV-cache block: vLLM's default on GPUs (128 on CPUs)."""

KV_CACHE_TOKENS = 262_144
"""Tokens that the KV cache holds."""

MAX_RUNNING_SEQUENCES = 256
"""Sequences in a batch at once (vLLM's max_num_seqs); further requests wait."""

MAX_SPEED_UP = 8.0
"""Model time runs at most so much faster than wall time: beyond, timers that are a millisecond late are whole steps."""

CONTEXT_TOKENS = 4_096
"""Context where neither the specification nor config.json names one."""

ANSWER_TOKENS = 128
"""Length of generated natural text."""

MAX_LOGPROBS = 20
"""Most alternatives per token (vLLM's max_logprobs)."""

RECORDED_REQUESTS = 64
"""Requests kept for tests to look at."""

TOKENIZER_CHUNK_BYTES = 64 * 1024
"""Piece of the tokenizer's archive in one message of GetTokenizer."""

RATE_WINDOW_S = 1.0
"""Generated tokens per second are counted over at least this long."""

ABRUPT_END_DELAY_S = 0.02
"""Between the last message and a simulated reset or death, so that the client has read the message."""

RESTART_S = 0.2
"""From a simulated death to the engine that follows it, where a restart was asked for."""

KV_LOAD_TICK_S = 0.1
"""Between two records of the engine's load on a stream of KV events, while there is work."""

KV_LOAD_IDLE_TICKS = 10
"""So many times as long while there is none."""

KV_REPLAY_BATCHES = 10_000
"""Batches of KV events that the ZMQ publisher can send again (vLLM's buffer_steps)."""

KV_ZMQ_QUEUE = 100_000
"""Batches that the ZMQ publisher keeps for a slow subscriber before it drops them (vLLM's hwm)."""
