"""Verdicts of the suite's checks on a server: pure functions.

A scenario that needs what a server has not (the suite's own tools, prompts, a log) says nothing
about it: it is *not applicable*, with the reason, and never counted as passed. Where the suite only
warns, of what should be and need not, that is told, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from mcpconformance.suite import Check, Required

PASSED = "passed"
WARNED = "warned"
FAILED = "failed"
NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """Capabilities that a server declares.

    Attributes:
        tools: their names.
        capabilities: names as in `ServerCapabilities` and its `extensions`.
    """

    tools: Collection[str]
    capabilities: Collection[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on one scenario.

    Attributes:
        outcome: PASSED, WARNED, FAILED or NOT_APPLICABLE.
        succeeded: so many checks.
        note: why it is anything but passed; what of a passed one could not be checked.
    """

    outcome: str
    succeeded: int
    note: str = ""


_TASKS = "io.modelcontextprotocol/tasks"

CAPABILITIES: Mapping[str, str] = {
    "completion-complete": "completions",
    "input-required-result-non-tool-request": "prompts",
    "logging-set-level": "logging",
    "prompts-get-embedded-resource": "prompts",
    "prompts-get-simple": "prompts",
    "prompts-get-with-args": "prompts",
    "prompts-get-with-image": "prompts",
    "prompts-list": "prompts",
    "resources-list": "resources",
    "resources-read-binary": "resources",
    "resources-read-text": "resources",
    "resources-subscribe": "resources",
    "resources-templates-read": "resources",
    "resources-unsubscribe": "resources",
    "sep-2164-resource-not-found": "resources",
    "tasks-capability-negotiation": _TASKS,
    "tasks-dispatch-and-envelope": _TASKS,
    "tasks-lifecycle": _TASKS,
    "tasks-mrtr-composition": _TASKS,
    "tasks-mrtr-input": _TASKS,
    "tasks-request-headers": _TASKS,
    "tasks-request-state-removal": _TASKS,
    "tasks-required-task-error": _TASKS,
    "tasks-status-notifications": _TASKS,
    "tasks-wire-fields": _TASKS,
}
"""Scenarios that are about something that a server may have."""

TOOLS: Mapping[str, str] = {
    "elicitation-sep1034-defaults": "test_elicitation_sep1034_defaults",
    "elicitation-sep1330-enums": "test_elicitation_sep1330_enums",
    "http-custom-header-server-validation": "test_x_mcp_header",
    "input-required-result-basic-elicitation": "test_input_required_result_elicitation",
    "input-required-result-basic-list-roots": "test_input_required_result_list_roots",
    "input-required-result-basic-sampling": "test_input_required_result_sampling",
    "input-required-result-capability-check": "test_input_required_result_capabilities",
    "input-required-result-ignore-extra-params": "test_input_required_result_elicitation",
    "input-required-result-missing-input-response": "test_input_required_result_elicitation",
    "input-required-result-multi-round": "test_input_required_result_multi_round",
    "input-required-result-multiple-input-requests": "test_input_required_result_multiple_inputs",
    "input-required-result-request-state": "test_input_required_result_request_state",
    "input-required-result-result-type": "test_input_required_result_elicitation",
    "input-required-result-tampered-state": "test_input_required_result_tampered_state",
    "input-required-result-validate-input": "test_input_required_result_elicitation",
    "json-schema-2020-12": "json_schema_2020_12_tool",
    "server-sse-polling": "test_reconnection",
    "tasks-dispatch-and-envelope": "failing_job",
    "tasks-lifecycle": "slow_compute",
    "tasks-mrtr-composition": "test_tool_with_task",
    "tasks-mrtr-input": "confirm_delete",
    "tasks-request-headers": "slow_compute",
    "tasks-request-state-removal": "slow_compute",
    "tasks-required-task-error": "failing_job",
    "tasks-status-notifications": "slow_compute",
    "tasks-wire-fields": "slow_compute",
    "tools-call-audio": "test_audio_content",
    "tools-call-elicitation": "test_elicitation",
    "tools-call-embedded-resource": "test_embedded_resource",
    "tools-call-error": "test_error_handling",
    "tools-call-image": "test_image_content",
    "tools-call-mixed-content": "test_multiple_content_types",
    "tools-call-sampling": "test_sampling",
    "tools-call-simple-text": "test_simple_text",
    "tools-call-with-logging": "test_tool_with_logging",
    "tools-call-with-progress": "test_tool_with_progress",
}
"""Scenarios that call a tool of the suite's own, which a server has only to be tested."""

CHECK_CAPABILITIES: Mapping[str, str] = {
    "sep-2549-prompts-list-caching-hints": "prompts",
    "sep-2549-resources-list-caching-hints": "resources",
    "sep-2549-resources-read-caching-hints": "resources",
    "sep-2549-resources-templates-list-caching-hints": "resources",
}
"""Single checks that are about such a capability."""

CHECK_TOOLS: Mapping[str, str] = {
    "sep-2575-server-sends-prompts-list-changed-on-subscription": "test_trigger_prompt_change",
    "sep-2575-server-sends-tools-list-changed-on-subscription": "test_trigger_tool_change",
    "sep-2663-server-rejects-undeclared-client": "slow_compute",
    "tasks-per-request-meta-opt-in": "slow_compute",
}
"""Single checks that call such a tool, and take the refusal for another."""


def judge(required: Required, checks: Sequence[Check], offer: Offer) -> Verdict:
    """Say how a server did in a scenario.

    Args:
        required: the scenario.
        checks: of the suite; a failed scenario has at least one that is not SUCCESS.
        offer: of that server.
    """
    missing = _missing(required.name, offer)
    if missing:
        return Verdict(outcome=NOT_APPLICABLE, succeeded=0, note=missing)
    succeeded = sum(check.status == "SUCCESS" for check in checks)
    wrong = [check for check in checks if check.status in ("FAILURE", "WARNING")]
    applicable = [check for check in wrong if not check.untestable and _concerns(check.id, offer)]
    if applicable:
        failed = any(check.status == "FAILURE" for check in applicable)
        note = "; ".join(f"`{check.id}`: {check.reason}" for check in applicable)
        outcome = FAILED if failed else WARNED
        return Verdict(outcome=outcome, succeeded=succeeded, note=note)
    if not succeeded:
        note = "none of its checks can be made without the suite's own tools"
        return Verdict(outcome=NOT_APPLICABLE, succeeded=0, note=note)
    left = len(wrong) + sum(check.status == "SKIPPED" for check in checks)
    note = f"{left} more check{'s' * (left != 1)} not applicable" if left else ""
    return Verdict(outcome=PASSED, succeeded=succeeded, note=note)


def _missing(scenario: str, offer: Offer) -> str:
    capability = CAPABILITIES.get(scenario)
    if capability and capability not in offer.capabilities:
        return f"it has no {capability.rpartition('/')[2]}"
    tool = TOOLS.get(scenario)
    if tool and tool not in offer.tools:
        return f"the suite's `{tool}` is not there"
    return ""


def _concerns(check: str, offer: Offer) -> bool:
    return CHECK_CAPABILITIES.get(check) in (None, *offer.capabilities) and CHECK_TOOLS.get(
        check
    ) in (None, *offer.tools)
