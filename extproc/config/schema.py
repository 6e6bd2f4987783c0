"""The configuration file as typed, immutable values. docs/configuration.md is generated from the descriptions here.

`Config` can also be built in Python, with the same checks. Relative paths are resolved against the folder that
`extproc.config.load` gives as the validation context, and left alone without one.
"""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    Strict,
    ValidationInfo,
    model_validator,
)

from extproc.config.address import (
    Address,
    HostPort,
    UnixPath,
    check_unix_length,
    of_process,
    parse_listen,
    parse_socket,
    parse_worker,
)
from extproc.config.conflicts import find_conflicts
from extproc.config.hub import HUB_PREFIX, hub_folder

_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _written(value: object) -> Any:
    """A default as a file would have it: it is parsed like any other value."""
    return value


def _text(value: object, such_as: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be {such_as}")
    return value


def _parse_size(value: object) -> int:
    """A number of bytes, or text such as `32MiB`."""
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = re.fullmatch(r"([0-9]{1,15}) ?(|KiB|MiB|GiB)", value) if isinstance(value, str) else None
        if match is None:
            raise ValueError("must be a number of bytes, such as 1048576, or with a unit, such as 32MiB")
        size = int(match[1]) * _UNITS[match[2]]
    if size < 1:
        raise ValueError("must be at least 1 byte")
    return size


def _parse_size_or_none(value: object) -> int:
    """The same, or 0."""
    return 0 if value == 0 and not isinstance(value, bool) else _parse_size(value)


def _resolve(path: str, info: ValidationInfo) -> str:
    folder = (info.context or {}).get("folder")
    return path if folder is None else str(Path(folder, path))


def _parse_path(value: object, info: ValidationInfo) -> Path:
    if isinstance(value, Path):
        return value
    text = _text(value, "a path")
    if not text or "\0" in text:
        raise ValueError("must be a path")
    return Path(_resolve(text, info))


def _parse_tokenizer(value: object, info: ValidationInfo) -> Path | Literal["worker"]:
    if value == "worker":
        return "worker"
    return hub_folder(value) if isinstance(value, str) and value.startswith(HUB_PREFIX) else _parse_path(value, info)


def _parse_listen(value: object) -> HostPort:
    return (
        value
        if isinstance(value, HostPort)
        else parse_listen(_text(value, "an IP address with port, such as 127.0.0.1:8080"))
    )


def _parse_worker(value: object) -> HostPort:
    return (
        value
        if isinstance(value, HostPort)
        else parse_worker(_text(value, "an address, such as grpc://10.0.0.1:50051"))
    )


def _parse_socket(value: object, info: ValidationInfo) -> Address:
    address = (
        value
        if isinstance(value, HostPort | UnixPath)
        else parse_socket(_text(value, "a socket, such as unix:/run/extproc.sock or 127.0.0.1:9002"))
    )
    if isinstance(address, UnixPath):
        address = UnixPath(_resolve(address.path, info))
        check_unix_length(address)
    return address


def _parse_network(value: object) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    if isinstance(value, ipaddress.IPv4Network | ipaddress.IPv6Network):
        return value
    text = _text(value, "a network, such as 10.0.0.0/8")
    try:
        return ipaddress.ip_network(text)
    except ValueError:
        pass
    try:
        instead = ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"{text!r} is not a network: write one such as 10.0.0.0/8 or ::1/128") from None
    raise ValueError(f"{text!r} has bits set outside its mask: write {instead}")


def _check_pool_name(name: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", name):
        raise ValueError(f"{name!r} is not a pool name: use 1 to 63 of a-z, 0-9 and '-', with no '-' at either end")
    if name == "processor":
        raise ValueError("'processor' is the name of the processor's own Envoy cluster: choose another")
    return name


def _check_label(name: str) -> str:
    """A name that is safe in headers, metrics and logs."""
    if not name or len(name) > 256 or not name.isprintable() or name != name.strip():
        raise ValueError("must be 1 to 256 printable characters without spaces at either end")
    return name


def _shorthand(key: str) -> BeforeValidator:
    """An item may be the text of its one needed key."""
    return BeforeValidator(lambda value: {key: value} if isinstance(value, str) else value)


_AS_TEXT = PlainSerializer(str, return_type=str, when_used="json")

Int = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Bool = Annotated[bool, Strict()]
Size = Annotated[int, PlainValidator(_parse_size)]
FilePath = Annotated[Path, PlainValidator(_parse_path), _AS_TEXT]
SizeOrNone = Annotated[int, PlainValidator(_parse_size_or_none)]
TokenizerSource = Annotated[Path | Literal["worker"], PlainValidator(_parse_tokenizer), _AS_TEXT]
ListenAddress = Annotated[HostPort, PlainValidator(_parse_listen), _AS_TEXT]
WorkerAddress = Annotated[HostPort, PlainValidator(_parse_worker), _AS_TEXT]
SocketAddress = Annotated[Address, PlainValidator(_parse_socket), _AS_TEXT]
Network = Annotated[ipaddress.IPv4Network | ipaddress.IPv6Network, PlainValidator(_parse_network), _AS_TEXT]
Label = Annotated[str, AfterValidator(_check_label)]
PoolName = Annotated[str, AfterValidator(_check_pool_name)]


class Section(BaseModel):
    """What all sections share: immutable, unknown keys are mistakes, defaults pass the same checks as values."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_default=True,
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
        protected_namespaces=(),
    )


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
        default=_written("0.0.0.0:8080"),
        description="Where Envoy takes clients' requests, as IP address and port.",
    )
    tls: Tls | None = Field(default=None, description="TLS for clients; without it they speak plain HTTP.")
    admin: ListenAddress = Field(
        default=_written("127.0.0.1:9901"),
        description="Envoy's admin address. Whoever reaches it can stop Envoy, so keep it on the loopback interface.",
    )
    processor: tuple[SocketAddress, ...] = Field(
        default=_written(("unix:run/processor.sock",)),
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
        default=_written("127.0.0.1:9464"),
        description="Where the processor answers `/metrics` (Prometheus), `/healthz` and `/readyz`, as IP address and "
        "port, over all its processes; `null` for nowhere.",
    )


class Envoy(Section):
    """How Envoy is set up by the configuration that `extproc envoy-config` prints."""

    directory: FilePath = Field(
        default=_written("run/envoy"),
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
        default=_written("8MiB"),
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
    weight: Int = Field(
        default=1,
        ge=0,
        le=1_000_000,
        description="This pool's share of the model's requests, relative to other pools that serve it. 0 gives none.",
    )


class Worker(Section):
    """One engine of a pool. A plain address stands for `{address: …}`."""

    address: WorkerAddress = Field(
        description="Where its gRPC server is: `host:port` or `grpc://host:port`, IPv6 addresses in brackets. "
        "A host name is looked up once, at the start.",
    )
    name: Label | None = Field(default=None, description="Its name in logs and metrics; the address without it.")

    @property
    def label(self) -> str:
        """What to call it."""
        return self.name or str(self.address)


class Pool(Section):
    """Workers that are interchangeable: one engine protocol, one tokenizer, one chat template, the same models."""

    name: PoolName = Field(description="The pool's name: 1 to 63 of a-z, 0-9 and `-`. Envoy's cluster has the same.")
    engine: Literal["vllm", "mlx"] = Field(default="vllm", description="The protocol that the workers speak.")
    models: tuple[Annotated[Model, _shorthand("name")], ...] = Field(
        min_length=1,
        description="The models that its workers serve.",
    )
    workers: tuple[Annotated[Worker, _shorthand("address")], ...] = Field(
        description="Its workers. The list may be empty; then requests for its models get a 503.",
    )
    tokenizer: TokenizerSource = Field(
        default="worker",
        description="Where the tokenizer is: a model's folder, a file (tokenizer.json, `*.tiktoken` or tekken.json), "
        "`hub:ORG/NAME` or `hub:ORG/NAME@REVISION` for a model that is in the local Hugging Face cache already, or "
        "`worker` to get it from a worker.",
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
    policy: Literal["least_load", "round_robin", "random"] = Field(
        default="least_load",
        description="How a worker is chosen: `least_load` takes the one with the fewest prompt tokens dispatched and "
        "not yet answered, `round_robin` each in turn, `random` any.",
    )
    context_tokens: Int | None = Field(
        default=None,
        ge=1,
        le=1_000_000_000,
        description="Longest prompt and answer together, in tokens; what the workers report without it.",
    )


class Limits(Section):
    """What one request, and all together, may take."""

    body_bytes: Size = Field(default=_written("32MiB"), description="Largest request body; larger ones get a 413.")
    held_bytes: Size = Field(
        default=_written("512MiB"),
        description="All request bodies held at a time, over all exchanges; above it new ones get a 503.",
    )
    token_cache_bytes: SizeOrNone = Field(
        default=_written("64MiB"),
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
    drain_s: Number = Field(
        default=30.0,
        ge=0,
        le=86_400,
        description="How long running exchanges may go on after the processor was told to stop, in seconds.",
    )


class Health(Section):
    """How the processor checks its workers (gRPC health service)."""

    interval_s: Number = Field(
        default=2.0, gt=0, le=3600, description="Time between two checks of a worker, in seconds."
    )
    timeout_s: Number = Field(default=1.0, gt=0, le=3600, description="Time that a check may take, in seconds.")
    unhealthy_after: Int = Field(
        default=2, ge=1, le=100, description="Failed checks in a row after which a worker is out."
    )
    healthy_after: Int = Field(default=1, ge=1, le=100, description="Good checks in a row after which it is back.")


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

    listen: Listen = Field(default=_written({}), description="Where things listen.")
    envoy: Envoy = Field(default=_written({}), description="The printed Envoy configuration.")
    pools: tuple[Pool, ...] = Field(min_length=1, description="Pools of workers.")
    processes: Int = Field(
        default=1,
        ge=1,
        le=64,
        description="Processes that share the work, each with its own copy of tokenizers and state: one per core that "
        "the processor may use. Envoy's files name the sockets of all of them.",
    )
    limits: Limits = Field(default=_written({}), description="What one request, and all together, may take.")
    health: Health = Field(default=_written({}), description="Health checks of workers.")
    debug: Debug = Field(default=_written({}), description="Who may look inside.")
    log: Log = Field(default=_written({}), description="The processor's log.")

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
