//! Extending those locks of a claim that a node has, if it lacks others: together it refuses to.

use tokio::time::Instant;

use super::nodes::NodeStore;
use crate::domain::{LockName, LockNames, RenewOptions, Renewal, Renewed, Token};
use crate::store::{Fault, StoreError, StoreResult};

/// What a node has extended of the locks of a claim, in their order.
pub(super) type PartHeld = Vec<Option<Renewal>>;

/// Has a node extend those of these locks that the claim has there.
pub(super) async fn renew_part_held(
    node: &NodeStore,
    (names, token): (&LockNames, Token),
    options: RenewOptions,
    deadline: Instant,
) -> StoreResult<PartHeld> {
    let mut held = names.clone();
    // The node refuses again only if another lease has ended meanwhile.
    for _ in names.iter() {
        match node.renew(&held, token, options, deadline).await? {
            Renewed::Extended(renewals) => {
                // Names are sorted.
                let of_name = |name| held.binary_search(name).ok();
                let extended = names
                    .iter()
                    .map(|name| renewals.get(of_name(name)?).cloned());
                return Ok(extended.collect());
            }
            Renewed::NotHolder(lost) => {
                let is_lost = |name: &LockName| lost.iter().any(|it| it.name == *name);
                let rest = held.iter().filter(|name| !is_lost(name));
                match LockNames::several(rest.cloned().collect()) {
                    Ok(rest) => held = rest,
                    Err(_) => break,
                }
            }
            Renewed::Mismatched(_) => {
                let detail = "a node refuses a renewal that changes nothing";
                return Err(StoreError::unavailable(Fault::Corrupt, detail));
            }
        }
    }
    Ok(vec![None; names.len()])
}
