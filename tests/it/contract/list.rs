//! Contract tests of listing: the held locks in the order of names, none twice, and none missing that stays held.
//!
//! Each fixture has its own store, so the list has only the locks of one test.

use leasehold::domain::{Claim, LockState, NamePrefix, NamePrefixes};
use leasehold::store::ListQuery;

use super::expiry::expired_claim;
use crate::support::fixture::{
    Fixture, LONG, READ, SHORT, at_depth, claim, claim_on, for_short, in_mode, lock_of, name,
    owner, reader, rival,
};

async fn hold(fixture: &Fixture, names: &[&str]) {
    for text in names {
        fixture.granted(&claim_on(&name(text))).await;
    }
}

pub(super) async fn held_locks_are_listed_in_the_order_of_names(fixture: &Fixture) {
    hold(fixture, &["b", "a/2", "B", "a", "a-1", "a/10", "~"]).await;
    let sorted = ["B", "a", "a-1", "a/10", "a/2", "b", "~"];
    assert_eq!(fixture.names("", 100).await, sorted);
}

pub(super) async fn a_listed_lock_equals_its_inspection(fixture: &Fixture) {
    let claim = Claim {
        owner: owner("pod-7"),
        ..claim()
    };
    fixture.granted(&claim).await;
    let page = fixture.page("", None, 10).await;
    assert_eq!(page.locks.len(), 1, "{page:?}");
    assert_eq!(&page.locks[0].name, lock_of(&claim));
    let (listed, inspected) = (page.locks[0].clone(), fixture.view(lock_of(&claim)).await);
    assert_eq!(listed.queue, inspected.queue);
    let (LockState::Held(mut listed), LockState::Held(inspected)) = (listed.state, inspected.state)
    else {
        panic!("both are held, but: {page:?}");
    };
    fixture.assert_left(listed.listed[0].expires_in, LONG);
    let (of_list, of_lock) = (&mut listed.listed[0], &inspected.listed[0]);
    fixture.assert_same_time(of_list.acquired_at, of_lock.acquired_at);
    fixture.assert_same_time(of_list.expires_at, of_lock.expires_at);
    of_list.acquired_at = of_lock.acquired_at;
    of_list.expires_at = of_lock.expires_at;
    of_list.expires_in = of_lock.expires_in;
    assert_eq!(listed, inspected);
}

pub(super) async fn a_listing_within_prefixes_has_no_other_locks_and_full_pages(fixture: &Fixture) {
    let held = ["a", "a-1", "a/1", "a/2", "ax", "b/1", "c", "c/1", "d"];
    hold(fixture, &held).await;
    let prefixes = ["a", "c/1"].map(|prefix| NamePrefix::parse(prefix).expect("a prefix"));
    let within: NamePrefixes = prefixes.into_iter().collect();
    let expected = ["a", "a/1", "a/2", "c/1"];
    for page_size in [1, 2, 3, 10] {
        let mut query = ListQuery {
            prefix: String::new(),
            within: Some(within.clone()),
            after: None,
            snapshot: None,
            page_size,
        };
        let mut names = Vec::new();
        loop {
            let page = fixture.listed(&query).await;
            names.extend(page.locks.iter().map(|lock| lock.name.to_string()));
            (query.after, query.snapshot) = (page.next_after, page.snapshot);
            let Some(after) = &query.after else {
                break;
            };
            // What a page ends with is shown to the client.
            assert_eq!(after.as_str(), names[names.len() - 1]);
            assert_eq!(page.locks.len(), page_size);
        }
        assert_eq!(names, expected, "{page_size}");
    }
}

pub(super) async fn only_held_locks_are_listed(fixture: &Fixture) {
    expired_claim(fixture).await;
    let cooling = Claim {
        min_hold: Some(LONG),
        ..claim()
    };
    fixture.granted(&cooling).await;
    fixture.freed(&cooling).await;
    let free = claim();
    fixture.granted(&free).await;
    fixture.freed(&free).await;
    let held = claim();
    fixture.granted(&held).await;
    assert_eq!(fixture.names("", 10).await, [lock_of(&held).as_str()]);
}

pub(super) async fn a_prefix_is_taken_literally(fixture: &Fixture) {
    hold(fixture, &["a", "a/b", "a/bc", "ab", "b", "a.b"]).await;
    assert_eq!(fixture.names("a/", 10).await, ["a/b", "a/bc"]);
    assert_eq!(
        fixture.names("a", 10).await,
        ["a", "a.b", "a/b", "a/bc", "ab"]
    );
    assert_eq!(fixture.names("a.b", 10).await, ["a.b"]);
    for pattern in ["*", "a*", "a?b", "[a]", "A", "a/b/"] {
        let none: [&str; 0] = [];
        assert_eq!(fixture.names(pattern, 10).await, none, "{pattern}");
    }
}

pub(super) async fn pages_of_any_size_make_the_same_list(fixture: &Fixture) {
    let names: Vec<_> = (0..25).map(|number| format!("page/{number:02}")).collect();
    for text in names.iter().rev() {
        fixture.granted(&claim_on(&name(text))).await;
    }
    for page_size in [1, 2, 5, 24, 25, 26] {
        assert_eq!(
            fixture.names("page/", page_size).await,
            names,
            "{page_size}"
        );
    }
}

pub(super) async fn the_last_page_is_marked_as_the_last(fixture: &Fixture) {
    hold(fixture, &["a", "b", "c", "x"]).await;
    let page = fixture.page("", None, 2).await;
    assert_eq!(page.next_after, Some(name("b")));
    let page = fixture.page("", page.next_after, 2).await;
    assert_eq!((page.locks.len(), page.next_after), (2, None));
    let page = fixture.page("y", None, 2).await;
    assert_eq!((page.locks.len(), page.next_after), (0, None));
}

pub(super) async fn a_page_starts_after_its_name_whether_that_is_held_or_not(fixture: &Fixture) {
    hold(fixture, &["a", "c", "p/a", "p/c"]).await;
    let names_after = async |prefix: &str, after: &str| {
        let page = fixture.page(prefix, Some(name(after)), 10).await;
        let names = page.locks.iter().map(|lock| lock.name.to_string());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names_after("", "a").await, ["c", "p/a", "p/c"]);
    assert_eq!(names_after("", "b").await, ["c", "p/a", "p/c"]);
    assert_eq!(names_after("p/", "a").await, ["p/a", "p/c"]);
    assert_eq!(names_after("p/", "p/b").await, ["p/c"]);
    assert!(names_after("p/", "q").await.is_empty());
}

pub(super) async fn no_lock_is_missed_or_doubled_while_others_come_and_go(fixture: &Fixture) {
    let staying: Vec<_> = (0..60).map(|number| format!("list/{number:03}")).collect();
    for text in &staying {
        fixture.granted(&claim_on(&name(text))).await;
    }
    let mut passing: Vec<Claim> = Vec::new();
    let mut seen = Vec::new();
    let mut page = fixture.page("list/", None, 7).await;
    for turn in 0..200 {
        seen.extend(page.locks.iter().map(|lock| lock.name.to_string()));
        if page.next_after.is_none() {
            break;
        }
        // Before, at and after the start of the next page.
        for claim in passing.drain(..) {
            fixture.freed(&claim).await;
        }
        for number in (turn % 3..60).step_by(3) {
            let claim = claim_on(&name(&format!("list/{number:03}x{turn}")));
            fixture.granted(&claim).await;
            passing.push(claim);
        }
        page = fixture.page_after(&page, "list/", 7).await;
    }
    assert_eq!(page.next_after, None, "the list has an end");
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    let stayed = seen.iter().filter(|name| staying.contains(name));
    assert_eq!(stayed.count(), staying.len(), "{seen:?}");
}

pub(super) async fn the_locks_that_are_held_are_counted(fixture: &Fixture) {
    let (alone, deep, lapsing) = (claim(), at_depth(&claim(), 2), for_short(&claim()));
    let (first, lapsing_reader) = (in_mode(&claim(), READ), for_short(&in_mode(&claim(), READ)));
    let early = Claim {
        min_hold: Some(LONG),
        ..claim()
    };
    let early_reader = Claim {
        names: claim().names,
        ..in_mode(&early, READ)
    };
    let together = reader(&first);
    for claim in [
        &alone,
        &deep,
        &lapsing,
        &first,
        &together,
        &lapsing_reader,
        &early,
        &early_reader,
    ] {
        fixture.granted(claim).await;
    }
    fixture.freed(&early).await;
    fixture.freed(&early_reader).await;
    fixture.waiting(&rival(&alone)).await;
    fixture.outlast(SHORT).await;
    fixture.store().refresh_health().await;
    fixture.store().sweep().await;
    assert_eq!(fixture.store().health().held_locks, Some(3));
}
