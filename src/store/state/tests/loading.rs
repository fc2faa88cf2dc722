//! Tests of what is written and loaded, after any steps.

use super::*;

/// Loads the rows that were written.
fn loaded(written: &BTreeMap<Vec<u8>, Vec<u8>>, downtime: Downtime, now: StoreTime) -> State {
    let mut loading = Loading::new(12, downtime);
    for (key, value) in written {
        loading.row(key, value).expect("it was written as a row");
    }
    loading.finish(now)
}

/// What a restart keeps of the rows: whether a claim waits ends with the process.
fn kept(state: &State) -> BTreeMap<Row, String> {
    let rows = rows(state).into_iter();
    let without_waiting = |value: String| {
        let value = value.trim_end_matches(" true").trim_end_matches(" false");
        value.to_owned()
    };
    rows.map(|(row, value)| (row, without_waiting(value)))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever comes when, and whenever the process ends. With a downtime, everything lasts that much longer.
    #[test]
    fn what_was_written_is_loaded(steps in steps()) {
        let mut state = State::new(12);
        state.list_changed_rows(true);
        let mut now = StoreTime::at(Duration::from_secs(1_000_000));
        let mut written = BTreeMap::new();
        for step in &steps {
            now = now + Duration::from_millis(step.after_ms);
            let (_, changed) = run(&mut state, now, step);
            for row in changed {
                match rows::encode(&state.0, &row, Downtime::default()) {
                    Some(value) => written.insert(row.to_key(), value),
                    None => written.remove(&row.to_key()),
                };
            }
        }
        let same = loaded(&written, Downtime::default(), now);
        prop_assert_eq!(kept(&same), kept(&state));
        prop_assert_eq!(same.count_kept(), state.count_kept());
        let downtime = Downtime::between(now, now + Duration::from_secs(1_000));
        let mut later = loaded(&written, downtime, now + Duration::from_secs(1_000));
        let end = now + Duration::from_secs(200);
        while state.sweep(end).answer {}
        let end = now + Duration::from_secs(1_200);
        while later.sweep(end).answer {}
        prop_assert_eq!(later.count_kept(), state.count_kept());
        prop_assert!(later.0.tombstones.rows().next().is_none());
    }
}
