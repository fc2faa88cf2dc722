//! What runs the contract tests on every store: the embedded ones, a Redis at an address, one that a Sentinel names with and
//! without replicas that confirm (`safe` and `fast`), a Redis Cluster, and a quorum of embedded nodes and of Redis.
//!
//! Left out is a Cluster whose replicas confirm: each node has its own barrier, which is that of a single Redis, and
//! `faults::redis_cluster::confirmed` shows that each waits for its own replica.

/// One `#[tokio::test]` per contract test, each on its own fixture.
macro_rules! tests {
    ($fixture:expr, $options:tt, $($topic:ident: $($test:ident)+;)+) => {$($(
        #[tokio::test $options]
        async fn $test() {
            crate::contract::$topic::$test(&$fixture.await).await;
        }
    )+)+};
}

/// A list of all contract tests, by their names.
macro_rules! list {
    ($($topic:ident: $($test:ident)+;)+) => {{
        $($(fn $test(fixture: &Fixture) -> LocalBoxFuture<'_, ()> {
            Box::pin($topic::$test(fixture))
        })+)+
        vec![$($((stringify!($test), $test as ContractTest)),+),+]
    }};
}

/// The same tests for every store.
macro_rules! on_every_store {
    ($($tests:tt)+) => {
        /// Every contract test, for runs of all of them on one server.
        pub(crate) fn all() -> Vec<(&'static str, ContractTest)> {
            list!($($tests)+)
        }
        mod memory {
            tests!(crate::support::fixture::Fixture::memory(), (start_paused = true), $($tests)+);
        }
        mod file {
            tests!(crate::support::fixture::Fixture::file(), (start_paused = true), $($tests)+);
        }
        mod quorum_redis {
            tests!(crate::support::fixture::Fixture::quorum_redis(), (flavor = "current_thread"), $($tests)+);
        }
        mod quorum {
            tests!(crate::support::fixture::Fixture::quorum(), (start_paused = true), $($tests)+);
        }
        mod redis {
            tests!(crate::support::fixture::Fixture::redis(), (flavor = "current_thread"), $($tests)+);
        }
        mod sentinel_safe {
            tests!(crate::support::fixture::Fixture::sentinel_safe(), (flavor = "current_thread"), $($tests)+);
        }
        mod cluster {
            tests!(crate::support::fixture::Fixture::cluster(), (flavor = "current_thread"), $($tests)+);
        }
        mod sentinel_fast {
            tests!(crate::support::fixture::Fixture::sentinel_fast(), (flavor = "current_thread"), $($tests)+);
        }
    };
}
