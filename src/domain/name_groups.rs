//! Groups of lock names, by patterns that an operator has chosen. Metrics have the group of a lock instead of its name, since
//! clients choose names, and there may be millions of them.

use super::LockName;

/// One segment of a name, or several at its end.
const WILDCARD: &str = "*";

/// The patterns of names, in order. A name is in the group of the first that it matches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameGroups(Vec<String>);

impl NameGroups {
    /// The most groups, besides that of all other names.
    pub const MAX: usize = 50;

    /// Parses patterns that are separated by commas.
    ///
    /// # Errors
    /// There are too many, or one of them matches no name, only one name, or only names that an earlier one matches.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut patterns: Vec<String> = Vec::new();
        for pattern in text.split(',').map(str::trim).filter(|it| !it.is_empty()) {
            // A name of one letter stands for what a wildcard matches.
            let example: Vec<_> = pattern
                .split('/')
                .map(|segment| if segment == WILDCARD { "x" } else { segment })
                .collect();
            if pattern == OTHER || LockName::parse(example.join("/").as_bytes()).is_err() {
                return Err(format!(
                    "\"{pattern}\" matches no name; write one like jobs/*, or tenant/*/billing"
                ));
            }
            if !pattern.split('/').any(|segment| segment == WILDCARD) {
                return Err(format!(
                    "\"{pattern}\" has no *, so the name of a lock would be a label; write one like {pattern}/*"
                ));
            }
            // Here a * of the later pattern is a plain segment, which only a * of the earlier one matches.
            if let Some(earlier) = patterns.iter().find(|earlier| matches(earlier, pattern)) {
                return Err(match earlier == pattern {
                    true => format!("has {pattern} twice"),
                    false => format!(
                        "\"{pattern}\" would never count, because \"{earlier}\" before it matches the same names; put \
                         \"{pattern}\" first"
                    ),
                });
            }
            patterns.push(pattern.to_owned());
        }
        match patterns.len() {
            0..=Self::MAX => Ok(Self(patterns)),
            count => Err(format!("has {count} groups; there may be {}", Self::MAX)),
        }
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The label of each group; the last one is of all other names.
    pub fn labels(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str).chain([OTHER])
    }

    /// The number of the group of a name, in the order of the labels.
    #[must_use]
    pub fn of(&self, name: &LockName) -> usize {
        let matching = self.0.iter().position(|it| matches(it, name.as_str()));
        matching.unwrap_or(self.0.len())
    }
}

/// The label of names without a group.
const OTHER: &str = "other";

fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern.split('/').peekable(), name.split('/'));
    while let Some(segment) = pattern.next() {
        let Some(found) = name.next() else {
            return false;
        };
        if segment == WILDCARD && pattern.peek().is_none() {
            return true;
        }
        if segment != WILDCARD && segment != found {
            return false;
        }
    }
    name.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group_of<'a>(groups: &'a NameGroups, name: &str) -> &'a str {
        let name = LockName::parse(name.as_bytes()).expect("a name");
        groups.labels().nth(groups.of(&name)).expect("a label")
    }

    #[test]
    fn a_name_is_in_the_first_group_whose_pattern_it_matches() {
        let groups = NameGroups::parse("jobs/nightly/*, jobs/*,tenant/*/billing");
        let groups = groups.expect("valid");
        for (name, group) in [
            ("jobs/nightly/a", "jobs/nightly/*"),
            ("jobs/nightly", "jobs/*"),
            ("jobs/a", "jobs/*"),
            ("jobs/a/b", "jobs/*"),
            ("jobs", "other"),
            ("jobsx/a", "other"),
            ("tenant/7/billing", "tenant/*/billing"),
            ("tenant/7/8/billing", "other"),
            ("tenant/7/billing/x", "other"),
        ] {
            assert_eq!(group_of(&groups, name), group, "{name}");
        }
    }

    #[test]
    fn what_matches_no_name_is_refused() {
        for text in [
            "/jobs",
            "jobs//x",
            "jobs/ä",
            "a/../b",
            "other",
            "a/*,b/*,a/*",
        ] {
            assert!(NameGroups::parse(text).is_err(), "{text}");
        }
        let most: Vec<_> = (0..NameGroups::MAX).map(|it| format!("g{it}/*")).collect();
        assert!(NameGroups::parse(&most.join(",")).is_ok_and(|groups| !groups.is_empty()));
        let problem =
            NameGroups::parse(&format!("{},more/*", most.join(","))).expect_err("too many");
        assert!(problem.contains("51 groups"), "{problem}");
        assert!(NameGroups::parse(" , ").is_ok_and(|groups| groups.is_empty()));
    }

    #[test]
    fn the_name_of_a_lock_is_no_group() {
        for text in ["jobs", "jobs/nightly", "jobs/*,jobs/nightly"] {
            let problem = NameGroups::parse(text).expect_err(text);
            assert!(problem.contains("has no *"), "{problem}");
        }
    }

    #[test]
    fn a_group_of_which_an_earlier_one_takes_every_name_is_refused() {
        for (earlier, later) in [
            ("*", "jobs/*"),
            ("jobs/*", "jobs/nightly/*"),
            ("jobs/*", "jobs/*/billing"),
            ("*/*", "jobs/*"),
            ("*/a", "*/a"),
            ("tenant/*/b/*", "tenant/7/b/*"),
            ("*/*/c", "a/*/c"),
        ] {
            let problem = NameGroups::parse(&format!("x/*,{earlier},{later}"));
            let problem = problem.expect_err(later);
            assert!(
                problem.contains(earlier) && problem.contains(later),
                "{problem}"
            );
            let reversed = NameGroups::parse(&format!("{later},{earlier}"));
            assert_eq!(reversed.is_ok(), earlier != later, "{later} first");
        }
        // The later one has names of its own.
        for text in ["*/*,*", "*/b,a/*", "a/*/c,a/*", "a/b/*,a/*/c", "a/*,*/a"] {
            assert!(NameGroups::parse(text).is_ok(), "{text}");
        }
    }
}
