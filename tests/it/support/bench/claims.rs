//! Claims for laws: short to write where a law says nothing about a field, and clear where it does.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::domain::{
    Claim, HoldCount, LockName, LockNames, Metadata, Mode, Owner, Share, Token, Ttl,
};

use super::LONG;

/// A name that no other test uses.
pub(crate) fn fresh_name() -> LockName {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    name(&format!("law/{number}"))
}

/// A name.
pub(crate) fn name(text: &str) -> LockName {
    LockName::parse(text.as_bytes()).expect(text)
}

/// Several names in the order in which they are given.
pub(crate) fn names<'a>(names: impl IntoIterator<Item = &'a LockName>) -> LockNames {
    LockNames::several(names.into_iter().cloned().collect()).expect("they are different and few")
}

/// A depth.
pub(crate) fn hold_count(depth: u64) -> HoldCount {
    HoldCount::new(depth).expect("a valid depth")
}

/// A TTL.
pub(crate) fn ttl(ttl: Duration) -> Ttl {
    Ttl::from_store(ttl)
}

/// A claim on a fresh lock that lasts [`LONG`] and asks for nothing else.
pub(crate) fn claim() -> Claim {
    claim_on(&fresh_name())
}

/// The same on a certain lock.
pub(crate) fn claim_on(name: &LockName) -> Claim {
    claim_on_all(name.clone().into())
}

/// The same on certain locks.
pub(crate) fn claim_on_all(names: LockNames) -> Claim {
    Claim {
        names,
        token: Token::random(),
        mode: Mode::Exclusive,
        fair: true,
        ttl: ttl(LONG),
        hold_count: HoldCount::ONE,
        owner: Owner::default(),
        metadata: None,
        min_hold: None,
        max_hold: None,
        lock_delay: None,
        takes_over: false,
    }
}

/// The lock of a claim on one lock.
pub(crate) fn lock_of(claim: &Claim) -> &LockName {
    let [name] = &claim.names[..] else {
        panic!("several locks: {:?}", claim.names);
    };
    name
}

/// Another claim on the same locks, alone.
pub(crate) fn rival(claim: &Claim) -> Claim {
    claim_on_all(claim.names.clone())
}

/// The same claim, asking for another depth.
pub(crate) fn at_depth(claim: &Claim, depth: u64) -> Claim {
    Claim {
        hold_count: hold_count(depth),
        ..claim.clone()
    }
}

/// The same claim, asking to hold in another way.
pub(crate) fn in_mode(claim: &Claim, mode: Mode) -> Claim {
    Claim {
        mode,
        ..claim.clone()
    }
}

/// The same claim, for [`super::SHORT`].
pub(crate) fn for_short(claim: &Claim) -> Claim {
    Claim {
        ttl: ttl(super::SHORT),
        ..claim.clone()
    }
}

/// The same claim with an owner.
pub(crate) fn owned_by(claim: &Claim, text: &str) -> Claim {
    Claim {
        owner: owner(text),
        ..claim.clone()
    }
}

/// Holding together with any number of others.
pub(crate) const READ: Mode = Mode::Shared(Share::READ);

/// Holding some of a limited number of permits.
pub(crate) fn permits(permits: u64, limit: u64) -> Mode {
    Mode::Shared(Share::new(Some(limit), permits).expect("so many may be held"))
}

/// Another claim on the same locks, to read.
pub(crate) fn reader(claim: &Claim) -> Claim {
    in_mode(&rival(claim), READ)
}

/// An owner.
pub(crate) fn owner(text: &str) -> Owner {
    Owner::new(text).expect(text)
}

/// Metadata.
pub(crate) fn metadata(json: &str) -> Option<Metadata> {
    Some(Metadata::from_json_object(json).expect(json))
}
