"""Names, groups, calls and verdicts of the SQS and SNS transports."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.brokers.aws.encoding import (
    EncodedMessage,
    build_group_id,
    compile_target,
    find_fixed_target,
    find_target_of_topic,
    is_fifo,
    split_calls,
    split_rounds,
    to_name,
)
from pillarbox.brokers.aws.errors import (
    Refusal,
    RefusalKind,
    ServiceDescription,
    classify_call_error,
    classify_entry_error,
    describe_refusal,
)
from pillarbox.errors import MessageRejected
from pillarbox.testing.samples import sample

SERVICE = ServiceDescription(where="sqs://eu-central-1", target="queue", action="sqs:SendMessage")

# --- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("orders", "orders"),
        ("orders.placed", "orders-placed"),
        ("orders.placed.fifo", "orders-placed.fifo"),
        ("shop/eu:Žižkov", "shop-eu--i-kov"),
        ("a_b-C9", "a_b-C9"),
        ("x" * 80, "x" * 80),
        ("x" * 75 + ".fifo", "x" * 75 + ".fifo"),
    ],
)
def test_a_name(text: str, name: str) -> None:
    assert to_name(text, max_length=80) == name


@pytest.mark.parametrize("text", ["", ".fifo", "x" * 81, "x" * 76 + ".fifo"])
def test_no_name(text: str) -> None:
    with pytest.raises(MessageRejected, match="1 to 80"):
        to_name(text, max_length=80)


def test_of_a_url_or_an_arn_only_the_last_part_is_a_name() -> None:
    url = compile_target("https://sqs.example/123/shop.{topic}", option="queue_url", transport="sqs", max_length=80)
    assert url(sample(topic="orders.placed")) == "https://sqs.example/123/shop-orders-placed"
    arn = compile_target(
        "arn:aws:sns:eu-central-1:123:{topic}.fifo", option="topic_arn", transport="sns", max_length=256
    )
    assert arn(sample(topic="orders.placed")) == "arn:aws:sns:eu-central-1:123:orders-placed.fifo"


def test_fixed_places() -> None:
    assert find_fixed_target("shop.orders", max_length=80) == "shop-orders"
    assert find_fixed_target("{topic}", max_length=80) is None
    assert find_target_of_topic("shop-{topic}.fifo", "orders.placed", max_length=80) == "shop-orders-placed.fifo"
    assert find_target_of_topic("{key}", "orders", max_length=80) is None
    assert is_fifo("orders.fifo")
    assert not is_fifo("orders-fifo")


@pytest.mark.parametrize("key", ["customer-1", "!~/:.", "x" * 128])
def test_a_key_is_its_group(key: str) -> None:
    assert build_group_id(sample(key=key)) == key


@pytest.mark.parametrize("key", ["Žižkov", "a b", "x" * 129])
def test_a_key_that_is_no_group_is_hashed(key: str) -> None:
    assert build_group_id(sample(key=key)) == hashlib.sha256(key.encode()).hexdigest()


def test_without_a_key_each_message_is_its_own_group() -> None:
    message = sample(key=None)
    assert build_group_id(message) == str(message.message_id)


# --- calls -------------------------------------------------------------------------------------------

encoded = st.lists(
    st.tuples(st.sampled_from("pq"), st.sampled_from(["a", "b", "c", None]), st.integers(1, 40)), max_size=60
).map(lambda many: [EncodedMessage(n, target, key, {}, size) for n, (target, key, size) in enumerate(many)])


@given(encoded)
def test_every_parcel_goes_once_and_no_key_twice_in_a_round(many: list[EncodedMessage]) -> None:
    cut = list(split_rounds(many))
    assert [one for group in cut for one in group] == many
    for group in cut:
        keys = [(one.target, one.key) for one in group if one.key is not None]
        assert len(keys) == len(set(keys))


@given(encoded)
def test_a_call_is_one_place_and_ten_parcels_and_so_many_bytes(many: list[EncodedMessage]) -> None:
    made = list(split_calls(many, max_bytes=50))
    assert sorted(one.index for call in made for one in call) == list(range(len(many)))
    for call in made:
        assert len({one.target for one in call}) == 1
        assert len(call) <= 10
        assert len(call) == 1 or sum(one.size for one in call) <= 50
        assert [one.index for one in call] == sorted(one.index for one in call)


def test_as_few_calls_as_can_be() -> None:
    many = [EncodedMessage(n, "p", None, {}, 1) for n in range(25)]
    assert [len(call) for call in split_calls(many, max_bytes=50)] == [10, 10, 5]
    assert list(split_calls([], max_bytes=50)) == []


# --- verdicts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "kind"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", 400, RefusalKind.MISSING),
        ("QueueDoesNotExist", 400, RefusalKind.MISSING),
        ("NotFound", 404, RefusalKind.MISSING),
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
