//! The tests that the page of guarantees names as showing what it promises exist.

use std::process::Command;

const PAGE: &str = include_str!("../../../docs/explanation/guarantees.md");

/// What the last cells of its tables name, as a filter of tests.
fn filters() -> Vec<&'static str> {
    let rows = PAGE.lines().filter(|line| line.starts_with('|'));
    let cells = rows.filter_map(|row| row.trim_end_matches(['|', ' ']).rsplit('|').next());
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .filter(|code| code.contains("::") && !code.contains(' '))
        .collect()
}

#[test]
fn every_test_that_the_page_of_guarantees_names_exists() {
    let this = std::env::current_exe().unwrap();
    let listed = Command::new(this).arg("--list").output().unwrap();
    let tests = String::from_utf8(listed.stdout).unwrap();
    let filters = filters();
    assert!(filters.len() > 20, "{filters:?}");
    for filter in filters {
        let is_known = tests.lines().any(|test| test.contains(filter));
        assert!(is_known, "no test is named {filter}");
    }
}
