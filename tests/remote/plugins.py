"""The server's S3 plugin, fetched once into the cache folder of the local clusters."""

from __future__ import annotations

import tempfile
from pathlib import Path

from fluss_df.cluster.processes.places import cache_dir
from fluss_df.cluster.servers.jars import SERVER_VERSION, run_maven
from fluss_df.cluster.servers.java import find_maven

# This version of the Maven plugin takes a jar without looking at its parents: the parent of the
# file systems was not published with 0.9.1.
_COPY = "org.apache.maven.plugins:maven-dependency-plugin:2.10:copy"
_ARTIFACT = f"org.apache.fluss:fluss-fs-s3:{SERVER_VERSION}"


def s3_plugins() -> Path:
    """Return a folder of plugins, fit for ``FLUSS_PLUGINS_DIR``."""
    folder = cache_dir() / f"plugins-{SERVER_VERSION}"
    if not folder.is_dir():
        purpose = "fetch the S3 plugin of the Fluss server"
        maven = find_maven(purpose)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".plugins-", dir=folder.parent) as work:
            made = Path(work, "plugins")
            output = f"-DoutputDirectory={made / 's3'}"
            run_maven([str(maven), "-B", "-q", _COPY, f"-Dartifact={_ARTIFACT}", output], purpose)
            try:
                made.rename(folder)
            except OSError:
                if not folder.is_dir():
                    raise
    return folder
