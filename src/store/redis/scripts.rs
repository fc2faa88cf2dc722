//! The scripts, one for each verb, and the reading of their answers. How they reach Redis is in `pool`.
//!
//! Every answer begins with the eight bytes that the request sent, so that an answer can never be taken for that of
//! another request; then comes a code, whose names are here and in the header of the script.

use std::sync::LazyLock;
use std::time::Duration;

use redis::Value;

use crate::domain::{
    Acquired, Claim, Fence, HoldCount, Holder, Lease, LockState, Metadata, NotHolder, Owner,
    Released, Renewal, Renewed, Timestamp, Ttl,
};

/// A script and the SHA-1 under which Redis caches it.
pub(super) struct Script {
    pub(super) source: &'static str,
    pub(super) sha: String,
}

macro_rules! script {
    ($name:ident, $file:literal) => {
        pub(super) static $name: LazyLock<Script> = LazyLock::new(|| {
            let source = concat!(include_str!("lua/lease.lua"), include_str!($file));
            Script {
                source,
                sha: redis::Script::new(source).get_hash().to_owned(),
            }
        });
    };
}

script!(ACQUIRE, "lua/acquire.lua");
script!(RENEW, "lua/renew.lua");
script!(RELEASE, "lua/release.lua");
script!(WITHDRAW, "lua/withdraw.lua");
script!(EVICT, "lua/evict.lua");
script!(INSPECT, "lua/inspect.lua");
script!(SCAN, "lua/scan.lua");
script!(HORIZON, "lua/horizon.lua");

/// An answer does not have the form that its script gives it.
#[derive(Debug)]
pub(super) struct Malformed;

/// What came of an acquire as far as the script knows.
pub(super) enum AcquireReply {
    Told(Acquired),
    /// Grants wait; for how long is known to the topology.
    Waiting,
    /// The fencing counter is behind what this process has seen: the data were lost.
    Forgotten,
    /// No larger fencing token can be given.
    UsedUp,
    /// This attempt was withdrawn before it arrived.
    Withdrawn,
}

/// An answer after its request id, read from the front.
pub(super) struct Reply(std::vec::IntoIter<Value>);

impl Reply {
    /// Takes an answer if it belongs to `request`.
    pub(super) fn to(request: u64, value: Value) -> Option<Self> {
        let Value::Array(items) = value else {
            return None;
        };
        let mut items = items.into_iter();
        match items.next() {
            Some(Value::BulkString(bytes)) if bytes == request.to_be_bytes() => Some(Self(items)),
            _ => None,
        }
    }

    pub(super) fn acquired(mut self, claim: &Claim) -> Result<AcquireReply, Malformed> {
        Ok(AcquireReply::Told(match self.number()? {
            1 => self.granted(claim)?,
            2 => Acquired::Reentered(self.lease()?),
            3 => Acquired::Replayed(self.lease()?),
            4 => Acquired::Held(vec![self.lease()?.holder]),
            5 => Acquired::Cooling {
                free_in: self.millis()?,
            },
            6 => Acquired::Ended(self.mark()?),
            7 => return Ok(AcquireReply::Waiting),
            8 => return Ok(AcquireReply::Forgotten),
            9 => return Ok(AcquireReply::UsedUp),
            10 => return Ok(AcquireReply::Withdrawn),
            _ => return Err(Malformed),
        }))
    }

    pub(super) fn renewed(mut self) -> Result<Renewed, Malformed> {
        match self.number()? {
            1 => {
                let slack = self.millis()?;
                Ok(Renewed::Extended(Renewal {
                    lease: self.lease()?,
                    slack,
                }))
            }
            0 => Ok(Renewed::NotHolder(self.mark()?)),
            _ => Err(Malformed),
        }
    }

    pub(super) fn released(mut self) -> Result<Released, Malformed> {
        match self.number()? {
            1 => Ok(Released::Freed {
                held_for: self.millis()?,
            }),
            2 => Ok(Released::SteppedBack(self.lease()?)),
            0 => Ok(Released::by_other(self.mark()?)),
            _ => Err(Malformed),
        }
    }

    pub(super) fn evicted(mut self) -> Result<Vec<Holder>, Malformed> {
        match self.number()? {
            1 => Ok(vec![self.lease()?.holder]),
            0 => Ok(Vec::new()),
            _ => Err(Malformed),
        }
    }

    pub(super) fn state(mut self) -> Result<LockState, Malformed> {
        match self.number()? {
            0 => Ok(LockState::Free),
            4 => Ok(LockState::Held(vec![self.lease()?.holder])),
            5 => Ok(LockState::Cooling {
                free_in: self.millis()?,
            }),
            _ => Err(Malformed),
        }
    }

    /// The next cursor and the keys found.
    pub(super) fn scanned(mut self) -> Result<(u64, Vec<Vec<u8>>), Malformed> {
        let cursor = self.number()?;
        let keys = std::iter::from_fn(|| self.0.next().map(bytes_of)).collect::<Result<_, _>>()?;
        Ok((cursor, keys))
    }

    fn granted(&mut self, claim: &Claim) -> Result<Acquired, Malformed> {
        let now_ms = self.number()?;
        let fence = Fence::new(self.number()?).ok_or(Malformed)?;
        let (acquired_ms, until_ms) = (self.number()?, self.number()?);
        let held_before_ms = self.text()?;
        let after_expiry = match held_before_ms.as_str() {
            "" => None,
            text => Some(Duration::from_millis(text.parse().map_err(|_| Malformed)?)),
        };
        let holder = Holder {
            owner: claim.owner.clone(),
            metadata: claim.metadata.clone(),
            fence,
            hold_count: claim.hold_count,
            acquired_at: Timestamp::from_unix_ms(acquired_ms),
            expires_at: Timestamp::from_unix_ms(until_ms),
            expires_in: Duration::from_millis(until_ms.saturating_sub(now_ms)),
        };
        Ok(Acquired::Granted {
            lease: Lease {
                holder,
                ttl: claim.ttl,
            },
            after_expiry,
        })
    }

    /// The fields that `tell_lease` appends.
    fn lease(&mut self) -> Result<Lease, Malformed> {
        let now_ms = self.number()?;
        let fence = Fence::new(self.number()?).ok_or(Malformed)?;
        let (acquired_ms, until_ms) = (self.number()?, self.number()?);
        let ttl = Ttl::from_store(self.millis()?);
        let hold_count = match self.text()?.as_str() {
            "" => HoldCount::ONE,
            text => HoldCount::new(text.parse().map_err(|_| Malformed)?).map_err(|_| Malformed)?,
        };
        let owner = Owner::new(&self.text()?).map_err(|_| Malformed)?;
        let metadata = match self.text()?.as_str() {
            "" => None,
            text => Some(Metadata::from_json_object(text).map_err(|_| Malformed)?),
        };
        let holder = Holder {
            owner,
            metadata,
            fence,
            hold_count,
            acquired_at: Timestamp::from_unix_ms(acquired_ms),
            expires_at: Timestamp::from_unix_ms(until_ms),
            // When the clock of Redis was set back, the key lives longer; nobody is told to rely on that.
            expires_in: Duration::from_millis(until_ms.saturating_sub(now_ms)).min(ttl.get()),
        };
        Ok(Lease { holder, ttl })
    }

    fn mark(&mut self) -> Result<NotHolder, Malformed> {
        let mark = self.text()?;
        match mark.as_bytes().first() {
            Some(b'e') => Ok(NotHolder::Expired),
            Some(b'l') => Ok(NotHolder::Lost),
            Some(b'r') => Ok(NotHolder::Released),
            Some(b'u') => Ok(NotHolder::Unknown),
            Some(b'v') => Ok(NotHolder::Evicted {
                reason: mark[1..].to_owned(),
            }),
            _ => Err(Malformed),
        }
    }

    pub(super) fn millis(&mut self) -> Result<Duration, Malformed> {
        self.number().map(Duration::from_millis)
    }

    /// A whole number, which Lua sends as an integer and a hash field as text.
    pub(super) fn number(&mut self) -> Result<u64, Malformed> {
        match self.0.next() {
            Some(Value::Int(number)) => u64::try_from(number).map_err(|_| Malformed),
            Some(Value::BulkString(bytes)) => std::str::from_utf8(&bytes)
                .ok()
                .and_then(|text| text.parse().ok())
                .ok_or(Malformed),
            _ => Err(Malformed),
        }
    }

    fn text(&mut self) -> Result<String, Malformed> {
        match self.0.next() {
            // A number where text is expected comes from a script that computed it.
            Some(Value::Int(number)) => Ok(number.to_string()),
            Some(value) => String::from_utf8(bytes_of(value)?).map_err(|_| Malformed),
            None => Err(Malformed),
        }
    }
}

fn bytes_of(value: Value) -> Result<Vec<u8>, Malformed> {
    if let Value::BulkString(bytes) = value {
        Ok(bytes)
    } else {
        Err(Malformed)
    }
}
