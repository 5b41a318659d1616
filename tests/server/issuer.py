"""An identity provider on this machine: keys, tokens, and an HTTP server that publishes the keys."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

ISSUER, AUDIENCE = "https://id.example", "perdure"
SECRET = "0123456789abcdef-0123456789ABCDEF"
OTHER_SECRET = "fedcba9876543210-FEDCBA9876543210"


@cache
def rsa_key(name: str, bits: int = 2048) -> rsa.RSAPrivateKey:
    """A key pair by name; to make one takes long."""
    return rsa.generate_private_key(65537, bits)


@cache
def ec_key(name: str) -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@cache
def ed_key(name: str) -> ed25519.Ed25519PrivateKey:
    return ed25519.Ed25519PrivateKey.generate()


def public_pem(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def private_pem(key: Any) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()


def claims(**changed: Any) -> dict[str, Any]:
    """Those of a good token; a change to None leaves one out."""
    now = int(time.time())
    good = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": now, "exp": now + 86_400}
    return {name: value for name, value in (good | changed).items() if value is not None}


def token(key: Any, algorithm: str, *, kid: str | None = None, **changed: Any) -> str:
    return jwt.encode(claims(**changed), key, algorithm, {"kid": kid} if kid else None)


def published(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    """A private key's public half as a JWKS has it."""
    algorithm: dict[type, Any] = {
        rsa.RSAPrivateKey: jwt.algorithms.RSAAlgorithm,
        ec.EllipticCurvePrivateKey: jwt.algorithms.ECAlgorithm,
        ed25519.Ed25519PrivateKey: jwt.algorithms.OKPAlgorithm,
    }
    to_jwk = next(found.to_jwk for kind, found in algorithm.items() if isinstance(key, kind))
    data = to_jwk(key.public_key(), as_dict=True)
    return {**data, "use": "sig", **({"kid": kid} if kid else {}), **more}


class Publisher:
    """What a provider publishes, how it answers, and how often it was asked."""

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.status = 200
        self.headers: Mapping[str, str] = {}
        self.body: bytes | None = None
        self.pause = 0.0
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked = 0
        self.url = ""


@contextmanager
def publisher(*keys: Any) -> Iterator[Publisher]:
    said = Publisher()
    said.keys = list(keys)

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said.asked += 1
            time.sleep(said.pause)
            said.may_answer.wait(60)
            body = json.dumps({"keys": said.keys}).encode() if said.body is None else said.body
            self.send_response(said.status)
            for name, value in said.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None: ...

    class Server(ThreadingHTTPServer):
        def handle_error(self, *args: Any) -> None:
            """A client that gave up is part of a test."""

    server = Server(("127.0.0.1", 0), Answers)
    said.url = f"http://127.0.0.1:{server.server_port}/jwks.json"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield said
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
