"""Addresses: what is accepted, what is cleaned up, and what is left alone."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from transport_probe import ECHO, Connect, Start

from extproc.transport.listening import ListenError, TcpAddress, UnixAddress, parse_listen
from extproc.transport.serving import TransportName


@pytest.fixture(params=["ngh2", "grpcio"])
def transport(request: pytest.FixtureRequest) -> TransportName:
    return request.param


@pytest.mark.parametrize(
    ("listen", "address"),
    [
        ("unix:/run/extproc/0.sock", UnixAddress(Path("/run/extproc/0.sock"))),
        ("127.0.0.1:9000", TcpAddress("127.0.0.1", 9000)),
        ("localhost:0", TcpAddress("localhost", 0)),
        ("[::1]:9000", TcpAddress("::1", 9000)),
    ],
)
def test_addresses_are_read(listen: str, address: UnixAddress | TcpAddress) -> None:
    assert parse_listen(listen) == address


@pytest.mark.parametrize(
    "listen", ["", "9000", ":9000", "host", "host:", "host:65536", "host:-1", "host:x", "::1:9000", "unix:run.sock"]
)
def test_other_addresses_are_refused_with_what_to_write(listen: str) -> None:
    with pytest.raises(ListenError, match=r"write host:port|is not a port|absolute path"):
        parse_listen(listen)


def test_a_path_that_is_too_long_for_a_socket_is_refused() -> None:
    with pytest.raises(ListenError, match=r"at most [0-9]+ bytes"):
        parse_listen("unix:/" + "x" * 107)


async def test_the_socket_is_for_owner_and_group(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "run" / "extproc" / "0.sock"
    before = os.umask(0)
    try:
        await start(listen=f"unix:{path}")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o660
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o750


async def test_a_stop_removes_the_socket(start: Start, tmp_path: Path) -> None:
    server = await start(listen=f"unix:{tmp_path}/0.sock")
    await server.stop(0)
    assert os.listdir(tmp_path) == []


async def test_a_stale_socket_is_replaced(start: Start, connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "0.sock"
    with socket.socket(socket.AF_UNIX) as left_over:
        left_over.bind(str(path))
    server = await start(listen=f"unix:{path}")
    assert await connect(server).unary_unary(ECHO)(b"one") == b"one"


async def test_a_socket_that_somebody_answers_on_is_left_alone(start: Start, connect: Connect, tmp_path: Path) -> None:
    first = await start(listen=f"unix:{tmp_path}/0.sock")
    with pytest.raises(ListenError, match="another process answers on it"):
        await start(listen=first.address)
    assert await connect(first).unary_unary(ECHO)(b"one") == b"one"


@pytest.mark.parametrize("transport", ["ngh2"])  # gRPC's own library removes whatever is at its path
async def test_a_successors_socket_is_left_alone(start: Start, connect: Connect, tmp_path: Path) -> None:
    path = tmp_path / "0.sock"
    first = await start(listen=f"unix:{path}")
    path.rename(tmp_path / "old.sock")
    second = await start(listen=f"unix:{path}")
    await first.stop(0)
    assert await connect(second).unary_unary(ECHO)(b"one") == b"one"


async def test_a_file_that_is_no_socket_is_left_alone(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "0.sock"
    path.write_text("precious")
    with pytest.raises(ListenError, match="is not a socket"):
        await start(listen=f"unix:{path}")
    assert path.read_text() == "precious"


async def test_a_port_in_use_is_an_error(start: Start) -> None:
    first = await start()
    with pytest.raises(ListenError, match=first.address.rpartition(":")[2]):
        await start(listen=first.address)
