"""Nobody waits for a file that is no plain one, nor for a file system that does not answer."""

import os
import socket
import threading

import pytest

from packhorse.storage import Watched, in_time, look_at, open_plain, read_plain, within


@pytest.fixture(autouse=True)
def as_in_a_server(monkeypatch):
    monkeypatch.setattr(in_time, "_never_waits", True)


def a_pipe(path):
    os.mkfifo(path)


def a_socket(path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


def a_device(path):
    path.symlink_to("/dev/zero")


def a_terminal(path):
    path.symlink_to("/dev/tty")


def a_folder(path):
    path.mkdir()


def a_loop(path):
    path.symlink_to(path)


def nothing(path):
    pass


@pytest.mark.parametrize("make", [a_pipe, a_socket, a_device, a_terminal, a_folder, a_loop, nothing])
@pytest.mark.parametrize("read", [read_plain, open_plain])
def test_only_plain_files_are_opened(tmp_path, make, read):
    make(tmp_path / "odd")
    with pytest.raises(OSError) as caught:
        read(tmp_path / "odd")
    assert caught.value.filename == os.fspath(tmp_path / "odd")
    assert caught.value.strerror


def test_a_pipe_behind_a_link_is_one_too(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    with pytest.raises(OSError, match="it is a pipe, and must be a plain file"):
        read_plain(tmp_path / "link")


@pytest.fixture
def hang():
    """A function that returns once the test is over, and an event that ends it earlier."""
    over = threading.Event()
    yield over
    over.set()


def test_what_hangs_is_asked_once_and_again_when_it_answered(hang, wait_until):
    asked = []

    def ask():
        asked.append(1)
        hang.wait()
        return "answer"

    for _ in range(3):
        with pytest.raises(TimeoutError, match=r"its file system does not answer: '/mnt'") as caught:
            within("/mnt", ask, 0.05)
        assert caught.value.strerror == "its file system does not answer"
    assert asked == [1]
    assert within("/other", lambda: 5) == 5
    hang.set()
    wait_until(lambda: "/mnt" not in in_time._unanswered)
    assert within("/mnt", ask) == "answer"


def test_errors_pass_through():
    with pytest.raises(ZeroDivisionError):
        within("x", lambda: 1 // 0)
    with pytest.raises(TimeoutError, match="its own"):
        within("x", lambda: (_ for _ in ()).throw(TimeoutError("its own")))
    assert within("x", lambda: 1) == 1


def test_watched_files_that_hang_keep_their_value_and_tell(tmp_path, monkeypatch, hang, caplog, wait_until):
    monkeypatch.setattr("packhorse.storage.watched.PATIENCE_SECONDS", 0.05)
    path = tmp_path / "file"
    path.write_text("1")
    watched = Watched("the number", [path], lambda: int(path.read_text()))
    stamp_of = watched._stamps_now
    monkeypatch.setattr(watched, "_stamps_now", lambda: hang.wait() and stamp_of())
    with caplog.at_level("INFO", "packhorse"):
        assert [watched.get(), watched.get()] == [1, 1]
        assert "its file system does not answer" in watched.trouble
        hang.set()
        wait_until(lambda: not watched.trouble)
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the number cannot be looked at",
        "the number can be looked at again",
    ]


def test_elsewhere_a_look_is_a_plain_call(monkeypatch):
    monkeypatch.setattr(in_time, "_never_waits", False)
    assert look_at("a", threading.get_ident) == threading.get_ident()
    assert within("a", threading.get_ident) != threading.get_ident()
