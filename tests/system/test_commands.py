"""What people type: wrong use is answered with exit code 2 and one clear line; right use does what it says."""

import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from spoke import control
from spoke.places import runtime_dir
from tests.system.pair import Pair, Process, Spoke, eventually, is_running, run

pytestmark = pytest.mark.mount


def mount(pair: Pair, mountpoint: Path, *extra: str, hub: str = "127.0.0.1:1", cache: Path | None = None):
    return run(
        "spoke.cli", "mount", str(mountpoint), "--hub", hub, "--dataset", "data", "--cache-dir",
        str(cache or pair.work_dir / "cache"), "--metrics", "127.0.0.1:0", *extra,
    )  # fmt: skip


def refused(answer: subprocess.CompletedProcess[str], *said: str) -> None:
    assert answer.returncode == 2, answer.stderr
    for text in said:
        assert text in answer.stderr
    assert "Traceback" not in answer.stderr


def test_mountpoints_that_cannot_be(pair: Pair) -> None:
    (pair.work_dir / "full").mkdir()
    (pair.work_dir / "full" / "a").touch()
    refused(mount(pair, pair.work_dir / "none"), "does not exist", "mkdir -p")
    refused(mount(pair, pair.work_dir / "full"), "not empty", "'a'")
    refused(mount(pair, pair.work_dir / "full" / "a"), "not a directory")


def test_a_log_file_that_cannot_be(pair: Pair) -> None:
    (pair.work_dir / "mnt").mkdir()
    log_file = str(pair.work_dir / "none/spoke.log")
    refused(
        mount(pair, pair.work_dir / "mnt", "--background", "--log-file", log_file),
        log_file,
        "No such file",
        "--log-file",
    )


def test_quantities_that_cannot_be(pair: Pair) -> None:
    mountpoint = pair.work_dir / "mnt"
    mountpoint.mkdir()
    refused(mount(pair, mountpoint, "--cache-size", "10pigs"), "cache-size", "'10pigs' is not a size", "100GiB")
    refused(mount(pair, mountpoint, "--read-timeout", "soon"), "read-timeout", "is not a duration", "300s")
    refused(mount(pair, mountpoint, "--cache-size", "1MiB"), "cache capacity is 1 MiB", "at least 16 MiB")
    refused(mount(pair, mountpoint, hub="nowhere:port"), "hub", "is not an address")
    refused(
        run("hub.cli", "serve", "--dataset", f"data={pair.data}", "--rate-limit", "10pigs"),
        "'10pigs' is not a rate",
        "10gbit",
    )
    refused(run("hub.cli", "serve", "--dataset", "data"), "not NAME=DIR")
    refused(
        run("hub.cli", "serve", "--dataset", f"data={pair.data}", "--state-dir", str(pair.work_dir / "state"), "--insecure",
            "--listen", "nosuch.invalid:7420", "--metrics", "127.0.0.1:0"),
        "cannot listen on nosuch.invalid:7420: Name or service not known; choose another --listen",
    )  # fmt: skip
    refused(run("hub.cli", "serve"), "dataset is not set", "HEADRACE_DATASET")


def test_a_file_of_settings_with_a_dataset_that_cannot_be(tmp_path: Path) -> None:
    settings = tmp_path / "hub.toml"
    settings.write_text("dataset = 5\n")
    refused(run("hub.cli", "serve", "--config", str(settings)), "'5' is not NAME=DIR")
    settings.write_text("dataset = {data = 5}\n")
    refused(run("hub.cli", "serve", "--config", str(settings)), "dataset 'data': cannot open", "/5")


def test_cache_directories_that_cannot_be(pair: Pair) -> None:
    mountpoint, foreign = pair.work_dir / "mnt", pair.work_dir / "foreign"
    mountpoint.mkdir()
    foreign.mkdir()
    (foreign / "photo.jpg").touch()
    refused(mount(pair, mountpoint, cache=foreign), "not ours", "photo.jpg")
    assert (foreign / "photo.jpg").exists()
    refused(mount(pair, mountpoint, cache=Path("/proc/none")), "cannot be used")
    refused(mount(pair, mountpoint, cache=foreign / "photo.jpg"), "photo.jpg cannot be used: Not a directory")
    refused(
        mount(pair, mountpoint, "--cache-free-floor", "8PiB"),
        "and 8 PiB must stay free",
        "a lower --cache-free-floor",
    )


def test_of_several_that_mount_at_one_place_one_does_and_is_served(pair: Pair) -> None:
    mountpoint = pair.work_dir / "mnt"
    mountpoint.mkdir()
    address = pair.hub().address
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "spoke.cli", "mount", str(mountpoint), "--hub", address, "--dataset", "data", "--metrics",
             "127.0.0.1:0", "--cache-dir", str(pair.work_dir / f"cache{number}"), "--background"],
            stderr=subprocess.PIPE, text=True,
        )
        for number in range(3)
    ]  # fmt: skip
    said = [process.communicate(timeout=60)[1] for process in started]
    assert sorted(process.returncode for process in started) == [0, 2, 2], said
    facts = json.loads(run("spoke.cli", "status", str(mountpoint), "--json").stdout)
    path = control.supervisor_socket_path(runtime_dir(), str(mountpoint.resolve()))
    assert control.ask_once(path, {"command": "state"})["worker_pid"] == facts["pid"]
    done = run("spoke.cli", "umount", str(mountpoint))
    assert (done.returncode, done.stderr) == (0, "")
    assert not os.path.ismount(mountpoint)


def test_who_gives_up_a_mount_in_the_background_leaves_none(pair: Pair) -> None:
    mountpoint = pair.work_dir / "mnt"
    mountpoint.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(20)
        words = [
            "spoke.cli",
            "mount",
            str(mountpoint),
            "--hub",
            f"127.0.0.1:{silent.getsockname()[1]}",
            "--dataset",
            "data",
        ]
        words += ["--cache-dir", str(pair.work_dir / "cache"), "--metrics", "127.0.0.1:0", "--background"]
        started = subprocess.Popen([sys.executable, "-m", *words])
        silent.accept()[0].close()  # the spoke dials, and would go on for --connect-timeout
        started.send_signal(signal.SIGTERM)
        assert started.wait(20) == 128 + signal.SIGTERM
    eventually(lambda: not [pid for pid in os.listdir("/proc") if pid.isdigit() and is_spoke_of(pid, mountpoint)])


def is_spoke_of(pid: str, mountpoint: Path) -> bool:
    try:
        return os.fsencode(mountpoint) in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def test_a_mount_in_another_mount_namespace_is_left_with_what_to_do(pair: Pair) -> None:
    mountpoint = pair.work_dir / "mnt"
    mountpoint.mkdir()
    words = [
        *(sys.executable, "-m", "spoke.cli", "mount", mountpoint, "--hub", pair.hub().address, "--dataset", "data"),
        *("--cache-dir", pair.work_dir / "cache", "--metrics", "127.0.0.1:0", "--background"),
    ]
    subprocess.run(["unshare", "-m", *map(str, words)], check=True, timeout=60, capture_output=True)
    pid = json.loads(run("spoke.cli", "status", str(mountpoint), "--json").stdout)["supervision"]["supervisor_pid"]
    try:
        done = run("spoke.cli", "umount", str(mountpoint))
        assert done.returncode == 2
        assert (
            f"process {pid} serves it in another mount namespace; nsenter -t {pid} -m headrace-spoke umount"
            in done.stderr
        )
    finally:
        end = os.pidfd_open(pid)
        os.kill(pid, signal.SIGTERM)
        select.select([end], [], [], 20)
        os.close(end)
    assert run("spoke.cli", "umount", str(mountpoint)).stderr == f"error: {mountpoint} is not a mount of Headrace\n"


def test_an_unknown_dataset_and_a_hub_that_is_not_there(pair: Pair) -> None:
    hub = pair.hub()
    mountpoint = pair.work_dir / "mnt"
    mountpoint.mkdir()
    refused(mount(pair, mountpoint, "--dataset", "nope", hub=hub.address), "no dataset 'nope'", "served: data")
    started_s = time.monotonic()
    refused(mount(pair, mountpoint, "--connect-timeout", "1s"), "no hub within 1 s", "refused", "no names are on disk")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        refused(mount(pair, mountpoint, "--connect-timeout", "1s", hub=address), "no hub within 1 s")
    assert time.monotonic() - started_s < 20
    refused(mount(pair, mountpoint, "--dataset", "nope", "--background", hub=hub.address), "no dataset 'nope'")


def test_two_spokes_on_one_cache_or_one_mountpoint(pair: Pair) -> None:
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    other = pair.work_dir / "other"
    other.mkdir()
    refused(mount(pair, other, hub=hub.address), "in use by another spoke")
    refused(
        mount(pair, spoke.mountpoint, hub=hub.address, cache=pair.work_dir / "cache2"),
        "already mounted", str(spoke.popen.pid), "headrace-spoke umount",
    )  # fmt: skip


def test_two_hubs_on_one_state_directory_or_one_port(pair: Pair) -> None:
    hub = pair.hub()
    common = ["serve", "--dataset", f"data={pair.data}", "--metrics", "127.0.0.1:0"]
    refused(
        run("hub.cli", *common, "--listen", "127.0.0.1:0", "--state-dir", str(pair.work_dir / "hub-state")),
        "in use by another hub",
    )
    refused(
        run("hub.cli", *common, "--listen", hub.address, "--state-dir", str(pair.work_dir / "other-state")),
        f"cannot listen on {hub.address}: Address already in use",
    )
    refused(
        run("hub.cli", "serve", "--dataset", "data=/nonexistent", "--state-dir", str(pair.work_dir / "other-state")),
        "cannot open /nonexistent",
    )


def test_background_returns_with_a_mount_that_answers_and_umount_ends_it(pair: Pair) -> None:
    (pair.data / "a").write_bytes(b"hello")
    hub = pair.hub()
    mountpoint = pair.work_dir / "mnt"
    mountpoint.mkdir()
    try:
        answer = mount(pair, mountpoint, "--background", hub=hub.address)
        assert answer.returncode == 0, answer.stderr
        log = Path(answer.stdout.rpartition("log: ")[2].strip())
        assert "mounted" in log.read_text()
        assert (mountpoint / "a").read_bytes() == b"hello"
        facts = json.loads(run("spoke.cli", "status", str(mountpoint), "--json").stdout)
        assert facts["hub"]["connected"] is True
        assert facts["settings"]["hub"] == {"value": hub.address, "source": "flag"}
        assert facts["settings"]["read_timeout"] == {"value": 300.0, "source": "default"}
        readable = run("spoke.cli", "status", str(mountpoint))
        assert readable.returncode == 0
        assert "linked" in readable.stdout
        with (mountpoint / "a").open():
            held = run("spoke.cli", "umount", str(mountpoint))
            assert held.returncode == 1
            assert str(os.getpid()) in held.stderr
        ended = run("spoke.cli", "umount", str(mountpoint))
        assert (ended.returncode, ended.stdout) == (0, f"unmounted {mountpoint}\n")
        assert not log.exists(), "it ended in order"
        assert list(mountpoint.iterdir()) == []
        assert not is_running(facts["pid"])
        refused(run("spoke.cli", "umount", str(mountpoint)), "not a mount of Headrace")
        refused(run("spoke.cli", "status", str(mountpoint)), "no spoke")
    finally:
        run("spoke.cli", "umount", str(mountpoint), "--force")


def test_a_mountpoint_and_a_reader_whose_names_are_no_text(pair: Pair) -> None:
    (pair.data / "f").write_bytes(b"x" * 5000)
    hub = pair.hub()
    mountpoint = Path(os.fsdecode(os.fsencode(pair.work_dir) + b"/caf\xe9"))
    mountpoint.mkdir()

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "spoke.cli", *words], capture_output=True, text=True, timeout=60, check=False,
            errors="replace", env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
        )  # fmt: skip

    mounted = command(
        "mount", str(mountpoint), "--hub", hub.address, "--dataset", "data", "--cache-dir", f"{mountpoint}.cache",
        "--metrics", "127.0.0.1:0", "--background", "--log-file", str(pair.work_dir / "background.log"),
    )  # fmt: skip
    try:
        assert mounted.returncode == 0, mounted.stderr
        assert "caf\\udce9" in mounted.stdout
        assert "a new worker serves" in command("upgrade", str(mountpoint)).stdout
        assert "caf\\udce9" in command("status", str(mountpoint)).stdout
        named = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\xe9t\\xe9', 0, 0, 0); print(flush=True); input()"
        with subprocess.Popen(
            [sys.executable, "-c", named], cwd=mountpoint, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as reader:
            assert reader.stdout is not None
            reader.stdout.readline()
            held = command("umount", str(mountpoint))
            assert held.returncode == 1
            assert f"is in use by {reader.pid} (\\xe9t\\xe9)" in held.stderr
            reader.communicate(b"\n")
    finally:
        ended = command("umount", "--force", str(mountpoint))
    assert ended.returncode == 0, ended.stderr
    foreground = Process(
        ["spoke.cli", "mount", str(mountpoint), "--hub", hub.address, "--dataset", "data", "--cache-dir",
         f"{mountpoint}.cache", "--metrics", "127.0.0.1:0"],
        pair.work_dir / "foreground.log", {"PYTHONIOENCODING": "utf-8:strict"},
    )  # fmt: skip
    try:
        assert foreground.popen.stdout is not None
        assert foreground.popen.stdout.readline() == b"mounted data on " + os.fsencode(mountpoint) + b"\n"
    finally:
        assert foreground.terminate() == 0


def test_a_mount_that_is_shown_or_was_moved_elsewhere(pair: Pair) -> None:
    (pair.data / "a").write_bytes(b"hello")
    (pair.work_dir / "above").mkdir()
    spoke = pair.spoke(pair.hub().address, name="above/mnt")
    shown = pair.work_dir / "shown"
    shown.mkdir()
    done = subprocess.run(
        ["mount", "--bind", str(spoke.mountpoint), str(shown)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"no bind mounts here: {done.stderr.strip()}")
    try:
        refused(run("spoke.cli", "status", str(shown)), f"shows the mount of {spoke.mountpoint}", "give")
        for flags in ([], ["--force"]):
            refused(run("spoke.cli", "umount", str(shown), *flags), f"shows the mount of {spoke.mountpoint}")
        assert (spoke.mountpoint / "a").read_bytes() == b"hello"
    finally:
        subprocess.run(["umount", str(shown)], check=True)
    moved = (pair.work_dir / "above").rename(pair.work_dir / "moved") / "mnt"
    refused(run("spoke.cli", "status", str(moved)), f"shows the mount of {spoke.mountpoint}")
    with (moved / "a").open():
        held = run("spoke.cli", "umount", str(moved))
        assert held.returncode == 1
        assert str(os.getpid()) in held.stderr
    ended = run("spoke.cli", "umount", str(moved))
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not os.path.ismount(moved)
    assert spoke.popen.wait(10) == 0


def test_a_mount_started_with_closed_standard_files(pair: Pair) -> None:
    (pair.data / "a").write_bytes(b"hello")
    hub = pair.hub()
    mountpoint = pair.work_dir / "mnt"
    mountpoint.mkdir()
    closing = "import os, sys; os.closerange(0, 3); os.execv(sys.executable, [sys.executable, '-m', 'spoke.cli', *sys.argv[1:]])"
    try:
        started = subprocess.run(
            [sys.executable, "-c", closing, "mount", str(mountpoint), "--hub", hub.address, "--dataset", "data",
             "--cache-dir", str(pair.work_dir / "cache"), "--metrics", "127.0.0.1:0", "--background"],
            timeout=30, check=False,
        )  # fmt: skip
        assert started.returncode == 0
        assert (mountpoint / "a").read_bytes() == b"hello"
    finally:
        run("spoke.cli", "umount", str(mountpoint), "--force")


def test_umount_force_ends_a_mount_in_use_and_a_spoke_that_does_not_answer(pair: Pair) -> None:
    (pair.data / "a").write_bytes(b"hello")
    spoke = pair.spoke(pair.hub().address)
    with (spoke.mountpoint / "a").open():
        for pid in (spoke.popen.pid, spoke.worker_pid()):
            os.kill(pid, signal.SIGSTOP)
        held = run("spoke.cli", "umount", str(spoke.mountpoint))
        assert held.returncode == 1
        forced = run("spoke.cli", "umount", str(spoke.mountpoint), "--force")
        assert forced.returncode == 0, forced.stderr
    assert not os.path.ismount(spoke.mountpoint)
    assert spoke.popen.wait(10) == -signal.SIGKILL


def test_a_supervisor_that_is_stopped_without_a_worker(pair: Pair) -> None:
    spoke = pair.spoke(pair.hub().address)
    worker = spoke.worker_pid()
    spoke.popen.send_signal(signal.SIGSTOP)
    os.kill(worker, signal.SIGKILL)
    eventually(lambda: not is_running(worker))
    asked = run("spoke.cli", "status", str(spoke.mountpoint))
    assert asked.returncode == 1
    assert (
        f"its supervisor (process {spoke.popen.pid}, stopped) does not answer; headrace-spoke umount --force"
        in asked.stderr
    )
    forced = run("spoke.cli", "umount", str(spoke.mountpoint), "--force")
    assert forced.returncode == 0, forced.stderr
    assert not os.path.ismount(spoke.mountpoint)
    assert spoke.popen.wait(10) == -signal.SIGKILL


def test_warm_brings_whole_verified_files_and_says_what_cannot_be(pair: Pair) -> None:
    (pair.data / "sub").mkdir()
    for number in range(50):
        (pair.data / "sub" / f"{number}").write_bytes(os.urandom(5000 + number))
    (pair.data / "big").write_bytes(os.urandom(40 << 20))
    hub = pair.hub()
    spoke = pair.spoke(hub.address)
    assert run("spoke.cli", "warm", str(spoke.mountpoint), "sub").returncode == 0
    assert 50 * 5000 < spoke.status()["cache"]["used_bytes"] < 5 << 20
    warmed = run("spoke.cli", "warm", str(spoke.mountpoint))
    assert warmed.returncode == 0, warmed.stderr
    assert "51 files" in warmed.stdout
    refused(run("spoke.cli", "warm", str(spoke.mountpoint), "nosuch"), "'nosuch' is not in the dataset")
    refused(run("spoke.cli", "warm", str(spoke.mountpoint), "/etc/passwd"), "not below the mountpoint")
    for option in ("--plan", "--order"):
        refused(run("spoke.cli", "warm", str(spoke.mountpoint), option, "./absent"), "absent", "No such file")
    hub.terminate()
    assert (spoke.mountpoint / "big").read_bytes() == (pair.data / "big").read_bytes()
    again = run("spoke.cli", "warm", str(spoke.mountpoint), str(spoke.mountpoint / "sub"))
    assert again.returncode == 0, "all is here, so no hub is needed"


def test_warm_refuses_what_does_not_fit(pair: Pair) -> None:
    (pair.data / "big").write_bytes(os.urandom(40 << 20))
    spoke = pair.spoke(pair.hub().address, extra=["--cache-size", "20MiB"])
    refused(run("spoke.cli", "warm", str(spoke.mountpoint)), "41943040 bytes would have to be cached", "--cache-size")


def test_metrics_and_health_of_both(pair: Pair) -> None:
    (pair.data / "a").write_bytes(os.urandom(1 << 20))
    hub = pair.hub()
    spoke = Spoke(pair.work_dir / "mnt", hub.address, pair.work_dir / "cache", extra=["--metrics", "127.0.0.1:0"])
    try:
        spoke.ready()
        assert len((spoke.mountpoint / "a").read_bytes()) == 1 << 20
        metrics_line = next(line for line in spoke.log().splitlines() if '"event": "metrics"' in line)
        address = json.loads(metrics_line)["address"]
        for where, names in {
            hub.metrics: ["headrace_hub_sent_bytes_total", "headrace_hub_revision"],
            address: [
                'headrace_spoke_read_bytes_total{source="cache"}', 'headrace_spoke_read_bytes_total{source="wan"}',
                'headrace_spoke_reads_total{result="hit"}', 'headrace_spoke_reads_total{result="late"}',
                'headrace_spoke_reads_total{result="miss"}', "headrace_spoke_read_stall_seconds_total",
                "headrace_spoke_wan_received_bytes_total", 'headrace_spoke_prefetch_bytes_total{outcome="used"}',
                'headrace_spoke_prefetch_bytes_total{outcome="wasted"}', "headrace_spoke_corrupt_blocks_total",
                "headrace_spoke_replica_staleness_seconds", "headrace_spoke_hub_connected 1.0",
            ],
        }.items():  # fmt: skip
            with urllib.request.urlopen(f"http://{where}/metrics", timeout=10) as response:
                text = response.read().decode()
            assert [name for name in names if name not in text] == []
            with urllib.request.urlopen(f"http://{where}/healthz", timeout=10) as response:
                assert response.status == 200
        status = run("hub.cli", "status", "--metrics", hub.metrics)
        assert "data:" in status.stdout
        assert "spoke" in status.stdout
        assert f"settings: dataset=data={pair.data} (flag), " in status.stdout
    finally:
        spoke.clean_up()


def test_owner_group_and_mode_are_the_mounts(pair: Pair) -> None:
    (pair.data / "secret").write_bytes(b"x")
    (pair.data / "secret").chmod(0o600)
    (pair.data / "tool").write_bytes(b"x")
    (pair.data / "tool").chmod(0o6710)
    (pair.data / "d").mkdir(mode=0o700)

    def shown(path: Path) -> list[tuple[int, int, int]]:
        found = [os.stat(path / name) for name in ("secret", "tool", "d")]
        return [(stat.S_IMODE(entry.st_mode), entry.st_uid, entry.st_gid) for entry in found]

    hub = pair.hub()
    mine = (os.geteuid(), os.getegid())
    assert shown(pair.spoke(hub.address).mountpoint) == [(0o444, *mine), (0o554, *mine), (0o555, *mine)]
    spoke = pair.spoke(hub.address, "other", "other-cache", extra=("--uid", "12", "--gid", "34", "--umask", "027"))
    assert shown(spoke.mountpoint) == [(0o440, 12, 34), (0o550, 12, 34), (0o550, 12, 34)]
