from __future__ import annotations

import fcntl
import os
import subprocess
import time
import zipfile
from pathlib import Path

import pytest

from fluss_df.cluster import ClusterUnavailableError
from fluss_df.cluster.servers.class_data import ClassData, merge
from fluss_df.cluster.servers.class_data_maker import KEPT, make
from fluss_df.cluster.servers.java import find_java

FILE = "-XX:SharedArchiveFile="
LIST = "-XX:DumpLoadedClassList="
WITHIN_S = 60.0


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of archives, in a cache of the test."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FLUSS_CLUSTER_JAVA_OPTIONS", raising=False)
    return tmp_path / "cache" / "fluss-df" / "class-data"


@pytest.fixture
def jar(tmp_path: Path) -> Path:
    path = tmp_path / "server.jar"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("nothing", b"")
    return path


@pytest.fixture
def java() -> Path:
    try:
        return find_java()
    except ClusterUnavailableError as error:
        pytest.skip(error.message)


def fake_java(path: Path, script: str) -> Path:
    """Make a Java that knows how to note classes, and makes archives by a script."""
    path.write_text(
        "#!/bin/bash\n"
        'for option; do case "$option" in\n'
        f'{LIST}*) echo java/lang/Object > "${{option#*=}}";;\n'
        f'{FILE}*) archive="${{option#*=}}";;\n'
        "esac; done\n"
        f'if [ "$archive" ]; then {script}; fi\n'
    )
    path.chmod(0o755)
    return path


def server(java: Path, jar: Path, options: list[str], *more: str) -> str:
    """Run a Java as a server would run; return what it says."""
    command = [str(java), "-XX:+UseSerialGC", *options, *more, "-cp", str(jar), "-version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def noted(java: Path, jar: Path, tmp_path: Path) -> None:
    """Start a server that notes its classes, and have an archive made."""
    data = ClassData(java, [jar], record=True)
    options = data.options(tmp_path)
    assert options == [f"{LIST}{tmp_path / 'classes.list'}"]
    server(java, jar, options)
    data.make()
    assert not (tmp_path / "classes.list").exists()


def wait_for(folder: Path, pattern: str) -> Path:
    """Wait until the process in the background is done; return the file that it made."""
    until = time.monotonic() + WITHIN_S
    while time.monotonic() < until:
        found = list(folder.glob(pattern))
        if found and not list(folder.glob("*.list")):
            return found[0]
        time.sleep(0.02)
    raise AssertionError(f"no {pattern} in {sorted(folder.iterdir())}")


def test_later_starts_use_what_the_first_one_noted(java: Path, jar: Path, tmp_path: Path) -> None:
    noted(java, jar, tmp_path)
    folder = tmp_path / "cache" / "fluss-df" / "class-data"
    archive = wait_for(folder, "*.jsa")
    options = ClassData(java, [jar], record=True).options(tmp_path)
    assert options == [f"{FILE}{archive}"]
    # with this option Java ends where it cannot use the archive
    assert "sharing" in server(java, jar, options, "-Xshare:on")
    assert [path.suffix for path in sorted(folder.iterdir())] == [".jsa", ".lock"]


@pytest.mark.parametrize("left", [0, 5000])
def test_an_archive_that_was_cut_off_is_removed(
    folder: Path, jar: Path, tmp_path: Path, left: int
) -> None:
    java = fake_java(tmp_path / "java", 'head -c 10000 /dev/zero > "$archive"')
    noted(java, jar, tmp_path)
    archive = wait_for(folder, "*.10000.jsa")
    os.truncate(archive, left)
    assert ClassData(java, [jar]).options(tmp_path) == []
    assert not archive.exists()
    assert ClassData(java, [jar], record=True).options(tmp_path)[0].startswith(LIST)


def test_what_cannot_be_made_is_not_tried_again(folder: Path, jar: Path, tmp_path: Path) -> None:
    java = fake_java(tmp_path / "java", 'echo half > "$archive"; echo no space; exit 3')
    noted(java, jar, tmp_path)
    failed = wait_for(folder, "*.failed")
    assert failed.read_text() == "exit status 3\nno space\n"
    assert not list(folder.glob("*.new"))
    assert not list(folder.glob("*.jsa"))
    assert ClassData(java, [jar], record=True).options(tmp_path) == []


def test_a_java_that_does_not_note_classes_starts_as_ever(jar: Path, tmp_path: Path) -> None:
    java = tmp_path / "java"
    java.write_text(
        f'#!/bin/sh\ncase "$*" in *{LIST}*) echo "Unrecognized VM option"; exit 1;; esac\n'
    )
    java.chmod(0o755)
    assert ClassData(java, [jar], record=True).options(tmp_path) == []


def test_a_cache_that_cannot_be_written_is_no_error(
    folder: Path, jar: Path, tmp_path: Path
) -> None:
    java = fake_java(tmp_path / "java", 'echo all > "$archive"')
    folder.parent.mkdir(parents=True)
    folder.write_text("a file stands where the folder should be")
    data = ClassData(java, [jar], record=True)
    assert data.options(tmp_path) == []
    data.make()
    assert folder.is_file()


def test_a_cache_that_goes_away_meanwhile_is_no_error(
    folder: Path, jar: Path, tmp_path: Path
) -> None:
    java = fake_java(tmp_path / "java", 'echo all > "$archive"')
    data = ClassData(java, [jar], record=True)
    server(java, jar, data.options(tmp_path))
    folder.rmdir()
    data.make()
    assert not folder.exists()


def test_another_jar_or_java_has_an_archive_of_its_own(
    folder: Path, jar: Path, tmp_path: Path
) -> None:
    java = fake_java(tmp_path / "java", 'echo all > "$archive"')
    noted(java, jar, tmp_path)
    archive = wait_for(folder, "*.jsa")
    assert ClassData(java, [jar]).options(tmp_path) == [f"{FILE}{archive}"]
    os.utime(jar, (1, 1))
    assert ClassData(java, [jar]).options(tmp_path) == []
    other = fake_java(tmp_path / "other", 'echo all > "$archive"')
    assert ClassData(other, [jar]).options(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "used"),
    [
        ("-XX:TieredStopAtLevel=1 -Xmx2g -Xss1m '-Da=b c'", True),
        ("-XX:+UseZGC", False),
        ("-Xshare:off", False),
        ("-XX:SharedArchiveFile=/my/own.jsa", False),
        ("'-Da", False),
    ],
)
def test_options_that_an_archive_may_not_fit(
    folder: Path,
    jar: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: str,
    used: bool,
) -> None:
    java = fake_java(tmp_path / "java", 'echo all > "$archive"')
    noted(java, jar, tmp_path)
    wait_for(folder, "*.jsa")
    monkeypatch.setenv("FLUSS_CLUSTER_JAVA_OPTIONS", options)
    assert bool(ClassData(java, [jar]).options(tmp_path)) == used


def test_one_process_at_a_time_makes_an_archive(folder: Path) -> None:
    folder.mkdir(parents=True)
    command = ["sh", "-c", 'echo all > "${0#*=}"']
    with open(folder / "key.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert make(folder, "key", command, FILE) is None
    assert [path.name for path in folder.iterdir()] == ["key.lock"]
    # what a process that was killed left behind
    (folder / "key.new").write_text("half")
    assert make(folder, "key", command, FILE) == folder / "key.4.jsa"
    # who comes too late makes no other
    assert make(folder, "key", ["false"], FILE) == folder / "key.4.jsa"
    assert sorted(path.name for path in folder.iterdir()) == ["key.4.jsa", "key.lock"]


def test_archives_used_last_stay(folder: Path) -> None:
    folder.mkdir(parents=True)
    for number in range(KEPT + 2):
        archive = folder / f"key{number}.4.jsa"
        archive.write_text("all\n")
        (folder / f"key{number}.lock").touch()
        os.utime(archive, (1000 - number, 1000 - number))
    make(folder, "new", ["sh", "-c", 'echo all > "${0#*=}"'], FILE)
    kept = {f"key{number}" for number in range(KEPT - 1)} | {"new"}
    assert {path.name.split(".")[0] for path in folder.iterdir()} == kept


def test_lists_of_several_servers_are_one() -> None:
    lines = [
        [
            "# NOTE",
            "java/lang/Object id: 0",
            "java/lang/String id: 1 super: 0",
            "@lambda-proxy A r",
        ],
        ["java/lang/Object id: 0", "B id: 1", "C id: 2 super: 0 source: /plugin.jar", ""],
    ]
    assert merge(lines) == "java/lang/Object\njava/lang/String\n@lambda-proxy A r\nB\n"
