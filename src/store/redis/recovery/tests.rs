//! What a process concludes from the store's answers about its data. Tests with real servers cover how these answers
//! arise.

use super::*;
use crate::config::RedisTls;
use crate::domain::LockName;

const EPOCH: u64 = 1_795_219_506_257_721;
const SECOND: Duration = Duration::from_secs(1);

/// A configuration without anything special.
pub(in crate::store::redis) fn config() -> RedisConfig {
    RedisConfig {
        connections: 1,
        connect_timeout: SECOND,
        username: None,
        password: None,
        sentinel_username: None,
        sentinel_password: None,
        tls: RedisTls::default(),
        accept_eviction_policy: None,
        grace_on_empty_start: false,
        check_interval: SECOND,
        wait_replicas: 0,
        wait_timeout: SECOND,
    }
}

fn recovery() -> Recovery {
    let config = config();
    let fleet = FleetState::of_partitions(1, config.check_interval).remove(0);
    let messages = Arc::new(PubSub::new(1, 0, vec![Arc::clone(&fleet)]));
    Recovery::new(
        &config,
        SECOND * 3600,
        RedisKeys::default(),
        fleet,
        messages,
        None,
    )
}

/// An answer this long after the beginning of `EPOCH`.
fn answer(epoch: u64, after: Duration) -> RecoveryReply {
    RecoveryReply {
        now_us: EPOCH + u64::try_from(after.as_micros()).expect("a short time"),
        epoch,
        begins: false,
        revision: 1,
        longest_ttl_ms: 0,
        grace_left: Duration::ZERO,
        watchers: 0,
        listeners: 1,
        may_count: true,
        went_back: false,
    }
}

fn redis(run_id: &str) -> ServerInfo {
    ServerInfo::of_process(run_id)
}

/// A process that has verified a Redis.
fn verified() -> (Recovery, Instant) {
    let (recovery, start) = (recovery(), Instant::now());
    let applied = recovery.apply(&redis("a"), &answer(EPOCH, Duration::ZERO), [start; 2], 0);
    assert_eq!(applied, Some(recovery.generation()));
    (recovery, start)
}

#[tokio::test(start_paused = true)]
async fn nothing_changes_as_long_as_the_data_stay() {
    let (recovery, start) = verified();
    let (before, later) = (recovery.generation(), start + SECOND);
    let same = answer(EPOCH, SECOND);
    assert_eq!(
        recovery.apply(&redis("a"), &same, [later; 2], recovery.generation()),
        Some(before)
    );
    assert_eq!(recovery.grace_left(), None);
}

#[tokio::test(start_paused = true)]
async fn another_epoch_ends_connections_and_forgets_fences() {
    let (recovery, start) = verified();
    let bucket = LockName::parse(b"a").expect("a name").bucket();
    let fence = Fence::new(EPOCH + 1_000).expect("a fence");
    recovery.granted(bucket, fence, recovery.generation());
    assert_eq!(recovery.last_fence(bucket), fence.get().cast_signed());
    let (before, later) = (recovery.generation(), start + SECOND);
    let lost = RecoveryReply {
        grace_left: SECOND * 30,
        ..answer(EPOCH + 1_000_000, SECOND)
    };
    recovery.apply(&redis("a"), &lost, [later; 2], recovery.generation());
    assert!(recovery.generation() > before);
    assert_eq!(
        recovery.last_fence(bucket),
        -(EPOCH + 1_000_000).cast_signed()
    );
    assert!(recovery.grace_left() >= Some(SECOND * 30));
}

/// The data are the same; the connections are not.
#[tokio::test(start_paused = true)]
async fn another_process_with_the_same_data_ends_connections_alone() {
    let (recovery, start) = verified();
    let (before, later) = (recovery.generation(), start + SECOND);
    recovery.apply(
        &redis("b"),
        &answer(EPOCH, SECOND),
        [later; 2],
        recovery.generation(),
    );
    assert!(recovery.generation() > before);
    assert_eq!(recovery.grace_left(), None);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_overtaken_by_a_loss_is_requested_again() {
    let (recovery, start) = verified();
    let later = start + SECOND;
    recovery.apply(
        &redis("a"),
        &answer(EPOCH + 5, SECOND),
        [later; 2],
        recovery.generation(),
    );
    let early = answer(EPOCH, SECOND / 2);
    assert_eq!(
        recovery.apply(
            &redis("a"),
            &early,
            [start + SECOND / 2, later],
            recovery.generation()
        ),
        None
    );
    assert_eq!(recovery.data_epoch(), EPOCH + 5);
}

/// It may lead where the address led before.
#[tokio::test(start_paused = true)]
async fn a_connection_that_was_being_opened_when_all_were_renewed_is_one_of_before() {
    let (recovery, start) = verified();
    let (before, later) = (recovery.generation(), start + SECOND);
    recovery.moved(before);
    let same = answer(EPOCH, SECOND);
    let applied = recovery.apply(&redis("a"), &same, [later; 2], before);
    assert_eq!(applied, Some(before));
    assert_ne!(before, recovery.generation());
}

/// Until the store knows of it.
#[tokio::test(start_paused = true)]
async fn a_declared_loss_is_reported_before_a_connection_is_used() {
    let (recovery, start) = verified();
    let before = recovery.generation();
    recovery.declare_lost(before);
    recovery.declare_lost(before);
    assert_eq!(recovery.generation(), before + 1, "of many, one is enough");
    let later = start + SECOND;
    let same = answer(EPOCH, SECOND);
    assert_eq!(
        recovery.apply(&redis("a"), &same, [later; 2], recovery.generation()),
        None
    );
    let new = answer(EPOCH + 1_000_000, SECOND);
    let applied = recovery.apply(&redis("a"), &new, [later; 2], recovery.generation());
    assert_eq!(applied, Some(recovery.generation()));
}

#[tokio::test(start_paused = true)]
async fn a_clock_that_jumped_is_a_loss_unless_the_epoch_began_after_it() {
    let (recovery, start) = verified();
    let later = start + SECOND;
    let jumped = SECOND * 3600;
    assert!(recovery.is_ahead(EPOCH + 3_600_000_000));
    assert!(!recovery.is_ahead(EPOCH + 400_000));
    let same = answer(EPOCH, jumped);
    assert_eq!(
        recovery.apply(&redis("a"), &same, [later; 2], recovery.generation()),
        None
    );

    let (recovery, start) = verified();
    let later = start + SECOND;
    let new = answer(EPOCH + 3_599_000_000, jumped);
    let applied = recovery.apply(&redis("a"), &new, [later; 2], recovery.generation());
    assert_eq!(applied, Some(recovery.generation()));
}
