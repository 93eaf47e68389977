"""What the Hugging Face Hub answers its client about models, on loopback: repositories, revisions, files, commits."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

#: By repository its commits, the newest last: files by path.
Repositories = dict[str, list[dict[str, bytes]]]


def sha(repo: str, number: int) -> str:
    return hashlib.sha1(f"{repo} {number}".encode()).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    """Speaks as much of the hub's protocol as its client asks of it here; what it does not know is an error 501."""

    repositories: Repositories
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _answer(self, status: int, content: Any = b"", **headers: str) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _missing(self, what: str) -> None:
        self._answer(404, {"error": f"{what} not found"}, X_Error_Code=f"{what}NotFound")

    def _found(self, repo: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """The commit that a revision names; None, and an answer that says so, where there is none."""
        if repo not in self.repositories:
            self._missing("Repo")
            return None
        commits = {sha(repo, number): files for number, files in enumerate(self.repositories[repo])}
        name = list(commits)[-1] if revision == "main" else revision
        if name not in commits:
            self._missing("Revision")
            return None
        return name, commits[name]

    def do_GET(self) -> None:  # also HEAD
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/?]+))?(?:\?.*)?", self.path):
            if found := self._found(match[1], match[2] or "main"):
                self._answer(200, {"id": match[1], "sha": found[0], "siblings": []})
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", self.path):
            if found := self._found(match[1], match[2]):
                self._send_file(*found, match[3])
        else:
            self._answer(501)

    def _send_file(self, commit: str, files: dict[str, bytes], path: str) -> None:
        if path not in files:
            return self._missing("Entry")
        etag = f'"{hashlib.sha1(files[path]).hexdigest()}"'
        return self._answer(200, files[path], ETag=etag, X_Repo_Commit=commit)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            repo = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
            if repo in self.repositories:
                return self._answer(409, {"url": f"/{repo}"})
            self.repositories[repo] = [{".gitattributes": b""}]
            return self._answer(200, {"url": f"http://{self.headers['Host']}/{repo}", "name": repo})
        if self.path == "/api/validate-yaml":
            return self._answer(200, {"errors": [], "warnings": []})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/preupload/main(?:\?.*)?", self.path):
            files = [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in json.loads(body)["files"]]
            return self._answer(200, {"files": files})
        if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/main(?:\?.*)?", self.path):
            return self._take_commit(match[1], [json.loads(line) for line in body.splitlines()])
        return self._answer(501)

    def _take_commit(self, repo: str, lines: list[Any]) -> None:
        commits = self.repositories[repo]
        header, *files = (line["value"] for line in lines)
        if header["parentCommit"] != sha(repo, len(commits) - 1):
            return self._answer(412, {"error": "The branch has moved."})
        commits.append({**commits[-1], **{file["path"]: base64.b64decode(file["content"]) for file in files}})
        new = sha(repo, len(commits) - 1)
        url = f"http://{self.headers['Host']}/{repo}/commit/{new}"
        return self._answer(200, {"success": True, "commitUrl": url, "commitOid": new})


@contextmanager
def serving() -> Iterator[tuple[str, Repositories]]:
    """The address of a hub, and its repositories."""
    repositories: Repositories = {}
    handler = type("Handler", (_Handler,), {"repositories": repositories})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", repositories
        server.shutdown()
        thread.join()
