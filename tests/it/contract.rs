//! The contract of [`LockStore`](leasehold::store::LockStore) as laws: plain functions, each run against every store.
//!
//! A law is added by writing it in its topic's file and naming it in the list below; it then runs everywhere. A store
//! is added by one line in `on_every_store!`. The few laws that only make sense on one store are named apart.

mod acquiring;
mod eviction;
mod expiry;
mod holding_times;
mod inspect;
mod list;
mod order;
mod reentry;
mod release;
mod remembering;
mod renewal;
mod replay;
mod withdraw;

pub(crate) use order::names_of_one_bucket;

/// One test per law, on a bench of its own.
macro_rules! tests {
    ($bench:expr, $options:tt, $($topic:ident: $($law:ident)+;)+) => {$($(
        #[tokio::test $options]
        async fn $law() {
            crate::contract::$topic::$law(&$bench.await).await;
        }
    )+)+};
}

/// The same laws for every store.
macro_rules! on_every_store {
    ($($laws:tt)+) => {
        mod memory {
            tests!(crate::support::bench::Bench::memory(), (start_paused = true), $($laws)+);
        }
        mod redis {
            tests!(crate::support::bench::Bench::redis(), (flavor = "current_thread"), $($laws)+);
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
        a_released_claim_cannot_be_renewed;
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
        there_is_nobody_to_evict_from_a_lock_that_is_not_held;
    withdraw:
        a_withdrawn_grant_frees_the_lock_and_leaves_the_token_usable
        a_withdrawn_grant_does_not_close_the_lock
        a_grant_withdrawn_after_it_ran_out_closes_nothing
        a_grant_that_a_second_attempt_was_told_of_stays
        a_grant_that_a_second_attempt_deepened_stays
        a_grant_that_was_renewed_stays
        a_grant_that_was_stepped_back_stays
        the_same_attempt_told_twice_can_still_be_withdrawn
        a_refused_attempt_withdraws_nothing_of_the_holders
        a_withdrawal_does_not_reach_the_next_grant_of_the_claim
        a_withdrawal_can_be_repeated
        a_withdrawal_leaves_an_ended_claim_ended;
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
        no_lock_is_missed_or_doubled_while_others_come_and_go;
    order:
        every_grant_has_a_larger_fence_than_the_one_before
        a_fence_grows_on_grants_alone
        a_fence_grows_after_every_kind_of_ending
        fences_grow_across_the_locks_of_one_bucket;
    remembering:
        a_released_claim_does_not_hide_another_of_the_same_lock;
}

/// Time can be skipped here, so that a minute costs nothing.
mod memory_alone {
    tests! { crate::support::bench::Bench::memory(), (start_paused = true),
        remembering:
            every_kind_of_ending_is_remembered_for_a_minute_and_no_longer
            a_table_of_forgotten_claims_has_room_again;
    }
}

/// Requests can overtake each other here, and what is kept can be looked at.
mod redis_alone {
    tests! { crate::support::bench::Bench::redis(), (flavor = "current_thread"),
        remembering:
            every_kind_of_ending_is_kept_for_a_minute;
        withdraw:
            a_withdrawn_attempt_that_arrives_late_is_not_granted
            a_withdrawal_that_came_first_leaves_the_token_usable
            a_withdrawn_attempt_that_arrives_late_leaves_the_next_grant_alone;
    }
}
