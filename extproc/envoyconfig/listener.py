"""The listener: one HTTP connection manager with one ext_proc filter, and routes by pool.

One ext_proc filter, full duplex both ways, because two in a chain lose bodies on older Envoys, and because only this
mode lets the header reply wait for the body. Routes name no pool: a request goes to the cluster that the processor
writes into a header, so a new pool needs no new listener.
"""

from __future__ import annotations

from envoy_data_plane.envoy.config.accesslog import v3 as accesslog
from envoy_data_plane.envoy.config.common.mutation_rules import v3 as mutation
from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.config.listener import v3 as listener
from envoy_data_plane.envoy.config.route import v3 as route
from envoy_data_plane.envoy.extensions.access_loggers.filters.cel import v3 as cel
from envoy_data_plane.envoy.extensions.access_loggers.stream import v3 as stream_log
from envoy_data_plane.envoy.extensions.filters.http.ext_proc import v3 as ext_proc
from envoy_data_plane.envoy.extensions.filters.http.router import v3 as router
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager import v3 as hcm
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation import v3 as early
from envoy_data_plane.envoy.extensions.transport_sockets.tls import v3 as tls
from envoy_data_plane.envoy.type import v3 as http_type
from envoy_data_plane.google.protobuf import Any, Struct

from extproc.config.schema import Config, Tls
from extproc.envoyconfig import cors, names
from extproc.envoyconfig.typed import NEVER, address, extension, seconds

LISTENER = "clients"

_RETRY_ON = "connect-failure,refused-stream,reset,unavailable,resource-exhausted,retriable-status-codes"
_RETRIED_STATUSES = (429, 503)  # of engines over HTTP: full, or not there yet
_STREAM_WINDOW_BYTES = 1 << 20
_CONNECTION_WINDOW_BYTES = 16 << 20
_BUFFER_BYTES = 1 << 20
_ORIGINAL_PATH = "x-gateway-original-path"
_REQUEST_HEADERS_TIMEOUT_S = 60.0  # a slow sender of headers holds a connection no longer
_IDLE_CONNECTION_S = 3600.0

# Envoy obeys x-envoy-* headers (retries, time-outs) of internal clients, and takes an empty list for all private
# networks; so the list has an address that no client has.
_NOBODY_IS_INTERNAL = hcm.HttpConnectionManagerInternalAddressConfig(
    cidr_ranges=[core.CidrRange(address_prefix="0.0.0.0", prefix_len=32)]  # noqa: S104
)

_PINGS = core.KeepaliveSettings(interval=seconds(30.0), timeout=seconds(20.0))
_TCP_KEEPALIVE = core.TcpKeepalive(keepalive_probes=3, keepalive_time=30, keepalive_interval=10)

_RETRY_AFTER_S = "2"  # a health check later, what came back is in use

_ACCESS_LOG = {
    "id": "%REQ(x-request-id)%",
    "start": "%START_TIME%",
    "method": "%REQ(:method)%",
    "path": f"%REQ({_ORIGINAL_PATH})%",
    "status": "%RESPONSE_CODE%",
    "details": "%RESPONSE_CODE_DETAILS%",
    "flags": "%RESPONSE_FLAGS%",
    "pool": f"%REQ({names.POOL_HEADER})%",
    "worker": "%UPSTREAM_HOST%",
    "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
    "received_bytes": "%BYTES_RECEIVED%",
    "sent_bytes": "%BYTES_SENT%",
    "duration_ms": "%DURATION%",
    "client": "%DOWNSTREAM_REMOTE_ADDRESS%",
    "processor": "%FILTER_STATE(envoy.filters.http.ext_proc:TYPED)%",
}


def build_listener(config: Config) -> listener.Listener:
    """Where clients connect."""
    manager = listener.Filter(
        name="envoy.filters.network.http_connection_manager", typed_config=Any.pack(_connection_manager(config))
    )
    return listener.Listener(
        name=LISTENER,
        address=address(config.listen.http),
        per_connection_buffer_limit_bytes=_BUFFER_BYTES,
        tcp_keepalive=_TCP_KEEPALIVE,
        filter_chains=[
            listener.FilterChain(
                filters=[manager],
                transport_socket=_tls(config.listen.tls) if config.listen.tls else None,
            )
        ],
    )


def _connection_manager(config: Config) -> hcm.HttpConnectionManager:
    envoy = config.envoy
    return hcm.HttpConnectionManager(
        stat_prefix=LISTENER,
        use_remote_address=True,
        internal_address_config=_NOBODY_IS_INTERNAL,
        normalize_path=True,
        # Clients correlate by the id that they sent; SDKs show the one that comes back.
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        max_request_headers_kb=envoy.request_header_kib,
        request_headers_timeout=seconds(_REQUEST_HEADERS_TIMEOUT_S),
        # A prompt may take minutes to its first token; the processor's deadline ends an exchange.
        stream_idle_timeout=NEVER,
        common_http_protocol_options=core.HttpProtocolOptions(idle_timeout=seconds(_IDLE_CONNECTION_S)),
        http2_protocol_options=core.Http2ProtocolOptions(
            max_concurrent_streams=envoy.max_streams,
            initial_stream_window_size=_STREAM_WINDOW_BYTES,
            initial_connection_window_size=_CONNECTION_WINDOW_BYTES,
            # While a prompt takes its minutes nothing else goes over the connection, which what lies between may cut.
            connection_keepalive=_PINGS,
        ),
        early_header_mutation_extensions=[_early_mutations(config)],
        access_log=[_access_log()] if envoy.access_log else [],
        http_filters=[
            *([cors.build_filter()] if config.cors.origins else []),
            hcm.HttpFilter(name="envoy.filters.http.ext_proc", typed_config=Any.pack(_ext_proc(config))),
            hcm.HttpFilter(name="envoy.filters.http.router", typed_config=Any.pack(router.Router())),
        ],
        local_reply_config=_local_replies(),
        route_config=_routes(config),
    )


def _local_replies() -> hcm.LocalReplyConfig:
    """What a client reads where nobody else can say it: no processor answers, or a worker broke before its answer.

    Every other local reply is the processor's own, or was translated by it, and stays as it is.
    """
    return hcm.LocalReplyConfig(
        mappers=[
            _local_reply("ext_proc_error", "The gateway is not ready. Try again shortly.", "processor_unavailable"),
            _local_reply("upstream_", "The worker could not be reached. Try again shortly.", "worker_unavailable"),
        ]
    )


def _local_reply(details: str, message: str, code: str) -> hcm.ResponseMapper:
    """OpenAI's form for replies whose response code details begin so."""
    expression = cel.ExpressionFilter(expression=f"response.code_details.startsWith('{details}')")
    error = {"error": {"message": message, "type": "server_error", "param": None, "code": code}}
    return hcm.ResponseMapper(
        filter=accesslog.AccessLogFilter(
            extension_filter=accesslog.ExtensionFilter(
                name="envoy.access_loggers.extension_filters.cel", typed_config=Any.pack(expression)
            )
        ),
        headers_to_add=[
            core.HeaderValueOption(
                header=core.HeaderValue(key="retry-after", value=_RETRY_AFTER_S),
                append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
            )
        ],
        body_format_override=core.SubstitutionFormatString(json_format=Struct.from_dict(error)),
    )


def _early_mutations(config: Config) -> core.TypedExtensionConfig:
    """Before anything else sees the request: a client must never choose the pool or the worker."""
    stripped = names.STRIPPED_HEADERS if config.debug.clients else (*names.STRIPPED_HEADERS, names.DEBUG_HEADER)
    mutations = [mutation.HeaderMutation(remove=name) for name in stripped]
    if config.envoy.access_log:  # the processor changes the path, and the log is written at the end
        path = core.HeaderValueOption(
            header=core.HeaderValue(key=_ORIGINAL_PATH, value="%REQ(:path)%"),
            append_action=core.HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        mutations.append(mutation.HeaderMutation(append=path))
    return extension("envoy.http.early_header_mutation.header_mutation", early.HeaderMutation(mutations=mutations))


def _ext_proc(config: Config) -> ext_proc.ExternalProcessor:
    send = ext_proc.ProcessingModeHeaderSendMode.SEND
    duplex = ext_proc.ProcessingModeBodySendMode.FULL_DUPLEX_STREAMED
    return ext_proc.ExternalProcessor(
        grpc_service=core.GrpcService(
            envoy_grpc=core.GrpcServiceEnvoyGrpc(cluster_name=names.PROCESSOR_CLUSTER),
            # Only for the choice of a process: absent headers are left out.
            initial_metadata=[
                core.HeaderValue(key=names.session_metadata(at), value=f"%REQ({header})%")
                for at, header in enumerate(config.envoy.session_headers)
            ],
        ),
        failure_mode_allow=False,
        status_on_error=http_type.HttpStatus(code=http_type.StatusCode.ServiceUnavailable),
        processing_mode=ext_proc.ProcessingMode(
            request_header_mode=send,
            request_body_mode=duplex,
            request_trailer_mode=send,
            response_header_mode=send,
            response_body_mode=duplex,
            response_trailer_mode=send,
        ),
        request_attributes=[names.CLIENT_ADDRESS_ATTRIBUTE] if config.debug.clients else [],
        response_attributes=list(names.RESPONSE_ATTRIBUTES),
        mutation_rules=mutation.HeaderMutationRules(allow_all_routing=True),
        metadata_options=ext_proc.MetadataOptions(
            # Envoy repeats these in every message, so not the destination, which the processor knows: on streams that
            # was a tenth of Envoy's and of the processor's work.
            forwarding_namespaces=ext_proc.MetadataOptionsMetadataNamespaces(untyped=[names.SUBSET_NAMESPACE]),
            receiving_namespaces=ext_proc.MetadataOptionsMetadataNamespaces(untyped=[names.DESTINATION_NAMESPACE]),
        ),
    )


def _routes(config: Config) -> route.RouteConfiguration:
    envoy = config.envoy
    to_pool = route.Route(
        name="pool",
        match=route.RouteMatch(prefix="/", headers=[route.HeaderMatcher(name=names.POOL_HEADER, present_match=True)]),
        request_body_buffer_limit=envoy.retry_body_bytes,
        route=route.RouteAction(
            cluster_header=names.POOL_HEADER,
            timeout=NEVER,
            idle_timeout=NEVER,
            retry_policy=_retries(envoy.retries) if envoy.retries else None,
        ),
    )
    # Every request needs a route when its headers arrive; the processor answers it or picks a pool. Not a direct
    # response, which Envoy's CORS filter would pass by.
    no_pool = route.Route(
        name="no-pool",
        match=route.RouteMatch(prefix="/"),
        route=route.RouteAction(
            cluster_header=names.POOL_HEADER,
            cluster_not_found_response_code=route.RouteActionClusterNotFoundResponseCode.NOT_FOUND,
            timeout=NEVER,
            idle_timeout=NEVER,
        ),
    )
    return route.RouteConfiguration(
        name=LISTENER,
        virtual_hosts=[
            route.VirtualHost(
                name=LISTENER,
                domains=["*"],
                routes=[to_pool, no_pool],
                typed_per_filter_config=cors.build_policy(config.cors) if config.cors.origins else {},
            )
        ],
    )


def _retries(most: int) -> route.RetryPolicy:
    return route.RetryPolicy(retry_on=_RETRY_ON, retriable_status_codes=list(_RETRIED_STATUSES), num_retries=most)


def _access_log() -> accesslog.AccessLog:
    return accesslog.AccessLog(
        name="envoy.access_loggers.stdout",
        typed_config=Any.pack(
            stream_log.StdoutAccessLog(
                log_format=core.SubstitutionFormatString(json_format=Struct.from_dict(_ACCESS_LOG))
            )
        ),
    )


def _tls(files: Tls) -> core.TransportSocket:
    certificate = tls.TlsCertificate(
        certificate_chain=core.DataSource(filename=str(files.certificate)),
        private_key=core.DataSource(filename=str(files.key)),
    )
    context = tls.DownstreamTlsContext(
        common_tls_context=tls.CommonTlsContext(tls_certificates=[certificate], alpn_protocols=["h2", "http/1.1"])
    )
    return core.TransportSocket(name="envoy.transport_sockets.tls", typed_config=Any.pack(context))
