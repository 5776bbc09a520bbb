"""A watched file: what counts as a change, and what leaves the rules as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from celery_throttle.errors import RulesError
from celery_throttle.limits.requirement import parse_definitions
from celery_throttle.limits.rules.file import RulesFile, load_rules
from celery_throttle.limits.rules.reader import read_rules
from celery_throttle.limits.rules.rules import Rules

ONE, TWO = '[limits]\nstripe = "1/s"\n', '[limits]\nstripe = "2/s"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "limits.toml"
    path.write_text(ONE)
    return path


@pytest.fixture
def file(path: Path) -> RulesFile:
    """A file that has been read."""
    file = RulesFile(str(path))
    assert file.poll() == rules(ONE)
    return file


def rules(text: str) -> Rules:
    return read_rules(text, "")


def poll_twice(file: RulesFile) -> Rules | None:
    assert file.poll() is None
    return file.poll()


def test_the_first_poll_reads_and_the_next_ones_find_no_change(file: RulesFile) -> None:
    assert file.poll() is None
    assert file.poll() is None
    assert file.rules == rules(ONE)
    assert file.error is None


def test_new_content_counts_when_two_polls_have_found_it(path: Path, file: RulesFile) -> None:
    path.write_text(TWO)
    os.utime(path, (5, 5))
    assert poll_twice(file) == rules(TWO) == file.rules
    assert file.modified == 5
    assert file.poll() is None


def test_a_renamed_file_is_a_change(path: Path, file: RulesFile) -> None:
    other = path.with_name("new")
    other.write_text(TWO)
    other.rename(path)
    assert poll_twice(file) == rules(TWO)


def test_a_swapped_symlink_is_a_change(tmp_path: Path) -> None:
    """As a ConfigMap is mounted: the file is a link through a link to a directory."""
    for name, text in (("..1", ONE), ("..2", TWO)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "limits.toml").write_text(text)
        os.utime(tmp_path / name / "limits.toml", (1, 1))
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "limits.toml").symlink_to("..data/limits.toml")
    file = RulesFile(str(tmp_path / "limits.toml"))
    assert file.poll() == rules(ONE)
    (tmp_path / "..tmp").symlink_to("..2")
    (tmp_path / "..tmp").rename(tmp_path / "..data")
    assert poll_twice(file) == rules(TWO)


def test_a_file_that_is_being_written_changes_nothing(path: Path, file: RulesFile) -> None:
    for text in ("", "[limits]\n", '[limits]\nstripe = "', TWO, TWO[:-1], TWO):
        path.write_text(text)
        assert file.poll() is None
    assert file.rules == rules(ONE)
    assert file.poll() == rules(TWO)


def test_content_that_comes_and_goes_between_polls_is_no_change(
    path: Path, file: RulesFile
) -> None:
    path.write_text(TWO)
    assert file.poll() is None
    path.write_text(ONE)
    assert poll_twice(file) is None
    assert file.rules == rules(ONE)


def test_a_new_comment_is_no_change_of_the_rules(path: Path, file: RulesFile) -> None:
    path.write_text(f"# one\n{ONE}")
    assert poll_twice(file) is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", ": the file is empty; allowed, if it has no rules: a comment"),
        (b"[limits]\nx = 1", ":2: limit 'x': 1 is not a limit"),
        (b"# \xe9\n[limits]\n# \xe9\xe9", r":1: b'\xe9' is not UTF-8; allowed: text in UTF-8"),
    ],
)
def test_a_wrong_file_is_reported_once_and_changes_nothing(
    path: Path, file: RulesFile, content: bytes, message: str
) -> None:
    path.write_bytes(content)
    assert file.poll() is None
    with pytest.raises(RulesError) as caught:
        file.poll()
    assert str(caught.value).startswith(f"{path}{message}")
    assert file.poll() is None
    assert file.error is caught.value
    assert file.rules == rules(ONE)
    path.write_text(ONE)
    assert poll_twice(file) is None
    assert file.error is None


def test_a_missing_file_is_reported_once_and_changes_nothing(path: Path, file: RulesFile) -> None:
    path.unlink()
    assert file.poll() is None
    with pytest.raises(RulesError, match=f"{path}: the file cannot be read: No such file"):
        file.poll()
    assert file.poll() is None
    assert file.rules == rules(ONE)
    path.write_text(TWO)
    assert poll_twice(file) == rules(TWO)


def test_a_file_that_is_wrong_at_first(path: Path) -> None:
    path.write_text("wrong")
    file = RulesFile(str(path))
    with pytest.raises(RulesError):
        file.poll()
    assert file.rules is None
    path.write_text(TWO)
    assert poll_twice(file) == rules(TWO)


def test_a_byte_order_mark_is_no_mistake(path: Path) -> None:
    path.write_text(ONE, encoding="utf-8-sig", newline="\r\n")
    assert load_rules(str(path)) == rules(ONE)


def test_the_file_may_refer_to_limits_of_the_code(path: Path) -> None:
    path.write_text("[weights]\nmail = 2\nstripe = 3")
    code = parse_definitions({"mail": "1/s"})
    with pytest.raises(RulesError, match=f"{path}:3: limit 'stripe' is defined neither"):
        load_rules(str(path), code)
    with pytest.raises(RulesError, match=f"{path}:3: limit 'stripe' is defined neither"):
        RulesFile(str(path), code).poll()


@pytest.mark.parametrize(
    ("path", "why"),
    [("limits\0.toml", "embedded null"), ("limits\ud800.toml", "surrogates not allowed")],
)
def test_a_path_that_no_file_can_have_cannot_be_read(path: str, why: str) -> None:
    with pytest.raises(RulesError, match=f"the file cannot be read: .*{why}") as caught:
        load_rules(path)
    assert caught.value.source == path
    with pytest.raises(RulesError):
        RulesFile(path).poll()


def test_a_directory_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RulesError, match="the file cannot be read: Is a directory"):
        load_rules(str(tmp_path))
