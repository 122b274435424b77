"""The web application of a server: its routes, and what protects it."""

import json
import math
import secrets
from collections.abc import Awaitable, Callable, Sequence
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from zarr.errors import NodeNotFoundError, NodeTypeValidationError

from parts_store.pictures import COLOUR_MAPS, PictureError
from parts_store.web.gateway import Gateway, failure, is_key, log_failure
from parts_store.web.looking import Looker, PictureRequest

_READS = ("Range", "If-Range", "If-Match", "If-None-Match")
_SHOWN = ("Accept-Ranges", "Content-Length", "Content-Range", "ETag")


def make_app(gateway: Gateway, looker: Looker, *, hosts: Sequence[str], cors: Sequence[str] = ()) -> Starlette:
    """Return the application: plain Zarr under /zarr/, and the page at /.

    Parameters
    ----------
    gateway, looker
        What answers for Zarr, and for the page.
    hosts
        The names that clients may call the server by: a page of another site must not reach it by a name of its own.
    cors
        The origins of pages that may read from the server.
    """

    async def page(_: Request) -> Response:
        return _page()

    async def tree(_: Request) -> Response:
        return _json(await looker.tree())

    async def history(_: Request) -> Response:
        return _json(await looker.snapshots())

    async def tile(request: Request) -> Response:
        query = request.query_params
        low, high = _number(query.get("low", "0")), _number(query.get("high", "1"))
        wanted = PictureRequest.parse(request.path_params["path"], query)
        data, repeat = await looker.tile(wanted, low, high, query.get("map", COLOUR_MAPS[0]))
        return Response(data, media_type="image/png", headers={"X-Pixels-Per-Value": str(repeat)})

    async def contrast(request: Request) -> Response:
        return _json(await looker.contrast(PictureRequest.parse(request.path_params["path"], request.query_params)))

    async def values(request: Request) -> Response:
        return _json(await looker.values(request.path_params["path"], request.query_params))

    async def stored(request: Request) -> Response:
        return _json(await looker.stored(request.path_params["path"]))

    async def requests(request: Request) -> Response:
        return _json(await looker.requests(PictureRequest.parse(request.path_params["path"], request.query_params)))

    routes = [
        Route("/", page),
        Route("/api/tree", _careful(tree)),
        Route("/api/history", _careful(history)),
        Route("/api/tile/{path:path}", _careful(tile)),
        Route("/api/contrast/{path:path}", _careful(contrast)),
        Route("/api/values/{path:path}", _careful(values)),
        Route("/api/stored/{path:path}", _careful(stored)),
        Route("/api/requests/{path:path}", _careful(requests)),
        Route("/zarr/{key:path}", gateway, methods=["GET", "HEAD"]),
    ]
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False)]
    if cors:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=list(cors),
                allow_methods=["GET", "HEAD"],
                allow_headers=list(_READS),
                expose_headers=list(_SHOWN),
            )
        )
    app = Starlette(routes=routes, middleware=middleware, exception_handlers={500: _crashed})
    app.router.redirect_slashes = False
    return app


def _careful(respond: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler that answers with 4xx what cannot be shown, and with 500 what cannot be read."""

    async def careful(request: Request) -> Response:
        path = request.path_params.get("path", "")
        if path and not is_key(path):
            return Response(status_code=404)
        asked = path or request.url.path
        try:
            response = await respond(request)
        except PictureError as error:
            return failure(400, asked, str(error))
        except (NodeNotFoundError, NodeTypeValidationError, FileNotFoundError):
            return failure(404, asked, "there is no such array")
        except Exception as error:
            log_failure(asked, error)
            return failure(500, asked, f"it cannot be read ({type(error).__name__}); the log of the server says why")
        response.headers["Cache-Control"] = "no-store"
        return response

    return careful


async def _crashed(request: Request, error: Exception) -> Response:
    log_failure(request.url.path, error)
    return failure(500, request.url.path, f"unexpected error ({type(error).__name__}); the log of the server says more")


def _json(value: Any) -> Response:
    # Names of files may contain half characters, which ASCII can spell.
    return Response(json.dumps(value), media_type="application/json")


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise PictureError("expected finite numbers as low and high")
    return number


def _page() -> Response:
    nonce = secrets.token_urlsafe(16)
    text = (files("parts_store.web") / "page.html").read_text(encoding="utf-8")
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'"
    )
    shown = text.replace("NONCE", nonce).replace('"COLOUR_MAPS"', json.dumps(COLOUR_MAPS))
    return HTMLResponse(
        shown,
        headers={"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"},
    )
