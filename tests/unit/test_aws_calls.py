"""Names, groups, calls and verdicts of the SQS and SNS transports."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pillarbox.errors import MessageRejected
from pillarbox.testing.samples import sample
from pillarbox.transports.aws.batches import Parcel, calls, rounds
from pillarbox.transports.aws.names import fixed, group_of, is_fifo, name_of, named_after, place
from pillarbox.transports.aws.verdicts import Refusal, Verdict, Words, entry_refusal, refusal, told

WORDS = Words(where="sqs://eu-central-1", what="queue", action="sqs:SendMessage")

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
    assert name_of(text, most=80) == name


@pytest.mark.parametrize("text", ["", ".fifo", "x" * 81, "x" * 76 + ".fifo"])
def test_no_name(text: str) -> None:
    with pytest.raises(MessageRejected, match="1 to 80"):
        name_of(text, most=80)


def test_of_a_url_or_an_arn_only_the_last_part_is_a_name() -> None:
    url = place("https://sqs.example/123/shop.{topic}", option="queue_url", transport="sqs", most=80)
    assert url(sample(topic="orders.placed")) == "https://sqs.example/123/shop-orders-placed"
    arn = place("arn:aws:sns:eu-central-1:123:{topic}.fifo", option="topic_arn", transport="sns", most=256)
    assert arn(sample(topic="orders.placed")) == "arn:aws:sns:eu-central-1:123:orders-placed.fifo"


def test_fixed_places() -> None:
    assert fixed("shop.orders", most=80) == "shop-orders"
    assert fixed("{topic}", most=80) is None
    assert named_after("shop-{topic}.fifo", "orders.placed", most=80) == "shop-orders-placed.fifo"
    assert named_after("{key}", "orders", most=80) is None
    assert is_fifo("orders.fifo")
    assert not is_fifo("orders-fifo")


@pytest.mark.parametrize("key", ["customer-1", "!~/:.", "x" * 128])
def test_a_key_is_its_group(key: str) -> None:
    assert group_of(sample(key=key)) == key


@pytest.mark.parametrize("key", ["Žižkov", "a b", "x" * 129])
def test_a_key_that_is_no_group_is_hashed(key: str) -> None:
    assert group_of(sample(key=key)) == hashlib.sha256(key.encode()).hexdigest()


def test_without_a_key_each_message_is_its_own_group() -> None:
    message = sample(key=None)
    assert group_of(message) == str(message.message_id)


# --- calls -------------------------------------------------------------------------------------------

parcels = st.lists(
    st.tuples(st.sampled_from("pq"), st.sampled_from(["a", "b", "c", None]), st.integers(1, 40)), max_size=60
).map(lambda many: [Parcel(n, place, key, {}, size) for n, (place, key, size) in enumerate(many)])


@given(parcels)
def test_every_parcel_goes_once_and_no_key_twice_in_a_round(many: list[Parcel]) -> None:
    cut = list(rounds(many))
    assert [one for group in cut for one in group] == many
    for group in cut:
        keys = [(one.place, one.key) for one in group if one.key is not None]
        assert len(keys) == len(set(keys))


@given(parcels)
def test_a_call_is_one_place_and_ten_parcels_and_so_many_bytes(many: list[Parcel]) -> None:
    made = list(calls(many, most=50))
    assert sorted(one.index for call in made for one in call) == list(range(len(many)))
    for call in made:
        assert len({one.place for one in call}) == 1
        assert len(call) <= 10
        assert len(call) == 1 or sum(one.size for one in call) <= 50
        assert [one.index for one in call] == sorted(one.index for one in call)


def test_as_few_calls_as_can_be() -> None:
    many = [Parcel(n, "p", None, {}, 1) for n in range(25)]
    assert [len(call) for call in calls(many, most=50)] == [10, 10, 5]
    assert list(calls([], most=50)) == []


# --- verdicts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "verdict"),
    [
        ("AWS.SimpleQueueService.NonExistentQueue", 400, Verdict.MISSING),
        ("QueueDoesNotExist", 400, Verdict.MISSING),
        ("NotFound", 404, Verdict.MISSING),
        ("AccessDenied", 403, Verdict.DENIED),
        ("AccessDeniedException", 400, Verdict.DENIED),
        ("AuthorizationError", 403, Verdict.DENIED),
        ("KMS.DisabledException", 400, Verdict.DENIED),
        ("KMSAccessDenied", 400, Verdict.DENIED),
        ("InvalidClientTokenId", 403, Verdict.LOGIN),
        ("SignatureDoesNotMatch", 403, Verdict.LOGIN),
        ("ExpiredToken", 403, Verdict.LOGIN),
        ("Throttling", 400, Verdict.FAILED),
        ("ThrottlingException", 400, Verdict.FAILED),
        ("RequestThrottled", 403, Verdict.FAILED),
        ("KMS.ThrottlingException", 400, Verdict.FAILED),
        ("AWS.SimpleQueueService.OverLimit", 403, Verdict.FAILED),
        ("ServiceUnavailable", 503, Verdict.FAILED),
        ("InternalFailure", 400, Verdict.FAILED),
        ("SomethingNew", 500, Verdict.FAILED),
        ("InvalidMessageContents", 400, Verdict.REJECTED),
        ("AWS.SimpleQueueService.BatchRequestTooLong", 400, Verdict.REJECTED),
        ("InvalidParameterValue", 400, Verdict.REJECTED),
    ],
)
def test_what_a_refused_call_is_about(code: str, status: int, verdict: Verdict) -> None:
    assert refusal(code, "", status=status).verdict is verdict


@pytest.mark.parametrize(
    ("code", "fault", "verdict"),
    [
        ("InvalidMessageContents", True, Verdict.REJECTED),
        ("InternalError", False, Verdict.FAILED),
        ("ThrottlingException", True, Verdict.FAILED),
        ("KmsAccessDenied", True, Verdict.DENIED),
        ("", False, Verdict.FAILED),
    ],
)
def test_what_a_refused_entry_is_about(code: str, fault: bool, verdict: Verdict) -> None:
    assert entry_refusal({"Id": "0", "Code": code, "SenderFault": fault, "Message": "x"}).verdict is verdict


@pytest.mark.parametrize("verdict", Verdict)
def test_each_is_said_in_a_sentence(verdict: Verdict) -> None:
    said = told(Refusal(verdict, "Code", "words\nof theirs"), "orders", WORDS)
    assert said.startswith("sqs://eu-central-1 ")
    assert "(Code)" in said
    assert "\n" not in said
