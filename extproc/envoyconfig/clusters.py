"""Clusters: the processor, and one for each pool with its workers as endpoints.

Inside a pool Envoy goes to the worker that the processor names (`override_host`), and on a retry to the next one of its
list; a worker that is no endpoint of the cluster is passed over, so the endpoint files must name every worker.
"""

from __future__ import annotations

from collections.abc import Sequence

from betterproto2 import Message
from envoy_data_plane.envoy.config.cluster import v3 as cluster
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.endpoint import v3 as endpoint
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.load_balancing_policies.common import v3 as common
from envoy_data_plane.envoy.extensions.load_balancing_policies.least_request import v3 as least_request
from envoy_data_plane.envoy.extensions.load_balancing_policies.override_host import v3 as override_host
from envoy_data_plane.envoy.extensions.load_balancing_policies.ring_hash import v3 as ring_hash
from envoy_data_plane.envoy.extensions.upstreams.http import v3 as upstreams
from envoy_data_plane.envoy.type import v3 as http_type
from envoy_data_plane.envoy.type.metadata import v3 as metadata
from envoy_data_plane.google.protobuf import Any

from extproc.config.address import Address, HostPort
from extproc.config.http_engines import HttpEngine
from extproc.config.schema import Envoy
from extproc.envoyconfig import names
from extproc.envoyconfig.typed import address, extension, seconds, watched
from extproc.envoyconfig.upstream_tls import build_engine_tls

_PROCESSOR_CONNECT_S = 1.0
_PROCESSOR_CHECK_S = 1.0
_PROCESSOR_RECHECK_S = 0.25  # of one that is down: a restart takes no longer than it must
_PROCESSOR_BUFFER_BYTES = 1 << 20  # what a client may send beyond it while the processor takes nothing
_PROCESSOR_WINDOW_BYTES = 1 << 20
_POOL_WINDOW_BYTES = 256 << 10
_CONNECTION_WINDOW_BYTES = 16 << 20
_WAITING_FRAMES = 10_000_000
_MOST_LOAD_PERCENT = 200  # of the mean: a process with more in flight passes what comes on to the next one
_HTTP1_IDLE_S = 4.0
_MIN_RETRIES = 10  # of a pool that run at a time, however few requests there are
_KEEPALIVE = core.TcpKeepalive(keepalive_probes=3, keepalive_time=30, keepalive_interval=10)


def build_processor(
    addresses: Sequence[Address], envoy: Envoy, encryption: core.TransportSocket | None = None
) -> cluster.Cluster:
    """The processor's sockets. Each request in flight is a stream on one of them.

    Health checks are needed for more than balance: without them a dead processor's sockets stay in use.
    """
    by_session = bool(envoy.session_headers) and len(addresses) > 1
    return cluster.Cluster(
        name=names.PROCESSOR_CLUSTER,
        type=cluster.ClusterDiscoveryType.STATIC,
        lb_policy=cluster.ClusterLbPolicy.ROUND_ROBIN if by_session else cluster.ClusterLbPolicy.LEAST_REQUEST,
        load_balancing_policy=_by_session(len(envoy.session_headers)) if by_session else None,
        connect_timeout=seconds(_PROCESSOR_CONNECT_S),
        per_connection_buffer_limit_bytes=_PROCESSOR_BUFFER_BYTES,
        circuit_breakers=_ceiling(envoy.max_requests),
        common_lb_config=cluster.ClusterCommonLbConfig(healthy_panic_threshold=http_type.Percent(value=0.0)),
        health_checks=[
            core.HealthCheck(
                timeout=seconds(_PROCESSOR_CHECK_S),
                interval=seconds(_PROCESSOR_CHECK_S),
                # Envoy waits a minute between checks of a cluster that has served nothing yet.
                no_traffic_interval=seconds(_PROCESSOR_CHECK_S),
                unhealthy_interval=seconds(_PROCESSOR_RECHECK_S),
                unhealthy_threshold=2,
                healthy_threshold=1,
                grpc_health_check=core.HealthCheckGrpcHealthCheck(service_name=names.EXT_PROC_SERVICE),
            )
        ],
        typed_extension_protocol_options=_http2(envoy.max_streams, _PROCESSOR_WINDOW_BYTES),
        load_assignment=_assignment(names.PROCESSOR_CLUSTER, addresses),
        transport_socket=encryption,
    )


def build_pool(
    pool: str, endpoints_file: str, endpoints_directory: str, envoy: Envoy, http: HttpEngine | None = None
) -> cluster.Cluster:
    """A pool of engines. Its endpoints come from a file that is replaced by rename.

    `http`: of engines that speak HTTP, without it gRPC. Their key is not here: the processor adds it to requests.
    """
    http1 = http is not None and http.protocol == "http1"
    protocol = _http1() if http1 else _http2(envoy.max_streams, _POOL_WINDOW_BYTES)
    return cluster.Cluster(
        name=pool,
        type=cluster.ClusterDiscoveryType.EDS,
        eds_cluster_config=cluster.ClusterEdsClusterConfig(
            service_name=pool, eds_config=watched(endpoints_file, endpoints_directory)
        ),
        connect_timeout=seconds(envoy.connect_timeout_s),
        circuit_breakers=_ceiling(
            envoy.max_requests,
            cluster.CircuitBreakersThresholdsRetryBudget(
                budget_percent=http_type.Percent(value=envoy.retry_budget_percent), min_retry_concurrency=_MIN_RETRIES
            ),
        ),
        # TCP's, as gRPC servers take frequent HTTP/2 pings for an attack.
        upstream_connection_options=cluster.UpstreamConnectionOptions(tcp_keepalive=_KEEPALIVE),
        typed_extension_protocol_options=protocol,
        # With its own limit, 1 MiB, Envoy reads so much of an answer ahead of a client that takes none.
        per_connection_buffer_limit_bytes=_POOL_WINDOW_BYTES if http1 else None,
        load_balancing_policy=_named_host(),
        transport_socket=None if http is None or http.tls is None else build_engine_tls(http),
    )


def build_endpoints(pool: str, workers: Sequence[HostPort]) -> endpoint.ClusterLoadAssignment:
    """A pool's workers, which must be IP addresses, in a fixed order: equal sets give equal files."""
    names_left = [str(worker) for worker in workers if not worker.is_ip]
    if names_left:
        raise ValueError(f"Envoy takes only IP addresses as endpoints: look up {', '.join(names_left)} first")
    return _assignment(pool, sorted(workers))


def _by_session(headers: int) -> cluster.LoadBalancingPolicy:
    """By the first of the headers that an exchange has, as the listener copies them; by chance without any."""
    policies = [
        route.RouteActionHashPolicy(
            header=route.RouteActionHashPolicyHeader(header_name=names.session_metadata(at)), terminal=True
        )
        for at in range(headers)
    ]
    return _only(
        "envoy.load_balancing_policies.ring_hash",
        ring_hash.RingHash(
            consistent_hashing_lb_config=common.ConsistentHashingLbConfig(
                hash_policy=policies, hash_balance_factor=_MOST_LOAD_PERCENT
            )
        ),
    )


def _only(name: str, message: Message) -> cluster.LoadBalancingPolicy:
    policy = cluster.LoadBalancingPolicyPolicy(typed_extension_config=extension(name, message))
    return cluster.LoadBalancingPolicy(policies=[policy])


def _named_host() -> cluster.LoadBalancingPolicy:
    source = override_host.OverrideHostOverrideHostSource(
        metadata=metadata.MetadataKey(
            key=names.DESTINATION_NAMESPACE,
            path=[metadata.MetadataKeyPathSegment(key=names.DESTINATION_HEADER)],
        )
    )
    return _only(
        "envoy.load_balancing_policies.override_host",
        override_host.OverrideHost(
            override_host_sources=[source],
            fallback_policy=_only("envoy.load_balancing_policies.least_request", least_request.LeastRequest()),
        ),
    )


def _ceiling(
    requests: int, retry_budget: cluster.CircuitBreakersThresholdsRetryBudget | None = None
) -> cluster.CircuitBreakers:
    """Envoy's own ceiling, 1,024, is too low where each request lasts as long as its answer is generated."""
    return cluster.CircuitBreakers(
        thresholds=[
            cluster.CircuitBreakersThresholds(
                max_connections=requests,
                max_pending_requests=requests,
                max_requests=requests,
                retry_budget=retry_budget,
            )
        ]
    )


def _http2(max_streams: int, stream_window_bytes: int) -> dict[str, Any]:
    """With Envoy's own windows (16 MiB) one client that does not read its answer cost 61 MB of Envoy's memory, with a
    window of 256 KiB 3.5 MB, at the same speed: what has come from the worker passes the processor before it is held.

    Envoy ends every exchange with a reset. With its own ceilings of frames that wait to be written (1,000 resets and
    pings, 10,000 in all) it took a peer that was busy for a moment for an attacker, and broke the connection with all
    its streams: 400 of 2,000 that ended together. Windows bound what waits, and the peers are our own.
    """
    options = upstreams.HttpProtocolOptions(
        explicit_http_config=upstreams.HttpProtocolOptionsExplicitHttpConfig(
            http2_protocol_options=core.Http2ProtocolOptions(
                max_concurrent_streams=max_streams,
                initial_stream_window_size=stream_window_bytes,
                initial_connection_window_size=_CONNECTION_WINDOW_BYTES,
                max_outbound_frames=_WAITING_FRAMES,
                max_outbound_control_frames=_WAITING_FRAMES,
            )
        )
    )
    return {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": Any.pack(options)}


def _http1() -> dict[str, Any]:
    """Idle connections are closed before servers close them: uvicorn does so after 5 s, and a request that crosses that
    on its way is lost.
    """
    options = upstreams.HttpProtocolOptions(
        common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=seconds(_HTTP1_IDLE_S)),
        explicit_http_config=upstreams.HttpProtocolOptionsExplicitHttpConfig(
            http_protocol_options=core.Http1ProtocolOptions()
        ),
    )
    return {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": Any.pack(options)}


def _assignment(name: str, addresses: Sequence[Address]) -> endpoint.ClusterLoadAssignment:
    hosts = [endpoint.LbEndpoint(endpoint=endpoint.Endpoint(address=address(each))) for each in addresses]
    return endpoint.ClusterLoadAssignment(
        cluster_name=name, endpoints=[endpoint.LocalityLbEndpoints(lb_endpoints=hosts)] if hosts else []
    )
