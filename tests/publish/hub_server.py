"""A stand-in for the hub: the part of its HTTP interface that an upload uses, with faults on demand."""

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

import yaml

TOKEN = "hf_" + "secretsecretsecret"


@dataclass
class Commit:
    """What one commit would hold, file by file."""

    title: str
    files: dict[str, bytes]
    is_pull_request: bool


@dataclass
class HubServer:
    """Repositories, stored objects and commits; `faults` says what happens to a kind of request."""

    url: str = ""
    repositories: dict[str, bool] = field(default_factory=dict)
    """Whether each is private."""
    objects: dict[str, bytes] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    requests: Counter[str] = field(default_factory=Counter)
    faults: dict[str, int | str] = field(default_factory=dict)
    """A status to answer with; `drop`: the connection closes at once; `lose`: served, but its answer gets lost."""

    def serve(self, kind: str, request: "_Handler", body: bytes) -> tuple[int, Any]:
        self.requests[kind] += 1
        if kind != "object" and request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return 401, {"error": "Invalid credentials in Authorization header"}
        return getattr(self, f"_{kind}")(request, body)

    def _info(self, request, body):
        name = urlparse(request.path).path.removeprefix("/api/models/")
        if name not in self.repositories:
            return 404, {"error": "Repository not found"}
        return 200, {"id": name, "sha": "0" * 40, "siblings": [], "tags": []}

    def _create(self, request, body):
        values = json.loads(body)
        name = f"{values['organization']}/{values['name']}"
        self.repositories[name] = values.get("visibility") == "private"
        return 200, {"url": f"{self.url}/{name}", "name": name}

    def _discussions(self, request, body):
        pulls = [commit for commit in self.commits if commit.is_pull_request]
        name = _repository(request.path)
        listed = [
            {
                "title": commit.title,
                "num": number,
                "author": {"name": "somebody"},
                "createdAt": "2026-01-01T00:00:00.000Z",
                "status": "open",
                "repo": {"name": name, "type": "model"},
                "isPullRequest": True,
            }
            for number, commit in enumerate(pulls, 1)
        ]
        return 200, {"count": len(listed), "start": 0, "discussions": listed}

    def _yaml(self, request, body):
        front_matter = json.loads(body)["content"].split("---")[1]
        assert yaml.safe_load(front_matter)["license"]
        return 200, {"errors": [], "warnings": []}

    def _preupload(self, request, body):
        files = [
            {
                "path": entry["path"],
                "uploadMode": "lfs" if entry["path"].endswith(".safetensors") else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for entry in json.loads(body)["files"]
        ]
        return 200, {"files": files}

    def _batch(self, request, body):
        listed = []
        for entry in json.loads(body)["objects"]:
            if entry["oid"] in self.objects:
                listed.append(entry)
            else:
                href = f"{self.url}/objects/{entry['oid']}?signature=signed"
                listed.append({**entry, "actions": {"upload": {"href": href}}})
        return 200, {"objects": listed}

    def _object(self, request, body):
        oid = urlparse(request.path).path.removeprefix("/objects/")
        assert hashlib.sha256(body).hexdigest() == oid
        self.objects[oid] = body
        return 200, {}

    def _commit(self, request, body):
        lines = [json.loads(line) for line in body.splitlines()]
        files = {}
        for line in lines[1:]:
            value = line["value"]
            lfs = line["key"] == "lfsFile"
            files[value["path"]] = self.objects[value["oid"]] if lfs else base64.b64decode(value["content"])
        is_pull_request = "create_pr" in parse_qs(urlparse(request.path).query)
        self.commits.append(Commit(lines[0]["value"]["summary"], files, is_pull_request))
        repository = _repository(request.path)
        answer = {"commitUrl": f"{self.url}/{repository}/commit/{'1' * 40}", "commitOid": "1" * 40}
        if is_pull_request:
            answer["pullRequestUrl"] = f"{self.url}/{repository}/discussions/{len(self.commits)}"
        return 200, answer


def _repository(path: str) -> str:
    """`org/name` of `/api/models/org/name/...`."""
    return "/".join(path.split("/")[3:5])


ROUTES = [
    ("POST", r"/api/repos/create$", "create"),
    ("POST", r"/api/validate-yaml$", "yaml"),
    ("GET", r"/api/models/.+/discussions", "discussions"),
    ("POST", r"/api/models/.+/preupload/", "preupload"),
    ("POST", r"/api/models/.+/commit/", "commit"),
    ("POST", r"/.+\.git/info/lfs/objects/batch$", "batch"),
    ("PUT", r"/objects/", "object"),
    ("GET", r"/api/models/[^/]+/[^/]+$", "info"),
]


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer

    def _respond(self) -> None:
        body = self._read_body()
        kind = next(kind for method, path, kind in ROUTES if self.command == method and re.match(path, self.path))
        fault = self.hub.faults.get(kind)
        if fault == "drop":
            self.hub.requests[kind] += 1
            self.close_connection = True
            self.connection.close()
            return
        if isinstance(fault, int):
            self.hub.requests[kind] += 1
            status, answer = fault, {"error": "You may not\ndo that"}
        else:
            status, answer = self.hub.serve(kind, self, body)
        if fault == "lose":
            self.close_connection = True
            self.connection.close()
            return
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        if status == 404:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.end_headers()
        self.wfile.write(content)

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    do_GET = do_POST = do_PUT = _respond

    def log_message(self, *_: object) -> None:
        """Quiet."""


def start_server() -> tuple[HubServer, Callable[[], None]]:
    """A running server and what ends it."""
    hub = HubServer()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return hub, stop
