//! The contract tests of [`LockStore`](leasehold::store::LockStore): plain functions, each run against every store.
//!
//! To add a test, write it in its topic's file and name it in the list below. To add a store, add it to
//! `on_stores`. The few tests that only make sense on one store are in `one_store`.

#[macro_use]
mod on_stores;

mod acquiring;
mod bounds;
mod capacity;
mod counting;
mod elsewhere;
mod events;
mod eviction;
mod expiry;
mod holding_times;
mod inspect;
mod list;
mod one_store;
mod order;
mod permits;
mod places;
mod reentry;
mod release;
mod renewal;
mod repeated_polls;
mod replay;
mod reservations;
mod several;
mod several_waiting;
mod sharing;
mod taking_over;
mod tombstones;
mod two_processes;
mod undecided;
mod undone;
mod waiting;
mod withdraw;

use futures_util::future::LocalBoxFuture;

use crate::support::fixture::Fixture;
pub(crate) use order::names_of_one_bucket;

/// A contract test.
pub(crate) type ContractTest = for<'a> fn(&'a Fixture) -> LocalBoxFuture<'a, ()>;

on_every_store! {
    acquiring:
        a_free_lock_is_granted_as_it_was_claimed
        a_held_lock_is_refused_and_the_holder_is_named
        a_refused_claim_may_be_granted_later
        locks_with_different_names_are_independent
        names_of_every_shape_are_locks_of_their_own
        the_same_token_on_another_lock_is_another_claim
        of_many_simultaneous_claims_one_is_granted
        an_owner_text_is_returned_unchanged;
    replay:
        a_replay_returns_the_same_lease
        a_replay_does_not_extend_the_lease
        a_replay_for_less_depth_changes_nothing
        simultaneous_requests_for_one_claim_make_one_grant
        a_grant_repeated_by_its_own_attempt_is_a_grant;
    reentry:
        a_larger_hold_count_holds_at_exactly_that_depth
        a_re_entry_leaves_the_time_of_the_lease_alone
        a_repeated_re_entry_is_a_replay
        a_re_entry_repeated_by_its_own_attempt_is_a_re_entry
        a_claim_may_start_deep
        a_release_to_a_depth_steps_back_to_it
        a_repeated_step_back_answers_the_same
        a_step_back_to_more_depth_changes_nothing
        a_step_back_leaves_the_time_of_the_lease_alone
        a_release_without_a_depth_frees_from_any_depth;
    renewal:
        a_renewal_restarts_the_ttl
        a_renewal_reports_how_much_was_left
        the_ttl_of_a_renewal_becomes_the_claims_own
        a_renewal_may_shorten_the_lease
        a_renewed_lease_outlives_its_first_end
        a_renewal_keeps_everything_but_the_end
        a_foreign_token_renews_nothing
        a_renewal_never_creates_a_lease;
    release:
        a_released_lock_can_be_acquired_at_once
        a_release_reports_how_long_the_lock_was_held
        a_release_reports_the_fencing_token_of_each_lease
        a_foreign_token_releases_nothing
        a_lock_without_a_holder_cannot_be_released
        a_repeated_release_is_recognised
        a_repeated_release_leaves_the_next_holder_alone
        a_released_claim_cannot_be_acquired_again
        a_released_claim_cannot_be_renewed
        only_the_release_of_what_a_stream_may_hold_is_notified;
    expiry:
        a_lease_that_ran_out_frees_the_lock
        a_lease_that_ran_out_is_expired_until_the_lock_is_granted_again
        a_lease_that_ran_out_is_lost_once_the_lock_was_granted_to_another
        a_lost_claim_stays_lost_when_its_successor_is_gone
        a_grant_reports_how_long_an_expired_lease_before_it_was_held
        a_grant_after_a_release_reports_no_expiry;
    holding_times:
        a_lock_released_before_min_hold_is_cooling_until_then
        a_claim_released_before_min_hold_has_ended
        a_lock_released_after_min_hold_is_free_at_once
        a_lease_that_ran_out_before_min_hold_leaves_the_lock_cooling
        an_expired_lease_with_a_lock_delay_leaves_the_lock_cooling
        an_evicted_lease_with_a_lock_delay_leaves_the_lock_cooling
        a_release_ignores_the_lock_delay
        max_hold_caps_the_grant
        max_hold_caps_every_renewal
        a_lease_at_its_max_hold_ends_however_often_it_is_renewed;
    eviction:
        an_eviction_returns_the_holder_and_frees_the_lock
        an_evicted_claim_gets_the_reason
        an_evicted_claim_stays_evicted_when_the_lock_has_another_holder
        a_reason_is_returned_unchanged
        an_eviction_does_not_open_what_a_shared_lease_that_ran_out_keeps_closed
        an_eviction_of_a_lock_that_is_not_held_evicts_none
        an_eviction_is_notified_unless_it_evicts_none;
    withdraw:
        a_withdrawn_grant_frees_the_lock_and_leaves_the_token_usable
        a_rollback_reports_how_many_leases_it_has_ended
        a_withdrawn_grant_does_not_close_the_lock
        a_grant_withdrawn_after_it_ran_out_closes_nothing
        a_grant_withdrawn_after_it_ran_out_is_unknown_to_its_successor
        a_grant_withdrawn_after_another_got_the_lock_leaves_the_token_usable
        a_shared_grant_withdrawn_after_it_ran_out_keeps_no_permits
        a_renewed_grant_that_ran_out_cannot_be_withdrawn
        a_grant_that_was_replayed_to_a_second_attempt_stays
        a_grant_that_a_second_attempt_deepened_stays_until_that_is_undone_too
        a_grant_that_was_renewed_stays
        a_grant_that_was_stepped_back_stays
        a_grant_replayed_to_the_same_attempt_can_still_be_withdrawn
        a_withdrawn_grant_of_a_waiter_passes_to_the_next
        a_refused_attempt_withdraws_nothing_of_the_holders
        a_withdrawal_does_not_affect_the_next_grant_of_the_claim
        a_withdrawal_can_be_repeated
        a_withdrawal_leaves_an_ended_claim_ended
        a_grant_that_its_own_attempt_renewed_can_be_withdrawn;
    taking_over:
        a_lease_is_released_by_the_last_stream_that_took_it_over
        a_lease_that_is_taken_over_by_a_deeper_claim_is_released_by_it
        a_lease_of_a_plain_request_is_taken_over_by_a_stream
        a_request_that_waited_leaves_alone_what_a_later_one_holds
        a_plain_request_that_waited_leaves_alone_what_a_stream_holds
        a_request_of_another_kind_makes_a_lease_independent_of_streams
        a_lease_that_a_stream_released_keeps_its_lock_closed_for_its_min_hold_and_no_longer
        a_lease_that_ran_out_is_not_released_again
        a_late_renewal_of_a_closed_stream_makes_no_lease
        permits_that_stay_taken_are_not_those_of_the_next_lease;
    repeated_polls:
        a_repeated_poll_is_granted_only_what_its_stream_releases
        a_repeated_poll_of_a_plain_request_leaves_alone_what_a_stream_took_over
        a_repeated_poll_is_granted_all_its_locks_or_none;
    undone:
        a_takeover_that_is_undone_gives_the_lease_back
        a_takeover_that_is_undone_ends_the_lease_of_a_closed_stream
        a_grant_and_a_takeover_that_are_both_undone_leave_no_lease
        a_takeover_that_is_undone_leaves_a_lease_independent
        a_plain_request_that_is_undone_leaves_the_lease_to_its_stream
        a_renewal_keeps_the_lease_though_the_takeovers_before_it_are_undone
        plain_requests_that_are_all_undone_leave_no_lease
        a_grant_that_is_undone_closes_nothing
        a_grant_and_a_replay_that_are_both_undone_close_nothing
        a_replay_that_is_undone_after_a_stream_was_closed_closes_the_lock;
    inspect:
        a_lock_without_claims_is_free
        a_held_lock_shows_its_holder
        a_view_follows_renewal_and_depth
        a_lock_is_free_again_after_release_expiry_and_eviction;
    list:
        held_locks_are_listed_in_the_order_of_names
        a_listed_lock_equals_its_inspection
        only_held_locks_are_listed
        a_listing_within_prefixes_has_no_other_locks_and_full_pages
        a_prefix_is_taken_literally
        pages_of_any_size_make_the_same_list
        the_last_page_is_marked_as_the_last
        a_page_starts_after_its_name_whether_that_is_held_or_not
        no_lock_is_missed_or_doubled_while_others_come_and_go
        the_locks_that_are_held_are_counted;
    bounds:
        an_answer_about_many_locks_lists_few_holders_of_each
        an_answer_has_limited_room_for_metadata
        an_answer_about_many_locks_has_no_more_room_for_metadata
        a_page_ends_where_it_has_no_more_room;
    order:
        every_grant_has_a_larger_fence_than_the_one_before
        a_fence_grows_on_grants_alone
        a_fence_grows_after_every_kind_of_ending
        fences_grow_across_the_locks_of_one_bucket;
    counting:
        leases_are_counted_up_to_the_quota
        each_principal_has_a_count_of_its_own
        a_lease_that_ran_out_is_no_longer_counted
        no_step_counts_a_lease_for_a_shorter_time
        only_what_is_counted_is_extended
        what_two_requests_have_counted_none_of_them_undoes
        however_many_leases_ran_out_there_is_room
        what_a_claim_has_is_counted_without_room_too
        the_leases_of_several_locks_are_counted_all_or_none
        only_the_attempt_that_may_roll_back_a_lease_stops_its_count;
    undecided:
        a_renewal_leaves_an_undecided_lease_as_it_is
        a_lease_that_was_refused_passes_to_no_further_attempt
        a_refused_attempt_leaves_the_lease_to_those_that_had_it
        a_lease_that_was_refused_passes_on_once_it_is_final
        an_undecided_lease_changes_nothing_for_others_of_its_renewal
        a_lease_that_is_no_longer_young_is_renewed_for_good
        a_step_back_leaves_an_undecided_lease_to_its_grant;
    tombstones:
        a_released_claim_does_not_hide_another_of_the_same_lock;
    waiting:
        waiters_are_granted_in_the_order_of_their_arrival
        shared_and_exclusive_claims_wait_in_one_order
        a_waiter_gets_its_position
        an_inspection_shows_the_length_and_the_head_of_the_queue
        a_lock_is_listed_while_it_is_waited_for
        a_newcomer_does_not_overtake_the_queue
        a_claim_that_is_not_fair_takes_a_free_lock
        a_claim_that_is_not_fair_queues_like_any_other
        a_waiter_that_is_not_fair_may_be_granted_out_of_turn
        polling_again_keeps_the_place
        simultaneous_requests_for_one_waiting_claim_share_one_place
        fence_and_ttl_begin_with_the_grant
        a_waiter_that_was_granted_is_replayed
        a_waiter_that_was_granted_elsewhere_is_no_longer_queued
        a_waiter_learns_when_to_poll_again
        a_waiter_waits_for_a_closed_lock
        a_waiter_does_not_hold
        a_waiter_leaves_the_queue_by_release
        an_ended_claim_is_not_queued
        a_waiting_claim_cannot_be_changed
        a_full_queue_refuses_newcomers
        a_free_lock_is_granted_to_a_request_that_would_wait;
    reservations:
        a_released_lock_is_reserved_once
        a_lock_without_waiters_is_not_reserved
        an_evicted_lock_is_reserved_once
        a_lock_whose_grant_was_withdrawn_is_reserved_once
        a_lock_whose_lease_ran_out_is_reserved_once_for_the_first
        a_closed_lock_is_reserved_once_it_opens
        when_the_first_leaves_the_lock_is_reserved_for_the_next_at_once
        when_one_behind_leaves_the_lock_is_not_reserved_again
        as_many_waiters_get_a_reservation_as_fit_one_after_the_other
        permits_are_reserved_once_there_are_enough
        a_lease_that_steps_down_leads_to_a_reservation_for_a_reader
        a_reservation_that_was_overtaken_is_repeated
        a_permit_that_was_taken_and_came_back_is_reserved_again
        a_reservation_keeps_others_out_for_a_moment_and_no_longer
        however_a_lock_opens_it_is_reserved_for_a_moment_and_no_longer
        a_waiter_is_granted_with_its_owner
        a_lease_that_was_handed_over_is_seen_as_it_was_granted
        a_process_with_grant_after_grant_is_not_considered_dead;
    places:
        a_suspended_claim_gets_its_position
        a_suspended_claim_gets_its_conflicts_only_on_request
        a_suspended_claim_is_passed_over_and_first_again_when_it_is_back
        a_claim_that_is_back_resumes_its_place
        a_suspended_claim_may_be_granted_without_waiting
        a_suspended_place_has_no_waiter
        a_place_expires_after_the_time_for_which_it_is_kept
        a_place_that_is_not_kept_is_gone_at_once
        a_place_without_polls_expires_after_the_wait
        an_expired_place_cannot_be_left
        a_request_with_a_ticket_resumes_its_place_although_it_expired
        a_ticket_without_a_deadline_identifies_its_place
        a_suspended_claim_leaves_the_queue_by_release
        a_suspended_claim_cannot_be_changed
        a_claim_that_does_not_wait_cannot_be_suspended
        a_request_whose_time_is_over_keeps_its_place
        a_request_whose_time_is_over_is_not_granted
        each_request_for_a_claim_has_its_own_time;
    sharing:
        readers_hold_together_each_with_a_lease_of_its_own
        a_writer_holds_alone
        no_reader_comes_before_a_writer_that_waits
        a_reader_that_holds_is_no_newcomer
        each_of_several_holders_acts_for_itself
        a_reader_that_ran_out_has_expired_although_others_were_granted_later
        a_writer_after_readers_that_ran_out_finds_them_expired
        a_lock_that_very_many_readers_let_run_out_is_free
        a_reader_after_a_writer_that_ran_out_finds_it_lost
        a_withdrawn_reader_leaves_the_others_alone
        an_eviction_takes_the_lock_from_all_holders
        an_eviction_takes_the_lock_from_very_many_holders
        an_eviction_misses_no_holder_while_others_acquire
        of_many_holders_those_that_end_first_are_listed
        a_shared_holder_cannot_become_exclusive
        a_claim_that_holds_cannot_be_made_another
        a_holder_may_step_down_and_let_others_in
        a_holder_that_steps_down_counts_with_its_permits
        a_renewal_in_the_same_mode_is_a_renewal;
    permits:
        as_many_hold_as_there_are_permits
        a_claim_may_take_several_permits
        claims_of_any_size_fill_the_limit_and_never_exceed_it
        a_lock_with_one_permit_is_held_alone
        small_claims_do_not_overtake_a_large_one_that_waits
        holders_agree_on_the_limit
        former_holders_do_not_fix_the_limit
        permits_of_a_former_holder_are_free_again
        permits_released_before_min_hold_stay_taken_until_then
        a_lock_with_only_permits_that_stay_taken_is_cooling
        a_holder_behind_many_permits_that_stay_taken_is_seen
        a_reader_released_before_min_hold_keeps_writers_out
        permits_of_a_lease_with_a_lock_delay_stay_taken_after_its_end
        a_lock_delay_does_not_outlive_a_release
        permits_that_only_stay_taken_do_not_fix_the_limit
        permits_that_stay_taken_outlive_the_next_lease_of_their_claim
        permits_that_stay_taken_after_an_end_outlive_the_next_lease_of_their_claim
        a_waiter_with_another_limit_than_the_holders_stops_waiting
        a_reader_that_ran_out_before_min_hold_leaves_the_lock_cooling;
    several:
        all_are_granted_in_the_order_of_names
        none_is_granted_when_one_is_not_free
        a_lease_on_several_locks_is_replayed_and_re_entered
        a_claim_on_other_locks_beside_those_it_holds_is_another
        a_claim_that_ended_on_one_lock_is_not_granted_the_others
        a_contradiction_on_one_lock_changes_nothing_on_the_others
        one_renewal_and_one_release_apply_to_all
        a_renewal_reports_which_locks_were_lost_and_renews_none
        a_release_frees_what_is_still_held
        several_locks_are_lost_together
        a_withdrawn_attempt_frees_all_its_locks
        of_many_simultaneous_claims_on_several_locks_one_is_granted
        several_locks_are_shared_as_one_is
        as_many_locks_as_a_claim_may_name_are_granted
        locks_that_share_a_counter_have_growing_fences;
    several_waiting:
        a_claim_waits_until_all_its_locks_are_free
        a_waiting_claim_gets_a_reservation_when_all_its_locks_are_free
        a_free_lock_is_kept_for_its_first_waiter_that_waits_for_another_lock_too
        a_claim_that_is_not_fair_takes_a_lock_that_is_kept
        the_earliest_claim_on_one_of_the_locks_is_first_there
        a_list_of_one_lock_waits_as_the_claim_on_that_lock
        the_position_of_a_claim_is_that_in_its_longest_queue
        a_suspended_claim_gets_what_blocked_it_while_it_waited
        claims_on_the_same_locks_take_turns_whatever_their_order
        a_ring_of_claims_does_not_deadlock
        a_claim_leaves_all_its_queues_by_release
        a_refused_claim_on_several_locks_leaves_the_place_of_another_claim_alone
        a_kept_claim_that_is_released_on_one_lock_is_kept_on_the_others
        a_claim_that_left_one_queue_leaves_all_at_its_next_poll
        places_in_all_queues_are_kept
        a_claim_waits_for_a_lease_to_run_out
        a_claim_that_waits_cannot_wait_for_more
        a_retry_with_another_limit_leaves_all_queues
        a_full_queue_of_any_lock_refuses_a_claim_which_then_waits_for_none
        locks_of_two_claims_of_a_token_are_no_claim;
    events:
        every_change_of_a_lease_is_an_event
        what_changes_nothing_for_others_is_no_event
        an_eviction_is_an_event
        an_expiry_is_published_once_by_the_request_that_finds_it
        an_expiry_that_was_published_is_not_repeated_by_the_next_grant
        a_new_place_in_the_queue_is_one_event
        each_of_several_holders_has_its_events
        each_of_several_locks_has_its_events
        a_new_place_in_several_queues_is_an_event_of_each
        a_withdrawn_grant_is_published_as_released
        no_two_events_have_the_same_id
        a_process_without_watchers_receives_no_events;
}
