import http.server
import threading

import pytest

from lipforge.data.download import download
from lipforge.errors import DataError
from tests.data.made import md5

CONTENT = bytes(range(256)) * 4000


class Server:
    """A real HTTP server on this machine: sends ranges if told to, and cuts the first `cuts` answers short."""

    def __init__(self, content, *, ranges=True, cuts=0):
        self.content, self.ranges, self.cuts, self.asked = content, ranges, cuts, []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.answer(self)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/file"

    def answer(self, request):
        wanted = request.headers.get("Range")
        self.asked.append(wanted)
        first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.ranges else 0
        if first >= len(self.content):
            request.send_error(416)
            return
        part = self.content[first:]
        request.send_response(206 if first else 200)
        request.send_header("Content-Length", str(len(part)))
        request.end_headers()
        if self.cuts:
            self.cuts -= 1
            part = part[: len(part) // 3]
        request.wfile.write(part)

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def get(server, target, **options):
    return download(server.url, target, size=len(CONTENT), md5=md5(CONTENT), pause=0, **options)


def test_a_file_arrives_whole_and_leaves_no_part(tmp_path):
    with Server(CONTENT) as server:
        assert get(server, tmp_path / "new" / "file").read_bytes() == CONTENT
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["file"]


def test_a_cut_connection_is_continued_where_it_stopped(tmp_path):
    with Server(CONTENT, cuts=2) as server:
        get(server, tmp_path / "file")
        third = len(CONTENT) // 3
        assert server.asked == [None, f"bytes={third}-", f"bytes={third + (len(CONTENT) - third) // 3}-"]
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_second_call_continues_the_part_of_the_first(tmp_path):
    with Server(CONTENT, cuts=1) as server:
        with pytest.raises(DataError, match=f"{len(CONTENT) // 3} of {len(CONTENT)} bytes are kept"):
            get(server, tmp_path / "file", tries=1)
        assert not (tmp_path / "file").exists()
        get(server, tmp_path / "file", tries=1)
        assert server.asked[1] == f"bytes={len(CONTENT) // 3}-"
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_server_without_ranges_sends_all_of_it_again(tmp_path):
    with Server(CONTENT, ranges=False, cuts=1) as server:
        get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == CONTENT


def test_a_wrong_checksum_is_reported_and_nothing_is_kept(tmp_path):
    with Server(CONTENT[::-1]) as server, pytest.raises(DataError, match="wrong checksum"):
        get(server, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_was_damaged_on_disk_is_found_out(tmp_path):
    (tmp_path / "file.part").write_bytes(b"x" * 1000)
    with Server(CONTENT) as server:
        with pytest.raises(DataError, match="wrong checksum"):
            get(server, tmp_path / "file")
        assert get(server, tmp_path / "file").read_bytes() == CONTENT


def test_an_error_page_in_place_of_the_file_is_not_kept(tmp_path):
    with (
        Server(b"<html>sign in first</html>") as server,
        pytest.raises(DataError, match=r"offers 26 bytes.*error page"),
    ):
        get(server, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_not_there_is_reported(tmp_path):
    with Server(CONTENT) as server:
        pass
    with pytest.raises(DataError, match=r"could not be downloaded .*refused"):
        get(server, tmp_path / "file", tries=2)
