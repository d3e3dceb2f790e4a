"""What stands between the network and the app: who may ask, how much, how often, and the headers of every answer."""

import asyncio
import ipaddress
import json
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOCAL = re.compile(r"(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?", re.ASCII | re.IGNORECASE)
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


def is_local(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Limits:
    """How much one client may ask, and how fast."""

    body: int = 8 << 20  # bytes of a request
    seconds: float = 20.0  # that it may take to arrive
    burst: float = 60.0  # requests at once
    rate: float = 20.0  # a second, from then on
    clients: int = 4096  # that are told apart
    at_once: int = 32  # requests that are being read or answered, of all clients
    at_once_each: int = 8


@dataclass
class Buckets:
    """A bucket of tokens for each client: full at first, one taken by each request, refilled at a steady rate."""

    limits: Limits
    clock: Callable[[], float] = time.monotonic
    kept: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)  # tokens, and when

    def wait(self, client: str, tokens: float) -> float:
        """Take tokens, or say in how many seconds there will be enough."""
        now, most = self.clock(), self.limits.burst
        left, then = self.kept.pop(client, (most, now))
        left = min(most, left + (now - then) * self.limits.rate)
        lacking = max(0.0, tokens - left)
        self.kept[client] = (left if lacking else left - tokens, now)
        if len(self.kept) > self.limits.clients:  # the one that was silent for longest: its bucket is the fullest
            self.kept.popitem(last=False)
        return lacking / self.limits.rate


class Refused(Exception):
    """A request that goes no further."""

    def __init__(self, status: int, detail: str, **headers: str) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, headers


class Gone(Exception):
    """Whoever asked does not wait for an answer."""


@dataclass
class Guard:
    """ASGI middleware. Bodies are read here, up to a size and within a time, before anything looks at them."""

    app: ASGIApp
    limits: Limits
    local: bool  # whether only this machine may ask: then a name that others point here (DNS rebinding) is refused
    costs: dict[str, float] = field(default_factory=dict)  # tokens of a path, where it is not one

    def __post_init__(self) -> None:
        self.buckets = Buckets(self.limits)
        self.busy: Counter[str] = Counter()  # requests of each client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let through what is within the limits."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers[name] = value
            await send(message)

        client = (scope.get("client") or ("unknown",))[0]
        try:
            self._require_known(Headers(scope=scope))
            self._require_tokens(client, scope["path"])
            self.busy[client] += 1
            try:
                waiting = [await self._body(Headers(scope=scope), receive)]

                async def replay() -> Message:
                    return {"type": "http.request", "body": waiting.pop()} if waiting else await receive()

                await self.app(scope, replay, secured)
            finally:
                self.busy[client] -= 1
                self.busy += Counter()  # forgets whoever has none
        except Refused as refusal:
            await _refuse(refusal, secured)
        except Gone:
            pass

    def _require_known(self, headers: Headers) -> None:
        host = headers.get("host", "")
        if self.local and not LOCAL.fullmatch(host):
            raise Refused(403, "this server answers to localhost and 127.0.0.1 only")
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != host:
            raise Refused(403, "this server does not answer to pages of other sites")

    def _require_tokens(self, client: str, path: str) -> None:
        seconds = self.buckets.wait(client, self.costs.get(path, 1.0))
        if seconds > 0 or self.busy[client] >= self.limits.at_once_each:
            raise Refused(429, "too many requests; wait a little", **{"Retry-After": str(int(seconds) + 1)})
        if self.busy.total() >= self.limits.at_once:
            raise Refused(503, "too many requests of others; wait a little", **{"Retry-After": "1"})

    async def _body(self, headers: Headers, receive: Receive) -> bytes:
        most = self.limits.body
        too_large = Refused(413, f"a request may have at most {most:,} bytes", Connection="close")
        stated = headers.get("content-length", "0")
        if not (stated.isascii() and stated.isdigit()) or len(stated) > 12 or int(stated) > most:
            raise too_large
        parts, size = [], 0
        try:
            async with asyncio.timeout(self.limits.seconds):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Gone
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise too_large
                    if not message.get("more_body", False):
                        return b"".join(parts)
        except TimeoutError:
            raise Refused(408, "the request took too long to arrive", Connection="close") from None


async def _refuse(refusal: Refused, send: Send) -> None:
    body = json.dumps({"detail": refusal.detail}).encode()
    given = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    headers = [(name.lower().encode(), value.encode()) for name, value in given.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
