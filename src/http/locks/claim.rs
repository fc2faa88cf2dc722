//! Turns the fields of an acquire into a claim; some of them are shared with renewals.

use std::time::Duration;

use crate::domain::{Bounds, Claim, HoldCount, LockNames, Metadata, Mode, Owner, Share, Token};
use crate::http::extract::Fields;
use crate::http::problem::Problem;

/// The parsed request of an acquire.
pub(super) struct AcquireRequest {
    pub(super) claim: Claim,
    /// `None` if the request has no `wait`.
    pub(super) wait: Option<Duration>,
}

/// Takes out the fields in `known`, and refuses others. It reports a misspelt field before a missing one.
pub(super) fn acquire_request(
    names: Option<LockNames>,
    token: Token,
    mut fields: Fields,
    known: &[&'static str],
    bounds: &Bounds,
) -> Result<AcquireRequest, Problem> {
    let ttl = fields.duration("ttl")?.map(|ttl| bounds.ttl(ttl));
    let wait = fields.duration("wait")?;
    let mode = mode(&mut fields)?;
    let fair = fields.flag("fair")?;
    let owner = fields.text("owner")?.map(|owner| Owner::new(&owner));
    let metadata = fields.json_object("metadata")?;
    let metadata = metadata.map(|metadata| Metadata::from_json_object(metadata.get()));
    let hold_count = fields.number("hold_count")?.map(HoldCount::new);
    let min_hold = fields
        .duration("min_hold")?
        .map(|held| bounds.min_hold(held));
    let max_hold = fields
        .duration("max_hold")?
        .map(|held| bounds.max_hold(held));
    let lock_delay = fields.duration("lock_delay")?;
    let lock_delay = lock_delay.map(|delay| bounds.lock_delay(delay));
    fields.finish(known)?;
    let claim = Claim {
        names: names.ok_or_else(super::names_missing)?,
        token,
        mode: mode.unwrap_or_default(),
        fair: fair.unwrap_or(true),
        ttl: ttl.transpose()?.unwrap_or_else(|| bounds.default_ttl()),
        hold_count: hold_count.transpose()?.unwrap_or(HoldCount::ONE),
        owner: owner.transpose()?.unwrap_or_default(),
        metadata: metadata.transpose()?,
        min_hold: min_hold.transpose()?,
        max_hold: max_hold.transpose()?,
        lock_delay: lock_delay.transpose()?,
        takes_over: false,
    };
    Ok(AcquireRequest { claim, wait })
}

/// `mode`, with `limit` and `permits`; `None` if the request has no `mode`.
pub(super) fn mode(fields: &mut Fields) -> Result<Option<Mode>, Problem> {
    let mode = fields.text("mode")?;
    let limit = fields.number("limit")?;
    let permits = fields.number("permits")?;
    match mode.as_deref() {
        Some("shared") => Ok(Some(Mode::Shared(Share::new(limit, permits.unwrap_or(1))?))),
        None | Some("exclusive") => {
            let of_shared = [("limit", limit), ("permits", permits)];
            if let Some((field, _)) = of_shared.iter().find(|(_, value)| value.is_some()) {
                return Err(Problem::field(field, "is allowed only with mode=shared"));
            }
            Ok(mode.map(|_| Mode::Exclusive))
        }
        Some(_) => Err(Problem::field("mode", "must be exclusive or shared")),
    }
}
