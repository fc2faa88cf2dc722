//! The valid keys, and the principals that have them. The configuration provides both, and replaces them while requests
//! are served.

use std::collections::HashMap;
use std::fmt;
use std::future;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_util::sync::CancellationToken;

use super::quota::PrincipalQuota;
use super::tokens::{TokenLife, TokenVerifier, VerifiedToken};
use crate::config::{
    API_KEY_CHARS_MAX, API_KEY_CHARS_MIN, CertificateName, KeyHash, PrincipalEntry,
};
use crate::domain::{Owner, Rights, Verb, Verbs};
use crate::http::audit::RefusalSample;

/// What a key of the configuration itself allows. Each role includes the ones before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Read locks, events and metrics.
    Reader,
    /// Acquire, renew and release.
    Client,
    /// Take locks away from their holders.
    Admin,
}

impl Role {
    /// The role in the log.
    pub(in crate::http) fn label(self) -> &'static str {
        match self {
            Self::Reader => "reader",
            Self::Client => "client",
            Self::Admin => "admin",
        }
    }

    /// The name of everybody with a key of this role: the setting that the key is from.
    fn name(self) -> &'static str {
        match self {
            Self::Reader => "read_key",
            Self::Client => "api_key",
            Self::Admin => "admin_key",
        }
    }

    fn rights(self) -> Rights {
        let read = Verbs::from_iter([Verb::Read, Verb::List, Verb::Metrics]);
        Rights::everywhere(match self {
            Self::Reader => read,
            Self::Client => read.and(Verb::Acquire.into()),
            Self::Admin => Verbs::ALL,
        })
    }
}

/// The credential by which a principal is known.
#[derive(Clone, PartialEq, Eq, Hash)]
enum Credential {
    Key(KeyHash),
    Certificate(CertificateName),
    /// The subject of tokens.
    Subject(Arc<str>),
}

/// The authenticated sender of a request, and how long its token is valid, if it sent one. Cloning is cheap.
#[derive(Clone)]
pub(in crate::http) struct Principal(Arc<PrincipalFacts>, Option<TokenLife>);

struct PrincipalFacts {
    name: String,
    /// Of a principal that is not from the keys file.
    role: Option<Role>,
    rights: Rights,
    /// The owner of all its claims, if it may not choose.
    owner: Option<Owner>,
    credential: Credential,
    /// Shared by all keys and certificates of the principal, before and after a change.
    refusals: Arc<RefusalSample>,
    /// Shared in the same way, for as long as its quota is the same.
    quota: Arc<PrincipalQuota>,
    /// Cancelled once these facts are no longer true, or the credential is no longer valid.
    replaced: CancellationToken,
}

impl Principal {
    fn of_role(role: Role, credential: Credential, refusals: Arc<RefusalSample>) -> Self {
        let facts = Arc::new(PrincipalFacts {
            name: role.name().to_owned(),
            role: Some(role),
            rights: role.rights(),
            owner: None,
            credential,
            refusals,
            quota: Arc::default(),
            replaced: CancellationToken::new(),
        });
        Self(facts, None)
    }

    fn of_entry(
        entry: &PrincipalEntry,
        credential: Credential,
        refusals: Arc<RefusalSample>,
        quota: Arc<PrincipalQuota>,
    ) -> Self {
        let facts = Arc::new(PrincipalFacts {
            name: entry.name.clone(),
            role: None,
            rights: entry.rights.clone(),
            owner: entry.binds_owner.then(|| Owner::from_store(&entry.name)),
            credential,
            refusals,
            quota,
            replaced: CancellationToken::new(),
        });
        Self(facts, None)
    }

    pub(in crate::http) fn name(&self) -> &str {
        &self.0.name
    }

    pub(in crate::http) fn role(&self) -> Option<Role> {
        self.0.role
    }

    pub(in crate::http) fn rights(&self) -> &Rights {
        &self.0.rights
    }

    pub(in crate::http) fn owner(&self) -> Option<&Owner> {
        self.0.owner.as_ref()
    }

    /// Its refusals so far, of which not all are in the audit stream.
    pub(in crate::http) fn refusals(&self) -> &RefusalSample {
        &self.0.refusals
    }

    /// What it may use, and what it uses.
    pub(super) fn quota(&self) -> &PrincipalQuota {
        &self.0.quota
    }

    /// Whether its key, its certificate or its token is no longer valid, or the principal has other rights or another
    /// quota.
    pub(in crate::http) fn has_changed(&self) -> bool {
        self.0.replaced.is_cancelled() || self.has_expired()
    }

    /// Whether the token by which it is known is no longer valid.
    pub(in crate::http) fn has_expired(&self) -> bool {
        self.1.as_ref().is_some_and(TokenLife::is_over)
    }

    /// Whether nobody can tell if that token is still valid.
    pub(in crate::http) fn is_unknown(&self) -> bool {
        self.1.as_ref().is_some_and(TokenLife::is_unknown)
    }

    /// Completes when [`has_changed`](Self::has_changed) is true.
    pub(in crate::http) fn changed(&self) -> impl Future<Output = ()> + Send + use<> {
        let (replaced, life) = (self.0.replaced.clone(), self.1.clone());
        async move {
            let expired = async {
                match life {
                    Some(life) => life.over().await,
                    None => future::pending().await,
                }
            };
            tokio::select! {
                () = replaced.cancelled() => {}
                () = expired => {}
            }
        }
    }

    fn is_equal_to(&self, other: &Self) -> bool {
        let has_same_quota = self.0.quota.has_same_quota_as(&other.0.quota);
        self.is_same_sender_as(other) && self.rights() == other.rights() && has_same_quota
    }

    /// Whether both are the same but for their rights and their quota.
    fn is_same_sender_as(&self, other: &Self) -> bool {
        let facts = |it: &Self| (it.0.role, it.0.owner.is_some());
        self.name() == other.name() && facts(self) == facts(other)
    }
}

/// The valid keys, and what verifies tokens. Clones share them.
#[derive(Clone)]
pub struct KeyRing(Arc<SharedKeys>, Option<TokenVerifier>);

#[derive(Default)]
struct SharedKeys {
    principals: RwLock<HashMap<Credential, Principal>>,
    /// Whether the files of the keys have changed to something that cannot be used.
    is_outdated: AtomicBool,
}

impl KeyRing {
    /// Creates a ring with these keys.
    #[must_use]
    pub fn new<K: AsRef<[u8]>>(keys: impl IntoIterator<Item = (Role, K)>) -> Self {
        let ring = Self(Arc::default(), None);
        ring.replace(keys);
        ring
    }

    /// The same ring, which accepts tokens too.
    #[must_use]
    pub fn with_tokens(self, tokens: Option<TokenVerifier>) -> Self {
        Self(self.0, tokens)
    }

    /// Verifies tokens, if they are accepted.
    pub(super) fn tokens(&self) -> Option<&TokenVerifier> {
        self.1.as_ref()
    }

    /// Replaces all keys by these.
    pub fn replace<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = (Role, K)>) {
        self.replace_all(keys, &[]);
    }

    /// Replaces all keys by these, and by those of the principals of a keys file.
    ///
    /// A principal that stays as it is keeps the streams that it opened with a key that stays.
    pub fn replace_all<K: AsRef<[u8]>>(
        &self,
        keys: impl IntoIterator<Item = (Role, K)>,
        principals: &[PrincipalEntry],
    ) {
        let mut refusals = self.refusals();
        let mut refusals_of = |name: &str| Arc::clone(refusals.entry(name.to_owned()).or_default());
        let mut new = Vec::new();
        for (role, key) in keys {
            let key = Credential::Key(KeyHash::of(key.as_ref()));
            let refusals = refusals_of(role.name());
            new.push((key.clone(), Principal::of_role(role, key, refusals)));
        }
        let quotas = self.quotas();
        for entry in principals {
            let refusals = refusals_of(&entry.name);
            let known = quotas.get(&entry.name);
            let quota = PrincipalQuota::of(&entry.name, &entry.quota, known);
            let keys = entry.keys.iter().copied().map(Credential::Key);
            let names = entry.certificates.iter().cloned();
            let subjects = entry.subjects.iter();
            let subjects = subjects.map(|subject| Credential::Subject(subject.as_str().into()));
            new.extend(
                keys.chain(names.map(Credential::Certificate))
                    .chain(subjects)
                    .map(|credential| {
                        let (refusals, quota) = (Arc::clone(&refusals), Arc::clone(&quota));
                        let principal =
                            Principal::of_entry(entry, credential.clone(), refusals, quota);
                        (credential, principal)
                    }),
            );
        }
        let mut principals = self.0.principals.write();
        let principals = principals
            .as_mut()
            .unwrap_or_else(|poisoned| poisoned.get_mut());
        let old = mem::take(&mut **principals);
        for (credential, principal) in new {
            let same = old
                .get(&credential)
                .filter(|old| old.is_equal_to(&principal));
            principals.insert(credential, same.cloned().unwrap_or(principal));
        }
        for (credential, before) in &old {
            let now = principals.get(credential);
            if now.is_none_or(|now| !Arc::ptr_eq(&now.0, &before.0)) {
                before.0.replaced.cancel();
            }
        }
    }

    /// The refusals so far of each principal, by its name.
    fn refusals(&self) -> HashMap<String, Arc<RefusalSample>> {
        let principals = self.0.principals.read();
        let principals = principals.unwrap_or_else(PoisonError::into_inner);
        let refusals = principals.values().map(|principal| {
            let refusals = Arc::clone(&principal.0.refusals);
            (principal.name().to_owned(), refusals)
        });
        refusals.collect()
    }

    /// The quota of each principal, with what it uses, by its name.
    fn quotas(&self) -> HashMap<String, Arc<PrincipalQuota>> {
        let principals = self.0.principals.read();
        let principals = principals.unwrap_or_else(PoisonError::into_inner);
        let quotas = principals.values().map(|principal| {
            let quota = Arc::clone(&principal.0.quota);
            (principal.name().to_owned(), quota)
        });
        quotas.collect()
    }

    /// The principal with this key, if it is valid. It is looked up by its hash, which a client cannot choose: so the time
    /// of the look-up reveals nothing about any key, not even its length, and does not grow with their number.
    pub(super) fn principal_of(&self, presented: &[u8]) -> Option<Principal> {
        // No key is this long, and hashing longer input would let any client cause work.
        if presented.len() > API_KEY_CHARS_MAX {
            return None;
        }
        let key = Credential::Key(KeyHash::of(presented));
        let principals = self.0.principals.read();
        let principals = principals.unwrap_or_else(PoisonError::into_inner);
        let principal = principals.get(&key)?;
        // The keys file has only hashes, so only here the length of a key is known; that of the others was checked
        // before.
        let may_be_guessed = presented.len() < API_KEY_CHARS_MIN && principal.role().is_none();
        (!may_be_guessed).then(|| principal.clone())
    }

    /// The principal with a name of this certificate, if all its names that are known are of one principal.
    pub(super) fn principal_of_certificate(&self, names: &[CertificateName]) -> Option<Principal> {
        let principals = self.0.principals.read();
        let principals = principals.unwrap_or_else(PoisonError::into_inner);
        let named = |name: &CertificateName| principals.get(&Credential::Certificate(name.clone()));
        let mut known = names.iter().filter_map(named);
        let first = known.next()?;
        let is_of_one = known.all(|other| other.name() == first.name());
        is_of_one.then(|| first.clone())
    }

    /// The principal with the subject of this token.
    pub(super) fn principal_of_token(&self, token: VerifiedToken) -> Option<Principal> {
        let principals = self.0.principals.read();
        let principals = principals.unwrap_or_else(PoisonError::into_inner);
        let principal = principals.get(&Credential::Subject(token.subject))?;
        Some(Principal(Arc::clone(&principal.0), Some(token.life)))
    }

    /// This principal with its rights of now, if its key or its certificate is still its own.
    pub(super) fn current(&self, principal: &Principal) -> Option<Principal> {
        let principals = self.0.principals.read();
        let principals = principals.unwrap_or_else(PoisonError::into_inner);
        let now = principals.get(&principal.0.credential);
        let now = now.filter(|now| now.is_same_sender_as(principal))?;
        Some(Principal(Arc::clone(&now.0), principal.1.clone()))
    }

    /// Whether any key has this role.
    pub(super) fn has(&self, role: Role) -> bool {
        let principals = self.0.principals.read();
        let principals = principals.unwrap_or_else(PoisonError::into_inner);
        principals.values().any(|it| it.role() == Some(role))
    }

    /// Sets whether the files of the keys have changed to something that cannot be used.
    pub fn set_outdated(&self, is_outdated: bool) {
        self.0.is_outdated.store(is_outdated, Ordering::Relaxed);
    }

    /// Whether the files of the keys have changed to something that cannot be used.
    #[must_use]
    pub fn is_outdated(&self) -> bool {
        self.0.is_outdated.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}
