"""Flower's SuperLink behind a gate: `python -m progfed.flower.superlink --operator-secret FILE …`.

All other options are those of `flower-superlink`. One port serves three kinds of callers, and Flower itself asks only
the nodes who they are: without the gate, whoever reaches the port can register nodes and start an app, whose code then
runs on the server and on every node. The gate lets through

- nodes, to the Fleet API: Flower checks their keys;
- the operator, to the Control API: the secret must be in the request, where `flwr` puts it (see `progfed.deploy.keys`);
- server apps of this machine, to the Runtime API: Flower checks the token of their task, and the secret of the process
  that is given these tokens.

Everything else is refused, and so is a request of a node that is too long to be held in memory. This file imports
nothing of progfed, so that it can be run by its path, without torch.
"""

from __future__ import annotations

import argparse
import hmac
import importlib
import json
import stat
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Scope]]
Send = Callable[[Scope], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
"""An ASGI application, as the SuperLink is one."""

FLEET, CONTROL, RUNTIME = "/v1/fleet/", "/v1/control/", "/v1/runtime/"
LARGEST = 2**24
"""The most bytes of a node's request, which are in memory at once: Flower sends what is longer in pieces of 5 MB."""
SHORTEST = 32
"""Characters that a secret must have at least: it must not be guessed."""


class Gate:
    """A SuperLink that lets nodes, its operator and its own server apps through, each only to their own API."""

    def __init__(self, app: App, secret: bytes) -> None:
        self._app, self._expected = app, b"Bearer " + secret

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            if not self._may_pass(scope):
                await _refuse(
                    send, 403, "Only the operator of this SuperLink may do this: the secret is missing or wrong"
                )
            elif scope["path"].startswith(FLEET) and not _is_short(scope):
                await _refuse(send, 413, f"A node's request has a length, of at most {LARGEST} bytes.")
            else:
                await self._app(scope, receive, send)

    def _may_pass(self, scope: Scope) -> bool:
        """Whether a request comes from somebody who may call this API."""
        path = scope["path"]
        if path.startswith(CONTROL):
            given = _headers(scope, b"authorization")
            return len(given) == 1 and hmac.compare_digest(given[0], self._expected)
        if path.startswith(RUNTIME):
            return _on_this_machine(scope)
        return bool(path.startswith(FLEET))


def _headers(scope: Scope, wanted: bytes) -> list[bytes]:
    """The values of a header: none, one, or several where somebody has written it twice."""
    return [value for name, value in scope["headers"] if name == wanted]


def _is_short(scope: Scope) -> bool:
    """Whether a request says how long it is, and that it is not too long; the server holds it to that."""
    length = _headers(scope, b"content-length")
    told = len(length) == 1 and length[0].isdigit() and len(length[0]) < 20
    return told and int(length[0]) <= LARGEST and not _headers(scope, b"transfer-encoding")


def _on_this_machine(scope: Scope) -> bool:
    """Whether the caller's address belongs to this machine: loopback, or the address that was called."""
    (client, _), (server, _) = scope.get("client") or ("", 0), scope.get("server") or ("", 0)
    try:
        return ip_address(client).is_loopback or client == server
    except ValueError:
        return False


async def _refuse(send: Send, status: int, said: str) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps({"detail": said}).encode()})


def read_secret(path: Path) -> bytes:
    """The operator's secret; one that others can read, or could guess, is refused."""
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ValueError(f"others can read {path}: `chmod 600 {path}`")
        secret = path.read_bytes().strip()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if len(secret) < SHORTEST:
        raise ValueError(f"{path} must hold at least {SHORTEST} characters, not {len(secret)}")
    return secret


def main() -> None:
    """Run the SuperLink, with TLS and authenticated nodes, behind the gate."""
    parser = argparse.ArgumentParser(description=__doc__, add_help=False, allow_abbrev=False)
    parser.add_argument("--operator-secret", type=Path, required=True, help="the file with the operator's secret")
    options, rest = parser.parse_known_args()
    try:
        secret = read_secret(options.operator_secret)
    except ValueError as error:
        parser.error(str(error))
    sys.argv[1:] = rest
    # not `import …flower_superlink`: its package has a function of the same name
    flower = importlib.import_module("flwr.superlink.cli.flower_superlink")
    config = flower._parse_superlink_lifespan_config()
    if config.insecure or not config.enable_supernode_auth:
        parser.error("nodes and the operator are known by TLS and keys only: certificates and --enable-supernode-auth")
    config.superexec_auth_secret = options.operator_secret.read_bytes()
    _give_secret(flower, options.operator_secret.absolute())
    _keep_private(config.database)
    serve(flower, config, secret)


def _keep_private(database: str) -> None:
    """Let only its owner read the database, if it is a file: it holds the tokens of server apps."""
    if not database.startswith(":") and "://" not in database:
        path = Path(database)
        path.touch(mode=0o600)
        path.chmod(0o600)


def _give_secret(flower: Any, path: Path) -> None:
    """Give the secret to the process that starts server apps: Flower would start it without one."""
    plain = flower._get_superexec_command

    def with_secret(**settings: Any) -> list[str]:
        return [*plain(**settings), "--superexec-auth-secret-file", str(path)]

    flower._get_superexec_command = with_secret


def serve(flower: Any, config: Any, secret: bytes) -> None:
    """Serve until a signal comes, as `flower-superlink` does, but with the gate."""
    import uvicorn
    from flwr.supercore.http_logging import get_uvicorn_log_config
    from flwr.supercore.logger import console_handler
    from flwr.superlink.main import create_app

    uvicorn.run(
        Gate(create_app(config, flower.SuperLinkLifespan), secret),
        host=config.host,
        port=config.port,
        log_config=get_uvicorn_log_config(console_handler.level),
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        proxy_headers=False,  # the address of the caller must be the real one
    )


if __name__ == "__main__":
    main()
