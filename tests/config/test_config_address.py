"""Addresses: many ways to write them, one form inside."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.config.address import HostPort, UnixPath, parse_host_port, parse_listen, parse_socket, parse_worker


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("10.0.0.1:50051", HostPort("10.0.0.1", 50051)),
        ("grpc://10.0.0.1:50051", HostPort("10.0.0.1", 50051)),
        ("grpc://10.0.0.1:50051/", HostPort("10.0.0.1", 50051)),
        ("[FD00:0:0::1]:1", HostPort("fd00::1", 1)),
        ("grpc://[::1]:65535", HostPort("::1", 65535)),
        ("Engine-0.Example.:9000", HostPort("engine-0.example.", 9000)),
        ("localhost:80", HostPort("localhost", 80)),
    ],
)
def test_workers_are_written_in_many_ways(text: str, address: HostPort) -> None:
    assert parse_worker(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "", ":", "10.0.0.1", "10.0.0.1:", ":1", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0.1:+1", "10.0.0.1:1x", "::1:1",
        "[::1]", "[::1]1", "[::1:1", "[10.0.0.1]:1", "[fe80::1%eth0]:1", "256.1.1.1:1", "a b:1", "-a:1", "a..b:1",
        "http://a:1", "https://a:1", "grpcs://a:1", "a:1/x", "0.0.0.0:1", "[::]:1", "a:\u0661",
    ],
)  # fmt: skip
def test_what_is_no_worker_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each has words of its own
        parse_worker(text)


def test_listeners_need_ip_addresses() -> None:
    assert parse_listen("[::]:80") == HostPort("::", 80)
    with pytest.raises(ValueError, match=r"write an IP address, such as 127\.0\.0\.1:80"):
        parse_listen("localhost:80")


def test_sockets_are_unix_or_tcp() -> None:
    assert parse_socket("unix:/run/p.sock") == UnixPath("/run/p.sock")
    assert parse_socket("unix:///run/p.sock") == UnixPath("/run/p.sock")
    assert parse_socket("unix:run/p.sock") == UnixPath("run/p.sock")
    assert parse_socket("127.0.0.1:1") == HostPort("127.0.0.1", 1)


@given(ip=st.ip_addresses(), port=st.integers(1, 65535))
def test_an_address_reads_back_as_it_was_written(ip: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    address = HostPort(str(ip), port)
    if "%" not in str(ip):
        assert parse_host_port(str(address)) == address
        assert address.is_ip
