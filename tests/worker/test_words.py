"""What an executor said goes into signed documents: no escapes, nothing hidden, no secrets, and not without end."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from mwnode.worker.slots import TAIL_CHARACTERS, Slot
from mwnode.worker.words import REDACTED, parts_of, plain
from tests.worker.test_executor import assignment

TOKEN = "eyJ1c2UiOiJjYXBhYmlsaXR5In0.c2lnbmF0dXJlLW9mLXRoZS10b2tlbg"


@pytest.mark.parametrize(
    "said, kept",
    [
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b2Jcleared", "cleared"),
        ("\x1bP1$qm\x1b\\dcs", "dcs"),
        ("\x1b(Bcharset\x1bc", "charset"),
        ("50 %\r100 %\r\ndone", "50 %\n100 %\ndone"),
        ("a\x00b\x08c\x7fd", "abcd"),
        ("user\u202egnp.exe\u200b", "usergnp.exe"),
        ("tab\tstays\n\u00fcber \u6f22", "tab\tstays\n\u00fcber \u6f22"),
        ("unfinished \x1b]0;", "unfinished "),
    ],
)
def test_escapes_and_hidden_characters_are_taken_out(said: str, kept: str) -> None:
    assert plain(said) == kept


@pytest.mark.req("R-12-13")
def test_a_token_and_its_parts_are_redacted_whatever_stands_between_its_letters() -> None:
    body, signature = TOKEN.split(".")
    assert plain(f"token={TOKEN}!", parts_of(TOKEN)) == f"token={REDACTED}!"
    assert plain(f"{signature} and {body}", parts_of(TOKEN)) == f"{REDACTED} and {REDACTED}"
    split = TOKEN[:20] + "\x1b[0m" + TOKEN[20:]
    assert plain(split, parts_of(TOKEN)) == REDACTED
    # What begins in the middle of a token is the rest of one.
    assert plain(TOKEN[9:] + " then", parts_of(TOKEN), cut=True) == f"{REDACTED} then"
    assert plain("short words stay", ("stay",)) == "short words stay"


def slot(tmp_path: Path) -> Slot:
    made = Slot(tmp_path / "slots", assignment())
    made.path.mkdir(parents=True)
    return made


@pytest.mark.req("R-12-13")
def test_what_is_kept_of_an_executors_words_holds_no_token_that_the_run_ever_had(tmp_path: Path) -> None:
    one = slot(tmp_path)
    later = TOKEN.replace("c2ln", "bGF0")
    for token in (TOKEN, later):
        one.hold_token(msgspec.json.encode({"token": token, "expiresAt": "2030-01-01T00:00:00Z"}))
    one.stderr_file.write_text("x" * 9000 + f"\n\x1b[1mcurl -H 'Bearer {TOKEN}' {later}\x1b[0m failed\n")
    tail = one.tail()
    assert tail.endswith(f"curl -H 'Bearer {REDACTED}' {REDACTED} failed")
    assert len(tail) <= TAIL_CHARACTERS
    # Cut anywhere, no rest of it is left.
    for size in range(20, 120):
        assert not any(part[-12:] in one.tail(size) for part in parts_of(TOKEN))


@pytest.mark.req("R-12-13")
def test_a_progress_line_holds_no_token_either_and_nothing_hidden(tmp_path: Path) -> None:
    one = slot(tmp_path)
    one.hold_token(msgspec.json.encode({"token": TOKEN, "expiresAt": "2030-01-01T00:00:00Z"}))
    said = {
        "progress": {"currentPhase": f"\x1b[2Jcalled with {TOKEN}", "completedMilestones": ["pl\u202ean", TOKEN]},
        "usage": {"toolCalls": 3},
        "blocked": {"reason": f"{TOKEN.split('.')[1]} is refused"},
        "checkpoint": {"phase": "half\x07", "state": "state\x07.json"},
    }
    assert one.line(said) == {
        "progress": {"currentPhase": f"called with {REDACTED}", "completedMilestones": ["plan", REDACTED]},
        "usage": {"toolCalls": 3},
        "blocked": {"reason": f"{REDACTED} is refused"},
        "checkpoint": {"phase": "half", "state": "state\x07.json"},
    }


def test_words_are_read_from_plain_files_only(tmp_path: Path) -> None:
    one, secret = slot(tmp_path), tmp_path / "secret"
    secret.write_text("the Worker's key")
    one.stderr_file.symlink_to(secret)
    one.stdout_file.write_text("said")
    assert one.tail() == "said"
    one.stderr_file.unlink()
    os.mkfifo(one.stderr_file)
    assert one.tail() == "said"


def test_what_is_kept_aside_is_closed_to_others_and_no_link_is_followed(tmp_path: Path) -> None:
    one, stale, elsewhere = slot(tmp_path), tmp_path / "stale", tmp_path / "elsewhere"
    elsewhere.mkdir()
    stale.mkdir(mode=0o755)
    stale.chmod(0o755)
    (stale / one.path.name).symlink_to(elsewhere)
    one.path.chmod(0o777)
    (one.path / "kept").write_text("kept")
    (one.path / "link").symlink_to(elsewhere)
    where = one.set_aside(stale)
    assert (where / "kept").read_text() == "kept"
    assert not where.is_symlink()
    assert (where / "link").is_symlink()
    assert (stale.stat().st_mode & 0o777, where.stat().st_mode & 0o777) == (0o700, 0o700)
    assert list(elsewhere.iterdir()) == []


def test_a_link_in_place_of_a_directory_is_not_kept(tmp_path: Path) -> None:
    one, elsewhere = slot(tmp_path), tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o755)
    (elsewhere / "theirs").write_text("theirs")
    one.path.rmdir()
    one.path.symlink_to(elsewhere)
    with pytest.raises(OSError, match="left a link"):
        one.set_aside(tmp_path / "stale")
    one.path.symlink_to(elsewhere)
    one.discard()
    assert not one.path.is_symlink()
    assert (elsewhere / "theirs").read_text() == "theirs"
    linked = tmp_path / "linked"
    linked.symlink_to(elsewhere)
    other = slot(tmp_path)
    with pytest.raises(OSError, match="not followed"):
        other.set_aside(linked)
    assert [one.name for one in elsewhere.iterdir()] == ["theirs"]
