"""The page: files of the package, sent as they are or compressed, under a policy that lets them fetch nothing from elsewhere."""

import gzip
import hashlib
import re
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from dragoman.serve.refusals import RefusalError
from dragoman.serve.service import Service

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
ROOT = files("dragoman.serve").joinpath("web")
_NAME = re.compile(rf"(?:[a-z0-9][a-z0-9_-]*/){{0,3}}[a-z0-9][a-z0-9_-]*\.(?P<kind>{'|'.join(_TYPES)})", re.ASCII)


async def page(request: Request) -> Response:
    """GET /: the page for browsers; for programs, which do not ask for HTML, the documents."""
    service: Service = request.app.state.service
    prefix = service.settings.url_prefix
    if "text/html" not in request.headers.get("accept", ""):
        return RedirectResponse(f"{prefix}/docs", status_code=302)
    if prefix and not request.scope["raw_path"].split(b"?")[0].endswith(b"/"):  # what the page names is beside it
        return RedirectResponse(f"{prefix}/", status_code=302)
    return _answer(request, "index.html", vary=True)


async def file(request: Request) -> Response:
    """GET /web/…: what the page is made of."""
    return _answer(request, request.path_params["path"])


def _answer(request: Request, name: str, *, vary: bool = False) -> Response:
    found = _NAME.fullmatch(name)
    if found is None or not ROOT.joinpath(*name.split("/")).is_file():
        raise RefusalError(404, "Not found")
    zipped = re.search(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", request.headers.get("accept-encoding", "")) is not None
    content, tag = _content(name, zipped=zipped)
    headers = {
        "ETag": tag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY,
        "Vary": "Accept, Accept-Encoding" if vary else "Accept-Encoding", **({"Content-Encoding": "gzip"} if zipped else {}),
    }  # fmt: skip
    known = request.headers.get("if-none-match", "").strip()
    if known == "*" or tag in re.findall(r'"[^"]*"', known):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=f"{_TYPES[found['kind']]}; charset=utf-8", headers=headers)


def _content(name: str, *, zipped: bool) -> tuple[bytes, str]:
    """A file of the package, compressed or as it is, and its tag."""
    content = ROOT.joinpath(*name.split("/")).read_bytes()
    tag = hashlib.sha256(content).hexdigest()[:32]
    return (gzip.compress(content, mtime=0), f'"{tag}-gzip"') if zipped else (content, f'"{tag}"')
