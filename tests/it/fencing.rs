//! Edge cases of fencing tokens: the largest number, a missing counter, and many grants in one microsecond.
//!
//! The contract tests (`contract::order`) check that they increase at all.

use leasehold::domain::{Acquired, Attempt, Claim, Fence, GrantKind, Granted, LockState, Refused};
use leasehold::store::{Fault, StoreError};
use tokio::time::Instant;

use crate::contract::names_of_one_bucket;
use crate::support::fixture::{
    Fixture, READ, at_depth, claim, claim_on, claim_on_all, for_short, in_mode, leases_granted,
    lock_of, names, only, rival,
};
use crate::support::{eventually, stores};

/// The key of the counter that serves a claim's lock, as the documentation of the storage format names it.
fn counter_of(claim: &Claim) -> String {
    format!("lh:1:{{{}}}:f", lock_of(claim).bucket().index())
}

async fn fence_of(fixture: &Fixture, claim: &Claim) -> u64 {
    fixture.granted(claim).await.holder.fence.get()
}

#[tokio::test]
async fn redis_grants_the_last_number_exactly_and_nothing_after_it() {
    let fixture = Fixture::redis().await;
    let redis = fixture.redis_behind();
    let [last, none] = names_of_one_bucket(2).try_into().expect("two names");
    let (last, none) = (claim_on(&last), claim_on(&none));
    let before_the_last = (Fence::MAX - 1).to_string();
    let set = ["SET", &counter_of(&last), &before_the_last];
    redis.server.command_in(redis.database, &set).await;

    let fence = fence_of(&fixture, &last).await;
    assert_eq!(fence, 9_007_199_254_740_991);
    // It is exact when it is read back, as when it was created.
    let renewal = fixture.renewed(&last, None).await;
    assert_eq!(renewal.lease.holder.fence.get(), fence);

    match fixture.attempt(&none, Attempt::random()).await {
        Err(StoreError::Unavailable { fault, .. }) => assert_eq!(fault, Fault::Corrupt),
        other => panic!("the numbers are used up, but: {other:?}"),
    }
    assert_eq!(fixture.state(lock_of(&none)).await, LockState::Free);
    // Existing leases continue.
    fixture.renewed(&last, None).await;
    fixture.freed(&last).await;
}

/// The store detects the loss, and delays grants for the length of the lease that it reported.
#[tokio::test]
async fn a_lost_counter_never_leads_to_a_smaller_fence() {
    let fixture = Fixture::redis().await;
    let redis = fixture.redis_behind();
    let first = for_short(&claim());
    let before = fence_of(&fixture, &first).await;
    fixture.freed(&first).await;
    let delete = ["DEL", &counter_of(&first)];
    let deleted = redis.server.integer(redis.database, &delete).await;
    assert_eq!(deleted, 1, "the counter is where the format says");
    let next = rival(&first);
    let after = eventually("the lock is granted again", async || {
        match fixture.acquire(&next).await {
            Acquired::Granted(Granted {
                kind: GrantKind::New,
                leases,
                ..
            }) => Some(only(leases).holder.fence.get()),
            Acquired::Refused(Refused::Recovering { .. }) => None,
            other => panic!("nobody holds the lock, but: {other:?}"),
        }
    })
    .await;
    assert!(after > before, "{after} after {before}");
}

/// What the counter of a bucket is when a claim arrives.
#[derive(Clone, Copy, Debug)]
enum Counter {
    Missing,
    /// As this process has seen it last.
    Unchanged,
    /// One less than this process has seen.
    Regressed,
    /// Not used since the data began, as it should be.
    OfThisEpoch,
    /// Not used since other data began.
    OfAnotherEpoch,
    /// Larger than the clock.
    Ahead(u64),
}

#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    /// By the clock.
    Granted,
    GrantedWith(u64),
    /// Nothing is granted, because leases may have been lost.
    Refused,
    Exhausted,
}

/// Every way to a grant: they differ in how they get there, and must not differ in the number.
#[derive(Clone, Copy, Debug)]
enum Way {
    Plain,
    WithOptions,
    Shared,
    OfTwoLocks,
    FromTheQueue,
}

const AHEAD: u64 = 8_000_000_000_000_000;

async fn set_counter(fixture: &Fixture, claim: &Claim, counter: Counter, seen: u64) {
    let redis = fixture.redis_behind();
    let key = counter_of(claim);
    let node = ["HGET", "lh:1:{0}:node", "epoch"];
    let epoch = redis.server.integer(redis.database, &node).await;
    let text = match counter {
        Counter::Missing => {
            let deleted = redis.server.integer(redis.database, &["DEL", &key]).await;
            return assert_eq!(deleted, 1, "the counter is where the format says");
        }
        Counter::Unchanged => return,
        Counter::Regressed => (seen - 1).to_string(),
        Counter::OfThisEpoch => (-epoch).to_string(),
        Counter::OfAnotherEpoch => (1 - epoch).to_string(),
        Counter::Ahead(number) => number.to_string(),
    };
    let set = ["SET", &key, &text];
    redis.server.command_in(redis.database, &set).await;
}

/// What comes of a claim for a lock that was held before, if the lock is not of an unused bucket.
async fn outcome_of(way: Way, counter: Counter) -> Outcome {
    let fixture = Fixture::redis().await;
    let is_used = !matches!(counter, Counter::OfThisEpoch | Counter::OfAnotherEpoch);
    let both = names_of_one_bucket(2);
    let first = claim_on(&both[0]);
    let mut seen = 0;
    if is_used {
        seen = fence_of(&fixture, &first).await;
    }
    let next = match way {
        Way::Plain | Way::FromTheQueue => rival(&first),
        Way::WithOptions => at_depth(&rival(&first), 2),
        Way::Shared => in_mode(&rival(&first), READ),
        Way::OfTwoLocks => claim_on_all(names(&both)),
    };
    let answer = if matches!(way, Way::FromTheQueue) {
        if !is_used {
            fixture.granted(&first).await;
        }
        let waiter = fixture.waiting(&next).await;
        fixture.freed(&first).await;
        set_counter(&fixture, &first, counter, seen).await;
        let deadline = Instant::now() + stores::OPERATION_TIMEOUT;
        let store = fixture.store();
        let asked = store.acquire(&next, waiter.attempt, Some(&waiter.queue_request), deadline);
        asked.await
    } else {
        if is_used {
            fixture.freed(&first).await;
        }
        set_counter(&fixture, &first, counter, seen).await;
        fixture.attempt(&next, Attempt::random()).await
    };
    match answer {
        Ok(Acquired::Refused(Refused::Recovering { .. }) | Acquired::Waiting(_)) => {
            Outcome::Refused
        }
        Err(StoreError::Unavailable { fault, .. }) => {
            assert_eq!(fault, Fault::Corrupt);
            Outcome::Exhausted
        }
        Ok(answer) => {
            let leases = leases_granted(answer);
            let fence = leases.last().expect("a lease").holder.fence.get();
            assert!(fence > seen, "{fence} after {seen}");
            match counter {
                Counter::Ahead(_) => Outcome::GrantedWith(fence),
                _ => Outcome::Granted,
            }
        }
        Err(other) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_way_to_a_grant_takes_the_same_number() {
    for way in [
        Way::Plain,
        Way::WithOptions,
        Way::Shared,
        Way::OfTwoLocks,
        Way::FromTheQueue,
    ] {
        let locks = if matches!(way, Way::OfTwoLocks) { 2 } else { 1 };
        for (counter, expected) in [
            (Counter::Missing, Outcome::Refused),
            (Counter::Unchanged, Outcome::Granted),
            (Counter::Regressed, Outcome::Refused),
            (Counter::OfThisEpoch, Outcome::Granted),
            (Counter::OfAnotherEpoch, Outcome::Refused),
            (Counter::Ahead(AHEAD), Outcome::GrantedWith(AHEAD + locks)),
            (
                Counter::Ahead(Fence::MAX - locks),
                Outcome::GrantedWith(Fence::MAX),
            ),
            (Counter::Ahead(Fence::MAX), Outcome::Exhausted),
            (Counter::Ahead(Fence::MAX + 1), Outcome::Exhausted),
        ] {
            if matches!((way, counter), (Way::FromTheQueue, Counter::OfThisEpoch)) {
                // A lock that is waited for was granted, so its counter was used.
                continue;
            }
            let outcome = outcome_of(way, counter).await;
            assert_eq!(outcome, expected, "{way:?} with the counter {counter:?}");
        }
    }
}

/// The part of the scripts that computes a fencing token, with a clock, counters and last tokens seen of our own.
const NEXT_FENCE: &str = concat!(
    "local FENCE_MAX, COUNTER_REGRESSED, FENCES_EXHAUSTED = 9007199254740991, 8, 9\n",
    "local now_text, now_us = ARGV[1], ARGV[1] + 0\n",
    include_str!("../../src/store/redis/lua/fence.lua"),
    "local answers = {}\n",
    "for index = 2, #ARGV, 2 do\n",
    "    local fence, why = next_fence(ARGV[index] ~= '' and ARGV[index], ARGV[index + 1])\n",
    "    answers[#answers + 1] = fence or why\n",
    "end\n",
    "return answers\n",
);

/// The rule of `fence.lua`, without its short cuts.
fn next_fence(clock: i64, counter: Option<i64>, seen: i64) -> String {
    let Some(counter) = counter else {
        return "8".to_owned();
    };
    if counter < seen || counter < 0 && counter != seen {
        return "8".to_owned();
    }
    let next = (counter.abs() + 1).max(clock);
    match u64::try_from(next).expect("a positive number") {
        next if next > Fence::MAX => "9".to_owned(),
        next => next.to_string(),
    }
}

#[tokio::test]
async fn the_short_cut_to_a_fence_follows_the_rule() {
    let fixture = Fixture::redis().await;
    let redis = fixture.redis_behind();
    const MAX: i64 = Fence::MAX.cast_signed();
    for clock in [999_999_999_999_999, 1_795_247_427_000_007, MAX - 1] {
        let near = [-1_000_000, -1, 0, 1, 1_000_000].map(|step| clock + step);
        let negated = near.map(|number| -number);
        let of_clock = near.into_iter().chain(negated);
        let limits = [
            0,
            1,
            -1,
            631_152_000_000_000,
            -631_152_000_000_000,
            MAX - 1,
            MAX,
            MAX + 1,
        ];
        let numbers: Vec<i64> = of_clock.chain(limits).collect();
        let counters = numbers.iter().copied().map(Some).chain([None]);
        let cases: Vec<_> = counters
            .flat_map(|counter| numbers.iter().map(move |seen| (counter, *seen)))
            .collect();
        let mut command = vec!["EVAL".to_owned(), NEXT_FENCE.to_owned(), "0".to_owned()];
        command.push(clock.to_string());
        for (counter, seen) in &cases {
            command.push(counter.map_or_else(String::new, |it| it.to_string()));
            command.push(seen.to_string());
        }
        let command: Vec<_> = command.iter().map(String::as_str).collect();
        let answers = redis.server.command_in(redis.database, &command).await;
        let answers: Vec<String> = redis::from_redis_value(answers).expect("numbers");
        assert_eq!(answers.len(), cases.len());
        for ((counter, seen), answer) in cases.into_iter().zip(answers) {
            let expected = next_fence(clock, counter, seen);
            assert_eq!(answer, expected, "{counter:?} at {clock}, {seen} seen");
        }
    }
}

/// A function would cost the fast path too much, so it repeats the condition.
#[test]
fn the_fast_path_takes_the_short_cut_of_the_rule() {
    let short_cut = |script: &'static str| {
        let lines = script.lines().map(str::trim);
        let lines = lines.skip_while(|line| !line.starts_with("local is_behind"));
        lines.take(3).collect::<Vec<_>>()
    };
    let of_rule = short_cut(include_str!("../../src/store/redis/lua/fence.lua"));
    let of_fast_path = short_cut(include_str!("../../src/store/redis/lua/acquire.lua"));
    assert_eq!(of_rule.len(), 3);
    assert_eq!(of_fast_path, of_rule);
}

/// The clock is stopped, so every grant falls into the same microsecond.
#[tokio::test(start_paused = true)]
async fn a_hundred_thousand_grants_in_one_microsecond_are_all_in_order() {
    let fixture = Fixture::memory().await;
    let claim = claim();
    let mut last = 0;
    for _ in 0..100_000 {
        let attempt = Attempt::random();
        match fixture.attempt(&claim, attempt).await {
            Ok(Acquired::Granted(Granted {
                kind: GrantKind::New,
                leases,
                ..
            })) => {
                let fence = only(leases).holder.fence.get();
                assert!(fence > last, "{fence} after {last}");
                last = fence;
            }
            other => panic!("the lock is free, but: {other:?}"),
        }
        // Rolled back rather than released, because a release would leave a tombstone.
        fixture.withdraw(&claim, attempt).await;
    }
}

#[tokio::test]
async fn many_simultaneous_grants_of_one_bucket_have_different_fences() {
    let fixture = Fixture::redis().await;
    let names = names_of_one_bucket(8);
    let mut fences = Vec::new();
    for _ in 0..10 {
        let claims: Vec<_> = names.iter().map(claim_on).collect();
        let grants = claims.iter().map(|claim| fence_of(&fixture, claim));
        fences.extend(futures_util::future::join_all(grants).await);
        for claim in &claims {
            fixture.freed(claim).await;
        }
    }
    let granted = fences.len();
    fences.sort_unstable();
    fences.dedup();
    assert_eq!(fences.len(), granted);
}

/// JSON parsers that use doubles, which most do, read the largest one exactly.
#[test]
fn the_largest_fence_survives_json_readers_that_use_doubles() {
    let json = serde_json::to_string(&Fence::MAX).expect("a number");
    let double: f64 = serde_json::from_str(&json).expect("a number");
    assert_eq!(format!("{double:.0}"), json);
    let one_less: f64 = serde_json::from_str(&(Fence::MAX - 1).to_string()).expect("a number");
    assert!(one_less < double, "neighbours stay apart");
    assert_eq!(Fence::new(Fence::MAX + 1), None);
}
