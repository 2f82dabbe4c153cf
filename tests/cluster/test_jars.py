from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from fluss_df.cluster import ClusterError, ClusterUnavailableError, LocalCluster
from fluss_df.cluster.servers.jars import SERVER_VERSION, resolve_jars
from fluss_df.cluster.servers.java import find_java


@pytest.fixture(autouse=True)
def bare_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Take Java, Maven and the cache away; return the only folder in PATH."""
    bin = tmp_path / "bin"
    bin.mkdir()
    monkeypatch.setenv("PATH", str(bin))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("JAVA_HOME", "MAVEN_HOME", "FLUSS_SERVER_JAR"):
        monkeypatch.delenv(variable, raising=False)
    return bin


def program(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def server_jar(path: Path, version: str | None = "7.8.9") -> Path:
    with zipfile.ZipFile(path, "w") as jar:
        jar.writestr("org/apache/fluss/server/tablet/TabletServer.class", b"")
        named = f"Implementation-Version: {version}\n" if version else ""
        jar.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\n{named}")
    return path


def test_without_java_the_message_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(ClusterUnavailableError) as caught:
        find_java()
    message = str(caught.value)
    assert "needs Java 11 or newer: there is no java in JAVA_HOME or PATH" in message
    assert "apt-get install openjdk-17-jre-headless" in message
    with pytest.raises(ClusterUnavailableError, match="Java 11"):
        LocalCluster(tmp_path / "cluster").start()
    assert not (tmp_path / "cluster").exists()


@pytest.mark.parametrize(
    ("script", "found"),
    [
        ("echo 'openjdk version \"1.8.0_402\"' >&2", "is Java 8"),
        ("echo 'openjdk version \"10\" 2018-03-20' >&2", "is Java 10"),
        ("exit 1", "is not usable"),
        ("echo hello", "is not usable"),
    ],
)
def test_an_unfit_java_is_named(bare_machine: Path, script: str, found: str) -> None:
    java = program(bare_machine / "java", script)
    with pytest.raises(ClusterUnavailableError, match=f"{java} {found}"):
        find_java()


@pytest.mark.parametrize("version", ['java version "11.0.2" 2019', 'openjdk version "25-ea"'])
def test_java_home_comes_before_path(
    bare_machine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    old = program(tmp_path / "old" / "bin" / "java", "echo 'openjdk version \"1.8.0\"' >&2")
    in_path = program(bare_machine / "java", "echo 'openjdk version \"17.0.1\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(old.parent.parent))
    assert find_java() == in_path
    program(old, f"echo '{version}' >&2")
    assert find_java() == old


def test_without_maven_the_message_says_what_to_do() -> None:
    with pytest.raises(ClusterUnavailableError) as caught:
        resolve_jars()
    message = str(caught.value)
    assert f"Maven is needed once, to fetch the Fluss server {SERVER_VERSION}" in message
    assert "apt-get install maven" in message
    assert "--jar PATH" in message


def test_maven_fetches_once(bare_machine: Path, tmp_path: Path) -> None:
    server_jar(tmp_path / "fetched.jar")
    program(
        bare_machine / "mvn",
        'for word; do case "$word" in -DoutputDirectory=*) out="${word#*=}";; esac; done\n'
        f"/bin/mkdir -p $out && /bin/cp {tmp_path}/fetched.jar"
        f" $out/fluss-server-{SERVER_VERSION}.jar && : > $out/slf4j-api.jar"
        f" && echo x >> {tmp_path}/calls",
    )
    jars = resolve_jars()
    assert [path.name for path in jars.classpath] == [
        f"fluss-server-{SERVER_VERSION}.jar",
        "slf4j-api.jar",
    ]
    assert jars.version == "7.8.9"
    assert jars.named is None
    assert resolve_jars() == jars
    assert (tmp_path / "calls").read_text() == "x\n"
    cache = tmp_path / "cache" / "fluss-df"
    assert [path.name for path in cache.iterdir()] == [f"server-{SERVER_VERSION}"]


def test_what_maven_says_is_passed_on(bare_machine: Path, tmp_path: Path) -> None:
    program(bare_machine / "mvn", "echo noise; echo '[ERROR] no route to host'; exit 1")
    with pytest.raises(ClusterUnavailableError, match=r"could not fetch .*\n\[ERROR\] no route"):
        resolve_jars()
    assert list((tmp_path / "cache" / "fluss-df").iterdir()) == []


def test_a_named_jar_needs_no_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar = server_jar(tmp_path / "mine.jar")
    other = server_jar(tmp_path / "other.jar", None)
    jars = resolve_jars(jar)
    assert jars.classpath == (jar,)
    assert (jars.version, jars.named) == ("7.8.9", str(jar))
    assert resolve_jars(None, str(jar)) == jars
    monkeypatch.setenv("FLUSS_SERVER_JAR", str(other))
    assert resolve_jars().version == "unknown"
    assert resolve_jars(None, str(jar)).classpath == (other,)
    assert resolve_jars(jar) == jars
    (tmp_path / "slf4j-simple-1.jar").write_bytes(b"")
    assert resolve_jars(jar).classpath == (jar, tmp_path / "slf4j-simple-1.jar")


def test_a_jar_that_is_no_server_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClusterError, match=r"the server jar, .*none.jar, does not exist"):
        resolve_jars(tmp_path / "none.jar")
    (tmp_path / "text.jar").write_text("hello")
    with pytest.raises(ClusterError, match="cannot be read"):
        resolve_jars(tmp_path / "text.jar")
    with zipfile.ZipFile(tmp_path / "other.jar", "w") as jar:
        jar.writestr("A.class", b"")
    with pytest.raises(ClusterError, match="is not a Fluss server"):
        resolve_jars(tmp_path / "other.jar")
    (tmp_path / "a:b").mkdir()
    with pytest.raises(ClusterError, match="path has a ':'"):
        resolve_jars(server_jar(tmp_path / "a:b" / "server.jar"))
    monkeypatch.setenv("FLUSS_SERVER_JAR", str(tmp_path / "none.jar"))
    with pytest.raises(ClusterError, match="environment variable FLUSS_SERVER_JAR"):
        resolve_jars()
