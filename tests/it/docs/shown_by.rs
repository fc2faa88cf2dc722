//! The tests that the page of guarantees names as showing what it promises exist.

use std::process::Command;

const PAGE: &str = include_str!("../../../docs/explanation/guarantees.md");

/// What it names in code, as filters of tests.
fn filters() -> impl Iterator<Item = &'static str> {
    let code = PAGE.split('`').skip(1).step_by(2);
    let words = code.flat_map(str::split_whitespace);
    words.filter(|word| word.contains("::"))
}

/// Whether the filter is a test or all tests of a module. The beginning of a name would go on to match if the test were
/// replaced by one of something else.
fn names(filter: &str, test: &str) -> bool {
    format!("::{test}::").contains(&format!("::{}::", filter.trim_end_matches("::")))
}

#[test]
fn every_test_that_the_page_of_guarantees_names_exists() {
    let this = std::env::current_exe().unwrap();
    let listed = Command::new(this).arg("--list").output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let tests = listed
        .lines()
        .filter_map(|line| line.strip_suffix(": test"));
    let tests: Vec<_> = tests.collect();
    let filters: Vec<_> = filters().collect();
    assert!(filters.len() > 20, "{filters:?}");
    for filter in filters {
        let is_known = tests.iter().any(|test| names(filter, test));
        assert!(is_known, "no test and no module is named {filter}");
    }
}

#[test]
fn the_beginning_of_a_name_names_no_test() {
    let test = "faults::quorum::minorities::one_is_paused";
    for filter in [
        test,
        "quorum::minorities",
        "quorum::",
        "minorities::one_is_paused",
    ] {
        assert!(names(filter, test), "{filter}");
    }
    for filter in ["quorum::minor", "minorities::one_is", "uorum::minorities"] {
        assert!(!names(filter, test), "{filter}");
    }
}
