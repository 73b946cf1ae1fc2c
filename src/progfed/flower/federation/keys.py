"""Certificates for TLS, keys for nodes, and the operator's secret: made for one federation, and kept by their owners.

As a command, `python -m progfed.flower.federation.keys certificates|node|operator|login …` (see docs/deployment.md).
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from progfed.errors import UsageError

try:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
except ImportError as missing:
    raise UsageError(f"certificates need the package cryptography ({missing}): install progfed[flower]") from missing

_DAYS = 825
"""How long certificates are valid; longer ones are refused by some systems."""


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """A certificate authority of one's own, and the SuperLink's certificate for these names and addresses.

    Writes `ca.crt`, which every machine gets, and `server.pem` with `server.key`, which stay with the SuperLink. The
    authority's key is not kept: nothing else will ever be signed with it. 127.0.0.1 is always among the addresses:
    there the SuperLink's own server apps reach it.
    """
    hosts = [*hosts, *(["127.0.0.1"] if "127.0.0.1" not in hosts else [])]
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, server_key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "progfed federation")])
    identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = (
        _certificate(ca_name, ca_name, ca_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    server = (
        _certificate(name, ca_name, server_key.public_key())
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    _write(folder / "ca.crt", ca.public_bytes(serialization.Encoding.PEM))
    _write(folder / "server.pem", server.public_bytes(serialization.Encoding.PEM))
    _write_secret(folder / "server.key", server_key, serialization.PrivateFormat.PKCS8)


def make_node_key(path: Path) -> None:
    """Make a node's key: `path` stays with the node, and `path` with `.pub` is registered with the SuperLink."""
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(path, key, serialization.PrivateFormat.OpenSSH)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    _write(path.with_name(f"{path.name}.pub"), public + b"\n")


def make_operator_secret(path: Path) -> None:
    """Make the secret of the operator, who registers nodes and starts runs; for SuperLink and `remember_operator`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_private(path, secrets.token_urlsafe(32).encode())


def remember_operator(home: Path, address: str, secret: Path) -> None:
    """Let `flwr` show the operator's secret to the SuperLink at this address.

    It goes to `credentials.yaml` of Flower's settings folder, where `flwr` looks for who its user is.
    """
    import yaml  # type: ignore[import-untyped]

    path, name = home / "credentials.yaml", f"flower.account-auth.{address}"
    token = secret.read_bytes().strip()
    # Flower calls the kind of all its tokens "oidc"; a refresh token must be there, and is never sent
    ours = {"authn-type": b"oidc", "oidc-access-token": token, "oidc-refresh-token": b"none"}
    known = (yaml.safe_load(path.read_text()) if path.exists() else None) or {}
    known |= {f"{name}.{key}": base64.b64encode(value).decode() for key, value in ours.items()}
    home.mkdir(parents=True, exist_ok=True)
    _write_private(path, json.dumps(known, indent=1).encode())  # JSON is YAML


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # clocks of other machines may lag
        .not_valid_after(now + timedelta(days=_DAYS))
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _write_secret(path: Path, key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> None:
    _write_private(path, key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))


def _write_private(path: Path, data: bytes) -> None:
    """A file that only its owner can read, from the first moment on."""
    path.unlink(missing_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def _write(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def main() -> None:
    """Run the command that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="kind", required=True)
    kind = kinds.add_parser("certificates", help="for the SuperLink: ca.crt, server.pem, server.key")
    kind.add_argument("folder", type=Path)
    kind.add_argument("host", nargs="+", help="a name or an address by which nodes reach the SuperLink")
    kinds.add_parser("node", help="a node's key, and its public part").add_argument("file", type=Path)
    kinds.add_parser("operator", help="the operator's secret").add_argument("file", type=Path)
    kind = kinds.add_parser("login", help="use the operator's secret in `flwr`")
    kind.add_argument("address", help="host:port, as in config.toml")
    kind.add_argument("file", type=Path, help="the operator's secret")
    options = parser.parse_args()
    if options.kind == "certificates":
        make_certificates(options.folder, options.host)
    elif options.kind == "node":
        make_node_key(options.file)
    elif options.kind == "operator":
        make_operator_secret(options.file)
    else:
        home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
        remember_operator(home, options.address, options.file)


if __name__ == "__main__":
    main()
