"""What the refusals of SQS and SNS mean."""

from __future__ import annotations

import pytest

from pillarbox.brokers.aws.errors import (
    Refusal,
    RefusalKind,
    ServiceDescription,
    classify_call_error,
    classify_entry_error,
    describe_refusal,
)

SERVICE = ServiceDescription(where="sqs://eu-central-1", target="queue", action="sqs:SendMessage")


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", 400, RefusalKind.MISSING),
        ("QueueDoesNotExist", 400, RefusalKind.MISSING),
        ("NotFound", 404, RefusalKind.MISSING),
        ("InvalidAddress", 400, RefusalKind.MISSING),
        ("NotAuthorized", 400, RefusalKind.DENIED),
        ("AccessDenied", 403, RefusalKind.DENIED),
        ("AccessDeniedException", 400, RefusalKind.DENIED),
        ("AuthorizationError", 403, RefusalKind.DENIED),
        ("KMS.DisabledException", 400, RefusalKind.DENIED),
        ("KMSAccessDenied", 400, RefusalKind.DENIED),
        ("InvalidClientTokenId", 403, RefusalKind.LOGIN),
        ("SignatureDoesNotMatch", 403, RefusalKind.LOGIN),
        ("ExpiredToken", 403, RefusalKind.LOGIN),
        ("Throttling", 400, RefusalKind.FAILED),
        ("ThrottlingException", 400, RefusalKind.FAILED),
        ("RequestThrottled", 403, RefusalKind.FAILED),
        ("KMS.ThrottlingException", 400, RefusalKind.FAILED),
        ("AWS.SimpleQueueService.OverLimit", 403, RefusalKind.FAILED),
        ("ServiceUnavailable", 503, RefusalKind.FAILED),
        ("InternalFailure", 400, RefusalKind.FAILED),
        ("SomethingNew", 500, RefusalKind.FAILED),
        ("InvalidMessageContents", 400, RefusalKind.REJECTED),
        ("AWS.SimpleQueueService.BatchRequestTooLong", 400, RefusalKind.REJECTED),
        ("InvalidParameterValue", 400, RefusalKind.REJECTED),
    ],
)
def test_what_a_refused_call_is_about(code: str, status: int, kind: RefusalKind) -> None:
    assert classify_call_error(code, "", status=status).kind is kind


@pytest.mark.parametrize(
    ("code", "fault", "kind"),
    [
        ("InvalidMessageContents", True, RefusalKind.REJECTED),
        ("InternalError", False, RefusalKind.FAILED),
        ("ThrottlingException", True, RefusalKind.FAILED),
        ("KmsAccessDenied", True, RefusalKind.DENIED),
        ("", False, RefusalKind.FAILED),
    ],
)
def test_what_a_refused_entry_is_about(code: str, fault: bool, kind: RefusalKind) -> None:
    assert classify_entry_error({"Id": "0", "Code": code, "SenderFault": fault, "Message": "x"}).kind is kind


@pytest.mark.parametrize("kind", RefusalKind)
def test_each_is_said_in_a_sentence(kind: RefusalKind) -> None:
    said = describe_refusal(Refusal(kind, "Code", "words\nof theirs"), "orders", SERVICE)
    assert said.startswith("sqs://eu-central-1 ")
    assert "(Code)" in said
    assert "\n" not in said
