"""A server that speaks TLS only, and with those who have a certificate."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlencode

import trustme

from tests.servers.server import Server, free_port


class SecureServer(Server):
    """Redis from Debian: the Valkey of the wheel knows no TLS.

    Attributes:
        url: with a certificate of a client's.
        stranger_url: without.
    """

    def __init__(self, command: Path, directory: Path) -> None:
        authority = trustme.CA()
        files = {
            name: directory / f"{name}.pem" for name in ("ca", "server", "server-key", "client")
        }
        server, client = (authority.issue_cert(name) for name in ("127.0.0.1", "client"))
        authority.cert_pem.write_to_path(files["ca"])
        server.cert_chain_pems[0].write_to_path(files["server"])
        server.private_key_pem.write_to_path(files["server-key"])
        client.private_key_and_cert_chain_pem.write_to_path(files["client"])
        port = free_port()
        super().__init__(
            command,
            directory,
            *("--tls-port", str(port), "--tls-auth-clients", "yes"),
            *("--tls-cert-file", str(files["server"]), "--tls-key-file", str(files["server-key"])),
            *("--tls-ca-cert-file", str(files["ca"])),
        )
        self.plain_url = self.url
        trust = {"ssl_ca_certs": str(files["ca"])}
        own = {"ssl_certfile": str(files["client"]), "ssl_keyfile": str(files["client"])}
        self.stranger_url = f"rediss://127.0.0.1:{port}/0?{urlencode(trust)}"
        self.distrusting_url = f"rediss://127.0.0.1:{port}/0?{urlencode(own)}"
        self.url = f"rediss://127.0.0.1:{port}/0?{urlencode(trust | own)}"
