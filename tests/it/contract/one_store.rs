//! The contract tests that only make sense on one store.

/// Only for the embedded store: its clock is stopped, so waiting for a minute costs nothing.
mod memory_alone {
    tests! { crate::support::fixture::Fixture::memory(), (start_paused = true),
        tombstones:
            a_lease_that_ran_out_is_known_to_its_successor_for_a_minute
            every_kind_of_ending_is_remembered_for_a_minute_and_no_longer
            a_table_has_room_again_after_its_tombstones_expire
            many_simultaneous_ends_are_cleaned_up_while_other_tasks_run
            there_are_no_more_tombstones_than_there_may_be_locks;
        capacity:
            every_holder_of_a_shared_lock_counts
            a_claim_counts_for_each_of_its_locks
            each_full_256_bytes_of_owner_and_metadata_count_once
            a_text_is_kept_once_for_all_locks_of_its_claim
            a_text_counts_until_the_last_lock_of_its_claim_is_released
            a_claim_that_waits_has_the_room_to_hold
            a_kept_place_counts_until_it_expires
            a_lease_that_is_over_counts_while_its_lock_is_closed
            what_is_refused_for_lack_of_room_leaves_nothing
            however_a_claim_ends_nothing_counts_afterwards;
    }
}

/// Only for Redis: requests can overtake each other, and the keys can be inspected.
mod redis_alone {
    tests! { crate::support::fixture::Fixture::redis(), (flavor = "current_thread"),
        tombstones:
            every_kind_of_ending_is_kept_for_a_minute
            a_lease_is_kept_a_minute_longer_than_it_lasts
            the_record_of_a_lock_that_opened_is_kept_for_its_waiters
            the_record_of_a_closed_lock_is_kept_until_it_opens;
        waiting:
            a_withdrawn_attempt_that_arrives_late_is_not_queued;
        reservations:
            a_repeated_release_repeats_the_reservation;
        two_processes:
            waiters_of_all_processes_share_one_order
            a_reservation_goes_to_the_process_of_the_first_alone
            readers_of_several_processes_are_let_in_together
            a_reservation_that_a_process_does_not_take_goes_to_the_next
            a_silent_process_is_passed_over_with_all_its_waiters
            a_process_that_was_silent_keeps_its_turn
            a_waiter_that_moved_leaves_the_others_of_its_process_in_turn
            the_head_of_a_process_removes_abandoned_places_before_it
            a_process_that_ended_is_passed_over_with_all_its_waiters
            one_waiter_that_polls_keeps_its_process_alive
            a_kept_place_is_found_on_another_process
            a_place_on_a_process_that_ended_is_found_on_another
            a_claim_that_waits_on_two_processes_is_granted_once
            a_newcomer_on_another_process_does_not_overtake
            events_of_one_process_reach_all
            an_eviction_is_notified_on_all
            the_release_of_a_stream_is_notified_on_all;
        elsewhere:
            a_process_is_notified_that_its_claim_waits_elsewhere
            a_process_is_notified_that_its_claim_holds_elsewhere
            a_first_try_that_is_late_does_not_take_the_place
            a_poll_of_an_earlier_request_makes_its_claim_no_older
            a_claim_whose_newer_process_ended_is_granted_by_the_older_request
            a_claim_leaves_the_queue_by_release_on_any_process;
        undone:
            a_takeover_that_is_undone_gives_the_lease_back_to_another_process;
        taking_over:
            a_lease_is_taken_over_at_another_process
            a_late_repeat_of_a_stream_that_was_taken_over_from_changes_nothing
            a_claim_that_disconnects_many_times_leaves_only_its_last_attempts_behind
            a_lease_that_is_taken_over_again_and_again_does_not_grow;
        withdraw:
            a_withdrawn_attempt_that_arrives_late_is_not_granted
            an_attempt_withdrawn_after_it_ran_out_that_arrives_late_is_not_granted
            a_withdrawn_attempt_does_not_take_its_reservation
            a_withdrawal_that_came_first_leaves_the_token_usable
            a_withdrawn_attempt_is_remembered_for_a_minute
            a_withdrawn_attempt_that_arrives_late_leaves_the_next_grant_alone;
    }
}
