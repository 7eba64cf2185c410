"""Download datasets: several mirrors in order, resumed where the server allows it, checked before use."""

from __future__ import annotations

from pathlib import Path

from robattr._extras import need
from robattr.data.catalog import folder, info
from robattr.data.dataset import DatasetInfo, Remote
from robattr.engine.files import lock
from robattr.errors import DataError

TIMEOUT = (10, 30)  # seconds to connect, and between two pieces
PIECE = 1 << 18


def fetch(name: str, root: str | Path | None = None) -> list[Path]:
    """Download the missing files of a dataset to `root` and return all its files; existing files are checked."""
    chosen = info(name)
    target = folder(name, root)
    prepared = [target / file for file in chosen.prepared]
    if prepared and all(path.exists() for path in prepared):
        return prepared
    return [fetch_file(remote, target / remote.file, of=chosen) for remote in chosen.remotes]


def fetch_file(remote: Remote, path: Path, *, of: DatasetInfo) -> Path:
    """Get one file from the first mirror that has it complete and unchanged."""
    for present in (path, path.with_name(path.name.removesuffix(".gz"))):  # as it is offered, or unpacked by the user
        if present.exists():
            remote.check(present)
            return present
    path.parent.mkdir(parents=True, exist_ok=True)
    failures = []
    for url in remote.urls:
        try:
            _retrieve(url, path, remote)
            return path
        except (OSError, DataError) as cause:  # every network error of requests is an OSError
            failures.append(f"{url}: {str(cause).partition(chr(10))[0] or type(cause).__name__}")
    tried = "; ".join(failures)
    raise DataError(
        f"could not fetch {of.name}/{remote.file} ({tried}). Put the file, got elsewhere, at {path} "
        f"({remote.identity}) and run `robattr data verify {of.name}`"
    )


def _retrieve(url: str, path: Path, remote: Remote) -> None:
    """Get the file from one mirror; it appears at `path` once it is complete and checked."""
    part = path.with_name(f"partial-{path.name}")
    try:
        resumed = _download(url, part)
        try:
            remote.check(part)
        except DataError:
            part.unlink()
            if not resumed:
                raise
            _retrieve(url, path, remote)  # the first part was damaged or of another file
        else:
            part.replace(path)
    finally:
        if part.exists() and not part.stat().st_size:
            part.unlink()


def _download(url: str, part: Path) -> bool:
    """Complete `part`, from its present length if the server can resume; whether it was resumed."""
    requests, tqdm = need("requests", extra="data"), need("tqdm", extra="data")
    with part.open("ab") as file:
        lock(file, f"another process is writing {part}: wait for it")  # two downloads into it at once would mix
        done = file.tell()
        headers = {"Accept-Encoding": "identity"}  # some stores unpack .gz on the way otherwise
        if done:
            headers["Range"] = f"bytes={done}-"
        with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as response:
            if response.status_code == 416:  # nothing after `done`: it was complete, or is of another file
                return True
            response.raise_for_status()
            resumed: bool = response.status_code == 206
            if not resumed:
                file.truncate(0)
                done = 0
            size = int(response.headers["Content-Length"]) + done if "Content-Length" in response.headers else None
            name = part.name.removeprefix("partial-")
            # disable=None: no bar unless stderr is a terminal
            with tqdm.tqdm(desc=name, initial=done, total=size, unit="B", unit_scale=True, disable=None) as bar:
                for piece in response.iter_content(PIECE):
                    file.write(piece)
                    bar.update(len(piece))
            if size is not None and file.tell() != size:
                raise DataError(f"expected {size} bytes, got {file.tell()}")
            return resumed
