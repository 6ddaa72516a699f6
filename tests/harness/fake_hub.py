"""The part of the Hugging Face hub's HTTP API that serves data sets, for tests: somebody else's program."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from aiohttp import web

from tests.harness.threads import application

Files = Mapping[str, bytes]


@dataclass(slots=True, kw_only=True)
class FakeHub:
    """`repositories`: by name, their commits with the files of each. `heads`: which commit each branch of one has.

    `gated`: names of repositories that ask for a granted token. `is_broken`: it says 500 to all, with the token.
    `moved`: former names, without an owner, and what each is called now.
    """

    repositories: dict[str, dict[str, Files]]
    heads: dict[str, dict[str, str]]
    gated: frozenset[str] = frozenset()
    is_broken: bool = False
    moved: Mapping[str, str] = field(default_factory=dict)
    port: int = 0
    fetched: list[str] = field(default_factory=list)
    """Files whose content was sent, as `COMMIT/PATH`."""
    asked: list[str] = field(default_factory=list)
    """Every request, as `GET /path`."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard])
        api, name = "/api/datasets", "{owner}/{name}"
        app.router.add_get(f"{api}/{{name}}", self._redirect)
        app.router.add_get(f"{api}/{name}", self._info)
        app.router.add_get(f"{api}/{name}/revision/{{revision}}", self._info)
        app.router.add_get(f"{api}/{name}/tree/{{revision}}", self._tree)
        app.router.add_get(f"{api}/{name}/tree/{{revision}}/{{path:.*}}", self._tree)
        app.router.add_post(f"{api}/{name}/paths-info/{{revision}}", self._paths_info)
        app.router.add_get(f"/datasets/{name}/resolve/{{revision}}/{{path:.*}}", self._resolve)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        if self.is_broken:
            return _refusal(500, "", f"no luck with {request.headers.get('Authorization')}")
        name = _name(request)
        if request.match_info.get("name") in self.moved:
            return await handler(request)
        if name not in self.repositories:
            return _refusal(404, "RepoNotFound", "Repository not found")
        if name in self.gated:
            return _refusal(403, "GatedRepo", f"Access to dataset {name} is restricted")
        if self._commit(request) not in self.repositories[name]:
            return _refusal(404, "RevisionNotFound", f"Invalid rev id: {request.match_info.get('revision')}")
        return await handler(request)

    async def _redirect(self, request: web.Request) -> web.Response:
        raise web.HTTPTemporaryRedirect(f"/api/datasets/{self.moved[request.match_info['name']]}")

    def _commit(self, request: web.Request) -> str:
        revision = request.match_info.get("revision", "main")
        return self.heads[_name(request)].get(revision, revision)

    def _files(self, request: web.Request) -> Files:
        return self.repositories[_name(request)][self._commit(request)]

    async def _info(self, request: web.Request) -> web.Response:
        siblings = [{"rfilename": path, "size": len(content)} for path, content in self._files(request).items()]
        return web.json_response({"id": _name(request), "sha": self._commit(request), "siblings": siblings, "tags": []})

    async def _tree(self, request: web.Request) -> web.Response:
        below = PurePosixPath(request.match_info.get("path", ""))
        found = [entry for entry in _entries(self._files(request)) if below in PurePosixPath(entry["path"]).parents]
        if not found:
            return _refusal(404, "EntryNotFound", f"{below} does not exist")
        if request.query.get("recursive", "false").lower() != "true":
            found = [entry for entry in found if PurePosixPath(entry["path"]).parent == below]
        return web.json_response(found)

    async def _paths_info(self, request: web.Request) -> web.Response:
        wanted = (await request.post()).getall("paths")
        return web.json_response([entry for entry in _entries(self._files(request)) if entry["path"] in wanted])

    async def _resolve(self, request: web.Request) -> web.Response:
        path = request.match_info["path"]
        content = self._files(request).get(path)
        if content is None:
            return _refusal(404, "EntryNotFound", f"{path} does not exist")
        if request.method == "GET":
            self.fetched.append(f"{self._commit(request)}/{path}")
        headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": self._commit(request)}
        return web.Response(body=content, headers=headers)


def _name(request: web.Request) -> str:
    return f"{request.match_info.get('owner')}/{request.match_info.get('name')}"


def _entries(files: Files) -> list[dict[str, Any]]:
    """Files and folders, as the hub lists them."""
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents if str(parent) != "."}
    listed = [{"type": "directory", "path": folder, "oid": "0" * 40} for folder in sorted(folders)]
    return [
        *listed,
        *({"type": "file", "path": path, "size": len(content), "oid": "1" * 40} for path, content in files.items()),
    ]


def _refusal(status: int, code: str, message: str) -> web.Response:
    headers = {"X-Error-Code": code, "X-Error-Message": message} if code else {"X-Error-Message": message}
    return web.json_response({"error": message}, status=status, headers=headers)


@contextmanager
def fake_hub(hub: FakeHub) -> Iterator[FakeHub]:
    """The hub, in a thread, until the block ends."""
    with application(hub.application()) as hub.port:
        yield hub
