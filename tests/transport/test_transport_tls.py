"""TLS on TCP, over both transports: who is served, and certificates that change while calls run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import grpc.aio
import pytest
from transport_probe import ECHO, HOLD, PATIENCE_S, Probe

from extproc.transport.limits import TransportLimits
from extproc.transport.listening import ListenError
from extproc.transport.serving import Server, TransportName, serve
from extproc.transport.tls import TlsFiles

DATA = Path(__file__).parent / "data"
AUTHORITY = DATA / "authority.pem"

StartTls = Callable[..., Awaitable[Server]]
Dial = Callable[..., grpc.aio.Channel]


@pytest.fixture(params=["ngh2", "grpcio"])
def transport(request: pytest.FixtureRequest) -> TransportName:
    return request.param


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    """Those of the first server, where they can be replaced."""
    files = TlsFiles(tmp_path / "tls.pem", tmp_path / "tls.key")
    put(files, "first")
    return files


def put(files: TlsFiles, name: str) -> None:
    """Replace certificate and key by rename, as those who renew them do."""
    for suffix, path in ((".pem", files.certificate), (".key", files.key)):
        beside = path.with_name("new")
        shutil.copy(DATA / f"{name}{suffix}", beside)
        beside.replace(path)


@pytest.fixture
async def start_tls(transport: TransportName, probe: Probe, files: TlsFiles) -> AsyncIterator[StartTls]:
    servers: list[Server] = []

    async def start(tls: TlsFiles = files, limits: TransportLimits | None = None) -> Server:
        servers.append(await serve(probe.service(), "127.0.0.1:0", transport, limits, tls))
        return servers[-1]

    yield start
    for server in servers:
        await server.stop(0)


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    """A channel that trusts the authority, and shows the certificate of that name."""
    channels: list[grpc.aio.Channel] = []

    def open_channel(server: Server, shows: str | None = None) -> grpc.aio.Channel:
        own = [(DATA / f"{shows}{suffix}").read_bytes() for suffix in (".key", ".pem")] if shows else [None, None]
        credentials = grpc.ssl_channel_credentials(AUTHORITY.read_bytes(), own[0], own[1])
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)]
        channels.append(grpc.aio.secure_channel(server.address, credentials, options))
        return channels[-1]

    yield open_channel
    for channel in channels:
        await channel.close()


def trusting(*protocols: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(AUTHORITY)
    if protocols:
        context.set_alpn_protocols(list(protocols))
    return context


async def connect(server: Server, context: ssl.SSLContext) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.address.rpartition(":")
    return await asyncio.open_connection(host, int(port), ssl=context)


async def shown_name(server: Server) -> str:
    """The name in the certificate that a new connection is shown."""
    _, writer = await connect(server, trusting("h2"))
    certificate = writer.get_extra_info("peercert")
    writer.transport.abort()
    return dict(pair[0] for pair in certificate["subject"])["commonName"]


async def test_calls_pass_encrypted(start_tls: StartTls, dial: Dial) -> None:
    channel = dial(await start_tls())
    message = bytes(range(256)) * 8192  # 2 MiB
    call = channel.stream_stream(ECHO)()
    for _ in range(3):
        await call.write(message)
        assert await call.read() == message


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_http2_is_agreed_on(start_tls: StartTls, version: ssl.TLSVersion) -> None:
    context = trusting("http/1.1", "h2")
    context.minimum_version = context.maximum_version = version
    _, writer = await connect(await start_tls(), context)
    assert writer.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    writer.transport.abort()


@pytest.mark.parametrize("protocols", [(), ("http/1.1",)], ids=["none", "http1"])
async def test_a_client_that_does_not_want_http2_is_dropped(start_tls: StartTls, protocols: tuple[str, ...]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            reader, _ = await connect(await start_tls(), trusting(*protocols))
            assert await reader.read() == b""


async def test_plain_clients_are_dropped(start_tls: StartTls, dial: Dial) -> None:
    server = await start_tls()
    async with grpc.aio.insecure_channel(server.address) as plain:
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await plain.unary_unary(ECHO)(b"one")
        assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    assert await dial(server).unary_unary(ECHO)(b"one") == b"one"


async def test_a_client_that_never_shakes_hands_is_dropped(start_tls: StartTls, transport: TransportName) -> None:
    if transport == "grpcio":
        pytest.skip("grpcio has its own patience, of minutes")
    server = await start_tls(limits=TransportLimits(handshake_timeout_s=0.1))
    host, _, port = server.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
    writer.close()


@pytest.mark.parametrize("shows", [None, "stranger", "client"])
async def test_with_an_authority_for_clients_only_its_own_are_served(
    start_tls: StartTls, dial: Dial, files: TlsFiles, probe: Probe, shows: str | None
) -> None:
    server = await start_tls(TlsFiles(files.certificate, files.key, AUTHORITY))
    call = dial(server, shows).unary_unary(ECHO)(b"one")
    if shows == "client":
        assert await call == b"one"
        return
    with pytest.raises(grpc.aio.AioRpcError) as failure:
        await call
    assert failure.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not probe.calls


async def test_a_renewed_certificate_is_shown_to_new_clients_and_old_ones_go_on(
    start_tls: StartTls, dial: Dial, files: TlsFiles, probe: Probe
) -> None:
    server = await start_tls()
    assert await shown_name(server) == "first"
    call = dial(server).stream_stream(ECHO)()
    await call.write(b"before")
    assert await call.read() == b"before"
    put(files, "second")
    assert await shown_name(server) == "second"
    await call.write(b"after")
    assert await call.read() == b"after"
    assert await dial(server).unary_unary(ECHO)(b"new") == b"new"


async def test_what_cannot_be_used_leaves_the_last_certificate_in_use(
    start_tls: StartTls, files: TlsFiles, caplog: pytest.LogCaptureFixture
) -> None:
    server = await start_tls()
    for spoil in (
        lambda: shutil.copy(DATA / "second.pem", files.certificate),  # its key comes later
        lambda: files.key.write_text("no key"),
        lambda: os.truncate(files.certificate, 100),
        files.certificate.unlink,
    ):
        spoil()
        caplog.clear()
        assert await shown_name(server) == "first"
        assert await shown_name(server) == "first"
        (record,) = [record for record in caplog.records if record.name.startswith("extproc")]
        assert "the last certificate stays in use" in record.message
    put(files, "second")
    assert await shown_name(server) == "second"


async def test_an_authority_that_is_replaced_decides_on_new_clients(
    start_tls: StartTls, dial: Dial, files: TlsFiles, tmp_path: Path
) -> None:
    authority = tmp_path / "authority.pem"
    shutil.copy(AUTHORITY, authority)
    server = await start_tls(TlsFiles(files.certificate, files.key, authority))
    assert await dial(server, "client").unary_unary(ECHO)(b"one") == b"one"
    shutil.copy(DATA / "stranger.pem", tmp_path / "new")
    (tmp_path / "new").replace(authority)
    assert await dial(server, "stranger").unary_unary(ECHO)(b"one") == b"one"
    with pytest.raises(grpc.aio.AioRpcError):
        await dial(server, "client").unary_unary(ECHO)(b"one")


@pytest.mark.parametrize(
    ("certificate", "key", "client_ca", "complaint"),
    [
        ("first.pem", "second.key", None, r"first\.pem and .*second\.key: .*unencrypted private key"),
        ("first.pem", "encrypted.key", None, r"encrypted\.key: .*unencrypted private key"),
        ("missing.pem", "first.key", None, r"missing\.pem: No such file"),
        ("first.pem", "missing.key", None, r"missing\.key: No such file"),
        ("make_certificates.sh", "first.key", None, r"make_certificates\.sh and .*in PEM"),
        ("first.pem", "first.key", "make_certificates.sh", r"make_certificates\.sh: .*must hold certificates"),
    ],
)
async def test_files_that_cannot_be_used_are_named_at_the_start(
    transport: TransportName, certificate: str, key: str, client_ca: str | None, complaint: str
) -> None:
    tls = TlsFiles(DATA / certificate, DATA / key, DATA / client_ca if client_ca else None)
    with pytest.raises(ListenError, match=complaint):
        await serve({}, "127.0.0.1:0", transport, tls=tls)


async def test_a_stop_lets_encrypted_calls_finish(start_tls: StartTls, dial: Dial, probe: Probe) -> None:
    server = await start_tls()
    call = dial(server).stream_stream(HOLD)()
    await call.write(b"one")
    await probe.until(lambda: bool(probe.calls and probe.calls[0].received))
    stop = asyncio.create_task(server.stop(PATIENCE_S))
    await asyncio.sleep(0)
    probe.calls[0].call.send(b"answer")
    probe.calls[0].call.finish()
    assert await call.read() == b"answer"
    assert await call.code() is grpc.StatusCode.OK
    async with asyncio.timeout(PATIENCE_S):
        await stop
