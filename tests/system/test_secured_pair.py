"""A real hub and real mounts with certificates or a token: who gets through, who is told what, and what changes while they run."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.tls import TlsFiles
from tests.certificates import hub_files, make_authority, needs_openssl, shared, spoke_files
from tests.system.pair import Hub, Pair, Spoke, eventually, pair_in, run

pytestmark = [pytest.mark.mount, needs_openssl]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with pair_in(tmp_path) as made:
        (made.data / "a").write_bytes(b"hello")
        (made.data / "big").write_bytes(os.urandom(3_000_000))
        yield made


def flags(files: TlsFiles) -> tuple[str, ...]:
    return ("--tls-cert", str(files.cert), "--tls-key", str(files.key), "--tls-ca", str(files.ca))


def token_file(directory: Path, token: str) -> Path:
    path = directory / f"token-{token[:4]}"
    path.touch(mode=0o600)
    path.write_text(token + "\n")
    return path


def mount_fails(pair: Pair, hub: Hub, *extra: str, name: str = "other") -> str:
    mountpoint = pair.work_dir / name
    mountpoint.mkdir(exist_ok=True)
    done = run(
        *("spoke.cli", "mount", str(mountpoint), "--hub", hub.address, "--dataset", "data", "--metrics", "127.0.0.1:0"),
        *("--cache-dir", str(pair.work_dir / f"{name}-cache"), "--cache-size", "64MiB", *extra),
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


@pytest.mark.parametrize("workers", [pytest.param("1", marks=pytest.mark.slow), "2"])
def test_a_pair_with_certificates(pair: Pair, workers: str) -> None:
    audit = pair.work_dir / "audit"
    table = pair.work_dir / "hub.toml"
    table.write_text('[identities."spoke-a"]\ndatasets = ["data"]\nweight = 2\n')
    hub = pair.hub(extra=[*flags(hub_files()), "--workers", workers, "--audit-log", str(audit), "--config", str(table)])
    spoke = pair.spoke(hub.address, extra=flags(spoke_files("spoke-a")))
    assert (spoke.mountpoint / "a").read_bytes() == b"hello"
    assert (spoke.mountpoint / "big").read_bytes() == (pair.data / "big").read_bytes()
    assert spoke.facts()["hub"]["tls"] is True
    assert spoke.metrics()["headrace_spoke_tls_certificate_expiry_seconds"] > 1e9
    eventually(lambda: [each["identity"] for each in hub.status()["spokes"]] == ["spoke-a"])
    assert hub.status()["spokes"][0]["weight"] == 2
    eventually(lambda: b'"big"' in audit.read_bytes())
    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    reads = [(line["identity"], line["path"]) for line in lines if line["event"] == "read"]
    assert sorted(reads) == [("spoke-a", "a"), ("spoke-a", "big")]
    assert [line["names"] for line in lines if line["event"] == "subscribed"] == [["spoke-a"]]
    assert audit.stat().st_mode & 0o777 == 0o600

    said = mount_fails(pair, hub, *flags(spoke_files("spoke-b")))
    assert "'spoke-b' may read nothing here" in said
    assert "this hub speaks TLS only" in mount_fails(pair, hub)

    table.write_text('[identities."spoke-a"]\ndatasets = []\n')
    eventually(lambda: not spoke.facts()["hub"]["connected"])
    eventually(lambda: "may not read dataset 'data'" in (spoke.facts()["hub"]["error"] or ""))
    assert (spoke.mountpoint / "a").read_bytes() == b"hello", "what is cached is served"
    table.write_text('[identities."spoke-a"]\n')


def found(*arguments: str | Path, **environ: str) -> dict[str, str]:
    """What doctor says of the hub, by check: level and what was seen."""
    done = subprocess.run(
        [sys.executable, "-m", "spoke.cli", "doctor", *map(str, arguments), "--json"],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, **environ},
    )  # fmt: skip
    told = {each["check"]: f"{each['level']}: {each['seen']}" for each in json.loads(done.stdout)["findings"]}
    return {check: told[check] for check in ("hub", "certificate") if check in told}


@pytest.mark.slow
def test_doctor_shows_the_hub_what_the_mount_shows_it(pair: Pair) -> None:
    hub = pair.hub(extra=flags(hub_files()))
    files = spoke_files("spoke-a")
    spoke = pair.spoke(hub.address, extra=flags(files))
    told = found(spoke.mountpoint)
    assert told["hub"].startswith("ok: ")
    assert f"certificate {files.cert} shown and taken" in told["hub"]
    assert told["certificate"].startswith("ok: ")

    before = ("--hub", hub.address, "--dataset", "data")
    assert "this hub speaks TLS only" in found(*before)["hub"]
    config = pair.work_dir / "c4.toml"
    config.write_text(
        f'hub = "{hub.address}"\ndataset = "data"\ncache-dir = "{pair.work_dir / "new"}"\n'
        f'tls-cert = "{files.cert}"\ntls-key = "{files.key}"\ntls-ca = "{files.ca}"\n'
    )
    assert found("--config", config)["hub"].startswith("ok: ")
    in_environment = {f"HEADRACE_TLS_{name.upper()}": str(path) for name, path in files._asdict().items()}
    assert found(*before, **in_environment)["hub"].startswith("ok: ")

    assert "mismatch" in found(*before, *flags(files), "--tls-name", "elsewhere.example")["hub"]
    old = shared().issue("late", "DNS:late", not_after="20210101000000Z")
    told = found(*before, *flags(old))
    assert "it finds this end's certificate expired" in told["hub"]
    assert told["certificate"].startswith("problem: ")
    stranger = make_authority(pair.work_dir / "stranger").issue("spoke-a", "DNS:spoke-a")
    assert "must lead to a certificate in the file of tls-ca" in found(*before, *flags(stranger))["hub"]
    assert "missing: tls-key, tls-ca" in found(*before, "--tls-cert", files.cert)["hub"]
    plain = pair.hub(extra=["--state-dir", str(pair.work_dir / "plain-state")])
    assert "does not speak TLS" in found("--hub", plain.address, "--dataset", "data", *flags(files))["hub"]


def test_doctor_proves_the_token(pair: Pair) -> None:
    right, wrong = token_file(pair.work_dir, "right" * 10), token_file(pair.work_dir, "wrong" * 10)
    hub = pair.hub(extra=["--token-file", str(right)])
    before = ("--hub", hub.address, "--dataset", "data")
    assert found(*before, "--token-file", right)["hub"].startswith("ok: ")
    assert "the hub's token is not this spoke's" in found(*before, "--token-file", wrong)["hub"]
    assert "this hub asks for its token" in found(*before)["hub"]
    assert found(*before, "--token-file", pair.work_dir / "none")["hub"].startswith(
        "problem: what this spoke should show"
    )


@pytest.mark.slow
def test_renewed_certificates_are_used_without_remount(pair: Pair, tmp_path: Path) -> None:
    ends = {}
    for end, files in (("hub", hub_files()), ("spoke", spoke_files())):
        ends[end] = TlsFiles(*(tmp_path / f"{end}-{kind}" for kind in ("cert", "key", "ca")))
        for there, file in zip(ends[end], files, strict=True):
            shutil.copy(file, there)
    hub = pair.hub(extra=flags(ends["hub"]))
    spoke = pair.spoke(hub.address, extra=flags(ends["spoke"]))
    other = make_authority(tmp_path / "other")
    for end, files in (("hub", other.issue("hub", "IP:127.0.0.1")), ("spoke", other.issue("spoke-a", "DNS:spoke-a"))):
        for there, file in zip(ends[end], files, strict=True):
            shutil.copy(file, there)
    hub.terminate()
    hub = pair.hub(hub.port, extra=flags(ends["hub"]))
    eventually(lambda: spoke.facts()["hub"]["connected"])
    assert (spoke.mountpoint / "big").read_bytes() == (pair.data / "big").read_bytes()


@pytest.mark.slow
def test_a_pair_with_a_token(pair: Pair) -> None:
    right, wrong = token_file(pair.work_dir, "right" * 10), token_file(pair.work_dir, "wrong" * 10)
    hub = pair.hub(extra=["--token-file", str(right), "--workers", "2"])
    spoke = pair.spoke(hub.address, extra=["--token-file", str(right)])
    assert (spoke.mountpoint / "a").read_bytes() == b"hello"
    assert "the hub's token is not this spoke's" in mount_fails(pair, hub, "--token-file", str(wrong))
    assert "this hub asks for its token" in mount_fails(pair, hub)
    right.chmod(0o644)
    assert "has mode 0644: others may read" in mount_fails(pair, hub, "--token-file", str(right))
    plain = pair.hub(extra=["--state-dir", str(pair.work_dir / "plain-state")])
    assert "did not show that it has the token" in mount_fails(pair, plain, "--token-file", str(wrong))


def worker(spoke: Spoke) -> int | None:
    """None between two."""
    with contextlib.suppress(Exception):
        return spoke.worker_pid()
    return None


@pytest.mark.parametrize("with_what", ["tls", pytest.param("token", marks=pytest.mark.slow)])
def test_files_that_cannot_be_used_for_a_while_end_no_mount(pair: Pair, with_what: str) -> None:
    """An upgrade and a worker that dies, while certificate or token are being renewed."""
    if with_what == "tls":
        secret = pair.work_dir / "cert"
        files = spoke_files("spoke-a")._replace(cert=shutil.copy(spoke_files("spoke-a").cert, secret))
        hub, extra, reason = pair.hub(extra=flags(hub_files())), flags(files), "both must be PEM"
    else:
        secret = token_file(pair.work_dir, "right" * 10)
        at_the_hub = token_file(pair.work_dir, "right" * 10).rename(pair.work_dir / "hubs")
        token_file(pair.work_dir, "right" * 10)
        hub = pair.hub(extra=["--token-file", str(at_the_hub)])
        extra, reason = ("--token-file", str(secret)), "holds 5 bytes"
    good = secret.read_text()
    spoke = pair.spoke(hub.address, extra=extra)
    assert (spoke.mountpoint / "a").read_bytes() == b"hello"
    spoke.settled()
    secret.write_text("short")
    pid = spoke.worker_pid()
    done = run("spoke.cli", "upgrade", str(spoke.mountpoint), timeout_s=100)
    assert done.returncode == 1
    assert reason in done.stderr
    assert "the old one serves on" in done.stderr
    assert (spoke.worker_pid(), spoke.facts()["hub"]["connected"]) == (pid, True)

    os.kill(pid, signal.SIGKILL)
    eventually(lambda: worker(spoke) not in (None, pid), 60)
    assert reason in spoke.facts()["hub"]["error"]
    assert (spoke.mountpoint / "a").read_bytes() == b"hello", "what is cached is served"
    secret.write_text(good)
    eventually(lambda: spoke.facts()["hub"]["connected"], 60)
    assert (spoke.mountpoint / "big").read_bytes() == (pair.data / "big").read_bytes()
    assert spoke.facts()["supervision"]["restarts"] == 1


def rights(pid: int) -> tuple[int, int]:
    """What process ``pid`` may do, and whether it may gain nothing more."""
    facts = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(facts["CapPrm"], 16), int(facts["NoNewPrivs"])


@pytest.mark.skipif(os.geteuid() != 0, reason="has no rights of root to give up")
def test_every_worker_gives_up_what_it_does_not_need(pair: Pair) -> None:
    spoke = pair.spoke(pair.hub().address)
    ours = rights(os.getpid())[0]
    sys_admin = 1 << 21
    seen: list[int] = []
    for _ in range(3):
        eventually(lambda: worker(spoke) not in (None, *seen), 60)
        seen.append(spoke.worker_pid())
        kept, no_more = rights(seen[-1])
        assert (kept & sys_admin, no_more) == (ours & sys_admin, 1)
        assert kept == sys_admin & ours or kept & ~sys_admin == 0b1110 & ours, "or the way to a path is another user's"
        assert rights(spoke.popen.pid)[0] == ours
        assert (spoke.mountpoint / "big").read_bytes() == (pair.data / "big").read_bytes()
        if len(seen) == 1:
            assert run("spoke.cli", "upgrade", str(spoke.mountpoint), timeout_s=100).returncode == 0
        elif len(seen) == 2:
            os.kill(seen[-1], signal.SIGKILL)
    assert run("spoke.cli", "umount", str(spoke.mountpoint)).returncode == 0
    assert not os.path.ismount(spoke.mountpoint)


def test_a_hub_does_not_listen_beyond_this_host_open_to_all(pair: Pair) -> None:
    serve = ("hub.cli", "serve", "--dataset", f"data={pair.data}", "--state-dir", str(pair.work_dir / "s"))
    done = run(*serve, "--listen", "0.0.0.0:0")
    assert done.returncode == 2, done.stderr
    for way_out in ("--tls-cert", "--token-file", "--insecure"):
        assert way_out in done.stderr
    done = run(*serve, "--listen", "192.0.2.7:1", "--insecure", "--metrics", "127.0.0.1:0")
    assert "cannot listen on 192.0.2.7:1" in done.stderr


def test_a_hub_needs_no_rights_of_root(pair: Pair, tmp_path: Path) -> None:
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("not root, so every test shows it; or no setpriv")
    for path in (tmp_path, *tmp_path.parents):
        if path != Path("/") and not path.stat().st_mode & 0o001:
            path.chmod(path.stat().st_mode | 0o011)
    state = tmp_path / "nobodys"
    state.mkdir()
    os.chown(state, 65534, 65534)
    pair.data.chmod(0o755)
    command = [
        *(
            "setpriv",
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "--no-new-privs",
            "--bounding-set",
            "-all",
        ),
        *(sys.executable, "-m", "hub.cli", "serve", "--dataset", f"data={pair.data}", "--state-dir", str(state)),
        *("--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    hub = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/", env=environment)
    try:
        assert hub.stdout is not None
        line = hub.stdout.readline()
        assert line.startswith("listening on "), hub.communicate(timeout=10)
        address = line.split()[2].rstrip(",")
        spoke = pair.spoke(address)
        assert (spoke.mountpoint / "a").read_bytes() == b"hello"
    finally:
        hub.terminate()
        hub.communicate(timeout=10)
