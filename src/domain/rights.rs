//! Who may do what with which locks: verbs, prefixes of names and the rules made of both. No rule forbids anything, and
//! a request that no rule permits is refused.

use std::fmt;
use std::sync::Arc;

use super::name::{InvalidName, LockName};

/// What a rule permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Acquire, renew and release.
    Acquire,
    /// Read one lock, once or as a stream.
    Read,
    /// List locks and receive their events.
    List,
    /// Take a lock away from its holders.
    Evict,
    /// Read the metrics, which are about all locks.
    Metrics,
}

impl Verb {
    /// Every verb, in the order of the variants.
    pub const ALL: [Self; 5] = [
        Self::Acquire,
        Self::Read,
        Self::List,
        Self::Evict,
        Self::Metrics,
    ];

    /// The word for it in rules, in refusals and in the audit stream.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Acquire => "acquire",
            Self::Read => "read",
            Self::List => "list",
            Self::Evict => "evict",
            Self::Metrics => "metrics",
        }
    }
}

/// A set of verbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verbs(u8);

impl Verbs {
    /// All verbs.
    pub const ALL: Self = Self((1 << Verb::ALL.len()) - 1);

    /// Whether the verb is one of them.
    #[must_use]
    pub fn contains(self, verb: Verb) -> bool {
        self.0 >> verb as u8 & 1 == 1
    }

    /// These and those.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl From<Verb> for Verbs {
    fn from(verb: Verb) -> Self {
        Self(1 << verb as u8)
    }
}

impl FromIterator<Verb> for Verbs {
    fn from_iter<I: IntoIterator<Item = Verb>>(verbs: I) -> Self {
        let verbs = verbs.into_iter().map(Self::from);
        verbs.fold(Self::default(), Self::and)
    }
}

impl fmt::Display for Verbs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verbs = Verb::ALL.into_iter().filter(|verb| self.contains(*verb));
        let words: Vec<_> = verbs.map(Verb::as_str).collect();
        f.write_str(&words.join(","))
    }
}

/// A prefix of whole segments: `orders` covers the locks `orders` and `orders/42`, but not `ordersx`. The empty one
/// covers every lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePrefix(Option<LockName>);

impl NamePrefix {
    /// The prefix of every name.
    pub const EVERY: Self = Self(None);

    /// Parses a prefix, which is empty or a name.
    ///
    /// # Errors
    /// States which rule of names the prefix breaks.
    pub fn parse(text: &str) -> Result<Self, InvalidName> {
        match text {
            "" => Ok(Self::EVERY),
            name => LockName::parse(name.as_bytes()).map(Some).map(Self),
        }
    }

    /// Whether it covers every lock.
    #[must_use]
    pub fn is_of_every_lock(&self) -> bool {
        self.0.is_none()
    }

    /// Whether it covers this lock.
    #[must_use]
    pub fn covers(&self, name: &LockName) -> bool {
        let Some(below) = self.after_this(name.as_str()) else {
            return false;
        };
        below.is_empty() || self.is_of_every_lock() || below.starts_with('/')
    }

    /// Whether it covers a name that begins with this text, which may end within a segment.
    fn covers_some(&self, beginning: &str) -> bool {
        self.as_str().starts_with(beginning)
            || self.is_of_every_lock()
            || self
                .after_this(beginning)
                .is_some_and(|below| below.starts_with('/'))
    }

    fn after_this<'a>(&self, text: &'a str) -> Option<&'a str> {
        text.strip_prefix(self.as_str())
    }

    /// The prefix as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_ref().map_or("", LockName::as_str)
    }
}

/// The locks that any of these prefixes covers. Cloning is cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamePrefixes(Arc<[NamePrefix]>);

impl NamePrefixes {
    /// Whether one of them covers this lock.
    #[must_use]
    pub fn cover(&self, name: &LockName) -> bool {
        self.0.iter().any(|prefix| prefix.covers(name))
    }

    /// Whether one of them covers a name that begins with this text, which may end within a segment.
    #[must_use]
    pub fn cover_some(&self, beginning: &str) -> bool {
        self.0.iter().any(|prefix| prefix.covers_some(beginning))
    }

    fn are_of_every_lock(&self) -> bool {
        self.0.iter().any(NamePrefix::is_of_every_lock)
    }
}

impl FromIterator<NamePrefix> for NamePrefixes {
    fn from_iter<I: IntoIterator<Item = NamePrefix>>(prefixes: I) -> Self {
        Self(prefixes.into_iter().collect())
    }
}

/// Permits some verbs on the locks of a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The locks.
    pub prefix: NamePrefix,
    /// What is permitted.
    pub verbs: Verbs,
}

/// All that somebody may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    rules: Vec<Rule>,
    listed: NamePrefixes,
}

impl Rights {
    /// The rights that these rules give.
    #[must_use]
    pub fn new(rules: Vec<Rule>) -> Self {
        let of_lists = rules.iter().filter(|rule| rule.verbs.contains(Verb::List));
        Self {
            listed: of_lists.map(|rule| rule.prefix.clone()).collect(),
            rules,
        }
    }

    /// These verbs, on every lock.
    #[must_use]
    pub fn everywhere(verbs: Verbs) -> Self {
        let prefix = NamePrefix::EVERY;
        Self::new(vec![Rule { prefix, verbs }])
    }

    /// The rules, in the order in which they were given.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Whether a rule permits the verb on this lock.
    #[must_use]
    pub fn permit(&self, verb: Verb, name: &LockName) -> bool {
        let mut of_verb = self.rules.iter().filter(|rule| rule.verbs.contains(verb));
        of_verb.any(|rule| rule.prefix.covers(name))
    }

    /// Whether a rule permits the verb on any lock at all.
    #[must_use]
    pub fn permit_somewhere(&self, verb: Verb) -> bool {
        self.rules.iter().any(|rule| rule.verbs.contains(verb))
    }

    /// Whether a rule permits the verb on every lock.
    #[must_use]
    pub fn permit_everywhere(&self, verb: Verb) -> bool {
        let mut of_verb = self.rules.iter().filter(|rule| rule.verbs.contains(verb));
        of_verb.any(|rule| rule.prefix.is_of_every_lock())
    }

    /// The locks that may be listed, which may be none.
    #[must_use]
    pub fn listed(&self) -> &NamePrefixes {
        &self.listed
    }

    /// Whether every lock may be listed, so that no listing needs to leave any out.
    #[must_use]
    pub fn list_every_lock(&self) -> bool {
        self.listed.are_of_every_lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text.as_bytes()).expect(text)
    }

    fn prefix(text: &str) -> NamePrefix {
        NamePrefix::parse(text).expect(text)
    }

    #[test]
    fn a_prefix_covers_whole_segments() {
        for (of, covered, other) in [
            ("orders", "orders", "ordersx"),
            ("orders", "orders/42", "orders-7/42"),
            ("orders/42", "orders/42/a", "orders"),
            ("orders/42", "orders/42", "orders/421"),
        ] {
            assert!(prefix(of).covers(&name(covered)), "{of} {covered}");
            assert!(!prefix(of).covers(&name(other)), "{of} {other}");
        }
        assert!(prefix("").covers(&name("anything/at/all")));
    }

    #[test]
    fn a_beginning_is_of_a_prefix_if_some_name_has_both() {
        for beginning in ["", "ord", "orders", "orders/", "orders/4"] {
            assert!(prefix("orders").covers_some(beginning), "{beginning}");
        }
        for beginning in ["ordersx", "orders-", "p", "ordersx/"] {
            assert!(!prefix("orders").covers_some(beginning), "{beginning}");
        }
        assert!(prefix("").covers_some("p"));
    }

    #[test]
    fn what_no_rule_permits_is_refused() {
        let rules = [("orders", Verb::Acquire), ("pay", Verb::List)];
        let rules = rules.map(|(of, verb)| Rule {
            prefix: prefix(of),
            verbs: verb.into(),
        });
        let rights = Rights::new(rules.into());
        assert!(rights.permit(Verb::Acquire, &name("orders/1")));
        assert!(!rights.permit(Verb::Acquire, &name("pay/1")));
        assert!(!rights.permit(Verb::Read, &name("orders/1")));
        assert!(rights.permit_somewhere(Verb::List) && !rights.permit_somewhere(Verb::Evict));
        assert!(rights.listed().cover(&name("pay/1")) && !rights.listed().cover(&name("orders/1")));
        assert!(!rights.list_every_lock());
        let twice = Verbs::from(Verb::Read).and(Verb::Read.into());
        assert!(twice.contains(Verb::Read));
        let all = Rights::everywhere(Verbs::ALL);
        assert!(
            Verb::ALL
                .into_iter()
                .all(|verb| all.permit(verb, &name("a")))
        );
        assert!(all.list_every_lock());
    }
}
