"""What is written: accepted by Envoy, complete, deterministic, replaced in one step."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from extproc.config.address import HostPort
from extproc.config.schema import Config
from extproc.envoyconfig import files, names
from extproc.envoyconfig.clusters import build_endpoints
from extproc.envoyconfig.files import build, render_endpoints, write, write_endpoints

DATA = Path(__file__).parent / "data"
POOL = {"name": "chat", "models": ["tiny"], "workers": ["10.0.0.1:50051", "[fd00::1]:50051"]}

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "the least": {"pools": [POOL]},
    "everything": {
        "listen": {
            "http": "[::]:8443",
            "tls": {"certificate": DATA / "localhost.pem", "key": DATA / "localhost.key"},
            "admin": "[::1]:9901",
            "processor": ["unix:/run/p0.sock", "unix:/run/p1.sock", "127.0.0.1:9002", "[::1]:9003"],
        },
        "envoy": {
            "node_id": "edge 1",
            "node_cluster": "edge",
            "connect_timeout_s": 0.25,
            "retries": 3,
            "retry_budget_percent": 12.5,
            "retry_body_bytes": "64MiB",
            "max_requests": 5,
            "max_streams": 2147483647,
            "max_connections": 10,
            "request_header_kib": 96,
            "access_log": True,
        },
        "pools": [POOL, {"name": "second-pool", "models": ["tiny"], "workers": []}],
        "debug": {"clients": ["10.0.0.0/8", "::1/128"]},
    },
    "engines over HTTP": {
        "pools": [
            {"name": "plain", "engine": "openai", "models": ["a"], "workers": ["http://10.0.0.1:8000"]},
            {
                "name": "encrypted",
                "engine": "openai",
                "models": ["b"],
                "workers": ["10.0.0.2:443"],
                "http": {
                    "protocol": "http2",
                    "host": "llm.example.com",
                    "path_prefix": "/openai",
                    "api_key": DATA / "localhost.key",
                    "tls": {"ca": DATA / "localhost.pem", "server_name": "llm.example.com"},
                },
            },
        ],
    },
    "encrypted": {
        "listen": {
            "processor": ["10.0.0.9:9002"],
            "processor_tls": {
                "certificate": DATA / "localhost.pem",
                "key": DATA / "localhost.key",
                "ca": DATA / "localhost.pem",
                "server_name": "processor.llm.svc",
                "client_ca": DATA / "localhost.pem",
                "client_certificate": DATA / "localhost.pem",
                "client_key": DATA / "localhost.key",
            },
        },
        "pools": [POOL],
    },
    "no retries": {"envoy": {"retries": 0, "retry_budget_percent": 0}, "pools": [POOL]},
    "widest": {
        "envoy": {
            "connect_timeout_s": 600,
            "retries": 10,
            "retry_budget_percent": 100,
            "retry_body_bytes": "4GiB",
            "max_requests": 10_000_000,
            "max_connections": 10_000_000,
            "request_header_kib": 8192,
        },
        "pools": [POOL],
    },
}


def make(folder: Path, name: str) -> Config:
    sections = CONFIGURATIONS[name]
    return Config(**sections | {"envoy": sections.get("envoy", {}) | {"directory": folder}})


def read(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


@pytest.mark.envoy
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_envoy_accepts_all_that_is_printed(name: str, envoy_binary: Path, tmp_path: Path) -> None:
    write(build(make(tmp_path, name)), tmp_path)
    # Validation reads the bootstrap alone, so the clusters are put into it; running tests read the real files.
    bootstrap = read(tmp_path / "bootstrap.yaml")
    for cluster in read(tmp_path / "cds.yaml")["resources"]:
        assert cluster.pop("@type").endswith("envoy.config.cluster.v3.Cluster")
        bootstrap["static_resources"]["clusters"].append(cluster)
    (tmp_path / "whole.yaml").write_text(yaml.safe_dump(bootstrap))
    for file in ("bootstrap.yaml", "whole.yaml"):
        command = [str(envoy_binary), "--mode", "validate", "-c", str(tmp_path / file)]
        checked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert checked.returncode == 0, checked.stderr
        assert "[warning]" not in checked.stderr


def test_there_is_one_processor_filter_in_full_duplex_both_ways(tmp_path: Path) -> None:
    write(build(make(tmp_path, "the least")), tmp_path)
    filters = http_filters(tmp_path)
    assert [each["name"] for each in filters] == ["envoy.filters.http.ext_proc", "envoy.filters.http.router"]
    processor = filters[0]["typed_config"]
    assert processor["processing_mode"] == {
        "request_header_mode": "SEND",
        "request_body_mode": "FULL_DUPLEX_STREAMED",
        "request_trailer_mode": "SEND",
        "response_header_mode": "SEND",
        "response_body_mode": "FULL_DUPLEX_STREAMED",
        "response_trailer_mode": "SEND",
    }
    assert "failure_mode_allow" not in processor
    assert "request_attributes" not in processor
    assert processor["response_attributes"] == ["response.code_details", "response.flags", "upstream.address"]
    assert processor["metadata_options"]["receiving_namespaces"] == {"untyped": ["envoy.lb"]}


def test_no_route_and_no_listener_names_a_pool(tmp_path: Path) -> None:
    """So pools come and go by the files that Envoy watches."""
    write(build(make(tmp_path, "everything")), tmp_path)
    assert "second-pool" not in (tmp_path / "bootstrap.yaml").read_text()
    assert [cluster["name"] for cluster in read(tmp_path / "cds.yaml")["resources"]] == ["chat", "second-pool"]


def test_no_timer_of_envoy_ends_a_long_answer(tmp_path: Path) -> None:
    write(build(make(tmp_path, "the least")), tmp_path)
    manager = connection_manager(tmp_path)
    assert manager["stream_idle_timeout"] == "0s"
    to_pool = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    assert (to_pool["timeout"], to_pool["idle_timeout"]) == ("0s", "0s")


def test_the_ceilings_of_streams_are_raised_everywhere(tmp_path: Path) -> None:
    config = make(tmp_path, "the least")
    write(build(config), tmp_path)
    wanted = config.envoy.max_streams
    assert connection_manager(tmp_path)["http2_protocol_options"]["max_concurrent_streams"] == wanted
    clusters = [
        *read(tmp_path / "bootstrap.yaml")["static_resources"]["clusters"],
        *read(tmp_path / "cds.yaml")["resources"],
    ]
    assert [cluster["name"] for cluster in clusters] == ["processor", "chat"]
    for cluster in clusters:
        (options,) = cluster["typed_extension_protocol_options"].values()
        assert options["explicit_http_config"]["http2_protocol_options"]["max_concurrent_streams"] == wanted
        (threshold,) = cluster["circuit_breakers"]["thresholds"]
        assert threshold["max_requests"] == config.envoy.max_requests


def test_a_dead_processor_is_never_used_for_want_of_a_better_one(tmp_path: Path) -> None:
    write(build(make(tmp_path, "everything")), tmp_path)
    (processor,) = read(tmp_path / "bootstrap.yaml")["static_resources"]["clusters"]
    assert processor["common_lb_config"]["healthy_panic_threshold"].get("value", 0) == 0
    (check,) = processor["health_checks"]
    assert check["grpc_health_check"]["service_name"] == names.EXT_PROC_SERVICE
    (hosts,) = processor["load_assignment"]["endpoints"]
    assert [host["endpoint"]["address"] for host in hosts["lb_endpoints"]] == [
        {"pipe": {"path": "/run/p0.sock"}},
        {"pipe": {"path": "/run/p1.sock"}},
        {"socket_address": {"address": "127.0.0.1", "port_value": 9002}},
        {"socket_address": {"address": "::1", "port_value": 9003}},
    ]


@pytest.mark.parametrize(("listens", "reached"), [("0.0.0.0:9002", "127.0.0.1"), ("[::]:9002", "::1")])
def test_a_processor_on_all_interfaces_is_reached_on_this_machine(tmp_path: Path, listens: str, reached: str) -> None:
    config = Config(pools=[POOL], listen={"processor": [listens]}, envoy={"directory": tmp_path})
    assert f"address: {reached}\n" in build(config).contents["bootstrap.yaml"].replace("'", "")


def test_envoy_can_reach_the_processor_elsewhere(tmp_path: Path) -> None:
    files = build(make(tmp_path, "the least"), [HostPort("10.1.2.3", 9002)])
    assert "10.1.2.3" in files.contents["bootstrap.yaml"]
    assert "processor.sock" not in files.contents["bootstrap.yaml"]


def test_endpoint_files_depend_on_the_set_of_workers_alone(tmp_path: Path) -> None:
    one, two = HostPort("10.0.0.1", 2), HostPort("::1", 1)
    assert render_endpoints("chat", [one, two]) == render_endpoints("chat", [two, one])
    assert write_endpoints(tmp_path, "chat", [one, two])
    before = (tmp_path / "eds" / "chat.yaml").stat()
    assert not write_endpoints(tmp_path, "chat", [two, one])
    after = (tmp_path / "eds" / "chat.yaml").stat()
    assert (before.st_ino, before.st_mtime_ns) == (after.st_ino, after.st_mtime_ns)
    assert write_endpoints(tmp_path, "chat", [one])
    assert (tmp_path / "eds" / "chat.yaml").stat().st_ino != before.st_ino  # renamed into place, not written over
    assert [file.name for file in (tmp_path / "eds").iterdir()] == ["chat.yaml"]


def test_writing_again_touches_only_what_changed(tmp_path: Path) -> None:
    config = make(tmp_path, "everything")
    assert len(write(build(config), tmp_path)) == 4
    assert write(build(config), tmp_path) == []
    smaller = config.model_copy(update={"pools": config.pools[:1]})
    assert write(build(smaller), tmp_path) == [tmp_path / "cds.yaml"]
    assert [file.name for file in (tmp_path / "eds").iterdir()] == ["chat.yaml"]


def test_endpoints_are_written_before_the_clusters_that_need_them(tmp_path: Path) -> None:
    assert list(build(make(tmp_path, "everything")).contents) == [
        "eds/chat.yaml",
        "eds/second-pool.yaml",
        "cds.yaml",
        "bootstrap.yaml",
    ]


def test_host_names_of_workers_must_be_looked_up_first(tmp_path: Path) -> None:
    config = Config(pools=[POOL | {"workers": ["engine-0:50051"]}], envoy={"directory": tmp_path})
    with pytest.raises(ValueError, match=r"look up engine-0:50051 first"):
        build(config)


def connection_manager(folder: Path) -> Any:
    (listener,) = read(folder / "bootstrap.yaml")["static_resources"]["listeners"]
    (chain,) = listener["filter_chains"]
    (manager,) = chain["filters"]
    return manager["typed_config"]


def http_filters(folder: Path) -> Any:
    return connection_manager(folder)["http_filters"]


def test_many_endpoints_are_written_as_the_typed_messages_would_be() -> None:
    workers = [HostPort(f"10.0.0.{number}", 50051 + number) for number in range(9)] + [HostPort("fd00::1", 1)]
    typed = files._render(files._resources([build_endpoints("p", workers)]))
    assert render_endpoints("p", list(reversed(workers))) == typed
    assert render_endpoints("p", []) == files._render(files._resources([build_endpoints("p", [])]))
    with pytest.raises(ValueError, match="look up engine:1 first"):
        render_endpoints("p", [*workers, HostPort("engine", 1)])


def test_engines_over_http_get_their_protocol_and_tls_and_no_key() -> None:
    contents = build(Config(**CONFIGURATIONS["engines over HTTP"])).contents
    plain, encrypted = yaml.safe_load(contents[files.CLUSTERS])["resources"]
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    protocols = [
        list(cluster["typed_extension_protocol_options"][options]["explicit_http_config"])
        for cluster in (plain, encrypted)
    ]
    assert protocols == [["http_protocol_options"], ["http2_protocol_options"]]
    assert "transport_socket" not in plain
    context = encrypted["transport_socket"]["typed_config"]
    assert context["sni"] == "llm.example.com"
    assert context["common_tls_context"]["alpn_protocols"] == ["h2"]
    (name,) = context["common_tls_context"]["validation_context"]["match_typed_subject_alt_names"]
    assert name["matcher"] == {"exact": "llm.example.com"}
    assert "localhost.key" not in "".join(contents.values())
