"""Upload of a published folder to the hub: what it holds first, one commit, by default as a pull request.

A commit appears whole or not at all, so a refusal or a lost connection publishes nothing. Files that had arrived before
are not sent again; a pull request is known by the seal of the manifest in its title, so a repeated upload opens no
second one. The token comes from the environment or from the hub's own login and is never printed or written.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, HTTPError, OfflineModeIsEnabled
from huggingface_hub.utils import validate_repo_id

from workbench.console import console, progress
from workbench.errors import WorkbenchError
from workbench.files import sha256_of_file
from workbench.publish.manifest import MANIFEST_FILE, check_files, list_files

_DIGITS_OF_SEAL = 12
_LONGEST_TEXT = 200


def check_destination(repo_id: str) -> None:
    """Refuses what is no `org/name`, before anything else is done for it."""
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise WorkbenchError(f"REPO is {repo_id!r}: use org/name ({' '.join(str(error).split())})") from error
    if repo_id.count("/") != 1:
        raise WorkbenchError(f"REPO is {repo_id!r}: use org/name")


def render_files(folder: Path) -> str:
    """One line a file of a published folder: bytes, SHA-256, name; then the sum."""
    names = list_files(folder)
    sizes = [(folder / name).stat().st_size for name in names]
    lines = [f"{size:>14,}  {sha256_of_file(folder / name)}  {name}" for name, size in zip(names, sizes, strict=True)]
    return "\n".join([*lines, f"{sum(sizes):>14,}  bytes in {len(names)} files"])


def push(folder: Path, repo_id: str, as_pull_request: bool = True) -> str:
    """Uploads a published folder.

    Args:
        folder: What `publish` wrote; its hashes are checked first.
        repo_id: `org/name`; a repository that is not there is created, private.
        as_pull_request: Else straight to the main branch.

    Returns:
        URL of the pull request or of the commit.

    Raises:
        WorkbenchError: no token, no right, no connection; nothing has been published then.
    """
    check_destination(repo_id)
    token = get_token()
    if not token:
        raise WorkbenchError(
            f"there is no token for {constants.ENDPOINT}: set HF_TOKEN or log in with `hf auth login`, then repeat"
        )
    manifest = check_files(folder)
    title = f"Drafter {manifest['name']} ({manifest['manifest_sha256'][:_DIGITS_OF_SEAL]})"
    api = HfApi(token=token, library_name="drafter-workbench")
    with _clear_hub_errors(repo_id):
        if not api.repo_exists(repo_id):
            api.create_repo(repo_id, private=True)
            console.print(f"created {repo_id}, private: make it public in its settings when you want to")
        if as_pull_request:
            url = _find_pull_request(api, repo_id, title)
            if url:
                console.print("this very folder waits there already")
                return url
        additions = [
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=folder / name)
            for name in [*manifest["files"], MANIFEST_FILE]
        ]
        with progress(f"upload to {repo_id}", len(additions)) as advance:
            for addition in additions:
                api.preupload_lfs_files(repo_id, [addition], create_pr=as_pull_request, free_memory=False)
                advance(1, addition.path_in_repo)
        commit = api.create_commit(repo_id, additions, commit_message=title, create_pr=as_pull_request)
    return commit.pr_url or commit.commit_url


def _find_pull_request(api: HfApi, repo_id: str, title: str) -> str | None:
    """URL of the open pull request with that title."""
    discussions = api.get_repo_discussions(repo_id, discussion_type="pull_request", discussion_status="open")
    return next((discussion.url for discussion in discussions if discussion.title == title), None)


@contextmanager
def _clear_hub_errors(repo_id: str) -> Iterator[None]:
    """Turns whatever the hub and its client raise into one line. Addresses of uploads are signed: none is shown."""
    try:
        yield
    except OfflineModeIsEnabled as error:
        raise WorkbenchError(
            f"nothing was published to {repo_id}: HF_HUB_OFFLINE is set; unset it to upload"
        ) from error
    except (HTTPError, OSError, RuntimeError, ValueError) as error:
        # Uploads run in threads and wrap what happened there.
        cause = next((link for link in _chain(error) if isinstance(link, HTTPError)), error)
        if isinstance(cause, HfHubHTTPError):
            raise WorkbenchError(f"nothing was published to {repo_id}: {_render_refusal(cause)}") from error
        # Without an answer nobody knows what the hub did last.
        reason = type(cause).__name__ if isinstance(cause, HTTPError) else " ".join(str(cause).split())[:_LONGEST_TEXT]
        raise WorkbenchError(
            f"the upload to {repo_id} did not end ({reason}): check the connection to {constants.ENDPOINT} and repeat "
            "the command; what has arrived is not sent again"
        ) from error


def _render_refusal(error: HfHubHTTPError) -> str:
    status = error.response.status_code
    said = " ".join((error.server_message or error.response.reason_phrase).split())[:_LONGEST_TEXT]
    advice = {
        401: "the token is not valid: renew HF_TOKEN or log in again with `hf auth login`",
        403: "the token may not write there: use one that has the right",
        404: "there is no such place: check REPO and the token's rights",
    }.get(status, "repeat the command; what has arrived is not sent again")
    return f"the hub answered {status} ({said}); {advice}"


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
