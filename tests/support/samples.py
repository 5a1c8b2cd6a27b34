"""Values as they travel, for tests: complete, and changed where a test says."""

from __future__ import annotations

from typing import Any


def session_row(**changes: Any) -> dict[str, Any]:
    """A row of the answer to `sessions`."""
    row: dict[str, Any] = {
        "id": "s-1",
        "name": "a",
        "env": "python",
        "client": "nsm",
        "scope": "cli",
        "project": None,
        "state": "idle",
        "age_s": 192.4,
        "idle_s": 2.5,
        "executions": 3,
        "memory_bytes": 12 * 1024 * 1024,
        "cpu_s": 0.25,
        "pid": 4242,
        "limited_by": "cgroup",
        "processes": 2,
        "running_s": None,
        "queued": 0,
        "taken_up": 0,
        "outdated": False,
        "checkpoints": 0,
        "ports": [],
        "labels": {},
        "gpu_memory_bytes": None,
        "gpu_percent": None,
    }
    return row | changes


def run_result(**changes: Any) -> dict[str, Any]:
    """The answer to `run`."""
    result: dict[str, Any] = {
        "execution_id": "x-1",
        "env": "python",
        "session": {"id": "s-1", "name": "a", "created": False, "replaced": None},
        "stdout": "",
        "stderr": "",
        "exit_code": 0,
        "duration_s": 0.01,
        "displays": [],
        "truncated": {},
        "timed_out": False,
        "interrupted": False,
        "interpreter_restarted": False,
        "restart_reason": "",
        "waited_s": 0.0,
        "timeout_s": 30.0,
        "clamped_from_s": None,
        "notes": [],
    }
    return result | changes


def program_row(**changes: Any) -> dict[str, Any]:
    """A program in the answer to `bridge_programs`."""
    row: dict[str, Any] = {
        "name": "deploy",
        "description": "Bring the shop to one of its places.",
        "timeout_s": 120.0,
        "max_args": 1,
        "allow_options": False,
        "command": "/home/me/bin/deploy",
        "cwd": None,
        "env": ["DEPLOY_KEY"],
        "unset": [],
        "source": "/home/me/.config/nsm/tools/deploy.md",
    }
    return row | changes


def program_result(**changes: Any) -> dict[str, Any]:
    """The answer to `bridge_run`."""
    result: dict[str, Any] = {
        "call_id": "c-1",
        "program": "deploy",
        "exit_code": 0,
        "signal": None,
        "why_stopped": None,
        "stdout": "",
        "stderr": "",
        "stdout_omitted": 0,
        "stderr_omitted": 0,
        "duration_s": 0.01,
        "timeout_s": 120.0,
        "left": 0,
    }
    return result | changes


def environment_row(**changes: Any) -> dict[str, Any]:
    """A row of the answer to `envs`."""
    row: dict[str, Any] = {
        "name": "python",
        "interpreter": "python",
        "description": "Python 3.11.2",
        "available": True,
        "problem": None,
        "source": "preset",
        "program": "/usr/bin/python3",
        "timeout_s": 30.0,
        "memory_mb": 512,
        "preload": [],
        "keeps_state": True,
        "cold_start": None,
        "aliases": [],
        "only_for": None,
        "hides": [],
        "not_preloaded": [],
        "slow_imports": [],
        "templates": [],
        "devices": [],
        "device_nodes": [],
    }
    return row | changes


def status(**changes: Any) -> dict[str, Any]:
    """The answer to `status`."""
    answer: dict[str, Any] = {
        "version": "0.1.0",
        "pid": 4711,
        "uptime_s": 3.5,
        "sessions": 2,
        "clients": 1,
        "socket": "/run/user/1000/nsm/control.sock",
        "jail": {"kind": "bubblewrap", "uid": 1000, "note": ""},
        "limits": {
            "memory": "watchdog",
            "processes": "rlimit",
            "cpu": "none",
            "why": "cgroup v2 is not mounted",
        },
        "draining": None,
        "audit": {
            "enabled": True,
            "path": "/home/user/.local/state/nsm/audit.jsonl",
            "written": 12,
            "dropped": 3,
            "problem": "No space left on device",
        },
        "survival": {
            "kind": "keeper",
            "problem": "the holder has no room",
            "unread": "",
            "hidden": "",
        },
        "ports": {"open": 0, "unopened": 0},
        "upstream": "",
        "bridge": {
            "enabled": True,
            "programs": 2,
            "wrong": 1,
            "running": 1,
            "audit": "/home/user/audit.log",
            "problem": "No space left on device",
        },
        "http": {
            "enabled": True,
            "listen": "127.0.0.1:7643",
            "url": "http://127.0.0.1:7643/mcp",
            "token": False,
            "connections": 2,
            "max_connections": 64,
            "problem": "http-token is gone",
        },
    }
    return answer | changes


def pool(**changes: Any) -> dict[str, Any]:
    """The answer to `pool`; changes are of its one kind."""
    kind: dict[str, Any] = {
        "env": "python",
        "project": "/home/me/words",
        "ready": 2,
        "starting": 1,
        "wanted": 4,
        "why": "up to 4 calls came at once",
        "hits": 31,
        "misses": 3,
        "refill_p50_s": 0.0052,
        "refill_p95_s": 0.0417,
        "calls_per_s": 0.21,
        "idle_s": 8.4,
        "memory_bytes": 3 * 1024 * 1024,
        "failures": 0,
    }
    return {
        "kinds": [kind | changes],
        "totals": {"ready": 2, "starting": 1, "wanted": 4, "hits": 40, "misses": 5},
        "memory": {
            "spares_bytes": 6 * 1024 * 1024,
            "budget_bytes": 800 * 1024 * 1024,
            "available_bytes": 8192 * 1024 * 1024,
            "pressure_percent": 0.25,
        },
    }


def network(**changes: Any) -> dict[str, Any]:
    """The answer to `net`."""
    decision = {
        "age_s": 2.5,
        "protocol": "connect",
        "host": "other.example",
        "port": 443,
        "verdict": "not-allowed",
        "detail": "other.example:443 is not allowed.",
        "address": "",
    }
    return {
        "session": {"id": "s-1", "name": "a"},
        "mode": "allow",
        "allow": ["example.org", "*.example.com:443"],
        "port": 3128,
        "problem": None,
        "connections": 1,
        "counters": {"not-allowed": 1, "sent_bytes": 0, "received_bytes": 0},
        "decisions": [decision],
    } | changes


def inspection(**changes: Any) -> dict[str, Any]:
    """The answer to `inspect`; changes are of its policy."""
    policy: dict[str, Any] = {
        "version": 1,
        "kind": "forked",
        "complete": True,
        "rights": {
            "uid": 1000,
            "gid": 1000,
            "capabilities": [],
            "no_new_privs": True,
            "system_call_filter": True,
            "nested_namespaces": False,
        },
        "network": {"mode": "off", "allow": [], "proxy": False},
        "limits": {
            "memory_mb": 512,
            "memory_by": "cgroup",
            "processes": 256,
            "processes_by": "rlimit",
            "descriptors": 1024,
            "cpu_weight": None,
            "cpu_by": "none",
            "timeout_s": 30.0,
            "output_bytes": 1048576,
            "output_file_bytes": 67108864,
        },
        "variables": ["HOME", "TOKEN"],
        "devices": ["/dev/null", "/dev/zero"],
        "mounts": [
            {"path": "/project", "kind": "overlay", "mode": "cow", "source": "/home/me/words"},
            {"path": "/store", "kind": "binds", "mode": "ro", "entries": 300},
            {"path": "/tmp", "kind": "tmpfs", "mode": "rw", "size_mb": 256, "inodes": 32768},
        ],
    }
    return {
        "session": session_row(),
        "policy": policy | changes,
        "network": {
            "mode": "off",
            "allow": [],
            "port": None,
            "problem": None,
            "connections": 0,
            "counters": {},
        },
        "confinement": {
            "memory": "cgroup",
            "processes": "rlimit",
            "cpu": "none",
            "why": "",
            "group": "/sys/fs/cgroup/nsm/s-1",
            "memory_limit_bytes": 544 << 20,
            "group_limit_bytes": 1376 << 20,
            "memory_bytes": 40 << 20,
            "peak_bytes": 70 << 20,
            "held_bytes": None,
            "process_limit": 256,
            "cpu_weight": None,
        },
        "kernel": {
            "uid": 65530,
            "capabilities": "0" * 16,
            "no_new_privs": True,
            "system_call_filter": True,
            "cgroup": "/nsm/s-1",
        },
        "contradictions": [],
        "start": {
            "kind": "forked",
            "why_cold": None,
            "start_s": 0.006,
            "spare_s": 72.0,
            "taken_up": 0,
        },
        "lifetime": {"idle_timeout_s": 1800.0, "max_lifetime_s": 28800.0},
        "end_reason": None,
        "processes": [
            {
                "pid": 4242,
                "inside": 1,
                "name": "python3",
                "command": "/usr/bin/python3 -I -",
                "state": "S",
                "memory_bytes": 8 * 1024 * 1024,
                "cpu_s": 0.25,
                "threads": 1,
            }
        ],
        "executions": [
            {
                "number": 2,
                "execution_id": "x-2",
                "client": "claude",
                "started_at": 1_700_000_001.0,
                "outcome": "error",
                "exit_code": 1,
                "duration_s": 0.25,
                "why": "",
                "code": "1 / 0",
                "code_omitted": 0,
            }
        ],
        "decisions": [],
        "ports": [],
        "jobs": [],
        "slow_imports": [],
        "gpus": None,
    }


def session_start(**changes: Any) -> dict[str, Any]:
    """The first event of `logs`."""
    start: dict[str, Any] = {
        "id": "s-1",
        "name": "a",
        "env": "python",
        "interpreter": "python",
        "client": "nsm",
        "scope": "cli",
        "started_at": 1_700_000_000.5,
        "dropped": 0,
        "after_restart": False,
        "labels": {},
        "gpu_memory_bytes": None,
        "gpu_percent": None,
    }
    return start | changes


def execution_start(**changes: Any) -> dict[str, Any]:
    """An `execution` event of `logs`."""
    start: dict[str, Any] = {
        "execution_id": "x-1",
        "number": 1,
        "client": "nsm",
        "code": "print(1)",
        "code_omitted": 0,
        "started_at": 1_700_000_001.0,
        "stdin": False,
        "reset": False,
    }
    return start | changes


def execution_end(**changes: Any) -> dict[str, Any]:
    """A `finished` event of `logs`."""
    end: dict[str, Any] = {
        "execution_id": "x-1",
        "exit_code": 0,
        "duration_s": 0.25,
        "timed_out": False,
        "interrupted": False,
        "interpreter_restarted": False,
        "restart_reason": "",
        "displays": [],
        "truncated": {},
        "error": None,
    }
    return end | changes


def log_end(**changes: Any) -> dict[str, Any]:
    """The answer to `logs`."""
    end: dict[str, Any] = {
        "id": "s-1",
        "name": "a",
        "state": "idle",
        "end_reason": None,
        "executions": 1,
    }
    return end | changes


def ended_row(**changes: Any) -> dict[str, Any]:
    """A row of `ended` in the answer to `sessions`."""
    row: dict[str, Any] = {
        "id": "s-0",
        "name": "gone",
        "env": "bash",
        "client": "nsm",
        "scope": "cli",
        "executions": 4,
        "lived_s": 61.5,
        "ended_s": 12.0,
        "reason": "idle timeout",
    }
    return row | changes


def open_file(**changes: Any) -> dict[str, Any]:
    """The answer to `file_open`."""
    answer = {"file": 1, "path": "/workspace/a", "size": 0, "permissions": 0o644}
    return answer | changes


def stats(**changes: Any) -> dict[str, Any]:
    """The answer to `stats`."""
    times = {
        "total": 7,
        "mean_s": 0.1,
        "p50_s": 0.0012,
        "p90_s": 0.04,
        "p99_s": 0.25,
        "max_s": 61.0,
    }
    short = times | {"p50_s": 0.00006, "p99_s": 0.0001}
    nothing = {"total": 0, **dict.fromkeys(("mean_s", "p50_s", "p90_s", "p99_s", "max_s"))}
    return {
        "uptime_s": 3600.0,
        "environments": [
            {"env": "python", "outcomes": {"ok": 5, "error": 2}, "latency": times, "wait": short}
        ],
        "starts": [{"env": "python", "kind": "forked", "times": times}],
        "pool": {"hits": 3, "misses": 4},
        "event_loop": nothing,
    } | changes


def occurrence(**changes: Any) -> dict[str, Any]:
    """Fields of an `event` of `events`."""
    return {
        "number": 41,
        "at": 1_777_888_999.5,
        "kind": "execution_finished",
        "session": "27bcf03a",
        "facts": {"env": "python", "outcome": "ok", "duration_s": 0.0012},
    } | changes


def kill_report() -> dict[str, Any]:
    """Answer of `kill` when two sessions were ended and one does not exist."""
    return {
        "killed": [{"id": "s-1", "name": "a"}, {"id": "s-2", "name": None}],
        "errors": [
            {
                "target": "b",
                "error": {
                    "code": "unknown-session",
                    "message": "no b",
                    "hint": "nsm ps",
                    "data": {},
                },
            }
        ],
    }
