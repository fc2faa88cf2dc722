//! The contract of [`LockStore`](leasehold::store::LockStore) as contract tests: plain functions, each run against
//! every store.
//!
//! To add a contract test, write it in the file of its topic and name it in the list below; it then runs on every
//! store. To add a store, add one line to `on_every_store!`. Tests that make sense on one store only are listed
//! separately.

mod acquiring;
mod bounds;
mod events;
mod eviction;
mod expiry;
mod holding_times;
mod inspect;
mod list;
mod order;
mod permits;
mod places;
mod reentry;
mod release;
mod remembering;
mod renewal;
mod replay;
mod reservations;
mod room;
mod several;
mod several_waiting;
mod sharing;
mod taking_over;
mod two_processes;
mod waiting;
mod withdraw;

pub(crate) use order::names_of_one_bucket;

/// One test per contract test function, on a fixture of its own.
macro_rules! tests {
    ($fixture:expr, $options:tt, $($topic:ident: $($law:ident)+;)+) => {$($(
        #[tokio::test $options]
        async fn $law() {
            crate::contract::$topic::$law(&$fixture.await).await;
        }
    )+)+};
}

/// The same contract tests for every store.
macro_rules! on_every_store {
    ($($laws:tt)+) => {
        mod memory {
            tests!(crate::support::fixture::Fixture::memory(), (start_paused = true), $($laws)+);
        }
        mod redis {
            tests!(crate::support::fixture::Fixture::redis(), (flavor = "current_thread"), $($laws)+);
        }
    };
}

on_every_store! {
    acquiring:
        a_free_lock_is_granted_as_it_was_claimed
        a_held_lock_is_refused_and_the_holder_is_named
        a_refused_claim_may_be_granted_later
        locks_with_different_names_do_not_meet
        names_of_every_shape_are_locks_of_their_own
        the_same_token_on_another_lock_is_another_claim
        of_many_simultaneous_claims_one_is_granted
        whatever_an_owner_writes_comes_back_unchanged;
    replay:
        a_replay_returns_the_same_lease
        a_replay_does_not_extend_the_lease
        a_replay_for_less_depth_changes_nothing
        simultaneous_requests_for_one_claim_make_one_grant;
    reentry:
        a_larger_hold_count_holds_at_exactly_that_depth
        a_re_entry_leaves_the_time_of_the_lease_alone
        a_repeated_re_entry_is_a_replay
        a_claim_may_start_deep
        a_release_to_a_depth_steps_back_to_it
        a_repeated_step_back_answers_the_same
        a_step_back_to_more_depth_changes_nothing
        a_step_back_leaves_the_time_of_the_lease_alone
        a_release_without_a_depth_frees_from_any_depth;
    renewal:
        a_renewal_counts_the_ttl_anew
        a_renewal_tells_how_much_was_left
        the_ttl_of_a_renewal_becomes_the_claims_own
        a_renewal_may_shorten_the_lease
        a_renewed_lease_outlives_its_first_end
        a_renewal_keeps_everything_but_the_end
        a_foreign_token_renews_nothing
        a_renewal_never_creates_a_lease;
    release:
        a_released_lock_can_be_acquired_at_once
        a_release_tells_how_long_the_lock_was_held
        a_foreign_token_releases_nothing
        a_lock_that_nobody_held_cannot_be_released
        a_repeated_release_is_recognised
        a_repeated_release_leaves_the_next_holder_alone
        a_released_claim_cannot_be_acquired_again
        a_released_claim_cannot_be_renewed
        a_release_of_what_a_stream_may_hold_is_told_and_no_other;
    expiry:
        a_lease_that_ran_out_frees_the_lock
        a_lease_that_ran_out_is_expired_while_nobody_came_after
        a_lease_that_ran_out_is_lost_once_the_lock_was_granted_to_another
        a_lost_claim_stays_lost_when_its_successor_is_gone
        a_grant_tells_how_long_an_expired_lease_before_it_was_held
        a_grant_after_a_release_tells_of_no_expiry;
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
        an_evicted_claim_is_told_the_reason
        an_evicted_claim_stays_evicted_when_the_lock_has_another_holder
        a_reason_comes_back_as_it_was_given
        an_eviction_does_not_open_what_a_shared_lease_that_ran_out_keeps_closed
        there_is_nobody_to_evict_from_a_lock_that_is_not_held
        those_who_hold_hear_of_an_eviction_and_not_of_one_of_nobody;
    withdraw:
        a_withdrawn_grant_frees_the_lock_and_leaves_the_token_usable
        a_withdrawn_grant_does_not_close_the_lock
        a_grant_withdrawn_after_it_ran_out_closes_nothing
        a_grant_withdrawn_after_it_ran_out_is_nothing_to_its_successor
        a_grant_withdrawn_after_another_got_the_lock_leaves_the_token_usable
        a_shared_grant_withdrawn_after_it_ran_out_keeps_no_permits
        a_renewed_grant_that_ran_out_cannot_be_withdrawn
        a_grant_that_a_second_attempt_was_told_of_stays
        a_grant_that_a_second_attempt_deepened_stays
        a_grant_that_was_renewed_stays
        a_grant_that_was_stepped_back_stays
        the_same_attempt_told_twice_can_still_be_withdrawn
        a_withdrawn_grant_of_a_waiter_passes_to_the_next
        a_refused_attempt_withdraws_nothing_of_the_holders
        a_withdrawal_does_not_reach_the_next_grant_of_the_claim
        a_withdrawal_can_be_repeated
        a_withdrawal_leaves_an_ended_claim_ended
        a_grant_that_its_own_attempt_renewed_can_be_withdrawn;
    taking_over:
        a_lease_is_let_go_by_the_last_stream_that_took_it_over
        a_lease_that_is_taken_over_by_a_deeper_claim_is_let_go_by_it
        a_lease_of_a_plain_request_is_taken_over_by_a_stream
        a_request_that_waited_leaves_alone_what_a_later_one_holds
        a_plain_request_that_waited_leaves_alone_what_a_stream_holds
        a_request_of_another_kind_makes_a_lease_independent_of_streams
        a_lease_that_is_let_go_keeps_its_lock_closed_for_its_min_hold_and_no_longer
        a_takeover_that_is_undone_closes_the_lock_and_a_grant_does_not
        a_lease_that_ran_out_is_not_let_go_again
        a_late_renewal_of_a_closed_stream_makes_no_lease
        permits_that_stay_taken_are_not_those_of_the_next_lease;
    inspect:
        a_lock_that_nobody_asked_for_is_free
        a_held_lock_shows_its_holder
        a_view_follows_renewal_and_depth
        a_lock_is_free_again_after_release_expiry_and_eviction;
    list:
        held_locks_are_listed_in_the_order_of_names
        a_listed_lock_looks_as_it_does_when_inspected
        only_held_locks_are_listed
        a_prefix_is_taken_literally
        pages_of_any_size_make_the_same_list
        the_last_page_says_that_it_is_the_last
        a_page_starts_after_its_name_whether_that_is_held_or_not
        no_lock_is_missed_or_doubled_while_others_come_and_go
        the_locks_that_are_held_are_counted;
    bounds:
        an_answer_about_many_locks_tells_of_few_holders_of_each
        an_answer_has_room_for_so_much_metadata
        an_answer_about_many_locks_has_no_more_room_for_metadata
        a_page_ends_where_it_has_no_more_room;
    order:
        every_grant_has_a_larger_fence_than_the_one_before
        a_fence_grows_on_grants_alone
        a_fence_grows_after_every_kind_of_ending
        fences_grow_across_the_locks_of_one_bucket;
    remembering:
        a_released_claim_does_not_hide_another_of_the_same_lock;
    waiting:
        waiters_are_granted_in_the_order_of_their_arrival
        those_who_share_and_those_who_do_not_wait_in_one_order
        a_waiter_is_told_how_far_it_has_come
        everybody_sees_how_many_wait_and_who_is_next
        a_lock_is_listed_while_it_is_waited_for
        a_newcomer_does_not_overtake_the_queue
        a_claim_that_is_not_fair_takes_a_free_lock
        a_claim_that_is_not_fair_stands_like_any_other
        a_waiter_that_is_not_fair_may_be_granted_out_of_turn
        asking_again_keeps_the_place
        simultaneous_requests_for_one_waiting_claim_stand_on_one_place
        fence_and_ttl_begin_with_the_grant
        a_waiter_that_was_granted_is_replayed
        a_waiter_that_was_granted_elsewhere_stands_there_no_more
        a_waiter_is_told_when_to_look_again
        a_waiter_waits_for_a_closed_lock
        a_waiter_does_not_hold
        a_waiter_leaves_the_queue_by_release
        an_ended_claim_does_not_come_to_wait
        a_waiting_claim_cannot_be_changed
        a_full_queue_takes_no_more
        a_free_lock_is_granted_to_who_would_wait;
    reservations:
        a_released_lock_is_offered_once
        nobody_is_told_of_a_lock_that_nobody_waits_for
        an_evicted_lock_is_offered_once
        a_lock_whose_grant_was_withdrawn_is_offered_once
        a_lock_whose_lease_ran_out_is_offered_once_to_the_first
        a_closed_lock_is_offered_once_it_opens
        when_the_first_steps_out_the_next_is_offered_the_lock_at_once
        when_one_behind_steps_out_nobody_is_told
        as_many_are_told_as_fit_one_after_the_other
        permits_are_offered_once_there_are_enough
        a_lease_that_steps_down_offers_the_lock_to_a_reader
        an_offer_that_was_overtaken_is_made_again
        a_permit_that_was_taken_and_came_back_is_offered_again
        an_offer_keeps_others_out_for_a_moment_and_no_longer
        however_a_lock_opens_it_is_kept_for_a_moment_and_no_longer
        a_waiter_holds_as_who_it_said_it_is
        a_lease_that_was_handed_over_is_seen_as_it_was_granted
        a_process_that_is_granted_again_and_again_is_not_taken_for_dead;
    places:
        a_parked_claim_is_told_how_far_it_had_come
        a_parked_claim_is_passed_over_and_first_again_when_it_is_back
        a_claim_that_is_back_stands_where_it_stood
        a_parked_claim_may_be_granted_without_waiting
        nobody_waits_on_a_parked_place
        a_place_is_forgotten_when_it_was_kept_long_enough
        a_place_that_nobody_looks_after_is_forgotten_after_the_wait
        a_forgotten_place_cannot_be_left
        a_request_that_knows_its_place_stands_there_though_it_was_forgotten
        a_place_is_known_without_its_time
        a_parked_claim_leaves_the_queue_by_release
        a_parked_claim_cannot_be_changed
        a_claim_that_does_not_wait_cannot_be_parked
        a_request_whose_time_is_over_keeps_its_place
        a_request_whose_time_is_over_is_not_granted
        each_request_for_a_claim_has_its_own_time;
    sharing:
        readers_hold_together_each_with_a_lease_of_its_own
        a_writer_holds_alone
        no_reader_comes_before_a_writer_that_waits
        a_reader_that_holds_is_no_newcomer
        each_of_several_holders_acts_for_itself
        a_reader_that_ran_out_has_expired_whoever_came_after
        a_writer_after_readers_that_ran_out_finds_them_expired
        a_lock_that_very_many_readers_let_run_out_is_free
        a_reader_after_a_writer_that_ran_out_finds_it_lost
        a_withdrawn_reader_leaves_the_others_alone
        an_eviction_takes_the_lock_from_all_holders
        an_eviction_takes_the_lock_from_very_many_holders
        an_eviction_misses_nobody_while_others_ask
        of_many_holders_those_are_told_who_end_first
        who_holds_together_cannot_come_to_hold_alone
        a_claim_that_holds_cannot_be_made_another
        a_holder_may_step_down_and_let_others_in
        who_steps_down_counts_with_its_permits
        a_renewal_in_the_same_mode_is_a_renewal;
    permits:
        as_many_hold_as_there_are_permits
        a_claim_may_take_several_permits
        claims_of_any_size_fill_the_limit_and_never_exceed_it
        a_lock_with_one_permit_is_held_alone
        small_claims_do_not_overtake_a_large_one_that_waits
        those_who_hold_agree_on_the_limit
        those_who_do_not_hold_any_more_agree_on_nothing
        permits_of_a_holder_that_is_gone_come_back
        permits_released_before_min_hold_stay_taken_until_then
        a_lock_of_which_only_such_permits_are_left_is_cooling
        a_holder_behind_many_permits_that_stay_taken_is_seen
        a_reader_released_before_min_hold_keeps_writers_out
        permits_of_a_lease_with_a_lock_delay_stay_taken_after_its_end
        a_lock_delay_does_not_outlive_a_release
        permits_that_only_stay_taken_do_not_insist_on_their_limit
        permits_that_stay_taken_outlive_the_next_lease_of_their_claim
        permits_that_stay_taken_after_an_end_outlive_the_next_lease_of_their_claim
        a_waiter_with_another_limit_than_the_holders_waits_no_more
        a_reader_that_ran_out_before_min_hold_leaves_the_lock_cooling;
    several:
        all_are_granted_in_the_order_of_names
        none_is_granted_when_one_is_not_free
        a_lease_on_several_locks_is_replayed_and_re_entered
        a_claim_on_other_locks_beside_those_it_holds_is_another
        a_claim_that_ended_on_one_lock_is_not_granted_the_others
        a_contradiction_on_one_lock_changes_nothing_on_the_others
        one_renewal_and_one_release_are_for_all
        a_renewal_tells_which_locks_were_lost_and_renews_none
        a_release_frees_what_is_still_held
        several_locks_are_lost_together
        a_withdrawn_attempt_frees_all_its_locks
        of_many_simultaneous_claims_on_several_locks_one_is_granted
        several_locks_are_shared_as_one_is
        as_many_locks_as_a_claim_may_name_are_granted
        locks_that_share_a_counter_have_growing_fences;
    several_waiting:
        a_claim_waits_until_all_its_locks_are_free
        a_claim_that_waits_is_offered_its_locks_when_it_can_have_them
        a_free_lock_is_kept_for_the_first_who_waits_for_another_too
        a_claim_that_is_not_fair_takes_a_lock_that_is_kept
        who_came_first_to_one_of_the_locks_is_first_there
        a_list_of_one_lock_waits_as_the_claim_on_that_lock
        a_claim_is_as_far_as_in_its_longest_queue
        claims_on_the_same_locks_take_turns_whatever_their_order
        a_ring_of_claims_comes_to_an_end
        a_claim_leaves_all_its_queues_by_release
        a_claim_that_left_one_queue_stands_in_none_once_it_asks
        places_in_all_queues_are_kept
        a_claim_waits_for_a_lease_to_run_out
        a_claim_that_waits_cannot_wait_for_more;
    events:
        the_life_of_a_lease_is_told
        what_changes_nothing_for_others_is_not_told
        an_eviction_is_told
        an_expiry_is_told_once_by_whoever_finds_out
        an_expiry_that_was_seen_is_not_told_again_with_the_next_grant
        a_new_place_in_the_queue_is_told_once
        each_of_several_holders_is_told_of
        each_of_several_locks_is_told_of
        a_grant_that_was_withdrawn_is_told_as_released
        no_two_events_have_the_same_id
        nothing_is_told_to_who_does_not_want_to_hear;
}

/// Tests that skip time, so that a minute costs nothing.
mod memory_alone {
    tests! { crate::support::fixture::Fixture::memory(), (start_paused = true),
        remembering:
            a_lease_that_ran_out_is_known_to_its_successor_for_a_minute
            every_kind_of_ending_is_remembered_for_a_minute_and_no_longer
            a_table_of_forgotten_claims_has_room_again
            what_ends_at_once_is_cleared_away_while_others_go_on
            no_more_ended_claims_are_remembered_than_there_may_be_locks;
        room:
            every_holder_of_a_shared_lock_counts
            a_claim_counts_for_each_of_its_locks
            each_full_256_bytes_of_owner_and_metadata_count_once
            a_text_is_kept_once_for_all_locks_of_its_claim
            a_text_counts_until_the_last_lock_of_its_claim_is_released
            a_claim_that_waits_has_the_room_to_hold
            a_kept_place_counts_until_it_is_forgotten
            a_lease_that_is_over_counts_while_its_lock_is_closed
            what_is_refused_for_lack_of_room_leaves_nothing
            whatever_becomes_of_a_claim_nothing_counts_in_the_end;
    }
}

/// Tests in which requests overtake each other, or that read the stored keys.
mod redis_alone {
    tests! { crate::support::fixture::Fixture::redis(), (flavor = "current_thread"),
        remembering:
            every_kind_of_ending_is_kept_for_a_minute
            a_lease_is_kept_a_minute_longer_than_it_lasts
            a_lock_that_opened_is_kept_for_those_who_wait
            a_closed_lock_is_kept_until_it_opens;
        waiting:
            a_withdrawn_attempt_that_arrives_late_does_not_come_to_wait;
        reservations:
            who_repeats_a_release_hears_of_its_own_waiter_again;
        two_processes:
            waiters_of_all_processes_stand_in_one_order
            an_offer_goes_to_the_process_of_the_first_alone
            readers_of_several_processes_are_let_in_together
            an_offer_that_a_process_does_not_take_goes_to_the_next
            a_silent_process_is_passed_over_with_all_its_waiters
            a_process_that_was_silent_keeps_its_turn
            a_waiter_that_moved_leaves_the_others_of_its_process_in_turn
            a_first_try_that_is_late_does_not_take_the_place_back
            the_head_of_a_process_clears_away_what_stands_before_it
            a_process_that_ended_is_passed_over_with_all_its_waiters
            one_waiter_that_looks_speaks_for_its_process
            a_kept_place_is_found_on_another_process
            a_place_on_a_process_that_ended_is_found_on_another
            a_claim_that_waits_on_two_processes_is_granted_once
            a_claim_leaves_the_queue_by_release_on_any_process
            a_newcomer_on_another_process_does_not_overtake
            events_of_one_process_are_heard_on_all
            an_eviction_is_heard_of_on_all
            the_release_of_a_stream_is_heard_of_on_all;
        taking_over:
            a_lease_is_taken_over_at_another_process
            a_late_repeat_of_a_stream_that_was_taken_over_from_changes_nothing
            a_claim_that_hangs_up_again_and_again_leaves_no_more_behind_than_its_last_attempts
            a_lease_that_is_taken_over_again_and_again_does_not_grow;
        withdraw:
            a_withdrawn_attempt_that_arrives_late_is_not_granted
            an_attempt_withdrawn_after_it_ran_out_that_arrives_late_is_not_granted
            a_withdrawn_attempt_does_not_take_what_it_is_offered
            a_withdrawal_that_came_first_leaves_the_token_usable
            a_withdrawn_attempt_is_remembered_for_a_minute
            a_withdrawn_attempt_that_arrives_late_leaves_the_next_grant_alone;
    }
}
