"""The configuration file as typed, immutable values. docs/configuration.md is generated from the descriptions here.

`Config` can also be built in Python, with the same checks. Relative paths are resolved against the folder that
`extproc.config.load` gives as the validation context, and left alone without one.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from extproc.config.address import Address, of_process
from extproc.config.conflicts import find_conflicts
from extproc.config.cors import Cors
from extproc.config.fields import (
    Bool,
    FilePath,
    Int,
    Label,
    ListenAddress,
    Network,
    Number,
    PoolName,
    Section,
    Size,
    SizeOrNone,
    SocketAddress,
    TokenizerSource,
    WorkerAddress,
    shorthand,
    written,
)
from extproc.config.fleet import Discover, Health, HttpHealth, KvEvents, LoadMetrics, Overload, SessionHeader, Tenants
from extproc.config.http_engines import HttpEngine
from extproc.config.policies import PolicyName, PolicyOptions


class Tls(Section):
    """The certificate that Envoy shows to clients."""

    certificate: FilePath = Field(description="PEM file with the certificate chain.")
    key: FilePath = Field(description="PEM file with the private key. Envoy reads both, the processor neither.")


class ProcessorTls(Section):
    """TLS between Envoy and the processor. Both begin to use certificates that are replaced, without a restart."""

    certificate: FilePath = Field(description="PEM file with the processor's certificate chain.")
    key: FilePath = Field(description="PEM file with its private key, not encrypted.")
    ca: FilePath = Field(
        description="PEM file with the authorities by which Envoy checks the processor's certificate; the certificate "
        "itself if it is self-signed. It is at this path where Envoy runs."
    )
    server_name: Label | None = Field(
        default=None,
        description="DNS name that the processor's certificate must have; without it Envoy only checks who signed it.",
    )
    client_ca: FilePath | None = Field(
        default=None,
        description="PEM file with the authorities of clients' certificates. With it the processor serves only those "
        "that show one; without it anybody who reaches the port.",
    )
    client_certificate: FilePath | None = Field(
        default=None, description="PEM file, where Envoy runs, with the certificate that it shows."
    )
    client_key: FilePath | None = Field(default=None, description="PEM file with its private key.")


class Listen(Section):
    """Where things listen."""

    http: ListenAddress = Field(
        default=written("0.0.0.0:8080"),
        description="Where Envoy takes clients' requests, as IP address and port.",
    )
    tls: Tls | None = Field(default=None, description="TLS for clients; without it they speak plain HTTP.")
    admin: ListenAddress = Field(
        default=written("127.0.0.1:9901"),
        description="Envoy's admin address. Whoever reaches it can stop Envoy, so keep it on the loopback interface.",
    )
    processor: tuple[SocketAddress, ...] = Field(
        default=written(("unix:run/processor.sock",)),
        min_length=1,
        description="Where the processor serves Envoy: `unix:/path` or IP address and port. It serves on each of them. "
        "Several processes have one each: `p.sock` stands for `p-0.sock`, `p-1.sock` …, a port for it and the next.",
    )
    processor_tls: ProcessorTls | None = Field(
        default=None,
        description="TLS for `processor`, whose sockets must all be IP addresses with ports then. Use it where Envoy "
        "is on another host.",
    )
    metrics: ListenAddress | None = Field(
        default=written("127.0.0.1:9464"),
        description="Where the processor answers `/metrics` (Prometheus), `/healthz` and `/readyz`, as IP address and "
        "port, over all its processes; `null` for nowhere. `/workers` lists, adds, drains and removes workers there: "
        "on a loopback address for everybody, else for those who have the token.",
    )
    admin_token: FilePath | None = Field(
        default=None,
        description="File with the token that `/workers` asks for, as `authorization: Bearer …`, at least 16 "
        "characters. It is read at each request.",
    )


class Envoy(Section):
    """How Envoy is set up by the configuration that `extproc envoy-config` prints."""

    directory: FilePath = Field(
        default=written("run/envoy"),
        description="Folder of the files that Envoy watches (clusters and endpoints). The processor replaces them.",
    )
    node_id: Label = Field(default="extproc-envoy", description="Envoy's node id.")
    node_cluster: Label = Field(default="extproc", description="Envoy's node cluster.")
    concurrency: Int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Worker threads of an Envoy that extproc starts itself; Envoy takes one per core without it.",
    )
    connect_timeout_s: Number = Field(default=2.0, gt=0, le=600, description="Time to connect to a worker, in seconds.")
    retries: Int = Field(
        default=2,
        ge=0,
        le=10,
        description="How often a request is tried again on another worker if the first gave no answer at all.",
    )
    retry_budget_percent: Number = Field(
        default=20.0,
        ge=0,
        le=100,
        description="Ceiling of running retries, in percent of the pool's running requests (10 may always run).",
    )
    retry_body_bytes: Size = Field(
        default=written("8MiB"),
        description="Largest transcoded request that Envoy keeps for a retry. Larger ones are sent once.",
    )
    max_requests: Int = Field(
        default=40_000,
        ge=1,
        le=10_000_000,
        description="Ceiling of requests in flight per pool, and of exchanges with the processor; more get a 503.",
    )
    max_streams: Int = Field(
        default=20_000,
        ge=1,
        le=2_147_483_647,
        description="HTTP/2 streams per connection, from clients, to the processor and to workers.",
    )
    max_connections: Int = Field(
        default=50_000,
        ge=1,
        le=10_000_000,
        description="Ceiling of client connections.",
    )
    request_header_kib: Int = Field(
        default=64,
        ge=1,
        le=8192,
        description="Ceiling of a request's headers, in KiB; Envoy ends the connection of a client that sends more.",
    )
    session_headers: tuple[SessionHeader, ...] = Field(
        default=(),
        max_length=8,
        description="Request headers that name a conversation, such as `x-session-id`, the best one first. With "
        "several processes all requests of a conversation then reach the same one, which has its prompt's tokens in "
        "its cache; requests without these headers go to any. Needs Envoy 1.37 or newer.",
    )
    access_log: Bool = Field(default=False, description="Write Envoy's access log to its standard output, as JSON.")


class Model(Section):
    """A model that a pool serves. A plain name stands for `{name: …}`."""

    name: Label = Field(
        description="The model's name as clients write it. Pools may share a name; then requests are split by weight.",
    )
    aliases: tuple[Label, ...] = Field(
        default=(),
        description="Other names that clients may write for it, in every pool that serves it.",
    )
    engine_name: Label | None = Field(
        default=None,
        description="What the workers call it, where that is not `name`. Only for `engine: openai`; clients never see "
        "it. A pool of one model whose workers serve one, under another name, needs it not.",
    )
    weight: Int = Field(
        default=1,
        ge=0,
        le=1_000_000,
        description="This pool's share of the model's requests, relative to other pools that serve it. 0 gives none.",
    )


class Worker(Section):
    """One engine of a pool. A plain address stands for `{address: …}`."""

    address: WorkerAddress = Field(
        description="Where its server is: `host:port`, `grpc://host:port` or for `engine: openai` `http://host:port`, "
        "IPv6 addresses in brackets. A host name is looked up once, at the start.",
    )
    name: Label | None = Field(default=None, description="Its name in logs and metrics; the address without it.")
    ranks: Int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Data-parallel ranks of the engine. With more than one, each is chosen by itself, has its own load "
        "and cache, and its requests are not tried again elsewhere. Only where the engine's protocol can name a rank.",
    )

    @property
    def label(self) -> str:
        """What to call it."""
        return self.name or str(self.address)


class Pool(Section):
    """Workers that are interchangeable: one engine protocol, one tokenizer, one chat template, the same models."""

    name: PoolName = Field(description="The pool's name: 1 to 63 of a-z, 0-9 and `-`. Envoy's cluster has the same.")
    engine: Literal["vllm", "mlx", "openai"] = Field(
        default="vllm",
        description="The protocol that the workers speak: `vllm` and `mlx` their gRPC, `openai` OpenAI's Chat "
        "Completions over HTTP, as the servers of vLLM, SGLang, TensorRT-LLM, llama.cpp and Ollama do.",
    )
    http: HttpEngine = Field(
        default=written({}), description="How engines of `engine: openai` are reached. See docs/http-engines.md."
    )
    models: tuple[Annotated[Model, shorthand("name")], ...] = Field(
        min_length=1,
        description="The models that its workers serve.",
    )
    workers: tuple[Annotated[Worker, shorthand("address")], ...] = Field(
        default=(),
        description="Its workers. The list may be empty: then there are those of `discover` and of the admin address, "
        "and without any, requests for its models get a 503.",
    )
    discover: Discover = Field(default=written({}), description="Where more workers come from than are listed.")
    http_health: HttpHealth | None = Field(
        default=None, description="Check its workers over HTTP; without it by their protocol's own health call."
    )
    load_metrics: LoadMetrics | None = Field(
        default=None, description="Read the workers' load from their Prometheus metrics too; not read without it."
    )
    overload: Overload = Field(default=written({}), description="How much it takes, and what becomes of the rest.")
    tokenizer: TokenizerSource = Field(
        default="worker",
        description="Where the tokenizer is: a model's folder, a file (tokenizer.json, `*.tiktoken` or tekken.json), "
        "`hub:ORG/NAME` or `hub:ORG/NAME@REVISION` for a model that is in the local Hugging Face cache already, or "
        "`worker` to get it from a worker. Engines over HTTP have none to give: their prompts are only tokenized, for "
        "the choice of the worker and the check of their length, where this is a path.",
    )
    chat_template: FilePath | None = Field(
        default=None,
        description="A Jinja file to use in place of the chat template that comes with the tokenizer.",
    )
    special_tokens_in_content: Literal["allow", "escape"] = Field(
        default="allow",
        description="What becomes of clients' text that spells one of the model's control tokens. `allow`: it is that "
        "token, as in the engines themselves, so whoever writes a message can end it and begin another in any role. "
        "`escape`: it stays text.",
    )
    tool_parser: Literal[
        "auto", "none", "hermes", "qwen3_coder", "llama3_json", "mistral", "deepseek", "pythonic", "glm", "harmony"
    ] = Field(
        default="auto",
        description="How tool calls are read from the model's text. `auto`: by what the chat template writes. `none`: "
        "they stay text.",
    )
    reasoning_parser: Literal[
        "auto", "none", "think", "deepseek_r1", "mistral", "seed", "kimi", "cohere", "gemma", "harmony"
    ] = Field(
        default="auto",
        description="How reasoning is told from the answer's text: by its markers, `deepseek_r1` also where the first "
        "one is missing. `auto`: by what the chat template writes. `none`: it stays text.",
    )
    policy: PolicyName = Field(
        default="ttft",
        description="How a worker is chosen: `ttft` takes the one that is expected to answer first, by its queue and "
        "its KV cache; `least_load` the one with the fewest prompt tokens dispatched and not yet answered; "
        "`power_of_two` the less loaded of two that chance picks; `round_robin` each in turn; `random` any; "
        "`passthrough` the first; the others are described with their `options`. docs/routing.md says which to take.",
    )
    options: PolicyOptions = Field(default=written({}), description="Parameters of policies.")
    block_tokens: Int | None = Field(
        default=None,
        ge=1,
        le=65_536,
        description="Tokens in a block of the workers' KV caches; what they report without it, else 32.",
    )
    kv_cache_tokens: Int | None = Field(
        default=None,
        ge=1,
        description="Tokens that the KV cache of one worker holds; what the workers report without it, else 500,000.",
    )
    load_interval_s: Number = Field(
        default=1.0,
        ge=0,
        le=3600,
        description="Time between two questions to a worker about its load, by the engine protocol's own call, in "
        "seconds; 0 for none. It shows what others send there.",
    )
    kv_events: Annotated[KvEvents, shorthand("source")] = Field(
        default=written({}), description="What the workers' KV caches hold, told by themselves."
    )
    context_tokens: Int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Longest prompt and answer together, in tokens; what the workers report without it.",
    )


class Limits(Section):
    """What one request, and all together, may take."""

    body_bytes: Size = Field(default=written("32MiB"), description="Largest request body; larger ones get a 413.")
    held_bytes: Size = Field(
        default=written("512MiB"),
        description="All request bodies held at a time, over all exchanges; above it new ones get a 503.",
    )
    token_cache_bytes: SizeOrNone = Field(
        default=written("64MiB"),
        description="Memory of each process for the tokens of earlier prompts, over all pools; 0 for no such cache.",
    )
    json_depth: Int = Field(default=64, ge=4, le=500, description="Deepest nesting of a request's JSON.")
    messages: Int = Field(
        default=10_000, ge=1, le=1_000_000, description="Most messages in one conversation, and most parts of content."
    )
    deadline_s: Number = Field(
        default=600.0,
        gt=0,
        le=86_400,
        description="Longest duration of one exchange, from its headers to the end of its answer, in seconds.",
    )
    keep_alive_s: Number = Field(
        default=15.0,
        ge=0,
        le=3600,
        description="How long a stream that has begun may be silent before its client gets a sign of life, in seconds: "
        "after this time, and before twice of it. 0 for none.",
    )
    drain_s: Number = Field(
        default=30.0,
        ge=0,
        le=86_400,
        description="How long running exchanges may go on after the processor was told to stop, in seconds.",
    )


class Debug(Section):
    """Who may look inside."""

    clients: tuple[Network, ...] = Field(
        default=(),
        description="Networks such as `10.0.0.0/8` whose clients may send `x-gateway-debug: 1` and get the routing "
        "decision in answer headers. Nobody may without it.",
    )


class Log(Section):
    """The processor's own log, on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="The least severity to write."
    )
    format: Literal["json", "console"] = Field(default="json", description="`json` for machines, `console` for people.")


class Config(Section):
    """The whole file."""

    listen: Listen = Field(default=written({}), description="Where things listen.")
    cors: Cors = Field(default=written({}), description="Pages in browsers that may call the gateway.")
    envoy: Envoy = Field(default=written({}), description="The printed Envoy configuration.")
    pools: tuple[Pool, ...] = Field(min_length=1, description="Pools of workers.")
    processes: Int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that share the work, each with its own copy of tokenizers and state: one per core that "
        "the processor may use. Envoy's files name the sockets of all of them.",
    )
    limits: Limits = Field(default=written({}), description="What one request, and all together, may take.")
    health: Health = Field(default=written({}), description="How workers are checked, kept out, and let go.")
    tenants: Tenants = Field(default=written({}), description="Whose a request is, for fairness between them.")
    debug: Debug = Field(default=written({}), description="Who may look inside.")
    log: Log = Field(default=written({}), description="The processor's log.")

    def sockets_of(self, process: int) -> tuple[Address, ...]:
        """Where one process serves, from 0."""
        sockets = self.listen.processor
        return sockets if self.processes == 1 else tuple(of_process(socket, process) for socket in sockets)

    @property
    def all_sockets(self) -> tuple[Address, ...]:
        """Where all processes serve."""
        return tuple(socket for process in range(self.processes) for socket in self.sockets_of(process))

    @model_validator(mode="after")
    def _agrees_with_itself(self, info: ValidationInfo) -> Self:
        # `load` looks for conflicts itself, to name their places in the file.
        if not (info.context or {}).get("conflicts_checked"):
            conflicts = find_conflicts(self.model_dump(mode="json"))
            if conflicts:
                raise ValueError("; ".join(f"{dotted(c.path)}: {c.message}" for c in conflicts))
        return self


def dotted(path: tuple[Any, ...]) -> str:
    """A path into the file as people write it, such as `pools[0].workers[1].address`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text
