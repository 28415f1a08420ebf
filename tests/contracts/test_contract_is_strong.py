"""The contract passes on the right store and fails on each broken one, in the test that is about it."""

from __future__ import annotations

import pytest

from pillarbox.errors import PillarboxError
from pillarbox.stores.memory import MemoryData, MemoryStore
from pillarbox.testing import MemoryHarness, StoreContract
from pillarbox.testing.store_contract import writing
from tests.support import broken_stores as broken

CAUGHT_BY: dict[type[MemoryStore] | type[MemoryData], str] = {
    broken.GroupsWithoutTheHeld: "test_held_messages_are_failures",
    broken.DropsReasons: "test_every_action_says_why",
    broken.ProbesForNobody: "test_a_probe_is_asked_of_a_live_relay",
    broken.CountsReturnsTwice: "test_what_is_given_back_is_counted_once",
    broken.AddsUpBacklogs: "test_counting_ends_and_the_highest_of_a_minute_stays",
    broken.NoFence: "test_a_delivery_is_fenced",
    broken.FenceWithoutEpoch: "test_an_older_epoch_is_fenced",
    broken.SettlesUnderAnyEpoch: "test_an_older_epoch_settles_nothing",
    broken.FenceAfterWriting: "test_a_delivery_is_fenced",
    broken.FenceNamesEveryLane: "test_a_claim_is_fenced",
    broken.FenceWithoutLock: "test_a_takeover_and_a_settle_have_one_winner",
    broken.TakePassesOverLockedClaims: "test_two_heirs_of_one_claim_each_inherit_what_is_in_their_lanes",
    broken.SettlesOutsideItsLanes: "test_a_settlement_reaches_only_the_lanes_it_proves",
    broken.SettlesByIdAlone: "test_a_message_that_was_not_sent_is_left_alone",
    broken.NoLateRows: "test_late_comes_together_with_a_later_one_of_its_key",
    broken.NoLateRowsOfOlderTransactions: "test_late_by_a_transaction_older_than_what_was_read",
    broken.NoLateRowsOfYoungerTransactions: "test_late_by_a_transaction_younger_than_what_was_read",
    broken.KeepsMarksOfLanesItDidNotRead: "test_a_lane_left_out_when_its_late_message_came_loses_nothing",
    broken.LimitsLateRowsToo: "test_late_ones_come_in_addition_to_the_limit",
    broken.ReadsAnyNumberOfBytes: "test_a_read_ends_with_the_message_that_reaches_its_bytes",
    broken.ReadsNothingLarge: "test_one_message_comes_however_large_it_is",
    broken.FindsDueOfAnySize: "test_due_messages_end_with_the_one_that_reaches_the_bytes",
    broken.ReadsKeysOfAnySize: "test_a_key_ends_with_the_message_that_reaches_the_bytes",
    broken.SkipsLateRowsToo: "test_what_comes_late_of_a_skipped_key_does_come",
    broken.SkipsNothing: "test_a_skipped_key_does_not_come",
    broken.SkipsOneKeyAlone: "test_several_keys_can_be_skipped",
    broken.SkipsWhatHasNoKey: "test_a_message_without_a_key_is_never_skipped",
    broken.SkipsBehindTheLimit: "test_what_is_skipped_does_not_count_against_the_limit",
    broken.SkipsForEver: "test_skipped_once_is_not_skipped_for_ever",
    broken.SkipsByParking: "test_what_was_skipped_is_still_there",
    broken.SkipsForStrangers: "test_a_cursor_of_another_connection_skips_nothing",
    broken.MarksWhatWaits: "test_what_waits_is_no_end_of_a_lane",
    broken.MarksOnlyWhatItReturned: "test_the_mark_passes_what_is_skipped_at_the_end_of_a_lane",
    broken.MarksWhatItCutOff: "test_the_mark_of_a_lane_that_was_cut_off_passes_nothing_unread",
    broken.PeeksForOthers: "test_a_fresh_message_is_seen_in_its_destination",
    broken.PeeksPastLateRows: "test_a_late_message_is_seen",
    broken.PeeksPastWhatIsDue: "test_a_deferred_message_is_seen_when_it_is_due",
    broken.PeeksPastEverything: "test_what_came_after_a_look_is_read_from_its_cursor",
    broken.PeeksWithoutSnapshot: "test_a_late_message_is_seen",
    broken.PeeksPastBlockedKeys: "test_what_blocks_a_key_is_told",
    broken.NothingIsEverQuiet: "test_destinations_with_nothing_to_read_are_quiet",
    broken.TrustsForeignCursors: "test_a_cursor_dies_with_its_connection",
    broken.ReusesIds: "test_an_id_never_comes_again",
    broken.FindsDueById: "test_longest_due_comes_first_across_lanes",
    broken.HidesWhatLeftItsClaims: "test_a_settlement_tells_what_is_in_none_of_its_claims",
    broken.SettlesWhatLeftItsClaims: "test_a_repeat_does_not_undo_what_an_operator_did_since",
    broken.FindsDueFromTheStart: "test_a_search_goes_on_beyond_its_mark",
    broken.ReadsWhatIsNotDue: "test_what_is_not_due_any_more_is_not_read",
    broken.CallsCutKeysComplete: "test_a_key_that_the_limits_cut_is_not_complete",
    broken.BlockedForgetsHeld: "test_retrying_parked_and_held_messages_block_their_key",
    broken.BlockedRepeatsKeys: "test_a_key_is_named_once_however_many_wait",
    broken.BlockedTellsTheLast: "test_a_blocked_key_says_what_its_first_message_waits_for",
    broken.ReadsEveryKey: "test_a_key_shows_no_other_key_of_its_lane",
    broken.CallsCutLanesComplete: "test_a_lane_with_more_to_read_is_not_complete",
    broken.ClaimNotIdempotent: "test_repeating_a_claim_changes_nothing",
    broken.ParkDeletes: "test_a_parked_message_is_still_there",
    broken.ParksByIdAlone: "test_a_message_that_was_not_read_is_not_parked",
    broken.ParksAgain: "test_a_message_is_parked_once",
    broken.ParkForgetsTheError: "test_a_park_keeps_attempts_and_the_last_error",
    broken.TouchedClaimsAreFinished: "test_a_touched_claim_keeps_the_rest",
    broken.SettlesWhatIsClosed: "test_what_is_no_longer_open_is_left_alone",
    broken.TakesAnyTrouble: "test_no_outcome_of_an_undelivered_message_is_refused",
    broken.HistoryDropsAField: "test_every_field_survives_its_closing",
    broken.HistoryForgetsWhenItWasDue: "test_a_deferred_delivery_keeps_the_time_it_was_due",
    broken.TroubleWithoutJournal: "test_every_trouble_leaves_a_line",
    broken.TakeIgnoresTheLease: "test_a_live_owner_keeps_its_lanes",
    broken.TakeWithoutLock: "test_two_takers_never_both_own_a_lane",
    broken.TakeKeepsTheEpoch: "test_every_taking_raises_the_epoch",
    broken.TakeLeavesTheDead: "test_the_dead_owner_is_gone_for_good",
    broken.InheritsWithoutStrike: "test_claimed_messages_are_inherited_with_one_strike",
    broken.InheritsInOneClaim: "test_one_claim_per_count_of_strikes",
    broken.TakeDropsTheOtherLanes: "test_each_heir_inherits_its_own_lanes",
    broken.RenewRevivesTheDead: "test_an_expired_relay_cannot_renew",
    broken.BelievesAnyExpiry: "test_an_expiry_too_far_ahead_counts_as_expired",
    broken.JudgesByTheObserversLease: "test_a_relay_counts_by_its_own_lease",
    broken.ReleaseDropsEveryClaim: "test_releasing_drops_the_claims_in_the_lane_alone",
    broken.ReleasesForOthers: "test_releasing_what_is_not_owned_is_fine",
    broken.TakesForRelaysThatLeft: "test_a_relay_that_left_takes_nothing",
    broken.LeaveKeepsClaims: "test_leaving_gives_everything_up",
    broken.ForgetDropsEveryClaim: "test_forgetting_drops_no_claim_that_a_takeover_needs",
    broken.WakesNobody: "test_a_commit_wakes_who_listens",
    broken.RedriveKeepsAttempts: "test_a_failed_message_goes_again",
    broken.RedriveAsFresh: "test_it_comes_back_as_due_and_never_as_fresh",
    broken.RedriveAsNew: "test_every_step_moves_its_own_times_alone",
    broken.RedriveWithoutJournal: "test_operators_are_named_with_the_time",
    broken.RefusesTheLastPage: "test_pages_over_named_messages_end_without_an_error",
    broken.DiscardsWhatIsInHand: "test_what_a_relay_has_in_hand_is_left_alone",
    broken.ForwardsNothing: "test_a_failed_message_goes_on_at_once_with_all_its_attempts",
    broken.ChangesSecretly: "test_a_claim_tells_that_an_operator_changed_the_lane",
    broken.ChangesWithoutLock: "test_an_operator_and_a_claim_have_one_winner",
    broken.TakesGoneRelaysForAlive: "test_it_can_be_discarded_and_redriven_elsewhere",
    broken.LeavesChangedMessagesInClaims: "test_it_can_be_deferred_and_no_heir_sends_it_before_its_time",
    broken.DefersWithoutBlocking: "test_the_key_waits_with_it",
    broken.PurgesById: "test_the_oldest_goes_first_in_batches",
    broken.PurgesWhatWasClosedAgain: "test_a_message_that_failed_again_after_it_was_archived_stays",
    broken.PurgesWhatIsOfTheSameTime: "test_a_message_that_ended_otherwise_at_the_same_time_stays",
    broken.PurgesTheWholeJournal: "test_the_journal_goes_with_its_message_and_destination",
    broken.RestoresWithOldTimes: "test_their_retention_begins_anew",
    broken.RestoresWhatIsOpen: "test_what_is_there_is_left_alone",
    broken.RestoresUnderAnyId: "test_ids_of_another_database_never_meet_its_own",
    broken.RestoresSilently: "test_restored_messages_are_as_they_were_and_closed_now",
    broken.CountsTriesThatSpentNothing: "test_every_try_is_counted_until_the_message_is_sent_again",
    broken.CountsEndsAsTries: "test_a_message_that_is_given_up_unsent_was_not_tried",
    broken.RemembersTriesBeforeARedrive: "test_for_how_long_a_message_was_tried_survives_its_relays",
    broken.PurgesAnyInboxRow: "test_retention_leaves_failed_ones_alone",
    broken.KeepsStartsForEver: "test_the_inbox_forgets_starts_that_never_ended",
    broken.RedrivesWhatWasNotKept: "test_one_whose_content_was_not_kept_is_seen_and_discarded_and_not_redriven",
    broken.TakesNoIdsForAll: "test_empty_lists_find_nothing",
    broken.HidesHeld: "test_a_held_message_stays_open_and_is_shown_as_failed",
    broken.FindsById: "test_those_with_most_attempts_come_first_if_asked",
    broken.CountsNoDeliveries: "test_relays_add_up",
    broken.CountsRepeats: "test_a_repeated_settlement_is_counted_once",
    broken.CountsBeforeTheFence: "test_what_the_fence_refuses_is_not_counted",
    broken.MeasuresFromWriting: "test_a_deferred_one_is_old_from_its_due_time_on_after_attempts_too",
    broken.MeasuresFromTheNextAttempt: "test_what_waits_for_another_attempt_is_as_old_as_before_the_first",
    broken.KeepsTheAgeOfFailed: "test_a_redriven_one_is_as_old_as_its_redrive",
    broken.KeepsCountersForEver: "test_only_the_window_is_told_and_old_minutes_can_be_deleted",
}

TESTS = [name for name in dir(StoreContract) if name.startswith("test_")]


def _harness(variant: type[MemoryStore] | type[MemoryData]) -> MemoryHarness:
    if issubclass(variant, MemoryStore):
        return MemoryHarness(variant)
    return MemoryHarness(make_data=variant)


async def _run(name: str, harness: MemoryHarness) -> BaseException | None:
    """What the test ended with. `pytest.raises` fails with an exception of its own."""
    try:
        await getattr(StoreContract(), name)(harness)
    except (AssertionError, PillarboxError, TimeoutError, pytest.fail.Exception) as failure:
        return failure
    return None


@pytest.mark.parametrize(("variant", "name"), CAUGHT_BY.items(), ids=[variant.__name__ for variant in CAUGHT_BY])
async def test_the_contract_notices(
    variant: type[MemoryStore] | type[MemoryData], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "_TIMEOUT", 0.1)
    assert await _run(name, _harness(variant)) is not None


@pytest.mark.parametrize("name", sorted(set(CAUGHT_BY.values())))
async def test_the_same_tests_pass_on_the_right_store(name: str) -> None:
    assert await _run(name, MemoryHarness()) is None


def test_every_broken_store_is_tried() -> None:
    variants = {
        variant
        for name, variant in vars(broken).items()
        if isinstance(variant, type)
        and issubclass(variant, MemoryStore | MemoryData)
        and variant.__module__ == broken.__name__
        and not name.startswith("_")
    }
    assert variants == set(CAUGHT_BY)
    assert set(CAUGHT_BY.values()) <= set(TESTS)


async def test_the_random_interleavings_notice_too() -> None:
    """A reader without late rows is caught by them alone, on every kind of lateness."""
    for variant in (broken.NoLateRows, broken.NoLateRowsOfOlderTransactions, broken.NoLateRowsOfYoungerTransactions):
        assert await _run("test_serialised_writers_are_never_overtaken", _harness(variant)) is not None


def test_no_test_hides_another() -> None:
    """Two mixins with a test of one name would run only one of them."""
    names = [name for part in StoreContract.__bases__ for name in vars(part) if name.startswith("test_")]
    assert sorted(names) == TESTS
