"""Commands that are watched: connections beyond this machine, and files left in an empty HOME."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from helpers.runs.scripts_here import run

WATCH = r"""
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void note(const char *call, const char *peer) {
  FILE *file = fopen(getenv("WATCHED"), "a");
  fprintf(file, "%s %s\n", call, peer);
  fclose(file);
}

/* Notes an address of the internet that is not this machine's. */
static void look(const char *call, const struct sockaddr *address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address && address->sa_family == AF_INET)
    inet_ntop(AF_INET, &((struct sockaddr_in *)address)->sin_addr, text, sizeof text);
  if (address && address->sa_family == AF_INET6)
    inet_ntop(AF_INET6, &((struct sockaddr_in6 *)address)->sin6_addr, text, sizeof text);
  if (*text && strncmp(text, "127.", 4) && strcmp(text, "::1")) note(call, text);
}

int connect(int socket, const struct sockaddr *address, socklen_t size) {
  look("connect", address);
  return ((int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "connect"))(
      socket, address, size);
}

ssize_t sendto(int socket, const void *data, size_t count, int flags,
               const struct sockaddr *address, socklen_t size) {
  look("sendto", address);
  return ((ssize_t (*)(int, const void *, size_t, int, const struct sockaddr *, socklen_t))dlsym(
      RTLD_NEXT, "sendto"))(socket, data, count, flags, address, size);
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
  if (node && strcmp(node, "localhost")) note("getaddrinfo", node);
  return ((int (*)(const char *, const char *, const struct addrinfo *, struct addrinfo **))dlsym(
      RTLD_NEXT, "getaddrinfo"))(node, service, hints, found);
}
"""
"""A library that is loaded before all others, and notes connections and names that are looked up.

Python's audit hooks do not see what native code opens.
"""
CI_NAMES = (
    "CI TF_BUILD GITHUB_ACTIONS GITLAB_CI CIRCLECI TRAVIS JENKINS_URL CODEBUILD_BUILD_ID BUILDKITE "
    "TEAMCITY_VERSION APPVEYOR BITBUCKET_BUILD_NUMBER"
)
"""Variables that switch ONNX Runtime's reports off (its library holds these names)."""


@pytest.fixture(scope="session")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled library."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform != "linux":
        pytest.skip("no C compiler on Linux")
    folder = tmp_path_factory.mktemp("watch")
    (folder / "watch.c").write_text(WATCH)
    done = run(compiler, "-shared", "-fPIC", "-o", folder / "watch.so", folder / "watch.c", "-ldl")
    assert done.returncode == 0, done.stderr
    return folder / "watch.so"


def traffic(
    watch: Path, home: Path, *command: object, folder: Path | None = None, **variables: str
) -> str:
    """Run a command with an empty HOME; return what ONNX Runtime left there, and all peers.

    The command does not learn that it runs in CI, where ONNX Runtime reports nothing.

    Args:
        watch: the fixture.
        home: a folder to be made.
        folder: where it runs, if not here.
        variables: of its environment, beside those that are here.
    """
    (home / "tmp").mkdir(parents=True)
    noted = home.with_suffix(".noted")
    folders = {"HOME": home, "XDG_CACHE_HOME": home / "cache", "TMPDIR": home / "tmp"}
    preloaded = {"LD_PRELOAD": watch, "WATCHED": noted}
    outside_ci = dict.fromkeys(CI_NAMES.split(), "")
    run(*command, folder=folder, status=0, **{**outside_ci, **preloaded, **folders, **variables})
    left = [path for path in sorted(home.rglob("*")) if "onnxruntime" in path.name]
    left += sorted((home / "tmp").iterdir())
    return "\n".join([*map(str, left), noted.read_text() if noted.exists() else ""]).strip()
