"""What the printed configuration and the processor must agree on."""

from __future__ import annotations

import subprocess
import sys

from extproc.envoyconfig import names
from extproc.gateway import headers


def test_the_gateway_writes_the_headers_that_envoy_reads() -> None:
    assert headers.POOL == names.POOL_HEADER
    assert headers.DESTINATION == names.DESTINATION_HEADER
    assert headers.DEBUG == names.DEBUG_HEADER
    assert {headers.DECISION, headers.LOSSES} <= set(names.STRIPPED_HEADERS)


def test_whoever_writes_no_configuration_does_not_pay_for_its_messages() -> None:
    program = (
        "import sys; import extproc.envoyconfig.names, extproc.envoyconfig.binary, extproc.config.load, "
        "extproc.config.resolve; print([name for name in sys.modules if name.startswith('envoy_data_plane')])"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout.strip() == "[]"
