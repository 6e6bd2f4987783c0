"""TLS from Envoy to the processor, and to engines over HTTP.

Certificates are secrets with files of their own, since only for those does Envoy notice that they were replaced; a file
holds one secret.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from envoy_data_plane.envoy.config.core import v3 as core
from envoy_data_plane.envoy.extensions.transport_sockets.tls import v3 as tls
from envoy_data_plane.envoy.type.matcher import v3 as matcher
from envoy_data_plane.google.protobuf import Any

from extproc.config.http_engines import HttpEngine
from extproc.config.schema import ProcessorTls
from extproc.envoyconfig.typed import watched

_AUTHORITIES = "processor-ca"
_SHOWN = "processor-client"


def build_secrets(files: ProcessorTls) -> Mapping[str, tls.Secret]:
    """By name."""
    context = tls.CertificateValidationContext(trusted_ca=_file(files.ca), watched_directory=_folder(files.ca))
    if files.server_name is not None:
        context.match_typed_subject_alt_names = [
            tls.SubjectAltNameMatcher(
                san_type=tls.SubjectAltNameMatcherSanType.DNS,
                matcher=matcher.StringMatcher(exact=files.server_name),
            )
        ]
    secrets = {_AUTHORITIES: tls.Secret(name=_AUTHORITIES, validation_context=context)}
    if files.client_certificate is not None and files.client_key is not None:
        certificate = tls.TlsCertificate(
            certificate_chain=_file(files.client_certificate),
            private_key=_file(files.client_key),
            watched_directory=_folder(files.client_certificate),
        )
        secrets[_SHOWN] = tls.Secret(name=_SHOWN, tls_certificate=certificate)
    return secrets


def build_upstream_tls(files: ProcessorTls, secret_files: Mapping[str, str], directory: str) -> core.TransportSocket:
    """`secret_files`: where Envoy finds each of the secrets, by name; all are in `directory`."""

    def secret(name: str) -> tls.SdsSecretConfig:
        return tls.SdsSecretConfig(name=name, sds_config=watched(secret_files[name], directory))

    context = tls.CommonTlsContext(
        # Towards upstreams, Envoy's own highest is 1.2.
        tls_params=tls.TlsParameters(tls_maximum_protocol_version=tls.TlsParametersTlsProtocol.TLSv1_3),
        alpn_protocols=["h2"],
        validation_context_sds_secret_config=secret(_AUTHORITIES),
        tls_certificate_sds_secret_configs=[secret(_SHOWN)] if _SHOWN in secret_files else [],
    )
    return core.TransportSocket(
        name="envoy.transport_sockets.tls",
        typed_config=Any.pack(tls.UpstreamTlsContext(common_tls_context=context, sni=files.server_name or "")),
    )


def build_engine_tls(http: HttpEngine) -> core.TransportSocket:
    """For the endpoints of a pool, which all have certificates for one name."""
    files = http.tls
    assert files is not None
    context = tls.CertificateValidationContext(
        trusted_ca=_file(files.ca),
        match_typed_subject_alt_names=[
            tls.SubjectAltNameMatcher(
                san_type=tls.SubjectAltNameMatcherSanType.DNS, matcher=matcher.StringMatcher(exact=files.server_name)
            )
        ],
    )
    common = tls.CommonTlsContext(
        tls_params=tls.TlsParameters(tls_maximum_protocol_version=tls.TlsParametersTlsProtocol.TLSv1_3),
        alpn_protocols=["h2"] if http.protocol == "http2" else ["http/1.1"],
        validation_context=context,
    )
    return core.TransportSocket(
        name="envoy.transport_sockets.tls",
        typed_config=Any.pack(tls.UpstreamTlsContext(common_tls_context=common, sni=files.server_name)),
    )


def _file(path: Path) -> core.DataSource:
    return core.DataSource(filename=str(path))


def _folder(path: Path) -> core.WatchedDirectory:
    """Renewed certificates come by rename of a file in it, or of a link in it that leads to them (Kubernetes)."""
    return core.WatchedDirectory(path=str(path.parent))
