//! What runs the contract tests on every store.

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
        mod replicated {
            tests!(crate::support::fixture::Fixture::replicated(), (flavor = "current_thread"), $($tests)+);
        }
        mod cluster {
            tests!(crate::support::fixture::Fixture::cluster(), (flavor = "current_thread"), $($tests)+);
        }
        mod sentinel {
            tests!(crate::support::fixture::Fixture::sentinel(), (flavor = "current_thread"), $($tests)+);
        }
    };
}
